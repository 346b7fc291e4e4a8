"""Let autograd's nodes be shown to Python without their release becoming recursive.

torch keeps a Python object for every node that Python has seen, and a chain of such nodes is freed recursively, at
about 165 bytes of stack each (torch 2.13 survives 40,000 and dies at 50,000 on a stack of 8 MiB). So some nodes in a
row are held, again and again, by an object that the graph itself carries: where a release comes to them it ends, and
what is behind them is freed afterwards, once the release is over. A row of them, as a shortcut may lead past one.
Example::

    held = HeldNodes()
    held.saw(node)  # each node of a backward pass, in its order
"""

from __future__ import annotations

import gc
from collections import deque
from typing import Any, Final, final
from weakref import ref

INTERVAL: Final = 2_000
"""Nodes from one row to the next: at most some 0.4 MB of stack where no shortcut leads past a row."""

ROW: Final = 64
"""Nodes of a row: more than a transformer block has, so that a path without any is short."""

_KEY: Final = "lightning_predict"

_released: deque[list[Any]] = deque()
_keepers: set[int] = set()
"""Of graphs that live."""


@final
class _Keeper:
    """Holds the next row; released by the graph, it leaves the row to `drain`."""

    __slots__ = ("__weakref__", "row")

    def __init__(self) -> None:
        self.row: list[Any] = []
        _keepers.add(id(self))

    # Bound here, as an interpreter that ends has no globals left.
    def __del__(self, released: deque[list[Any]] = _released, keepers: set[int] = _keepers) -> None:
        keepers.discard(id(self))
        if self.row:
            released.append(self.row)


@final
class HeldNodes:
    """Sees the nodes of one backward pass and has the graph hold some of them."""

    __slots__ = ("_count", "_keeper")

    def __init__(self) -> None:
        self._count = 0
        # The graph's own: held here, it would keep a graph that the step releases.
        self._keeper: ref[_Keeper] | None = None

    def saw(self, node: Any) -> None:
        """Note the next node."""
        position = self._count % INTERVAL
        self._count += 1
        keeper = None if self._keeper is None else self._keeper()
        if keeper is not None and position < ROW:
            keeper.row.append(node)
        if keeper is None or position == ROW:  # the next row is held behind this one
            self._keeper = ref(node.metadata.setdefault(_KEY, _Keeper()))
            if _after_collection not in gc.callbacks:  # for graphs that outlive their recording
                gc.callbacks.append(_after_collection)


def drain() -> None:
    """Free the rows that were released, and what was behind them, one after another."""
    while _released:
        row = _released.popleft()
        row.reverse()
        while row:
            row.pop()  # those nearest to the loss first: the others are still held


def _after_collection(phase: str, _info: dict[str, int]) -> None:
    if phase == "stop":
        drain()
        if not _keepers:
            gc.callbacks.remove(_after_collection)
