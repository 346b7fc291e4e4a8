"""Checks of values in other projects' configurations. Error messages name the key."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lightning_predict.base.errors import InvalidArgumentError

AUTO: Final = "auto"
"""Value that another project fills in at run time. Here, the recorded step determines it."""

_OFF: Final = (False, None, "", 0, -1, AUTO, "none", "no", "NO", "null")


def options_table(found: Any, name: str, path: str) -> Mapping[str, Any]:
    """Return a table of options; empty if the table is missing."""
    own = found.get(name) if isinstance(found, Mapping) else None
    if own is None:
        return {}
    if not isinstance(own, Mapping):
        raise refused(path, name, own)
    return own


def whole(value: Any, path: str, name: str) -> int:
    """Return a whole number of at least 1, or raise an error."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgumentError(f"strategy={path!r}: {name}={value!r}; expected a whole number of at least 1.")
    return value


def whole_if_given(value: Any, path: str, name: str) -> int | None:
    """Return a whole number of at least 1; None if the value is missing or `auto`."""
    return None if value in (None, AUTO) else whole(value, path, name)


def is_on(value: Any) -> bool:
    """Return whether an option is set. A non-empty table counts as set, unless it contains `enabled: false`."""
    if isinstance(value, Mapping):
        return bool(value) and value.get("enabled", True) not in _OFF
    return value not in _OFF


def refused(path: str, name: str, value: Any) -> InvalidArgumentError:
    """Return the error for an option that changes time or memory but cannot be predicted."""
    return InvalidArgumentError(
        f"strategy={path!r}: {name} = {value!r} has no word here, so that it would not be predicted; leave it out, or "
        "say the sharing as 'fsdp,tensor=8'."
    )


def list_unused(path: str, keys: Iterable[str]) -> None:
    """Warn once about all keys that do not affect the strategy."""
    names = sorted(set(keys))
    if names:
        warnings.warn(
            f"{path}: these keys do not change how GPUs share the work, and are left to the recorded step: "
            f"{', '.join(names)}.",
            stacklevel=2,
        )


def batch_options(
    *, total: int | None, micro: int | None, accumulated: int | None, path: str, names: tuple[str, str, str]
) -> list[str]:
    """Translate the batch sizes of a configuration to options of a strategy, and check that they agree.

    Args:
        total: Samples per optimizer step on all GPUs; None if the trainer fills this in.
        micro: Samples per batch on one GPU; None if the trainer fills this in.
        accumulated: Batches per optimizer step on one GPU; None if the trainer fills this in.
        path: The file, for error messages.
        names: Keys of `total`, `micro` and `accumulated`, for error messages.

    Raises:
        InvalidArgumentError: The batch sizes contradict each other, or the size of a batch is missing.
    """
    words = [] if micro is None else [f"batch_samples={micro}"]
    words += [f"accumulate={accumulated}"] if accumulated is not None and accumulated > 1 else []
    if total is None:
        return words
    if micro is None:
        raise InvalidArgumentError(
            f"strategy={path!r}: {names[0]}={total} needs {names[1]}, to tell how many batches are accumulated; write "
            "it, or leave both to the trainer ('auto')."
        )
    together = micro * (accumulated or 1)
    if total % together:
        product = names[1] if accumulated is None else f"{names[1]} x {names[2]}"
        raise InvalidArgumentError(
            f"strategy={path!r}: {names[0]}={total} is no multiple of {product} = {together}; correct one of them."
        )
    count = total // together
    return [*words, f"global_batches={count}" if accumulated is None else f"groups={count}"]
