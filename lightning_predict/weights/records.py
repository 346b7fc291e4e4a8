"""Weights as plain arrays: small networks that predict utilisation from features.

A `GpuWeights` is the content of one file: the base, or the weights of one GPU. It has a `NetworkWeights` for each
family of operations (`matmul_half`, `attention`, ...). This is an ensemble of small networks with their input scaling,
a lower bound on utilisation, and interval widths. Example::

    >>> import numpy as np
    >>> layer = Layer(weight=np.zeros((2, 3, 1), np.float32), bias=np.zeros((2, 1), np.float32))
    >>> layer.members, layer.inputs, layer.outputs
    (2, 3, 1)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]

FEATURE_TOLERANCE: Final = 1e-3
"""Features that differ by less than this are treated as equal."""

CROSS_GPU: Final = "base"
"""The `gpu` of the file that is used for every GPU without weights of its own."""


@final
@dataclass(frozen=True)
class Layer:
    """One layer, for all members of an ensemble.

    Attributes:
        weight: Shape (members, inputs, outputs).
        bias: Shape (members, outputs).
    """

    weight: Float32Array
    bias: Float32Array

    @property
    def members(self) -> int:
        """Number of networks in the ensemble."""
        return int(self.weight.shape[0])

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return int(self.weight.shape[1])

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return int(self.weight.shape[2])


@final
@dataclass(frozen=True)
class NetworkWeights:
    """Model of one family of operations.

    Attributes:
        family: Name of the family.
        trained: (operation, dtype) pairs in the training data.
        features: Names of the inputs, in order.
        mean: Subtracted from each feature, shape (features,).
        scale: Divisor of each feature after the subtraction, shape (features,).
        low: Minimum of each feature in the training data, shape (features,). Smaller values are clamped to it.
        high: Maximum of each feature in the training data, shape (features,).
        lowest_utilisation: Lower bound on predicted utilisation, in (0, 1).
        layers: Layers in order; the last has one output.
        interval: Half width of the 90 % interval in log(seconds), by "operation/dtype", and "*" for all others.
    """

    family: str
    trained: frozenset[tuple[str, str]]
    features: tuple[str, ...]
    mean: Float32Array
    scale: Float32Array
    low: Float32Array
    high: Float32Array
    lowest_utilisation: float
    layers: tuple[Layer, ...]
    interval: Mapping[str, float]

    def knows(self, rows: Float32Array) -> npt.NDArray[np.bool_]:
        """Return which problems match the training data in every feature that was constant there.

        For example, if all convolutions in the training data of a GPU were 3 x 3, its network cannot predict 1 x 1.

        Args:
            rows: Features, shape (rows, features).

        Returns:
            Shape (rows,).
        """
        alike = np.flatnonzero(self.high - self.low < FEATURE_TOLERANCE)
        known: npt.NDArray[np.bool_] = (np.abs(rows[:, alike] - self.low[alike]) < FEATURE_TOLERANCE).all(axis=1)
        return known

    def half_width(self, operation: str, dtype: str) -> float:
        """Return the half width of the 90 % interval in log(seconds)."""
        return self.interval.get(f"{operation}/{dtype}", self.interval["*"])


@final
@dataclass(frozen=True, slots=True)
class MeasuredFactor:
    """Measured over predicted time of an operation in one dtype on one GPU, for operations without a tuned network.

    Attributes:
        factor: Multiplier of the predicted time.
        half_width: Half width of the 90 % interval in log(seconds), with this factor.
        rows: Number of measurements that it was taken from.
    """

    factor: float
    half_width: float
    rows: int


@final
@dataclass(frozen=True)
class GpuWeights:
    """Content of one weights file.

    Attributes:
        gpu: Name of the GPU, or `CROSS_GPU`.
        families: Networks by family name.
        recipe: Name of the training recipe.
        seed: Random seed of the training.
        sources: Titles of the measurements' sources, with their licences.
        factors: Corrections of operations without a tuned network, by "operation/dtype".
    """

    gpu: str
    families: Mapping[str, NetworkWeights]
    recipe: str
    seed: int
    sources: tuple[str, ...]
    factors: Mapping[str, MeasuredFactor] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class LoadedWeights:
    """Weights for a set of GPUs.

    Attributes:
        base: Used for every GPU, and every operation, without weights of its own.
        gpus: Weights trained on one GPU, by its name.
        notes: Notes for the user about missing weights.
    """

    cross_gpu_model: GpuWeights
    gpus: Mapping[str, GpuWeights]
    notes: tuple[str, ...] = ()
