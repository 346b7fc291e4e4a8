"""Per-layer regression: device time of each kind of layer as a linear function of its work, summed over a network.

Gianniti, Zhang and Ardagna (SBAC-PAD 2018) fit t = b0 + b1 c for each kind of layer to a profile of one GPU. Forward
and backward are separate kinds; c is the number of operations of the layer. Other networks with the same kinds of
layers are then predicted on that GPU. Here, a layer is a recorded call. c is its FLOPs for a matrix product or a
convolution, otherwise its memory traffic in bytes. Kernels of several recordings are fitted together. Example::

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
"""Minimum number of distinct work values for a slope."""


@final
@dataclass(frozen=True, slots=True)
class TimedLayer:
    """Call of a step, with its time.

    Attributes:
        kind: Kind, from the names of its operations and the phase (forward or backward).
        work: Its FLOPs, or its memory traffic in bytes.
        seconds: Time of its kernels.
    """

    kind: str
    work: float
    seconds: float


@final
@dataclass(frozen=True, slots=True)
class Line:
    """Linear model of a kind of layer: seconds = `intercept` + `slope` x work.

    Attributes:
        intercept: Seconds of a layer without any work.
        slope: Seconds per FLOP or byte.
        layers: Number of fitted layers.
        most_work: Maximum work among them.
    """

    intercept: float
    slope: float
    layers: int
    most_work: float

    def seconds(self, work: float) -> float:
        """Return the time of a layer, at least 0."""
        return max(0.0, self.intercept + self.slope * work)


@final
@dataclass(frozen=True, slots=True)
class NetworkEstimate:
    """Network predicted from layers.

    Attributes:
        seconds: Device time of a step, without layers of unknown kinds.
        layers: Number of predicted layers.
        unknown: Number of calls of unknown kinds, by kind.
        beyond: Kinds with more work than any fitted layer, with the ratio.
    """

    seconds: float
    layers: int
    unknown: Mapping[str, int]
    beyond: Mapping[str, float]


@final
@dataclass(frozen=True, slots=True)
class LayerRegression:
    """Linear models by kind of layer."""

    lines: Mapping[str, Line]

    def predict(self, trace: Trace) -> NetworkEstimate:
        """Predict a step as the sum of its layers.

        Args:
            trace: A step of any network; its kernels are ignored.
        """
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
    """List the layers of a step with the time of their kernels.

    Args:
        trace: A recording of a GPU.
        seconds: Time of each of `work_items`, if measured otherwise; None takes the recorded kernels.

    Raises:
        InvalidArgumentError: A recording without kernels.
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
    """Fit a line to each kind by least squares.

    If all layers of a kind have the same work, or the slope is not positive, it is the mean time per FLOP or byte.
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
    """Yield the calls with known work: position, work item, kind and amount of work."""
    for place, item in enumerate(work_items(trace)):
        if item.problems and not item.unknown:
            phase = trace.operations[item.operations[0]].phase
            # A bias, or a first layer without a gradient to pass on, does not make a separate kind.
            products = [one for one in item.problems if operation_spec(one.operation).units == "tensor"]
            names = "+".join(sorted({one.operation.partition("_backward")[0] for one in products or item.problems}))
            yield place, item, f"{names} ({phase})", math.fsum(map(_work, products or item.problems))


def _work(problem: OperationShape) -> float:
    """Return FLOPs for products and convolutions, otherwise bytes."""
    batch = batch_shapes([problem])
    return float((batch.flops if batch.spec.units == "tensor" else batch.bytes_moved)[0])
