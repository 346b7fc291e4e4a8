"""Steps of milabench, Lin et al., Gavel and Sia on one GPU, from recorded steps next to the tables.

milabench times passes of a loop, and names what bound them. Lin et al. locked the clocks of their GPUs. Gavel's and
Sia's steps hold a data loader, and Sia's also AdaptDL's statistics.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step, step_of_file
from benchmarks.accuracy.readers.files import rows
from benchmarks.accuracy.workloads.cifar import cifar_resnet18_trace

LOCKED_CLOCKS_HZ: Final[Mapping[str, float]] = {"V100-SXM2-16GB": 1297e6, "P100-PCIe-16GB": 1189e6, "TITAN-Xp": 1404e6}
"""Clocks at which Lin et al. locked their GPUs, by the script that prepared their machines (`init_vars.sh` of
owensgroup/ml_perf_model)."""

TF32_SWITCHES: Final[Mapping[str, bool]] = {"tf32": True, "fp32": False}
"""By the last word of a bench's name; other benches leave torch's own."""


def milabench_cases(data: Path) -> Iterator[Case]:
    """Read the benches whose step is recorded; repeated rows become their median.

    Under float16 autocast the switch of TF32 decides nothing: both benches are one.
    """
    folder = data / "validation" / "traces_new" / "milabench"
    times: dict[tuple[str, str, str, int], list[float]] = defaultdict(list)
    for row in rows(data / "validation" / "milabench.csv"):
        bench = row["bench"].replace("-tf32-fp16", "-fp16")
        size = int(float(row["batch_size"]))
        if row["n_gpus"] == "1" and row["step_ms"] and (folder / f"{bench}-{size}.json.gz").is_file():
            times[row["gpu"], bench, row["bound_by"], size].append(float(row["step_ms"]) / 1e3)
    for (gpu, bench, bound_by, size), seconds in times.items():
        name, _, precision = bench.rpartition("-")
        waits = "" if bound_by == "device" else ", waits for its input"
        yield Case(
            source=f"{bench}{waits}",
            model=bench,
            gpu=gpu,
            step=_switched(folder / f"{bench}-{size}.json.gz", TF32_SWITCHES.get(precision if name else "")),
            measured=statistics.median(seconds),
            release="2.6",
            includes=f"batch {size}{waits}",
        )


def _switched(path: Path, products: bool | None) -> Step:
    """Return a recorded step under both switches of TF32, as its loop set them; None keeps the recorded ones."""
    if products is None:
        return step_of_file(path)

    def record() -> lp.Trace:
        trace = lp.Trace.load(str(path))
        return replace(trace, flags=replace(trace.flags, matmul_tf32=products, cudnn_tf32=products))

    return Step(name=f"milabench-{path.name.removesuffix('.json.gz')}-{products}", record=record)


def lin_cases(data: Path) -> Iterator[Case]:
    """Read Lin et al.'s ResNet-50 in float32; torch 1.10 was current."""
    folder = data / "validation" / "traces_new" / "lin_2024"
    for row in rows(data / "validation" / "lin_2024.csv"):
        path = folder / f"{row['model']}-{row['batch_size']}.json.gz"
        if path.is_file():
            yield Case(
                source=row["gpu"],
                model=f"{row['model']}, batch {row['batch_size']}",
                gpu=row["gpu"],
                card=at_clock(lp.gpu(row["gpu"]), LOCKED_CLOCKS_HZ[row["gpu"]]),
                step=step_of_file(path),
                measured=float(row["step_ms"]) / 1e3,
                release="1.10",
            )


def at_clock(gpu: lp.Gpu, clock_hz: float) -> lp.Gpu:
    """Return a GPU whose multiprocessors run at a locked clock, as a file of one's own GPUs would describe it."""
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


def gavel_cases(data: Path) -> Iterator[Case]:
    """Read Gavel's ResNet-18 for CIFAR, alone on one GPU."""
    for row in rows(data / "validation" / "gavel.csv"):
        if (row["source"], row["consolidated"], row["n_gpus"], row["model"]) == ("physical", "1", "1", "ResNet-18"):
            yield _cifar(row["gpu"], row["gpu"], int(float(row["batch_size"])), float(row["step_ms"]) / 1e3, "1.4")


def sia_cases(data: Path) -> Iterator[Case]:
    """Read AdaptDL's steps on one named GPU whose step is recorded: ResNet-50, BERT, ResNet-18 for CIFAR."""
    folder = data / "validation" / "traces_new" / "sia"
    for row in rows(data / "validation" / "sia.csv"):
        if (row["kind"], row["n_gpus"]) != ("placements", "1") or not row["gpu"]:
            continue
        app, size, seconds = row["app"], int(row["local_batch"]), float(row["step_seconds"])
        path = folder / f"{app}-{size}.json.gz"
        if app == "cifar10":
            yield _cifar(f"{app}, {row['gpu']}", row["gpu"], size, seconds, "1.9")
        elif path.is_file():
            yield Case(
                source=f"{app}, {row['gpu']}",
                model=f"{app}, batch {size}",
                gpu=row["gpu"],
                step=step_of_file(path),
                measured=seconds,
                release="1.9",
                includes="data loader",
            )


def cifar_step(size: int) -> Step:
    """Return a step of ResNet-18 for CIFAR."""
    return Step(name=f"cifar-resnet18-{size}", record=partial(cifar_resnet18_trace, size))


def _cifar(source: str, gpu: str, size: int, seconds: float, release: str) -> Case:
    return Case(
        source=source,
        model=f"ResNet-18 for CIFAR, batch {size}",
        gpu=gpu,
        step=cifar_step(size),
        measured=seconds,
        release=release,
        includes="data loader",
    )
