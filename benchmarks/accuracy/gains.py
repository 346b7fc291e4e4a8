"""Score the gains of changes on pairs of measured steps that differ by one option: `--of gains`.

For each pair, the original step is read from a recording, the change is made as advice makes it, and the predicted gain
is compared with the measured one. The baseline is a constant: the median gain of the other families, with equal
weights. The correction of a family (a power of the simulated gain, a shift and an interval) is fitted on the other
families, so errors and coverage are held out. The two figures are the coverage of advice's intervals, by
`advice/gain_accuracy.py`, whose constants were fitted on them all. Mixed precision is predicted as its scripts ran it
(float16 parameters and activations, another optimizer), because the pairs measured it; the kind `autocast` makes the
change that a user of a Trainer makes. KernelBench's modules were called one at a time, with a wait after each, and are
predicted accordingly: host work before the first launch counts, and a compiled call does more. Pairs without a recorded
step, and those that the tables call doubtful or bound by launches, are left out. Example::

    python -m benchmarks.accuracy validation --of gains
    python -m benchmarks.accuracy validation --of gains --cache more-recordings    # of timm and of the trainings there
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

import numpy as np
from rich.console import Console

from benchmarks.accuracy.published_steps import MILABENCH_TABLE, TF32_SWITCHES, PublishedStep, milabench_steps
from benchmarks.accuracy.workloads.benchmarks import BENCHMARKS, benchmark_trace
from benchmarks.result_files import Figure, ResultConsole
from benchmarks.training.report import report_table
from lightning_predict.advice.changes import CHANGES, Change, batch_change
from lightning_predict.advice.gain_accuracy import GAIN_CALIBRATION
from lightning_predict.advice.what_if import gain, predicted_with
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.checked import Checked, read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.hardware.layouts import layouts_of
from lightning_predict.record.trace import Operation, Trace

PAIRS: Final = "pairs"
TRACES: Final = "traces_pairs"
MODULES: Final = "kernelbench"
"""Folder of the recordings of KernelBench's modules, whose calls were timed one by one."""

HARM: Final = 0.98
"""A gain below is harm: a step that takes at least 2 % longer."""

COUNTS: Final = 0.05
"""Gains further from 1 than this have a sign that counts."""

LEVEL: Final = 0.9

AUTOCAST: Final = ", autocast"
"""Suffix of a kind for which a replica was run instead of the original scripts."""

AUTOCAST_ALONE: Final = "amp train, milabench"
"""Kind of pairs whose loop was run with and without autocast, and changed in nothing else."""

POWERS: Final = tuple(step / 20 for step in range(12, 33))
"""Powers of the simulated gain to choose from, 0.6 to 1.6: a model that captures a part of the effect of a change
predicts that part of its gain, in logarithms."""

SHIFTS: Final = tuple(step / 200 for step in range(-4, 11))
"""Logarithms to choose from that every gain of a kind is told higher by, -0.02 to 0.05."""

FAMILIES_FOR_SHIFT: Final = 10
"""Fewest families that a shift is fitted to: of a few, it is their own."""

NEW: Final = (2, 1)
"""First release of torch whose convolutions channels last behave as in current releases: its cuDNN is the first of
version 8.9."""

MOST_RECORDINGS: Final = 2
"""Batch sizes of each training that are recorded, those with most pairs: a recording takes up to a minute."""

LEAST: Final = 0.01
"""Least half-width of an interval: measured steps repeat to a per cent."""

SHARES: Final = (0.0, 0.1, 0.2, 0.3, 0.5)
"""What half-widths may grow by with the gain; the one with the narrowest intervals is taken."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A measured pair with its predicted gain.

    Attributes:
        kind: Kind of change and mode, `channels_last train`.
        family: Family of models.
        gpu: Our name of the GPU.
        model: The model.
        measured: Throughput after over before.
        foretold: The same, as advice says it.
    """

    kind: str
    family: str
    gpu: str
    model: str
    measured: float
    foretold: float

    @property
    def error(self) -> float:
        """Predicted over measured gain, minus one."""
        return self.foretold / self.measured - 1

    @property
    def log_error(self) -> float:
        """Logarithm of measured over predicted gain."""
        return math.log(self.measured / self.foretold)


_Case = tuple[str, str, str, float]
"""Family, GPU, model and measured gain."""


def pairs_of(folder: Path, cache: Path | None = None) -> tuple[Pair, ...]:
    """Foretell the gains of all pairs whose step before was recorded.

    Args:
        folder: The validation tables, with `pairs` and `traces_pairs` next to each other.
        cache: Folder of further recordings of timm's steps, named as those in `traces_pairs/timm`, and of trainings,
            which are kept there.

    Raises:
        MeasurementTableError: A table has a wrong column or value.
    """
    found: list[Pair] = []
    for kind, change, by_trace in _tables(folder, cache):
        for path, cases in sorted(by_trace.items()):
            trace = Trace.load(str(path))
            found += _foretold(kind, change, _waited_for(trace) if MODULES in path.parts else trace, cases)
    return (*found, *_of_trainings(folder, cache), *_of_milabench(folder))


def _tables(folder: Path, cache: Path | None) -> Iterator[tuple[str, Change, dict[Path, list[_Case]]]]:
    for table, name, kind in (
        ("timm_channels_last", "channels_last", "channels_last"),
        ("timm_compile", "compile", "compile"),
        ("kernelbench_compile", "compile", "compile"),
        ("torchvision_half", "half", "half"),
        ("transformers_compile", "compile", "compile"),
        ("transformers_batch", "batch_size", "batch"),
    ):
        by_trace: dict[tuple[str, int, str, Path], list[_Case]] = defaultdict(list)
        path = folder / PAIRS / f"{table}.csv.gz"
        if not path.is_file():
            continue
        for row in read_csv(path, MeasurementTableError, columns=("gpu_name", "mode", "model", "family", "gain")):
            recorded = _recorded(row, table, folder, cache)
            if recorded is None or not row.member("gain").text() or not _counts(row, table):
                continue
            mode = "train" if row.member("mode").text().startswith("train") else "infer"
            factor = _factor(row) if name == "batch_size" else 1
            case = (row.member("family").text(), row.member("gpu_name").text(), row.member("model").text())
            era = _era(row) if name == "channels_last" and mode == "infer" else ""
            gain = row.member("gain").parsed().positive()
            by_trace[mode, factor, era, recorded].append((*case, gain))
        for mode, factor, era in sorted({key[:3] for key in by_trace}):
            cases_of = {file: cases for (*key, file), cases in by_trace.items() if tuple(key) == (mode, factor, era)}
            mixed = " mixed" if kind == "compile" and table.startswith("timm") else ""
            change = batch_change(factor) if name == "batch_size" else CHANGES[name]
            yield f"{kind}{'' if name == 'batch_size' else ' ' + mode}{mixed}{era}", change, cases_of


def _era(row: Checked) -> str:
    """Tell old releases of torch from today's, by a name such as `pt112-cu113` or `pt240-cu124`."""
    digits = row.member("software").text().partition("-")[0].removeprefix("pt")
    return "" if (int(digits[0]), int(digits[1:].removesuffix("0") or 0)) >= NEW else " before torch 2.1"


def _factor(row: Checked) -> int:
    before, after = (float(row.member(each).text()) for each in ("batch_before", "batch_after"))
    return round(after / before)


def _recorded(row: Checked, table: str, folder: Path, cache: Path | None) -> Path | None:
    column = "trace" if table.startswith("kernelbench") else "trace_before"
    name = row.member(column).text()
    if name:
        path = folder / name if column == "trace" else folder / TRACES / name
        return path if path.is_file() else None
    if cache is None or not table.startswith("timm") or not row.member("batch_before").text():
        return None
    numbers = [f"{float(row.member(each).text()):.0f}" for each in ("batch_before", "img_size")]
    texts = (row.member("model").text(), row.member("mode").text(), *numbers, "nchw")
    path = cache / f"{'__'.join(texts)}.json.gz"
    return path if path.is_file() else None


def _counts(row: Checked, table: str) -> bool:
    """Return whether a row is usable: it is bound by the device and not doubtful."""
    if table != "kernelbench_compile":
        return True
    return all(row.member(each).text() != "True" for each in ("launch_bound", "doubtful"))


def _waited_for(trace: Trace) -> Trace:
    """Let the host wait for the device after each step, so that it calls and launches while the device is idle."""
    return replace(trace, operations=(*trace.operations, Operation(name="aten::item", phase="other")))


def _foretold(kind: str, change: Change, trace: Trace, cases: Sequence[_Case]) -> Iterator[Pair]:
    assumptions = Assumptions()
    layouts = list(layouts_of(tuple(dict.fromkeys(gpu for _, gpu, _, _ in cases))))
    before, after = (predicted_with(each, trace, layouts, None, assumptions)[1] for each in ((), (change,)))
    for family, gpu, model, measured in cases:
        if change.why_not(trace, before[gpu].layout.gpu) is None:
            foretold = gain(before[gpu], after[gpu])
            yield Pair(kind=kind, family=family, gpu=gpu, model=model, measured=measured, foretold=foretold)


def _of_trainings(folder: Path, cache: Path | None) -> Iterator[Pair]:
    """Foretell AMP's gain for whole trainings; the batch mostly grows with it, so gains are per sample."""
    path = folder / PAIRS / "lambda_amp.csv.gz"
    if not path.is_file():
        return
    found: dict[str, dict[tuple[int, int], list[_Case]]] = defaultdict(lambda: defaultdict(list))
    columns = ("gpu_name", "n_gpus", "model", "batch_before", "batch_after", "family", "gain")
    for row in read_csv(path, MeasurementTableError, columns=columns):
        texts = {name: row.member(name).text() for name in columns}
        sizes = [texts[each] for each in ("batch_before", "batch_after")]
        if texts["n_gpus"] in ("1", "1.0") and texts["model"] in BENCHMARKS and all(map(_is_number, sizes)):
            before, after = (int(float(each)) for each in sizes)
            case = (texts["family"], texts["gpu_name"], texts["model"], row.member("gain").parsed().positive())
            found[texts["model"]][before, after].append(case)
    for model, by_size in sorted(found.items()):
        for before, after in sorted(by_size, key=lambda size: -len(by_size[size]))[:MOST_RECORDINGS]:
            yield from _trained(model, before, after, by_size[before, after], cache)


def _of_milabench(folder: Path) -> Iterator[Pair]:
    """Foretell gains of milabench's steps: one loop with and without autocast, and with twice the batch.

    Steps of one sample wait for the host and are left out.
    """
    if not (folder / MILABENCH_TABLE).is_file():
        return
    steps = [row for row in milabench_steps(folder) if not row.waits_for_input and (row.samples or 0) > 1]
    by_name = {(row.gpu, row.model, row.samples): row for row in steps}
    found: dict[str, list[tuple[PublishedStep, PublishedStep]]] = {AUTOCAST_ALONE: [], "batch": []}
    for row in steps:
        bench, _, precision = row.model.rpartition("-")
        mixed = by_name.get((row.gpu, f"{bench}-fp16", row.samples)) if precision in TF32_SWITCHES else None
        larger = by_name.get((row.gpu, row.model, 2 * (row.samples or 0)))
        found[AUTOCAST_ALONE] += [] if mixed is None else [(row, mixed)]
        found["batch"] += [] if larger is None else [(row, larger)]
    for kind, change in ((AUTOCAST_ALONE, CHANGES["16-mixed"]), ("batch", batch_change(2))):
        for one, other in found[kind]:
            trace, more = one.recorded(folder), (other.samples or 0) / (one.samples or 1)
            if trace is not None:
                gain = more * one.measured_seconds / other.measured_seconds
                yield from _foretold(kind, change, trace, [(one.model.split("-")[0], one.gpu, one.model, gain)])


def _is_number(text: str) -> bool:
    return bool(text) and text.replace(".", "", 1).isdigit()


def _trained(model: str, before: int, after: int, cases: Sequence[_Case], cache: Path | None) -> Iterator[Pair]:
    layouts = list(layouts_of(tuple(dict.fromkeys(gpu for _, gpu, _, _ in cases))))
    small, large, mixed = (
        _recording(model, *each, cache) for each in (("FP32", before), ("FP32", after), ("AMP", after))
    )
    assumptions = Assumptions()
    one, ran = (predicted_with((), each, layouts, None, assumptions)[1] for each in (small, mixed))
    cast = predicted_with((CHANGES["16-mixed"],), large, layouts, None, assumptions)[1]
    for kind, other in (("amp train", ran), (f"amp train{AUTOCAST}", cast)):
        for family, gpu, name, measured in cases:
            foretold = (one[gpu].cycle_seconds / before) / (other[gpu].cycle_seconds / after)
            yield Pair(kind=kind, family=family, gpu=gpu, model=name, measured=measured, foretold=foretold)


def _recording(model: str, precision: str, batch: int, cache: Path | None) -> Trace:
    """Record a training, or read it from the folder of further recordings, where it is kept."""
    path = None if cache is None else cache / f"{model}_{precision}_{batch}.json.gz"
    if path is not None and path.is_file():
        return Trace.load(str(path))
    trace = benchmark_trace(model, precision=precision, batch=batch).trace
    if path is not None:
        trace.save(str(path))
    return trace


# --- Scores


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Correction of a kind: `simulated ** power * exp(shift)`, half-width `least + share * |log(gain)|`."""

    power: float
    shift: float
    least: float
    share: float

    def gain(self, pair: Pair) -> float:
        """Return the gain that is told for a pair."""
        return float(pair.foretold**self.power * math.exp(self.shift))

    def holds(self, pair: Pair) -> bool:
        """Return whether the interval holds the measured gain."""
        return abs(math.log(pair.measured / self.gain(pair))) <= self.half_width(pair)

    def half_width(self, pair: Pair) -> float:
        """Return the half-width of a pair's interval."""
        return self.least + self.share * abs(math.log(self.gain(pair)))


def fitted_spread(pairs: Sequence[Pair]) -> Spread:
    """Fit power and shift of least error, and the narrowest spread that holds nine in ten; families weigh the same."""
    if not pairs:
        raise MeasurementTableError("There are no pairs to fit a spread to.")
    measured, simulated = (np.log([getattr(one, name) for one in pairs]) for name in ("measured", "foretold"))
    weights = _family_weights(pairs)
    shifts = SHIFTS if len(_counts_by_family(pairs)) >= FAMILIES_FOR_SHIFT else (0.0,)
    choices = [(power, shift) for power in POWERS for shift in shifts]
    errors = [float(weights @ np.abs(measured - power * simulated - shift)) for power, shift in choices]
    power, shift = choices[int(np.argmin(errors))]
    told = power * simulated + shift
    found = []
    for share in SHARES:
        excess = np.abs(measured - told) - share * np.abs(told)
        order = np.argsort(excess)
        reached = np.cumsum(weights[order])
        least = max(float(excess[order][np.searchsorted(reached, LEVEL * reached[-1])]), LEAST)
        spread = Spread(power=power, shift=shift, least=least, share=share)
        found.append((least + share * float(np.abs(told).mean()), spread))
    return min(found, key=lambda one: one[0])[1]


def _family_weights(pairs: Sequence[Pair]) -> np.typing.NDArray[np.float64]:
    counts = _counts_by_family(pairs)
    return np.array([1 / counts[one.family] for one in pairs])


def constant_gain(pairs: Sequence[Pair]) -> float:
    """Return the median measured gain, each family weighing the same."""
    weights, measured = _family_weights(pairs), np.array([one.measured for one in pairs])
    order = np.argsort(measured)
    reached = np.cumsum(weights[order])
    return float(measured[order][np.searchsorted(reached, reached[-1] / 2)])


def _counts_by_family(pairs: Iterable[Pair]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for pair in pairs:
        counts[pair.family] += 1
    return counts


def left_out(pairs: Sequence[Pair]) -> list[tuple[Pair, Spread, float]]:
    """Give each pair the spread and the constant of the other families; of all where there is one family alone."""
    found = {}
    for family in _counts_by_family(pairs):
        others = [one for one in pairs if one.family != family] or pairs
        found[family] = fitted_spread(others), constant_gain(others)
    return [(one, *found[one.family]) for one in pairs]


KINDS: Final[Mapping[str, str]] = {
    "amp train": "mixed precision, training, as the scripts ran",
    f"amp train{AUTOCAST}": "the same, told for autocast of the same steps",
    AUTOCAST_ALONE: "mixed precision, training, autocast alone",
    "half train": "`model.half()`, training",
    "half infer": "`model.half()`, inference",
    "channels_last train": "channels last, training (torch 1.10 to 1.12)",
    "channels_last infer": "channels last, inference",
    "channels_last infer before torch 2.1": "channels last, inference before torch 2.1",
    "compile infer": "`torch.compile`, inference in float32, from 1 ms",
    "compile infer mixed": "`torch.compile`, inference under autocast",
    "batch": "another batch size, training",
}
"""Kinds in the order of the report, as the documentation names them."""


def print_report(pairs: Sequence[Pair], console: Console) -> None:
    """Print errors of each kind with families left out, and the corrections that were fitted to all."""
    columns = (
        *("pairs / families", "median error of the simulation %", "corrected, family left out %", "a constant %"),
        *("right sign %", "losses predicted / correct", "in the interval %", "advice has a number"),
    )
    table = report_table("Gains of changes", ("change",), columns, no_wrap=False)
    table.columns[0].no_wrap = True
    fitted = report_table("Corrections fitted to all pairs", ("change",), ("n", "power", *FITTED))
    by_kind: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_kind[pair.kind].append(pair)
    held = []
    for kind in (one for one in KINDS if one in by_kind):
        members, spread = by_kind[kind], fitted_spread(by_kind[kind])
        evidence = GAIN_CALIBRATION[kind.partition(",")[0]]
        table.add_row(KINDS[kind], *_row(members), "yes" if evidence.is_enough else "no")
        numbers = (f"{getattr(spread, one):.3f}" for one in FITTED)
        fitted.add_row(KINDS[kind], str(len(members)), f"{spread.power:.2f}", *numbers)
        if evidence.is_enough and kind != f"amp train{AUTOCAST}":
            told = [(one.measured, evidence.calibrated_gain(one.foretold)) for one in members]
            held.append(statistics.fmean(gain.low <= measured <= gain.high for measured, gain in told))
    fitted.add_row("all", str(len(pairs)), "", *("" for _ in FITTED))
    console.print(table)
    console.print(fitted)
    if isinstance(console, ResultConsole) and held:
        ends = (("interval from", min(held)), ("interval to", max(held)))
        figures = [Figure(name=name, value=f"{100 * share:.0f}", unit="%") for name, share in ends]
        console.print_figures("Pairs inside the intervals of advice, by kind", figures)


FITTED: Final = ("shift", "least", "share")


def _row(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Score gains, each with the correction and the interval of the other families."""
    judged = left_out(pairs)
    told = [(one.measured, own.gain(one)) for one, own, _ in judged]
    constant = statistics.median(abs(middle / one.measured - 1) for one, _, middle in judged)
    signed = [each for each in told if abs(each[0] - 1) > COUNTS]
    harmed = [each for each in told if each[0] < HARM]
    warned = [each for each in told if each[1] < HARM]
    foreseen, right = _share(harmed, lambda one: one[1] < HARM), _share(warned, lambda one: one[0] < HARM)
    return (
        f"{len(pairs)} / {len(_counts_by_family(pairs))}",
        f"{100 * statistics.median(abs(one.error) for one in pairs):.1f}",
        f"{100 * statistics.median(abs(gain / measured - 1) for measured, gain in told):.1f}",
        f"{100 * constant:.1f}",
        _share(signed, lambda one: (one[1] > 1) == (one[0] > 1)),
        f"{foreseen} / {right} % of {len(harmed)}" if harmed else "-",
        f"{100 * statistics.fmean(own.holds(one) for one, own, _ in judged):.0f}",
    )


def _share(pairs: Sequence[tuple[float, float]], is_so: Callable[[tuple[float, float]], bool]) -> str:
    return f"{100 * statistics.fmean(map(is_so, pairs)):.0f}" if pairs else "-"
