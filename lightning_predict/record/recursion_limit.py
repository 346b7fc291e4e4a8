"""Raises Python's recursion limit by the stack frames that a recorder needs.

Without this headroom, a step that recurses almost to the limit would raise a RecursionError only under the recorder.
Example::

    room = RecursionHeadroom()
    room.open()   # the limit is higher by FRAMES
    room.close()  # the limit is restored, unless other code has changed it since
"""

from __future__ import annotations

import sys
from contextlib import suppress
from threading import Lock
from typing import Final, final

FRAMES: Final = 200
"""Number of stack frames that a recorder and its calls of torch may need within one operation; up to 30 were
observed."""

_LOCK: Final = Lock()
_RECORDERS: Final[list[int]] = []  # original limit for each open recorder; the limit applies to all threads


@final
class RecursionHeadroom:
    """Additional stack frames for one recorder. Repeated calls of open or close have no effect."""

    _is_open = False

    def open(self) -> None:
        """Raise the limit, only once for all recorders that are open at the same time."""
        with _LOCK:
            if self._is_open:
                return
            self._is_open = True
            _RECORDERS.append(_RECORDERS[0] if _RECORDERS else sys.getrecursionlimit())
            if len(_RECORDERS) == 1:
                sys.setrecursionlimit(_RECORDERS[0] + FRAMES)

    def close(self) -> None:
        """Restore the limit when the last recorder stops."""
        with _LOCK:
            if not self._is_open:
                return
            self._is_open = False
            limit = _RECORDERS.pop()
            if not _RECORDERS and sys.getrecursionlimit() == limit + FRAMES:
                with suppress(RecursionError):  # the current depth exceeds the old limit: keep the higher one
                    sys.setrecursionlimit(limit)
