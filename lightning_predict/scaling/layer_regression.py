"""Per-layer regression: t = β0 + β1 * complexity for each kind of layer, pass and GPU; a network is the sum.

So a network that was never run is predicted from layers of others (Ardagna et al., SBAC-PAD 2018). The times come from
traces with measured kernels, or from any profile. Example::

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
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.scaling.layers import Direction, Layer, LayerKind, layer_operations
from lightning_predict.tracing.records import Trace

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
        """Seconds of a layer."""
        return self.constant + self.slope * complexity

    def at_all(self, complexity: FloatArray) -> FloatArray:
        """Seconds of layers, shape (layers,)."""
        return self.constant + self.slope * complexity


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LayersEstimate:
    """The sum over the layers of a network.

    Attributes:
        seconds: Of the layers whose kind was fitted.
        low_seconds: Lower end of the 90 % interval.
        high_seconds: Upper end of the 90 % interval.
        uncovered: Layers by kind and pass that no line is known for; their time is not in the sum.
        extrapolated_share: Share of the seconds in layers outside the complexities that were fitted.
    """

    seconds: float
    low_seconds: float
    high_seconds: float
    uncovered: Mapping[Group, int]
    extrapolated_share: float

    @property
    def note(self) -> str | None:
        """What is not in the sum in words; None where everything is."""
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
        """Seconds of a network, forward and backward, as the sum of its layers.

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
        deviation = math.hypot(*(self.lines[(gpu, *group)].spread * value for group, value in sums.items()))
        return LayersEstimate(
            seconds=total,
            low_seconds=max(0.0, total - NORMAL_QUANTILE * deviation),
            high_seconds=total + NORMAL_QUANTILE * deviation,
            uncovered=dict(uncovered),
            extrapolated_share=outside / total if total else 0.0,
        )


def fit_layers(times: Sequence[LayerTime], *, relative: bool = False) -> LayerRegression:
    """Least squares for each GPU, kind of layer and pass.

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
    design = np.column_stack([weights, weights * complexity / size])
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


def layer_times(trace: Trace, gpu: str) -> tuple[LayerTime, ...]:
    """The layers of a step whose kernels were measured.

    Args:
        trace: With measured kernels.
        gpu: Name of the GPU that it ran on.
    """
    return tuple(
        LayerTime(layer=layer, gpu=gpu, seconds=math.fsum(kernel.seconds for kernel in operation.kernels))
        for operation, layer in layer_operations(trace)
        if operation.kernels
    )


def _not_negative(design: FloatArray, target: FloatArray) -> tuple[float, float]:
    """Least squares with two coefficients of at least 0: where both together are not, the better of each alone."""
    both = np.linalg.lstsq(design, target, rcond=None)[0]
    if (both >= 0).all() and np.linalg.matrix_rank(design) == 2:
        return float(both[0]), float(both[1])
    alone = [max(0.0, float(column @ target / (column @ column))) if column.any() else 0.0 for column in design.T]
    misses = [float(((target - column * value) ** 2).sum()) for column, value in zip(design.T, alone, strict=True)]
    return (alone[0], 0.0) if misses[0] < misses[1] else (0.0, alone[1])
