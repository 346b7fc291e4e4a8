"""How fast hosts launch: the machines behind `timeline/host.py`, from published steps that launches dominate.

    python -m benchmarks.accuracy FOLDER --of hosts --cache recorded-steps

A row counts where the device needs less than `DEVICE_SHARE` of the measured time, as predicted: KernelBench's modules
(forward, from an idle device), torchvision's small models (2019-21) and milabench's steps of one sample (2025). Each
machine has a factor, the median over its rows of measured over predicted host time; leaving a machine out, the others'
factors say what to expect of it. Example::

    factors = host_factors(host_bound_rows(Path("validation"), Path("recorded-steps")))
    factors["KernelBench L40S_modal"]     # 1.05: a median host, within 5 %
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, final

from rich.console import Console

from benchmarks.accuracy.operator_tables import EAGER, KERNEL_BENCH, kernel_bench_times
from benchmarks.accuracy.published_steps import MILABENCH_TABLE, milabench_steps
from benchmarks.accuracy.vision import TORCHVISION_TABLE, TORCHVISION_TABLE_2, read_torchvision_cases
from benchmarks.accuracy.workloads.vision import VisionStep, vision_trace
from benchmarks.training.report import report_table
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import NVIDIA
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.record.torch_releases import for_torch_release
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.step_prediction import predict_steps
from lightning_predict.uncertainty import FASTEST_HOST, SLOWEST_HOST

DEVICE_SHARE: Final = 0.5
"""A device that needs less than this of a step leaves it to the host, even where it is predicted too fast by half."""

MOST_SECONDS: Final = 2e-3
"""Of KernelBench's modules, which are a few operations each: a longer one was predicted wrongly, or the device's."""

FROM_IDLE_SECONDS: Final = 12e-6
"""Time of a call from an idle device in addition to its operations: events, the start and the end of its last kernel,
and the call of the module. Fitted to KernelBench's rows of a single operation together with the table of overheads."""

QUEUED: Final = frozenset({"RTX_3090_Ti"})
"""Machines that timed calls behind a full queue, so that the host is not in their times (a ReLU takes 3 us)."""


@final
@dataclass(frozen=True, slots=True)
class HostRow:
    """A published step that launches dominate.

    Attributes:
        machine: Table and machine.
        measured_seconds: The step.
        host_seconds: Predicted time of a median host.
    """

    machine: str
    measured_seconds: float
    host_seconds: float


def host_bound_rows(folder: Path, cache: Path) -> tuple[HostRow, ...]:
    """Rows that launches dominate; errors as for the tables' readers.

    Args:
        folder: Folder of the tables.
        cache: Folder of the recorded steps of torchvision; others are recorded into it.
    """
    found: list[HostRow] = []
    by_trace: dict[str, list[tuple[str, str, float]]] = defaultdict(list)
    if (folder / KERNEL_BENCH).is_dir():
        for (gpu, trace, machine), modes in kernel_bench_times(folder / KERNEL_BENCH, None).items():
            if EAGER in modes and machine not in QUEUED and (folder / KERNEL_BENCH / trace).is_file():
                seconds = statistics.median(modes[EAGER])
                if seconds < MOST_SECONDS:
                    by_trace[trace].append((f"KernelBench {machine}", gpu, seconds))
    for name, rows in sorted(by_trace.items()):
        found += _host_bound(Trace.load(str(folder / KERNEL_BENCH / name)), rows, FROM_IDLE_SECONDS)
    for name in (TORCHVISION_TABLE, TORCHVISION_TABLE_2):
        by_step: dict[tuple[VisionStep, str], list[tuple[str, str, float]]] = defaultdict(list)
        for case in read_torchvision_cases(folder / name) if (folder / name).is_file() else ():
            if case.vendor != NVIDIA:  # another driver launches there, and the device is known within a factor of two
                continue
            machine = f"torchvision {case.gpu}, {case.step.mode}"
            by_step[case.step, case.software].append((machine, case.gpu, case.measured_seconds))
        for (step, release), rows in by_step.items():
            recorded = vision_trace(step, cache) if step.precision == "half" else None
            if recorded is not None:
                found += _host_bound(for_torch_release(recorded, release), rows, 0.0)
    if (folder / MILABENCH_TABLE).is_file():
        for row in milabench_steps(folder):
            one = row.recorded(cache) if row.samples == 1 else None
            if one is not None:
                found += _host_bound(one, [(f"milabench {row.gpu}", row.gpu, row.measured_seconds)], 0.0)
    return tuple(found)


def _host_bound(trace: Trace, rows: Sequence[tuple[str, str, float]], beside: float) -> list[HostRow]:
    names = tuple(dict.fromkeys(gpu for _, gpu, _ in rows))
    gpus = [find_gpu(name) for name in names]
    steps = predict_steps(trace, predict_work_times(trace, gpus, origin=None, models=kernel_models(names)), gpus)
    by_gpu = dict(zip(names, steps, strict=True))
    return [
        HostRow(machine, measured, by_gpu[gpu].host_seconds + beside)
        for machine, gpu, measured in rows
        if by_gpu[gpu].device_seconds < DEVICE_SHARE * min(measured, by_gpu[gpu].host_seconds)
    ]


def host_factors(rows: Sequence[HostRow]) -> Mapping[str, float]:
    """Median of measured over predicted host time by machine."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        ratios[row.machine].append(row.measured_seconds / row.host_seconds)
    return {machine: statistics.median(own) for machine, own in sorted(ratios.items())}


def print_report(rows: Sequence[HostRow], console: Console) -> None:
    """Print each machine's factor, the factor of the other machines, and how many of its rows the interval holds."""
    factors = host_factors(rows)
    table = report_table(
        "Hosts: measured over a median host's predicted time, on steps that launches dominate",
        ("machine",),
        ("rows", "factor", "of the others", "their high end", "in the interval %", "deviation of its rows"),
    )
    by_machine = {
        name: [row.measured_seconds / row.host_seconds for row in rows if row.machine == name] for name in factors
    }
    for machine, factor in factors.items():
        own = by_machine[machine]
        others = {name: found for name, found in by_machine.items() if name != machine}
        middle = math.exp(statistics.fmean(math.log(factors[name]) for name in others)) if others else 1.0
        inside = statistics.fmean(FASTEST_HOST <= ratio <= SLOWEST_HOST for ratio in own)
        end = f"{high_end(others):.2f}" if others else ""
        deviation = statistics.pstdev(map(math.log, own))
        table.add_row(
            machine, str(len(own)), f"{factor:.2f}", f"{middle:.2f}", end, f"{100 * inside:.0f}", f"{deviation:.2f}"
        )
    table.add_section()
    if len(factors) > 1:
        logs = [math.log(factor) for factor in factors.values()]
        middle, scatter = math.exp(statistics.fmean(logs)), statistics.stdev(logs)
        end = f"{high_end(by_machine):.2f}"
        table.add_row("all machines alike", str(len(rows)), f"{middle:.2f}", "", end, "", f"{scatter:.2f}")
    console.print(table)


def high_end(by_machine: Mapping[str, Sequence[float]]) -> float:
    """Return the factor that nineteen in twenty rows stay below, where each machine weighs as much as another."""
    weighed = sorted((ratio, 1 / len(by_machine) / len(own)) for own in by_machine.values() for ratio in own)
    held = accumulate(weight for _, weight in weighed)
    return next(ratio for (ratio, _), share in zip(weighed, held, strict=True) if share > 0.95)
