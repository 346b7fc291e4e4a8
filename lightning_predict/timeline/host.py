"""Host time of a step: kernel launch cost and other overheads of each operation, recorded or from a table.

An operation has five overheads (T1 to T5 of Lin et al., HiPC 2022)::

    T1  between two operations
    T2  from the start of an operation to its first launch
    T3  from its last launch to its end
    T4  one launch call
    T5  between two launches of one operation, or the whole operation if it launches nothing

If a trace has host times, the overheads of each operation are derived from them (`recorded_host`). An operation without
host times gets the overheads of its phase, from a table for a median host.

Waits are removed from recorded host times. The duration of synchronising calls, of blocking copies and of launches into
a full queue depends on the device, so only the host's work around them is kept. For a prediction of another GPU, the
simulation computes the waits anew. The remaining time between two operations is Python code: PyTorch's code, which
takes microseconds, or the user's code (an environment, tokenizing, metrics). Example::

    >>> kind = HostModel().overheads("forward")
    >>> round(kind.total_seconds(launches=1) * 1e6, 1)  # T1 + T2 + T4 + T3
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
from typing import Final

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.units import microseconds_to_seconds
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.memory_bound import COMPILED_CALL
from lightning_predict.record.trace import Kernel, Operation, Phase, Trace
from lightning_predict.uncertainty import FASTEST_HOST, FORMULA_SPREAD, SLOWEST_HOST, SURROGATE_SPREAD

# --- Host models and the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Overheads of one operation in seconds of host time."""

    between_operations: float  # T1, between two operations
    before_first_launch: float  # T2, from the start of the operation to its first launch
    after_last_launch: float  # T3, from the last launch to the end of the operation
    launch: float  # T4, one launch call
    between_launches: float  # T5, between two launches of the operation
    without_launch: float  # Time of an operation that launches nothing (also T5)

    def scaled(self, factor: float) -> Overheads:
        """Return the overheads multiplied by `factor`."""
        return Overheads(**{overhead.name: getattr(self, overhead.name) * factor for overhead in fields(self)})

    def total_seconds(self, *, launches: int) -> float:
        """Sum the host time of one operation, including the gap before it."""
        if launches == 0:
            return self.between_operations + self.without_launch
        around = self.between_operations + self.before_first_launch + self.after_last_launch
        return around + launches * self.launch + (launches - 1) * self.between_launches


def _table_row(*microseconds: float) -> Overheads:
    """Build a row of the table from T1, T2, T3, T4, T5 and the time without a launch."""
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
"""Overheads of a median host by phase, for runs without a host profile. The rows above are in microseconds.

A forward operation takes 13.3 us with one launch, and 4.2 us without a launch. Both totals come from KernelBench's
small problems (version v0, 198 launch-bound rows of 6 to 80 operations). The row of `SLOWEST_HOST` in `constants.toml`
lists the machines. The split into T1 to T5 and the optimizer's row are assumptions.

A backward operation with one launch takes 22.4 us: twice the 11.2 us of a forward operation without T1. Autograd's
engine visits one node per operation, and another node per gradient. This factor was checked on three machines with
launch-bound training steps (torchvision's RTX 2080 Ti and RTX 3090, 2019-21; milabench's H100, torch 2.6). The measured
training times are 1.34, 1.23 and 1.12 times the tabled times with the factor, and 1.94, 1.79 and 1.80 times the tabled
times without the factor. A factor chosen for one of the machines alone is between 2.0 and 2.7."""

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
"""Additional host time of an operation before its first launch, on the same median host.

The time is spent on descriptors, algorithm selection and workspaces of libraries, multiple outputs, Python code of
modules, and launches inside an operation that is recorded as a single operation.

Convolutions (+40 us), batch norm (+34), group norm (+46), addmm with its module (+26) and logsumexp (+76) were
fitted to the KernelBench rows of `SHARED_OVERHEADS`. In a profile of ResNet-50 on a V100 (1,715 operations), a
convolution takes 2.7 times as long as a ReLU, and a batch norm 3.2 times. In the backward pass, the ratios are 3.5
and 2.3. The table uses values between the fit and this profile. Backward values are doubled: the backward pass of a
convolution calls the library twice. The values of layer norm and of backward matmuls come from such a profile only
(51 and 25 us; a copy takes 17 us).

Compiled code checks guards and wraps its arguments. Compiled small problems of KernelBench take 0.12 to 0.19 ms on
the hosts of its T4s and L40Ss, regardless of the number of kernels. On a host that is twice as fast, they take 0.06
ms."""


@dataclass(frozen=True, slots=True)
class Host:
    """Assumed speed of the host that launches a step on another GPU."""

    factor: float = 1.0  # Host time relative to the measured host, or to a median host if no host was measured
    spread: float | None = None  # Factor to either end of the 90 % interval of a host class; None without a class
    name: str = "median"  # Name of the host class
    share: float = 1.0  # Additional factor on the host time, for example for fewer launches

    def scaled(self, factor: float) -> Host:
        """Return a host whose operations take `factor` times as long."""
        return replace(self, share=self.share * factor)

    @property
    def words(self) -> str | None:
        """Description of the requested host, such as `a slow host`; None without a request."""
        if self.spread is not None:
            return f"a {self.name} host"
        return None if self.factor == 1 else f"a host that takes {self.factor:g} times as long"

    @property
    def default_model(self) -> HostModel:
        """Model of a host without any measurement."""
        factor = self.factor * self.share
        if self.spread is None:
            return HostModel(factor=factor)
        return HostModel(factor=factor, low_factor=1 / self.spread, high_factor=self.spread)

    @property
    def measured_factor(self) -> float:
        """Factor on the time of a measured host. A host class has no effect: the measurement is more precise."""
        return self.share * (self.factor if self.spread is None and self.name != SERVER else 1.0)


GRAPH_HOST_SHARE: Final = 0.05  # Host time of a step that is replayed as a CUDA graph, over launching each kernel

UNKNOWN_HOST: Final = Host()
TABLE_HOST: Final = Host(name="table's")  # Host of the table, to compare with, or to scale

SERVER: Final = "usual server's"
SERVER_HOST: Final = 1.25
"""Name of the usual host of GPUs with NVLink since 2022, and its time relative to the table: many cores with low
clocks, often in a virtual machine."""


def usual_host(host: Host, gpu: Gpu) -> Host:
    """Return the usual host of a GPU instead of an unknown host."""
    is_server = gpu.launch_year >= 2022 and gpu.nvlink_bytes_per_second is not None
    if not is_server or (host.factor, host.spread, host.name) != (1.0, None, UNKNOWN_HOST.name):
        return host
    return replace(host, factor=SERVER_HOST, name=SERVER)


HOSTS: Final[Mapping[str, Host]] = {
    "fast": Host(0.55, SURROGATE_SPREAD, "fast"),
    "median": Host(1.1, SURROGATE_SPREAD, "median"),
    "slow": Host(1.8, FORMULA_SPREAD, "slow"),
}
"""Host classes by launch speed.

The machines are listed in the row of `SLOWEST_HOST` in `constants.toml`. The class `fast` describes the two machines
that launch twice as fast as the others. The class `median` describes the other six machines, which take 1.02 to 1.20
times the table's time. The class `slow`, for CPUs with low clocks and shared CPUs, is an assumption: launch-bound steps
of slower machines were never published."""


def host_of(host: str | float | Host | None) -> Host:
    """Return the host of a class, or a host with a factor. For None, return an unknown host."""
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
            f"host={shown(host)} is not a CPU class ({', '.join(HOSTS)}) or a ratio of times; give a number "
            "above 0, for example 0.5 for a host that is twice as fast."
        )
    return replace(TABLE_HOST, factor=factor)


@dataclass(frozen=True, slots=True)
class HostModel:
    """Host model: a speed factor, and the overheads of operations that were not timed."""

    # Overheads of operations that were not timed
    by_phase: Mapping[Phase, Overheads] = field(default_factory=lambda: SHARED_OVERHEADS)
    factor: float = 1.0  # Time of this host relative to the overheads (recorded or from the table)
    low_factor: float = FASTEST_HOST  # Lower end of the 90 % interval of the host time, relative to the middle
    high_factor: float = SLOWEST_HOST  # Upper end of the 90 % interval of the host time, relative to the middle

    def overheads(self, phase: Phase, recorded: Overheads | None = None, library_seconds: float = 0.0) -> Overheads:
        """Return the overheads of an operation: recorded overheads, or its phase's overheads plus library time."""
        if recorded is not None:
            return recorded.scaled(self.factor)
        own = self.by_phase[phase]
        first, without = own.before_first_launch + library_seconds, own.without_launch + library_seconds
        return replace(own, before_first_launch=first, without_launch=without).scaled(self.factor)


# --- Host times of a recorded step

PROFILER_SLOWDOWN: Final = 2.2  # Factor by which a profiler slows operations and launches, not Python code between them
PYTHON_SECONDS: Final = 0.001  # Minimum pause between two operations that counts as the user's code

BLOCKED_LAUNCH_SECONDS: Final = 5e-05
BLOCKED_LAUNCH_RATIO: Final = 5.0  # Minimum time of a launch that counts as blocked, relative to the trace's median

WAITING_OPERATIONS: Final = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::is_nonzero"})
"""Operations that wait for the device (synchronise), because the host needs their result."""

_PAGEABLE: Final = "Pageable"
_TO_PAGEABLE: Final = "-> Pageable"
"""Markers in the names of copies from and to pageable memory. Copies to pageable memory always block the host."""

_NO_TIME: Final = _table_row(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class RecordedHost:
    """Host times of the operations of a trace, in the trace's order."""

    # Recorded T1 to T5 of each operation, without waits and the profiler's slowdown; None if launches were not timed
    overheads: tuple[Overheads | None, ...]
    python_seconds: tuple[float, ...]  # Host work before each operation, outside operations; 0 below `PYTHON_SECONDS`
    waits: tuple[bool, ...]  # Whether the host waits for the compute stream after each operation


def recorded_host(trace: Trace) -> RecordedHost:
    """Extract the host times of each operation from a trace."""
    if has_recorded_launches(trace):
        return _replayed(trace)
    operations = trace.operations
    waits = [operation.name in WAITING_OPERATIONS and operation.phase != "optimizer" for operation in operations]
    python = [operation.python_seconds for operation in operations]
    if trace.device == "cuda" and any(operation.host_start_seconds is not None for operation in operations):
        python = list(_replayed(trace).python_seconds)  # the recording has no launches
    # The trace does not show whether the host waited for the device before the user's code. Usually it waits: an
    # environment needs the action, a metric needs the prediction. Code before the first operation waits for the
    # previous step.
    following = [*python[1:], *python[:1]]
    drained = [own or seconds > 0 for own, seconds in zip(waits, following, strict=True)]
    return RecordedHost((None,) * len(operations), tuple(python), tuple(drained))


def without_profiled_host(trace: Trace) -> Trace:
    """Remove the times of launches, so that a CPU class replaces the CPU that was timed under a profiler."""
    return replace(
        trace,
        operations=tuple(
            replace(
                operation,
                kernels=tuple(replace(k, launch_start_seconds=None, launch_seconds=None) for k in operation.kernels),
            )
            for operation in trace.operations
        ),
    )


def has_recorded_launches(trace: Trace) -> bool:
    """Return whether the trace has the times of launch calls."""
    return trace.device == "cuda" and any(
        operation.host_start_seconds is not None and _launches(operation) for operation in trace.operations
    )


def _replayed(trace: Trace) -> RecordedHost:
    """Extract host times from recorded launches. Time in which the host waits is not counted."""
    recorded = ((wait.start_seconds, wait.seconds) for wait in trace.waits)
    clock = _WorkClock([*recorded, *_blocked(trace.kernels), *_awaited(trace.operations)])
    synchronized = sorted(wait.start_seconds for wait in trace.waits if wait.cause == "device")
    timed = [index for index, operation in enumerate(trace.operations) if operation.host_start_seconds is not None]
    overheads: list[Overheads | None] = [_NO_TIME] * len(trace.operations)
    python = [0.0] * len(trace.operations)
    waits = [False] * len(trace.operations)
    now = 0.0
    for place, index in enumerate(timed):
        operation = trace.operations[index]
        began, ended = _span(operation)
        start = max(clock.at(began), now)
        end = max(clock.at(ended), start)
        launches = [
            (_within(clock.at(one), start, end), _within(clock.at(two), start, end))
            for one, two in _launches(operation)
        ]
        gap = start - now
        python[index] = gap if gap >= PYTHON_SECONDS else 0.0
        overheads[index] = _overheads(gap - python[index], start, end, launches)
        # A wait between two operations belongs to the first. A wait after the last operation is caused by the
        # recorder.
        until = _span(trace.operations[timed[place + 1]])[0] if place + 1 < len(timed) else ended
        first = bisect_left(synchronized, began)
        is_synchronized = first < len(synchronized) and synchronized[first] < until
        waits[index] = is_synchronized or _blocks(operation) or _needs_result(operation)
        now = end
    last = overheads[timed[-1]]
    if last is not None and trace.profiled_seconds is not None and trace.kernels:
        # Work at the end of a step counts only after the device has finished. Before, the recorder
        # waits.
        done = max([kernel.start_seconds + kernel.seconds for kernel in trace.kernels])
        # The time of an imported step excludes the data loader, which lies inside the step.
        loading = math.fsum(trace.loader_seconds) if trace.recorder == "kineto" else 0.0
        rest = max(clock.at(trace.profiled_seconds + loading) - max(clock.at(done), now), 0.0)
        overheads[timed[-1]] = replace(
            last, after_last_launch=last.after_last_launch + rest, without_launch=last.without_launch + rest
        )
    return RecordedHost(tuple(overheads), tuple(python), tuple(waits))


def _span(operation: Operation) -> tuple[float, float]:
    start = operation.host_start_seconds or 0.0
    return start, start + (operation.host_seconds or 0.0)


def _within(moment: float, start: float, end: float) -> float:
    return min(max(moment, start), end)


def _launches(operation: Operation) -> list[tuple[float, float]]:
    """Return the start and end of each recorded launch call, from the start of the step; a CUDA graph has one call."""
    calls = {
        (kernel.launch_start_seconds, kernel.launch_start_seconds + kernel.launch_seconds)
        for kernel in operation.kernels
        if kernel.launch_start_seconds is not None and kernel.launch_seconds is not None
    }
    return sorted(calls)


def _overheads(gap: float, start: float, end: float, launches: Sequence[tuple[float, float]]) -> Overheads:
    """Return T1 to T5 of one operation, each divided by the profiler's slowdown."""
    gap, own = gap / PROFILER_SLOWDOWN, _unslowed
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


def _unslowed(values: Sequence[float]) -> float:
    return fmean(values) / PROFILER_SLOWDOWN if values else 0.0


def _needs_result(operation: Operation) -> bool:
    """Return whether the operation makes the host read a value of a device tensor."""
    return operation.name in WAITING_OPERATIONS and bool(operation.kernels)


def _blocks(operation: Operation) -> bool:
    """Return whether a copy from or to pageable memory blocked the host. Small copies to the device do not block."""
    return any(
        _TO_PAGEABLE in kernel.name
        or (_PAGEABLE in kernel.name and (kernel.launch_seconds or 0.0) >= max(kernel.seconds, BLOCKED_LAUNCH_SECONDS))
        for kernel in operation.kernels
    )


def _blocked(kernels: Sequence[Kernel]) -> Iterator[tuple[float, float]]:
    """Yield the start and duration of the blocked part of each launch, without the long launches of CUDA graphs."""
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
    """Yield the start and duration of the wait for the last kernel, for each operation whose result the host needs."""
    for operation in operations:
        launches = _launches(operation)
        if launches and (_needs_result(operation) or _blocks(operation)):
            launched = launches[-1][1]
            done = max(kernel.start_seconds + kernel.seconds for kernel in operation.kernels)
            yield launched, max(min(done, _span(operation)[1]) - launched, 0.0)


class _WorkClock:
    """Clock that runs only while the host works."""

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
        """Return the work time up to a moment of the recording."""
        begun = bisect_left(self._starts, moment)
        waited = self._waited[begun]
        if begun:
            waited -= max(self._ends[begun - 1] - moment, 0.0)
        return moment - waited
