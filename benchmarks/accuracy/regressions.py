"""Score `lightning-predict regress` beyond its runs: `python -m benchmarks.accuracy.regressions --data DATA`.

- GPUs: training benchmarks (`training_throughput.csv`) on the slower half of the GPUs are fitted, the faster half is
  predicted; runs of each benchmark and precision by themselves.
- Batch sizes: steps of one CPU thread (`measured/CPU-one-thread`) of the smaller half are fitted, the larger predicted.
- Layers: such a step from lines over the layers of the same network in smaller batches, or of another network.

The published errors of the same kind are of other GPUs and frameworks, so only the sizes of errors compare.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import lightning_predict as lp
from benchmarks.accuracy.case import Case, step_of_file
from benchmarks.accuracy.readers.training import training_cases
from benchmarks.accuracy.score import Scored, summary_table
from benchmarks.result_files import ResultConsole, write_run
from lightning_predict.cli import main as command_line

FOLDER: Final = Path(__file__).parents[1] / "measured" / "CPU-one-thread"
NETWORKS: Final = {"alexnet": "AlexNet", "googlenet": "GoogLeNet", "resnet50": "ResNet-50"}
CPU_GFLOPS: Final = "100"  # Computing power of the CPU, the same in all runs

FEWEST_GPUS: Final = 4
WIDTH: Final = 150


def regress(*words: str) -> dict[str, Any]:
    """Run `lightning-predict regress` and return what it prints as JSON.

    Raises:
        ValueError: The command failed.
    """
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = command_line(["regress", *words, "--json"])
    if code:
        raise ValueError(f"regress {' '.join(words)} ended with {code}.")
    answer: dict[str, Any] = json.loads(printed.getvalue())
    return answer


def _table(folder: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    path = Path(folder) / "runs.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return str(path)


def faster_gpus(data: Path) -> Iterator[Scored]:
    """Predict benchmarks on the faster half of their GPUs from the slower half."""
    runs: dict[str, list[Case]] = defaultdict(list)
    for case in training_cases(data):
        runs[case.model].append(case)
    for cases in runs.values():
        speeds = {case.gpu: lp.gpu(case.gpu).peak("float32") or 0.0 for case in cases}
        middle = statistics.median(speeds.values())
        slower = [case for case in cases if speeds[case.gpu] <= middle]
        if len({case.gpu for case in slower}) < FEWEST_GPUS:
            continue
        with TemporaryDirectory() as folder:
            columns = ("seconds", "iterations", "batch_size", "gpu")
            table = _table(folder, columns, [(one.measured, 1, _batch(one), one.gpu) for one in slower])
            for case in cases:
                if speeds[case.gpu] > middle:
                    setting = ("--iterations", "1", "--batch-sizes", str(_batch(case)), "--gpus", case.gpu)
                    (prediction,) = regress(table, *setting)["predictions"]
                    if prediction["seconds"]:
                        yield Scored(case=case, predicted=_bounds(prediction))


def _batch(case: Case) -> int:
    return int(case.step.name.rpartition("-")[2])


def _bounds(found: dict[str, Any]) -> tuple[float, float, float]:
    seconds = found["seconds"]
    return found["low_seconds"] or seconds, seconds, found["high_seconds"] or seconds


def larger_batches() -> Iterator[Scored]:
    """Predict whole steps of the larger batch sizes from the smaller ones."""
    for name, seconds in json.loads((FOLDER / "steps.json").read_text(encoding="utf-8"))["cpu_seconds"].items():
        sizes = sorted(map(int, seconds))
        smaller, larger = sizes[: len(sizes) // 2], sizes[len(sizes) // 2 :]
        with TemporaryDirectory() as folder:
            rows = [(seconds[str(size)], 1, size, CPU_GFLOPS) for size in smaller]
            table = _table(folder, ("seconds", "iterations", "batch_size", "gflops"), rows)
            sized = ",".join(map(str, larger))
            found = regress(table, "--iterations", "1", "--batch-sizes", sized, "--gflops", CPU_GFLOPS)["predictions"]
        for size, prediction in zip(larger, found, strict=True):
            yield Scored(case=_cpu_case(name, size, seconds[str(size)], NETWORKS[name]), predicted=_bounds(prediction))


def from_layers() -> Iterator[Scored]:
    """Predict the larger batch sizes from layers: of the same network in smaller batches, and of each other network."""
    steps = json.loads((FOLDER / "steps.json").read_text(encoding="utf-8"))["cpu_seconds"]
    for name, seconds in steps.items():
        sizes = sorted(map(int, seconds))
        for other in steps:
            known = sizes[: len(sizes) // 2] if other == name else sizes
            layers = ",".join(str(FOLDER / f"{other}_{size}.json.gz") for size in known)
            for size in sizes[len(sizes) // 2 :]:
                path = FOLDER / f"{name}_{size}.json.gz"
                found = regress(str(path), "--layers", layers)["prediction"]["seconds"]
                words = f"{NETWORKS[name]} from layers of {NETWORKS[other]}"
                yield Scored(case=_cpu_case(name, size, seconds[str(size)], words), predicted=(found, found, found))


def _cpu_case(name: str, size: int, seconds: float, source: str) -> Case:
    step = step_of_file(FOLDER / f"{name}_{size}.json.gz")
    return Case(source=source, model=f"{NETWORKS[name]}, batch {size}", gpu="CPU", step=step, measured=seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the errors, and write them if a folder is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared"), help="folder of data (default: %(default)s)")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    console = ResultConsole(width=WIDTH, keeps_measurements=False)
    if (options.data / "validation").is_dir():
        console.print(summary_table("faster GPUs", "time", list(faster_gpus(options.data))))
    console.print(summary_table("larger batches", "time", list(larger_batches())))
    console.print(summary_table("steps from layers", "time", list(from_layers())))
    write_run(console, "regressions", options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
