"""Steps to change: a small training step on the meta device, and recordings as a profiler of an A100 sees them."""

from dataclasses import replace

import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.record.trace import Kernel, Operation, TensorInfo, Trace

WIDTH = 2048
REPORTED = "NVIDIA A100-SXM4-40GB"  # What torch calls the GPU of the recordings

GPU = "A100-SXM-40GB"


def trained(batch: int = 512, *, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> Trace:
    """A training step of two blocks whose GELU is written out."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            out: torch.Tensor = self.second(0.5 * h * (1.0 + torch.tanh(0.8 * (h + 0.04 * torch.pow(h, 3.0)))))
            return x + out

    with torch.device("meta"):
        model = nn.Sequential(Block(), Block())
        rows = torch.randn(batch, WIDTH)
    update = optimizer(model.parameters(), lr=0.1)  # type: ignore[call-arg]

    def step() -> None:
        update.zero_grad()
        model(rows).square().mean().backward()
        update.step()

    return lp.capture(step, samples_per_step=batch)


def profiled(*, kernel_seconds: float, every: float, step_seconds: float | None = None, rows: int = 65536) -> Trace:
    """A recording of 20 products and 20 additions in turns, launched so often; nothing is known of their results.

    An addition takes so long, a product eight times: about the A100's float32 for the rows that are the default.
    """
    data = TensorInfo((rows, 1024), "float32", device="cuda")
    weight = TensorInfo((1024, 1024), "float32", device="cuda")
    operations, free = [], 0.0
    for number in range(40):
        begins = number * every
        launched = begins + 4e-6
        start = max(launched + 12e-6, free + 1e-6 if number else 0.0)
        is_product = number % 2 == 0
        seconds = kernel_seconds * (8 if is_product else 1)
        free = start + seconds
        kernel = Kernel(
            name="kernel",
            seconds=seconds,
            grid=(1000, 1, 1),
            block=(256, 1, 1),
            registers_per_thread=64,
            shared_memory_bytes=0,
            stream=7,
            start_seconds=start,
            launch_start_seconds=launched,
            launch_seconds=6e-6,
        )
        operations.append(
            Operation(
                name="aten::mm" if is_product else "aten::add",
                phase="forward",
                inputs=(data, weight if is_product else data),
                kernels=(kernel,),
                host_start_seconds=begins,
                host_seconds=11e-6,
            )
        )
    step = Trace(operations=tuple(operations), device="cuda", recorder="profiler", gpu_reported_name=REPORTED)
    ends = max(free, 40 * every)
    return replace(step, profiled_seconds=ends, step_seconds=(ends if step_seconds is None else step_seconds,))
