"""Overlap computing and communicating: segments of a step on one queue, transfers between GPUs on another.

Each queue works in order. A transfer begins when the link is free and the segments before it are done (a bucket's
gradients are there); a segment may wait for a transfer (parameters that were gathered). Exposed transfers make the step
longer. All values are arrays over rows (GPUs, layouts).

Training together costs more than its collectives: they slow the work that they overlap, and all GPUs wait for the
slowest. `Cutter` cuts the simulated step into segments, and `Links` times collectives on a layout. Example::

    >>> import numpy as np
    >>> backward, update = WorkSegment(np.array([6.0])), WorkSegment(np.array([1.0]), waits_for=1)
    >>> early, late = Transfer(np.array([3.0]), after=0), Transfer(np.array([4.0]), after=1)
    >>> walk([backward, update], [early, late]).seconds  # 6 + 4 + 1: the first is hidden, the second is not
    array([11.])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, final

import numpy as np

from lightning_predict.gpus.layouts import Layout
from lightning_predict.kernels.fabric import CATALOGUE, Interconnect, collective
from lightning_predict.kernels.operations import Array
from lightning_predict.timeline.simulation import COMPUTE_STREAM, Simulated


@final
@dataclass(frozen=True, slots=True)
class WorkSegment:
    """A part of the step on the compute queue.

    Attributes:
        seconds: Its time on each row, shape (rows,).
        waits_for: Position of the transfer that it needs; None if it needs none.
        name: What it does, for `events_of`.
    """

    seconds: Array
    waits_for: int | None = None
    name: str = ""


@final
@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective on the communication queue.

    Attributes:
        seconds: Its time on each row, shape (rows,).
        after: Number of segments that are done before it may begin.
        name: What it carries, for `events_of`.
    """

    seconds: Array
    after: int
    name: str = ""


@final
@dataclass(frozen=True, slots=True)
class Walked:
    """A step with its transfers, as it was walked through.

    Attributes:
        seconds: The whole step on each row, shape (rows,).
        communication_seconds: All transfers together, shape (rows,).
        exposed_seconds: The exposed part of them, shape (rows,).
    """

    seconds: Array
    communication_seconds: Array
    exposed_seconds: Array


def walk(segments: Sequence[WorkSegment], transfers: Sequence[Transfer]) -> Walked:
    """Run the two queues.

    Args:
        segments: In the order of the device; at least one. Each waits only for transfers whose `after` is no later.
        transfers: In the order of the link, `after` never falling.
    """
    clock, link, _, _ = _placed(segments, transfers)
    seconds = np.maximum(clock, link)
    communicating = sum((transfer.seconds for transfer in transfers), np.zeros_like(clock))
    computing = sum((segment.seconds for segment in segments), np.zeros_like(clock))
    return Walked(seconds, communicating, seconds - computing)


def _placed(
    segments: Sequence[WorkSegment], transfers: Sequence[Transfer]
) -> tuple[Array, Array, Sequence[Array], Sequence[Array]]:
    """Return when each queue is done, and the end of each segment, after a leading 0, and of each transfer."""
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
    """A segment or a transfer, placed in the step.

    Attributes:
        name: What it is.
        is_transfer: On the links' queue; on that of computing otherwise.
        start_seconds: When it begins.
        seconds: How long it takes.
        is_critical: The step would be shorter without it.
    """

    name: str
    is_transfer: bool
    start_seconds: float
    seconds: float
    is_critical: bool


def events_of(segments: Sequence[WorkSegment], transfers: Sequence[Transfer], row: int) -> tuple[Event, ...]:
    """Place a step's segments and transfers, with the path that decides its length, in the order of their begins.

    Args:
        segments: See `walk`.
        transfers: See `walk`.
        row: One of the rows of their times.
    """
    clock, link, done, ends = _placed(segments, transfers)
    critical = set[tuple[bool, int]]()
    at: tuple[bool, int] | None = (True, len(transfers) - 1) if link[row] > clock[row] else (False, len(segments) - 1)
    while at is not None and at[1] >= 0:
        critical.add(at)
        is_transfer, position = at
        if is_transfer:
            after = transfers[position].after
            before = float(ends[position - 1][row]) if position else 0.0
            at = (True, position - 1) if before > float(done[after][row]) else (False, after - 1)
        else:
            needed = segments[position].waits_for
            is_late = needed is not None and float(ends[needed][row]) > float(done[position][row])
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
    return tuple(sorted((one for one in placed if one.seconds > 0), key=lambda one: one.start_seconds))


def slowest_of(count: int) -> float:
    """Compute the mean of the largest of n normal draws (Blom's approximation); 0 for one."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapCosts:
    """The cost of training together beyond the collectives alone.

    Slowdown fits the published training throughputs of one to eight GPUs best on a coarse grid; the accuracy report
    leaves out each GPU in turn (`benchmarks/accuracy/many_gpus.py`). Contention was chosen on five sources: those
    throughputs (136 rows of V100 and A100 with NVLink) hardly tell (mean errors of 4.5, 4.2 and 4.0 points at 0.2, 0.5
    and 0.9), nor does MPT's FSDP on up to 128 A100; torchtitan's FSDP on 64 A100 asks for 0.4 to 0.6. On Hopper, where
    a collective takes a tenth of the multiprocessors, torchtitan's FSDP on 64 H200 and NeMo's FSDP and distributed
    optimizer on 8 and 64 H100 ask for 0.2 or less; each of the two sources left out, the other chooses 0.2, too
    (`--of torchtitan`, `--of nemo`: training data, these rows). A GPU's pace fluctuates,
    so that over a long step its mean differs less from the others' than over a short one. The spread lies between the
    0.05 to 0.06 that suits those throughputs, whose steps take 0.1 to 0.5 s, and the 0.025 that suits MPT's and
    Megatron's longer ones (mpt_fsdp.csv, megatron_single_node.csv; `benchmarks/accuracy/large_runs.py`), each of them
    with the other left out. So all three tables are training data.

    Frameworks that divide a model or its batch wrap layers, collectives and checkpoints in Python of their own. The
    factor is read off the rows of Megatron-DeepSpeed with small micro-batches (megatron_single_node.csv, half of its
    shapes), whose host takes 3.6 to 3.8 ms for a layer, forward twice and backward, over the median host of `host.py`,
    which counts the launches of a backward pass twice: one framework on one machine. `python -m benchmarks.accuracy
    FOLDER --of many-gpus` prints what both would be, and err, with each table left out.

    Attributes:
        slowdown: Time of a collective during a training step over that of the same collective alone.
        contention: Seconds by which computing slows down per second of concurrent transfer, as both need memory and
            multiprocessors.
        hopper_contention: The same on Hopper and later.
        straggler_spread: Standard deviation of one GPU's pace at a moment, as a share of it. All wait for the slowest,
            so that n GPUs take as long as the largest of n draws.
        straggler_seconds: Correlation time of its pace.
        framework_host: Time that the host takes for an operation of a divided step over that in a plain one.
        pcie_slowdown: The slowdown between cards without NVLink, where few kernels wait for a slow link.
        pcie_contention: The contention there: such transfers take a few hundredths of a card's memory bandwidth.
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
        """Return the contention of transfers with computing on a layout."""
        if layout.gpu.nvlink_bytes_per_second is None:
            return self.pcie_contention
        return self.hopper_contention if layout.gpu.generation.has_adding_switches else self.contention

    def spread(self, seconds: Array) -> Array:
        """Compute the deviation of a GPU's mean pace over a step, whose correlation falls exponentially."""
        times = np.maximum(np.asarray(seconds, dtype=np.float64) / self.straggler_seconds, 1e-6)
        variance = 2 / times * (1 + np.expm1(-times) / times)
        found: Array = self.straggler_spread * np.sqrt(variance)
        return found

    def seconds(
        self, walked: Walked, single: Array, layout: Layout, *, replicas: int, spread: Array | float = 1.0
    ) -> Array:
        """Return the step.

        Args:
            walked: What the two queues give.
            single: Seconds of the step on one GPU.
            layout: The GPUs.
            replicas: Groups of GPUs that wait for each other.
            spread: Times the mean wait for the slowest.
        """
        hidden = np.maximum(walked.communication_seconds - walked.exposed_seconds, 0.0)
        waiting = spread * self.spread(single) * slowest_of(replicas) * single
        seconds: Array = walked.seconds + self.contention_on(layout) * hidden + waiting
        return seconds


OVERLAP_COSTS: Final = OverlapCosts()

WAITS: Final = np.array([0.0, 1.0, 2.5])
"""Low end, middle and high end of the wait for the slowest, over its mean."""


Ends = Array
"""Low end, middle and high end of a 90 % interval, shape (3,)."""

LAYOUT_WIDTH: Final = 0.7
"""Width of the interval of computing and launching in a step on many GPUs over that of a single step, as logarithms:
of steps of all kinds, large transformers in 16 bits are among those that are predicted best. With 1 every published
row lies in its interval. 0.65 of intervals that were a little wider (0.7 of today's are as wide) held 92 % of
mpt_fsdp.csv and 100 % of megatron_single_node.csv, for which the framework's host was read off; nine in ten would have
been held by 0.55 and, of Megatron's rows that the host does not bound, 0.48.
So both tables are training data for it; all of the papers' rows, which are not, lie inside (`--of many-gpus`)."""


def narrowed(ends: Ends) -> Ends:
    """Return the ends of a single step's interval drawn together to those of a step on many GPUs."""
    middle = ends[1]
    if middle <= 0:
        return ends
    found: Ends = middle * (ends / middle) ** LAYOUT_WIDTH
    return found


MACHINE_SPREAD: Final = 2.5
"""Factor up and down around a collective, on machines without measurements: of the published machines whose links are
there at all, nine in ten lie within it (`python -m benchmarks.accuracy` prints their bandwidths)."""


@final
class Cutter:
    """Cuts the simulated step of one GPU into segments, at each end of its interval.

    Args:
        simulated: The step, one row per GPU.
        row: The GPU.
        factors: By what the simulated times are multiplied.
        exposed: Collectives inside the model that make the passes longer; None without.
        micro_batches: How often the passes are repeated between the cuts.
    """

    def __init__(
        self, simulated: Simulated, row: int, factors: Ends, exposed: Ends | None = None, *, micro_batches: int = 1
    ) -> None:
        on_compute = simulated.kernel_streams == COMPUTE_STREAM
        self._owners = simulated.kernel_owners[on_compute]
        ends = (simulated.kernel_starts + simulated.kernel_seconds)[row, on_compute]
        self._ends = np.maximum.accumulate(ends - simulated.begins[row]) if len(ends) else ends
        self._total = float(simulated.seconds[row])
        self._busy = simulated.busy[row]
        self._factors, self._exposed, self._micro_batches = factors, exposed, micro_batches

    def segments(self, cuts: Sequence[int]) -> list[Array]:
        """Time between cuts (ascending numbers of operations), from the beginning of the step to its end.

        Collectives inside the model, which stand in the way, are spread over all segments but that behind the last cut.
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
        """Return the time in which the operations from `begin` on keep the device busy."""
        seconds: Ends = float(self._busy[begin:].sum()) * self._factors
        return seconds


@final
@dataclass(frozen=True, slots=True)
class Links:
    """A layout and what is known of its links.

    Attributes:
        layout: The GPUs that communicate.
        interconnect: What is known of the links.
        slowdown: Time of a collective during other work over that of the same collective alone.
        groups_per_node: Such groups in each machine, which share its network.
    """

    layout: Layout
    interconnect: Interconnect
    slowdown: float
    groups_per_node: int = 1

    def collective(self, operation: str, sizes: Sequence[float], *, groups_per_node: int = 1) -> list[Ends]:
        """Time each message: low end, middle and high end."""
        if not sizes:
            return []
        found = collective(
            operation,
            sizes,
            self.layout,
            interconnect=self.interconnect,
            groups_per_node=self.groups_per_node * groups_per_node,
        )
        has_nvlink = self.layout.gpu.nvlink_bytes_per_second is not None  # else the kind of machine has its own spread
        spread = MACHINE_SPREAD if self.interconnect == CATALOGUE and has_nvlink else 1.0
        found = found.widened(spread).scaled(self.slowdown)
        return list(np.stack([found.low, found.middle, found.high], axis=1))  # (3,) for each message
