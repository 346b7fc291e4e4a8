"""`CaptureSession`: records one step of a training loop that other code runs, and returns its Trace.

The session selects the recorder. CUDA and compiled code use `torch.profiler`. The CPU, the meta device, and recordings
of data flow use dispatch modes. If the profiler fails, the profiler records the next step without the GPU. After a
second failure, the following step is recorded without the profiler. Errors of recording never reach the training step.
`stop` removes all patches, hooks and profilers. Example::

    session = CaptureSession(device=torch.device("cpu"), model=model, optimizers=[optimizer])
    session.start()
    loss = model(batch).sum(); loss.backward(); optimizer.step()
    session.stop()
    trace = session.trace(step_seconds=(0.021, 0.020), samples=32)
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Final

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from lightning_predict.base.errors import CaptureError, NothingRecordedError
from lightning_predict.base.guard import keeps_random_state, own_error
from lightning_predict.record import environment
from lightning_predict.record.dispatch import DispatchRecorder
from lightning_predict.record.profiler import ProfilerRecorder, refuse_second_profiler
from lightning_predict.record.trace import WAITED_SHARE, Trace

_NO_KERNELS: Final = (
    "The profiler recorded nothing on the GPU (often for lack of permission to use CUPTI), so times are predicted, not "
    "scaled from measurements."
)

EARLIER_PEAK_RATIO: Final = 1.1
"""Ratio of the process's memory peak to the step's peak above which reserved memory is attributed to earlier work."""

_REPORTED_GPU: Final[ContextVar[str | None]] = ContextVar("GPU of recordings", default=None)


@contextmanager
def recordings_on(gpu_name: str) -> Iterator[None]:
    """Make recordings inside this context report a given GPU, as if the machine had it.

    Args:
        gpu_name: Any name of a GPU in the catalogue, such as `T4`.
    """
    token = _REPORTED_GPU.set(gpu_name)
    try:
        yield
    finally:
        _REPORTED_GPU.reset(token)


FRAMES: Final = 200  # Stack frames that a recorder and torch may need in one operation; 30 were observed

_LIMIT_LOCK: Final = Lock()
_OPEN_LIMITS: Final[list[int]] = []  # original limit for each open recorder; the limit applies to all threads


class RecursionHeadroom:
    """Additional stack frames for one recorder. Repeated calls of open or close have no effect.

    Without this headroom, a step that recurses almost to the limit would raise a RecursionError only under the
    recorder.
    """

    _is_open = False

    def open(self) -> None:
        """Raise the limit, only once for all recorders that are open at the same time."""
        with _LIMIT_LOCK:
            if self._is_open:
                return
            self._is_open = True
            _OPEN_LIMITS.append(_OPEN_LIMITS[0] if _OPEN_LIMITS else sys.getrecursionlimit())
            if len(_OPEN_LIMITS) == 1:
                sys.setrecursionlimit(_OPEN_LIMITS[0] + FRAMES)

    def close(self) -> None:
        """Restore the limit when the last recorder stops."""
        with _LIMIT_LOCK:
            if not self._is_open:
                return
            self._is_open = False
            limit = _OPEN_LIMITS.pop()
            if not _OPEN_LIMITS and sys.getrecursionlimit() == limit + FRAMES:
                with suppress(RecursionError):  # the current depth exceeds the old limit: keep the higher one
                    sys.setrecursionlimit(limit)


class CaptureSession:
    """Records one step: call start(), run the step, call stop(), then trace().

    `start` and `stop` may be called repeatedly, to exclude code in between (the data loader, for example). All parts
    form one step. All calls must come from one thread.

    Args:
        device: Device on which the step runs.
        model: Model, for names, parameters and memory; None uses the outermost modules that are called.
        optimizers: Optimizers, for their state. If empty, the optimizers that step while recording are used.
        compiled: Whether any part of the step is compiled; None detects this.
        compiled_before: Compilations before the training began. With None, earlier compilations do not make the step
            count as compiled, but their duration still counts as compilation time.
        step: Function that runs the step, to search for compiled code if no model is given. It is not a training, so
            that a step on the meta device may end with an error.
        profiler_errors: Errors of the profiler in earlier steps. After one error, the profiler records no GPU work.
            After two errors, the profiler is not used.
        records_data_flow: Whether to record data flow with the dispatch modes, even on a GPU, where the profiler would
            time kernels.
        resident: Modules and tensors on the GPU, which the step may or may not use.
        creates_subclasses: Whether the step creates tensor subclasses with torch's constructor, which does not work in
            a dispatch mode. With None, the process is searched for such subclasses; if any exist, the profiler is used.
    """

    def __init__(
        self,
        *,
        device: torch.device,
        model: nn.Module | None = None,
        optimizers: Sequence[Optimizer] = (),
        compiled: bool | None = None,
        compiled_before: environment.Compilations | None = None,
        step: Callable[[], object] | None = None,
        profiler_errors: Sequence[Exception] = (),
        records_data_flow: bool = False,
        creates_subclasses: bool = False,
        resident: Sequence[nn.Module | torch.Tensor] = (),
    ) -> None:
        self._resident = tuple(resident)
        self._device = device
        self._records_data_flow = records_data_flow
        self._creates_subclasses = creates_subclasses
        self._model = model
        self._optimizers = tuple(optimizers)
        self._compiled = compiled
        self._compiled_before = compiled_before
        self._compiled_at_start = compiled_before or environment.compilations()
        self._step = step
        self._profiler_errors = tuple(profiler_errors)
        self._recorder: DispatchRecorder | ProfilerRecorder | None = None
        self._frames = RecursionHeadroom()
        self._running = False
        self._failure: Exception | None = None
        self._parts = 0
        self._seconds = 0.0
        self._started_at = 0.0
        self._reserved_bytes: int | None = None

    @keeps_random_state
    def start(self) -> None:
        """Start recording. If the profiler fails, fall back to the next recorder.

        If the recorder cannot be restarted within a step, the whole step is lost; `retry` then records a later step.
        """
        if self._running:
            raise CaptureError("This session is recording already; call stop() before the next start().")
        if self._failure is not None:
            return
        refuse_second_profiler()
        while not self._starts():
            pass
        self._parts += 1
        self._started_at = time.perf_counter()

    def _starts(self) -> bool:
        """Try to start the recorder. Return False if the start failed and another recorder is left."""
        try:
            if self._recorder is None:
                self._prepare()
            self._running = True
            self._frames.open()
            assert self._recorder is not None
            self._recorder.start()
            self._synchronize()
        except BaseException as error:
            self.stop()
            if not isinstance(error, Exception):
                raise
            self._failure = own_error(error)
            if self.retry is None:
                raise CaptureError(f"The step cannot be recorded: {error}") from error
            if self._parts > 0:
                return True
            self._profiler_errors, self._failure = (*self._profiler_errors, error), None
            self._recorder = None
            return False
        return True

    @property
    def retry(self) -> Callable[[], CaptureSession] | None:
        """Factory of a session for a later step, if the profiler failed; None if no other recorder is left."""
        if isinstance(self._failure, CaptureError | None) or len(self._profiler_errors) + 1 >= len(self._recorders):
            return None
        return partial(
            CaptureSession,
            device=self._device,
            model=self._model,
            optimizers=self._optimizers,
            compiled=self._compiled,
            compiled_before=self._compiled_before,
            step=self._step,
            profiler_errors=(*self._profiler_errors, self._failure),
        )

    def stop(self) -> None:
        """Stop recording. The method never raises, and repeated calls have no effect."""
        if not self._running:
            return
        with ExitStack() as parts:  # runs in reverse order; all parts run, even if some raise or are interrupted
            parts.callback(setattr, self, "_running", False)
            parts.callback(self._frames.close)
            parts.callback(self._quietly, self._stop_recorder)
            parts.callback(self._quietly, self._note_end)

    def _quietly(self, stop_part: Callable[[], None]) -> None:
        """Stop a part of the recording, and retry once if interrupted. `trace` raises a stored error."""
        try:
            stop_part()
        except BaseException as error:
            with suppress(Exception):
                stop_part()  # stopping twice is safe
            if not isinstance(error, Exception):
                raise
            self._failure = self._failure or own_error(error)

    @property
    def records_first_and_last_only(self) -> bool:
        """Whether to record only the first and last micro-batch, regardless of shapes, to save memory for events."""
        return isinstance(self._recorder, ProfilerRecorder)

    @property
    def optimizers_seen(self) -> tuple[Optimizer, ...] | None:
        """Optimizers that stepped while recording; None if unknown, as in compiled code."""
        updates = None if self._recorder is None else self._recorder.optimizers
        return None if updates is None else tuple(updates.optimizers)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Notes on the values of meta tensors that the step read, and that had to be assumed."""
        return () if self._recorder is None else self._recorder.assumptions

    @keeps_random_state
    def trace(
        self,
        *,
        step_seconds: Sequence[float] = (),
        loader_seconds: Sequence[float] = (),
        samples: int | None = None,
        batches: int = 1,
        represented_by: Sequence[int] = (),
        optimizer_steps: int | None = None,
    ) -> Trace:
        """Return the recorded step.

        Args:
            step_seconds: Times of steps without a recorder.
            loader_seconds: Waits for the data loader, one per batch.
            samples: Samples of the step on this rank.
            batches: Batches of the step.
            represented_by: For each batch, the index of the recorded batch that represents it; empty if all batches
                were recorded. Each recorded batch had its own start and stop.
            optimizer_steps: Number of optimizer updates in the step; None counts the recorded updates.
        """
        self.stop()
        if self._failure is not None:
            raise CaptureError(
                f"The step ran, but recording it failed: {type(self._failure).__name__}: {self._failure}"
            ) from self._failure
        if self._recorder is None:
            raise CaptureError("Nothing was recorded: call start(), run the step, then stop().")
        are_all = all(batch == shown for batch, shown in enumerate(represented_by))
        trace = self._recorded(() if are_all else represented_by)
        if not trace.operations:
            raise NothingRecordedError("Nothing was recorded: no torch operation ran on this thread until stop().")
        return replace(
            trace,
            step_seconds=tuple(step_seconds),
            waited_seconds=self._waited(step_seconds, batches) if trace.device == "cpu" else 0.0,
            profiled_seconds=self._seconds if are_all else trace.profiled_seconds,
            loader_seconds=tuple(loader_seconds),
            samples=samples,
            batches=batches,
            optimizer_steps=trace.optimizer_steps if optimizer_steps is None else optimizer_steps,
        )

    def _waited(self, step_seconds: Sequence[float], batches: int) -> float:
        """Return the time of a step on the CPU in which user code waited.

        A profiler does not tell such waits from torch's waits for its other threads, which are a smaller share.
        """
        assert self._recorder is not None
        waited = self._recorder.pauses.waited_seconds * batches / self._parts
        if isinstance(self._recorder, DispatchRecorder):
            return waited
        return waited if step_seconds and waited >= WAITED_SHARE * statistics.median(step_seconds) else 0.0

    def _prepare(self) -> None:
        """Choose the recorder."""
        if self._compiled is None:
            code = self._step if self._model is None else self._model
            self._compiled = environment.has_compiled_code(code, since=self._compiled_at_start)
        self._recorder = self._recorders[len(self._profiler_errors)]()

    @property
    def _recorders(self) -> Sequence[Callable[[], DispatchRecorder | ProfilerRecorder]]:
        """Recorders to try, best first."""
        needs_profiler = self._compiled or environment.has_fast_evaluation(self._model) or self._creates_subclasses
        if self._records_data_flow:
            return [partial(DispatchRecorder, self._model)]
        recorder = partial(DispatchRecorder, self._model, ends_long_steps=self._step is not None)
        dispatch = [] if needs_profiler and self._device.type != "meta" else [recorder]
        # Hooks would recompile compiled code.
        profiler = partial(ProfilerRecorder, model=self._model, has_hooks=not self._compiled)
        if self._device.type == "cuda":
            return [partial(profiler, cuda=True), partial(profiler, cuda=False), *dispatch]
        return dispatch or [partial(profiler, cuda=False)]

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _note_end(self) -> None:
        self._synchronize()
        self._seconds += time.perf_counter() - self._started_at
        if self._device.type == "cuda":
            self._reserved_bytes = torch.cuda.memory_reserved(self._device)

    def _stop_recorder(self) -> None:
        if self._recorder is None:
            return
        self._recorder.stop()
        self._failure = self._failure or self._recorder.failure

    def _recorded(self, represented_by: Sequence[int]) -> Trace:
        """Return the recorder's trace with the environment of the step added."""
        recorder = self._recorder
        assert recorder is not None
        modules, leaves = recorder.modules, list(recorder.leaves.values())
        stepped = () if recorder.optimizers is None else tuple(recorder.optimizers.optimizers)
        trace = recorder.trace(represented_by=represented_by)
        trace = replace(trace, flags=environment.read_flags(trace.flags.autocast_dtype, stepped))
        roots = [self._model] if self._model is not None else (modules.roots if modules is not None else [])
        environment.check_listed(roots)
        buffers = recorder.read_storages(buffer for root in roots for buffer in root.buffers()) if roots else None
        if modules is not None:
            trace = _renamed(trace, modules.final_names())
        optimizers = self._optimizers or stepped
        if not roots and not leaves:
            groups = (group for optimizer in optimizers for group in optimizer.param_groups)
            leaves = [parameter for group in groups for parameter in group["params"]]
        memory = environment.measure_memory(
            roots,
            leaves,
            optimizers,
            has_backward=any(operation.phase == "backward" for operation in trace.operations),
            forward_gradient_bytes=recorder.forward_gradient_bytes,
            peak_bytes=self._peak_bytes,
            reserved_bytes=self._reserved_by_step,
        )
        if self._resident:
            memory = replace(memory, resident_bytes=self._unused_bytes(roots, recorder))
        is_compiled = trace.compiled or bool(self._compiled)
        before = self._compiled_before or environment.NO_COMPILATIONS
        return self._with_device(
            replace(
                trace,
                parameters=environment.describe_parameters(roots) or environment.describe_leaves(leaves),
                memory=memory,
                buffers=buffers,
                compiled=is_compiled,
                compile_seconds=environment.compilations().seconds_since(before) if is_compiled else None,
                software={**trace.software, **environment.software_versions()},
            )
        )

    def _unused_bytes(self, roots: Sequence[nn.Module], recorder: DispatchRecorder | ProfilerRecorder) -> int | None:
        """Return the size of resident tensors that the step does not use; None if the step uses all of them."""
        tensors = environment.held_tensors(self._resident)
        used = {id(tensor) for tensor in environment.held_tensors(roots)}
        others = [tensor for tensor in tensors if id(tensor) not in used and not recorder.read_storages([tensor])]
        return environment.bytes_of_tensors(others) or None

    @property
    def _peak_bytes(self) -> int | None:
        """Peak memory allocated on the GPU, from recorded allocations. The user's peak statistics are not reset.

        Without recorded allocations (CUDA graphs), it is the peak of the process, within the reserved memory.
        """
        if self._device.type != "cuda":
            return None
        recorded = None if self._recorder is None else self._recorder.peak_bytes
        most = torch.cuda.max_memory_allocated(self._device)
        return recorded or (most if self._reserved_bytes is None else min(most, self._reserved_bytes))

    @property
    def _reserved_by_step(self) -> int | None:
        """Memory that the allocator reserved for the step; None if earlier work of the process needed more.

        The allocator keeps memory of an earlier, larger model (as in a notebook), and does not report which model used
        the memory.
        """
        peak, held = self._peak_bytes, self._reserved_bytes
        if peak is None or held is None:
            return held
        is_of_step = torch.cuda.max_memory_allocated(self._device) <= EARLIER_PEAK_RATIO * peak
        return held if is_of_step else None

    def _with_device(self, trace: Trace) -> Trace:
        """Return the Trace with the GPU's name and memory. On other devices, use the device type of most tensors."""
        if self._device.type != "cuda":
            tensors = (tensor for operation in trace.operations for tensor in operation.inputs)
            kinds = Counter(tensor.device for tensor in tensors if tensor.device is not None)
            device = kinds.most_common(1)[0][0] if kinds else self._device.type
            return replace(trace, device=device, gpu_reported_name=_REPORTED_GPU.get() or trace.gpu_reported_name)
        properties = torch.cuda.get_device_properties(self._device)
        return replace(
            trace,
            device="cuda",
            gpu_reported_name=torch.cuda.get_device_name(self._device),
            gpu_memory_bytes=int(properties.total_memory),
            notes=trace.notes if trace.has_measured_kernels else (*trace.notes, self._without_kernels),
        )

    @property
    def _without_kernels(self) -> str:
        if not self._profiler_errors:
            return _NO_KERNELS
        errors = "; then ".join(f"{type(error).__name__}: {error}" for error in self._profiler_errors)
        return (
            f"Recording with torch's profiler failed ({errors}), so the step has no GPU times. Times are predicted "
            "from shapes instead."
        )


def _renamed(trace: Trace, names: Mapping[str, str | None]) -> Trace:
    if not names:
        return trace
    operations = (
        operation
        if operation.module is None or operation.module not in names
        else replace(operation, module=names[operation.module])
        for operation in trace.operations
    )
    return replace(trace, operations=tuple(operations))
