"""Overlap of computation and communication: a compute queue, a communication queue, and the critical path.

Each queue works in order. A transfer starts when the link is free and the preceding segments are done, for example
because the gradients of a bucket are then ready. A segment may wait for a transfer, for example of gathered parameters.
Transfers that do not overlap with segments ("exposed") make the step longer. All values are arrays over rows (GPUs,
layouts).

Two more effects make distributed training slower: collectives slow down concurrent computation, and all GPUs wait for
the slowest GPU. `StepSplitter` splits the simulated step into segments. `Links` times collectives on a layout.
Example::

    >>> import numpy as np
    >>> backward, update = WorkSegment(np.array([6.0])), WorkSegment(np.array([1.0]), waits_for=1)
    >>> early, late = Transfer(np.array([3.0]), after=0), Transfer(np.array([4.0]), after=1)
    >>> overlap_transfers([backward, update], [early, late]).seconds  # 6 + 4 + 1: only `early` overlaps
    array([11.])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from lightning_predict.base.ties import clearly_less, ordered
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect, collective_seconds
from lightning_predict.kernels.operations import Array
from lightning_predict.timeline.simulation import COMPUTE_STREAM, SimulatedTimeline
from lightning_predict.uncertainty import ASSUMED_SPREAD


@dataclass(frozen=True, slots=True)
class WorkSegment:
    """A part of the step on the compute queue."""

    seconds: Array  # Time of the segment for each row, shape (rows,)
    waits_for: int | None = None  # Index of the transfer that the segment waits for; None if the segment does not wait
    name: str = ""  # Description for `events_of`


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective on the communication queue."""

    seconds: Array  # Time of the collective for each row, shape (rows,)
    after: int  # Number of segments that must be done before the transfer starts
    name: str = ""  # Description for `events_of`


@dataclass(frozen=True, slots=True)
class OverlappedStep:
    """Times of a step whose transfers overlap with computing."""

    seconds: Array  # Step time for each row, shape (rows,)
    communication_seconds: Array  # Total time of all transfers, shape (rows,)
    exposed_seconds: Array  # Time that transfers add to the step because they do not overlap, shape (rows,)

    @property
    def computing_seconds(self) -> Array:
        """Time without the transfers that do not overlap, shape (rows,)."""
        return self.seconds - self.exposed_seconds


def overlap_transfers(segments: Sequence[WorkSegment], transfers: Sequence[Transfer]) -> OverlappedStep:
    """Schedule segments and transfers on their queues.

    Args:
        segments: Segments in order, at least one. A segment must not wait for a transfer that starts after this
            segment.
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
    """Return the end times of the compute queue, the communication queue, the segments and the transfers.

    The end times of the segments start with a 0.
    """
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


@dataclass(frozen=True, slots=True)
class Event:
    """A scheduled segment or transfer."""

    name: str
    is_transfer: bool
    start_seconds: float
    seconds: float
    is_critical: bool


def events_of(segments: Sequence[WorkSegment], transfers: Sequence[Transfer], row: int) -> tuple[Event, ...]:
    """Return a step's segments and transfers with start times and the critical path, ordered by start.

    Transfers have non-decreasing `after`.
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
    return tuple(ordered((event for event in placed if event.seconds > 0), lambda event: event.start_seconds))


def slowest_of(count: int) -> float:
    """Return the expected maximum of `count` standard normal draws (Blom's approximation); 0 for one draw."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


COLLECTIVE_BLOCKS: Final = 24
"""Blocks of NCCL's kernels, each of which takes one multiprocessor from computation.

In a profile of eight H100 (NCCL 2.28), each large all-gather and reduce-scatter had 24. Products that ran at the same
time and fill the GPU once took 1.6 times as long; larger ones lose the multiprocessors' share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapCosts:
    """Costs of distributed training in addition to the time of isolated collectives.

    All constants are fitted to published throughputs (`python -m benchmarks.accuracy large-steps` scores them):

    - `slowdown`: throughputs of one to eight GPUs, on a coarse grid.
    - `straggler_spread`: steps of 0.1 to 0.5 s fit 0.05 to 0.06; longer steps of MPT and Megatron fit 0.025
      (mpt_fsdp.csv, megatron_single_node.csv). The chosen value is between these values.
    - `framework_host`: rows of Megatron-DeepSpeed with small micro-batches (half of the shapes of
      megatron_single_node.csv), where the host takes 3.6 to 3.8 ms per layer. Python wrappers around layers,
      collectives and checkpoints cause this time.
    """

    slowdown: float = 1.5  # Time of a collective during a training step, relative to the isolated collective
    # Standard deviation of one GPU's momentary speed, relative to its mean. All GPUs wait for the slowest GPU, so n
    # GPUs take as long as the maximum of n draws.
    straggler_spread: float = 0.04
    straggler_seconds: float = 0.2  # Correlation time of a GPU's speed. Over longer steps, mean speeds differ less.
    framework_host: float = 1.55  # Host time per operation if a framework splits model or batch, over an ordinary step
    pcie_slowdown: float = 1.0  # Slowdown of collectives between cards without NVLink: the links are too slow
    # Seconds by which a second of concurrent transfer slows down computation on cards without NVLink. Transfers use few
    # percent of a card's memory bandwidth.
    pcie_contention: float = 0.1

    def slowdown_on(self, layout: Layout) -> float:
        """Return the slowdown of collectives on a layout."""
        return self.pcie_slowdown if layout.gpu.nvlink_bytes_per_second is None else self.slowdown

    def contention_on(self, layout: Layout) -> float:
        """Return the seconds by which a second of concurrent transfer slows down computation on a layout."""
        if layout.gpu.nvlink_bytes_per_second is None:
            return self.pcie_contention
        return COLLECTIVE_BLOCKS / layout.gpu.streaming_multiprocessors

    def speed_deviation(self, seconds: Array) -> Array:
        """Return the relative standard deviation of a GPU's mean speed over a step, with a decaying correlation."""
        times = np.maximum(np.asarray(seconds, dtype=np.float64) / self.straggler_seconds, 1e-6)
        variance = 2 / times * (1 + np.expm1(-times) / times)
        deviation: Array = self.straggler_spread * np.sqrt(variance)
        return deviation

    def seconds(
        self, overlapped: OverlappedStep, layout: Layout, *, replicas: int, spread: Array | float = 1.0
    ) -> Array:
        """Return the step time with all costs of distributed training.

        Args:
            overlapped: Times of the compute and communication queues.
            layout: The GPUs.
            replicas: Number of data-parallel groups, which wait for each other.
            spread: Factor on the mean wait for the slowest GPU, whose computation takes longest.
        """
        hidden = np.maximum(overlapped.communication_seconds - overlapped.exposed_seconds, 0.0)
        computing = overlapped.computing_seconds
        waiting = spread * self.speed_deviation(computing) * slowest_of(replicas) * computing
        seconds: Array = overlapped.seconds + self.contention_on(layout) * hidden + waiting
        return seconds


OVERLAP_COSTS: Final = OverlapCosts()

Ends = Array  # Low end, middle and high end of a 90 % interval, shape (3,)


class StepSplitter:
    """Splits the simulated step of one GPU into segments, each with (low, middle, high) seconds.

    Args:
        simulated: The simulated step, one row per GPU.
        row: Row of the GPU.
        factors: Factors on the simulated times, shape (3,).
        exposed: Time of collectives inside the model (such as tensor parallelism) that do not overlap; None without
            such collectives.
        micro_batches: Number of micro-batches. Forward and backward are repeated for each micro-batch.
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
        """Return the time between cuts, from the start of the step to its end.

        Exposed collectives inside the model are spread over all segments except the last.

        Args:
            cuts: Operation indices in ascending order.
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
        """Return the device time of the operations from index `begin` on, as (low, middle, high)."""
        seconds: Ends = float(self._busy[begin:].sum()) * self._factors
        return seconds


@dataclass(frozen=True, slots=True)
class Links:
    """A layout with the known properties of its links."""

    layout: Layout
    interconnect: Interconnect
    slowdown: float = 1.0  # Time of a collective during computation, relative to the isolated collective
    groups_per_node: int = 1  # Number of communicating groups per machine, which share the machine's network

    def collective(self, operation: str, sizes: Sequence[float]) -> list[Ends]:
        """Return the time of a collective for each message size in bytes, as (low, middle, high)."""
        if not sizes:
            return []
        seconds = collective_seconds(
            operation, sizes, self.layout, interconnect=self.interconnect, groups_per_node=self.groups_per_node
        )
        has_nvlink = self.layout.gpu.nvlink_bytes_per_second is not None  # else by machine type
        spread = ASSUMED_SPREAD if self.interconnect == CATALOGUE and has_nvlink else 1.0
        seconds = seconds.widened(spread).scaled(self.slowdown)
        return list(np.stack([seconds.low, seconds.middle, seconds.high], axis=1))  # (3,) for each message
