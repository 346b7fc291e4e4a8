"""Per-layer regression: the device time of each kind of layer as a linear function of its work, summed over a step.

Gianniti, Zhang and Ardagna (SBAC-PAD 2018) fit t = b0 + b1 c for each kind of layer to a profile of one GPU; c is the
number of operations of the layer. Forward and backward are separate kinds. Other networks with the same kinds of layers
are then predicted on this GPU. Here, a layer is a recorded call. Its time is linear in its memory traffic, and in its
FLOPs for a matmul or convolution in one dtype. Recordings of a GPU or a CPU are fitted together.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.kernels.operations import Array, batch_shapes, operation_spec
from lightning_predict.kernels.translation import WorkItem, work_items
from lightning_predict.record.trace import Operation, Trace

SAME_ERROR: Final = 1e-12  # Share of the sum of squared times by which another feature must reduce the squared error


@dataclass(frozen=True, slots=True)
class TimedLayer:
    """A recorded call, with its amount of work and its time."""

    kind: str  # Kind of layer, from its operations, the dtype of matmuls and convolutions, and the phase
    moved_bytes: float
    seconds: float  # Total time of the call's kernels, or of the call on a CPU
    flops: float = 0.0  # FLOPs of matmuls and convolutions; 0 for other calls

    @property
    def work(self) -> float:
        """FLOPs, or bytes of a call without matmuls and convolutions."""
        return self.flops or self.moved_bytes


@dataclass(frozen=True, slots=True)
class Line:
    """Linear model of a kind of layer, in seconds. `most_work` is the maximum over the layers of the fit."""

    intercept: float
    per_byte: float
    per_flop: float
    layers: int
    most_work: float

    def seconds(self, layer: TimedLayer) -> float:
        """Return the predicted time of a layer."""
        return self.intercept + self.per_byte * layer.moved_bytes + self.per_flop * layer.flops


@dataclass(frozen=True, slots=True)
class NetworkEstimate:
    """Device time of a neural network, predicted from its layers."""

    seconds: float  # Device time of a step, excluding layers of unknown kinds
    layers: int
    unknown: Mapping[str, int]  # Number of calls of unknown kinds, by kind
    beyond: Mapping[str, float]  # Ratio of a kind's largest work to the largest in the fit, where it exceeds 1


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
            seconds, known = seconds + line.seconds(layer), known + 1
            if layer.work > line.most_work > 0:
                beyond[layer.kind] = max(beyond.get(layer.kind, 0.0), layer.work / line.most_work)
        return NetworkEstimate(seconds, known, dict(unknown), beyond)


def layers_of(trace: Trace, seconds: Sequence[float] | None = None) -> tuple[TimedLayer, ...]:
    """Return the layers of a step with their times.

    Args:
        trace: A recording on a GPU, or a profile of a CPU.
        seconds: Measured time of each of the `work_items`; None uses the recorded times.
    """
    timed = []
    for place, item, layer in _calls(trace):
        times = [time for operation in item.operations for time in recorded_times(trace, trace.operations[operation])]
        if seconds is not None or times:
            timed.append(replace(layer, seconds=math.fsum(times) if seconds is None else seconds[place]))
    if not timed:
        raise InvalidArgumentError(
            "The recording holds no kernels of operations with shapes; lines over layers need a step that was recorded "
            "on a GPU, or torch.profiler's record_shapes=True on a CPU."
        )
    return tuple(timed)


def recorded_times(trace: Trace, operation: Operation) -> list[float]:
    """Return the times of an operation's kernels, or its time on a CPU."""
    if trace.device == "cpu":
        return [] if operation.host_seconds is None else [operation.host_seconds]
    return [kernel.seconds for kernel in operation.kernels]


def fit_layers(layers: Iterable[TimedLayer]) -> LayerRegression:
    """Fit a line to each kind of layer by least squares, without negative coefficients.

    If all layers of a kind have equal work, or the time does not grow with the work, the line has the slopes of all
    matmuls and convolutions, or of all other layers.
    """
    layers = tuple(layers)
    common = {unit: _coefficients([layer for layer in layers if bool(layer.flops) is unit]) for unit in (False, True)}
    by_kind: dict[str, list[TimedLayer]] = defaultdict(list)
    for layer in layers:
        by_kind[layer.kind].append(layer)
    return LayerRegression({kind: _line(own, common[bool(own[0].flops)]) for kind, own in sorted(by_kind.items())})


def _line(layers: list[TimedLayer], common: Array) -> Line:
    found, features, seconds = _coefficients(layers), _features(layers), np.array([layer.seconds for layer in layers])
    if not found[1:].any():
        rest = float(seconds.mean() - features.mean(axis=0)[1:] @ common[1:])
        work = features[:, 2 if layers[0].flops else 1]
        if rest >= 0 and common[1:].any():
            found = np.array([rest, *common[1:]])
        elif work.any():  # the mean time per FLOP or byte
            found = np.zeros(3)
            found[2 if layers[0].flops else 1] = seconds @ work / (work @ work)
    return Line(float(found[0]), float(found[1]), float(found[2]), len(layers), max(layer.work for layer in layers))


def _features(layers: Sequence[TimedLayer]) -> Array:
    return np.array([[1.0, layer.moved_bytes, layer.flops] for layer in layers])


def _coefficients(layers: Sequence[TimedLayer]) -> Array:
    """Return the intercept and the slopes with the least squared error among those without a negative one, (3,)."""
    features, coefficients = _features(layers), np.zeros(3)
    if not len(features):
        return coefficients
    scales = np.where(features.max(axis=0) > 0, features.max(axis=0), 1.0)
    design, seconds = features / scales, np.array([layer.seconds for layer in layers])
    varying = [0, *(place for place in (1, 2) if np.ptp(design[:, place]) > 0)]
    least = np.inf
    for chosen in (list(subset) for count in (1, 2, 3) for subset in combinations(varying, count)):
        solution, _, rank, _ = np.linalg.lstsq(design[:, chosen], seconds, rcond=None)
        error = float(((seconds - design[:, chosen] @ solution) ** 2).sum())
        if rank == len(chosen) and (solution >= 0).all() and error < least - SAME_ERROR * float(seconds @ seconds):
            least, coefficients = error, np.zeros(3)
            coefficients[chosen] = solution / scales[chosen]
    return coefficients


def _calls(trace: Trace) -> Iterator[tuple[int, WorkItem, TimedLayer]]:
    """Yield the calls with a known amount of work, as (position, work item, layer without its time)."""
    for place, item in enumerate(work_items(trace)):
        if item.shapes and not item.unknown:
            phase = trace.operations[item.operations[0]].phase
            # A bias, or the missing input gradient of a first layer, does not make a separate kind.
            products = [shape for shape in item.shapes if operation_spec(shape.operation).units == "tensor"]
            names = {shape.operation.partition("_backward")[0] for shape in products or item.shapes}
            dtypes = {
                "float32" if trace.device == "cpu" and product.dtype == "tf32" else product.dtype
                for product in products
            }
            kind = f"{'+'.join(sorted(names))} ({', '.join([*sorted(dtypes), phase])})"
            batches = [batch_shapes([shape]) for shape in products or item.shapes]
            moved = math.fsum(float(batch.bytes_moved[0]) for batch in batches)
            flops = math.fsum(float(batch.flops[0]) for batch in batches) if products else 0.0
            yield place, item, TimedLayer(kind, moved, 0.0, flops)
