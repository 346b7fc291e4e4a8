"""Overlaps computing and communication: segments of a step on one queue, collectives on another; critical path.

Each queue works in order. A transfer starts when the link is free and the segments before it are done, for example
because a bucket's gradients are then ready. A segment may wait for a transfer, for example of gathered parameters.
Transfers that do not overlap with segments ("exposed") lengthen the step. All values are arrays over rows (GPUs,
layouts).

Distributed training costs more than its collectives alone: they slow down computing that overlaps with them, and all
GPUs wait for the slowest one. `StepSplitter` splits the simulated step into segments. `Links` times collectives on a
layout. Example::

    >>> import numpy as np
    >>> backward, update = WorkSegment(np.array([6.0])), WorkSegment(np.array([1.0]), waits_for=1)
    >>> early, late = Transfer(np.array([3.0]), after=0), Transfer(np.array([4.0]), after=1)
    >>> overlap_transfers([backward, update], [early, late]).seconds  # 6 + 4 + 1: the first is hidden, the second is
    not array([11.])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, final

import numpy as np

from lightning_predict.gpus.layouts import Layout
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect, collective_seconds
from lightning_predict.kernels.operations import Array
from lightning_predict.ties import clearly_less, ordered
from lightning_predict.timeline.simulation import COMPUTE_STREAM, SimulatedTimeline


@final
@dataclass(frozen=True, slots=True)
class WorkSegment:
    """A segment of the step, on the compute queue.

    Attributes:
        seconds: Time of the segment for each row, shape (rows,).
        waits_for: Index of the transfer that the segment waits for; None if it waits for none.
        name: Description for `events_of`.
    """

    seconds: Array
    waits_for: int | None = None
    name: str = ""


@final
@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective, on the communication queue.

    Attributes:
        seconds: Time of the collective for each row, shape (rows,).
        after: Number of segments that must be done before it starts.
        name: Description for `events_of`.
    """

    seconds: Array
    after: int
    name: str = ""


@final
@dataclass(frozen=True, slots=True)
class OverlappedStep:
    """Times of a step whose transfers overlap with computing.

    Attributes:
        seconds: Step time for each row, shape (rows,).
        communication_seconds: Total time of all transfers, shape (rows,).
        exposed_seconds: Part of the transfer time that does not overlap, so that it lengthens the step, shape (rows,).
    """

    seconds: Array
    communication_seconds: Array
    exposed_seconds: Array


def overlap_transfers(segments: Sequence[WorkSegment], transfers: Sequence[Transfer]) -> OverlappedStep:
    """Schedule segments and transfers on their queues.

    Args:
        segments: Segments in order, at least one. Each may wait only for transfers whose `after` is not later.
        transfers: Transfers in order, with non-decreasing `after`.
    """
    clock, link, _, _ = _placed(segments, transfers)
    seconds = np.maximum(clock, link)
    communicating = sum((transfer.seconds for transfer in transfers), np.zeros_like(clock))
    computing = sum((segment.seconds for segment in segments), np.zeros_like(clock))
    return OverlappedStep(seconds, communicating, seconds - computing)


def _placed(
    segments: Sequence[WorkSegment], transfers: Sequence[Transfer]
) -> tuple[Array, Array, Sequence[Array], Sequence[Array]]:
    """Return the end of each queue, of each segment (preceded by 0) and of each transfer."""
    clock = np.zeros_like(segments[0].seconds)  # (rows,)
    done = [clock]
    link = np.zeros_like(clock)
    ends: list[Array] = []

    def issue(up_to: int) -> None:
        nonlocal link
        while len(ends) < len(transfers) and transfers[len(ends)].after <= up_to:
            transfer = transfers[len(ends)]
            link = np.maximum(link, done[transfer.after]) + transfer.seconds
            ends.append(link)

    for position, segment in enumerate(segments):
        issue(position)
        if segment.waits_for is not None:
            clock = np.maximum(clock, ends[segment.waits_for])
        clock = clock + segment.seconds
        done.append(clock)
    issue(len(segments))
    return clock, link, done, ends


@final
@dataclass(frozen=True, slots=True)
class Event:
    """A segment or transfer, with its place in the schedule.

    Attributes:
        name: Description.
        is_transfer: Whether it is on the communication queue; otherwise it is on the compute queue.
        start_seconds: Time of its start.
        seconds: Duration.
        is_critical: Whether it is on the critical path.
    """

    name: str
    is_transfer: bool
    start_seconds: float
    seconds: float
    is_critical: bool


def events_of(segments: Sequence[WorkSegment], transfers: Sequence[Transfer], row: int) -> tuple[Event, ...]:
    """Return a step's segments and transfers with start times and the critical path, ordered by start.

    Args:
        segments: See `overlap_transfers`.
        transfers: See `overlap_transfers`.
        row: Index of the row whose times are used.
    """
    clock, link, done, ends = _placed(segments, transfers)
    critical = set[tuple[bool, int]]()
    at: tuple[bool, int] | None = (
        (True, len(transfers) - 1) if clearly_less(clock[row], link[row]) else (False, len(segments) - 1)
    )
    while at is not None and at[1] >= 0:
        critical.add(at)
        is_transfer, position = at
        if is_transfer:
            after = transfers[position].after
            before = float(ends[position - 1][row]) if position else 0.0
            at = (True, position - 1) if clearly_less(float(done[after][row]), before) else (False, after - 1)
        else:
            needed = segments[position].waits_for
            is_late = needed is not None and clearly_less(float(done[position][row]), float(ends[needed][row]))
            at = (True, needed) if is_late and needed is not None else (False, position - 1)
    placed = [
        Event(
            segment.name,
            False,
            float(end[row] - segment.seconds[row]),
            float(segment.seconds[row]),
            (False, i) in critical,
        )
        for i, (segment, end) in enumerate(zip(segments, done[1:], strict=True))
    ]
    placed += [
        Event(one.name, True, float(end[row] - one.seconds[row]), float(one.seconds[row]), (True, i) in critical)
        for i, (one, end) in enumerate(zip(transfers, ends, strict=True))
    ]
    return tuple(ordered((one for one in placed if one.seconds > 0), lambda one: one.start_seconds))


def slowest_of(count: int) -> float:
    """Return the expected maximum of `count` standard normal draws (Blom's approximation); 0 for one."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapCosts:
    """Costs of distributed training in addition to the time of isolated collectives.

    The slowdown was fitted on a coarse grid to published training throughputs of one to eight GPUs. The accuracy report
    leaves out one GPU at a time (`benchmarks/accuracy/many_gpus.py`).

    Contention was chosen from five sources. The throughputs above (136 rows of V100 and A100 with NVLink) hardly
    constrain it: mean errors are 4.5, 4.2 and 4.0 points at 0.2, 0.5 and 0.9. MPT's FSDP on up to 128 A100 hardly
    constrains it, either. torchtitan's FSDP on 64 A100 suggests 0.4 to 0.6. On Hopper, a collective uses a tenth of the
    SMs. There, torchtitan's FSDP on 64 H200 suggests at most 0.2, and so do NeMo's FSDP and distributed optimizer on 8
    and 64 H100. If one of these two is left out, the other selects 0.2, too (`--of torchtitan`, `--of nemo`; these rows
    are training data).

    The speed of a GPU fluctuates, so the mean speeds of GPUs differ less over a long step than over a short one. A
    spread of 0.05 to 0.06 fits the throughputs above (steps of 0.1 to 0.5 s). The longer steps of MPT and Megatron need
    0.025, each with the other left out (mpt_fsdp.csv, megatron_single_node.csv; `benchmarks/accuracy/large_runs.py`).
    The chosen value is in between. Therefore all three tables are training data.

    Frameworks that split a model or its batch wrap layers, collectives and checkpoints in Python code, which makes the
    host slower. The factor comes from the rows of Megatron-DeepSpeed with small micro-batches
    (megatron_single_node.csv, half of its shapes). There, the host takes 3.6 to 3.8 ms per layer (forward twice and
    backward). It is compared with the median host of `host.py`, whose backward overheads are doubled. This is one
    framework on one machine. `python -m benchmarks.accuracy FOLDER --of many-gpus` prints both values, and their errors
    with each table left out.

    Attributes:
        slowdown: Time of a collective during a training step, relative to the isolated collective.
        contention: Seconds by which computing is slowed down per second of concurrent transfer, since both need memory
            bandwidth and SMs.
        hopper_contention: Contention on Hopper and later generations.
        straggler_spread: Standard deviation of one GPU's momentary speed, relative to its mean. All GPUs wait for the
            slowest, so n GPUs take as long as the maximum of n draws.
        straggler_seconds: Correlation time of the speed.
        framework_host: Host time per operation in a split step, relative to an ordinary step.
        pcie_slowdown: Slowdown of collectives between cards without NVLink, where few kernels wait for a slow link.
        pcie_contention: Contention between such cards. Their transfers use a few hundredths of a card's memory
            bandwidth.
    """

    slowdown: float = 1.5
    contention: float = 0.5
    hopper_contention: float = 0.2
    straggler_spread: float = 0.04
    straggler_seconds: float = 0.2
    framework_host: float = 1.55
    pcie_slowdown: float = 1.0
    pcie_contention: float = 0.1

    def slowdown_on(self, layout: Layout) -> float:
        """Return the slowdown of collectives on a layout."""
        return self.pcie_slowdown if layout.gpu.nvlink_bytes_per_second is None else self.slowdown

    def contention_on(self, layout: Layout) -> float:
        """Return the contention between transfers and computation on a layout."""
        if layout.gpu.nvlink_bytes_per_second is None:
            return self.pcie_contention
        return self.hopper_contention if layout.gpu.generation.has_in_network_reduction else self.contention

    def speed_deviation(self, seconds: Array) -> Array:
        """Return the standard deviation of a GPU's mean speed over a step; correlation decays exponentially."""
        times = np.maximum(np.asarray(seconds, dtype=np.float64) / self.straggler_seconds, 1e-6)
        variance = 2 / times * (1 + np.expm1(-times) / times)
        found: Array = self.straggler_spread * np.sqrt(variance)
        return found

    def seconds(
        self, walked: OverlappedStep, single: Array, layout: Layout, *, replicas: int, spread: Array | float = 1.0
    ) -> Array:
        """Return the step time with all costs of distributed training.

        Args:
            walked: Times of the two queues.
            single: Step time on one GPU.
            layout: The GPUs.
            replicas: Number of groups of GPUs that wait for each other.
            spread: Factor on the mean wait for the slowest GPU.
        """
        hidden = np.maximum(walked.communication_seconds - walked.exposed_seconds, 0.0)
        waiting = spread * self.speed_deviation(single) * slowest_of(replicas) * single
        seconds: Array = walked.seconds + self.contention_on(layout) * hidden + waiting
        return seconds


OVERLAP_COSTS: Final = OverlapCosts()

STRAGGLER_WAIT: Final = np.array([0.0, 1.0, 2.5])
"""Low end, middle and high end of the wait for the slowest GPU, relative to its mean."""


Ends = Array
"""Low end, middle and high end of a 90 % interval, shape (3,)."""

LAYOUT_WIDTH: Final = 0.7
"""Width of the interval of computing and launches in a step on many GPUs, relative to a single step, on a log scale. It
is below 1 because large 16-bit transformers are among the steps with the smallest errors.

With 1, every published row is in its interval. A factor of 0.65 on an earlier, slightly wider interval (0.7 on the
current one) covered 92 % of mpt_fsdp.csv. It covered 100 % of megatron_single_node.csv, to which the framework's host
time was fitted. A coverage of 90 % would need 0.55, or 0.48 for those rows of Megatron that are not host-bound.
Therefore both tables are training data for this constant. The rows of the papers are not, and all of them are covered
(`--of many-gpus`).
many-gpus`).
"""


def narrow_interval(ends: Ends) -> Ends:
    """Narrow the interval of a single step to that of a step on many GPUs."""
    middle = ends[1]
    if middle <= 0:
        return ends
    found: Ends = middle * (ends / middle) ** LAYOUT_WIDTH
    return found


MACHINE_SPREAD: Final = 2.5
"""Factor up and down for the interval of a collective's time on machines without measurements. It covers 90 % of the
published machines whose links work properly (`python -m benchmarks.accuracy` prints their bandwidths)."""


@final
class StepSplitter:
    """Splits the simulated step of one GPU into segments, for the middle and both ends of its interval.

    Args:
        simulated: The step, one row per GPU.
        row: Row of the GPU.
        factors: Factors on the simulated times, shape (3,).
        exposed: Time of collectives inside the model that do not overlap, which lengthen the passes; None without any.
        micro_batches: Number of repetitions of the passes.
    """

    def __init__(
        self,
        simulated: SimulatedTimeline,
        row: int,
        factors: Ends,
        exposed: Ends | None = None,
        *,
        micro_batches: int = 1,
    ) -> None:
        on_compute = simulated.kernel_streams == COMPUTE_STREAM
        self._owners = simulated.kernel_owners[on_compute]
        ends = (simulated.kernel_starts + simulated.kernel_seconds)[row, on_compute]
        self._ends = np.maximum.accumulate(ends - simulated.begins[row]) if len(ends) else ends
        self._total = float(simulated.seconds[row])
        self._busy = simulated.busy[row]
        self._factors, self._exposed, self._micro_batches = factors, exposed, micro_batches

    def segments(self, cuts: Sequence[int]) -> list[Array]:
        """Return the time between cuts (ascending operation indices), from the start of the step to its end.

        Collectives inside the model that do not overlap are spread over all segments except the last.
        """
        kernels = np.searchsorted(self._owners, np.asarray(cuts))
        moments = [float(self._ends[count - 1]) if count else 0.0 for count in kernels]
        bounded = np.clip([0.0, *moments, self._total], 0.0, self._total)
        durations = [duration * self._factors for duration in np.diff(bounded)]  # (3,) for each segment
        if self._exposed is None:
            return durations
        passes = max(len(durations) - 1, 1)
        stretch = self._micro_batches * (1 + self._exposed / sum(durations[:passes]))
        return [duration * stretch for duration in durations[:passes]] + durations[passes:]

    def busy(self, begin: int) -> Ends:
        """Return the device time of the operations from index `begin` on."""
        seconds: Ends = float(self._busy[begin:].sum()) * self._factors
        return seconds


@final
@dataclass(frozen=True, slots=True)
class Links:
    """A layout with the known properties of its links.

    Attributes:
        layout: The communicating GPUs.
        interconnect: Known properties of the links.
        slowdown: Time of a collective during other work, relative to the isolated collective.
        groups_per_node: Number of such groups per machine. They share its network.
    """

    layout: Layout
    interconnect: Interconnect
    slowdown: float
    groups_per_node: int = 1

    def collective(self, operation: str, sizes: Sequence[float], *, groups_per_node: int = 1) -> list[Ends]:
        """Return the time of each message as (low, middle, high)."""
        if not sizes:
            return []
        found = collective_seconds(
            operation,
            sizes,
            self.layout,
            interconnect=self.interconnect,
            groups_per_node=self.groups_per_node * groups_per_node,
        )
        has_nvlink = self.layout.gpu.nvlink_bytes_per_second is not None  # else by machine type
        spread = MACHINE_SPREAD if self.interconnect == CATALOGUE and has_nvlink else 1.0
        found = found.widened(spread).scaled(self.slowdown)
        return list(np.stack([found.low, found.middle, found.high], axis=1))  # (3,) for each message
