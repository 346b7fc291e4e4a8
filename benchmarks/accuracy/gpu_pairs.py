"""How much a measurement on one GPU says about another, on problems that both ran: the study behind `choice.py`.

    python -m benchmarks.accuracy MEASUREMENTS --of pairs

With e = log(predicted / measured) on the origin and on the target, a measurement scaled by the ratio of predictions to
a power w errs by e_target - w · e_origin: w says which part of the origin's error comes back on the target. Pairs are
of rows that no network was fitted to: the tables' held-out ones, of the same software build, and the published times
that no fit saw (`benchmarks/training/surrogates.py`). For each kinship of the kernels the power is chosen on the pairs
without a GPU, whichever side it would be on, and judged on those with it. Example::

    studies = exponent_studies(measured_pairs(Path("measurements"), models))
    studies["same code"].left_out_error
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Final, final

import numpy as np
from rich.table import Table

from benchmarks.training.recipes import RECIPES
from benchmarks.training.report import report_table
from benchmarks.training.surrogates import Published, compared_times, published_times
from benchmarks.training.tables import read_tables
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.kernels.measured_scaling import (
    KERNEL_RELATIONS,
    RATIO_EXPONENTS,
    KernelRelation,
    kernel_relation,
    transferable_residuals,
)
from lightning_predict.kernels.models import BundledModels
from lightning_predict.kernels.operations import Array
from lightning_predict.own_weights.training.tables import split_rows
from lightning_predict.own_weights.training.tuning import gpus_of, weighted_quantile

POWERS: Final = tuple(number / 12 for number in range(13))

FEWEST_PAIR_ROWS: Final = 5
"""Problems in common below which a pair is left out: each counts as much as a pair of thousands."""


@final
@dataclass(frozen=True, slots=True)
class GpuErrors:
    """Problems that one GPU ran.

    Attributes:
        subject: Subject of the rows; pairs of each subject have equal total weight.
        together: Operation, dtype, source and build, which a pair must share.
        gpu: Its name.
        problems: Each problem as a value that can be compared, in any order, without repetition.
        errors: log(predicted / measured) of each.
        is_trained: A network was trained on other problems of the operation.
    """

    subject: str
    together: tuple[str, ...]
    gpu: str
    problems: tuple[object, ...]
    errors: Array
    is_trained: bool


@final
@dataclass(frozen=True, slots=True)
class PairErrors:
    """Problems that an origin and a target both ran; errors are log(predicted / measured), shape (problems,)."""

    subject: str
    kinship: KernelRelation
    origin: str
    target: str
    origin_errors: Array
    target_errors: Array
    is_trained: bool

    def left(self, power: float) -> Array:
        """Errors of the target that remain after this power of the origin's errors is removed."""
        left: Array = np.abs(self.target_errors - power * self.origin_errors)
        return left


@final
@dataclass(frozen=True, slots=True)
class ExponentStudy:
    """One kinship; errors are medians of |log|, averaged over pairs, subjects and GPUs, in this order.

    Attributes:
        pairs: Ordered pairs of GPUs.
        rows: Rows of all pairs.
        chosen: The power with the least error.
        cross_validation_error: Error of the pairs with a GPU by the power chosen on the pairs without this GPU.
        errors: Error by each of `POWERS`.
        half_width: Conformal 90 % quantile of the errors that the power in use leaves for operations with a trained
            network; every pair counts the same. None without such pairs: a stand-in's own interval is wider.
    """

    pairs: int
    rows: int
    chosen: float
    left_out_error: float
    errors: tuple[float, ...]
    half_width: float | None


def measured_pairs(tables: Path, models: BundledModels) -> tuple[PairErrors, ...]:
    """All ordered pairs of different GPUs that ran enough of the same problems on the same software.

    Args:
        tables: Folder of the measurement tables.
        models: Trained models; their training used the split of seed 0.

    Raises:
        MeasurementTableError: Tables are missing or wrong.
    """
    return pairs_of((*_held_out(tables, models), *_published(tables, models)))


def _held_out(tables: Path, models: BundledModels) -> Iterator[GpuErrors]:
    """Rows of the tables that no network was fitted to."""
    groups = read_tables(tables, by_build=True)
    gpus = gpus_of(groups)
    for recipe in RECIPES.values():
        for group in groups:
            if not recipe.serves(group) or group.gpu not in gpus:
                continue
            held_out = split_rows(group.batch.columns, seed=0).held_out
            rows = group.take(held_out & (group.seconds >= recipe.scored_from(group)))
            if not len(rows.seconds):
                continue
            predicted = models.estimate(rows.batch, [gpus[group.gpu]]).seconds[0]
            shapes = tuple(map(tuple, np.stack(list(rows.batch.columns.values()), axis=1).tolist()))
            together = (rows.batch.operation, rows.batch.dtype, group.source, group.build)
            yield GpuErrors(
                recipe.family.name, together, group.gpu, shapes, np.log(predicted / rows.seconds), is_trained=True
            )


def _published(tables: Path, models: BundledModels) -> Iterator[GpuErrors]:
    """Times that no fit saw; a problem that was timed several times counts once, by its median."""
    members: dict[tuple[str, str, str], dict[object, list[Published]]] = defaultdict(lambda: defaultdict(list))
    for each in published_times(tables):
        what = each.problem
        members[what.operation, what.dtype, find_gpu(each.gpu).name][what, each.left_out].append(each)
    for (operation, dtype, gpu), found in members.items():
        one_each = [sorted(times, key=lambda each: each.seconds)[len(times) // 2] for times in found.values()]
        errors = np.log1p(compared_times(one_each, models)[0])
        subject = f"{operation.partition('_backward')[0]}, published"
        yield GpuErrors(subject, (operation, dtype, "published"), gpu, tuple(found), errors, is_trained=False)


def pairs_of(measured: Sequence[GpuErrors]) -> tuple[PairErrors, ...]:
    """Ordered pairs of different GPUs with at least `FEWEST_PAIR_ROWS` problems in common."""
    together: dict[tuple[str, ...], list[GpuErrors]] = defaultdict(list)
    for one in measured:
        together[one.together].append(one)
    pairs = []
    for (operation, dtype, *_), members in together.items():
        for origin, target in permutations(members, 2):
            places = {problem: index for index, problem in enumerate(origin.problems)}
            shared = [(places[problem], i) for i, problem in enumerate(target.problems) if problem in places]
            if origin.gpu == target.gpu or len(shared) < FEWEST_PAIR_ROWS:
                continue
            here, there = (np.array(indices, dtype=np.intp) for indices in zip(*shared, strict=True))
            kinship = kernel_relation(operation, dtype, find_gpu(origin.gpu), find_gpu(target.gpu))
            pairs.append(
                PairErrors(
                    origin.subject,
                    kinship,
                    origin.gpu,
                    target.gpu,
                    origin.errors[here],
                    target.errors[there],
                    origin.is_trained,
                )
            )
    return tuple(pairs)


def exponent_studies(pairs: Sequence[PairErrors]) -> Mapping[KernelRelation, ExponentStudy]:
    """The study of each kinship that has pairs."""
    found: dict[KernelRelation, ExponentStudy] = {}
    for kinship in KERNEL_RELATIONS:
        own = [pair for pair in pairs if pair.kinship == kinship]
        if own:
            found[kinship] = _study(own, RATIO_EXPONENTS[kinship])
    return found


def _study(pairs: Sequence[PairErrors], in_use: float) -> ExponentStudy:
    medians = [np.array([np.median(pair.left(power)) for power in POWERS]) for pair in pairs]
    subjects = [pair.subject for pair in pairs]
    left_out, errors = [], []
    for gpu in sorted({pair.origin for pair in pairs}):
        mine = [i for i, pair in enumerate(pairs) if gpu in (pair.origin, pair.target)]
        others = [i for i in range(len(pairs)) if i not in mine]
        # Where no pair is left, nothing is learnt and the prediction stands alone.
        chosen = int(np.argmin(_mean(subjects, medians, others))) if others else 0
        errors.append(_mean(subjects, medians, mine))
        left_out.append(errors[-1][chosen])
    left = [pair.left(in_use) for pair in pairs]
    trained = [rows for pair, rows in zip(pairs, left, strict=True) if pair.is_trained]
    mean = np.mean(errors, axis=0)
    return ExponentStudy(
        pairs=len(pairs),
        rows=sum(map(len, left)),
        chosen=POWERS[int(np.argmin(mean))],
        left_out_error=float(np.mean(left_out)),
        errors=tuple(map(float, mean)),
        half_width=_half_width(trained) if trained else None,
    )


STEP_PROBLEMS: Final = 12
"""Problems of a family in a step, about as many different ones as a network has."""

STEPS_A_PAIR: Final = 12


@final
@dataclass(frozen=True, slots=True)
class ShrinkageStudy:
    """Families whose networks saw measurements of both GPUs; medians of |log| in steps, their means over pairs.

    Attributes:
        pairs: Ordered pairs of GPUs.
        alone: Error of the prediction from shapes.
        by_power: Error with `RATIO_EXPONENTS` of the origin's residuals taken back.
        shrunk: Error with what `transferable_residuals` believes.
    """

    pairs: int
    alone: float
    by_power: float
    shrunk: float


def shrinkage_studies(pairs: Sequence[PairErrors]) -> Mapping[str, ShrinkageStudy]:
    """The study of each family with trained pairs, on steps of a few problems that are drawn from each pair's."""
    draw = np.random.default_rng(0)
    found: dict[str, list[Array]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for pair in pairs:
        if not pair.is_trained or not RATIO_EXPONENTS[pair.kinship]:
            continue
        counts[pair.subject] += 1
        rows = min(STEP_PROBLEMS, len(pair.origin_errors))
        for _ in range(STEPS_A_PAIR):
            places = draw.choice(len(pair.origin_errors), size=rows, replace=False)
            origin, target = pair.origin_errors[places], pair.target_errors[places]
            shrunk = transferable_residuals(origin, np.zeros(rows, dtype=np.intp))
            parts = (np.zeros(rows), RATIO_EXPONENTS[pair.kinship] * origin, RATIO_EXPONENTS[pair.kinship] * shrunk)
            found[pair.subject].append(np.array([np.median(np.abs(target - part)) for part in parts]))
    return {
        subject: ShrinkageStudy(counts[subject], *map(float, np.mean(errors, axis=0)))
        for subject, errors in found.items()
    }


def shrinkage_table(studies: Mapping[str, ShrinkageStudy]) -> Table:
    """The study for the terminal."""
    table = report_table(
        "The same where both GPUs' measurements trained the network: median errors in steps of a few problems",
        names=("family",),
        numbers=("pairs", "shapes alone", "by power", "shrunk"),
    )
    for subject, study in sorted(studies.items()):
        errors = (study.alone, study.by_power, study.shrunk)
        table.add_row(subject, str(study.pairs), *(f"{error:.4f}" for error in errors))
    return table


def _half_width(left: Sequence[Array]) -> float:
    weights = np.concatenate([np.full(len(rows), 1 / len(rows)) for rows in left])
    return weighted_quantile(np.concatenate(left), weights)


def _mean(subjects: Sequence[str], values: Sequence[Array], indices: Sequence[int]) -> Array:
    """Mean over subjects of the mean over their pairs among the indices."""
    by_subject: dict[str, list[Array]] = defaultdict(list)
    for index in indices:
        by_subject[subjects[index]].append(values[index])
    mean: Array = np.mean([np.mean(own, axis=0) for own in by_subject.values()], axis=0)
    return mean


def studies_table(studies: Mapping[KernelRelation, ExponentStudy]) -> Table:
    """The studies for the terminal."""
    shown = tuple(POWERS.index(power) for power in (0.0, 0.5, 0.75, 1.0))
    headings = ("pairs", "rows", "power in use", "90 % within", "best power", "GPU left out")
    table = report_table(
        "Errors of a measurement that is scaled to another GPU by the ratio of predictions to a power",
        names=("kernels",),
        numbers=(*headings, *(f"power {POWERS[place]:g}" for place in shown)),
    )
    for kinship, study in studies.items():
        within = "" if study.half_width is None else f"{study.half_width:.3f}"
        errors = (study.left_out_error, *(study.errors[place] for place in shown))
        powers = f"{RATIO_EXPONENTS[kinship]:.2f}", within, f"{study.chosen:.2f}"
        table.add_row(kinship, str(study.pairs), f"{study.rows:,}", *powers, *(f"{error:.3f}" for error in errors))
    return table
