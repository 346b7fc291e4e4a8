"""How fast decisions are, how good the heuristic is, and what planning saves against queue rules.

python benchmarks/planning_speed.py            # decisions only: a minute
python benchmarks/planning_speed.py --study    # and the comparison in its fixed setting: half an hour on two cores
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console

from lightning_predict.planning.heuristic import HeuristicPlanner
from lightning_predict.planning.milp import MilpPlanner
from lightning_predict.planning.pictures import comparison_table
from lightning_predict.planning.study import Study, compare, run_study
from tests.planning.example import at_start, crowd

FOUR_TYPES = frozenset({"Standard NC24", "Standard NV24", "In-house server 2", "In-house server 3"})
SIZES = ((10, 4, FOUR_TYPES), (40, 10, None), (100, 20, None), (450, 100, None))


def decisions(seeds: Sequence[int]) -> None:
    """Time and objective of both planners where all jobs wait at once."""
    for jobs, nodes, machines in SIZES:
        for seed in seeds:
            problem = crowd(jobs, nodes, seed=seed, machines=machines)
            exact = MilpPlanner(time_limit_seconds=120).decide(problem, at_start(problem))
            found = HeuristicPlanner().decide(problem, at_start(problem))
            assert exact.objective_usd is not None
            assert found.objective_usd is not None
            above = 100 * (found.objective_usd / exact.objective_usd - 1)
            print(
                f"{jobs:4d} jobs, {nodes:3d} nodes, {len(problem.machines)} types, seed {seed}: "
                f"MILP {exact.solve_seconds:5.2f} s with a gap of {100 * (exact.gap or 0.0):.4f} %; "
                f"heuristic {found.solve_seconds:5.2f} s, {above:.2f} % above"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--study", action="store_true", help="run the comparison, too")
    parser.add_argument("--workers", type=int, default=-1)
    options = parser.parse_args(arguments)
    decisions(range(3))
    if options.study:
        policies = ("fifo", "edf", "ps", "fifo-shared", "edf-shared", "ps-shared", "milp", "heuristic")
        for restart_seconds in (0.0, 30.0):
            print(f"A job that moves loses {restart_seconds:g} s:")
            study = Study(policies=policies, restart_seconds=restart_seconds)
            Console(width=140).print(comparison_table(compare(run_study(study, workers=options.workers))))


if __name__ == "__main__":
    main()
