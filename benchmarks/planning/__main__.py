"""Compare ways of planning on random jobs, with real times that differ from the predicted ones.

    python -m benchmarks.planning study.yaml --output study --workers -1

Without a file, the settings are the defaults of `Study`. With `setting: stream`, jobs come as in a published stream:

    python -m benchmarks.planning study.yaml --streams FOLDER
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.planning.pictures import comparison_figure, comparison_table
from benchmarks.planning.study import Study, compare, read_study, run_study
from benchmarks.result_files import ResultConsole, write_run
from lightning_predict.base.answers import json_value
from lightning_predict.base.errors import LightningPredictError

WIDTH = 120


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study and print the comparison; the exit code.

    Args:
        arguments: Words of the command line; None takes the process's.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("study", type=Path, nargs="?", default=None, help="YAML file of settings")
    parser.add_argument("--output", type=Path, default=None, help="folder to write all runs and the figure to")
    parser.add_argument("--workers", type=int, default=None, help="processes, -1 for all cores")
    parser.add_argument("--streams", type=Path, default=None, help="folder of published jobs and throughputs (Gavel)")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the comparison to")
    options = parser.parse_args(arguments)
    try:
        study = Study() if options.study is None else read_study(options.study, streams=options.streams)
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("runs", total=len(study.runs))
            runs = run_study(study, workers=options.workers, on_run=lambda _: progress.advance(bar))
        comparisons = compare(runs)
        console = ResultConsole(width=WIDTH)
        console.print(comparison_table(comparisons))
        write_run(console, "planning", options.result)
        if options.output is not None:
            options.output.mkdir(parents=True, exist_ok=True)
            document = {"version": 1, "study": replace(study, stream=None), "comparisons": comparisons, "runs": runs}
            (options.output / "study.json").write_text(json.dumps(json_value(document), indent=2) + "\n", "utf-8")
            comparison_figure(comparisons).savefig(options.output / "study.svg")
            print(f"Written to {options.output}: study.json, study.svg")
    except (LightningPredictError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
