"""Score cases through the public interface, and summarise the errors: one runner for all accuracy tables.

A step is recorded once for all cases that name it, and predicted by `lp.predict` or `lp.advise` with the documented
arguments of its cases. Example::

    scored = score(cases)
    for table in tables("lin", scored):
        Console().print(table)
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any, Final

from rich.table import Table

import lightning_predict as lp
from benchmarks.accuracy.case import TITLES, Case, Quantity, Step
from benchmarks.training.report import report_table
from lightning_predict.kernels.interconnect import Interconnect

BITS_PER_GIGABIT: Final = 1e9
BITS_PER_BYTE: Final = 8

ALLOW: Final = ("numerics", "digits", "memory", "samples")
"""Side effects that advice may have when its gains are scored."""

SIMULATED_WITHIN: Final = 1.3
"""Half width, as a factor, of the interval of a simulated gain, which advice shows without one."""

Bounds = tuple[float, float, float]  # Low end of the 90 % interval, middle, high end


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A case with its prediction."""

    case: Case  # The case
    predicted: Bounds  # Low end of the 90 % interval, middle and high end
    description: Any = None  # What `describe` says of the recording

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted[1] / self.case.measured - 1

    @property
    def is_inside(self) -> bool:
        """Whether the interval holds the measured figure."""
        return self.predicted[0] <= self.case.measured <= self.predicted[2]

    @property
    def width(self) -> float:
        """High end of the interval over its low end."""
        return self.predicted[2] / self.predicted[0] if self.predicted[0] > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Unscored:
    """A case without a prediction, and why."""

    case: Case
    reason: str


def score(
    cases: Iterable[Case], *, cache: Path | None = None, describe: Callable[[lp.Trace], Any] = lambda _trace: None
) -> tuple[list[Scored], list[Unscored]]:
    """Predict cases as a user would.

    Args:
        cases: The cases.
        cache: Folder that keeps recorded steps; None records each anew.
        describe: Describes a recording, for the cases that ship with the package.
    """
    by_step: dict[Step, list[Case]] = defaultdict(list)
    for case in cases:
        by_step[case.step].append(case)
    scored: list[Scored] = []
    unscored: list[Unscored] = []
    for step, members in by_step.items():
        try:
            trace = recorded(step, cache)
        except Exception as error:  # a model that the installed release no longer has, a missing package
            unscored += [Unscored(case, f"not recorded: {_words(error)}") for case in members]
            continue
        description = describe(trace)
        for group in _asked_together(members).values():
            try:
                scored += [replace(one, description=description) for one in predicted(trace, group, cache)]
            except lp.LightningPredictError as error:
                unscored += [Unscored(case, _words(error)) for case in group]
    return scored, unscored


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:120]


def _asked_together(cases: Iterable[Case]) -> dict[Any, list[Case]]:
    """Group cases of one step by the arguments of their prediction, without the GPU."""
    groups: dict[Any, list[Case]] = defaultdict(list)
    for case in cases:
        alone = case.gpu if case.card is not None else ""
        key = (
            case.release,
            case.strategy,
            case.network_gbps,
            case.kernels,
            case.rates,
            case.change,
            case.further,
            alone,
        )
        groups[key].append(case)
    return groups


def recorded(step: Step, cache: Path | None) -> lp.Trace:
    """Record a step, or read it from a cache."""
    path = None if cache is None or Path(step.name).is_file() else cache / f"{step.name}.json.gz"
    if path is not None and path.is_file():
        return lp.Trace.load(str(path))
    trace = without_pauses(step.record())
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        trace.save(str(path))
    return trace


def without_pauses(trace: lp.Trace) -> lp.Trace:
    """Remove the pauses of the recording machine, which runs other work than the recording at the same time."""
    if trace.kernels or not any(operation.python_seconds for operation in trace.operations):
        return trace
    return replace(trace, operations=tuple(replace(operation, python_seconds=0.0) for operation in trace.operations))


def predicted(trace: lp.Trace, cases: Sequence[Case], cache: Path | None = None) -> Iterator[Scored]:
    """Predict cases of one step that differ by GPU and figure alone.

    Raises:
        LightningPredictError: A prediction failed.
    """
    first = cases[0]
    names = list(dict.fromkeys(case.gpu for case in cases))
    if first.change is not None:
        change = lp.advise(trace, names, allow=ALLOW, strategy=first.strategy)[first.change]
        for case in cases:
            name = lp.gpu(case.gpu).name
            gain, simulated = change.gains.get(name), change.simulated_gains.get(name)
            if gain is not None:
                shown = (gain.low, gain.middle, gain.high)
            elif simulated is not None:
                shown = (simulated / SIMULATED_WITHIN, simulated, simulated * SIMULATED_WITHIN)
            else:
                raise lp.LightningPredictError(f"no gain is promised: {change.why_not}")
            yield Scored(case=case, predicted=shown)
        return
    predictions = dict(zip(names, predictions_of(trace, first, names), strict=True))
    further = [
        (dict(zip(names, predictions_of(recorded(step, cache), first, names), strict=True)), count)
        for step, count in first.further
    ]
    for case in cases:
        prediction = predictions[case.gpu]
        bounds = figure_of(prediction, case.quantity)
        if bounds is None:
            raise lp.LightningPredictError(f"no {TITLES[case.quantity]} is predicted.")
        if case.quantity == "time":
            parts = [(bounds, case.count), *((_time(other[case.gpu]), count) for other, count in further)]
            bounds = tuple(math.fsum(count * part[end] for part, count in parts) for end in range(3))  # type: ignore[assignment]
        yield Scored(case=case, predicted=bounds)


WITHOUT_A_WORD: Final = ("megatron", "flash_attention_1")
"""Kernels that `lp.predict` cannot be asked for; steps with them are predicted as recorded."""


def predictions_of(trace: lp.Trace, case: Case, gpus: Sequence[str]) -> list[lp.Prediction]:
    """Predict a step on GPUs with the arguments of a case."""
    interconnect = None
    if case.network_gbps is not None:
        rate = case.network_gbps * BITS_PER_GIGABIT / BITS_PER_BYTE
        interconnect = Interconnect(inter_node_bytes_per_second=rate)
    predictions = lp.predict(
        trace,
        [case.card] if case.card is not None else list(gpus),
        strategy=case.strategy,
        release=case.release,
        kernels=[name for name in case.kernels if name not in WITHOUT_A_WORD],
        interconnect=interconnect,
        measured=dict(case.rates),
        history=False,
    )
    return list(predictions.values())


def figure_of(prediction: lp.Prediction, quantity: Quantity) -> Bounds | None:
    """Return the predicted figure of a step with its interval; None if it is unknown."""
    if quantity == "time":
        return _time(prediction)
    if quantity == "fits":
        chance = prediction.memory.fit_probability
        return None if chance is None else (chance, chance, chance)
    interval = getattr(prediction.memory, quantity)
    return None if interval is None else (interval.low, interval.middle, interval.high)


def _time(one: lp.Prediction) -> Bounds:
    return one.iteration_seconds_low, one.iteration_seconds, one.iteration_seconds_high


# --- Tables

MOST_MODELS: Final = 30  # Models beyond which comparisons of GPUs are not listed by model

HEADINGS: Final = ("n", "median %", "mean %", "bias %", "inside %", "width")


def cells(scored: Sequence[Scored]) -> tuple[str, ...]:
    """Return number, median, mean and bias of the errors, share inside the interval, and median width."""
    errors = [one.error for one in scored]
    sizes = [abs(error) for error in errors]
    return (
        f"{len(scored):,}",
        f"{100 * statistics.median(sizes):.1f}",
        f"{100 * statistics.fmean(sizes):.1f}",
        f"{100 * statistics.median(errors):+.1f}",
        f"{100 * statistics.fmean(one.is_inside for one in scored):.0f}",
        f"{statistics.median(one.width for one in scored):.2f}",
    )


def summary_table(name: str, quantity: Quantity, scored: Sequence[Scored]) -> Table:
    """Summarise the errors by source, worst first, and of all."""
    table = report_table(f"{name}: {TITLES[quantity]}, by source", ("source",), HEADINGS)
    by_source: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        by_source[one.case.source].append(one)
    if len(by_source) > 1:
        for source, own in sorted(by_source.items(), key=lambda item: -median_error(item[1])):
            table.add_row(source, *cells(own))
        table.add_section()
    if chosen := [one for one in scored if one.case.chosen_on]:
        table.add_row("constants chosen on them, not in all", *cells(chosen))
    headline = [one for one in scored if not one.case.chosen_on]
    if headline:
        table.add_row("all", *cells(headline))
    return table


def median_error(scored: Iterable[Scored]) -> float:
    """Return the median absolute error."""
    return statistics.median(abs(one.error) for one in scored)


def fits_table(name: str, scored: Sequence[Scored]) -> Table:
    """Count right verdicts of runs that fitted and that did not."""
    table = report_table(f"{name}: {TITLES['fits']}", ("runs",), ("n", "right %", "mean probability %"))
    outcomes: tuple[tuple[str, Callable[[Scored], bool]], ...] = (
        ("fitted", lambda one: one.case.measured == 1),
        ("did not fit", lambda one: one.case.measured == 0),
        ("all", lambda _one: True),
    )
    for words, belongs in outcomes:
        own = [one for one in scored if belongs(one)]
        if own:
            right = statistics.fmean((one.predicted[1] >= 0.5) == (one.case.measured == 1) for one in own)
            chance = statistics.fmean(one.predicted[1] for one in own)
            table.add_row(words, str(len(own)), f"{100 * right:.0f}", f"{100 * chance:.0f}")
    return table


SCALES: Final[dict[Quantity, tuple[float, str]]] = {  # Factor and unit in which a quantity is printed
    "time": (1e3, "ms"),
    "allocated": (2**-30, "GiB"),
    "reserved": (2**-30, "GiB"),
    "process": (2**-30, "GiB"),
    "gain": (1.0, "times"),
    "fits": (1.0, "probability"),
}


def each_table(name: str, quantity: Quantity, scored: Sequence[Scored]) -> Table:
    """List the cases."""
    scale, unit = SCALES[quantity]
    numbers = (f"measured {unit}", f"predicted {unit}", "error %", "inside", "width")
    table = report_table(f"{name}: {TITLES[quantity]}, each", ("model", "GPU", "setting"), numbers, no_wrap=False)
    for one in scored:
        case = one.case
        error = f"{100 * one.error:+.1f}" if case.measured else ""
        table.add_row(
            *(case.model, case.gpu, case.setting),
            *(number(scale * value) for value in (case.measured, one.predicted[1])),
            *(error, "yes" if one.is_inside else "no", f"{one.width:.2f}"),
        )
    return table


def number(value: float) -> str:
    """Write a number with three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio_table(name: str, scored: Sequence[Scored]) -> Table | None:
    """Compare each GPU's time with another's that ran the same step, as somebody does who knows their own speed.

    None if no two GPUs ran the same step.
    """
    alike: dict[tuple[Step, str | None, str], list[Scored]] = defaultdict(list)
    for one in scored:
        alike[one.case.step, one.case.release, one.case.setting].append(one)
    errors: dict[str, list[float]] = defaultdict(list)
    for members in alike.values():
        for origin, target in permutations(members, 2):
            if origin.case.gpu != target.case.gpu:
                errors[target.case.model.partition(",")[0]].append((1 + target.error) / (1 + origin.error) - 1)
    if not errors:
        return None
    table = report_table(f"{name}: time on one GPU from another's", ("model",), ("n", "median %", "mean %"))
    everything = [error for own in errors.values() for error in own]
    groups = sorted(errors.items()) if len(errors) <= MOST_MODELS else []
    for model, own in [*groups, ("all", everything)]:
        sizes = [abs(error) for error in own]
        table.add_row(
            model, f"{len(own):,}", f"{100 * statistics.median(sizes):.1f}", f"{100 * statistics.fmean(sizes):.1f}"
        )
    return table


def others_table(name: str, quantity: Quantity, scored: Sequence[Scored]) -> Table | None:
    """Compare our errors with those of other tools on the cases that they published; None if there are none."""
    tools = dict.fromkeys(tool for one in scored for tool in one.case.said)
    if not tools:
        return None
    table = report_table(f"{name}: {TITLES[quantity]}, other tools", ("tool",), ("n", "median %", "worst %", "bias %"))
    for tool in tools:
        own = [one for one in scored if tool in one.case.said]
        for words, errors in (
            (f"{tool}, as published", [one.case.said[tool] / one.case.measured - 1 for one in own]),
            ("lightning-predict, on the same", [one.error for one in own]),
        ):
            figures = (statistics.median(map(abs, errors)), max(map(abs, errors)), statistics.median(errors))
            numbers = (f"{100 * figures[0]:.1f}", f"{100 * figures[1]:.1f}", f"{100 * figures[2]:+.1f}")
            table.add_row(words, str(len(own)), *numbers)
    return table


def tables(name: str, scored: Sequence[Scored]) -> Iterator[Table]:
    """Yield the summary, comparisons and the cases of each quantity."""
    for quantity in TITLES:
        own = [one for one in scored if one.case.quantity == quantity]
        if not own:
            continue
        yield fits_table(name, own) if quantity == "fits" else summary_table(name, quantity, own)
        comparisons = [others_table(name, quantity, own), ratio_table(name, own) if quantity == "time" else None]
        yield from (table for table in comparisons if table is not None)
        yield each_table(name, quantity, own)
