"""Weights as plain arrays: small networks that turn features into utilisation.

One `GpuWeights` is one file: the base, or one GPU's own. In it, each family of operations (`matmul_half`,
`attention`, ...) has a `NetworkWeights`: an ensemble of small networks with the scaling of their inputs, the lowest
utilisation that was measured, and how wide the intervals must be. Example::

    >>> import numpy as np
    >>> layer = Layer(weight=np.zeros((2, 3, 1), np.float32), bias=np.zeros((2, 1), np.float32))
    >>> layer.members, layer.inputs, layer.outputs
    (2, 3, 1)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]

ALIKE: Final = 1e-3
"""Features that differ by less are equal but for rounding."""

BASE: Final = "base"
"""The `gpu` of the file that serves every GPU without weights of its own."""


@final
@dataclass(frozen=True)
class Layer:
    """One layer of every member of an ensemble.

    Attributes:
        weight: Shape (members, inputs, outputs).
        bias: Shape (members, outputs).
    """

    weight: Float32Array
    bias: Float32Array

    @property
    def members(self) -> int:
        """Networks of the ensemble."""
        return int(self.weight.shape[0])

    @property
    def inputs(self) -> int:
        """Width of the input."""
        return int(self.weight.shape[1])

    @property
    def outputs(self) -> int:
        """Width of the output."""
        return int(self.weight.shape[2])


@final
@dataclass(frozen=True)
class NetworkWeights:
    """The model of one family of operations.

    Attributes:
        family: Name of the family.
        trained: (operation, dtype) pairs that it was trained on.
        features: Names of its inputs, in order.
        mean: Subtracted from each feature, shape (features,).
        scale: Divides each feature after that, shape (features,).
        low: Smallest value of each feature that was trained on; smaller ones are taken as this, shape (features,).
        high: Largest value of each feature that was trained on, shape (features,).
        lowest_utilisation: Utilisation that no prediction goes below, in (0, 1).
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
        """Tell which problems are like the trained ones in what those had in common.

        All convolutions of one GPU may have been 3 x 3: a network tuned to them says nothing of 1 x 1.

        Args:
            rows: Features, shape (rows, features).

        Returns:
            Shape (rows,).
        """
        alike = np.flatnonzero(self.high - self.low < ALIKE)
        known: npt.NDArray[np.bool_] = (np.abs(rows[:, alike] - self.low[alike]) < ALIKE).all(axis=1)
        return known

    def half_width(self, operation: str, dtype: str) -> float:
        """Find the half width of the 90 % interval in log(seconds)."""
        return self.interval.get(f"{operation}/{dtype}", self.interval["*"])


@final
@dataclass(frozen=True)
class GpuWeights:
    """One weights file.

    Attributes:
        gpu: Name of the GPU, or `BASE`.
        families: Networks by family name.
        recipe: Name of the recipe that trained them.
        seed: Its seed.
        sources: Titles of the measurements' sources, with their licences.
    """

    gpu: str
    families: Mapping[str, NetworkWeights]
    recipe: str
    seed: int
    sources: tuple[str, ...]


@final
@dataclass(frozen=True)
class LoadedWeights:
    """Weights for a set of GPUs.

    Attributes:
        base: Serves every GPU, and every operation, that has no weights of its own.
        gpus: Own weights by GPU name.
        notes: What was missing, in sentences for the user.
    """

    base: GpuWeights
    gpus: Mapping[str, GpuWeights]
    notes: tuple[str, ...] = ()
