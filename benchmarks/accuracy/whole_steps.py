"""Every published whole step, with the share of the predicted time by kind of work: what calibration learns from.

A case is one row of a table on one GPU, predicted from shapes alone: transformers, training benchmarks, steps of timm
and torchvision, and KernelBench's modules in eager mode. Recording the steps takes minutes, so they are kept in a
folder; of vision models only those count that it holds (`--of timm` and `--of torchvision` record them). Example::

    python -m benchmarks.accuracy FOLDER --of steps --cache recorded-steps --output whole_steps.json

    cases = whole_steps(Path("validation"), cache=Path("recorded-steps"))
    print_report(cases, Console())     # errors and intervals: seen, GPUs left out, sources left out
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.operator_tables import EAGER, KERNEL_BENCH, baselines, kernel_bench_times, least_seconds
from benchmarks.accuracy.published_steps import LIN_TABLE, MILABENCH_TABLE, READERS, PublishedStep
from benchmarks.accuracy.step_calibration import (
    StepCase,
    StepFit,
    corrected,
    corrected_left_out,
    fit_spread,
    fit_steps,
    spread_as_new,
    spread_left_out,
    spread_out,
)
from benchmarks.accuracy.throughput import THROUGHPUT_TABLE, read_throughput_cases
from benchmarks.accuracy.transformers import TRANSFORMERS_TABLE, evaluate_in_groups, read_transformer_cases
from benchmarks.accuracy.vision import (
    TIMM_TABLE,
    TORCHVISION_TABLE,
    VisionCase,
    read_timm_cases,
    read_torchvision_cases,
)
from benchmarks.accuracy.workloads.benchmarks import benchmark_trace, units_per_sample
from benchmarks.accuracy.workloads.published import published_trace
from benchmarks.accuracy.workloads.vision import vision_trace
from benchmarks.scored_steps import ScoredRow, published_cases
from benchmarks.training.report import report_table
from lightning_predict.base.interval import Interval
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.corrections import gpu_bias_factor
from lightning_predict.kernels.measured_scaling import WorkTimes, predict_work_times
from lightning_predict.kernels.models import BundledModels, kernel_models
from lightning_predict.record.trace import Trace
from lightning_predict.reports.published_cases import PublishedCase, describe
from lightning_predict.timeline.step_prediction import predict_steps
from lightning_predict.uncertainty import UNCALIBRATED, StepSpread, bundled_spread

NOT_TRAINED_IN: Final = "double"
"""Precision of steps that are scored in their own table alone: hardly anybody trains in it."""

MODULES: Final = "KernelBench"
"""Table whose rows are mostly modules of a few operations."""

HOST_SHARE: Final = 0.6
"""A step counts as bound by the device where a median host needs less than this share of the device's time: then even
a host 1.7 times as slow, as slow as one host in ten, is not the bottleneck."""

DTYPE_CLASSES: Final[Mapping[str, str]] = {"float16": "16-bit", "bfloat16": "16-bit"}
"""Dtypes that share a factor; each other one has its own."""

KINDS: Final[Sequence[tuple[str, str]]] = (
    ("convolutions", r"conv"),
    ("attention", r"attention"),
    ("recurrent", r"lstm|gru|rnn"),
    ("products", r"linear|bmm|gemm"),
    ("norms", r"norm|softmax"),
)
"""Kinds of work by what an operation's name holds, the first that fits; all else moves memory."""


def published_steps(folder: Path, cache: Path) -> Iterator[PublishedStep]:
    """Rows of all tables that a folder holds; errors as for the tables' readers."""
    if (folder / TRANSFORMERS_TABLE).is_file():
        for one in read_transformer_cases(folder / TRANSFORMERS_TABLE):
            if one.is_scored:
                key = (one.model, one.mode, str(one.length), str(one.batch))
                yield PublishedStep(
                    table="transformers",
                    source="NeuSight",
                    gpu=one.gpu,
                    model=f"{one.model} {one.mode}",
                    file=f"transformers-{'-'.join(key)}.json.gz",
                    measured_seconds=one.measured_seconds,
                    record=partial(published_trace, one.model, mode=one.mode, length=one.length, batch=one.batch),
                )
    if (folder / THROUGHPUT_TABLE).is_file():
        for row in read_throughput_cases(folder / THROUGHPUT_TABLE):
            yield PublishedStep(
                table="benchmarks",
                source=row.software,
                gpu=row.gpu,
                model=f"{row.model} {row.precision}",
                file=f"benchmarks-{row.model}-{row.precision}-{row.batch}-torch-{row.software}.json.gz",
                measured_seconds=units_per_sample(row.model) * row.batch / row.measured_per_second,
                record=partial(_benchmark, row.model, row.precision, row.batch, row.software),
                release=row.software,
                samples=row.batch,
            )
    if (folder / TIMM_TABLE).is_file():
        yield from (_of_vision(case, cache) for case in read_timm_cases(folder / TIMM_TABLE))
    if (folder / TORCHVISION_TABLE).is_file():
        cases = read_torchvision_cases(folder / TORCHVISION_TABLE)
        yield from (_of_vision(case, cache) for case in cases if case.step.precision != NOT_TRAINED_IN)
    for table in (MILABENCH_TABLE, LIN_TABLE):
        if (folder / table).is_file():
            yield from (row for row in READERS[table](folder) if not row.waits_for_input)
    if (folder / KERNEL_BENCH).is_dir():
        for (gpu, trace, machine), modes in kernel_bench_times(folder / KERNEL_BENCH, None).items():
            path = folder / KERNEL_BENCH / trace
            if EAGER in modes and path.is_file():
                yield PublishedStep(
                    table=MODULES,
                    source=machine,
                    gpu=gpu,
                    model=trace,
                    file=str(path.resolve()),
                    measured_seconds=statistics.median(modes[EAGER]),
                    record=partial(Trace.load, str(path)),
                )


def _benchmark(model: str, precision: str, batch: int, software: str) -> Trace:
    return benchmark_trace(model, precision=precision, batch=batch, torch_release=software).trace


def _of_vision(case: VisionCase, cache: Path) -> PublishedStep:
    """A step of a vision model; as hundreds of models take an hour, only of those that were recorded."""
    is_there = (cache / case.step.file_name).is_file()
    return PublishedStep(
        table=case.step.source,
        source=case.software,
        gpu=case.gpu,
        model=f"{case.step.model} {case.step.mode} {case.step.precision} {case.step.layout}",
        file=case.step.file_name,
        measured_seconds=case.measured_seconds,
        record=partial(vision_trace, case.step, cache) if is_there else _nothing,
        release=case.software,
    )


def _nothing() -> None:
    return None


def whole_steps(folder: Path, *, cache: Path, weights: Path | None = None, jobs: int = 2) -> tuple[StepCase, ...]:
    """Predict every row whose step can be recorded and that the device bounds, with its operations' own intervals.

    Args:
        folder: Folder of the tables.
        cache: Folder that keeps the recorded steps.
        weights: Folder or file of weights; None searches as `predict` does.
        jobs: Steps at a time.

    Raises:
        MeasurementTableError: A table has a wrong column or value.
        WeightsError: Weights that cannot be found or trusted.
    """
    models_of = partial(kernel_models, weights=None if weights is None else str(weights))
    return predicted_steps(tuple(published_steps(folder, cache)), cache=cache, models_of=models_of, jobs=jobs)


def predicted_steps(
    rows: Sequence[PublishedStep],
    *,
    cache: Path,
    models_of: Callable[[tuple[str, ...]], BundledModels],
    seen_as: Mapping[str, Gpu] | None = None,
    jobs: int = 2,
) -> tuple[StepCase, ...]:
    """Predict these rows as `whole_steps` does.

    Args:
        rows: Rows of the tables.
        cache: Folder that keeps the recorded steps.
        models_of: Gives the models for GPUs by name.
        seen_as: GPUs that are predicted by other figures than the catalogue's, by name; not where a row has its own.
        jobs: Steps at a time.
    """
    cache.mkdir(parents=True, exist_ok=True)
    found = evaluate_in_groups(
        rows,
        key=lambda row: row.step,
        evaluate=partial(_predicted, cache=cache, models_of=models_of, seen_as={**(seen_as or {})}),
        jobs=jobs,
    )
    return tuple(case for case in found if case is not None)


def _predicted(
    rows: Sequence[PublishedStep],
    cache: Path,
    models_of: Callable[[tuple[str, ...]], BundledModels],
    seen_as: dict[str, Gpu],
) -> list[StepCase | None]:
    """Cases of rows that ran the same step under one release, which is recorded once."""
    trace = rows[0].recorded(cache)
    if trace is None:
        return [None] * len(rows)
    others = {row.gpu: row.on for row in rows if row.on != find_gpu(row.gpu)}
    gpus = list({row.gpu: (seen_as | others).get(row.gpu, row.on) for row in rows}.values())
    names = tuple(gpu.name for gpu in gpus)
    timed = predict_work_times(trace, gpus, origin=None, models=models_of(names))
    steps = predict_steps(trace, timed, gpus, spread=UNCALIBRATED)
    least, (rooflines, fallbacks) = least_seconds(trace), baselines(trace, gpus)
    description = describe(trace)
    cases: list[StepCase | None] = []
    for row in rows:
        place = names.index(row.gpu)
        step = steps[place]
        is_bound = row.measured_seconds >= least and step.host_seconds < HOST_SHARE * step.device_seconds
        cases.append(
            StepCase(
                table=row.table,
                source=row.source,
                gpu=row.gpu,
                model=row.model,
                measured_seconds=row.measured_seconds,
                predicted=Interval(step.low_seconds, step.seconds, step.high_seconds),
                shares=_shares(timed, place, gpus[place]),
                is_model=row.table != MODULES,
                baselines={"roofline": rooflines[row.gpu], "untrained": fallbacks[row.gpu]},
                samples=row.samples,
                step=description,
            )
            if is_bound
            else None
        )
    return cases


def _shares(timed: WorkTimes, row: int, gpu: Gpu) -> Mapping[str, float]:
    """Share of the device time by kind of work, class of dtype and kind of memory."""
    seconds: dict[str, float] = defaultdict(float)
    memory = "/HBM" if gpu.has_stacked_memory else ""
    for column, (family, item) in enumerate(zip(timed.families, timed.items, strict=True)):
        kind = next((name for name, pattern in KINDS if re.search(pattern, family)), "memory")
        dtype = item.problems[0].dtype if item.problems else ""
        seconds[f"{kind}/{DTYPE_CLASSES.get(dtype, dtype)}{memory}"] += float(timed.seconds[row, column])
    total = math.fsum(seconds.values())
    return {kind: own / total for kind, own in seconds.items()} if total > 0 else {}


LEFT_OUT: Final[Mapping[str, Callable[[StepCase], Hashable]]] = {
    "GPUs": lambda case: case.gpu,
    "sources": lambda case: (case.table, case.source),
    "tables": lambda case: case.table,
}
"""Rows that are left out together."""


def print_report(cases: Sequence[StepCase], console: Console) -> None:
    """Print errors with and without factors, and how much the intervals hold: seen, and with groups left out.

    Args:
        cases: Steps with their operations' own intervals (`UNCALIBRATED`).
        console: Where to.
    """
    fit = fit_steps(cases)
    console.print(_baseline_table(cases))
    console.print(behind_table(cases))
    console.print(effects_table(cases))
    console.print(_table("Whole steps as predicted, with the operations' own intervals", cases))
    console.print(_table("With a factor for each kind of work, all cases seen", [corrected(one, fit) for one in cases]))
    for name, key in LEFT_OUT.items():
        title = f"With a factor for each kind of work, {name} left out in turn"
        console.print(_table(title, corrected_left_out(cases, key)))
    console.print(_factors(fit))
    used, seen = bundled_spread(), fit_spread(cases)
    console.print(
        _table(f"Without factors, intervals as they ship ({_words(used)})", [spread_as_new(one, used) for one in cases])
    )
    console.print(_table(f"Intervals fitted to all cases ({_words(seen)})", [spread_out(one, seen) for one in cases]))
    console.print(machines_table(cases, used))
    left_out = {f"new {name.removesuffix('s')}": spread_left_out(cases, key) for name, key in LEFT_OUT.items()}
    console.print(novelty_table({"seen": [spread_out(one, seen) for one in cases], **left_out}))


MACHINES_SPREAD: Final = 1.14
"""Rate of large products on the fastest machine over the slowest one with the same GPU, as published."""

MATRIX_KINDS: Final = ("products", "attention", "convolutions", "recurrent")
"""Kinds of work whose clock power and cooling limit."""


def machines_table(cases: Sequence[StepCase], spread: StepSpread) -> Table:
    """Write coverage and width of each table with an additional half width for machines with the same GPU.

    The half width in log(seconds) is half of the published spread, or the whole spread, times the share of the work on
    matrix units. The intervals that ship have no such part beside that of a new source, which contains it.

    Args:
        cases: Steps with their operations' own intervals.
        spread: The spread that ships.
    """
    headings = [f"{name}: {what}" for name in ("none", "half", "whole") for what in ("in 90 %", "width")]
    table = report_table("Spread of machines with the same GPU", ("table",), ("n", *headings), no_wrap=False)

    def widened(case: StepCase, part: float) -> StepCase:
        share = sum(own for kind, own in case.shares.items() if kind.split("/")[0] in MATRIX_KINDS)
        besides = math.hypot(float(spread.of_new_chips([case.gpu])[0]), part * math.log(MACHINES_SPREAD) * share)
        return spread_out(case, spread, besides)

    for name in _tables(cases):
        members = [case for case in cases if case.table == name]
        cells = [cell for part in (0, 0.5, 1) for cell in _cells(_score([widened(one, part) for one in members]))[-2:]]
        table.add_row(name, str(len(members)), *cells)
    return table


def novelty_table(found: Mapping[str, Sequence[StepCase]]) -> Table:
    """Write coverage and width of each table by what is new to the calibration.

    Args:
        found: The same cases by the kind of novelty, each with the interval of a calibration without its group.
    """
    headings = [f"{name}: {what}" for name in found for what in ("in 90 %", "width")]
    table = report_table("Intervals by what is new", ("table",), ("n", *headings), no_wrap=False)
    for name in _tables(next(iter(found.values()))):
        groups = [[case for case in cases if case.table == name] for cases in found.values()]
        cells = [cell for members in groups for cell in _cells(_score(members))[-2:]]
        table.add_row(name, str(len(groups[0])), *cells)
    return table


def _words(spread: StepSpread) -> str:
    """Name the widths of a spread."""
    return f"operations x{spread.operations_factor:.3f}, new source {spread.new_source:.3f}"


NO_COPIES: Final = ("benchmarks", "torchvision")
"""Tables whose licence does not allow copies of their values."""


def published(cases: Sequence[StepCase]) -> tuple[PublishedCase, ...]:
    """Summarise the steps of whole models by table, model, GPU and precision, with the intervals that ship."""
    spread = bundled_spread()
    found: list[PublishedCase] = []
    for table in _tables(cases):
        rows = [
            ScoredRow(
                names=(one.model,), gpu=one.gpu, step=one.step, measured=one.measured_seconds, predicted=spread_of
            )
            for one in cases
            if one.table == table and one.is_model and one.step is not None
            for spread_of in [spread_as_new(one, spread).predicted]
        ]
        found += published_cases(rows, source=table, split="fitted", copies_allowed=table not in NO_COPIES)
    return tuple(found)


def write_spread(cases: Sequence[StepCase], path: Path) -> None:
    """Fit the spread of whole steps and write it with its provenance.

    Raises:
        OSError: The file cannot be written.
    """
    spread, fit = fit_spread(cases), fit_steps(cases)
    left_out = {name: spread_left_out(cases, key) for name, key in LEFT_OUT.items()}
    content = {
        "spread": {
            "kept": round(spread.operations_factor, 3),
            "new_source": round(spread.new_source, 3),
            "known_gpus": sorted(spread.known_gpus),
        },
        "provenance": {
            "cases": {table: sum(one.table == table for one in cases) for table in _tables(cases)},
            "gpus": sorted({one.gpu for one in cases}),
            "sources": len({LEFT_OUT["sources"](one) for one in cases}),
            "deviations": {name: round(value, 3) for name, value in fit.deviations.items()},
            "held_left_out": {
                name: {
                    table: round(statistics.fmean(one.is_inside for one in found if one.table == table), 3)
                    for table in _tables(cases)
                }
                for name, found in left_out.items()
            },
            "command": "python -m benchmarks.accuracy FOLDER --of steps --cache STEPS --output whole_steps.json",
        },
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _tables(cases: Iterable[StepCase]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(case.table for case in cases))


def _factors(fit: StepFit) -> Table:
    """Factors with their deviations, and the deviations of effects."""
    table = report_table("Measured over predicted time by kind of work", ("kind",), ("factor", "±"))
    for kind, factor in fit.factors.items():
        table.add_row(kind, f"{factor:.2f}", f"{fit.errors[kind]:.2f}")
    table.add_section()
    for name, deviation in fit.deviations.items():
        table.add_row(f"deviation of the {name}", "", f"{deviation:.2f}")
    return table


def _table(title: str, cases: Sequence[StepCase]) -> Table:
    """Errors, coverage and width by table; in the last row each table counts as much as another."""
    table = report_table(title, ("table",), ("n", "median %", "bias %", "in 90 %", "width"))
    scores = {}
    for name in _tables(cases):
        members = [case for case in cases if case.table == name]
        scores[name] = _score(members)
        table.add_row(name, str(len(members)), *_cells(scores[name]))
    table.add_section()
    if scores:
        means = tuple(statistics.fmean(column) for column in zip(*scores.values(), strict=True))
        table.add_row("mean of the tables", str(len(cases)), *_cells(means))
    return table


def _baseline_table(cases: Sequence[StepCase]) -> Table:
    """Median errors by table with simpler predictors of the device's time: seen GPUs, as no weight was fitted."""
    names = tuple(dict.fromkeys(name for case in cases for name in case.baselines))
    headings = [f"{name} {what} %" for name in ("predicted", *names) for what in ("median", "bias")]
    table = report_table("Whole steps and simpler predictors of the device's time", ("table",), ("n", *headings))
    for name in _tables(cases):
        members = [case for case in cases if case.table == name]
        row = [name, str(len(members))]
        for predictor in (None, *names):
            errors = _errors(members, predictor)
            row += [f"{100 * statistics.median(map(abs, errors)):.1f}", f"{100 * statistics.median(errors):+.1f}"]
        table.add_row(*row)
    return table


GROUPS: Final[Mapping[str, Callable[[StepCase], str]]] = {
    "GPU": lambda case: case.gpu,
    "model": lambda case: case.model,
    "most of the time": lambda case: max(case.shares, key=case.shares.__getitem__, default="nothing"),
}
"""Ways to divide a table in which a simpler predictor may be nearer."""

LARGE_GROUP: Final = 10
"""Rows beyond which a group says more than its rows' own peculiarities."""


def behind_table(cases: Sequence[StepCase]) -> Table:
    """List the groups of more than `LARGE_GROUP` rows in which a simpler predictor has the least median error.

    In the last column each source's rows are predicted as is nearest on the group's other sources: were the simpler
    predictor used there, this is its accuracy on an unseen source.
    """
    names = tuple(dict.fromkeys(name for case in cases for name in case.baselines))
    table = report_table(
        f"Groups of more than {LARGE_GROUP} rows in which a simpler predictor is nearer",
        ("table", "by", "group"),
        ("n", *(f"{name} median %" for name in ("predicted", *names)), "by other sources %"),
    )
    for by, key in GROUPS.items():
        groups: dict[tuple[str, str], list[StepCase]] = defaultdict(list)
        for case in cases:
            groups[case.table, key(case)].append(case)
        for (name, group), members in groups.items():
            errors = [statistics.median(map(abs, _errors(members, one))) for one in (None, *names)]
            if len(members) > LARGE_GROUP and min(errors) < errors[0]:
                errors.append(statistics.median(map(abs, chosen_by_others(members, names))))
                table.add_row(name, by, group, str(len(members)), *(f"{100 * error:.1f}" for error in errors))
    return table


def chosen_by_others(cases: Sequence[StepCase], names: Sequence[str]) -> list[float]:
    """Return errors by the predictor that is nearest on the cases of other sources; ours without such cases.

    Args:
        cases: A group of cases.
        names: The simpler predictors.
    """
    source, found = LEFT_OUT["sources"], []
    for left_out in dict.fromkeys(map(source, cases)):
        others = [case for case in cases if source(case) != left_out]
        medians = {one: statistics.median(map(abs, _errors(others, one))) for one in (None, *names) if others}
        chosen = min(medians, key=medians.__getitem__, default=None)
        found += _errors([case for case in cases if source(case) == left_out], chosen)
    return found


def effects_table(cases: Sequence[StepCase]) -> Table:
    """Print each GPU's deviation in the models of each table, the part that predictions contain, and the rest.

    Modules of a few operations say more of these than of the card.
    """
    table = report_table(
        "What each table says of a GPU: measured over predicted time, the median of whole models",
        ("GPU", "table"),
        ("n", "said %", "carried %", "left %"),
    )
    groups: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        if case.is_model:
            groups[case.gpu][case.table].append(case.log_ratio)
    for gpu, tables in sorted(groups.items()):
        carried = math.log(gpu_bias_factor(gpu))
        for name, ratios in tables.items():
            left = statistics.median(ratios)
            cells = (f"{100 * math.expm1(value):+.1f}" for value in (left + carried, carried, left))
            table.add_row(gpu, name, str(len(ratios)), *cells)
        if len(tables) > 1:
            table.add_section()
    return table


def _errors(cases: Sequence[StepCase], predictor: str | None) -> list[float]:
    """Errors of the prediction, or of a simpler predictor by its name."""
    return [
        (case.predicted.middle if predictor is None else case.baselines[predictor]) / case.measured_seconds - 1
        for case in cases
    ]


def _score(cases: Sequence[StepCase]) -> tuple[float, ...]:
    """Median of |error|, median error, share that the interval holds, geometric mean of its width."""
    errors = [math.expm1(-case.log_ratio) for case in cases]
    return (
        statistics.median(map(abs, errors)),
        statistics.median(errors),
        statistics.fmean(case.is_inside for case in cases),
        math.exp(statistics.fmean(math.log(case.width) for case in cases)),
    )


def _cells(score: tuple[float, ...]) -> tuple[str, ...]:
    median, bias, inside, width = score
    return f"{100 * median:.1f}", f"{100 * bias:+.1f}", f"{100 * inside:.0f}", f"{width:.2f}"
