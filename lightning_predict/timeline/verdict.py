"""`Verdict`: the bottleneck of a step on one GPU (host-bound or device-bound), and the critical path by module.

Example::

    >>> verdict = Verdict(bound_by="host", idle_share=0.6, gain=0.04, critical_path={"tables": 0.7, "top": 0.3})
    >>> verdict.sentence
    'bound by the host: a GPU twice as fast gains 4 %'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, Literal

import numpy as np

from lightning_predict.base.ties import NOTICEABLE, clearly_less, ordered
from lightning_predict.kernels.operations import Array
from lightning_predict.timeline.simulation import HostOperation, SimulatedTimeline
from lightning_predict.uncertainty import summed_by_owner

COMPARED_SPEED: Final = 2.0  # Relative speed of the GPU that `Verdict.gain` assumes
MAX_PARTS: Final = 8  # Maximum number of parts of a step to show

OTHERS: Final = "other modules"


Bound = Literal["device", "host", "links", "bubble", "wait"]
"""Possible bottlenecks: kernels on the device, launches by the host, links between GPUs, the pipeline bubble, or waits
of the user's code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Bottleneck of a step. Values are shares of the step, so they stay valid if the step time is corrected."""

    # Bottleneck: the host, which launches kernels, or the device, which runs kernels. For several GPUs, the bottleneck
    # can also be the links between them or the pipeline bubble.
    bound_by: Bound
    idle_share: float  # Share of the step in which the device waits for the host
    # Share of the step that a GPU saves whose kernels take half as long, with the same host. The share is 0 for a fully
    # host-bound step and 0.5 for a fully device-bound step.
    gain: float
    # Share of the step by module (by phase outside modules), largest first; the shares add up to 1. In a module's
    # share, the device works for the module or waits for the module's launches.
    critical_path: Mapping[str, float]
    # Whether the bottleneck is uncertain, because the host time was assumed and its interval contains the device time
    is_doubtful: bool = False

    @property
    def sentence(self) -> str:
        """The verdict as a phrase for the user."""
        bound = f"{'perhaps ' if self.is_doubtful else ''}bound by the {self.bound_by}"
        return f"{bound}: a GPU twice as fast gains {100 * self.gain:.0f} %"

    def with_wait(self, wait: float, step: float) -> Verdict:
        """Return the verdict of a step to which a wait is added."""
        share = _share(step, step + wait)
        parts = {"(wait)": 1 - share, **{name: share * part for name, part in self.critical_path.items()}}
        path = dict(ordered(parts.items(), lambda item: item[1], reverse=True))
        bound: Bound = "wait" if clearly_less(step, wait) else self.bound_by
        idle = 1 - share * (1 - self.idle_share)
        return replace(self, bound_by=bound, idle_share=idle, gain=share * self.gain, critical_path=path)

    def on_several_gpus(
        self, *, device: float, host: float, exposed_communication_seconds: float, seconds: float
    ) -> Verdict:
        """Return the verdict of a step on several GPUs that each run the whole model.

        Args:
            device: Compute time of one GPU in seconds.
            host: Host time in seconds.
            exposed_communication_seconds: Exposed communication: seconds in which the GPU waits for other GPUs.
            seconds: Step time.
        """
        if not clearly_less(max(device, host), exposed_communication_seconds):
            return replace(self, gain=_share(self.gain * (seconds - exposed_communication_seconds), seconds))
        return replace(self, bound_by="links", idle_share=_share(seconds - device, seconds), gain=0.0)


def verdicts(work: Sequence[HostOperation], step: SimulatedTimeline, faster: SimulatedTimeline) -> tuple[Verdict, ...]:
    """Return one Verdict per GPU."""
    time = step.busy + step.waiting  # (gpus, operations)
    parts = _parts(work, time)
    names = list(dict.fromkeys(parts))
    owners = np.array([names.index(part) for part in parts], dtype=np.intp)
    spent = summed_by_owner(time, owners, len(names))  # (gpus, parts)
    decided = []
    for row, seconds in enumerate(step.seconds):
        active, saved = float(step.active_with_gaps_seconds[row]), float(seconds - faster.seconds[row])
        decided.append(
            Verdict(
                bound_by="host" if clearly_less(active, step.host_seconds) else "device",
                idle_share=_share(float(seconds) - active, float(seconds)),
                gain=_share(saved, float(seconds)),
                critical_path=_shares(names, spent[row]),
            )
        )
    return tuple(decided)


def module_groups(seconds: Mapping[str, float]) -> dict[str, str]:
    """Group the modules of a step into at most `MAX_PARTS` parts to show.

    The common prefix of all names is removed. Then the longest part is split into its children repeatedly. The
    splitting stops when more than `MAX_PARTS` parts would reach `NOTICEABLE` of the time. Children with a number as
    their name are merged into `*` if a part has too many children. Smaller parts are combined. Example::

        >>> parts = {"attention": 2.0, "mlp": 3.0}
        >>> seconds = {f"net.blocks.{n}.{part}": parts[part] for n in range(12) for part in parts}
        >>> module_groups({**seconds, "net.head": 4.0})["net.blocks.3.mlp"]
        'blocks.*.mlp'
    """
    parts = {module: module.split(".") for module in seconds}
    shared = len(list(takewhile(lambda column: len(set(column)) == 1, zip(*parts.values(), strict=False))))
    rest = {module: tuple(names[shared:]) for module, names in parts.items()}
    groups = {module: names[0] if names else module for module, names in rest.items()}
    depths = dict.fromkeys(seconds, 1)
    while (finer := _finer(groups, depths, rest, seconds)) is not None:
        groups |= finer
        depths |= {module: depths[module] + 1 for module in finer}
    large = _large(groups, seconds)
    few = len(set(groups.values()).difference(large)) < 2
    return {module: group if few or group in large else OTHERS for module, group in groups.items()}


def _finer(
    groups: Mapping[str, str],
    depths: Mapping[str, int],
    rest: Mapping[str, tuple[str, ...]],
    seconds: Mapping[str, float],
) -> dict[str, str] | None:
    """Return new groups for the modules of the largest group that can be split; None if no group can."""
    for group in _large(groups, seconds):
        members = [module for module, own in groups.items() if own == group]
        if all(depths[module] >= len(rest[module]) for module in members):
            continue
        for is_merged in (False, True):
            split = {module: _child(group, rest[module][depths[module] :], is_merged=is_merged) for module in members}
            if len(_large({**groups, **split}, seconds)) <= MAX_PARTS:
                return split
    return None


def _child(group: str, below: Sequence[str], *, is_merged: bool) -> str:
    if not below:
        return group
    return f"{group}.{'*' if is_merged and below[0].isdigit() else below[0]}"


def _large(groups: Mapping[str, str], seconds: Mapping[str, float]) -> list[str]:
    """List groups with at least `NOTICEABLE` of the time, longest first."""
    together: dict[str, float] = {}
    for module, group in groups.items():
        together[group] = together.get(group, 0.0) + seconds[module]
    least = NOTICEABLE * sum(seconds.values())
    large = sorted(name for name in together if not clearly_less(together[name], least))
    return ordered(large, together.__getitem__, reverse=True)


def _parts(work: Sequence[HostOperation], spent: Array) -> list[str]:
    """Return the part of the step to which each operation belongs: its module's group, or its phase in brackets.

    Args:
        work: Operations of the step.
        spent: Seconds of each operation, shape (gpus, operations). All GPUs get the same parts and have equal weight.
    """
    total = spent.sum(axis=1, keepdims=True)  # (gpus, 1)
    shares = np.divide(spent, total, out=np.zeros_like(spent), where=total > 0).sum(axis=0)
    by_module: dict[str, float] = {}
    for operation, share in zip(work, shares, strict=True):
        if operation.module is not None:
            by_module[operation.module] = by_module.get(operation.module, 0.0) + float(share)
    groups = module_groups(by_module)
    return [f"({operation.phase})" if operation.module is None else groups[operation.module] for operation in work]


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0


def _shares(groups: Sequence[str], spent: Sequence[float]) -> dict[str, float]:
    total = float(sum(spent))
    by_share = ordered(zip(groups, spent, strict=True), lambda pair: pair[1], reverse=True)
    return {group: float(seconds) / total for group, seconds in by_share if seconds > 0}
