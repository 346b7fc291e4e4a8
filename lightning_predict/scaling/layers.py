"""Layers of a training step and their complexity, as the per-layer regressions take them.

The complexity of a layer is the work that its shape asks for, whatever the GPU (Ardagna et al., SBAC-PAD 2018): of a
convolution or a fully connected layer its multiply-adds, batch * C_in * k² * C_out * H_out * W_out, which the backward
pass needs twice; of pooling the window for each output; of activations, normalisations, concatenations and losses a few
operations an element. Element-wise operations and updates of parameters, which today's steps have too, count their
elements. Example::

    >>> from lightning_predict.tracing.records import Operation, TensorInfo, Trace
    >>> a, b = TensorInfo((8, 16), "float32"), TensorInfo((16, 4), "float32")
    >>> product = Operation(name="aten::mm", phase="forward", inputs=(a, b))
    >>> layers_of(Trace(operations=(product,), device="cpu", recorder="dispatch"))
    (Layer(kind='fully connected', direction='forward', complexity=512.0),)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

from lightning_predict.kernels.free_operations import is_free
from lightning_predict.kernels.operations import Problem, batch_of, operation_kind
from lightning_predict.kernels.translation import translate
from lightning_predict.tracing.records import Flags, Operation, Phase, Trace

LayerKind = Literal[
    "convolution",
    "fully connected",
    "recurrent",
    "attention",
    "pooling",
    "activation",
    "normalisation",
    "concatenation",
    "loss",
    "element-wise",
    "update",
]

Direction = Literal["forward", "backward"]

FLOPS_PER_MULTIPLY_ADD: Final = 2

PRODUCTS: Final[Mapping[str, LayerKind]] = {
    "conv2d": "convolution",
    "linear": "fully connected",
    "bmm": "fully connected",
    "lstm": "recurrent",
    "gru": "recurrent",
    "rnn": "recurrent",
    "attention": "attention",
}
"""Kind of layer by the first word of the operation that it computes, where matrix units do the work."""

_NAMES: Final[Mapping[LayerKind, str]] = {
    "pooling": "max_pool avg_pool adaptive_max_pool _adaptive_avg_pool adaptive_avg_pool",
    "activation": "relu threshold gelu silu sigmoid tanh hardtanh leaky_relu elu hardswish mish softplus",
    "normalisation": "native_batch_norm cudnn_batch_norm _native_batch_norm_legit batch_norm _batch_norm_with_update "
    "native_group_norm native_layer_norm _fused_rms_norm",
    "concatenation": "cat stack",
    "loss": "_softmax _log_softmax nll_loss cross_entropy mse_loss binary_cross_entropy",
}
"""How the names of other operations begin, without `aten::`."""

PER_ELEMENT: Final[Mapping[tuple[LayerKind, Direction], float]] = {
    ("activation", "forward"): 3,
    ("activation", "backward"): 4,
    ("normalisation", "forward"): 5,
    ("normalisation", "backward"): 8,
    ("loss", "forward"): 4,
    ("loss", "backward"): 1,
}
"""Operations an element, where the published table counts more than one."""


@final
@dataclass(frozen=True, slots=True)
class Layer:
    """What one operation of a step asks for.

    Attributes:
        kind: Kind of layer.
        direction: Forward or backward pass; updates are forward.
        complexity: Multiply-adds of products, operations of the rest.
    """

    kind: LayerKind
    direction: Direction
    complexity: float


def layers_of(trace: Trace) -> tuple[Layer, ...]:
    """The layers of a step, one for each operation that computes something."""
    return tuple(layer for _, layer in layer_operations(trace))


def layer_operations(trace: Trace) -> tuple[tuple[Operation, Layer], ...]:
    """The operations of a step that compute something, each with its layer."""
    pairs = ((operation, layer_of(operation, trace.flags)) for operation in trace.operations)
    return tuple((operation, layer) for operation, layer in pairs if layer is not None)


def layer_of(operation: Operation, flags: Flags = Flags()) -> Layer | None:  # noqa: B008  # frozen
    """The layer of an operation; None where it computes nothing.

    Args:
        operation: Of a trace.
        flags: Of the trace.
    """
    if is_free(operation):
        return None
    direction = _direction(operation.phase)
    problems = translate(operation, flags)
    products = [one for one in problems if operation_kind(one.operation).units == "tensor"]
    if products:
        return Layer(_product_kind(products[0]), direction, _multiply_adds(products))
    kind: LayerKind = "update" if operation.phase == "optimizer" else _kind(operation.name)
    if kind == "pooling":
        complexity = _pooled(operation, direction)
    else:
        complexity = PER_ELEMENT.get((kind, direction), 1.0) * _elements(operation)
    return Layer(kind, direction, complexity) if complexity else None


def _direction(phase: Phase) -> Direction:
    return "backward" if phase == "backward" else "forward"


def _product_kind(problem: Problem) -> LayerKind:
    return PRODUCTS.get(problem.operation.split("_")[0], "fully connected")


def _multiply_adds(problems: list[Problem]) -> float:
    return math.fsum(float(batch_of([one]).flops[0]) for one in problems) / FLOPS_PER_MULTIPLY_ADD


def _kind(name: str) -> LayerKind:
    plain = name.removeprefix("aten::")
    for kind, beginnings in _NAMES.items():
        if plain.startswith(tuple(beginnings.split())):
            return kind
    return "element-wise"


def _elements(operation: Operation) -> float:
    """Elements of the largest tensor that it reads or writes."""
    return float(max((tensor.elements for tensor in (*operation.inputs, *operation.outputs)), default=0))


def _pooled(operation: Operation, direction: Direction) -> float:
    """Window times outputs, and an operation more an output in the backward pass, whose first input they are."""
    shape = operation.inputs[0].shape if operation.inputs else ()
    window, steps = _sizes(operation, "kernel_size"), _sizes(operation, "stride")
    if direction == "backward":
        outputs = float(math.prod(shape))
    elif operation.outputs:
        outputs = float(operation.outputs[0].elements)
    else:
        outputs = math.prod(shape) / (math.prod(steps or window) or 1)
    # Without a window (adaptive pooling) all inputs are read once.
    reads = outputs * math.prod(window) if window else max(_elements(operation), outputs)
    return reads + (outputs if direction == "backward" else 0.0)


def _sizes(operation: Operation, name: str) -> tuple[float, ...]:
    """An argument as one number for each of two dimensions; empty where it is not given."""
    value = operation.arguments.get(name)
    if not value:
        return ()
    numbers = tuple(float(item) for item in value) if isinstance(value, (list, tuple)) else (float(value),)
    return numbers * 2 if len(numbers) == 1 else numbers
