"""How fast decisions are, and what planning saves against queue rules, by what a move costs.

python -m benchmarks.speed.planning_speed            # decisions only: a minute
python -m benchmarks.speed.planning_speed --study    # and the comparison in its fixed setting: an hour on two cores
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console

from benchmarks.planning.pictures import comparison_table
from benchmarks.planning.study import Study, compare, run_study
from lightning_predict.extensions.planning.milp import MilpPlanner
from tests.planning.example import at_start, crowd

FOUR_TYPES = frozenset({"Standard NC24", "Standard NV24", "In-house server 2", "In-house server 3"})
SIZES = ((10, 4, FOUR_TYPES), (40, 10, None), (100, 20, None), (450, 100, None), (1000, 100, None))


def decisions(seeds: Sequence[int]) -> None:
    """Time one decision where all jobs wait at once."""
    for jobs, nodes, machines in SIZES:
        for seed in seeds:
            problem = crowd(jobs, nodes, seed=seed, machines=machines)
            decision = MilpPlanner(time_limit_seconds=120, relative_gap=1e-3).decide(problem, at_start(problem))
            print(
                f"{jobs:4d} jobs, {nodes:3d} nodes, {len(problem.machines)} types, seed {seed}: "
                f"{decision.solve_seconds:5.2f} s with a gap of {100 * (decision.gap or 0.0):.4f} %"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the times, and the comparison if it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--study", action="store_true", help="run the comparison, too")
    parser.add_argument("--workers", type=int, default=-1)
    options = parser.parse_args(arguments)
    decisions(range(3))
    if options.study:
        study = Study(restart_seconds=(0.0, 15.0, 60.0, 300.0))
        Console(width=140).print(comparison_table(compare(run_study(study, workers=options.workers))))


if __name__ == "__main__":
    main()
