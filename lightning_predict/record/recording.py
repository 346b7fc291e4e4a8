"""`capture`: runs a training step, records it and returns its Trace.

Example::

    def step():
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()

    trace = capture(step, warmup_steps=3, samples_per_step=32)
    trace = capture(step, precision="bf16-mixed")     # under autocast, on the meta device too
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, Final

import torch

from lightning_predict.base.errors import CaptureError, InvalidArgumentError, LightningPredictError
from lightning_predict.record.absent_cuda import StepSettings, as_on_absent_cuda, forget_step, may_lack_casts
from lightning_predict.record.data_flow import with_data_flow
from lightning_predict.record.dispatch import MAX_OPERATIONS, DispatchRecorder
from lightning_predict.record.environment import compilations
from lightning_predict.record.micro_batches import equal_batches
from lightning_predict.record.patches import Patch, patched_attribute
from lightning_predict.record.precision import Precision, precision_of
from lightning_predict.record.running_loop import MIN_BATCHES, StepBlock, with_running_loop
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Trace
from lightning_predict.record.waiting import wait_for

STEPS_TIMED_ALONE: Final = 2
"""Number of warm-up steps that are timed separately, with a wait for the device after each step.

A block of steps without waits follows."""

STEPS_TIMED_BY_DEFAULT: Final = 3  # Warm-up steps on a GPU that are timed by default; their median excludes one outlier

MAX_NODES: Final = MAX_OPERATIONS // 4
"""Number of autograd nodes of a step beyond which it may be too long: each runs forward and backward operations."""

_nodes_made: Callable[[], int] = torch._C._autograd._get_sequence_nr

_FLOATING: Final = ("float", "bfloat")


def capture(
    step: Callable[[], object],
    *,
    warmup_steps: int | None = None,
    samples_per_step: int | None = None,
    precision: str | None = None,
    resident: Sequence[torch.nn.Module | torch.Tensor] = (),
    mask_share: float = 1.0,
) -> Trace:
    """Run a step `warmup_steps + 1` times (5 times on a GPU by default, otherwise twice) and record the last run.

    This works on CUDA (with kernel times), on the CPU and on the meta device, for eager and compiled code. A step is
    everything up to the next optimizer update: for example, several batches with gradient accumulation, or the two
    optimizers of a GAN.

    Every run updates the parameters. On CUDA, an additional run records the data flow between operations for what-ifs,
    because the profiler does not record data flow.

    The first run is slow (cold) and never timed. With 2 or more warm-up steps, the other warm-up steps are timed. They
    calibrate the speed of GPU and CPU, because a profiler slows the CPU. With 6 or more on a GPU, all but two of the
    timed steps run as in a training loop, without waiting for the device between steps.

    Args:
        step: Runs one step. Its return value is ignored.
        warmup_steps: Number of steps before the recorded step, so that memory, autotuning and optimizer state reach a
            steady state. None means 4 steps on a GPU, three of them timed, and 1 step elsewhere.
        samples_per_step: Number of samples per step, for throughput; None if not needed.
        precision: Name of a precision in Lightning. `bf16-mixed` and `16-mixed` run the step under autocast, and on the
            meta device with the casts of CUDA (`meta_device.py`). Autocast is off in `backward`, as in Lightning. Other
            names (`32-true`, `bf16-true`, ...) only check the dtype of the parameters. With None, the step determines
            its precision; an autocast in the step also applies on the meta device.
        resident: Modules and tensors on the GPU that the step may not use, such as an EMA, a teacher or an encoder.
            Their memory is counted once.
        mask_share: On the meta device, the share of true elements in masks whose values the step reads, for example
            0.15 of the tokens in masked language modelling.

    Raises:
        InvalidArgumentError: `step` is not callable, `warmup_steps` is negative, `samples_per_step` is below 1,
            `mask_share` is not a share, or the precision is unknown.
        CaptureError: Another profiler is running, nothing was recorded, or the parameters' dtype differs from
            `precision`.
    """
    _check_arguments(step, warmup_steps, samples_per_step, mask_share)
    compiled_before, own_step = compilations(), step
    wanted = None if precision is None else precision_of(precision)
    step = _explaining_errors(step if mask_share == 1 else _with_mask_share(step, mask_share))
    casts = wanted is not None and wanted.autocast is not None
    if wanted is not None and wanted.autocast is not None:
        step = _under_autocast(step, getattr(torch, wanted.autocast))
    warm_up = _as_on_meta(step, may_cast=casts and not torch.cuda.is_available())
    before = _cuda_allocations()
    with as_on_absent_cuda(_other_libraries()):
        seconds, hosts, block = _warmed_up(warm_up, warmup_steps, before)
    device = _device_in_use([] if warmup_steps == 0 else before)

    def session(*, creates_subclasses: bool) -> CaptureSession:
        return CaptureSession(
            device=device,
            compiled_before=compiled_before,
            step=own_step,
            creates_subclasses=creates_subclasses,
            resident=resident,
        )

    try:
        recorded, settings = _recorded(step, session(creates_subclasses=False))
    except RuntimeError as error:
        if _CREATES_SUBCLASS not in str(error):
            raise
        recorded, settings = _recorded(step, session(creates_subclasses=True))
    trace = recorded.trace(step_seconds=seconds, samples=samples_per_step)
    trace = with_running_loop(trace, hosts=hosts if len(hosts) == len(seconds) else (), block=block)
    trace = settings.added_to(replace(trace, batches=equal_batches(trace.operations)))
    if trace.has_measured_kernels and not trace.compiled:
        trace = _followed(trace, step)
    if wanted is not None:
        _check_dtype(trace, wanted)
    return trace


def _recorded(step: Callable[[], object], session: CaptureSession) -> tuple[CaptureSession, StepSettings]:
    """Run the step in a session; return the session and the settings that only CUDA would use."""
    session.start()
    try:
        with as_on_absent_cuda(_other_libraries()) as settings, _naming_assumptions(lambda: session.assumptions):
            step()
    finally:
        session.stop()
    return session, settings


def _check_arguments(step: object, warmup_steps: int | None, samples_per_step: int | None, mask_share: float) -> None:
    if not callable(step):
        raise InvalidArgumentError(
            f"step is {step!r}; expected a function without arguments that runs one training step, for example "
            "capture(lambda: training_step(batch))."
        )
    if warmup_steps is not None and warmup_steps < 0:
        raise InvalidArgumentError(f"warmup_steps is {warmup_steps}; expected 0 or more.")
    if samples_per_step is not None and samples_per_step < 1:
        raise InvalidArgumentError(f"samples_per_step is {samples_per_step}; expected 1 or more, or None.")
    if not 0 < mask_share <= 1:
        raise InvalidArgumentError(f"mask_share is {mask_share!r}; expected a share above 0 and at most 1.")


def _other_libraries() -> Iterable[Patch]:
    """Return the patches that a loaded bitsandbytes needs on the meta device."""
    if "bitsandbytes" not in sys.modules:
        return ()
    from lightning_predict.record.quantization import patches_of_bitsandbytes

    return patches_of_bitsandbytes()


def _as_on_meta(step: Callable[[], object], *, may_cast: bool) -> Callable[[], object]:
    """Wrap a warm-up step: the first step shows whether steps on meta need casts or values from a recorder."""
    is_recorded = may_cast

    def run() -> object:
        nonlocal is_recorded
        if not is_recorded:
            try:
                with _ending_long_steps():
                    return step()
            except (CaptureError, RuntimeError) as error:
                # A recorder can assume the values that the step reads, and cast what autocast would cast on CUDA.
                if not isinstance(error, CaptureError) and not may_lack_casts():
                    raise
                forget_step()
        recorder = DispatchRecorder(ends_long_steps=True)
        recorder.start()
        try:
            with _naming_assumptions(lambda: recorder.assumptions):
                return step()
        finally:
            recorder.stop()
            is_recorded = recorder.has_cast_on_meta or bool(recorder.assumptions)

    return run


@contextmanager
def _ending_long_steps() -> Iterator[None]:
    """End a step on the meta device that may be too long to be recorded, so that a recorder runs it instead."""
    first = _nodes_made()

    def counted(plain: Callable[..., None]) -> Callable[..., None]:
        @wraps(plain)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if getattr(tensors, "is_meta", False) and _nodes_made() - first > MAX_NODES:
                raise CaptureError("The step may be too long.")
            plain(tensors, *args, **kwargs)

        return backward

    with patched_attribute(torch.autograd, "backward", counted):
        yield


@contextmanager
def _naming_assumptions(assumptions: Callable[[], Sequence[str]]) -> Iterator[None]:
    """Name the assumed values in an error of the step that may result from these values."""
    try:
        yield
    except Exception as error:
        if isinstance(error, CaptureError) or not assumptions():
            raise
        from lightning_predict.record.assumed_values import failed_with_assumptions

        raise failed_with_assumptions(error, assumptions()) from error


def _followed(trace: Trace, step: Callable[[], object]) -> Trace:
    """Run another step to record the data flow between operations. On an error, add a note."""
    session = CaptureSession(device=torch.device(trace.device), records_data_flow=True)
    try:
        session.start()
        try:
            step()
        finally:
            session.stop()
        return with_data_flow(trace, session.trace())
    except LightningPredictError as error:
        return replace(trace, notes=(*trace.notes, f"Tensors could not be followed: {str(error).rstrip('.')}."))


_CREATES_SUBCLASS: Final = "already associated to a python object"
"""torch's error if a tensor subclass is created with torch's own constructor while a dispatch mode is active."""


def _explaining_errors(step: Callable[[], object]) -> Callable[[], object]:
    """Wrap a step, so that torch's errors about the meta device name the line and a remedy."""

    def run() -> object:
        try:
            return step()
        except Exception as error:
            from lightning_predict.record.assumed_values import explained

            instead = explained(error)
            if instead is None:
                raise
            raise instead from error

    return run


def _with_mask_share(step: Callable[[], object], share: float) -> Callable[[], object]:
    from lightning_predict.record.assumed_values import MASK_SHARE

    def run() -> object:
        token = MASK_SHARE.set(share)
        try:
            return step()
        finally:
            MASK_SHARE.reset(token)

    return run


def _under_autocast(step: Callable[[], object], dtype: torch.dtype) -> Callable[[], object]:
    """Wrap a step in autocast, for the CPU (which includes meta) and a GPU; backward passes run without autocast."""

    def cast() -> object:
        with ExitStack() as contexts:
            for device in _autocast_devices():
                contexts.enter_context(torch.autocast(device, dtype=dtype))
            contexts.enter_context(_backward_without_autocast())
            return step()

    return cast


def _autocast_devices() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


@contextmanager
def _backward_without_autocast() -> Iterator[None]:
    """Disable autocast during `backward`, because trainers call `backward` outside of autocast."""

    def without(plain: Callable[..., None]) -> Callable[..., None]:
        @wraps(plain)
        def backward(*args: Any, **kwargs: Any) -> None:
            with ExitStack() as contexts:
                for device in _autocast_devices():
                    contexts.enter_context(torch.autocast(device, enabled=False))
                plain(*args, **kwargs)

        return backward

    with patched_attribute(torch.autograd, "backward", without):
        yield


def _check_dtype(trace: Trace, wanted: Precision) -> None:
    # A model in bfloat16 runs under autocast in bfloat16; a scaler rejects gradients in float16.
    allowed = {wanted.dtype, "bfloat16" if wanted.autocast == "bfloat16" else wanted.dtype}
    others = sorted({one.dtype for one in trace.parameters if one.dtype.startswith(_FLOATING)} - allowed)
    if others:
        raise CaptureError(
            f"precision={wanted.word!r} means parameters in {wanted.dtype}, and the step has some in "
            f"{', '.join(others)}; make the model in {wanted.dtype}, for example model.to(torch.{wanted.dtype}), or "
            "say another precision."
        )


def _cuda_allocations() -> list[int]:
    """Return the number of blocks that this process has allocated on each GPU; empty before CUDA is initialised."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    statistics = (torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count()))
    return [int(counts.get("allocation.all.allocated", 0)) for counts in statistics]


def _device_in_use(before: list[int]) -> torch.device:
    """Return the GPU with most new allocations since `before`; the CPU (also for the meta device) without any."""
    after = _cuda_allocations()
    grown = [count - (before[index] if index < len(before) else 0) for index, count in enumerate(after)]
    most = max(grown, default=0)
    return torch.device("cuda", grown.index(most)) if most > 0 else torch.device("cpu")


def _warmed_up(
    step: Callable[[], object], steps: int | None, allocated: list[int]
) -> tuple[list[float], list[float], StepBlock | None]:
    """Run warm-up steps: a cold step, a few steps that are timed with a wait for the device, and a block of steps.

    Args:
        step: Runs a step.
        steps: Number of steps; None for the default of the device that the first step uses.
        allocated: Blocks allocated on each GPU before the first step.

    Returns:
        Time of each timed step until the device was done, time until the host was done, and the block if there were
        enough steps. Without a device to wait for, host times are empty.
    """
    seconds: list[float] = []
    hosts: list[float] = []
    number, wanted = 0, 1 if steps is None else steps
    while number < wanted:
        wait, left = _wait_in_use(), wanted - number
        begin = time.perf_counter()
        if wait is not None and number > STEPS_TIMED_ALONE and left >= MIN_BATCHES:
            for _ in range(left):
                step()
            wait()
            block = StepBlock(seconds=time.perf_counter() - begin, waited_seconds=0.0, steps=left)
            return seconds[1:], hosts[1:], block
        step()
        if number == 0:
            wait = _wait_in_use()  # the first step may initialise the GPU
            if steps is None and _device_in_use(allocated).type == "cuda":
                wanted += STEPS_TIMED_BY_DEFAULT
        host_done = time.perf_counter()
        if wait is not None:
            hosts.append(host_done - begin)
            wait()
        seconds.append(time.perf_counter() - begin)
        number += 1
    return seconds[1:], hosts[1:], None


def _wait_in_use() -> Callable[[], object] | None:
    """Return a function that waits for the device in use by this process; None without such a device."""
    if torch.cuda.is_available():
        return torch.cuda.synchronize if torch.cuda.is_initialized() else None
    accelerator: Any = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return None
    return wait_for(accelerator.current_accelerator())
