"""Per-layer regression: the device's time of each kind of layer as a line over its work, summed over a network.

Gianniti, Zhang and Ardagna (SBAC-PAD 2018) fit t = b0 + b1 c for each kind of layer, forward and backward apart, to a
profile of one GPU, with the layer's operations as its complexity c; other networks of the same kinds of layers are then
predicted on that GPU. Here a layer is a call that a recording holds, c its FLOPs where it is a product or a convolution
and the bytes that it has to move elsewhere, and kernels of several recordings are fitted together. Example::

    regression = fit_layers([*layers_of(googlenet), *layers_of(vgg)])
    estimate = regression.predict(alexnet)
    estimate.seconds, estimate.unknown     # device seconds of a step, and kinds that no recording holds
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels.operations import Problem, batch_of, operation_kind
from lightning_predict.kernels.translation import WorkItem, work_items
from lightning_predict.tracing.trace import Trace

FEWEST_LAYERS: Final = 2
"""Of fewer different ones, a line has no slope."""


@final
@dataclass(frozen=True, slots=True)
class TimedLayer:
    """A call of a step.

    Attributes:
        kind: What it computes, by the names of its operations; forward and backward are two kinds.
        work: Its FLOPs, or the bytes that it moves.
        seconds: The time of its kernels.
    """

    kind: str
    work: float
    seconds: float


@final
@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a kind of layer: `intercept` + `slope` x work.

    Attributes:
        intercept: Seconds of a layer without any work.
        slope: Seconds of each FLOP, or byte.
        layers: Layers that it was fitted to.
        most_work: Of these.
    """

    intercept: float
    slope: float
    layers: int
    most_work: float

    def seconds(self, work: float) -> float:
        """Give the time of a layer; never below 0."""
        return max(0.0, self.intercept + self.slope * work)


@final
@dataclass(frozen=True, slots=True)
class NetworkEstimate:
    """A network as predicted from layers.

    Attributes:
        seconds: The device's time of a step, without the layers of unknown kinds.
        layers: Layers that were predicted.
        unknown: Calls of kinds that no line is for, by kind.
        beyond: Kinds with more work than any layer that was fitted, by how many times as much.
    """

    seconds: float
    layers: int
    unknown: Mapping[str, int]
    beyond: Mapping[str, float]


@final
@dataclass(frozen=True, slots=True)
class LayerRegression:
    """A line for each kind of layer."""

    lines: Mapping[str, Line]

    def predict(self, trace: Trace) -> NetworkEstimate:
        """Sum a step's layers.

        Args:
            trace: A step of any network; its kernels, if it has any, are not looked at.
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
    """List the layers of a step, with the time that their kernels took.

    Args:
        trace: A recording of a GPU.
        seconds: Of each of `work_items`, where another clock timed them; None takes the recorded kernels.

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

    Where all layers of a kind do the same work, or the line falls with it, it is their mean for each FLOP or byte.
    """
    by_kind: dict[str, list[TimedLayer]] = defaultdict(list)
    for layer in layers:
        by_kind[layer.kind].append(layer)
    return LayerRegression({kind: _line(own) for kind, own in sorted(by_kind.items())})


def _line(layers: list[TimedLayer]) -> Line:
    work = np.array([layer.work for layer in layers])  # (layers,)
    seconds = np.array([layer.seconds for layer in layers])
    most, slope, intercept = float(work.max()), 0.0, float(seconds.mean())
    if len(set(work.tolist())) >= FEWEST_LAYERS:
        slope, intercept = map(float, np.polyfit(work / most, seconds, 1) / (most, 1.0))
    if slope <= 0 and most > 0:
        slope, intercept = float(seconds.sum() / work.sum()), 0.0
    return Line(intercept, slope, len(layers), most)


def _calls(trace: Trace) -> Iterator[tuple[int, WorkItem, str, float]]:
    """List the calls whose work is known: the place of each, what it computes, and how much."""
    for place, item in enumerate(work_items(trace)):
        if item.problems and not item.unknown:
            phase = trace.operations[item.operations[0]].phase
            # A bias, or a first layer that passes no gradient on, makes no kind of its own.
            products = [one for one in item.problems if operation_kind(one.operation).units == "tensor"]
            names = "+".join(sorted({one.operation.partition("_backward")[0] for one in products or item.problems}))
            yield place, item, f"{names} ({phase})", math.fsum(map(_work, products or item.problems))


def _work(problem: Problem) -> float:
    """Count FLOPs of products and convolutions, bytes of all else."""
    batch = batch_of([problem])
    return float((batch.flops if batch.kind.units == "tensor" else batch.bytes_moved)[0])
