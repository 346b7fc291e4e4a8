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
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import torch

from lightning_predict.errors import CaptureError, InvalidArgumentError
from lightning_predict.tracing.environment import compilations
from lightning_predict.tracing.precision import Precision, precision_of
from lightning_predict.tracing.session import CaptureSession
from lightning_predict.tracing.trace import Trace

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
    parameters advance by as many steps. The first step is never timed, because it is cold; with `warmup_steps` of 2 or
    more the others are, and become the anchor of predictions for the same GPU.

    Args:
        step: Runs one step; what it returns is ignored.
        warmup_steps: Steps before the one that is recorded, so that memory, autotuning and optimizer state settle.
        samples_per_step: Samples of one step, for throughput; None if it is not needed.
        precision: Lightning's word. `bf16-mixed` and `16-mixed` run the step under autocast; on the meta device, where
            torch's autocast does nothing, the casts of CUDA's are applied (`meta_device.py`). The others (`32-true`,
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
    if wanted is not None and wanted.autocast is not None:
        step = _under_autocast(step, getattr(torch, wanted.autocast))
    before = _cuda_allocations()
    seconds = [_timed(step) for _ in range(warmup_steps)]
    session = CaptureSession(
        device=_device_in_use(before if warmup_steps else []), compiled_before=compiled_before, step=own_step
    )
    session.start()
    try:
        step()
    finally:
        session.stop()
    trace = session.trace(step_seconds=seconds[1:], samples=samples_per_step)
    if wanted is not None:
        _check_dtype(trace, wanted)
    return trace


def _under_autocast(step: Callable[[], object], dtype: torch.dtype) -> Callable[[], object]:
    """Return the step with autocast on, for the CPU (and with it the meta device) and, where there is one, the GPU."""

    def cast() -> object:
        with ExitStack() as contexts:
            contexts.enter_context(torch.autocast("cpu", dtype=dtype))
            if torch.cuda.is_available():
                contexts.enter_context(torch.autocast("cuda", dtype=dtype))
            return step()

    return cast


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


def _timed(step: Callable[[], object]) -> float:
    """Return the seconds of a step, until the GPU has finished it."""
    begin = time.perf_counter()
    step()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - begin
