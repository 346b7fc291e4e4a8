"""Draw pairs of shapes with one shape twice as large along one side, far beyond the measured range.

Example::

    pairs = doubling_pairs(family, shapes, gpus, count=20_000, seed=0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.features import reference_seconds
from lightning_predict.kernels.operations import NetworkSpec, ShapeBatch, shape_batch
from lightning_predict.own_weights.training.networks import DoublingPairs, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRange:
    """Random shapes of one operation: whole numbers, even in the logarithm."""

    operation: str  # The operation
    dtype: str  # Its dtype
    sides: Mapping[str, tuple[float, float]]  # Word -> smallest and largest value; these may be doubled
    fixed: Mapping[str, tuple[float, ...]]  # Word -> values to choose from; these are not doubled


def doubling_pairs(
    family: NetworkSpec, shapes: Sequence[ShapeRange], gpus: Sequence[Gpu], *, count: int, seed: int
) -> DoublingPairs:
    """Draw about `count` pairs, spread evenly over the GPUs and the shapes."""
    generator = np.random.default_rng(seed)
    each = max(count // (len(gpus) * len(shapes)), 1)
    halves: list[tuple[Side, Side]] = []
    for gpu in gpus:
        for shape in shapes:
            smaller, larger = _draw(shape, each, generator)
            halves.append((_side(family, smaller, gpu), _side(family, larger, gpu)))
    return DoublingPairs(_joined([half[0] for half in halves]), _joined([half[1] for half in halves]))


def _draw(shape: ShapeRange, count: int, generator: np.random.Generator) -> tuple[ShapeBatch, ShapeBatch]:
    words = {
        word: np.rint(np.exp2(generator.uniform(np.log2(low), np.log2(high), count)))
        for word, (low, high) in shape.sides.items()
    }
    # Half of the sizes are powers of two: what people use most, and where alignment jumps.
    words = {
        word: np.where(generator.random(count) < 0.5, values, np.exp2(np.rint(np.log2(values))))
        for word, values in words.items()
    }
    fixed = {word: generator.choice(np.array(values), count) for word, values in shape.fixed.items()}
    grown = generator.integers(len(words), size=count)
    doubled = {word: np.where(grown == index, 2 * values, values) for index, (word, values) in enumerate(words.items())}
    return (
        shape_batch(shape.operation, shape.dtype, **words, **fixed),
        shape_batch(shape.operation, shape.dtype, **doubled, **fixed),
    )


def _side(family: NetworkSpec, batch: ShapeBatch, gpu: Gpu) -> Side:
    return Side(family.feature_matrix(batch, [gpu])[0], np.log(reference_seconds(batch, [gpu])[0]))


def _joined(sides: Sequence[Side]) -> Side:
    return Side(
        np.concatenate([side.features for side in sides]), np.concatenate([side.log_reference for side in sides])
    )
