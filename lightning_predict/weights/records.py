"""Weights of the small neural networks that predict utilisation, as plain arrays.

`GpuWeights` is the content of one file: the weights for one GPU, or the base weights, which serve unmeasured GPUs. It
has a `NetworkWeights` for each family of operations (`matmul_half`, `attention`, ...). `NetworkWeights` is an ensemble
of small networks, with input scaling, a lower bound on utilisation, and interval widths. Example::

    >>> import numpy as np
    >>> layer = Layer(weight=np.zeros((2, 3, 1), np.float32), bias=np.zeros((2, 1), np.float32))
    >>> layer.members, layer.inputs, layer.outputs
    (2, 3, 1)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]

FEATURE_TOLERANCE: Final = 1e-3  # Features that differ by less than this are treated as equal
CROSS_GPU: Final = "base"  # GPU name in the base file. GPUs without their own weights use the base weights.


@dataclass(frozen=True)
class Layer:
    """One layer of all networks of an ensemble."""

    weight: Float32Array  # Weights, shape (members, inputs, outputs)
    bias: Float32Array  # Biases, shape (members, outputs)

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


@dataclass(frozen=True)
class NetworkWeights:
    """Ensemble of neural networks for one family of operations."""

    family: str
    trained: frozenset[tuple[str, str]]  # (operation, dtype) pairs in the training data
    features: tuple[str, ...]  # Names of the inputs, in order
    mean: Float32Array  # Value that is subtracted from each feature, shape (features,)
    scale: Float32Array  # Value by which each feature is then divided, shape (features,)
    low: Float32Array  # Minimum of each feature in the training data, shape (features,). Smaller values are clamped.
    high: Float32Array  # Maximum of each feature in the training data, shape (features,). Larger values are clamped.
    lowest_utilisation: float  # Lower bound on predicted utilisation, in (0, 1)
    layers: tuple[Layer, ...]  # Layers in order. The last layer has one output.
    interval: Mapping[str, float]  # Half width of the 90 % interval in log, by "operation/dtype"; "*" for all others

    def matches_constant_features(self, rows: Float32Array) -> npt.NDArray[np.bool_]:
        """Return whether the constant features of the training data have the same values in each operation.

        For example, if all convolutions in the training data of a GPU are 3 x 3, the network cannot predict 1 x 1
        convolutions.

        Args:
            rows: Features of the operations, shape (rows, features).

        Returns:
            Whether the network knows each operation, shape (rows,).
        """
        alike = np.flatnonzero(self.high - self.low < FEATURE_TOLERANCE)
        known: npt.NDArray[np.bool_] = (np.abs(rows[:, alike] - self.low[alike]) < FEATURE_TOLERANCE).all(axis=1)
        return known

    def half_width(self, operation: str, dtype: str) -> float:
        """Return the half width of the 90 % interval in log(seconds)."""
        return self.interval.get(f"{operation}/{dtype}", self.interval["*"])


@dataclass(frozen=True, slots=True)
class MeasuredFactor:
    """Ratio of measured to predicted time for one operation, dtype and GPU, for operations without a tuned network."""

    factor: float
    half_width: float  # Half width of the 90 % interval in log(seconds), with this factor
    rows: int


@dataclass(frozen=True)
class GpuWeights:
    """Content of one weights file."""

    gpu: str
    families: Mapping[str, NetworkWeights]
    recipe: str
    seed: int
    sources: tuple[str, ...]
    factors: Mapping[str, MeasuredFactor] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadedWeights:
    """Weights for a set of GPUs."""

    cross_gpu_model: GpuWeights  # Base weights, used for GPUs and operations without their own weights
    gpus: Mapping[str, GpuWeights]  # Weights that were trained for a single GPU, by GPU name
    notes: tuple[str, ...] = ()  # Notes for the user about missing weights
