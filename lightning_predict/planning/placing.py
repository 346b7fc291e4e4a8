"""From chosen configurations to named nodes, moving as few jobs as possible.

A choice says how many GPUs of which machine type each job gets. Jobs that keep their configuration first keep their
node; the others fill up what is free. Only where that would take more nodes than the choice pays for, the least used
nodes are emptied one after another, and at last all jobs of that machine type are packed anew. Example::

    decision = decision_of(options, situation, choice, method="greedy", bound_usd=None, solve_seconds=0.1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_predict.planning.objective import OpenNode, Options
from lightning_predict.planning.packing import pack
from lightning_predict.planning.records import Decision, Placement, Situation

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
    """Groups of jobs that share a node, for one machine type."""
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
    """Jobs into the slots of a known packing: first those of the open nodes, then those of the new ones."""
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
    """The job's node, if it runs now and keeps its configuration."""
    current = situation.running.get(options.jobs[job])
    if current is None or current.configuration != options.configurations[choice[job]]:
        return None
    return current.node
