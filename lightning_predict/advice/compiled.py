"""Change: `torch.compile`, which fuses the pointwise operations between matmuls into a kernel (`kernels/fusion.py`)."""

from __future__ import annotations

from typing import Final

from lightning_predict.advice.change import Change, of_steps
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.fusion import fused
from lightning_predict.record.data_flow import has_data_flow
from lightning_predict.record.trace import Trace


def _why_not(trace: Trace, gpu: Gpu | None) -> str | None:
    if trace.compiled:
        return "the step runs compiled already"
    if not has_data_flow(trace):
        return (
            "the profiler does not record the data flow; capture the same step on the meta device or CPU and pass it "
            "as `followed`"
        )
    if gpu is not None and not gpu.generation.has_tensor_cores:
        return f"{gpu.name} is too old for Triton, which torch.compile writes its kernels in"
    return None


COMPILE: Final = Change(
    name="compile",
    words="torch.compile(model)",
    note="compiles for a minute or more at first, and again where shapes change",
    apply=of_steps(fused),
    why_not=_why_not,
    slot="compile",
    kind="compile",
)
