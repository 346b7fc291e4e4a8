"""Score DeepSpeed's estimate of model states under ZeRO 3 on torchtitan's runs under FSDP, beside ours.

DeepSpeed's function takes the number of parameters, the parameters of the largest layer and the GPUs; it knows no batch
and no activations. It runs by its own code, without a GPU::

    pip install --no-deps --no-build-isolation --target peers deepspeed hjson py-cpuinfo einops msgpack
    PYTHONPATH=peers python -m benchmarks.peers.zero_memory validation --cache STEPS
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from rich.table import Table

from benchmarks.accuracy.large_runs import AnyWorkload, LargeRunCase, recorded
from benchmarks.accuracy.pretraining import TORCHTITAN_TABLE, read_torchtitan_cases
from benchmarks.result_files import ResultConsole, write_result
from benchmarks.runs import RUNS
from benchmarks.scored_steps import WIDTH
from benchmarks.training.report import report_table
from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.gradients import unit_bytes
from lightning_predict.memory.rank_memory import RankMemory
from lightning_predict.record.trace import Trace

OURS: Final = "lightning-predict"
DEEPSPEED: Final = "DeepSpeed's estimate of ZeRO 3"


def fsdp_cases(folder: Path) -> list[LargeRunCase]:
    """Return torchtitan's rows with a peak of memory in which replicas share nothing but the state."""
    cases, _ = read_torchtitan_cases(folder / TORCHTITAN_TABLE)
    return [one for one in cases if one.memory_bytes and one.strategy.batch_parallel == 1]


def deepspeed_bytes(trace: Trace, layout: Layout) -> float:
    """Return DeepSpeed's estimate for a GPU, without offload.

    Raises:
        ImportError: DeepSpeed is not installed.
    """
    estimate = import_module("deepspeed.runtime.zero.stage3").estimate_zero3_model_states_mem_needs
    total = sum(math.prod(one.shape) for one in trace.parameters)
    largest = max(unit_bytes(trace.parameters, "int8").values())  # elements
    _, gpu_bytes, _ = estimate(
        total,
        largest,
        num_gpus_per_node=layout.gpus_per_node,
        num_nodes=layout.count // layout.gpus_per_node,
        cpu_offload=False,
        cpu_offload_params=False,
    )
    return float(gpu_bytes)


def errors_by_tool(cases: Sequence[LargeRunCase], cache: Path | None) -> Iterator[tuple[str, float]]:
    """Yield the tool and its error for each row: predicted over measured, less one."""
    traces: dict[AnyWorkload, Trace] = {}
    for case in cases:
        trace = traces.get(case.workload)
        if trace is None:
            trace = traces[case.workload] = case.workload.prepared(recorded(case.workload, cache))
        need = RankMemory(trace).most_filled(case.layout, case.strategy)
        assert case.memory_bytes is not None
        found = (need.bytes_on if case.is_reserved else need.allocated_on)(case.layout.gpu)
        yield OURS, found / case.memory_bytes - 1
        yield DEEPSPEED, deepspeed_bytes(trace, case.layout) / case.memory_bytes - 1


def table_of_errors(errors: Mapping[str, Sequence[float]]) -> Table:
    """Median error and bias of each tool."""
    table = report_table("Memory of torchtitan's runs under FSDP", ("tool",), ("runs", "median |error| %", "bias %"))
    for tool, own in errors.items():
        middle, bias = (100 * statistics.median(values) for values in (list(map(abs, own)), own))
        table.add_row(tool, str(len(own)), f"{middle:.1f}", f"{bias:+.1f}")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the errors of both tools."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("validation", type=Path, help=f"folder with {TORCHTITAN_TABLE}")
    parser.add_argument("--cache", type=Path, default=None, help="folder of recorded steps")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    errors: dict[str, list[float]] = {OURS: [], DEEPSPEED: []}
    for tool, error in errors_by_tool(fsdp_cases(options.validation), options.cache):
        errors[tool].append(error)
    console = ResultConsole(width=WIDTH)
    console.print(table_of_errors(errors))
    if options.result is not None:
        write_result(console.result(RUNS["zero-peers"]), options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
