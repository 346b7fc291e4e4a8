"""A trace of transformer blocks whose times are round numbers.

Each block: a norm of 0.1 s, the projection to queries, keys and values (1 s), attention (1 s) and the projection back
(1 s); backward 0.2 s of the norm, 2 s of attention, 1 s for the projection's input and 1 s for its weight. The update
takes 0.5 s, independent of the parameters. Four samples of 256 tokens, 1,024 wide, in 8 heads, so that large products
stay bound by computing, and every time goes by the share of the work (`half_speed` adds nothing to it).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from lightning_predict.base.interval import Interval
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import Interconnect
from lightning_predict.kernels.measured_scaling import WorkTimes
from lightning_predict.kernels.translation import work_items
from lightning_predict.layouts.layout_steps import MultiGpuStep
from lightning_predict.layouts.overlap import OVERLAP_COSTS, slowest_of
from lightning_predict.layouts.strategy import Strategy, parse_strategy
from lightning_predict.record.trace import Memory, Operation, Parameter, Phase, TensorInfo, Trace
from lightning_predict.timeline.host import UNKNOWN_HOST, Host
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps
from tests.kernels.example_models import half_speed

A100 = gpu("A100-SXM-80GB")
FAST = Interconnect(intra_node_bytes_per_second=1e15, inter_node_bytes_per_second=1e15)
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


def step_on(
    model: int | Trace,
    strategy: Strategy | str,
    layout: int | Layout,
    *,
    seconds: Sequence[float] | None = None,
    links: Interconnect = FAST,
    step: StepPrediction | None = None,
    host: Host = UNKNOWN_HOST,
    trains: bool = True,
    timed: WorkTimes | None = None,
) -> StepPrediction:
    """Predict a step on a layout.

    Args:
        model: Number of blocks, or a trace.
        strategy: Parallel strategy, also as a text.
        layout: Number of A100s in one machine, or a layout.
        seconds: Seconds of each operation; None for those of `trace_of`.
        links: Bandwidths of the links; by default, communication takes no time.
        step: The step on one GPU; None predicts it.
        host: Assumed host.
        trains: Whether a number of blocks has a backward pass.
        timed: Times of the operations; None for those of `seconds`.
    """
    trace, usual = (model, None) if isinstance(model, Trace) else trace_of(model, trains=trains)
    times = timed or timed_as(trace, list(seconds or usual or usual_seconds(trace)))
    layout = Layout(A100, layout) if isinstance(layout, int) else layout
    step = step or predict_steps(trace, times, [layout.gpu], host=host)[0]
    shared = MultiGpuStep(trace, times, [layout.gpu], models=MODELS, host=host)
    return shared.on_layout(layout, step, 0, parse_strategy(strategy), links)


def usual_seconds(trace: Trace) -> list[float]:
    """Return the seconds of a trace with the operations of `trace_of`, which may have other modules or parameters."""
    blocks = sum(operation.name == "aten::scaled_dot_product_attention" for operation in trace.operations)
    return trace_of(blocks)[1]


def with_wait(seconds: float, count: int) -> float:
    """Return the time of a step with the wait for the slowest of `count` GPUs, whose mean speeds differ little."""
    return seconds * (1 + float(OVERLAP_COSTS.speed_deviation(np.array(seconds))) * slowest_of(count))


def mixture(blocks: int, experts: int) -> tuple[Trace, list[float]]:
    """Each block has experts of 4 MiB each, in one parameter, that 1,024 routed tokens visit in 0.5 s."""
    trace, seconds = trace_of(blocks)
    names = [f"blocks.{block}.experts" for block in range(blocks)]
    tables = tuple(Parameter(name=f"{name}.weight", shape=(experts, HIDDEN, HIDDEN), dtype="float32") for name in names)
    inputs = matrix(TOKENS, HIDDEN), matrix(experts, HIDDEN, HIDDEN)
    visits = [Operation(name="aten::_grouped_mm", phase="forward", module=name, inputs=inputs) for name in names]
    forward, added = 4 * blocks, blocks * experts * EXPERT_BYTES
    memory = replace(
        trace.memory,
        parameter_bytes=(trace.memory.parameter_bytes or 0) + added,
        gradient_bytes=(trace.memory.gradient_bytes or 0) + added,
    )
    return (
        replace(
            trace,
            operations=(*trace.operations[:forward], *visits, *trace.operations[forward:]),
            parameters=(*trace.parameters, *tables),
            memory=memory,
        ),
        [*seconds[:forward], *([0.5] * blocks), *seconds[forward:]],
    )


EXPERT_BYTES = HIDDEN * HIDDEN * 4

NORMS_REL = 0.04
"""A norm of a part of the rows takes more than that part of its time, as fewer rows fill fewer multiprocessors: at most
all of it, 0.3 of the 7.3 s of a block."""
