"""Score regressions on measured recordings: of layers, from one network to another, and of whole steps by batch size.

    python -m benchmarks.accuracy.measured_layers TRACES

Gianniti, Zhang and Ardagna predict AlexNet's iterations by lines over the layers of AlexNet and of GoogLeNet. Here:

* CPU with one thread: AlexNet, GoogLeNet and ResNet-50 at eight batch sizes, as `cpu_profiles.py` measured them: the
  CPU time of each call, and of a whole step without a recorder. The published errors were measured on GPUs with other
  frameworks, so only the sizes of errors compare.
* GPUs: the project's own recordings of the H200, and TRACES, public recordings. Each network is left out once, and its
  kernels are predicted by lines over the layers of the others on the same GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from rich.table import Table

from benchmarks.accuracy import own_gpu
from benchmarks.accuracy.cpu_profiles import BATCH_SIZES, FOLDER
from benchmarks.accuracy.recordings import load_recording
from benchmarks.accuracy.regressions import NOMINAL_FLOPS_PER_SECOND
from benchmarks.result_files import ResultConsole, write_run
from benchmarks.training.report import report_table
from lightning_predict.base.errors import LightningPredictError
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Trace
from lightning_predict.regression.end_to_end import fit_regression
from lightning_predict.regression.layers import TimedLayer, fit_layers, layers_of, recorded_times
from lightning_predict.regression.runs import PastRun, RunSetting

NAMES: Final = {"alexnet": "AlexNet", "googlenet": "GoogLeNet", "resnet50": "ResNet-50"}

SMALLER: Final[Sequence[int]] = BATCH_SIZES[:4]
"""Batch sizes to fit for an extrapolation to the other half."""

EVERY_SECOND: Final[Sequence[int]] = (*BATCH_SIZES[::2][:3], BATCH_SIZES[-1])
"""Batch sizes to fit for an interpolation: every second one, and the largest."""

PUBLISHED_LAYERS: Final[Mapping[tuple[str, str], str]] = {
    ("AlexNet", "AlexNet, larger batches"): "4.75",
    ("AlexNet", "GoogLeNet"): "9.29",
}
"""Published mean errors in percent of AlexNet's iterations, by predicted and fitted network (SBAC-PAD 2018)."""

PUBLISHED_STEPS: Final = {"AlexNet": "0.4 - 11", "ResNet-50": "0.7 - 21"}
"""Published mean errors in percent along the batch size (CLOSER 2019)."""

LEAST_SHARE: Final = 0.5
"""Share of a step's kernels that must be of fitted kinds for the step to count in the median."""

RESNET: Final = "resnet50"
"""Part of the names of several recordings of one network, which are left out together."""

COMPILED: Final = "compile"
"""Part of the names of recordings of compiled steps, whose kernels contain several layers."""

WIDTH: Final = 150

Steps = Mapping[str, Mapping[int, Trace]]
"""Recorded steps by network and batch size."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A step that was predicted from layers.

    Attributes:
        seconds: Predicted sum of the layers of fitted kinds.
        known: Measured sum of these layers.
        layers: Measured sum of all layers and other calls.
        step: Measured whole step; None if only its kernels were measured.
    """

    seconds: float
    known: float
    layers: float
    step: float | None = None

    @property
    def share(self) -> float:
        """Share of the measured time that is of fitted kinds."""
        return self.known / self.layers


def predicted(trace: Trace, layers: Iterable[TimedLayer], step: float | None = None) -> Prediction:
    """Predict a recorded step from the layers of other recordings."""
    found = fit_layers(layers).predict(trace)
    own = layers_of(trace)
    return Prediction(
        seconds=found.seconds,
        known=math.fsum(one.seconds for one in own if one.kind not in found.unknown),
        layers=math.fsum(time for one in trace.operations for time in recorded_times(trace, one)),
        step=step,
    )


def read_steps(folder: Path) -> tuple[Steps, dict[str, dict[int, float]]]:
    """Read the recorded steps of `cpu_profiles.py`, and the seconds of whole steps."""
    document = json.loads((folder / "steps.json").read_text(encoding="utf-8"))
    whole = {
        NAMES[name]: {int(size): seconds for size, seconds in own.items()}
        for name, own in document["cpu_seconds"].items()
    }
    files = {name: key for key, name in NAMES.items()}
    steps = {
        name: {size: Trace.load(str(folder / f"{files[name]}_{size}.json.gz")) for size in own}
        for name, own in whole.items()
    }
    return steps, whole


def layer_table(steps: Steps, whole: Mapping[str, Mapping[int, float]]) -> Table:
    """Tabulate steps on the CPU that are predicted from layers of the same and of other networks."""
    table = report_table(
        "CPU with one thread, measured: steps from lines over layers",
        ("predicted", "from layers of"),
        ("steps", "sum of layers: mean error %", "whole step: mean error %", "in fitted kinds %", "published %"),
    )
    layers = {name: {size: layers_of(one) for size, one in own.items()} for name, own in steps.items()}
    for name, own in steps.items():
        halves = {f"{name}, larger batches": SMALLER, f"{name}, batches between": EVERY_SECOND}
        fits: dict[str, tuple[Mapping[str, Sequence[int]], Sequence[int]]]
        fits = {what: ({name: sizes}, [size for size in own if size not in sizes]) for what, sizes in halves.items()}
        others = [other for other in steps if other != name]
        fits |= {other: ({other: tuple(steps[other])}, list(own)) for other in others}
        fits[" and ".join(others)] = ({other: tuple(steps[other]) for other in others}, list(own))
        for what, (fitted, sizes) in fits.items():
            known = [one for other, chosen in fitted.items() for size in chosen for one in layers[other][size]]
            found = [predicted(own[size], known, whole[name][size]) for size in sizes]
            table.add_row(name, what, *_cells(found), PUBLISHED_LAYERS.get((name, what), "-"))
        table.add_section()
    return table


def _cells(found: Sequence[Prediction]) -> tuple[str, ...]:
    return (
        str(len(found)),
        _percent(abs(one.seconds / one.layers - 1) for one in found),
        _percent(abs(one.seconds / one.step - 1) for one in found if one.step is not None),
        _percent(one.share for one in found),
    )


def _percent(shares: Iterable[float]) -> str:
    return f"{100 * statistics.fmean(shares):.1f}"


def step_table(whole: Mapping[str, Mapping[int, float]]) -> Table:
    """Tabulate errors of end-to-end regressions along the batch size."""
    table = report_table(
        "CPU with one thread, measured: whole steps by batch size",
        ("network", "predicted batches"),
        ("fitted", "predicted", "mean error %", "largest %", "in 90 %", "published %"),
    )
    for name, own in whole.items():
        runs = {size: _run(name, size, seconds) for size, seconds in own.items()}
        for what, sizes in (("between", EVERY_SECOND), ("larger", SMALLER)):
            regression = fit_regression([runs[size] for size in sizes])
            rest = [run for size, run in runs.items() if size not in sizes]
            estimates = [regression.predict(run.setting) for run in rest]
            errors = [abs((one.seconds or 0) / run.seconds - 1) for one, run in zip(estimates, rest, strict=True)]
            hits = [
                one.time is not None and one.time.low <= run.seconds <= one.time.high
                for one, run in zip(estimates, rest, strict=True)
            ]
            numbers = (_percent(errors), f"{100 * max(errors):.1f}", _percent(map(float, hits)))
            table.add_row(name, what, str(len(sizes)), str(len(rest)), *numbers, PUBLISHED_STEPS.get(name, "-"))
    return table


def _run(name: str, size: int, seconds: float) -> PastRun:
    setting = RunSetting(iterations=1, batch_size=size, flops_per_second=NOMINAL_FLOPS_PER_SECOND)
    return PastRun(model=name, setting=setting, seconds=seconds)


def gpu_recordings(folders: Sequence[Path]) -> dict[str, dict[str, Trace]]:
    """Read eager recordings with shapes and kernels, by GPU and file; only GPUs with two or more."""
    found: defaultdict[str, dict[str, Trace]] = defaultdict(dict)
    for path in sorted(path for folder in folders for path in folder.glob("*.json.gz")):
        try:
            trace = load_recording(path)
            gpu = gpu_in_use(trace)
            layers_of(trace)
        except LightningPredictError:  # an unreadable file, or one without shapes
            continue
        if gpu is not None and trace.device == "cuda" and COMPILED not in path.name:
            found[gpu.name][re.sub(r"(_step\d+)?\.json\.gz$", "", path.name)] = trace  # a whole file and its step
    return {gpu: own for gpu, own in found.items() if len({_network(name) for name in own}) > 1}


def _network(name: str) -> str:
    return RESNET if RESNET in name else name


def gpu_table(recordings: Mapping[str, Mapping[str, Trace]]) -> Table:
    """Tabulate each recorded network, predicted from the layers of the others on its GPU."""
    table = report_table(
        "GPUs, recorded: a network left out, from lines over the layers of the others",
        ("GPU", "network"),
        ("measured ms", "in fitted kinds %", "error of these %"),
    )
    counted = list[float]()
    for gpu, own in recordings.items():
        layers = {name: layers_of(trace) for name, trace in own.items()}
        for name, trace in own.items():
            others = [other for other in own if _network(other) != _network(name)]
            one = predicted(trace, [layer for other in others for layer in layers[other]])
            error = one.seconds / one.known - 1 if one.known else None
            counted += [abs(error)] if error is not None and one.share >= LEAST_SHARE else []
            shown = "-" if error is None else f"{100 * error:+.1f}"
            table.add_row(gpu, name, f"{1e3 * one.layers:.1f}", f"{100 * one.share:.1f}", shown)
    table.add_section()
    if counted:
        middle = f"{100 * statistics.median(counted):.1f}"
        table.add_row("median", "of networks with half of their time in fitted kinds", str(len(counted)), "", middle)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy.measured_layers", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("traces", nargs="?", type=Path, default=None, help="folder of public recordings of GPUs")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    console = ResultConsole(width=WIDTH)
    steps, whole = read_steps(FOLDER)
    console.print(layer_table(steps, whole))
    console.print(step_table(whole))
    folders = [own_gpu.FOLDER / "recordings", *([] if options.traces is None else [options.traces])]
    console.print(gpu_table(gpu_recordings(folders)))
    write_run(console, "measured-layers", options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
