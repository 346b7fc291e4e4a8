"""Train on the stored rows of our H200 as a user would, and compare the twelve measured steps before and after.

    python -m benchmarks.training.own_rows --cache FOLDER

Two recordings that are no twelve steps of the score (ResNet-50 in eager mode, GPT-2) stand for those that `measure`
records. The exit code is 1 if the mean error of the steps rises.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

import lightning_predict as lp
from benchmarks.accuracy.readers.own_gpu import FOLDER, GPU, measured_steps, recorded
from benchmarks.training.report import report_table
from lightning_predict.own_weights.training.tables import STEPS_FOLDER
from lightning_predict.own_weights.training.tuning import tune_weights

STEPS: Final = ("resnet50_eager", "gpt2")  # Recordings that training may look at
NO_CHANGE: Final = 1e-3  # Rise of the mean error that counts as none


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, predict the steps with both weights, and print both errors."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.own_rows")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()), help="folder of recorded steps")
    options = parser.parse_args(arguments)
    console = Console(width=180)
    with tempfile.TemporaryDirectory() as name:
        tables = Path(name) / "tables"
        shutil.copytree(FOLDER / "operators", tables)
        (tables / STEPS_FOLDER).mkdir()
        for recording in STEPS:
            shutil.copy(FOLDER / "recordings" / f"{recording}.json.gz", tables / STEPS_FOLDER)
        scores = tune_weights(tables, Path(name) / "weights", done=console.print)
        kept = [score for score in scores if score.refused is None]
        console.print(f"{len(kept)} of {len(scores)} operations and dtypes are stored.")
        table = report_table("own rows: twelve steps", ("step",), ("measured ms", "bundled %", "trained %"))
        errors: list[list[float]] = [[], []]
        for step in measured_steps():
            trace = _trace(step, options.cache)
            measured = statistics.median(step["seconds"])
            for series, weights in zip(errors, (None, str(Path(name) / "weights")), strict=True):
                predicted = lp.predict(trace, [GPU], weights=weights, history=False)[GPU].iteration_seconds
                series.append(predicted / measured - 1)
            table.add_row(
                f"{step['model']} {step['precision']}",
                f"{1e3 * measured:.1f}",
                *(f"{100 * series[-1]:+.1f}" for series in errors),
            )
        before, after = (statistics.fmean(map(abs, series)) for series in errors)
        table.add_row("mean", "", f"{100 * before:.1f}", f"{100 * after:.1f}")
        console.print(table)
    return int(after > before + NO_CHANGE)


def _trace(step: dict[str, Any], cache: Path) -> lp.Trace:
    words = str(step["model"]), str(step["precision"]), int(str(step["batch"]))
    path = cache / f"own-{'-'.join(map(str, words)).replace(' ', '_')}.json.gz"
    if not path.is_file():
        recorded(*words, last=bool(step["channels_last"])).save(str(path))
    return lp.Trace.load(str(path))


if __name__ == "__main__":
    sys.exit(main())
