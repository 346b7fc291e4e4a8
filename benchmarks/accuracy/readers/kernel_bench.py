"""KernelBench's modules (`kernelbench/times.csv.gz`): one call of the forward pass, eager and compiled, on four GPUs.

Each trial was timed by events from an idle device, so that launches decide small problems.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.accuracy.case import Case, step_of_file
from benchmarks.accuracy.readers.files import rows

MODES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "torch": ("eager", ()),
    "torch_compile_inductor_default": ("compiled", ("compile",)),
}


def kernel_bench_cases(data: Path) -> Iterator[Case]:
    """Read the calls whose module is recorded; of repeated trials, the median."""
    folder = data / "validation" / "kernelbench"
    times: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows(folder / "times.csv.gz"):
        if row["mode"] in MODES and (folder / row["trace"]).is_file():
            key = (row["set"], row["problem_version"], row["gpu"], row["mode"], row["trace"])
            times[key].append(float(row["mean_ms"]) / 1e3)
    for (machine, version, gpu, mode, trace), seconds in times.items():
        words, kernels = MODES[mode]
        yield Case(
            source=f"{machine} {version}, {words}",
            model=Path(trace).name.removesuffix(".json.gz"),
            gpu=gpu,
            step=step_of_file(folder / trace),
            measured=statistics.median(seconds),
            kernels=kernels,
        )
