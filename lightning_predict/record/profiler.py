"""`ProfilerRecorder`: records a step with `torch.profiler`, on CUDA and for compiled code.

The profiler does not change what runs, so compiled code stays compiled. `kineto.py` reads its events, with the storage
ids, devices and dtypes of lists that exported files lack. Example::

    recorder = ProfilerRecorder(cuda=True)
    recorder.start()
    loss = model(batch).sum(); loss.backward(); optimizer.step()
    recorder.stop()
    recorder.trace().operations          # with their kernels
"""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lightning_predict.base.errors import CaptureError
from lightning_predict.record.hooks import ModuleWatch, OptimizerWatch
from lightning_predict.record.micro_batches import collector_paused, without_update
from lightning_predict.record.modes import DISPLACED
from lightning_predict.record.pauses import PauseTimer
from lightning_predict.record.signatures import RECORDED_TENSORS
from lightning_predict.record.tensors import dtype_name
from lightning_predict.record.trace import Operation, Trace, backward_ends, read_trace_json

WINDOW_MARK: Final = "ProfilerStep#0"  # Marker that readers of profiles take for the extent of a step
MAX_EVENTS: Final = 500_000  # Maximum number of events of a recorded step. Reading an event takes 3 to 4 KiB of memory.
_torchs: Final[Any] = torch.autograd.profiler  # Module in which torch stores whether a profiler is running

_STARTING: Final = threading.Lock()

_SESSIONS: Final = count(1)


def _launch_warm_up_kernels(kernels: int, *, device: str = "cuda") -> None:
    """Launch small kernels before a step, as CUPTI may lose the first k kernels of a process's k-th profile."""
    buffer = torch.zeros(1, device=device)
    for _ in range(kernels):
        buffer.add_(1)
    torch.cuda.synchronize()


class _Ours(int):
    """Value equal to True that marks torch's "profiler is running" flag as set by this recorder."""


@cache
def _kineto_level() -> ctypes.c_int | None:
    """Return the level of Kineto's messages in memory; None if this build of torch does not export it."""
    only_if_loaded = getattr(os, "RTLD_NOLOAD", None)
    if only_if_loaded is None:  # Windows
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"), mode=only_if_loaded)
        return ctypes.c_int.in_dll(library, "_ZN9libkineto6Logger14severityLevel_E")
    except (OSError, ValueError):
        return None


@contextmanager
def _quiet_kineto(*, cuda: bool, name: str = "KINETO_LOG_LEVEL") -> Iterator[None]:
    """Leave out Kineto's lines about starts and stops, above the level of errors (4), but not later errors of CUDA."""
    level = _kineto_level()
    if name in os.environ or (cuda and level is None):
        yield
        return
    os.environ[name] = "6"  # the first profile of a process reads the variable
    if level is not None:
        level.value = 6
    try:
        yield
    finally:
        del os.environ[name]
        if level is not None:
            level.value = 4


CUPTI_VARIABLE: Final = "TEARDOWN_CUPTI"  # Environment variable that makes the profiler detach CUPTI
FIRST_CUDA_TO_DETACH: Final = 13  # First major version of CUDA on which CUPTI is detached, and reattaching was tested


@contextmanager
def detached_afterwards() -> Iterator[None]:
    """Make a profiler that stops inside this context detach CUPTI (NVIDIA's tracing library), if detaching is safe.

    torch's profiler leaves CUPTI attached to the process, which slows down later kernel launches. On an H200 with torch
    2.11 and CUDA 13.0, a host-bound step took 3.52 ms before four recordings, and 4.15 ms after them; with the
    variable, which the profiler reads when it stops, 3.82 and 3.81 ms. PyTorch sets the variable to 0 for CUDA graphs,
    because before CUDA 13, reattaching CUPTI can crash a process that has CUDA graphs. Therefore, CUPTI is detached
    only from CUDA 13 on, and never if the user has set the variable.
    """
    version = torch.version.cuda
    if version is None or int(version.partition(".")[0]) < FIRST_CUDA_TO_DETACH or CUPTI_VARIABLE in os.environ:
        yield
        return
    os.environ[CUPTI_VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(CUPTI_VARIABLE, None)


def refuse_second_profiler() -> None:
    """Raise an error if a profiler is running or scheduled: torch does not report a scheduled profiler in its warm-up.

    A second profiler would take over torch's profiler, and the first would crash the process.
    """
    if torch._C._autograd._profiler_enabled() or _RECORDING or _others_under_way():
        raise CaptureError(
            "Another profiler is running, and two at once would both lose events. Stop it or let it finish before the "
            "capture (in a Trainer: profiler=None), or import the file that it writes with "
            "`lightning_predict.import_trace`."
        )


def _others_under_way() -> bool:
    """Return whether another profiler is prepared or running, in any thread."""
    kinds, pending = [], [_torchs.profile]
    while pending:
        kinds.append(pending.pop())
        pending.extend(kinds[-1].__subclasses__())
    found = (profiler for profiler in gc.get_referrers(*kinds) if type(profiler) in kinds)  # one pass over all objects
    return any(
        getattr(one, "entered", False) and getattr(one, "kineto_results", None) is None and one not in _OWN
        for one in found
    )


_RECORDING: Final[WeakSet[ProfilerRecorder]] = WeakSet()
"""Running recorders of this class, in any thread. torch has one profiler per process."""

_OWN: Final[WeakSet[Any]] = WeakSet()  # torch profilers that this class created. A displaced profiler never ends.

_NEVER_ENDED: Final[list[record_function]] = []
"""Markers of recordings that another profiler displaced. Ending or freeing a marker would write to freed memory."""


class ProfilerRecorder:
    """Profiles the code between `start` and `stop`, which may be called repeatedly.

    A profiler that the user starts in between displaces this recorder. The recording is then lost, and torch's profiler
    is left alone, because stopping it would crash the process.

    Args:
        cuda: Whether to record GPU work, too.
        model: Model that defines module names; None uses the outermost modules that are called.
        has_hooks: Whether to mark modules and track optimizers, which would recompile compiled code.
    """

    # Facts that only the dispatch recorder has.
    assumptions: tuple[str, ...] = ()
    forward_gradient_bytes: int | None = None

    def __init__(self, *, cuda: bool, model: torch.nn.Module | None = None, has_hooks: bool = False) -> None:
        self.peak_bytes: int | None = None  # Peak memory allocated on a GPU; None if no GPU allocation was recorded
        self.leaves: dict[int, torch.Tensor] = {}
        self.modules = ModuleWatch(model, marks=True) if has_hooks else None  # Tracks module calls; None without hooks
        self.optimizers = OptimizerWatch() if has_hooks else None  # Tracks optimizer steps; None without hooks
        self.pauses = PauseTimer()  # Times waits in the whole step, those for torch's other threads included
        self._cuda = cuda
        self._profile: profile | None = None
        self._window: record_function | None = None
        self._has_begun = False
        self._token = _Ours(1)
        self._events = 0
        self._parts: list[Trace] = []

    def start(self) -> None:
        """Start the profiler."""
        with _STARTING:
            refuse_second_profiler()
            _RECORDING.add(self)
        for watch in self._watches:
            watch.open()
        if self._cuda:
            torch.cuda.synchronize()
        self._begin()
        if self._cuda:
            _launch_warm_up_kernels(min(16 + 4 * next(_SESSIONS), 256))
        # The time of the step counts from here, with the code before its first operation.
        self._window = record_function(WINDOW_MARK)
        self._window.__enter__()
        self.pauses.open()

    def _begin(self) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
        # Memory events provide the storage ids of tensors.
        self._profile = profile(activities=activities, record_shapes=True, profile_memory=True)
        try:
            with _quiet_kineto(cuda=self._cuda):
                self._profile.start()
            _torchs._is_profiler_enabled = self._token
            self._has_begun = True
        finally:
            if self._profile.profiler is not None:
                _OWN.add(self._profile.profiler)

    def _abandon(self) -> None:
        """Clean up a profiler that could not be started."""
        self._profile, self._has_begun = None, False
        if torch._C._autograd._profiler_enabled():
            torch._C._autograd._disable_profiler()
        _torchs._is_profiler_enabled = False

    @property
    def _is_displaced(self) -> bool:
        """Whether another profiler has started since. In Python, every start and stop sets torch's flag."""
        return (
            _torchs._is_profiler_enabled is not self._token
            or not torch._C._autograd._profiler_enabled()
            or _others_under_way()
        )

    def stop(self) -> None:
        """Stop the profiler, and keep its events. Repeated calls have no effect."""
        self.pauses.close(after=0)
        running, self._profile = self._profile, None
        window, self._window = self._window, None
        with ExitStack() as parts:  # all parts run, even if some raise
            parts.callback(_RECORDING.discard, self)
            for watch in self._watches:
                parts.callback(watch.close)
            self._end(running, window)

    @property
    def _watches(self) -> list[ModuleWatch | OptimizerWatch]:
        return [watch for watch in (self.modules, self.optimizers) if watch is not None]

    @property
    def failure(self) -> Exception | None:
        """First error of a hook; None without an error."""
        return next((watch.failure for watch in self._watches if watch.failure is not None), None)

    def read_storages(self, _tensors: Iterable[torch.Tensor]) -> None:
        """Return None: a profile does not contain the storages of a module's tensors."""

    def _end(self, running: profile | None, window: record_function | None) -> None:
        if running is None:
            return
        if not self._has_begun:  # interrupted while starting
            self._abandon()
            return
        self._has_begun = False
        displaced = self._is_displaced
        with ExitStack() as parts:  # runs in reverse order; all parts run, even if some raise
            if not displaced:
                parts.callback(_stop, running, cuda=self._cuda)
            if window is not None and displaced and torch._C._autograd._profiler_enabled():
                _NEVER_ENDED.append(window)
            elif window is not None:
                parts.callback(window.__exit__, None, None, None)
            if self._cuda:
                torch.cuda.synchronize()
        if displaced:
            if _torchs._is_profiler_enabled is self._token:
                _torchs._is_profiler_enabled = bool(torch._C._autograd._profiler_enabled())
            raise CaptureError(DISPLACED)
        with collector_paused():
            self._parts.append(self._read(running))

    def _read(self, stopped: profile) -> Trace:
        """Convert the events of a part to operations immediately, because operations take a fraction of the memory."""
        assert stopped.profiler is not None
        assert stopped.profiler.kineto_results is not None
        self._events += len(stopped.profiler.kineto_results.events())
        if self._events > MAX_EVENTS:
            raise CaptureError(
                f"The step has {self._events:,} events and more, and at most {MAX_EVENTS:,} are read. Record a shorter "
                "one: fewer micro-batches between two updates of the optimizer."
            )
        document = _export(stopped)
        self.peak_bytes = max((one for one in (self.peak_bytes, _peak_of(document)) if one is not None), default=None)
        from lightning_predict.record.events import read_profile
        from lightning_predict.record.kineto import trace_of_profile

        return trace_of_profile(read_profile(document, "the recorded step", step=None), recorder="profiler")

    def trace(self, *, represented_by: Sequence[int] = ()) -> Trace:
        """Return the recorded step, with its parts joined; `represented_by` as in `CaptureSession.trace`."""
        if not self._parts:
            raise CaptureError("Nothing was recorded: the profiler was not started, or has not been stopped.")
        parts = self._parts
        if represented_by:
            recorded = dict(zip(sorted({*represented_by}), self._parts, strict=True))
            added = {
                shown: _without_update(recorded[shown]) for batch, shown in enumerate(represented_by) if batch != shown
            }
            parts = [recorded[shown] if batch == shown else added[shown] for batch, shown in enumerate(represented_by)]
        with collector_paused():
            return _joined(parts[0], parts[1:])


def _stop(running: profile, *, cuda: bool) -> None:
    """Stop a profiler. On an error, disable torch's profiler, so that no profiler stays active."""
    try:
        with detached_afterwards(), _quiet_kineto(cuda=cuda):
            running.stop()
    except BaseException:
        if torch._C._autograd._profiler_enabled():
            torch._C._autograd._disable_profiler()
        _torchs._is_profiler_enabled = False
        raise


def _without_update(last: Trace) -> Trace:
    """Return the last micro-batch up to the end of its backward pass, to represent earlier micro-batches."""
    left_out = last.operations[backward_ends(last.operations) :]
    until = left_out[0].host_start_seconds if left_out else None
    operations = without_update(last.operations)
    # The next micro-batch was also recorded on an idle device.
    ends = [kernel.start_seconds + kernel.seconds for operation in operations for kernel in operation.kernels]
    seconds = (last.profiled_seconds or 0.0) if until is None else max([until, *ends])
    return replace(
        last,
        operations=operations,
        profiled_seconds=seconds,
        waits=tuple(wait for wait in last.waits if wait.start_seconds < seconds),
        optimizer_steps=0,
        notes=(),
    )


def _joined(first: Trace, others: Sequence[Trace]) -> Trace:
    """Join the parts of a step. Each part begins at the end of the previous part."""
    operations, waits, offset = list(first.operations), list(first.waits), first.profiled_seconds or 0.0
    for part in others:
        operations.extend(_later(operation, offset) for operation in part.operations)
        waits.extend(replace(wait, start_seconds=wait.start_seconds + offset) for wait in part.waits)
        offset += part.profiled_seconds or 0.0
    parts = (first, *others)
    return replace(
        first,
        operations=tuple(operations),
        profiled_seconds=offset,
        waits=tuple(waits),
        optimizer_steps=sum(part.optimizer_steps for part in parts),
        compiled=any(part.compiled for part in parts),
        notes=tuple(note for part in parts for note in part.notes),
    )


def _later(operation: Operation, offset: float) -> Operation:
    def move(seconds: float | None) -> float | None:
        return None if seconds is None else seconds + offset

    kernels = tuple(
        replace(
            kernel, start_seconds=kernel.start_seconds + offset, launch_start_seconds=move(kernel.launch_start_seconds)
        )
        for kernel in operation.kernels
    )
    # `replace` would take four times as long, for each operation of up to 64 micro-batches.
    return Operation(
        name=operation.name,
        phase=operation.phase,
        inputs=operation.inputs,
        outputs=operation.outputs,
        arguments=operation.arguments,
        module=operation.module,
        kernels=kernels,
        host_start_seconds=move(operation.host_start_seconds),
        host_seconds=operation.host_seconds,
        freed=operation.freed,
        python_seconds=operation.python_seconds,
    )


def _export(stopped: profile) -> dict[str, Any]:
    """Return the events of a stopped profiler as in an exported file, with the tensors of each call added."""
    with tempfile.TemporaryDirectory(prefix="lightning-predict-") as folder:
        path = os.path.join(folder, "profile.json")
        stopped.export_chrome_trace(path)
        document: dict[str, Any] = read_trace_json(path, strict=False)
    tensors = dict(_recorded_tensors(stopped))
    for event in document["traceEvents"]:
        if event.get("cat") == "cpu_op" and event["args"].get("External id") in tensors:
            event["args"][RECORDED_TENSORS] = tensors[event["args"]["External id"]]
    return document


_CUDA: Final = 1  # Device type of CUDA in memory events


def _peak_of(document: dict[str, Any]) -> int | None:
    """Return the peak of allocated GPU memory in bytes, from the allocation events; None without such events."""
    totals = (
        (event["args"]["Total Allocated"], event["args"].get("Bytes", 0))
        for event in document["traceEvents"]
        if event.get("name") == "[memory]" and event["args"].get("Device Type") == _CUDA
    )
    # A release reports the total after the release; the earlier total was larger by the released size.
    return max((int(total) + max(0, -int(size)) for total, size in totals), default=None)


def _recorded_tensors(stopped: profile) -> Iterator[tuple[int, list[list[list[Any]]]]]:
    """Yield the id of each call in the file, with the tensors at each position of its schema."""
    results = stopped.profiler and stopped.profiler.kineto_results
    pending = list(results.experimental_event_tree()) if results else []
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        inputs = getattr(event.extra_fields, "inputs", None)
        if inputs:
            yield event.correlation_id, [list(_rows(value)) for value in inputs]


def _rows(value: Any) -> Iterator[list[Any]]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, torch._C._profiler._TensorMetadata):
            yield [list(item.sizes), dtype_name(item.dtype), item.id, item.device.type]
