"""Scores of a table of whole steps: errors of times, of the time of an additional sample, and of ratios of GPUs.

Next to each score are the scores of the package's fallback without networks and for the roofline. Rows whose step the
host is predicted to bound are a group of their own, since a GPU does not decide them. Example::

    scored = scored_steps(tuple(lin_steps(Path("validation"))), cache=Path("recorded-steps"))
    print_scores(scored, Console(), title="Lin et al.")
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Final, final

from rich.console import Console

from benchmarks.accuracy.operator_tables import baselines
from benchmarks.accuracy.published_steps import PublishedStep
from benchmarks.accuracy.transformers import evaluate_in_groups
from benchmarks.runs import Run
from benchmarks.scored_steps import ScoredRow, published_cases
from benchmarks.training.report import report_table
from lightning_predict.base.interval import Interval
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.reports.published_cases import PublishedCase, StepDescription, describe
from lightning_predict.timeline.step_prediction import predict_steps

GROWTH: Final = 1.4
"""Minimum ratio of the batch sizes of two steps whose difference gives the time of a sample; closer sizes are dominated
by noise."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredStep:
    """A row and its prediction.

    Attributes:
        row: The row.
        predicted: Seconds with their 90 % interval.
        untrained: Predicted without any network.
        roofline: Sum of the rooflines of its work.
        is_host_bound: The host is predicted to end last.
        step: Kind of model and precision.
    """

    row: PublishedStep
    predicted: Interval[float]
    untrained: float
    roofline: float
    is_host_bound: bool
    step: StepDescription


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A measured number and what each method says of it.

    Attributes:
        gpu: Our name of the GPU.
        group: Kind of step.
        measured: The number.
        predicted: By the package.
        untrained: By the package without networks.
        roofline: By rooflines.
        interval: Ends of the 90 % interval; None where the number has none.
    """

    gpu: str
    group: str
    measured: float
    predicted: float
    untrained: float
    roofline: float
    interval: Interval[float] | None = None


def scored_steps(
    rows: Sequence[PublishedStep], *, cache: Path, weights: Path | None = None, jobs: int = 1
) -> tuple[ScoredStep, ...]:
    """Predict the rows whose step can be recorded.

    Args:
        rows: Rows of tables.
        cache: Folder that keeps the recorded steps.
        weights: Folder or file of weights; None searches as `predict` does.
        jobs: Steps at a time.
    """
    cache.mkdir(parents=True, exist_ok=True)
    found = evaluate_in_groups(
        rows,
        key=lambda row: row.step,
        evaluate=partial(_scored, cache=cache, weights=None if weights is None else str(weights)),
        jobs=jobs,
    )
    return tuple(one for one in found if one is not None)


def _scored(rows: Sequence[PublishedStep], cache: Path, weights: str | None) -> list[ScoredStep | None]:
    """Rows that ran the same step under one release, which is recorded once."""
    trace = rows[0].recorded(cache)
    if trace is None:
        return [None] * len(rows)
    gpus = list({row.gpu: row.on for row in rows}.values())
    names = tuple(gpu.name for gpu in gpus)
    timed = predict_work_times(trace, gpus, origin=None, models=kernel_models(names, weights))
    steps = dict(zip(names, predict_steps(trace, timed, gpus), strict=True))
    untrained = predict_work_times(trace, gpus, origin=None, models=None)
    fallbacks = dict(zip(names, predict_steps(trace, untrained, gpus), strict=True))
    rooflines, _ = baselines(trace, gpus)
    description = describe(trace)
    return [
        ScoredStep(
            row=row,
            predicted=steps[row.gpu].interval,
            untrained=fallbacks[row.gpu].seconds,
            roofline=rooflines[row.gpu],
            is_host_bound=steps[row.gpu].bound_by == "host",
            step=description,
        )
        for row in rows
    ]


def published(steps: Iterable[ScoredStep], run: Run) -> tuple[PublishedCase, ...]:
    """Summarise the steps that the device decides by model and GPU."""
    rows = [
        ScoredRow(
            names=(one.row.model,),
            gpu=one.row.gpu,
            step=one.step,
            measured=one.row.measured_seconds,
            predicted=one.predicted,
        )
        for one in steps
        if not one.is_host_bound and not one.row.waits_for_input
    ]
    return published_cases(rows, source=run.name, split=run.split, copies_allowed=run.copies_allowed)


def absolute_scores(steps: Iterable[ScoredStep]) -> Iterator[Score]:
    """Give each step's seconds, those that the host bounds in a group of their own."""
    for one in steps:
        yield Score(
            gpu=one.row.gpu,
            group=one.row.model + (", host-bound" if one.is_host_bound else ""),
            measured=one.row.measured_seconds,
            predicted=one.predicted.middle,
            untrained=one.untrained,
            roofline=one.roofline,
            interval=one.predicted,
        )


def sample_scores(steps: Iterable[ScoredStep]) -> Iterator[Score]:
    """Return the time of one additional sample, from each step to the next with `GROWTH` times its samples."""
    groups: dict[tuple[str, str, str], dict[int, ScoredStep]] = defaultdict(dict)
    for one in steps:
        if one.row.samples is not None and one.row.samples > 1 and not one.is_host_bound:
            groups[one.row.table, one.row.gpu, one.row.model][one.row.samples] = one
    for (_, gpu, model), members in groups.items():
        sizes = sorted(members)
        while sizes:
            smaller = sizes.pop(0)
            larger = next((size for size in sizes if size >= GROWTH * smaller), None)
            if larger is None:
                break
            sizes = [size for size in sizes if size >= larger]
            first, second = members[smaller], members[larger]
            if second.row.measured_seconds <= first.row.measured_seconds:
                continue

            def added(
                of: Callable[[ScoredStep], float],
                first: ScoredStep = first,
                second: ScoredStep = second,
                more: int = larger - smaller,
            ) -> float:
                return (of(second) - of(first)) / more

            yield Score(
                gpu=gpu,
                group=model,
                measured=added(lambda one: one.row.measured_seconds),
                predicted=added(lambda one: one.predicted.middle),
                untrained=added(lambda one: one.untrained),
                roofline=added(lambda one: one.roofline),
            )


def ratio_scores(steps: Iterable[ScoredStep]) -> Iterator[Score]:
    """Give each GPU's step over another's in the same table, of one model and size, both bound by the device."""
    groups: dict[tuple[str, str, int | None], list[ScoredStep]] = defaultdict(list)
    for one in steps:
        if not one.is_host_bound:
            groups[one.row.table, one.row.model, one.row.samples].append(one)
    for members in groups.values():
        for origin, target in permutations(members, 2):
            if origin.row.gpu != target.row.gpu:
                yield Score(
                    gpu=target.row.gpu,
                    group=f"{target.row.model} from {origin.row.gpu}",
                    measured=target.row.measured_seconds / origin.row.measured_seconds,
                    predicted=target.predicted.middle / origin.predicted.middle,
                    untrained=target.untrained / origin.untrained,
                    roofline=target.roofline / origin.roofline,
                )


HEADINGS: Final = (
    *("n", "mean %", "median %", "bias %", "in 90 %", "width"),
    *("untrained mean %", "median %", "roofline mean %", "median %"),
)


def score_table_cells(scores: Sequence[Score]) -> tuple[str, ...]:
    """Cells of a row: errors, how many the intervals hold and how wide they are, and both baselines' errors."""

    def errors(of: Callable[[Score], float]) -> list[float]:
        return [of(one) / one.measured - 1 for one in scores]

    def both(of: Callable[[Score], float]) -> tuple[str, str]:
        found = [abs(error) for error in errors(of)]
        return f"{100 * statistics.fmean(found):.1f}", f"{100 * statistics.median(found):.1f}"

    known = [(one.interval, one.measured) for one in scores if one.interval is not None]
    inside = f"{100 * statistics.fmean(i.low <= m <= i.high for i, m in known):.0f}" if known else "-"
    width = f"{statistics.geometric_mean(i.high / i.low for i, _ in known):.2f}" if known else "-"
    return (
        str(len(scores)),
        *both(lambda one: one.predicted),
        f"{100 * statistics.median(errors(lambda one: one.predicted)):+.1f}",
        inside,
        width,
        *both(lambda one: one.untrained),
        *both(lambda one: one.roofline),
    )


def print_grouped(scores: Sequence[Score], console: Console, *, title: str) -> None:
    """Print errors by GPU, by group and GPU, and over all; nothing without scores."""
    if not scores:
        return
    table = report_table(title, ("GPU", "group"), HEADINGS)
    by_gpu: dict[str, dict[str, list[Score]]] = defaultdict(lambda: defaultdict(list))
    for one in scores:
        by_gpu[one.gpu][one.group].append(one)
    for gpu, groups in sorted(by_gpu.items()):
        for group, members in sorted(groups.items()):
            table.add_row(gpu, group, *score_table_cells(members))
        table.add_row(gpu, "all", *score_table_cells([one for members in groups.values() for one in members]))
        table.add_section()
    table.add_row("all", "", *score_table_cells(scores))
    console.print(table)


def print_scores(steps: Sequence[ScoredStep], console: Console, *, title: str) -> None:
    """Print a table's absolute errors, the time of one additional sample, and ratios of GPUs."""
    print_grouped(tuple(absolute_scores(steps)), console, title=f"{title}: steps")
    print_grouped(tuple(sample_scores(steps)), console, title=f"{title}: what one more sample adds")
    print_grouped(tuple(ratio_scores(steps)), console, title=f"{title}: one GPU's step over another's")


def print_peers(errors: Mapping[str, Sequence[float]], console: Console) -> None:
    """Print the mean errors that a paper states of itself and others."""
    for name, own in errors.items():
        console.print(f"{name}, as published: mean {100 * statistics.fmean(own):.1f} % over {len(own)} steps")
