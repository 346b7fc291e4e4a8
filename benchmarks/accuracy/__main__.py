"""Score published figures as a user would have them predicted: `python -m benchmarks.accuracy NAME ... --data DATA`.

Example::

    python -m benchmarks.accuracy lin milabench --data ../shared
    python -m benchmarks.accuracy dgxc --result benchmarks/results     # writes benchmarks/results/dgxc.json
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.accuracy.readers.own_gpu import forecast_tables, why_refused
from benchmarks.accuracy.score import score, tables
from benchmarks.accuracy.tables import READERS
from benchmarks.published import describe, published_cases
from benchmarks.result_files import ResultConsole, read_result, write_result
from benchmarks.runs import RUNS

WIDTH: Final = 180  # Columns of the printed tables
OWN_GPU: Final = "own-gpu"  # Table with forecasts of the day, and with errors of single operations


def main(arguments: Sequence[str] | None = None) -> int:
    """Score tables and print them; 1 if one has no scored case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="+", choices=READERS, metavar="NAME", help=f"tables: {', '.join(READERS)}")
    parser.add_argument("--data", type=Path, default=Path("../shared"), help="folder of data (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=None, help="folder that keeps recorded steps (default: none)")
    parser.add_argument("--result", type=Path, default=None, help="folder to write NAME.json to (default: none)")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    return max(run(name, options.data, options.cache, options.result) for name in options.names)


def run(name: str, data: Path, cache: Path | None, result: Path | None) -> int:
    """Score one table, print it and write its result; 1 if no case was scored, or the result is refused."""
    about = RUNS[name]
    console = ResultConsole(width=WIDTH, keeps_measurements=about.copies_allowed)
    scored, unscored = score(READERS[name](data), cache=cache, describe=describe)
    for table in tables(name, scored):
        console.print(table)
    if name == OWN_GPU:
        for table in forecast_tables(scored):
            console.print(table)
    for reason, count in Counter(case.reason for case in unscored).most_common():
        console.print(f"not predicted: {count} case(s), {reason}")
    if result is None or not scored:
        return int(not scored)
    current = console.result(about, published=published_cases(scored, about))
    if name == OWN_GPU and (result / f"{name}.json").is_file():
        refused = why_refused(read_result(name, result), current)
        if refused is not None:
            print(f"{name}: not written, {refused}", file=sys.stderr)
            return 1
    write_result(current, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
