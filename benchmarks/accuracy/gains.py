"""Score the gains of changes on pairs of measured steps that differ by one option: `--of gains`.

Of each pair the step before is read from a recording, the change is made as advice makes it, and the foretold gain is
held against the measured one. Beside it stands the best constant: the median gain of the table. Intervals are fitted on
the pairs of other families of models and of other GPUs at once, each family left out in turn, so that the coverage is
of families that nobody fitted. Pairs without a recorded step, and those that the tables call doubtful or bound by
launches, are left out. Example::

    python -m benchmarks.accuracy validation --of gains
    python -m benchmarks.accuracy validation --of gains --cache more-recordings    # timm's steps recorded there, too
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from rich.console import Console

from benchmarks.accuracy.workloads.benchmarks import BENCHMARKS, benchmark_trace
from lightning_predict.assumptions import Assumptions
from lightning_predict.changes.batch_size import batch_change
from lightning_predict.changes.change import Change
from lightning_predict.changes.gains import gain, predicted_with
from lightning_predict.changes.table import CHANGES
from lightning_predict.checked import Checked, read_csv
from lightning_predict.errors import MeasurementTableError
from lightning_predict.gpus.layouts import layouts_of
from lightning_predict.tracing.trace import Trace
from lightning_predict.training.report import report_table

PAIRS: Final = "pairs"
TRACES: Final = "traces_pairs"

HARM: Final = 0.98
"""A gain below is harm: a step that takes at least 2 % longer."""

COUNTS: Final = 0.05
"""Gains further from 1 than this have a sign that counts."""

LEVEL: Final = 0.9

POWERS: Final = tuple(step / 20 for step in range(10, 41))
"""Powers of the simulated gain to choose from, 0.5 to 2: a model that sees a part of what a change does foretells that
part of its gain, in logarithms."""

LEAST: Final = 0.01
"""Least half-width of an interval: measured steps repeat to a per cent."""

SHARES: Final = (0.0, 0.1, 0.2, 0.3, 0.5)
"""What half-widths may grow by with the gain; the one with the narrowest intervals is taken."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A measured pair with what was foretold.

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
        """Foretold over measured, less one."""
        return self.foretold / self.measured - 1

    @property
    def log_error(self) -> float:
        """Logarithm of measured over foretold."""
        return math.log(self.measured / self.foretold)


_Case = tuple[str, str, str, float]
"""Family, GPU, model and measured gain."""


def pairs_of(folder: Path, cache: Path | None = None) -> tuple[Pair, ...]:
    """Foretell the gains of all pairs whose step before was recorded.

    Args:
        folder: The validation tables, with `pairs` and `traces_pairs` beside each other.
        cache: Folder of further recordings of timm's steps, named as those in `traces_pairs/timm`.

    Raises:
        MeasurementTableError: A table has a wrong column or value.
    """
    found: list[Pair] = []
    for kind, change, by_trace in _tables(folder, cache):
        for path, cases in sorted(by_trace.items()):
            found += _foretold(kind, change, Trace.load(str(path)), cases)
    return (*found, *_of_trainings(folder))


def _tables(folder: Path, cache: Path | None) -> Iterator[tuple[str, Change, dict[Path, list[_Case]]]]:
    for table, name, kind in (
        ("timm_channels_last", "channels_last", "channels_last"),
        ("timm_compile", "compile", "compile"),
        ("kernelbench_compile", "compile", "compile"),
        ("torchvision_half", "half", "half"),
        ("transformers_compile", "compile", "compile"),
        ("transformers_batch", "batch_size", "batch"),
    ):
        by_trace: dict[tuple[str, int, Path], list[_Case]] = defaultdict(list)
        path = folder / PAIRS / f"{table}.csv.gz"
        if not path.is_file():
            continue
        for row in read_csv(path, MeasurementTableError, columns=("gpu_name", "mode", "model", "family", "gain")):
            recorded = _recorded(row, table, folder, cache)
            if recorded is None or not row.member("gain").text() or not _counts(row, table):
                continue
            mode = "train" if row.member("mode").text().startswith("train") else "infer"
            factor = _factor(row) if name == "batch_size" else 1
            case = (*(row.member(each).text() for each in ("family", "gpu_name", "model")),)
            by_trace[mode, factor, recorded].append((case[0], case[1], case[2], row.member("gain").parsed().positive()))
        for mode, factor in sorted({key[:2] for key in by_trace}):
            cases_of = {file: cases for (*key, file), cases in by_trace.items() if tuple(key) == (mode, factor)}
            mixed = " mixed" if kind == "compile" and table.startswith("timm") else ""
            change = batch_change(factor) if name == "batch_size" else CHANGES[name]
            yield f"{kind}{'' if name == 'batch_size' else ' ' + mode}{mixed}", change, cases_of


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
    """Return whether a row says what it is about: it is bound by the device, and not doubtful."""
    if table != "kernelbench_compile":
        return True
    return all(row.member(each).text() != "True" for each in ("launch_bound", "doubtful"))


def _foretold(kind: str, change: Change, trace: Trace, cases: Sequence[_Case]) -> Iterator[Pair]:
    assumptions = Assumptions()
    layouts = list(layouts_of(tuple(dict.fromkeys(gpu for _, gpu, _, _ in cases))))
    before, after = (predicted_with(each, trace, layouts, None, assumptions)[1] for each in ((), (change,)))
    for family, gpu, model, measured in cases:
        if change.why_not(trace, before[gpu].layout.gpu) is None:
            foretold = gain(before[gpu], after[gpu])
            yield Pair(kind=kind, family=family, gpu=gpu, model=model, measured=measured, foretold=foretold)


def _of_trainings(folder: Path) -> Iterator[Pair]:
    """Foretell AMP's gain for whole trainings; the batch mostly grows with it, so gains are per sample."""
    path = folder / PAIRS / "lambda_amp.csv.gz"
    if not path.is_file():
        return
    cases: dict[tuple[str, int, int], list[_Case]] = defaultdict(list)
    columns = ("gpu_name", "n_gpus", "model", "batch_before", "batch_after", "family", "gain")
    for row in read_csv(path, MeasurementTableError, columns=columns):
        texts = {name: row.member(name).text() for name in columns}
        if texts["n_gpus"] in ("1", "1.0") and texts["model"] in BENCHMARKS:
            before, after = (int(float(texts[each])) for each in ("batch_before", "batch_after"))
            case = (texts["family"], texts["gpu_name"], texts["model"], row.member("gain").parsed().positive())
            cases[texts["model"], before, after].append(case)
    for (model, before, after), of_model in sorted(cases.items()):
        layouts = list(layouts_of(tuple(dict.fromkeys(gpu for _, gpu, _, _ in of_model))))
        small, large = (benchmark_trace(model, precision="FP32", batch=each).trace for each in (before, after))
        one = predicted_with((), small, layouts, None, Assumptions())[1]
        other = predicted_with((CHANGES["16-mixed"],), large, layouts, None, Assumptions())[1]
        for family, gpu, name, measured in of_model:
            foretold = (one[gpu].cycle_seconds / before) / (other[gpu].cycle_seconds / after)
            yield Pair(kind="amp train", family=family, gpu=gpu, model=name, measured=measured, foretold=foretold)


# --- Scores


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What gains of a kind are: `simulated ** power`, with a half-width of `least + share * |log(gain)|`."""

    power: float
    least: float
    share: float

    def gain(self, pair: Pair) -> float:
        """Return the gain that is told for a pair."""
        return float(pair.foretold**self.power)

    def log_error(self, pair: Pair) -> float:
        """Return the logarithm of measured over told."""
        return math.log(pair.measured) - self.power * math.log(pair.foretold)

    def holds(self, pair: Pair) -> bool:
        """Return whether the interval holds the measured gain."""
        return abs(self.log_error(pair)) <= self.half_width(pair)

    def half_width(self, pair: Pair) -> float:
        """Return the half-width of a pair's interval."""
        return self.least + self.share * abs(self.power * math.log(pair.foretold))


def fitted_spread(pairs: Sequence[Pair]) -> Spread:
    """Fit the power of least error and the narrowest spread that holds nine in ten, each family weighing the same."""
    weights = {family: 1 / count for family, count in _counts_by_family(pairs).items()}
    power = min(POWERS, key=lambda one: _weighted_error(pairs, weights, one))
    best: tuple[float, Spread] | None = None
    for share in SHARES:
        excess = sorted(
            (
                abs(math.log(one.measured) - power * math.log(one.foretold))
                - share * power * abs(math.log(one.foretold)),
                weights[one.family],
            )
            for one in pairs
        )
        total, reached, least = sum(weight for _, weight in excess), 0.0, LEAST
        for value, weight in excess:
            reached, least = reached + weight, max(value, LEAST)
            if reached >= LEVEL * total:
                break
        spread = Spread(power=power, least=least, share=share)
        width = statistics.fmean(spread.half_width(one) for one in pairs)
        if best is None or width < best[0]:
            best = (width, spread)
    if best is None:
        raise MeasurementTableError("There are no pairs to fit a spread to.")
    return best[1]


def _weighted_error(pairs: Sequence[Pair], weights: Mapping[str, float], power: float) -> float:
    errors = (weights[one.family] * abs(math.log(one.measured) - power * math.log(one.foretold)) for one in pairs)
    return sum(errors)


def _counts_by_family(pairs: Iterable[Pair]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for pair in pairs:
        counts[pair.family] += 1
    return counts


def left_out(pairs: Sequence[Pair]) -> list[tuple[Pair, Spread]]:
    """Give each pair the spread that was fitted without its family; all pairs where there is one family alone."""
    spreads = {}
    for family in _counts_by_family(pairs):
        others = [one for one in pairs if one.family != family]
        spreads[family] = fitted_spread(others or pairs)
    return [(one, spreads[one.family]) for one in pairs]


def print_report(pairs: Sequence[Pair], console: Console) -> None:
    """Print a row for each kind of change, and the constants of `changes/evidence.py`."""
    columns = (
        "n",
        "families",
        "simulated: median error %",
        "told: median error %",
        "constant %",
        "sign %",
        "harm",
        "foreseen %",
        "right %",
        "in 90 %",
        "width",
    )
    table = report_table(
        "Gains of changes: foretold beside measured", ("change",), (*columns, "power", "least", "share")
    )
    by_kind: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_kind[pair.kind].append(pair)
    for kind, members in sorted(by_kind.items()):
        table.add_row(kind, *_row(members))
    console.print(table)


def _row(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Score told gains, each with the power and the spread of the other families."""
    middle = statistics.median(one.measured for one in pairs)
    constant = statistics.median(abs(middle / one.measured - 1) for one in pairs)
    judged = left_out(pairs)
    told = [(one.measured, own.gain(one)) for one, own in judged]
    signed = [each for each in told if abs(each[0] - 1) > COUNTS]
    harmed = [each for each in told if each[0] < HARM]
    warned = [each for each in told if each[1] < HARM]
    spread = fitted_spread(pairs)
    return (
        str(len(pairs)),
        str(len(_counts_by_family(pairs))),
        f"{100 * statistics.median(abs(one.error) for one in pairs):.1f}",
        f"{100 * statistics.median(abs(gain / measured - 1) for measured, gain in told):.1f}",
        f"{100 * constant:.1f}",
        _share(signed, lambda one: (one[1] > 1) == (one[0] > 1)),
        str(len(harmed)),
        _share(harmed, lambda one: one[1] < HARM),
        _share(warned, lambda one: one[0] < HARM),
        f"{100 * statistics.fmean(own.holds(one) for one, own in judged):.0f}",
        f"x{statistics.median(math.exp(2 * own.half_width(one)) for one, own in judged):.2f}",
        f"{spread.power:.2f}",
        f"{spread.least:.3f}",
        f"{spread.share:.1f}",
    )


def _share(pairs: Sequence[tuple[float, float]], is_so: Callable[[tuple[float, float]], bool]) -> str:
    return f"{100 * statistics.fmean(map(is_so, pairs)):.0f}" if pairs else "-"
