"""Per-layer regression: the device time of each kind of layer as a linear function of its work, summed over a step.

Gianniti, Zhang and Ardagna (SBAC-PAD 2018) fit t = b0 + b1 c for each kind of layer to a profile of one GPU; c is the
number of operations of the layer. Forward and backward are separate kinds. Other networks with the same kinds of layers
are then predicted on this GPU. Here, a layer is a recorded call, and c is the FLOPs of a matmul or convolution, or the
memory traffic of another call. Kernels of several recordings are fitted together. Example::

    regression = fit_layers([*layers_of(googlenet), *layers_of(vgg)])
    estimate = regression.predict(alexnet)
    estimate.seconds, estimate.unknown     # device seconds of a step, and kinds without a recording
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels.operations import OperationShape, batch_shapes, operation_spec
from lightning_predict.kernels.translation import WorkItem, work_items
from lightning_predict.tracing.trace import Trace

MIN_LAYERS: Final = 2
"""Minimum number of distinct amounts of work for fitting a slope."""


@final
@dataclass(frozen=True, slots=True)
class TimedLayer:
    """A recorded call, with its amount of work and its time.

    Attributes:
        kind: Kind of layer, from the names of its operations and the phase (forward or backward).
        work: FLOPs, or memory traffic in bytes.
        seconds: Total time of the call's kernels.
    """

    kind: str
    work: float
    seconds: float


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
        """Return the predicted time of a layer, at least 0."""
        return max(0.0, self.intercept + self.slope * work)


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
        for _, _, kind, work in _calls(trace):
            line = self.lines.get(kind)
            if line is None:
                unknown[kind] += 1
                continue
            seconds, known = seconds + line.seconds(work), known + 1
            if work > line.most_work > 0:
                beyond[kind] = max(beyond.get(kind, 0.0), work / line.most_work)
        return NetworkEstimate(seconds, known, dict(unknown), beyond)


def layers_of(trace: Trace, seconds: Sequence[float] | None = None) -> tuple[TimedLayer, ...]:
    """Return the layers of a step with the time of their kernels.

    Args:
        trace: A recording on a GPU.
        seconds: Measured time of each of the `work_items`; None uses the recorded kernels.

    Raises:
        InvalidArgumentError: The recording has no kernels.
    """
    found = []
    for place, item, kind, work in _calls(trace):
        kernels = [kernel.seconds for one in item.operations for kernel in trace.operations[one].kernels]
        if seconds is not None or kernels:
            found.append(TimedLayer(kind, work, math.fsum(kernels) if seconds is None else seconds[place]))
    if not found:
        raise InvalidArgumentError(
            "The recording holds no kernels of operations with shapes; lines over layers need a step that was recorded "
            "on a GPU."
        )
    return tuple(found)


def fit_layers(layers: Iterable[TimedLayer]) -> LayerRegression:
    """Fit a line to each kind of layer by least squares.

    If all layers of a kind have equal work, or the slope is not positive, the line is the mean time per FLOP or byte.
    """
    by_kind: dict[str, list[TimedLayer]] = defaultdict(list)
    for layer in layers:
        by_kind[layer.kind].append(layer)
    return LayerRegression({kind: _line(own) for kind, own in sorted(by_kind.items())})


def _line(layers: list[TimedLayer]) -> Line:
    work = np.array([layer.work for layer in layers])  # (layers,)
    seconds = np.array([layer.seconds for layer in layers])
    most, slope, intercept = float(work.max()), 0.0, float(seconds.mean())
    if len(set(work.tolist())) >= MIN_LAYERS:
        slope, intercept = map(float, np.polyfit(work / most, seconds, 1) / (most, 1.0))
    if slope <= 0 and most > 0:
        slope, intercept = float(seconds.sum() / work.sum()), 0.0
    return Line(intercept, slope, len(layers), most)


def _calls(trace: Trace) -> Iterator[tuple[int, WorkItem, str, float]]:
    """Yield the calls with a known amount of work, as (position, work item, kind, amount of work)."""
    for place, item in enumerate(work_items(trace)):
        if item.problems and not item.unknown:
            phase = trace.operations[item.operations[0]].phase
            # A bias, or the missing input gradient of a first layer, does not make a separate kind.
            products = [one for one in item.problems if operation_spec(one.operation).units == "tensor"]
            names = "+".join(sorted({one.operation.partition("_backward")[0] for one in products or item.problems}))
            yield place, item, f"{names} ({phase})", math.fsum(map(_work, products or item.problems))


def _work(problem: OperationShape) -> float:
    """Return the FLOPs of a matmul or convolution, or the bytes of another operation."""
    batch = batch_shapes([problem])
    return float((batch.flops if batch.spec.units == "tensor" else batch.bytes_moved)[0])
