"""Problems that two GPUs both ran on the same software, with the errors of what is predicted for them.

Example::

    pairs = pairs_of(measured, gpus, (True, False))  # from GPUs with own weights to GPUs that no base saw
    blend_of(pairs).weight
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final, final

import numpy as np

from lightning_predict.fitting.intervals import weighted_quantile
from lightning_predict.fitting.tables import Group
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.blending import Blend
from lightning_predict.kernels.operations import Array, ProblemBatch
from lightning_predict.kernels.wave_scaling import many_wave_factors

FEWEST_PAIR_ROWS: Final = 5
"""Problems in common below which a pair is left out: each counts as much as a pair of thousands."""

FEWEST_BLEND_ROWS: Final = 60
"""Rows of all pairs below which a 90 % quantile would rest on fewer than six of them."""

NO_ERROR: Final = 1e-9
"""An origin's error below this says nothing about the weight."""


@final
@dataclass(frozen=True)
class MeasuredGroup:
    """Rows of one GPU, operation and build.

    Attributes:
        group: The rows.
        known_error: log(predicted / measured) by the GPU's own weights; None where it has none for the operation.
        unseen_error: The same by a base that never saw the GPU; None where there is no such base.
    """

    group: Group
    known_error: Array | None
    unseen_error: Array | None

    def error(self, *, known: bool) -> Array | None:
        """log(predicted / measured) as though the GPU were known or unseen."""
        return self.known_error if known else self.unseen_error


@final
@dataclass(frozen=True)
class PairRows:
    """Problems that an origin and a target both ran; arrays of shape (problems,) in log(seconds).

    Attributes:
        origin_error: log(predicted / measured) on the origin.
        target_error: The same on the target.
        wave_error: log(wave-scaled / measured) on the target.
    """

    origin_error: Array
    target_error: Array
    wave_error: Array

    def __len__(self) -> int:
        return len(self.origin_error)


def pairs_of(measured: Sequence[MeasuredGroup], gpus: Mapping[str, Gpu], known: tuple[bool, bool]) -> list[PairRows]:
    """All ordered pairs of different GPUs that ran the same operation on the same build.

    Args:
        measured: Groups of any operations and GPUs.
        gpus: The catalogue's rows by name.
        known: Whether the origin, and whether the target, is predicted as one that is known.
    """
    together: dict[tuple[str, str, str, str], list[MeasuredGroup]] = defaultdict(list)
    for one in measured:
        group = one.group
        together[group.batch.operation, group.batch.dtype, group.source, group.build].append(one)
    pairs = []
    for members in together.values():
        for origin, target in permutations(members, 2):
            rows = _shared_rows(origin, target, gpus, known)
            if rows is not None and len(rows) >= FEWEST_PAIR_ROWS:
                pairs.append(rows)
    return pairs


def _shared_rows(
    origin: MeasuredGroup, target: MeasuredGroup, gpus: Mapping[str, Gpu], known: tuple[bool, bool]
) -> PairRows | None:
    origin_error, target_error = origin.error(known=known[0]), target.error(known=known[1])
    if origin.group.gpu == target.group.gpu or origin_error is None or target_error is None:
        return None
    here, there = _shapes(origin.group.batch), _shapes(target.group.batch)
    _, left, right = np.intersect1d(here, there, assume_unique=True, return_indices=True)
    batch = target.group.batch
    shared = ProblemBatch(batch.operation, batch.dtype, {w: values[right] for w, values in batch.columns.items()})
    factors = many_wave_factors(shared, origin=gpus[origin.group.gpu], destination=gpus[target.group.gpu])
    wave = np.log(factors * origin.group.seconds[left] / target.group.seconds[right])
    return PairRows(origin_error[left], target_error[right], wave)


def _shapes(batch: ProblemBatch) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Each problem's shape as one value that can be compared."""
    table = np.ascontiguousarray(np.stack(list(batch.columns.values()), axis=1))
    return table.view([("", table.dtype)] * table.shape[1]).ravel()


def blend_of(pairs: Sequence[PairRows]) -> Blend | None:
    """The weight with the least mean of |target error - w · origin error|, and the 90 % quantile of what is left.

    Every pair counts the same. Where wave scaling leaves less, it is chosen, with its own quantile. None where there
    are too few rows.
    """
    if sum(map(len, pairs)) < FEWEST_BLEND_ROWS:
        return None
    origin, target, wave, counts = joined(pairs)
    weight = _least_weight(origin, target, counts)
    left, waved = np.abs(target - weight * origin), np.abs(wave)
    by_wave = bool(waved @ counts < left @ counts)
    half_width = weighted_quantile(waved if by_wave else left, counts)
    return Blend(weight=weight, half_width=half_width, by_wave=by_wave)


def _least_weight(origin: Array, target: Array, counts: Array) -> float:
    """The mean of |target - w · origin| is least at the median of target / origin, each weighted by |origin|."""
    tells = np.abs(origin) > NO_ERROR
    if not tells.any():
        return 0.0
    ratios = target[tells] / origin[tells]
    order = np.argsort(ratios)
    total = np.cumsum((np.abs(origin[tells]) * counts[tells])[order])
    return float(np.clip(ratios[order][np.searchsorted(total, total[-1] / 2)], 0.0, 1.0))


def joined(pairs: Sequence[PairRows]) -> tuple[Array, Array, Array, Array]:
    """Origin, target and wave errors of all rows, and their weights, which add up to 1 for each pair."""
    return (
        np.concatenate([pair.origin_error for pair in pairs]),
        np.concatenate([pair.target_error for pair in pairs]),
        np.concatenate([pair.wave_error for pair in pairs]),
        np.concatenate([np.full(len(pair), 1 / len(pair)) for pair in pairs]),
    )
