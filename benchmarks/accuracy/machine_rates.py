"""Check what the kernels of a recorded step say about the machine: its own rate, measured over predicted seconds.

    python -m benchmarks.accuracy.machine_rates TRACES

* Hidden kernels: a fifth of the operations of a recording loses its kernels, `DRAWS` times. Their device time on the
  same GPU is predicted from shapes, and with the rate of the other operations, as the package does.
* Other steps: ten steps were recorded on one H200. The rates of nine steps, of matmuls and of other work, correct the
  tenth. The package does not do this, because the errors of shapes belong to the models more than to the machine.

TRACES holds recordings of `torch.profiler`; the own recordings of an H200 are in the repository. Example::

    score = hidden_score("resnet50", trace, gpu("H200-SXM-141GB"))
    score.from_shapes, score.from_rates     # mean |log(predicted / measured)|
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

import numpy as np
from rich.table import Table

from benchmarks.accuracy.own_gpu import FOLDER
from benchmarks.accuracy.recordings import load_recording
from benchmarks.result_files import ResultConsole, write_run
from benchmarks.scored_steps import WIDTH
from benchmarks.training.report import report_table
from lightning_predict.base.errors import LightningPredictError
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.measured_scaling import WorkTimes, predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import Array, operation_spec
from lightning_predict.kernels.translation import WorkItem
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Trace

HIDDEN: Final = 0.2
"""Share of the operations whose kernels are hidden."""

DRAWS: Final = 5
FEWEST: Final = 20
"""Minimum number of operations of a recording with kernels and a prediction."""


@final
@dataclass(frozen=True, slots=True)
class HiddenScore:
    """Mean |log(predicted / measured)| of the device time of hidden operations, over the draws."""

    name: str
    gpu: str
    operations: int
    from_shapes: float
    from_rates: float


def recorded(folder: Path) -> Iterator[tuple[str, Trace, Gpu]]:
    """Yield the recordings with kernels of a known GPU."""
    for path in sorted(folder.glob("*.json.gz")):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                trace = load_recording(path)
                gpu = gpu_in_use(trace)
        except LightningPredictError:
            continue
        if gpu is not None and trace.has_measured_kernels:
            yield path.name.removesuffix(".json.gz"), trace, gpu


def hidden_score(name: str, trace: Trace, gpu: Gpu) -> HiddenScore | None:
    """Score a recording; None with fewer than `FEWEST` operations."""
    direct = predict_work_times(trace, [gpu], origin=None, models=kernel_models((gpu.name,)))
    measured = _measured(trace, direct)
    on_gpu = [bool(item.problems) and _names_gpu(trace, item) for item in direct.items]
    known = (measured > 0) & (direct.seconds[0] > 0) & np.array(on_gpu)
    if known.sum() < FEWEST:
        return None
    random, errors = np.random.default_rng(0), []
    for _ in range(DRAWS):
        hidden = known & (random.random(len(known)) < HIDDEN)
        lost = {index for column in np.flatnonzero(hidden) for index in direct.items[column].operations}
        operations = [replace(one, kernels=()) if index in lost else one for index, one in enumerate(trace.operations)]
        without = replace(trace, operations=tuple(operations))
        own = predict_work_times(without, [gpu], origin=gpu, models=kernel_models((gpu.name,)))
        firsts = {direct.items[column].operations[0] for column in np.flatnonzero(hidden)}
        expected = measured[hidden].sum()
        errors.append([abs(math.log(_seconds_of(firsts, timed) / expected)) for timed in (direct, own)])
    from_shapes, from_rates = (statistics.fmean(column) for column in zip(*errors, strict=True))
    return HiddenScore(name, gpu.name, int(known.sum()), from_shapes, from_rates)


def _names_gpu(trace: Trace, item: WorkItem) -> bool:
    """Return whether a tensor names the GPU; otherwise an operation without kernels may have run on the CPU."""
    operations = [trace.operations[index] for index in item.operations]
    return any(tensor.device == "cuda" for one in operations for tensor in (*one.inputs, *one.outputs))


def _measured(trace: Trace, timed: WorkTimes) -> Array:
    """Return the measured seconds of each item."""
    return np.array(
        [sum(kernel.seconds for i in item.operations for kernel in trace.operations[i].kernels) for item in timed.items]
    )


def _seconds_of(firsts: Collection[int], timed: WorkTimes) -> float:
    """Return the predicted seconds of the items that start with one of these operations."""
    columns = [column for column, item in enumerate(timed.items) if item.operations[0] in firsts]
    return float(timed.seconds[0, columns].sum())


def hidden_table(scores: Sequence[HiddenScore]) -> Table:
    """Return one row a recording, and the mean."""
    table = report_table(
        "Operations without kernels on the same GPU",
        ("recording", "GPU"),
        ("operations", "from shapes %", "with the machine's rate %"),
    )
    for one in scores:
        row = (one.name, one.gpu, str(one.operations), f"{100 * one.from_shapes:.1f}", f"{100 * one.from_rates:.1f}")
        table.add_row(*row)
    table.add_section()
    for word, of in (("mean", statistics.fmean), ("median", statistics.median)):
        cells = (
            f"{100 * of([one.from_shapes for one in scores]):.1f}",
            f"{100 * of([one.from_rates for one in scores]):.1f}",
        )
        table.add_row(word, "", str(len(scores)), *cells)
    nearer = sum(one.from_rates < one.from_shapes for one in scores)
    table.add_row("nearer", "", str(len(scores)), str(len(scores) - nearer), str(nearer))
    return table


def rates_of(trace: Trace, gpu: Gpu) -> Mapping[str, tuple[float, float]]:
    """Return measured and predicted seconds of matmuls and convolutions (`tensor`) and of other work (`vector`)."""
    timed = predict_work_times(trace, [gpu], origin=None, models=kernel_models((gpu.name,)))
    totals: dict[str, tuple[float, float]] = {}
    for item, measured, predicted in zip(timed.items, _measured(trace, timed), timed.seconds[0], strict=True):
        if item.problems and measured > 0 and predicted > 0:
            units = operation_spec(item.problems[0].operation).units
            was = totals.get(units, (0.0, 0.0))
            totals[units] = was[0] + float(measured), was[1] + float(predicted)
    return totals


def other_steps_table(recordings: Sequence[tuple[str, Mapping[str, tuple[float, float]]]]) -> Table:
    """Return the error of each step's device time from shapes, and corrected by the rates of the other steps."""
    table = report_table(
        "A step with the rates of other steps of one H200",
        ("recording",),
        ("from shapes %", "with the rates of others %"),
    )
    pairs = []
    for name, own in recordings:
        rates = {}
        for units in own:
            found = [totals[units] for other, totals in recordings if other != name and units in totals]
            rates[units] = statistics.geometric_mean(measured / predicted for measured, predicted in found)
        measured = sum(seconds for seconds, _ in own.values())
        plain = sum(seconds for _, seconds in own.values()) / measured - 1
        corrected = sum(rates[units] * seconds for units, (_, seconds) in own.items()) / measured - 1
        pairs.append((abs(plain), abs(corrected)))
        table.add_row(name, f"{100 * plain:+.1f}", f"{100 * corrected:+.1f}")
    table.add_section()
    table.add_row("mean", *(f"{100 * statistics.fmean(column):.1f}" for column in zip(*pairs, strict=True)))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy.machine_rates", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="folder of recordings of torch.profiler")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    console = ResultConsole(width=WIDTH)
    own = list(recorded(FOLDER / "recordings"))
    found = [hidden_score(*one) for one in (*recorded(options.folder), *own)]
    console.print(hidden_table([one for one in found if one is not None]))
    console.print(other_steps_table([(name, rates_of(trace, gpu)) for name, trace, gpu in own]))
    write_run(console, "machine-rates", options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
