"""`capture`: runs a training step of your own and returns its Trace.

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

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from traceback import extract_tb
from typing import Any, Final

import torch

from lightning_predict.errors import CaptureError, InvalidArgumentError, LightningPredictError
from lightning_predict.tracing.dispatch import DispatchRecorder
from lightning_predict.tracing.environment import compilations
from lightning_predict.tracing.followed import with_followed
from lightning_predict.tracing.meta_device import autocast_of_absent_cuda, fused_optimizers_on_meta, replaced
from lightning_predict.tracing.precision import Precision, precision_of
from lightning_predict.tracing.running_loop import FEWEST_BATCHES, StepBlock, with_running_loop
from lightning_predict.tracing.session import CaptureSession
from lightning_predict.tracing.trace import Trace
from lightning_predict.tracing.waiting import wait_for

STEPS_TIMED_ALONE: Final = 2
"""Steps after the cold one that wait for the device, before a block of steps that does not."""

_FLOATING: Final = ("float", "bfloat")


def capture(
    step: Callable[[], object],
    *,
    warmup_steps: int = 1,
    samples_per_step: int | None = None,
    precision: str | None = None,
) -> Trace:
    """Run a step `warmup_steps + 1` times and return what the last one did.

    Works on CUDA (with the kernels' times), on the CPU and on the meta device, eager or compiled. The step may be
    anything up to the next optimizer update: several batches under accumulation, or two optimizers of a GAN. Your
    parameters advance by as many steps, on CUDA by one more, in which tensors are followed: what-ifs ask which one is
    handed to which operation, and the profiler does not see it. The first step is never timed, because it is cold; with
    `warmup_steps` of 2 or more the others are, and become the anchor of predictions for the same GPU. On a GPU, with 6
    or more, all but two of these run as in a training loop, which does not wait for the device between its steps.

    Args:
        step: Runs one step; what it returns is ignored.
        warmup_steps: Steps before the one that is recorded, so that memory, autotuning and optimizer state settle.
        samples_per_step: Samples of one step, for throughput; None if it is not needed.
        precision: Lightning's word. `bf16-mixed` and `16-mixed` run the step under autocast; on the meta device, where
            torch's autocast does nothing, the casts of CUDA's are applied (`meta_device.py`); it is off in `backward`,
            as in Lightning. The others (`32-true`,
            `bf16-true`, ...) only check that the parameters have that dtype. None leaves precision to the step; an
            autocast that it enters holds on the meta device, too.

    Raises:
        InvalidArgumentError: A step that cannot be called, a negative `warmup_steps`, no samples, or an unknown
            precision.
        CaptureError: Another profiler is running, nothing was recorded, or the parameters have another dtype than
            `precision` says.
    """
    if not callable(step):
        raise InvalidArgumentError(
            f"step is {step!r}; expected a function without arguments that runs one training step, for example "
            "capture(lambda: training_step(batch))."
        )
    if warmup_steps < 0:
        raise InvalidArgumentError(f"warmup_steps is {warmup_steps}; expected 0 or more.")
    if samples_per_step is not None and samples_per_step < 1:
        raise InvalidArgumentError(f"samples_per_step is {samples_per_step}; expected 1 or more, or None.")
    compiled_before, own_step = compilations(), step
    wanted = None if precision is None else precision_of(precision)
    warm_up = step = _explaining_reads(step)
    if wanted is not None and wanted.autocast is not None:
        warm_up = step = _under_autocast(step, getattr(torch, wanted.autocast))
        if not torch.cuda.is_available():
            warm_up = _with_casts_on_meta(step)
    before = _cuda_allocations()
    with fused_optimizers_on_meta(), autocast_of_absent_cuda():
        seconds, hosts, block = _warmed_up(warm_up, warmup_steps)
    session = CaptureSession(
        device=_device_in_use(before if warmup_steps else []), compiled_before=compiled_before, step=own_step
    )
    session.start()
    try:
        with fused_optimizers_on_meta(), autocast_of_absent_cuda() as autocasts:
            step()
    finally:
        session.stop()
    trace = session.trace(step_seconds=seconds, samples=samples_per_step)
    trace = with_running_loop(trace, hosts=hosts if len(hosts) == len(seconds) else (), block=block)
    trace = autocasts.told(trace)
    if trace.has_measured_kernels and not trace.compiled:
        trace = _followed(trace, step)
    if wanted is not None:
        _check_dtype(trace, wanted)
    return trace


def _with_casts_on_meta(step: Callable[[], object]) -> Callable[[], object]:
    """Return the step with autocast's casts on the meta device, without which torch may refuse it.

    Elsewhere nothing is cast, and only the first step, which is cold, runs under a recorder to tell.
    """
    may_cast = True

    def run() -> object:
        nonlocal may_cast
        if not may_cast:
            return step()
        recorder = DispatchRecorder()  # what it records is thrown away
        recorder.start()
        try:
            return step()
        finally:
            recorder.stop()
            may_cast = recorder.has_cast_on_meta

    return run


def _followed(trace: Trace, step: Callable[[], object]) -> Trace:
    """Run one step more to see which operation hands which tensor to which; what cannot be seen is a note."""
    session = CaptureSession(device=torch.device(trace.device), follows=True)
    try:
        session.start()
        try:
            step()
        finally:
            session.stop()
        return with_followed(trace, session.trace())
    except LightningPredictError as error:
        return replace(trace, notes=(*trace.notes, f"Tensors could not be followed: {str(error).rstrip('.')}."))


_HAS_NO_VALUE: Final = "cannot be called on meta tensors"
"""What torch says of a call that asks a tensor of the meta device for its values, such as `item`."""


_CANNOT_RUN: Final = ("with Meta tensors", "from the 'Meta' backend", "must be on supported devices")
"""What torch says of an operation that the meta device lacks, and of a capturable optimizer there."""


def _explaining_reads(step: Callable[[], object]) -> Callable[[], object]:
    """Return the step with words of our own where it asks the meta device for what that lacks, which name the line."""

    def run() -> object:
        try:
            return step()
        except (RuntimeError, AssertionError) as error:
            if any(words in str(error) for words in _CANNOT_RUN):
                raise CaptureError(
                    f"{_asking_line(error)} runs what torch has not for tensors without data, on the meta device "
                    f"({str(error).partition('. ')[0].rstrip('.')}). Say it otherwise there (an optimizer with "
                    "foreach=True in place of fused or capturable takes nearly as long), or record on the CPU or a GPU."
                ) from error
            if _HAS_NO_VALUE not in str(error):
                raise
            raise CaptureError(
                f"{_asking_line(error)} asks for the value of a tensor, and tensors on the meta device have none "
                f"({error}). Record on the CPU or a GPU, or leave out what is decided by values there: a mask that is "
                "all ones, a check of indices, a loss that is logged."
            ) from error

    return run


def _asking_line(error: BaseException) -> str:
    """Name the innermost line outside of torch and this package that led to an error."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent))
    frames = [one for one in extract_tb(error.__traceback__) if not one.filename.startswith(ours)]
    if not frames:
        return "The step"
    last = frames[-1]
    return f"`{last.line}` ({Path(last.filename).name}, line {last.lineno}, in {last.name})"


def _under_autocast(step: Callable[[], object], dtype: torch.dtype) -> Callable[[], object]:
    """Return the step with autocast on, for the CPU (and with it the meta device) and, where there is one, the GPU.

    Its backward passes run without: what they compute again by themselves, as reversible layers do, is in the dtype of
    the parameters. Checkpointing turns autocast on again where it was on.
    """

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
    """Turn autocast off while `backward` runs, which trainers call outside of it."""

    def without(plain: Callable[..., None]) -> Callable[..., None]:
        @wraps(plain)
        def backward(*args: Any, **kwargs: Any) -> None:
            with ExitStack() as contexts:
                for device in _autocast_devices():
                    contexts.enter_context(torch.autocast(device, enabled=False))
                plain(*args, **kwargs)

        return backward

    with replaced(torch.autograd, "backward", without):
        yield


def _check_dtype(trace: Trace, wanted: Precision) -> None:
    """Refuse a trace whose parameters have another dtype than its precision promises."""
    others = sorted({one.dtype for one in trace.parameters if one.dtype.startswith(_FLOATING)} - {wanted.dtype})
    if others:
        raise CaptureError(
            f"precision={wanted.word!r} means parameters in {wanted.dtype}, and the step has some in "
            f"{', '.join(others)}; make the model in {wanted.dtype}, for example model.to(torch.{wanted.dtype}), or "
            "say another precision."
        )


def _cuda_allocations() -> list[int]:
    """Return number of blocks that this process has ever taken from each GPU's allocator; none before it uses CUDA."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    statistics = (torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count()))
    return [int(one.get("allocation.all.allocated", 0)) for one in statistics]


def _device_in_use(before: list[int]) -> torch.device:
    """Return the GPU that allocated most since `before`; the CPU, which stands for the meta device too, if none did."""
    after = _cuda_allocations()
    grown = [count - (before[index] if index < len(before) else 0) for index, count in enumerate(after)]
    most = max(grown, default=0)
    return torch.device("cuda", grown.index(most)) if most > 0 else torch.device("cpu")


def _warmed_up(step: Callable[[], object], steps: int) -> tuple[list[float], list[float], StepBlock | None]:
    """Run steps: the first is cold, a few are timed until the device is done, and the rest, if enough, as a block.

    Returns:
        Seconds of each timed step until the device was done, those until the host was done (none without a device to
        wait for), and the block.
    """
    seconds: list[float] = []
    hosts: list[float] = []
    for number in range(steps):
        wait, left = _wait_in_use(), steps - number
        begin = time.perf_counter()
        if wait is not None and number > STEPS_TIMED_ALONE and left >= FEWEST_BATCHES:
            for _ in range(left):
                step()
            wait()
            block = StepBlock(seconds=time.perf_counter() - begin, waited_seconds=0.0, steps=left)
            return seconds[1:], hosts[1:], block
        step()
        if number == 0:
            wait = _wait_in_use()  # the first step may be the one that uses a GPU first
        host_done = time.perf_counter()
        if wait is not None:
            hosts.append(host_done - begin)
            wait()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:], hosts[1:], None


def _wait_in_use() -> Callable[[], object] | None:
    """Return a function that waits for this process's device; None where it uses none."""
    if torch.cuda.is_available():
        return torch.cuda.synchronize if torch.cuda.is_initialized() else None
    accelerator: Any = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return None
    return wait_for(accelerator.current_accelerator())
