"""The planning commands without the console command: `python -m lightning_predict.planning plan jobs.yaml`.

python -m lightning_predict.planning plan jobs.yaml --output plan
python -m lightning_predict.planning simulate study.yaml --output study --workers 4
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_predict.errors import LightningPredictError
from lightning_predict.planning.commands import plan, simulate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 where it worked, 1 after an error in words."""
    parser = argparse.ArgumentParser(prog="python -m lightning_predict.planning", description="Plan jobs on machines.")
    commands = parser.add_subparsers(dest="command", required=True)
    planning = commands.add_parser("plan", help="plan the jobs of a YAML file")
    planning.add_argument("jobs", type=Path)
    planning.add_argument("--output", type=Path, default=None, help="folder to write")
    planning.add_argument("--method", default="milp", help="milp, heuristic or a queue rule")
    simulating = commands.add_parser("simulate", help="compare policies on random instances")
    simulating.add_argument("study", type=Path)
    simulating.add_argument("--output", type=Path, default=None, help="folder to write")
    simulating.add_argument("--workers", type=int, default=None, help="processes; -1 for all cores")
    options = parser.parse_args(arguments)
    try:
        if options.command == "plan":
            plan(options.jobs, output=options.output, method=options.method)
        else:
            simulate(options.study, output=options.output, workers=options.workers)
    except LightningPredictError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
