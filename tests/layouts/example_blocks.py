"""A trace of transformer blocks whose times are round numbers.

Each block: a norm of 0.1 s, the projection to queries, keys and values (1 s), attention (1 s) and the projection back
(1 s); backward 0.2 s of the norm, 2 s of attention, 1 s for the projection's input and 1 s for its weight. The update
takes 0.5 s, independent of the parameters. Four samples of 256 tokens, 1,024 wide, in 8 heads, so that large products
stay bound by computing, and every time goes by the share of the work (`half_speed` adds nothing to it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lightning_predict.base.interval import Interval
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect
from lightning_predict.kernels.measured_scaling import WorkTimes
from lightning_predict.kernels.timing import KernelModels
from lightning_predict.kernels.translation import work_items
from lightning_predict.layouts.layout_steps import MultiGpuStep
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.record.trace import Memory, Operation, Parameter, Phase, TensorInfo, Trace
from lightning_predict.timeline.host import UNKNOWN_HOST, Host
from lightning_predict.timeline.step_prediction import StepPrediction
from tests.kernels.example_models import half_speed

SAMPLES, LENGTH, HIDDEN, HEADS = 4, 256, 1024, 8
TOKENS = SAMPLES * LENGTH
STREAM_BYTES = TOKENS * HIDDEN * 4
WEIGHT_BYTES = 4 * HIDDEN * HIDDEN * 4  # three widths to the heads, one back
MODELS = half_speed(
    "linear/float32",
    "attention/float32",
    "attention_backward/float32",
    "layer_norm/float32",
    "layer_norm_backward/float32",
    "transfer/float32",
)

STREAM = TensorInfo((SAMPLES, LENGTH, HIDDEN), "float32")
ROWS = TensorInfo((TOKENS, HIDDEN), "float32")
WIDE = TensorInfo((TOKENS, 3 * HIDDEN), "float32")
HEAD = TensorInfo((SAMPLES, HEADS, LENGTH, HIDDEN // HEADS), "float32")


def matrix(*shape: int) -> TensorInfo:
    return TensorInfo(shape, "float32")


def block(name: str) -> Iterator[tuple[Operation, float]]:
    """Forward operations with their seconds."""

    def did(module: str, operation: str, *inputs: TensorInfo) -> Operation:
        return Operation(name=operation, phase="forward", inputs=inputs, module=f"{name}.{module}")

    yield did("norm", "aten::native_layer_norm", STREAM), 0.1
    yield did("attention.project", "aten::mm", ROWS, matrix(HIDDEN, 3 * HIDDEN)), 1.0
    yield did("attention", "aten::scaled_dot_product_attention", HEAD, HEAD, HEAD), 1.0
    yield did("attention.output", "aten::mm", ROWS, matrix(HIDDEN, HIDDEN)), 1.0


def block_backward(name: str) -> Iterator[tuple[Operation, float]]:
    def did(module: str, operation: str, *inputs: TensorInfo) -> Operation:
        return Operation(name=operation, phase="backward", inputs=inputs, module=f"{name}.{module}")

    yield did("attention", "aten::scaled_dot_product_attention_backward", HEAD, HEAD, HEAD), 2.0
    yield did("attention.project", "aten::mm", WIDE, matrix(3 * HIDDEN, HIDDEN)), 1.0
    yield did("attention.project", "aten::mm", matrix(3 * HIDDEN, TOKENS), ROWS), 1.0
    yield did("norm", "aten::native_layer_norm_backward", STREAM, STREAM), 0.2


def trace_of(blocks: int, *, trains: bool = True) -> tuple[Trace, list[float]]:
    """A model of the given number of blocks, and the seconds of its operations."""
    names = [f"blocks.{position}" for position in range(blocks)]
    work = [each for name in names for each in block(name)]
    if trains:
        work += [each for name in reversed(names) for each in block_backward(name)]
        update = TensorInfo((blocks * WEIGHT_BYTES // 4,), "float32")
        work.append((Operation(name="aten::_fused_sgd_", phase="optimizer", inputs=(update, update, update)), 0.5))
    trace = Trace(
        operations=tuple(operation for operation, _ in work),
        device="cuda",
        recorder="kineto",
        samples=SAMPLES,
        parameters=tuple(parameter for name in names for parameter in parameters(name)),
        memory=Memory(
            parameter_bytes=blocks * WEIGHT_BYTES,
            gradient_bytes=blocks * WEIGHT_BYTES,
            optimizer_state_bytes=2 * blocks * WEIGHT_BYTES,
        ),
    )
    return trace, [seconds for _, seconds in work]


def parameters(name: str) -> Iterator[Parameter]:
    yield Parameter(name=f"{name}.attention.project.weight", shape=(3 * HIDDEN, HIDDEN), dtype="float32")
    yield Parameter(name=f"{name}.attention.output.weight", shape=(HIDDEN, HIDDEN), dtype="float32")


def timed_as(trace: Trace, seconds: list[float]) -> WorkTimes:
    """The trace's work at these seconds, with 10 % around them."""
    items = work_items(trace)
    values = np.array([seconds])
    assert len(items) == len(seconds)
    phases: tuple[Phase, ...] = tuple(operation.phase for operation in trace.operations)
    return WorkTimes(
        items=items,
        families=("any",) * len(items),
        phases=phases,
        interval=Interval.from_factor(values, 1.1),
        shares={"mlp": np.ones_like(values)},
    )


def on_layouts(
    trace: Trace,
    timed: WorkTimes,
    gpus: Sequence[Gpu],
    steps: Sequence[StepPrediction],
    layouts: Sequence[Layout],
    strategy: Strategy,
    *,
    interconnect: Interconnect = CATALOGUE,
    models: KernelModels | None = None,
    host: Host = UNKNOWN_HOST,
) -> tuple[StepPrediction, ...]:
    """Return the step on each layout; `steps` has the step on a single GPU, for each of `gpus`."""
    shared, rows = (
        MultiGpuStep(trace, timed, gpus, models=models, host=host),
        {gpu.name: i for i, gpu in enumerate(gpus)},
    )
    own = [rows[layout.gpu.name] for layout in layouts]
    return tuple(
        shared.on_layout(layout, steps[row], row, strategy, interconnect)
        for layout, row in zip(layouts, own, strict=True)
    )


NORMS_REL = 0.04
"""A norm of a part of the rows takes more than that part of its time, as fewer rows fill fewer multiprocessors: at most
all of it, 0.3 of the 7.3 s of a block."""
