"""The host's time of a step: the five kinds around an operation's launches (Lin et al., HiPC 2022), and their sources.

    T1  between two operations            T4  one launch call
    T2  from the start of an operation    T5  between two launches of one operation;
        to its first launch                   the whole operation where it launches nothing
    T3  from its last launch to its end

A trace with host times gives each operation its own (`recorded_host`); the rest comes from a table by phase, of a
median host.

In a recorded step waits are taken out: a synchronizing call, a copy that blocks and a launch into a full queue last as
long as the device makes them; what is kept is the work around them, and the simulation derives the waits again for
another GPU. What is left between two operations is Python code: PyTorch's own, microseconds long, or the user's (an
environment, tokenizing, metrics). Example::

    >>> kind = HostModel().of("forward")
    >>> round(kind.seconds(launches=1) * 1e6, 1)  # T1 + T2 + T4 + T3
    13.3

    host = recorded_host(trace)
    host.overheads[7]          # T1 to T5 of the eighth operation as recorded; None if it was not timed
    sum(host.python_seconds)   # 0.030 for a training_step that steps an environment for 30 ms
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Final, final

from lightning_predict.checked import shown
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels.traffic import COMPILED_CALL
from lightning_predict.tracing.trace import Kernel, Operation, Phase, Trace
from lightning_predict.units import MICROSECOND, microseconds_to_seconds

# --- Hosts, and the table


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Host seconds around one operation's launches.

    Attributes:
        between_operations: T1.
        before_first_launch: T2.
        after_last_launch: T3.
        launch: T4.
        between_launches: T5.
        without_launch: T5 of an operation that launches nothing.
    """

    between_operations: float
    before_first_launch: float
    after_last_launch: float
    launch: float
    between_launches: float
    without_launch: float

    def scaled(self, factor: float) -> Overheads:
        """Return the overheads of a host that takes `factor` times as long."""
        return Overheads(**{one.name: getattr(self, one.name) * factor for one in fields(self)})

    def seconds(self, *, launches: int) -> float:
        """Sum the host time of one operation, the gap before it included."""
        if launches == 0:
            return self.between_operations + self.without_launch
        around = self.between_operations + self.before_first_launch + self.after_last_launch
        return around + launches * self.launch + (launches - 1) * self.between_launches


def _table_row(*microseconds: float) -> Overheads:
    """Make a row of the table from T1, T2, T3, T4, T5 and the time without a launch."""
    t1, t2, t3, t4, t5, without_launch = map(microseconds_to_seconds, microseconds)
    return Overheads(
        between_operations=t1,
        before_first_launch=t2,
        after_last_launch=t3,
        launch=t4,
        between_launches=t5,
        without_launch=without_launch,
    )


SHARED_OVERHEADS: Final[Mapping[Phase, Overheads]] = {
    "forward": _table_row(2.1, 4.2, 1.4, 5.6, 1.4, 2.1),
    "backward": _table_row(2.8, 11.2, 2.8, 5.6, 2.8, 2.8),
    "optimizer": _table_row(2.8, 5.6, 1.4, 5.6, 1.4, 1.4),
    "other": _table_row(2.1, 4.2, 1.4, 5.6, 1.4, 2.1),
}
"""Microseconds by phase on a median host, for a run whose host was not profiled.

The sum of a forward operation of one launch, 13.3 us, and of one without, 4.2, were read off KernelBench's small
problems (version v0, 198 rows of 6 to 80 operations that wait for their launches; `SLOWEST_HOST` names the hosts). How
each sum is divided among T1 to T5 is an assumption, as is the optimizer's share. An operation of the backward pass
takes twice the 11.2 us of one that only dispatches and launches: autograd's engine visits a node for each, and one more
for each gradient. Doubled, training takes 1.34, 1.23 and 1.12 times what the table says on three machines of two
sources that training steps of launches came from (torchvision's RTX 2080 Ti and RTX 3090, 2019-21; milabench's H100,
torch 2.6), where inference takes 1.09 and 1.14 on the former two; as it was, 1.94, 1.79 and 1.80. Any one of the three
chooses a factor between 2.0 and 2.7 without the others."""

LIBRARY_SECONDS: Final[Mapping[str, float]] = {
    name: microseconds_to_seconds(microseconds)
    for name, microseconds in {
        "aten::convolution": 35.0,
        "aten::convolution_backward": 70.0,
        "aten::native_batch_norm": 32.0,
        "aten::cudnn_batch_norm": 32.0,
        "aten::_native_batch_norm_legit": 32.0,
        "aten::native_batch_norm_backward": 36.0,
        "aten::cudnn_batch_norm_backward": 36.0,
        "aten::native_group_norm": 44.0,
        "aten::native_group_norm_backward": 50.0,
        "aten::native_layer_norm": 22.0,
        "aten::native_layer_norm_backward": 28.0,
        "aten::addmm": 24.0,
        "aten::mm": 10.0,
        "aten::bmm": 10.0,
        "aten::baddbmm": 24.0,
        "aten::logsumexp": 76.0,
        "aten::smooth_l1_loss": 20.0,
        COMPILED_CALL: 90.0,
    }.items()
}
"""What an operation takes beyond others of its phase on the same median host, before its first launch: descriptors,
algorithms and workspaces of libraries, several outputs, modules of Python code, and the launches inside of an operation
that is recorded as one.

Convolutions (+40 us), batch norm (+34), group norm (+46), addmm in its module (+26) and logsumexp (+76) were fitted
to the same rows of KernelBench; in a profiled training step of ResNet-50 on a V100 (1,715 operations) they are 2.7
(convolution) and 3.2 times (batch norm) a ReLU, and backward 3.5 and 2.3 times, which the table's values lie between.
A convolution's backward pass calls its library twice; the values of backward passes are doubled with their phase.
Compiled code checks its guards and wraps its arguments: KernelBench's small problems take 0.12 to 0.19 ms compiled on
the hosts of its T4s and L40Ss, however few kernels are left, and 0.06 on the one twice as fast.
Layer norm and products in the backward pass are ratios of such a profile alone (51 and 25 us where a copy takes 17)."""


FASTEST_HOST, SLOWEST_HOST = 0.5, 1.5
"""Ends of the time of a host that was not measured, over the tabled one, for nine hosts in ten.

Measured over tabled time, the median of each machine that published steps which launches dominate: KernelBench's 0.53
(Lambda Labs), 0.54 (matx3), 1.02 (babel), 1.08 and 1.18 (two of modal's); torchvision's RTX 2080 Ti 1.04 (inference)
and 1.09 (training) and RTX 3090 1.20 and 1.16; milabench's H100 1.19. Two launch twice as fast as most, none much more
slowly: nineteen in twenty rows, machines weighing the same, lie below 1.43, and below 1.39 to 1.44 with each machine
left out in turn (1.51 where rows count of which the device may need 0.6). The high end is a little above that, as the
machines are few; the low end holds the two fast ones but for their own scatter. The study, with each machine judged by
the others: `python -m benchmarks.accuracy FOLDER --of hosts`."""


@final
@dataclass(frozen=True, slots=True)
class Host:
    """What is assumed of the host that launches a step on another GPU.

    Attributes:
        factor: Its time over that of the host in use, where that one was timed, else over that of a median host.
        spread: Factor up and down around a host of this class, for nine in ten; None for one of no class.
        name: What it is called.
        share: What is left of its launches, or how much longer they take, whichever host it is.
    """

    factor: float = 1.0
    spread: float | None = None
    name: str = "median"
    share: float = 1.0

    def scaled(self, factor: float) -> Host:
        """Return the host that takes `factor` times as long."""
        return replace(self, share=self.share * factor)

    @property
    def words(self) -> str | None:
        """What was asked of it, such as `a slow host`; None where nothing was."""
        if self.spread is not None:
            return f"a {self.name} host"
        return None if self.factor == 1 else f"a host that takes {self.factor:g} times as long"

    @property
    def of_unmeasured_step(self) -> HostModel:
        """The model of a host of which nothing was timed."""
        factor = self.factor * self.share
        if self.spread is None:
            return HostModel(factor=factor)
        return HostModel(factor=factor, low_factor=1 / self.spread, high_factor=self.spread)

    @property
    def over_measured(self) -> float:
        """Factor on a host that was timed: a class says no more of that one."""
        return self.share * (self.factor if self.spread is None else 1.0)


UNKNOWN_HOST: Final = Host()

HOSTS: Final[Mapping[str, Host]] = {
    "fast": Host(0.55, 1.3, "fast"),
    "median": Host(1.1, 1.35, "median"),
    "slow": Host(1.8, 1.5, "slow"),
}
"""Classes of hosts by how fast they launch.

Of the machines named at `SLOWEST_HOST` two launch twice as fast as the others and are `fast`; the other six lie between
1.02 and 1.20 and are `median`. Rows of one machine scatter by 0.11 to 0.19, which makes the widths: exp(1.645 * 0.15)
and a little more, as machines of a class differ. Nobody published steps of a slower one that hold nothing but launches:
`slow`, for processors of low clocks or shared ones, is an assumption. Left out, each machine but the Lambda Labs' (of
one row) lies within the width of the class that the others make."""


def host_of(host: str | float | Host | None) -> Host:
    """Return the host of a class or a factor; of None, one of which nothing is known.

    Raises:
        InvalidArgumentError: Neither a class nor a number above 0.
    """
    if host is None or isinstance(host, Host):
        return host or UNKNOWN_HOST
    if isinstance(host, str) and host in HOSTS:
        return HOSTS[host]
    try:
        factor = math.nan if isinstance(host, bool) else float(host)
    except (TypeError, ValueError):
        factor = math.nan
    if not 0 < factor < math.inf:
        raise InvalidArgumentError(
            f"host={shown(host)} is neither a class of hosts ({', '.join(HOSTS)}) nor a ratio of times; give a number "
            "above 0, for example 0.5 for a host that is twice as fast."
        )
    return Host(factor)


@final
@dataclass(frozen=True, slots=True)
class HostModel:
    """A host: what each operation takes that has no recorded overheads of its own, and how fast it is.

    Attributes:
        by_phase: Overheads of operations that were not timed.
        factor: Time of this host over that of the one that the overheads, recorded or not, are from.
        low_factor: Lower end of the 90 % interval of its time, over the middle.
        high_factor: Upper end of it.
    """

    by_phase: Mapping[Phase, Overheads] = field(default_factory=lambda: SHARED_OVERHEADS)
    factor: float = 1.0
    low_factor: float = FASTEST_HOST
    high_factor: float = SLOWEST_HOST

    def of(self, phase: Phase, recorded: Overheads | None = None, library_seconds: float = 0.0) -> Overheads:
        """Find the overheads of one operation: its recorded ones, else those of its phase and what its library adds."""
        if recorded is not None:
            return recorded.scaled(self.factor)
        own = self.by_phase[phase]
        first, without = own.before_first_launch + library_seconds, own.without_launch + library_seconds
        return replace(own, before_first_launch=first, without_launch=without).scaled(self.factor)


# --- The host of a recorded step

PROFILER_EVENT_SECONDS: Final = 2 * MICROSECOND
"""Time that recording one host event adds around it; Lin et al. subtract as much."""

PYTHON_SECONDS: Final = 1000 * MICROSECOND
"""A longer pause between two operations is work of the step's own code. PyTorch's pauses are microseconds, those of
Lightning's hooks some hundred; in recordings of ResNet-50 (1,200 to 1,700 operations) the longest within the forward or
the backward pass is 0.8 ms, profiler included."""

BLOCKED_LAUNCH_SECONDS: Final = 50 * MICROSECOND
BLOCKED_LAUNCH_RATIO: Final = 5.0
"""A launch call that is longer than both, 50 us and five times the median of its trace, was blocked: by a full queue,
or as a copy from pageable memory, which returns when it is done. Other launches take 3-20 us in all recordings that we
have seen, profiler included."""

WAITING_OPERATIONS: Final = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::is_nonzero"})
"""Operations whose result the host needs at once."""

_PAGEABLE: Final = "Pageable"
_TO_PAGEABLE: Final = "-> Pageable"
"""In the names of copies from and to memory that is not page-locked; the call of the latter always waits."""

_NO_TIME: Final = _table_row(0, 0, 0, 0, 0, 0)


@final
@dataclass(frozen=True, slots=True)
class RecordedHost:
    """The host's part of each operation of a trace, in its order.

    Attributes:
        overheads: T1 to T5 as recorded, without waits and the profiler's events; None if launches were not timed.
        python_seconds: Host work of at least `PYTHON_SECONDS` outside of operations before it; else 0.
        waits: The host waits for the compute stream after it.
    """

    overheads: tuple[Overheads | None, ...]
    python_seconds: tuple[float, ...]
    waits: tuple[bool, ...]


def recorded_host(trace: Trace) -> RecordedHost:
    """Read the host's part of each operation from a trace."""
    if has_recorded_launches(trace):
        return _replayed(trace)
    operations = trace.operations
    waits = [operation.name in WAITING_OPERATIONS and operation.phase != "optimizer" for operation in operations]
    python = [operation.python_seconds for operation in operations]
    if trace.device == "cuda" and any(operation.host_start_seconds is not None for operation in operations):
        python = list(_replayed(trace).python_seconds)  # the launches are not in the recording
    # Nobody saw whether the host waited for the device before its own work. It mostly does: an environment needs the
    # action, a metric the prediction. Work before the first operation waits for the step before.
    following = [*python[1:], *python[:1]]
    drained = [own or seconds > 0 for own, seconds in zip(waits, following, strict=True)]
    return RecordedHost((None,) * len(operations), tuple(python), tuple(drained))


def has_recorded_launches(trace: Trace) -> bool:
    """Say whether the trace holds the times of the host's own launches."""
    return trace.device == "cuda" and any(
        operation.host_start_seconds is not None and _launches(operation) for operation in trace.operations
    )


def _replayed(trace: Trace) -> RecordedHost:
    """Walk through the recorded step on a clock that stands still while the host waits."""
    recorded = ((wait.start_seconds, wait.seconds) for wait in trace.waits)
    clock = _WorkClock([*recorded, *_blocked(trace.kernels), *_awaited(trace.operations)])
    synchronized = sorted(wait.start_seconds for wait in trace.waits if wait.cause == "device")
    timed = [index for index, operation in enumerate(trace.operations) if operation.host_start_seconds is not None]
    overheads: list[Overheads | None] = [_NO_TIME] * len(trace.operations)
    python = [0.0] * len(trace.operations)
    waits = [False] * len(trace.operations)
    now, module = 0.0, None
    for place, index in enumerate(timed):
        operation = trace.operations[index]
        began, ended = _span(operation)
        start = max(clock.at(began), now)
        end = max(clock.at(ended), start)
        launches = [
            (_within(clock.at(one), start, end), _within(clock.at(two), start, end))
            for one, two in _launches(operation)
        ]
        # The mark of one module's call ends in between, and another's begins.
        events = 3 if place > 0 and operation.module != module else 1
        gap = max(start - now - events * PROFILER_EVENT_SECONDS, 0.0)
        python[index] = gap if gap >= PYTHON_SECONDS else 0.0
        overheads[index] = _overheads(gap - python[index], start, end, launches)
        # A wait in the pause behind an operation is one after it; behind the last one it is the recorder's own.
        until = _span(trace.operations[timed[place + 1]])[0] if place + 1 < len(timed) else ended
        first = bisect_left(synchronized, began)
        is_synchronized = first < len(synchronized) and synchronized[first] < until
        waits[index] = is_synchronized or _blocks(operation) or _needs_result(operation)
        now, module = end, operation.module
    last = overheads[timed[-1]]
    if last is not None and trace.profiled_seconds is not None and trace.kernels:
        # What a step ends with counts where the device is done: before, the recorder waits for it.
        done = max([kernel.start_seconds + kernel.seconds for kernel in trace.kernels])
        # An imported step's time leaves the loader out, which lies within.
        loading = math.fsum(trace.loader_seconds) if trace.recorder == "kineto" else 0.0
        rest = max(clock.at(trace.profiled_seconds + loading) - max(clock.at(done), now), 0.0)
        overheads[timed[-1]] = replace(
            last, after_last_launch=last.after_last_launch + rest, without_launch=last.without_launch + rest
        )
    return RecordedHost(tuple(overheads), tuple(python), tuple(waits))


def _span(operation: Operation) -> tuple[float, float]:
    """Start and end on the host."""
    start = operation.host_start_seconds or 0.0
    return start, start + (operation.host_seconds or 0.0)


def _within(moment: float, start: float, end: float) -> float:
    return min(max(moment, start), end)


def _launches(operation: Operation) -> list[tuple[float, float]]:
    """Start and end of each launch call that was recorded, in order, from the start of the step.

    The kernels of a CUDA graph share one call.
    """
    calls = {
        (kernel.launch_start_seconds, kernel.launch_start_seconds + kernel.launch_seconds)
        for kernel in operation.kernels
        if kernel.launch_start_seconds is not None and kernel.launch_seconds is not None
    }
    return sorted(calls)


def _overheads(gap: float, start: float, end: float, launches: Sequence[tuple[float, float]]) -> Overheads:
    """Measure T1 to T5 of one operation, each less one event of the profiler."""
    own = _less_one_event
    if not launches:
        return replace(_NO_TIME, between_operations=gap, without_launch=own([end - start]))
    return Overheads(
        between_operations=gap,
        before_first_launch=own([launches[0][0] - start]),
        after_last_launch=own([end - launches[-1][1]]),
        launch=own([two - one for one, two in launches]),
        between_launches=own([later[0] - earlier[1] for earlier, later in pairwise(launches)]),
        without_launch=0.0,
    )


def _less_one_event(values: Sequence[float]) -> float:
    return max(fmean(values) - PROFILER_EVENT_SECONDS, 0.0) if values else 0.0


def _needs_result(operation: Operation) -> bool:
    """Return whether the host reads a number of a tensor on the device."""
    return operation.name in WAITING_OPERATIONS and bool(operation.kernels)


def _blocks(operation: Operation) -> bool:
    """Return whether a copy from or to pageable memory held the host up; a small one to the device is staged."""
    return any(
        _TO_PAGEABLE in kernel.name
        or (_PAGEABLE in kernel.name and (kernel.launch_seconds or 0.0) >= max(kernel.seconds, BLOCKED_LAUNCH_SECONDS))
        for kernel in operation.kernels
    )


def _blocked(kernels: Sequence[Kernel]) -> Iterator[tuple[float, float]]:
    """Start and length of the part of each launch that it was blocked; a CUDA graph's launch takes long by itself."""
    calls = Counter(
        (kernel.launch_start_seconds, kernel.launch_seconds)
        for kernel in kernels
        if kernel.launch_start_seconds is not None and kernel.launch_seconds is not None
    )
    if not calls:
        return
    usual = statistics.median(seconds for _, seconds in calls)
    longest = max(BLOCKED_LAUNCH_SECONDS, BLOCKED_LAUNCH_RATIO * usual)
    for (start, seconds), launched in calls.items():
        if seconds > longest and launched == 1:
            yield start + usual, seconds - usual


def _awaited(operations: Iterable[Operation]) -> Iterator[tuple[float, float]]:
    """Find the time from the last launch to the last kernel's end, for each operation that waits for its result."""
    for operation in operations:
        launches = _launches(operation)
        if launches and (_needs_result(operation) or _blocks(operation)):
            launched = launches[-1][1]
            done = max(kernel.start_seconds + kernel.seconds for kernel in operation.kernels)
            yield launched, max(min(done, _span(operation)[1]) - launched, 0.0)


@final
class _WorkClock:
    """Time that the host worked until a moment.

    Args:
        waits: Start and length of each wait; they may overlap.
    """

    def __init__(self, waits: Iterable[tuple[float, float]]) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        for start, seconds in sorted(waits):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], start + seconds)
            else:
                self._starts.append(start)
                self._ends.append(start + seconds)
        self._waited = [0.0, *accumulate(end - start for start, end in zip(self._starts, self._ends, strict=True))]

    def at(self, moment: float) -> float:
        """Count worked time up to a moment of the recording."""
        begun = bisect_left(self._starts, moment)
        waited = self._waited[begun]
        if begun:
            waited -= max(self._ends[begun - 1] - moment, 0.0)
        return moment - waited
