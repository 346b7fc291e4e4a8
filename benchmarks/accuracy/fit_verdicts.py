"""Check the probability that a step fits, with each source left out: `python -m benchmarks.accuracy.fit_verdicts`.

The results of other tables have errors of predicted memory. A run whose memory was measured fits GPUs with at least
this memory, and no others. `CARDS` are sizes of GPUs relative to the predicted memory, so their choice does not depend
on the measurement. The widths of both intervals, of recorded and of derived steps, are fitted to all sources but one,
and judged on that one. Example::

    python -m benchmarks.accuracy.fit_verdicts --result benchmarks/results
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.table import Table
from scipy.optimize import minimize
from scipy.stats import t as student

from benchmarks.result_files import FOLDER, ResultConsole, read_result, write_run
from benchmarks.training.report import report_table

NAME: Final = "fit-verdicts"

CARDS: Final = tuple(percent / 100 for percent in range(80, 135, 5))  # Sizes of GPUs, relative to the predicted memory
DEGREES: Final = 3  # Degrees of freedom of Student's t distribution

MOSTLY_CONTEXT: Final = 1.5
"""Width of the interval of a process from which most of it is the CUDA context's: such steps say little of tensors."""

FOUR_BITS: Final = ("nf4", "adapters-rtx-4080")  # Words of models, and tables, of weights in 4 bits

QUANTITIES: Final = ("allocated memory", "reserved memory", "memory of the process")

Ends = tuple[float, float]  # Both ends of a 90 % interval of measured over predicted memory
Source = tuple[str, str]  # Whether the steps are `recorded` or `derived`, and the table
Judged = Sequence[tuple[float, bool]]  # Predicted probability that a run fits, and whether it fits


def ratios_of(folder: Path) -> Mapping[Source, Sequence[float]]:
    """Return measured over predicted memory of all published figures, by source."""
    found = defaultdict[Source, list[float]](list)
    for path in sorted(folder.glob("*.json")):
        result = read_result(path.stem, folder)
        for table in result.tables:
            if any(table.title == f"{result.name}: {quantity}, each" for quantity in QUANTITIES):
                is_process = QUANTITIES[-1] in table.title
                for cells in table.rows:
                    row = dict(zip(table.columns, cells, strict=True))
                    if not is_process or float(row["width"]) < MOSTLY_CONTEXT:
                        found[kind_of(result.name, row), result.name].append(1 / (1 + float(row["error %"]) / 100))
    return {key: found[key] for key in sorted(found, key=lambda source: (source[0] == "derived", source[1]))}


def kind_of(table: str, row: Mapping[str, str]) -> str:
    """Return `derived` for steps on several GPUs, compiled or with weights in 4 bits (`DERIVED`), else `recorded`."""
    is_several = row["GPU"].partition("x")[0].isdigit()
    is_derived = (
        is_several or " compile" in row["setting"] or any(word in f"{table} {row['model']}" for word in FOUR_BITS)
    )
    return "derived" if is_derived else "recorded"


def fitted(sources: Iterable[Sequence[float]]) -> Ends:
    """Return the 90 % interval of the ratios of another source; each source has the same weight.

    The scale of few sources is too small, and their location is not that of others: both by the number of sources.
    """
    sources = list(sources)
    points = [(math.log(ratio), 1 / len(own)) for own in sources for ratio in own]
    logs, weights = zip(*points, strict=True)

    def loss(values: Sequence[float]) -> float:
        return -float((student.logpdf(logs, DEGREES, values[0], math.exp(values[1])) * weights).sum())

    location, scale = minimize(loss, (0.0, math.log(0.05)), method="Nelder-Mead").x
    far = student.ppf(0.95, DEGREES) * math.exp(scale) * math.sqrt((len(sources) + 1) / (len(sources) - 1))
    return math.exp(location - far), math.exp(location + far)


def judged(ends: Ends, ratios: Iterable[float]) -> Judged:
    """Judge each run on GPUs of all sizes, as `lp.predict` does by its interval (`fit_probability`)."""
    scale = (ends[1] - ends[0]) / 2 / student.ppf(0.95, DEGREES)
    chances = [float(student.cdf((card - math.sqrt(ends[0] * ends[1])) / scale, DEGREES)) for card in CARDS]
    return [(chance, ratio <= card) for ratio in ratios for card, chance in zip(CARDS, chances, strict=True)]


def brier(found: Judged) -> float:
    """Return the mean squared difference between probability and outcome: 0 if all is known, 0.25 for even chances."""
    return statistics.fmean((chance - fits) ** 2 for chance, fits in found)


def source_table(sources: Mapping[Source, Sequence[float]], intervals: Mapping[Source, Ends]) -> Table:
    """Judge each source by its interval, which the other sources give."""
    title = "Does it fit: each source left out"
    table = report_table(title, ("source",), ("n", "low", "high", "inside %", "Brier score"))
    scores = defaultdict[str, list[tuple[float, float]]](list)
    for (kind, name), own in sources.items():
        ends = intervals[kind, name]
        scores[kind].append((statistics.fmean(ends[0] <= one <= ends[1] for one in own), brier(judged(ends, own))))
        table.add_row(f"{kind}: {name}", *_cells(len(own), ends, *scores[kind][-1]))
    for kind, found in scores.items():
        alike = [own for (other, _), own in sources.items() if other == kind]
        means = (statistics.fmean(each) for each in zip(*found, strict=True))
        table.add_row(f"{kind}: mean", *_cells(sum(map(len, alike)), fitted(alike), *means))
    return table


def _cells(count: int, ends: Ends, inside: float, score: float) -> tuple[str, ...]:
    return (str(count), *(f"{end:.2f}" for end in ends), f"{100 * inside:.0f}", f"{score:.3f}")


def reliability_rows(found: Mapping[Source, Judged]) -> Iterator[tuple[str, ...]]:
    """Yield tenths of the probability, with the share of runs that fit; each source with the same weight."""
    for tenth in range(10):
        points = [
            (chance, fits, 1 / len(own))
            for own in found.values()
            for chance, fits in own
            if min(int(10 * chance), 9) == tenth
        ]
        total = math.fsum(weight for *_, weight in points)
        if points:
            means = [math.fsum(point[at] * point[2] for point in points) / total for at in (0, 1)]
            yield (f"{10 * tenth}-{10 * tenth + 10} %", str(len(points)), *(f"{100 * mean:.0f}" for mean in means))


def reliability_table(found: Mapping[Source, Judged]) -> Table:
    """Compare the probability with the share of runs that fit."""
    table = report_table("Does it fit: by predicted probability", ("probability",), ("cards", "predicted %", "fit %"))
    for row in reliability_rows(found):
        table.add_row(*row)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--results", type=Path, default=FOLDER, help="folder with results (default: the repository's)")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    sources, console = ratios_of(options.results), ResultConsole(width=120)
    others = {
        (kind, name): fitted(own for (alike, other), own in sources.items() if alike == kind and other != name)
        for kind, name in sources
    }
    console.print(source_table(sources, others))
    console.print(reliability_table({name: judged(others[name], own) for name, own in sources.items()}))
    write_run(console, NAME, options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
