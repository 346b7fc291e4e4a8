"""How fast decisions are, and the saving of planning over queue rules, by the cost of a move.

python -m benchmarks.speed.planning_speed            # decisions only: a minute
python -m benchmarks.speed.planning_speed --study    # and the comparison in its fixed setting: an hour on two cores
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.planning.pictures import comparison_table
from benchmarks.planning.study import Study, compare, run_study
from benchmarks.result_files import Figure, ResultConsole, write_run
from lightning_predict.planning.milp import MilpPlanner
from tests.planning.example import at_start, crowd

FOUR_TYPES = frozenset({"Standard NC24", "Standard NV24", "In-house server 2", "In-house server 3"})
SIZES = ((10, 4, FOUR_TYPES), (40, 10, None), (100, 20, None), (450, 100, None), (1000, 100, None))


def decisions(seeds: Sequence[int]) -> list[Figure]:
    """Time one decision where all jobs wait at once."""
    figures = []
    for jobs, nodes, machines in SIZES:
        for seed in seeds:
            problem = crowd(jobs, nodes, seed=seed, machines=machines)
            decision = MilpPlanner(time_limit_seconds=120, relative_gap=1e-3).decide(problem, at_start(problem))
            name = f"{jobs} jobs, {nodes} nodes, {len(problem.machines)} types, seed {seed}"
            figures.append(Figure(name=f"{name}: decision", value=f"{decision.solve_seconds:.2f}", unit="s"))
            figures.append(Figure(name=f"{name}: gap", value=f"{100 * (decision.gap or 0.0):.4f}", unit="%"))
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the times, and the comparison if it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--study", action="store_true", help="run the comparison, too")
    parser.add_argument("--workers", type=int, default=-1)
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    console = ResultConsole(width=140)
    console.print_figures("Time of one decision", decisions(range(3)))
    if options.study:
        study = Study(restart_seconds=(0.0, 15.0, 60.0, 300.0))
        console.print(comparison_table(compare(run_study(study, workers=options.workers))))
    write_run(console, "speed-planning", options.result)


if __name__ == "__main__":
    main()
