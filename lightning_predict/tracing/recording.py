"""`capture`: runs a training step of your own and returns its Trace.

Example::

    def step():
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()

    trace = capture(step, warmup_steps=3, samples_per_step=32)
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.tracing.records import Trace
from lightning_predict.tracing.session import CaptureSession


def capture(step: Callable[[], object], *, warmup_steps: int = 1, samples_per_step: int | None = None) -> Trace:
    """Run a step `warmup_steps + 1` times and return what the last one did.

    Works on CUDA (with the kernels' times), on the CPU and on the meta device, eager or compiled. The step may be
    anything up to the next optimizer update: several batches under accumulation, or two optimizers of a GAN. Your
    parameters advance by as many steps. The first step is never timed, because it is cold; with `warmup_steps` of 2 or
    more the others are, and become the anchor of predictions for the same GPU.

    Args:
        step: Runs one step; what it returns is ignored.
        warmup_steps: Steps before the one that is recorded, so that memory, autotuning and optimizer state settle.
        samples_per_step: Samples of one step, for throughput; None where nobody needs it.

    Raises:
        InvalidArgumentError: A step that cannot be called, a negative `warmup_steps`, or no samples.
        CaptureError: Another profiler is running, or nothing was recorded.
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
    before = _cuda_allocations()
    seconds = [_timed(step) for _ in range(warmup_steps)]
    session = CaptureSession(device=_device_in_use(before if warmup_steps else []))
    session.start()
    try:
        step()
    finally:
        session.stop()
    return session.trace(step_seconds=seconds[1:], samples=samples_per_step)


def _cuda_allocations() -> list[int]:
    """Number of blocks that this process has ever taken from each GPU's allocator; none before it uses CUDA."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    statistics = (torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count()))
    return [int(one.get("allocation.all.allocated", 0)) for one in statistics]


def _device_in_use(before: list[int]) -> torch.device:
    """The GPU that allocated most since `before`; the CPU, which stands for the meta device too, where none did."""
    after = _cuda_allocations()
    grown = [count - (before[index] if index < len(before) else 0) for index, count in enumerate(after)]
    most = max(grown, default=0)
    return torch.device("cuda", grown.index(most)) if most > 0 else torch.device("cpu")


def _timed(step: Callable[[], object]) -> float:
    """Seconds of a step, until the GPU has finished it."""
    begin = time.perf_counter()
    step()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - begin
