"""Constants derived from the training benchmarks, chosen again without each GPU, and without each release of torch.

Two constants of the package were: the rate of 16-bit products of odd sizes, by Transformer-XL, and that products on
lanes take as long under old releases as under new ones, by steps in float32 on GPUs without TF32. Here each of these
rows is predicted by the option that is best for the rows of other GPUs, or of other releases. Example::

    choices = evaluate_choices(Path("validation/training_throughput.csv"))
    Console().print(choices_table(choices))
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, final
from unittest.mock import patch

from rich.table import Table

from benchmarks.accuracy.throughput import ThroughputCase, ThroughputResult, predicted_together, read_throughput_cases
from benchmarks.accuracy.transformers import evaluate_in_groups
from benchmarks.training.report import report_table
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.kernels import corrections
from lightning_predict.kernels.families import matmul


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """A constant that was chosen on rows of the table.

    Attributes:
        name: Meaning of the constant.
        concerns: Tells the rows that it was chosen on.
        options: Alternative values, each as the context in which it holds; the first is the package's.
    """

    name: str
    concerns: Callable[[ThroughputCase], bool]
    options: Mapping[str, Callable[[], AbstractContextManager[Any]]]


def _rate(flops_per_clock: float) -> AbstractContextManager[Any]:
    return patch.object(matmul, "MISALIGNED_FLOPS_PER_CLOCK", flops_per_clock)


def _on_lanes_as_elsewhere() -> AbstractContextManager[Any]:
    """Let products on lanes gain from releases as all other work does."""
    return patch.object(corrections, "_runs_on_lanes", lambda _problem, _gpu: False)


def _of_odd_sizes(case: ThroughputCase) -> bool:
    return case.model.startswith("transformerxl") and case.precision == "FP16"


def _on_lanes(case: ThroughputCase) -> bool:
    return case.precision == "FP32" and "tf32" not in find_gpu(case.gpu).peak_flops_per_second


CHOICES: Final = (
    Choice(
        "FLOPs of a clock in 16-bit products of odd sizes",
        _of_odd_sizes,
        {f"{rate:g}": partial(_rate, rate) for rate in (450.0, 300.0, 350.0, 400.0, 500.0, 550.0, 600.0)},
    ),
    Choice(
        "float32 products without tensor cores gain from new releases",
        _on_lanes,
        {"no": nullcontext, "yes": _on_lanes_as_elsewhere},
    ),
)


@final
@dataclass(frozen=True, slots=True)
class ChoiceResult:
    """A row that a constant was chosen on, predicted with each option, in the order of `Choice.options`."""

    case: ThroughputCase
    by_option: tuple[ThroughputResult, ...]


def evaluate_choices(
    path: Path, *, weights: Path | None = None, jobs: int = 2
) -> tuple[tuple[Choice, tuple[ChoiceResult, ...]], ...]:
    """Predict the rows of each choice with each of its options; errors as for `evaluate_throughput`."""
    cases = read_throughput_cases(path)
    return tuple(
        (
            choice,
            evaluate_in_groups(
                [case for case in cases if choice.concerns(case)],
                key=lambda case: (case.model, case.precision, case.batch),
                evaluate=partial(_with_options, tuple(choice.options.values()), weights),
                jobs=jobs,
            ),
        )
        for choice in CHOICES
    )


def _with_options(
    options: Sequence[Callable[[], AbstractContextManager[Any]]],
    weights: Path | None,
    cases: Sequence[ThroughputCase],
) -> list[ChoiceResult]:
    found = []
    for option in options:
        with option():
            found.append(predicted_together(cases, weights))
    return [ChoiceResult(case, own) for case, own in zip(cases, zip(*found, strict=True), strict=True)]


def left_out(
    results: Sequence[ChoiceResult], key: Callable[[ThroughputCase], str]
) -> Iterator[tuple[int, ThroughputResult]]:
    """Yield each row by the option of least median error on the rows of other groups, after the option's place."""
    groups = dict.fromkeys(key(one.case) for one in results)
    best = {group: _best([one for one in results if key(one.case) != group]) for group in groups}
    for one in results:
        place = best[key(one.case)]
        yield place, one.by_option[place]


def _best(results: Sequence[ChoiceResult]) -> int:
    """Give the place of the option of least median error; of the package's own where there is no row."""
    if not results:
        return 0
    by_row = [one.by_option for one in results]
    errors = [statistics.median(abs(one.error) for one in own) for own in zip(*by_row, strict=True)]
    return errors.index(min(errors))


LEFT_OUT: Final[Mapping[str, Callable[[ThroughputCase], str]]] = {
    "GPUs left out": lambda case: case.gpu,
    "releases left out": lambda case: case.software,
}


def choices_table(found: Sequence[tuple[Choice, Sequence[ChoiceResult]]]) -> Table:
    """Errors of the rows that each constant was chosen on: as it ships, by each option, and left out."""
    table = report_table(
        "Constants chosen on training benchmarks, on the rows that they were chosen on",
        ("constant", "rows by"),
        ("n", "median error %", "bias %", "options chosen"),
    )
    for choice, results in found:
        names = tuple(choice.options)
        for place, name in enumerate(names):
            rows = [one.by_option[place] for one in results]
            table.add_row(choice.name, f"{name} throughout", *_cells(rows), "as it ships" if place == 0 else "")
        for name, key in LEFT_OUT.items():
            chosen = list(left_out(results, key))
            used = sorted({names[place] for place, _ in chosen})
            table.add_row(choice.name, name, *_cells([row for _, row in chosen]), ", ".join(used))
        table.add_section()
    return table


def _cells(rows: Sequence[ThroughputResult]) -> tuple[str, str, str]:
    errors = [row.error for row in rows]
    if not errors:
        return "0", "-", "-"
    return (
        str(len(errors)),
        f"{100 * statistics.median(map(abs, errors)):.1f}",
        f"{100 * statistics.median(errors):+.1f}",
    )
