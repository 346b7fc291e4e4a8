"""Fit what a source adds to the interval of a step: `python -m benchmarks.training.step_spread whole_steps.json`.

A source errs as a whole: its machine, its software, its way to time. The median of log(predicted / measured) over the
steps of an accuracy table in `benchmarks/results` is its deviation. The half width is 1.645 times the root of the mean
square over sources. The worst source is left out: its figures hold something else than the step. Sources of fused steps
deviate more, and the difference of the squares is the part of fusion. The spread of the operations stays as it is.
Each source is then left out whole, and the deviation of the others says how far it lies out. The command prints the
share of each source's steps inside the intervals, beside their width, as shipped and fitted without that source.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.render_docs import results
from benchmarks.result_files import Result
from lightning_predict.base.interval import NORMAL_95

FUSED: Final = ("compile", "transformer_engine")  # Words of settings whose steps are fused

OTHER_FIGURES: Final = ("data loader", "first step", "waits for its input")
"""Words of settings whose figures hold more than the step."""

FEWEST: Final = 3  # Minimum number of steps of a source


@dataclass(frozen=True, slots=True)
class StepError:
    """A published step: log(predicted / measured), and the half width of its interval in log(seconds)."""

    error: float
    half_width: float


def step_errors(found: Iterable[Result], *, fused: bool) -> dict[str, list[StepError]]:
    """Return the steps of each table with or without fused kernels, if there are enough of them."""
    errors: dict[str, list[StepError]] = {}
    for result in found:
        for table in result.tables:
            if not table.title.endswith(": time, each"):
                continue
            setting, error, width = (table.columns.index(name) for name in ("setting", "error %", "width"))
            steps = [
                StepError(math.log1p(float(row[error].replace(",", "")) / 100), math.log(float(row[width])) / 2)
                for row in table.rows
                if fused == any(word in row[setting] for word in FUSED)
                and not any(word in row[setting] for word in OTHER_FIGURES)
            ]
            if len(steps) >= FEWEST:
                errors[result.name] = steps
    return errors


def deviations(errors: Mapping[str, Sequence[StepError]]) -> dict[str, float]:
    """Return the median of log(predicted / measured) of each table's steps."""
    return {name: statistics.median(step.error for step in steps) for name, steps in errors.items()}


def coverage(errors: Mapping[str, Sequence[StepError]], shipped: float) -> Iterator[list[str]]:
    """Yield a row for each source: its steps, the share inside and the mean width, as shipped and without the source.

    Args:
        errors: Steps by source.
        shipped: The part of each half width that sources share.
    """
    medians = deviations(errors)
    for name, steps in errors.items():
        row = [name, str(len(steps))]
        for shared in (shipped, half_width([other for key, other in medians.items() if key != name])):
            halves = [math.sqrt(max(step.half_width**2 - shipped**2, 0.0) + shared**2) for step in steps]
            inside = [abs(step.error) <= half for step, half in zip(steps, halves, strict=True)]
            row += [f"{100 * statistics.fmean(inside):.0f}", f"{statistics.fmean(math.exp(2 * h) for h in halves):.2f}"]
        yield row


def half_width(sources: Sequence[float]) -> float:
    """Return the half width that sources share; the worst one is left out."""
    kept = sorted(map(abs, sources))[:-1]
    return NORMAL_95 * math.sqrt(statistics.fmean(value**2 for value in kept))


def left_out(sources: Mapping[str, float]) -> dict[str, float]:
    """Return the deviation of each source over the half width of the others."""
    return {
        name: round(value / half_width([other for key, other in sources.items() if key != name]), 2)
        for name, value in sources.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit the parts and write them with their provenance."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("output", type=Path, help="file to change")
    options = parser.parse_args(arguments)
    content = json.loads(options.output.read_text(encoding="utf-8"))
    kept = tuple(results())
    errors = {fused: step_errors(kept, fused=fused) for fused in (False, True)}
    plain, fused = deviations(errors[False]), deviations(errors[True])
    shared = half_width(list(plain.values()))
    wider = math.sqrt(max(half_width(list(fused.values())) ** 2 - shared**2, 0.0))
    old = content["spread"]["new_source"], content["spread"]["fused"]
    content["spread"] |= {"new_source": round(shared, 3), "fused": round(wider, 3)}
    content["provenance"] |= {
        "sources": {"eager": left_out(plain), "fused": left_out(fused)},
        "command": "python -m benchmarks.training.step_spread whole_steps.json",
    }
    for is_fused, shipped in ((False, old[0]), (True, math.hypot(*old))):
        print(f"{'fused' if is_fused else 'plain'} steps: source, steps; inside %, width; the same without the source")
        for row in coverage(errors[is_fused], shipped):
            print("  ".join([f"{row[0]:18}", *(f"{cell:>6}" for cell in row[1:])]))
    options.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
