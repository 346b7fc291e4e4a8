"""How far the errors of families of operations go together: the study behind `FAMILY_CORRELATION`.

Every published iteration is predicted with intervals under several correlations. The least that gives the 90 % interval
its 90 % is chosen on all families of models but one, and judged on the one left out. Cases that are shown apart for a
known reason (throttled cards, compiled code, routed tokens) have no say. Example::

    python -m lightning_predict.fitting.evaluation_intervals validation
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, final

from rich import box
from rich.console import Console
from rich.table import Table

from lightning_predict.errors import LightningPredictError
from lightning_predict.fitting.evaluation import THROUGHPUT_TABLE, TRANSFORMERS_TABLE
from lightning_predict.fitting.evaluation_correction import FAMILY_OF
from lightning_predict.fitting.evaluation_groups import evaluate_in_groups
from lightning_predict.fitting.evaluation_throughput import ThroughputCase, read_throughput_cases
from lightning_predict.fitting.evaluation_transformers import TransformerCase, read_transformer_cases
from lightning_predict.fitting.workloads.benchmarks import benchmark_trace
from lightning_predict.fitting.workloads.published import published_trace
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.kernels.choice import timed_work
from lightning_predict.kernels.models import kernel_models
from lightning_predict.timeline.queues import FAMILY_CORRELATION, iterations
from lightning_predict.tracing.records import Trace

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
class LeftOut:
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


def interval_study(cases: Sequence[Held]) -> tuple[LeftOut, ...]:
    """Each family left out in turn."""
    found = []
    for family in sorted({case.family for case in cases}):
        own = [case for case in cases if case.family == family]
        chosen = least_correlation([case for case in cases if case.family != family])
        held_by = {value: _share(case.is_inside[value] for case in own) for value in CORRELATIONS}
        found.append(LeftOut(family, len(own), chosen, held_by[chosen], held_by))
    return tuple(found)


def study_table(study: Sequence[LeftOut]) -> Table:
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
        key=lambda case: (case.model, case.precision, case.batch),
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
    recorded = benchmark_trace(first.model, precision=first.precision, batch=first.batch)
    measured = [(case.gpu, recorded.units / case.measured_per_second) for case in cases]
    return _held(recorded.trace, FAMILY_OF.get(first.model, first.model), measured, weights)


def _held(trace: Trace, family: str, measured: Sequence[tuple[str, float]], weights: Path | None) -> list[Held]:
    """One step on the GPUs that it was measured on, by name with seconds."""
    names = tuple(dict.fromkeys(name for name, _ in measured))
    gpus = [find_gpu(name) for name in names]
    models = kernel_models(names, None if weights is None else str(weights))
    timed = timed_work(trace, gpus, origin=None, models=models)
    by_correlation = {value: iterations(trace, timed, gpus, correlation=value) for value in CORRELATIONS}
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 where it worked, 1 after an error in words."""
    parser = argparse.ArgumentParser(
        prog="python -m lightning_predict.fitting.evaluation_intervals", description=__doc__.split("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="folder of the tables of published iteration times")
    parser.add_argument("--weights", type=Path, default=None, help="weights to use (default: cache, then bundled)")
    options = parser.parse_args(arguments)
    try:
        Console(width=120).print(study_table(interval_study(held_cases(options.folder, weights=options.weights))))
    except (LightningPredictError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
