"""Per-layer regression: the device time of each kind of layer as a linear function of its work, summed over a step.

Gianniti, Zhang and Ardagna (SBAC-PAD 2018) fit t = b0 + b1 c for each kind of layer to a profile of one GPU; c is the
number of operations of the layer. Forward and backward are separate kinds. Other networks with the same kinds of layers
are then predicted on this GPU. Here, a layer is a recorded call, and c is the FLOPs of a matmul or convolution in one
dtype, or the memory traffic of another call. Recordings of a GPU or a CPU are fitted together. Example::

    regression = fit_layers([*layers_of(googlenet), *layers_of(vgg)])
    estimate = regression.predict(alexnet)
    estimate.seconds, estimate.unknown     # device seconds of a step, and kinds without a recording
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels.operations import OperationShape, batch_shapes, operation_spec
from lightning_predict.kernels.translation import WorkItem, work_items
from lightning_predict.tracing.trace import Operation, Trace

MIN_LAYERS: Final = 2
"""Minimum number of distinct amounts of work for fitting a slope."""


@final
@dataclass(frozen=True, slots=True)
class TimedLayer:
    """A recorded call, with its amount of work and its time.

    Attributes:
        kind: Kind of layer, from its operations, the dtype of matmuls and convolutions, and the phase.
        work: FLOPs, or memory traffic in bytes.
        seconds: Total time of the call's kernels, or of the call on a CPU.
        is_product: Whether `work` is FLOPs.
    """

    kind: str
    work: float
    seconds: float
    is_product: bool = False


@final
@dataclass(frozen=True, slots=True)
class Line:
    """Linear model of a kind of layer: seconds = `intercept` + `slope` x work.

    Attributes:
        intercept: Seconds of a layer with no work.
        slope: Seconds per FLOP or per byte.
        layers: Number of layers in the fit.
        most_work: Maximum work of a layer in the fit.
    """

    intercept: float
    slope: float
    layers: int
    most_work: float

    def seconds(self, work: float) -> float:
        """Return the predicted time of a layer."""
        return self.intercept + self.slope * work


@final
@dataclass(frozen=True, slots=True)
class NetworkEstimate:
    """Device time of a neural network, predicted from its layers.

    Attributes:
        seconds: Device time of a step, excluding layers of unknown kinds.
        layers: Number of predicted layers.
        unknown: Number of calls of unknown kinds, by kind.
        beyond: Ratio of a kind's largest work to the largest work in the fit, for kinds where it exceeds 1.
    """

    seconds: float
    layers: int
    unknown: Mapping[str, int]
    beyond: Mapping[str, float]


@final
@dataclass(frozen=True, slots=True)
class LayerRegression:
    """Linear model of each kind of layer."""

    lines: Mapping[str, Line]

    def predict(self, trace: Trace) -> NetworkEstimate:
        """Predict the device time of a step as the sum of its layers, without the kernels of the trace."""
        seconds, known = 0.0, 0
        unknown: Counter[str] = Counter()
        beyond: dict[str, float] = {}
        for _, _, layer in _calls(trace):
            line = self.lines.get(layer.kind)
            if line is None:
                unknown[layer.kind] += 1
                continue
            seconds, known = seconds + line.seconds(layer.work), known + 1
            if layer.work > line.most_work > 0:
                beyond[layer.kind] = max(beyond.get(layer.kind, 0.0), layer.work / line.most_work)
        return NetworkEstimate(seconds, known, dict(unknown), beyond)


def layers_of(trace: Trace, seconds: Sequence[float] | None = None) -> tuple[TimedLayer, ...]:
    """Return the layers of a step with their times.

    Args:
        trace: A recording on a GPU, or a profile of a CPU.
        seconds: Measured time of each of the `work_items`; None uses the recorded times.

    Raises:
        InvalidArgumentError: The recording has no times.
    """
    found = []
    for place, item, layer in _calls(trace):
        times = [time for one in item.operations for time in recorded_times(trace, trace.operations[one])]
        if seconds is not None or times:
            found.append(replace(layer, seconds=math.fsum(times) if seconds is None else seconds[place]))
    if not found:
        raise InvalidArgumentError(
            "The recording holds no kernels of operations with shapes; lines over layers need a step that was recorded "
            "on a GPU, or torch.profiler's record_shapes=True on a CPU."
        )
    return tuple(found)


def recorded_times(trace: Trace, operation: Operation) -> list[float]:
    """Return the times of an operation's kernels, or its time on a CPU."""
    if trace.device == "cpu":
        return [] if operation.host_seconds is None else [operation.host_seconds]
    return [kernel.seconds for kernel in operation.kernels]


def fit_layers(layers: Iterable[TimedLayer]) -> LayerRegression:
    """Fit a line to each kind of layer by least squares, without negative coefficients.

    If all layers of a kind have equal work, or the slope is not positive, the line has the slope of all matmuls and
    convolutions, or of all other layers.
    """
    layers = tuple(layers)
    slopes = {unit: _slope([one for one in layers if one.is_product == unit]) for unit in (False, True)}
    by_kind: dict[str, list[TimedLayer]] = defaultdict(list)
    for layer in layers:
        by_kind[layer.kind].append(layer)
    return LayerRegression({kind: _line(own, slopes[own[0].is_product]) for kind, own in sorted(by_kind.items())})


def _line(layers: list[TimedLayer], common_slope: float) -> Line:
    work, seconds = math.fsum(one.work for one in layers), math.fsum(one.seconds for one in layers)
    slope = _slope(layers) or common_slope
    intercept = (seconds - slope * work) / len(layers)
    if (intercept < 0 or not slope) and work:
        squares = math.fsum(one.work**2 for one in layers)
        slope, intercept = math.fsum(one.work * one.seconds for one in layers) / squares, 0.0
    return Line(intercept, slope, len(layers), max(one.work for one in layers))


def _slope(layers: Sequence[TimedLayer]) -> float:
    """Return the slope of a line with an intercept; 0 if it is not positive, or all layers have equal work."""
    if len({layer.work for layer in layers}) < MIN_LAYERS:
        return 0.0
    work = np.array([layer.work for layer in layers])  # (layers,)
    slope = float(np.polyfit(work / work.max(), [layer.seconds for layer in layers], 1)[0] / work.max())
    return max(0.0, slope)


def _calls(trace: Trace) -> Iterator[tuple[int, WorkItem, TimedLayer]]:
    """Yield the calls with a known amount of work, as (position, work item, layer without its time)."""
    for place, item in enumerate(work_items(trace)):
        if item.problems and not item.unknown:
            phase = trace.operations[item.operations[0]].phase
            # A bias, or the missing input gradient of a first layer, does not make a separate kind.
            products = [one for one in item.problems if operation_spec(one.operation).units == "tensor"]
            names = {one.operation.partition("_backward")[0] for one in products or item.problems}
            dtypes = {"float32" if trace.device == "cpu" and one.dtype == "tf32" else one.dtype for one in products}
            kind = f"{'+'.join(sorted(names))} ({', '.join([*sorted(dtypes), phase])})"
            yield place, item, TimedLayer(kind, math.fsum(map(_work, products or item.problems)), 0.0, bool(products))


def _work(problem: OperationShape) -> float:
    """Return the FLOPs of a matmul or convolution, or the bytes of another operation."""
    batch = batch_shapes([problem])
    return float((batch.flops if batch.spec.units == "tensor" else batch.bytes_moved)[0])
