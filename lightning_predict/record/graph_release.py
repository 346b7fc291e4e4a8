"""Avoids a stack overflow when Python frees a long chain of autograd nodes.

torch keeps a Python object for every autograd node that Python code has accessed. A chain of such nodes is freed
recursively, with about 165 bytes of stack per node. With a stack of 8 MiB, torch 2.13 survives 40,000 nodes and crashes
at 50,000. Therefore, at regular intervals, an object attached to the graph holds a row of consecutive nodes. The
recursion stops at such a row, and the nodes behind the row are freed afterwards. A skip connection may bypass a single
node, so a row has many nodes.
"""

from __future__ import annotations

import gc
from collections import deque
from typing import Any, Final
from weakref import ref

INTERVAL: Final = 2_000  # Nodes between two rows, about 0.4 MB of stack if no skip connection bypasses a row
ROW: Final = 64  # Nodes in a row: more than in a transformer block, so a path that bypasses the row is short

_KEY: Final = "lightning_predict"

_released: deque[list[object]] = deque()
_keepers: set[int] = set()  # Ids of the keepers whose graphs are alive


class _Keeper:
    """Holds the next row of nodes. When the graph releases the keeper, the keeper passes the row on to `drain`."""

    __slots__ = ("__weakref__", "row")

    def __init__(self) -> None:
        self.row: list[object] = []
        _keepers.add(id(self))

    # Default arguments are used because globals may be gone when the interpreter shuts down.
    def __del__(self, released: deque[list[object]] = _released, keepers: set[int] = _keepers) -> None:
        keepers.discard(id(self))
        if self.row:
            released.append(self.row)


class HeldNodes:
    """Holds rows of nodes of one backward pass. Keepers attach the rows to the graph of the backward pass."""

    __slots__ = ("_count", "_keeper")

    def __init__(self) -> None:
        self._count = 0
        # The graph owns the keeper. A strong reference to the keeper would keep the graph alive.
        self._keeper: ref[_Keeper] | None = None

    def saw(self, node: Any) -> None:
        """Register the next node of the backward pass."""
        position = self._count % INTERVAL
        self._count += 1
        keeper = None if self._keeper is None else self._keeper()
        if keeper is not None and position < ROW:
            keeper.row.append(node)
        if keeper is None or position == ROW:  # this node's keeper will hold the next row
            self._keeper = ref(node.metadata.setdefault(_KEY, _Keeper()))
            if _after_collection not in gc.callbacks:  # for graphs that live longer than their recording
                gc.callbacks.append(_after_collection)


def drain() -> None:
    """Free the released rows, and the nodes behind them, iteratively."""
    while _released:
        row = _released.popleft()
        row.reverse()
        while row:
            row.pop()  # nodes nearest to the loss first, while later nodes are still held


def _after_collection(phase: str, _info: dict[str, int]) -> None:
    if phase == "stop":
        drain()
        if not _keepers:
            gc.callbacks.remove(_after_collection)
