"""Replaces attributes of torch while a step is recorded, in any number of threads.

Example::

    with patched_attribute(torch.autograd, "backward", lambda plain: lambda *args: plain(*args)):
        step()
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

Patch = tuple[Any, str, Callable[[Any], Any]]
"""Owner and name of an attribute to replace, and the function that returns the replacement of its value."""


@dataclass(slots=True)
class _Replaced:
    """A replaced attribute. `own` is the owner's own value, or `_INHERITED`."""

    own: object
    replacement: Any
    users: int = 0


_INHERITED: Final = object()
_LOCK: Final = threading.Lock()
_REPLACED: Final[dict[tuple[int, str], _Replaced]] = {}


@contextmanager
def patched_attribute(owner: Any, name: str, replacement_of: Callable[[Any], Any]) -> Iterator[Any]:
    """Replace an attribute while any thread needs it; the last thread restores the original.

    An attribute that other code has replaced since is left to that code.

    Args:
        owner: A module or a class.
        name: Name of the attribute.
        replacement_of: Returns the replacement of the original value, which all threads use.

    Yields:
        The replacement.
    """
    place = id(owner), name
    with _LOCK:
        replaced = _REPLACED.get(place)
        if replaced is None:
            replaced = _Replaced(vars(owner).get(name, _INHERITED), replacement_of(getattr(owner, name)))
            setattr(owner, name, replaced.replacement)
            _REPLACED[place] = replaced
        replaced.users += 1
    try:
        yield replaced.replacement
    finally:
        with _LOCK:
            replaced.users -= 1
            if not replaced.users:
                del _REPLACED[place]
                if vars(owner).get(name) is replaced.replacement:
                    delattr(owner, name) if replaced.own is _INHERITED else setattr(owner, name, replaced.own)
