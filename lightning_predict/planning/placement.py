"""Place jobs on nodes: how many nodes they need, and which job goes to which named node.

A machine of 8 GPUs holds jobs of 1 to 8 GPUs as long as these sum to 8 at most: bin packing with few sizes. Sizes are
kept as counts, so that a node more or less is found in microseconds, however many jobs there are: sizes go from large
to small, each to the fullest node that still holds it (best fit decreasing).

Jobs that keep their configuration keep their node; the others fill up what is free. Only where that would take more
nodes than the choice pays for, the least used nodes are emptied one after another, and at last all jobs of that machine
type are packed anew. Example::

    >>> nodes_needed((0, 2, 0, 1), capacity=4)  # two jobs of 2 GPUs, one of 4
    2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_predict.planning.objective import OpenNode, Options
from lightning_predict.planning.problem import Decision, Placement, Situation


@lru_cache(maxsize=2**17)
def nodes_needed(counts: tuple[int, ...], *, capacity: int, open_free: tuple[int, ...] = ()) -> int:
    """Count new nodes that jobs need beside those that are open.

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
    """Find how many more new nodes one more job needs, by its size; arguments as those of `nodes_needed`."""
    before = nodes_needed(counts, capacity=capacity, open_free=open_free)
    with_one_more = ((*counts[:size], counts[size] + 1, *counts[size + 1 :]) for size in range(len(counts)))
    return tuple(nodes_needed(more, capacity=capacity, open_free=open_free) - before for more in with_one_more)


def pack(sizes: Sequence[int], *, capacity: int, free: Sequence[int]) -> tuple[list[int], int]:
    """Pack jobs onto nodes by name: the node of each job, and how many nodes were opened.

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
    """Return all ways to fill a node as far as possible: counts by size, in the order of `sizes` (largest first).

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


WAITS: Final = -1
"""In a choice, in the place of a configuration's index: the job waits."""

Choice = npt.NDArray[np.int64]
"""Configuration index of each job of `Options.jobs`, (J,); `WAITS` where it waits."""

Bins = Mapping[int, Sequence[Sequence[int]]]
"""By machine index, the job sizes that each new node holds: a packing that is known to fit."""


def decision_of(
    options: Options,
    situation: Situation,
    choice: Choice,
    *,
    opened: Sequence[int],
    bins: Bins,
    objective_usd: float,
    bound_usd: float | None,
    method: str,
    solve_seconds: float,
) -> Decision:
    """Name the nodes of a choice.

    Args:
        options: The table of the decision.
        situation: Where jobs run now.
        choice: What each job gets.
        opened: New nodes of each machine type that the choice pays for, (M,).
        bins: A packing into as many nodes, for types whose jobs cannot stay where they are.
        objective_usd: Cost of the choice.
        bound_usd: What no choice can go below.
        method: Name of what chose.
        solve_seconds: How long it took.
    """
    free_nodes = list(options.free_nodes)
    placements = dict(options.fixed)
    layouts = [_layout(options, situation, choice, index, opened[index], bins) for index in range(len(opened))]
    # Nodes that are kept are taken first, so that no other machine type is given their numbers.
    for _, named, _ in layouts:
        free_nodes = [node for node in free_nodes if node not in named]
    for jobs, named, groups in layouts:
        numbers = {group: node if node is not None else free_nodes.pop(0) for group, node in enumerate(groups)}
        for job, group in jobs.items():
            configuration = options.configurations[choice[job]]
            placements[options.jobs[job]] = Placement(node=numbers[group], configuration=configuration)
        assert named <= set(numbers.values())
    return Decision(
        placements=dict(sorted(placements.items())),
        postponed=tuple(job for job, item in zip(options.jobs, choice, strict=True) if item == WAITS),
        objective_usd=objective_usd,
        bound_usd=bound_usd,
        method=method,
        solve_seconds=solve_seconds,
    )


Layout = tuple[dict[int, int], set[int], list[int | None]]
"""The group of each job, the nodes that are kept, and the node of each group (None: any free one)."""


def _layout(options: Options, situation: Situation, choice: Choice, machine: int, opened: int, bins: Bins) -> Layout:
    """Group jobs that share a node, for one machine type."""
    jobs = [job for job, item in enumerate(choice) if item != WAITS and options.machine_of[item] == machine]
    capacity = options.machines[machine].num_gpus
    sizes = {job: int(options.size_of[choice[job]]) for job in jobs}
    open_nodes = [node for node in options.open_nodes if node.machine == machine]
    staying = {job: node for job in jobs if (node := _node_kept(options, situation, choice, job)) is not None}

    kept = set(staying.values()) - {node.node for node in open_nodes}
    while True:
        group_of, groups, new = _around(jobs, sizes, staying, open_nodes, kept, capacity)
        if len(kept) + new <= opened:
            return group_of, kept, groups
        if not kept:
            return _packed_anew(jobs, sizes, [node.node for node in open_nodes], bins[machine])
        # One node less: the jobs of the one that is least used move to the others.
        used = {node: sum(sizes[job] for job, at in staying.items() if at == node) for node in kept}
        evicted = min(kept, key=lambda node: (used[node], node))
        kept = kept - {evicted}
        staying = {job: node for job, node in staying.items() if node != evicted}


def _around(
    jobs: Sequence[int],
    sizes: Mapping[int, int],
    staying: Mapping[int, int],
    open_nodes: Sequence[OpenNode],
    kept: set[int],
    capacity: int,
) -> tuple[dict[int, int], list[int | None], int]:
    """Pack the other jobs around those that stay: groups of jobs, node of each group, and how many nodes are new."""
    groups: list[int | None] = [*(node.node for node in open_nodes), *sorted(kept)]
    room = [node.free_gpus for node in open_nodes] + [capacity] * len(kept)
    group_of = {job: groups.index(node) for job, node in staying.items()}
    for job, group in group_of.items():
        room[group] -= sizes[job]
    moving = [job for job in jobs if job not in group_of]
    where, new = pack([sizes[job] for job in moving], capacity=capacity, free=room)
    return group_of | dict(zip(moving, where, strict=True)), groups + [None] * new, new


def _packed_anew(
    jobs: Sequence[int], sizes: Mapping[int, int], open_nodes: Sequence[int], bins: Sequence[Sequence[int]]
) -> Layout:
    """Put jobs into the slots of a known packing: first those of the open nodes, then those of the new ones."""
    slots = [(size, group) for group, held in enumerate(bins) for size in held]
    group_of = {}
    for job in sorted(jobs, key=lambda job: (-sizes[job], job)):
        slot = next(slot for slot in slots if slot[0] == sizes[job])
        slots.remove(slot)
        group_of[job] = slot[1]
    used = sorted({group for group in group_of.values() if group >= len(open_nodes)})
    renumbered = {group: len(open_nodes) + position for position, group in enumerate(used)}
    groups: list[int | None] = [*open_nodes, *([None] * len(used))]
    return {job: renumbered.get(group, group) for job, group in group_of.items()}, set(), groups


def _node_kept(options: Options, situation: Situation, choice: Choice, job: int) -> int | None:
    """Return the job's node, if it runs now and keeps its configuration."""
    current = situation.running.get(options.jobs[job])
    if current is None or current.configuration != options.configurations[choice[job]]:
        return None
    return current.node
