"""Train all weights from public and own tables, or score weights on them.

    python -m benchmarks.training train TABLES --output lightning_predict/weights/files
    python -m benchmarks.training evaluate TABLES --baselines

All public tables take about half an hour on two cores. A folder with `collective.csv.gz` gets the curves of
collectives, too. Progress is on standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.result_files import ResultConsole, write_run
from benchmarks.training.scores import score_table
from benchmarks.training.weights import WIDTH, evaluate, evaluate_proxies, manifest_of, print_operators, train
from lightning_predict.base.errors import LightningPredictError

NO_SCORES = "No score: of each operation 15 % of the shapes are held out, drawn by a hash of the shape: here none was."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code.

    Args:
        arguments: Words of the command line; None takes the process's.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (("train", "train all weights"), ("evaluate", "score weights on rows that no fit saw")):
        command = commands.add_parser(name, help=words)
        command.add_argument("tables", type=Path, help="folder of the measurement tables")
        command.add_argument("--seed", type=int, default=0, help="seed of the networks and of the held-out rows")
    made, scored = (commands.choices[name] for name in ("train", "evaluate"))
    made.add_argument("--output", type=Path, default=Path("weights"), help="folder to write (default: %(default)s)")
    scored.add_argument("--weights", type=Path, default=None, help="weights to score (default: cache, then bundled)")
    scored.add_argument("--baselines", action="store_true", help="train networks on raw latency beside, for minutes")
    scored.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    console, progress = ResultConsole(width=WIDTH), Console(stderr=True)
    try:
        if options.command == "train":
            scores = train(options.tables, options.output, seed=options.seed, console=progress)
            console.print(score_table(scores) if scores else NO_SCORES)
            return 0
        scores = evaluate(
            options.tables, weights=options.weights, seed=options.seed, baselines=options.baselines, console=progress
        )
        proxies = evaluate_proxies(options.tables, weights=options.weights)
        print_operators(scores, manifest_of(options.weights), proxies, console)
        write_run(console, "operator-weights", options.result)
    except (LightningPredictError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
