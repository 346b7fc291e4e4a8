"""Leave a step as many Python frames as it has when nobody records it: a recorder's own come on top of the step's.

A step that calls itself nearly as deep as Python allows would end in a RecursionError of our making. Example::

    room = FramesOfRecorder()
    room.open()   # the limit is higher by FRAMES
    room.close()  # and as it was, unless someone else has set it since
"""

from __future__ import annotations

import sys
from contextlib import suppress
from threading import Lock
from typing import Final, final

FRAMES: Final = 200
"""Frames that a recorder, and torch on its behalf, may need within one operation: 30 were seen."""

_LOCK: Final = Lock()
_RECORDERS: Final[list[int]] = []  # the limit that each found; it is one for all threads of a process


@final
class FramesOfRecorder:
    """Frames for one recorder; opening and closing twice is harmless."""

    _is_open = False

    def open(self) -> None:
        """Raise the limit, once for all that record at the same time."""
        with _LOCK:
            if self._is_open:
                return
            self._is_open = True
            _RECORDERS.append(_RECORDERS[0] if _RECORDERS else sys.getrecursionlimit())
            if len(_RECORDERS) == 1:
                sys.setrecursionlimit(_RECORDERS[0] + FRAMES)

    def close(self) -> None:
        """Put the limit back where the last recorder stops."""
        with _LOCK:
            if not self._is_open:
                return
            self._is_open = False
            limit = _RECORDERS.pop()
            if not _RECORDERS and sys.getrecursionlimit() == limit + FRAMES:
                with suppress(RecursionError):  # stopped deeper than that: it stays higher
                    sys.setrecursionlimit(limit)
