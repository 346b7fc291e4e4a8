"""Measure what each empirical constant of the predictor is worth on published steps, by setting it to a neutral value.

Rows of the package's `constants.toml` with a neutral value (a factor of 1, no extra cycles) have a group. All constants
of a group are neutral together; the single constants of a group are tried if the group matters, unless `--groups`, or
always with `--single`. `--scores FILE` keeps each score, so that an interrupted run continues. Example::

    python -m benchmarks.accuracy.ablation --data DATA --every 4

    constants = read_constants()
    with neutral(constants[:1]):
        ...                        # predictions without the first constant
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

import lightning_predict
from benchmarks.accuracy import score as runner
from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.tables import READERS
from benchmarks.result_files import ResultConsole, write_run
from benchmarks.training.report import report_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE: Final = "lightning_predict"

TABLES: Final = ("transformers", "benchmarks", "timm", "milabench", "lin", "kernel-bench")
"""Tables that are scored if no others are named."""

FILE: Final = Path(lightning_predict.__file__).parent / "base" / "constants.toml"
"""Evidence for each constant, by module and name."""

POINTS_TO_KEEP: Final = 0.1  # Minimum loss of accuracy, in points of the mean error of any table, that keeps a constant

WIDTH: Final = 220


@dataclass(frozen=True)
class Constant:
    """An empirical constant."""

    module: str  # Its module below the package
    name: str  # Its name
    neutral: float  # Value without its effect
    group: str  # Constants that are neutral together

    @cached_property
    def value(self) -> float:
        """Its present value.

        Raises:
            AttributeError: The module has no such constant.
        """
        return float(getattr(importlib.import_module(f"{PACKAGE}.{self.module}"), self.name))


@dataclass(frozen=True, slots=True)
class Score:
    """Errors on the steps of one table."""

    cases: int  # Number of steps
    error: float  # Mean absolute error
    inside: float  # Share of the steps within the 90 % interval


def read_constants() -> tuple[Constant, ...]:
    """Read the constants that have a neutral value."""
    document = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(_constants("", document))


def _constants(module: str, table: Mapping[str, Any]) -> Iterator[Constant]:
    for name, row in table.items():
        if "kind" not in row:
            yield from _constants(f"{module}.{name}".lstrip("."), row)
        elif "neutral" in row:
            yield Constant(module, name, float(row["neutral"]), row["group"])


@contextmanager
def neutral(constants: Sequence[Constant]) -> Iterator[None]:
    """Set constants to their neutral values in every module that imported them, and clear the caches of the package."""
    before = []
    for constant in constants:
        own: float = getattr(importlib.import_module(f"{PACKAGE}.{constant.module}"), constant.name)
        for module in _modules():
            if vars(module).get(constant.name) is own:
                before.append((module, constant.name, own))
                setattr(module, constant.name, constant.neutral if isinstance(own, float) else round(constant.neutral))
    _clear_caches()
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        _clear_caches()


def _modules() -> list[object]:
    return [module for name, module in list(sys.modules.items()) if name.split(".")[0] == PACKAGE]


def _clear_caches() -> None:
    for cached in gc.get_objects():
        if isinstance(cached, functools._lru_cache_wrapper) and str(cached.__module__).startswith(PACKAGE):
            cached.cache_clear()


def scores(rows: Mapping[str, Sequence[Case]], cache: Path) -> dict[str, Score]:
    """Predict the cases of each table as a user would, and score them.

    Args:
        rows: Cases by table.
        cache: Folder that keeps recorded steps.
    """
    results = {}
    for table, cases in rows.items():
        scored, _ = runner.score(cases, cache=cache)
        if scored:
            error = statistics.fmean(abs(prediction.error) for prediction in scored)
            results[table] = Score(len(scored), error, statistics.fmean(prediction.is_inside for prediction in scored))
    return results


def sampled(cases: Sequence[Case], every: int) -> tuple[Case, ...]:
    """Choose every n-th step of a table's times, with all GPUs that ran it."""
    times = [case for case in cases if case.quantity == "time"]
    steps: list[Step] = list(dict.fromkeys(case.step for case in times))
    chosen = set(steps[::every])
    return tuple(case for case in times if case.step in chosen)


Scores = Mapping[str, Score]


def ablate(
    score: Callable[[str], Scores],
    console: Console,
    *,
    single: bool = False,
    groups_only: bool = False,
    kept: Collection[str] = (),
) -> Table:
    """Set each group of constants to neutral values, then the constants of groups that matter, and score.

    Args:
        score: Scores the rows with the present values, under a name.
        console: Where progress is printed.
        single: Try each constant of every group.
        groups_only: Try no single constant, except those in `kept`.
        kept: Names whose scores are kept already.
    """
    before = score("none")
    groups: dict[str, list[Constant]] = defaultdict(list)
    for constant in read_constants():
        groups[constant.group].append(constant)
    rows = [("none", "", before, True)]
    for group, constants in groups.items():
        with neutral(constants):
            after = score(f"{group}|all")
        matters = worth(before, after) >= POINTS_TO_KEEP
        rows.append((group, "all", after, matters))
        for constant in constants if len(constants) > 1 else ():
            name = f"{group}|{constant.name}"
            if name not in kept and (groups_only or not (single or matters)):
                continue
            with neutral([constant]):
                own = score(name)
            rows.append((group, constant.name, own, worth(before, own) >= POINTS_TO_KEEP))
        console.print(f"{group}: {'matters' if matters else 'costs nothing here'}", style="dim")
    return _table(before, rows)


Kept = dict[str, dict[str, list[float]]]
"""[Number of steps, mean error %, steps in the interval %] by table, by the name of the constants."""


def read_scores(file: Path | None) -> Kept:
    """Read the scores that an earlier run kept; empty without a file."""
    kept: Kept = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.exists() else {}
    return kept


def keeping(known: Kept, file: Path | None, measure: Callable[[], Scores]) -> Callable[[str], Scores]:
    """Return a function that scores with the present values, and keeps each score in a JSON file, if there is one."""

    def score(name: str) -> Scores:
        if name not in known:
            own = measure()
            known[name] = {table: [score.cases, 100 * score.error, 100 * score.inside] for table, score in own.items()}
            if file is not None:
                file.write_text(json.dumps(known, indent=1), encoding="utf-8")
        return {
            table: Score(int(cases), error / 100, inside / 100) for table, (cases, error, inside) in known[name].items()
        }

    return score


def worth(before: Mapping[str, Score], after: Mapping[str, Score]) -> float:
    """Points by which any table's mean error grows, or its coverage departs from 90 %, without a constant."""
    return max(
        max(100 * (after[table].error - old.error), 100 * (abs(after[table].inside - 0.9) - abs(old.inside - 0.9)))
        for table, old in before.items()
    )


def _table(before: Mapping[str, Score], found: Sequence[tuple[str, str, Mapping[str, Score], bool]]) -> Table:
    table = report_table(
        "Mean error and coverage by table, without constants",
        ("group", "constant"),
        (*(f"{name} %" for name in before), *(f"{name} in 90 %" for name in before), "keep"),
    )
    for group, name, scored, keeps in found:
        errors = [f"{100 * scored[key].error:.2f}" for key in before]
        inside = [f"{100 * scored[key].inside:.1f}" for key in before]
        table.add_row(group, name, *errors, *inside, "yes" if keeps else "no")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy.ablation", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of data")
    parser.add_argument("--tables", nargs="+", choices=READERS, default=TABLES, help="tables to score")
    parser.add_argument(
        "--cache", type=Path, default=Path("recorded-steps"), help="recorded steps (default: %(default)s)"
    )
    parser.add_argument(
        "--every", type=int, default=4, help="score every so many steps of a table (default: %(default)s)"
    )
    parser.add_argument("--single", action="store_true", help="try each constant of every group")
    parser.add_argument("--groups", action="store_true", help="try no single constant")
    parser.add_argument("--scores", type=Path, default=None, help="file that keeps scores, for an interrupted run")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    console = ResultConsole(width=WIDTH)
    known = read_scores(options.scores)
    kept = frozenset(known)

    @functools.cache
    def rows() -> dict[str, tuple[Case, ...]]:
        return {name: sampled(tuple(READERS[name](options.data)), options.every) for name in options.tables}

    score = keeping(known, options.scores, lambda: scores(rows(), options.cache))
    console.print(ablate(score, console, single=options.single, groups_only=options.groups, kept=kept))
    write_run(console, "ablation", options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
