"""Per-layer regression: t = β0 + β1 * complexity for each kind of layer, pass and GPU; a network is the sum.

So a network that was never run is predicted from layers of others (Ardagna et al., SBAC-PAD 2018). The times come from
traces with measured kernels, or from any profile.

The complexity of a layer is the work that its shape asks for, whatever the GPU (Ardagna et al., SBAC-PAD 2018): of a
convolution or a fully connected layer its multiply-adds, batch * C_in * k² * C_out * H_out * W_out, which the backward
pass needs twice; of pooling the window for each output; of activations, normalisations, concatenations and losses a few
operations per element. Element-wise operations and updates of parameters, which today's steps have too, count their
elements. Example::

    >>> times = [LayerTime(layer=Layer("convolution", "forward", c), gpu="T4", seconds=1e-5 + 1e-12 * c)
    ...          for c in (1e6, 1e7, 1e8)]
    >>> regression = fit_layers(times)
    >>> estimate = regression.predict([Layer("convolution", "forward", 1e9)] * 2, "T4")
    >>> round(estimate.seconds, 6), estimate.extrapolated_share
    (0.00202, 1.0)
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np
import numpy.typing as npt

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.interval import Interval
from lightning_predict.kernels.operations import Problem, batch_of, operation_kind
from lightning_predict.kernels.traffic import is_free
from lightning_predict.kernels.translation import translate
from lightning_predict.tracing.trace import Flags, Operation, Phase, Trace

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
"""Operations per element, where the published table counts more than one."""


@final
@dataclass(frozen=True, slots=True)
class Layer:
    """The work of one operation of a step.

    Attributes:
        kind: Kind of layer.
        direction: Forward or backward pass; updates are forward.
        complexity: Multiply-adds of products, operations of the rest.
    """

    kind: LayerKind
    direction: Direction
    complexity: float


def layers_of(trace: Trace) -> tuple[Layer, ...]:
    """Return the layers of a step, one for each operation that computes something."""
    return tuple(layer for _, layer in layer_operations(trace))


def layer_operations(trace: Trace) -> tuple[tuple[Operation, Layer], ...]:
    """Return the operations of a step that compute something, each with its layer."""
    pairs = ((operation, layer_of(operation, trace.flags)) for operation in trace.operations)
    return tuple((operation, layer) for operation, layer in pairs if layer is not None)


def layer_of(operation: Operation, flags: Flags = Flags()) -> Layer | None:  # noqa: B008  # frozen
    """Return the layer of an operation; None if it computes nothing."""
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
    """Count elements of the largest tensor that it reads or writes."""
    return float(max((tensor.elements for tensor in (*operation.inputs, *operation.outputs)), default=0))


def _pooled(operation: Operation, direction: Direction) -> float:
    """Multiply window by outputs; the backward pass, whose first input they are, has one more operation per output."""
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
    """Return an argument as one number for each of two dimensions; empty where it is not given."""
    value = operation.arguments.get(name)
    if not value:
        return ()
    numbers = tuple(float(item) for item in value) if isinstance(value, (list, tuple)) else (float(value),)
    return numbers * 2 if len(numbers) == 1 else numbers


FloatArray = npt.NDArray[np.float64]
Group = tuple[LayerKind, Direction]

NORMAL_QUANTILE: Final = 1.645
"""Of a 90 % interval."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """A layer as measured.

    Attributes:
        layer: What it computes.
        gpu: Where.
        seconds: Time that it took.
    """

    layer: Layer
    gpu: str
    seconds: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLine:
    """t = constant + slope * complexity of one kind of layer and pass on one GPU.

    Attributes:
        constant: Seconds of a layer of no complexity; not negative.
        slope: Seconds for a unit of complexity; not negative.
        spread: Standard deviation of actual / fitted - 1; where absolute errors were minimised, long layers count more.
        count: Layers that were fitted.
        lowest: Least complexity that was fitted.
        highest: Largest complexity that was fitted.
    """

    constant: float
    slope: float
    spread: float
    count: int
    lowest: float
    highest: float

    def at(self, complexity: float) -> float:
        """Return the seconds of a layer."""
        return self.constant + self.slope * complexity

    def at_all(self, complexity: FloatArray) -> FloatArray:
        """Return the seconds of layers, shape (layers,)."""
        return self.constant + self.slope * complexity


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LayersEstimate:
    """The sum over the layers of a network.

    Attributes:
        time: Seconds of the layers whose kind was fitted.
        uncovered: Layers by kind and pass that no line is known for; their time is not in the sum.
        extrapolated_share: Share of the seconds in layers outside the complexities that were fitted.
    """

    time: Interval[float]
    uncovered: Mapping[Group, int]
    extrapolated_share: float

    @property
    def seconds(self) -> float:
        """Predicted seconds of the layers whose kind was fitted."""
        return self.time.middle

    @property
    def note(self) -> str | None:
        """Say what is not in the sum; None if nothing is missing."""
        if not self.uncovered:
            return None
        named = ", ".join(f"{count} {kind} ({direction})" for (kind, direction), count in self.uncovered.items())
        return f"Layers without a regression, which are left out: {named}."


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRegression:
    """Lines by GPU, kind of layer and pass."""

    lines: Mapping[tuple[str, LayerKind, Direction], LayerLine]

    @property
    def gpus(self) -> tuple[str, ...]:
        """GPUs that layers were measured on."""
        return tuple(dict.fromkeys(gpu for gpu, _, _ in self.lines))

    def predict(self, layers: Iterable[Layer], gpu: str) -> LayersEstimate:
        """Predict the seconds of a network, forward and backward, as the sum of its layers.

        The errors of layers of one kind are taken to be the same, those of different kinds independent.

        Args:
            layers: Of the network, from `layers_of`.
            gpu: Name of a GPU that layers were measured on.

        Raises:
            InvalidArgumentError: No layer was measured on that GPU.
        """
        if gpu not in self.gpus:
            raise InvalidArgumentError(f"No layer was measured on {gpu!r}; there are {', '.join(self.gpus) or 'none'}.")
        sums: dict[Group, float] = defaultdict(float)
        uncovered: Counter[Group] = Counter()
        outside = 0.0
        for layer in layers:
            group = (layer.kind, layer.direction)
            line = self.lines.get((gpu, *group))
            if line is None:
                uncovered[group] += 1
                continue
            seconds = line.at(layer.complexity)
            sums[group] += seconds
            outside += 0.0 if line.lowest <= layer.complexity <= line.highest else seconds
        total = math.fsum(sums.values())
        half = NORMAL_QUANTILE * math.hypot(
            *(self.lines[gpu, group[0], group[1]].spread * value for group, value in sums.items())
        )
        return LayersEstimate(
            time=Interval(total - half, total, total + half).at_least(0.0),
            uncovered=dict(uncovered),
            extrapolated_share=outside / total if total else 0.0,
        )


def fit_layers(times: Sequence[LayerTime], *, relative: bool = False) -> LayerRegression:
    """Fit least squares for each GPU, kind of layer and pass.

    Args:
        times: Layers as measured.
        relative: Minimise relative errors, so that short layers count as much as long ones. Absolute errors otherwise,
            as published: the long layers make the network's time.

    Raises:
        InvalidArgumentError: No times, or one that is not above 0.
    """
    if not times:
        raise InvalidArgumentError("There are no layer times to fit; record a step with measured kernels (on CUDA).")
    groups: dict[tuple[str, LayerKind, Direction], list[LayerTime]] = defaultdict(list)
    for one in times:
        if not (math.isfinite(one.seconds) and one.seconds > 0):
            raise InvalidArgumentError(f"A {one.layer.kind} layer took {one.seconds!r} seconds; expected above 0.")
        groups[one.gpu, one.layer.kind, one.layer.direction].append(one)
    return LayerRegression(
        lines={
            key: fit_line(
                np.array([one.layer.complexity for one in members]),
                np.array([one.seconds for one in members]),
                relative=relative,
            )
            for key, members in groups.items()
        }
    )


def fit_line(complexity: FloatArray, seconds: FloatArray, *, relative: bool = False) -> LayerLine:
    """Fit t = β0 + β1 * complexity with neither of them negative.

    Args:
        complexity: Of each layer, shape (layers,).
        seconds: Of each layer, shape (layers,).
        relative: Minimise relative errors.
    """
    weights = 1.0 / seconds if relative else np.ones_like(seconds)
    size = float(np.abs(complexity).max()) or 1.0  # so that 1e12 multiply-adds are as 1
    design = np.column_stack([weights, weights * complexity / size])  # (layers, 2)
    target = seconds * weights
    constant, slope = _not_negative(design, target)
    slope /= size
    fitted = constant + slope * complexity
    sizes = 1.0 / fitted if relative else np.ones_like(fitted)
    return LayerLine(
        constant=constant,
        slope=slope,
        spread=float(np.sqrt((((seconds - fitted) * sizes) ** 2).mean() / ((fitted * sizes) ** 2).mean())),
        count=len(seconds),
        lowest=float(complexity.min()),
        highest=float(complexity.max()),
    )


def _not_negative(design: FloatArray, target: FloatArray) -> tuple[float, float]:
    """Fit least squares with two coefficients of at least 0: else the better of each alone."""
    both = np.linalg.lstsq(design, target, rcond=None)[0]
    if (both >= 0).all() and np.linalg.matrix_rank(design) == 2:
        return float(both[0]), float(both[1])
    alone = [max(0.0, float(column @ target / (column @ column))) if column.any() else 0.0 for column in design.T]
    misses = [float(((target - column * value) ** 2).sum()) for column, value in zip(design.T, alone, strict=True)]
    return (alone[0], 0.0) if misses[0] < misses[1] else (0.0, alone[1])
