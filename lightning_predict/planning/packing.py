"""Which jobs share which node.

A machine of 8 GPUs holds jobs of 1 to 8 GPUs as long as these sum to 8 at most: bin packing with few sizes. Sizes are
kept as counts, so that a node more or less is found in microseconds, however many jobs there are: sizes go from large
to small, each to the fullest node that still holds it (best fit decreasing). Example::

    >>> nodes_needed((0, 2, 0, 1), capacity=4)  # two jobs of 2 GPUs, one of 4
    2
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=2**17)
def nodes_needed(counts: tuple[int, ...], *, capacity: int, open_free: tuple[int, ...] = ()) -> int:
    """New nodes that jobs need beside those that are open.

    Args:
        counts: Jobs by size: `counts[s - 1]` of them take s GPUs.
        capacity: GPUs of a new node.
        open_free: Free GPUs of nodes that are open anyway.
    """
    free = [0] * (capacity + 1)  # how many nodes have so many free GPUs
    for gpus in open_free:
        free[gpus] += 1
    opened = 0
    for size in range(len(counts), 0, -1):
        waiting = counts[size - 1]
        while waiting:
            room = next((gpus for gpus in range(size, capacity + 1) if free[gpus]), None)
            if room is None:
                per_node = capacity // size
                full, rest = divmod(waiting, per_node)
                opened += full + (rest > 0)
                free[capacity - per_node * size] += full
                if rest:
                    free[capacity - rest * size] += 1
                break
            moved = min(waiting, free[room])
            free[room] -= moved
            free[room - size] += moved
            waiting -= moved
    return opened


@lru_cache(maxsize=2**17)
def further_nodes(counts: tuple[int, ...], *, capacity: int, open_free: tuple[int, ...] = ()) -> tuple[int, ...]:
    """How many more new nodes one more job needs, by its size; arguments as those of `nodes_needed`."""
    before = nodes_needed(counts, capacity=capacity, open_free=open_free)
    with_one_more = ((*counts[:size], counts[size] + 1, *counts[size + 1 :]) for size in range(len(counts)))
    return tuple(nodes_needed(more, capacity=capacity, open_free=open_free) - before for more in with_one_more)


def pack(sizes: Sequence[int], *, capacity: int, free: Sequence[int]) -> tuple[list[int], int]:
    """The same packing, with names: the node of each job, and how many nodes were opened.

    Args:
        sizes: GPUs of each job.
        capacity: GPUs of a new node.
        free: Free GPUs of the nodes that are open, which have the numbers 0, 1, ...; new ones follow.
    """
    room = list(free)
    node_of = [0] * len(sizes)
    for item in sorted(range(len(sizes)), key=lambda item: (-sizes[item], item)):
        fitting = [node for node, gpus in enumerate(room) if gpus >= sizes[item]]
        if not fitting:
            room.append(capacity)
            fitting = [len(room) - 1]
        node_of[item] = min(fitting, key=lambda node: (room[node], node))
        room[node_of[item]] -= sizes[item]
    return node_of, len(room) - len(free)


@lru_cache(maxsize=256)
def fillings(sizes: tuple[int, ...], capacity: int) -> tuple[tuple[int, ...], ...]:
    """All ways to fill a node as far as possible: counts by size, in the order of `sizes` (largest first).

    With sizes 1 to 8 and 8 GPUs these are the 22 partitions of 8.
    """

    def extend(position: int, left: int) -> list[tuple[int, ...]]:
        if position == len(sizes):
            return [()]
        return [
            (count, *rest)
            for count in range(left // sizes[position], -1, -1)
            for rest in extend(position + 1, left - count * sizes[position])
        ]

    smallest = min(sizes, default=capacity + 1)
    everything = extend(0, capacity)
    return tuple(
        counts
        for counts in everything
        if sum(counts) and capacity - sum(s * c for s, c in zip(sizes, counts, strict=True)) < smallest
    )
