"""Rows of the tables of whole steps on one GPU, before they are predicted, and readers of four tables.

The score of a row depends on its measurement. milabench times a pass of a loop with events, without the host's first
batches; Lin's ResNet-50 is a plain step at locked clocks; Gavel's steps hold real loaders (2020, torch 1.4); AdaptDL's
steps (Sia) hold loaders and statistics, so that small batches have a floor: the time of one additional sample, and
ratios, are scored instead.
The recorded steps lie next to the tables in `traces_new`; ResNet-18 for CIFAR is recorded here. Example::

    rows = tuple(milabench_steps(Path("validation")))
    rows[0].gpu, rows[0].model, rows[0].samples, rows[0].measured_seconds
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, final

from benchmarks.accuracy.workloads.cifar import cifar_resnet18_trace
from lightning_predict.base.checked import Checked, read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import milliseconds_to_seconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import NVIDIA, Gpu
from lightning_predict.record.torch_releases import for_torch_release
from lightning_predict.record.trace import Trace

RECORDED: Final = "traces_new"
"""Folder of recorded steps next to the tables."""

MILABENCH_TABLE: Final = "milabench.csv"
LIN_TABLE: Final = "lin_2024.csv"
GAVEL_TABLE: Final = "gavel.csv"
SIA_TABLE: Final = "sia.csv"

NO_STEP: Final = ("resnet50", "resnet152-ddp-gpus")
"""Benches of milabench whose loaders decide, or that ran on several GPUs."""

LOCKED_CLOCKS_HZ: Final[Mapping[str, float]] = {
    "V100-SXM2-16GB": 1297e6,
    "P100-PCIe-16GB": 1189e6,
    "TITAN-Xp": 1404e6,
}
"""Clocks at which Lin et al. locked their GPUs, by the script that prepared their machines (`init_vars.sh` of
owensgroup/ml_perf_model): 0.73 to 0.9 of what these cards run at. The processors' boost was off, too."""

LIN_RELEASE: Final = "1.10"
"""Release of torch when the paper of these rows came out, January 2022; it names none."""

TF32_SWITCHES: Final[Mapping[str, bool]] = {"tf32": True, "fp32": False}
"""By the last word of a bench's name; others leave torch's own."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStep:
    """A row of a table before its step is recorded.

    Attributes:
        table: Its table.
        source: Machine and software that timed it.
        gpu: Our name of the GPU.
        model: Model, precision, layout and mode.
        file: Name of the recorded step.
        measured_seconds: One step.
        record: Records the step; None if it cannot.
        release: Release of torch that it is predicted for; None for the trace's release.
        samples: Samples of the step; None where the table does not count them.
        tf32: Both switches of TF32; None for the trace's switches.
        waits_for_input: The source names the host's input as the bottleneck of the step.
        clock_hz: Clock that the GPU was locked at; None where it was free.
    """

    table: str
    source: str
    gpu: str
    model: str
    file: str
    measured_seconds: float
    record: Callable[[], Trace | None]
    release: str | None = None
    samples: int | None = None
    tf32: bool | None = None
    waits_for_input: bool = False
    clock_hz: float | None = None

    @property
    def on(self) -> Gpu:
        """The GPU at the clock that it ran at."""
        found = find_gpu(self.gpu)
        return found if self.clock_hz is None else at_clock(found, self.clock_hz)

    @property
    def step(self) -> tuple[str, str | None, bool | None]:
        """What rows of one step under one release have in common."""
        return self.file, self.release, self.tf32

    def recorded(self, cache: Path) -> Trace | None:
        """Read the step as it ran, or record and keep it; None if it cannot be recorded.

        Args:
            cache: Folder that keeps the recorded steps.
        """
        kept = cache / self.file
        trace = Trace.load(str(kept)) if kept.is_file() else self.record()
        if trace is None:
            return None
        if not kept.is_file():
            trace.save(str(kept))
        trace = for_torch_release(trace, self.release)
        if self.tf32 is not None:
            trace = replace(trace, flags=replace(trace.flags, matmul_tf32=self.tf32, cudnn_tf32=self.tf32))
        return trace


def at_clock(gpu: Gpu, clock_hz: float) -> Gpu:
    """Lock a GPU's multiprocessors at a clock; the memory keeps its own.

    Rates that were measured at free clocks say nothing any more, and networks of the GPU keep what they know of its
    utilisation.
    """
    share = clock_hz / gpu.boost_clock_hz
    return replace(
        gpu,
        base_clock_hz=clock_hz,
        boost_clock_hz=clock_hz,
        highest_clock_hz=clock_hz,
        peak_flops_per_second={dtype: share * peak for dtype, peak in gpu.peak_flops_per_second.items()},
        measured_flops_per_second={},
        l2_bytes_per_second=share * gpu.l2_bytes_per_second,
    )


def milabench_steps(folder: Path, *, vendor: str = NVIDIA) -> Iterator[PublishedStep]:
    """Read the benches whose step is recorded, on one GPU of the catalogue; repeated rows become their median.

    Under float16 autocast the switch of TF32 decides nothing: both benches are one. Rows of the GradScaler are
    predicted without it. A batch of one waits for the host.

    Args:
        folder: Holds the table and the recorded steps.
        vendor: Whose GPUs to read.

    Raises:
        MeasurementTableError: The table has a wrong column or value.
    """
    times: dict[tuple[str, str, bool, int], list[float]] = defaultdict(list)
    columns = ("gpu", "n_gpus", "bench", "batch_size", "step_ms", "bound_by")
    for row in read_csv(folder / MILABENCH_TABLE, MeasurementTableError, columns=columns):
        bench = row.member("bench").text().replace("-tf32-fp16", "-fp16")
        if row.value["n_gpus"] != "1" or not row.value["step_ms"] or not row.value["bound_by"] or bench in NO_STEP:
            continue
        samples = _count(row, "batch_size")
        waits = row.value["bound_by"] != "device"
        if (folder / RECORDED / "milabench" / f"{bench}-{samples}.json.gz").is_file():
            times[row.member("gpu").text(), bench, waits, samples].append(_seconds(row))
    for (gpu, bench, waits, samples), seconds in times.items():
        if find_gpu(gpu).vendor == vendor:
            yield _recorded(
                folder,
                f"milabench/{bench}-{samples}.json.gz",
                table="milabench",
                source="milabench 2025",
                gpu=gpu,
                model=f"{bench} (waits for its input)" if waits else bench,
                waits_for_input=waits,
                seconds=statistics.median(seconds),
                samples=samples,
                release="2.6",
                tf32=TF32_SWITCHES.get(bench.rpartition("-")[2]),
            )


def lin_steps(folder: Path) -> Iterator[PublishedStep]:
    """Read Lin et al.'s ResNet-50, on GPUs at locked clocks; errors as for `milabench_steps`."""
    columns = ("gpu", "model", "batch_size", "step_ms")
    for row in read_csv(folder / LIN_TABLE, MeasurementTableError, columns=columns):
        samples, model = _count(row, "batch_size"), row.member("model").text()
        file = f"lin_2024/{model}-{samples}.json.gz"
        if (folder / RECORDED / file).is_file():
            yield _recorded(
                folder,
                file,
                table="Lin et al.",
                source="Lin et al.",
                gpu=row.member("gpu").text(),
                model=model,
                seconds=_seconds(row),
                samples=samples,
                release=LIN_RELEASE,
                clock_hz=LOCKED_CLOCKS_HZ.get(row.member("gpu").text()),
            )


def lin_errors(path: Path) -> Mapping[str, list[float]]:
    """Read the absolute errors that the paper prints, as shares, by predictor; errors as for `milabench_steps`."""
    peers = {"Lin et al.": "lin_error_pct", "Habitat": "habitat_error_pct", "MLPredict": "mlpredict_error_pct"}
    rows = tuple(read_csv(path, MeasurementTableError, columns=tuple(peers.values())))
    return {name: [row.member(column).parsed().number() / 100 for row in rows] for name, column in peers.items()}


def gavel_steps(folder: Path) -> Iterator[PublishedStep]:
    """Read Gavel's ResNet-18 for CIFAR alone on one GPU; errors as for `milabench_steps`."""
    columns = ("source", "gpu", "consolidated", "n_gpus", "model", "batch_size", "step_ms")
    for row in read_csv(folder / GAVEL_TABLE, MeasurementTableError, columns=columns):
        alone = (row.value["source"], row.value["consolidated"], row.value["n_gpus"]) == ("physical", "1", "1")
        if alone and row.value["model"] == "ResNet-18":
            yield _cifar(row, "Gavel", _count(row, "batch_size"), _seconds(row), release="1.4")


def sia_steps(folder: Path) -> Iterator[PublishedStep]:
    """Read AdaptDL's steps on one named GPU whose step is recorded; errors as for `milabench_steps`.

    `cifar10` is ResNet-18 for CIFAR; `imagenet` ResNet-50 under Apex's O1, `bert` BERT on SQuAD with AdamW.
    """
    columns = ("app", "cluster", "gpu", "kind", "n_gpus", "local_batch", "step_seconds")
    for row in read_csv(folder / SIA_TABLE, MeasurementTableError, columns=columns):
        if (row.value["kind"], row.value["n_gpus"]) != ("placements", "1") or not row.value["gpu"]:
            continue
        app, samples = row.member("app").text(), _count(row, "local_batch")
        seconds = row.member("step_seconds").parsed().positive()
        file = f"sia/{app}-{samples}.json.gz"
        if app == "cifar10":
            yield _cifar(row, "Sia", samples, seconds, release="1.9")
        elif (folder / RECORDED / file).is_file():
            yield _recorded(
                folder,
                file,
                table="Sia",
                source="AdaptDL",
                gpu=row.member("gpu").text(),
                model=app,
                seconds=seconds,
                samples=samples,
                release="1.9",
            )


READERS: Final[Mapping[str, Callable[[Path], Iterable[PublishedStep]]]] = {
    MILABENCH_TABLE: milabench_steps,
    LIN_TABLE: lin_steps,
    GAVEL_TABLE: gavel_steps,
    SIA_TABLE: sia_steps,
}
"""Reader of each table, by its file."""


def _recorded(
    folder: Path,
    file: str,
    *,
    table: str,
    source: str,
    gpu: str,
    model: str,
    seconds: float,
    samples: int,
    release: str | None,
    tf32: bool | None = None,
    waits_for_input: bool = False,
    clock_hz: float | None = None,
) -> PublishedStep:
    path = folder / RECORDED / file
    return PublishedStep(
        table=table,
        source=source,
        gpu=find_gpu(gpu).name,
        model=model,
        file=str(path.resolve()),
        measured_seconds=seconds,
        record=partial(Trace.load, str(path)),
        release=release,
        samples=samples,
        tf32=tf32,
        waits_for_input=waits_for_input,
        clock_hz=clock_hz,
    )


def _cifar(row: Checked, table: str, samples: int, seconds: float, *, release: str) -> PublishedStep:
    return PublishedStep(
        table=table,
        source=table,
        gpu=find_gpu(row.member("gpu").text()).name,
        model="ResNet-18 for CIFAR",
        file=f"cifar-resnet18-{samples}.json.gz",
        measured_seconds=seconds,
        record=partial(cifar_resnet18_trace, samples),
        release=release,
        samples=samples,
    )


def _count(row: Checked, column: str) -> int:
    return int(row.member(column).parsed().positive())


def _seconds(row: Checked) -> float:
    return milliseconds_to_seconds(row.member("step_ms").parsed().positive())
