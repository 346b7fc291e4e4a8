"""Choose two constants of the package on families of models that they are not judged on.

`CORRECTION_EXPONENT` says how far one GPU's error corrects another's. Of two GPUs that ran the same benchmark in the
same container, one is the GPU in use: its error, to a power from 0 (no correction) to 1 (all of it), corrects the
prediction for the other. The power is chosen on all families of models but one and judged on the one left out.

`FAMILY_CORRELATION` says how far the errors of families of operations go together. Every published iteration is
predicted with intervals under several correlations. The least that gives the 90 % interval its 90 % is chosen on all
families of models but one, and judged on the one left out. Cases that are shown apart for a known reason (throttled
cards, compiled code, routed tokens) have no say. Example::

    study = correction_study(report.ratios)
    study.held_out_error, study.uncorrected_error
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, final

from rich import box
from rich.table import Table

from benchmarks.accuracy.throughput import THROUGHPUT_TABLE, RatioResult, ThroughputCase, read_throughput_cases
from benchmarks.accuracy.transformers import (
    TRANSFORMERS_TABLE,
    TransformerCase,
    evaluate_in_groups,
    read_transformer_cases,
)
from benchmarks.accuracy.workloads.benchmarks import benchmark_trace
from benchmarks.accuracy.workloads.published import published_trace
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.same_gpu_check import CORRECTION_EXPONENT
from lightning_predict.timeline.step_prediction import predict_steps
from lightning_predict.uncertainty import FAMILY_CORRELATION

EXPONENTS: Final = tuple(number / 20 for number in range(21))

FAMILY_OF: Final[Mapping[str, str]] = {
    "bert_base_squad": "BERT",
    "bert_large_squad": "BERT",
    "transformerxlbase": "Transformer-XL",
    "transformerxllarge": "Transformer-XL",
    "BERT-Large": "BERT",
    "GPT2-Large": "GPT",
    "GPT3-XL": "GPT",
    "GPT3-2.7B": "GPT",
    "OPT-1.3B": "GPT",
}
"""Models that are one architecture in several sizes: all sizes are left out together."""


@final
@dataclass(frozen=True, slots=True)
class CorrectionScore:
    """One family of models, judged by a power that was chosen without it.

    Attributes:
        family: Its name.
        exponent: Power with the least median error on all other families.
        errors: Error of each pair of this family by that power.
        uncorrected: The same without a correction.
        fully_corrected: The same with all of it.
    """

    family: str
    exponent: float
    errors: tuple[float, ...]
    uncorrected: tuple[float, ...]
    fully_corrected: tuple[float, ...]


@final
@dataclass(frozen=True, slots=True)
class CorrectionStudy:
    """Each family left out once."""

    families: tuple[CorrectionScore, ...]

    @property
    def held_out_error(self) -> float:
        """Median of |error| over all pairs, each by a power that did not see its family; nan without pairs."""
        return _median(error for family in self.families for error in family.errors)

    @property
    def uncorrected_error(self) -> float:
        """The same without a correction."""
        return _median(error for family in self.families for error in family.uncorrected)

    @property
    def fully_corrected_error(self) -> float:
        """The same with all of it."""
        return _median(error for family in self.families for error in family.fully_corrected)


def corrected_error(pair: RatioResult, exponent: float) -> float:
    """Error of a pair's target, predicted over measured less one, where the origin's error corrects it."""
    origin = pair.origin.case.measured_per_second / pair.origin.predicted_per_second
    corrected = pair.target.predicted_per_second * origin**exponent
    return float(corrected / pair.target.case.measured_per_second - 1)


def correction_study(pairs: Sequence[RatioResult]) -> CorrectionStudy:
    """The study over all ordered pairs of GPUs."""
    groups: dict[str, list[RatioResult]] = defaultdict(list)
    for pair in pairs:
        model = pair.target.case.model
        groups[FAMILY_OF.get(model, model)].append(pair)
    found = []
    for family, members in sorted(groups.items()):
        others = [pair for other, own in groups.items() if other != family for pair in own]
        exponent = best_exponent(others)
        found.append(CorrectionScore(family, exponent, *(_errors(members, power) for power in (exponent, 0.0, 1.0))))
    return CorrectionStudy(tuple(found))


def best_exponent(pairs: Sequence[RatioResult]) -> float:
    """The power with the least median error; the smaller of two alike. Without pairs there is no correction."""
    if not pairs:
        return 0.0
    return min(EXPONENTS, key=lambda power: _median(_errors(pairs, power)))


def correction_table(study: CorrectionStudy) -> Table:
    """The study for the terminal."""
    table = Table(
        title="Prediction corrected by the error on another GPU in the same container, to a power chosen on the other "
        f"models; in use: {CORRECTION_EXPONENT:g}",
        box=box.SIMPLE,
    )
    table.add_column("left out", no_wrap=True)
    for heading in ("pairs", "power", "corrected median %", "uncorrected median %", "fully corrected median %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in study.families:
        medians = (_median(errors) for errors in (one.errors, one.uncorrected, one.fully_corrected))
        table.add_row(one.family, str(len(one.errors)), f"{one.exponent:.2f}", *map(_percent, medians))
    count = sum(len(one.errors) for one in study.families)
    together = (study.held_out_error, study.uncorrected_error, study.fully_corrected_error)
    table.add_section()
    table.add_row("all", str(count), "", *map(_percent, together))
    return table


def _errors(pairs: Sequence[RatioResult], exponent: float) -> tuple[float, ...]:
    return tuple(corrected_error(pair, exponent) for pair in pairs)


def _median(errors: Iterable[float]) -> float:
    absolute = [abs(error) for error in errors]
    return statistics.median(absolute) if absolute else float("nan")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


CORRELATIONS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
TO_HOLD: Final = 0.9


@final
@dataclass(frozen=True, slots=True)
class Held:
    """One published iteration.

    Attributes:
        family: Family of its model.
        is_inside: Whether the interval holds the measured time, by correlation.
    """

    family: str
    is_inside: Mapping[float, bool]


@final
@dataclass(frozen=True, slots=True)
class CorrelationScore:
    """One family of models, judged by a correlation that was chosen without it.

    Attributes:
        family: Its name.
        cases: Number of its cases.
        correlation: The least with which 90 % of the other families' cases are held.
        held: Share of its own cases that are held with that.
        held_by: The same by correlation.
    """

    family: str
    cases: int
    correlation: float
    held: float
    held_by: Mapping[float, float]


def least_correlation(cases: Sequence[Held]) -> float:
    """The least correlation with which `TO_HOLD` of the cases are held; the largest where none is enough."""
    enough = (value for value in CORRELATIONS if _share(case.is_inside[value] for case in cases) >= TO_HOLD)
    return next(enough, CORRELATIONS[-1])


def interval_study(cases: Sequence[Held]) -> tuple[CorrelationScore, ...]:
    """Each family left out once."""
    found = []
    for family in sorted({case.family for case in cases}):
        own = [case for case in cases if case.family == family]
        chosen = least_correlation([case for case in cases if case.family != family])
        held_by = {value: _share(case.is_inside[value] for case in own) for value in CORRELATIONS}
        found.append(CorrelationScore(family, len(own), chosen, held_by[chosen], held_by))
    return tuple(found)


def study_table(study: Sequence[CorrelationScore]) -> Table:
    """The study for the terminal."""
    table = Table(
        title="Cases held by the 90 % interval, % by correlation between families of operations; in use: "
        f"{FAMILY_CORRELATION:g}",
        box=box.SIMPLE,
    )
    table.add_column("left out", no_wrap=True)
    for heading in ("cases", "chosen", "held", *(f"{value:g}" for value in CORRELATIONS)):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in study:
        shares = (f"{100 * one.held_by[value]:.0f}" for value in CORRELATIONS)
        table.add_row(one.family, str(one.cases), f"{one.correlation:g}", f"{100 * one.held:.0f}", *shares)
    count = sum(one.cases for one in study)
    if count:
        held = sum(one.held * one.cases for one in study) / count
        totals = (sum(one.held_by[value] * one.cases for one in study) / count for value in CORRELATIONS)
        table.add_section()
        table.add_row("all", str(count), "", f"{100 * held:.0f}", *(f"{100 * total:.0f}" for total in totals))
    return table


def held_cases(folder: Path, *, weights: Path | None = None, jobs: int = 2) -> tuple[Held, ...]:
    """Every case of the tables in a folder that is not shown apart; errors as for `evaluate_published`."""
    transformers, throughput = folder / TRANSFORMERS_TABLE, folder / THROUGHPUT_TABLE
    scored = [one for one in read_transformer_cases(transformers) if one.is_scored] if transformers.is_file() else []
    rows = read_throughput_cases(throughput) if throughput.is_file() else ()
    first = evaluate_in_groups(
        scored,
        key=lambda case: (case.model, case.mode, case.length, case.batch),
        evaluate=partial(_held_transformers, weights=weights),
        jobs=jobs,
    )
    second = evaluate_in_groups(
        rows,
        key=lambda case: (case.model, case.precision, case.batch, case.software),
        evaluate=partial(_held_benchmarks, weights=weights),
        jobs=jobs,
    )
    return first + second


def _held_transformers(cases: Sequence[TransformerCase], weights: Path | None) -> list[Held]:
    first = cases[0]
    trace = published_trace(first.model, mode=first.mode, length=first.length, batch=first.batch)
    measured = [(case.gpu, case.measured_seconds) for case in cases]
    return _held(trace, FAMILY_OF.get(first.model, first.model), measured, weights)


def _held_benchmarks(cases: Sequence[ThroughputCase], weights: Path | None) -> list[Held]:
    first = cases[0]
    recorded = benchmark_trace(first.model, precision=first.precision, batch=first.batch, torch_release=first.software)
    measured = [(case.gpu, recorded.units / case.measured_per_second) for case in cases]
    return _held(recorded.trace, FAMILY_OF.get(first.model, first.model), measured, weights)


def _held(trace: Trace, family: str, measured: Sequence[tuple[str, float]], weights: Path | None) -> list[Held]:
    """One step on the GPUs that it was measured on, by name with seconds."""
    names = tuple(dict.fromkeys(name for name, _ in measured))
    gpus = [find_gpu(name) for name in names]
    models = kernel_models(names, None if weights is None else str(weights))
    timed = predict_work_times(trace, gpus, origin=None, models=models)
    by_correlation = {value: predict_steps(trace, timed, gpus, correlation=value) for value in CORRELATIONS}
    return [
        Held(
            family,
            {
                value: steps[names.index(name)].low_seconds <= seconds <= steps[names.index(name)].high_seconds
                for value, steps in by_correlation.items()
            },
        )
        for name, seconds in measured
    ]


def _share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return statistics.fmean(values) if values else 1.0
