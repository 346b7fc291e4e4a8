"""Steps that replay a CUDA graph: one launch for the host, all of its kernels for the device."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.kernels.roofline import sustained_flops
from lightning_predict.record.attribution import CUDA_GRAPH
from lightning_predict.record.imports import import_trace
from lightning_predict.timeline.host import PROFILER_SLOWDOWN, recorded_host
from lightning_predict.timeline.simulation import HostOperation, launch_schedule, simulate_timeline
from tests.timeline.example_host import HOST, START, T1, T2, T3, T4, T5
from tests.timeline.test_simulation import microseconds, run, work

FILE = Path(__file__).parents[1] / "traces" / "synthetic_cuda_graph.json"


def graph(*kernels: float) -> HostOperation:
    return replace(work(*kernels), calls=(0,) * len(kernels))


def test_recorded_graph_is_synthetic_and_its_launch_is_measured() -> None:
    assert json.loads(FILE.read_text())["comment"].startswith("SYNTHETIC: written by hand")
    _, own = recorded_host(import_trace(FILE)).overheads
    assert own is not None
    assert own.launch == pytest.approx(42e-6 / PROFILER_SLOWDOWN)


def test_graph_is_one_operation_with_one_launch_and_its_cost() -> None:
    trace = import_trace(FILE)
    copy, replay = trace.operations
    assert (copy.name, len(copy.kernels)) == ("aten::copy_", 1)
    assert (replay.name, len(replay.kernels)) == (CUDA_GRAPH, 40)
    (launched,) = {kernel.launch_start_seconds for kernel in replay.kernels}
    assert launched == pytest.approx(60e-6)
    # 40 kernels of 12 us and a copy of 2 us.
    assert trace.notes[0] == (
        "CUDA graphs: 1 with 40 kernels, 99.6% of the device time. Each costs the host one launch. The trace has no "
        "shapes of their kernels. By name, products are scaled by the rates of both GPUs, all others by bandwidth."
    )
    result = lp.predict(import_trace(FILE), ["A100-SXM-40GB", "H100-SXM-80GB"])
    own, other = result.values()
    assert own.device_seconds == pytest.approx(482e-6)
    assert own.iteration_seconds == pytest.approx(482e-6, rel=0.01)
    assert own.host_seconds < 41 * 8e-6  # one copy and one launch, and what follows; the copy's launch alone takes 8 us
    # 20 kernels bound by memory, 1,555 GB/s against 3,350 GB/s, and 20 float32 products by their rates.
    # Each but for its start of 2 us, and the copy of 2.
    rates = [sustained_flops(gpu(name), "float32") for name in ("A100-SXM-40GB", "H100-SXM-80GB")]
    seconds = 2e-6 + 20 * (2e-6 + 10e-6 * 1555 / 3350) + 20 * (2e-6 + 10e-6 * rates[0] / rates[1])
    assert other.device_seconds == pytest.approx(seconds, rel=0.01)


def test_kernels_of_one_launch_run_in_sequence_and_bound_the_device() -> None:
    # Launched at T1 + T2 + T4 = 8, started at 10, then 3 x 20; the host is done at 10.
    result = run(graph(20, 20, 20))
    assert microseconds(result) == pytest.approx(T1 + T2 + T4 + START + 60)
    assert result.host_seconds * 1e6 == pytest.approx(T1 + T2 + T4 + T3)
    # 100 kernels of 2: 200 for the device. Single launches: T1 + T2 + T3 + 100 T4 + 99 T5 = 901 for the host.
    short = [2.0] * 100
    assert microseconds(run(graph(*short), steps=3)) == pytest.approx(200)
    assert microseconds(run(work(*short), steps=3)) == pytest.approx(T1 + T2 + T3 + 100 * T4 + 99 * T5)
    both = HostOperation(
        name="op", phase="forward", seconds=np.full((1, 4), 1e-6), streams=(0,) * 4, calls=(0, 0, 1, 1)
    )
    assert both.launches == 2
    result = simulate_timeline(launch_schedule([both], gpus=1), HOST, steps=1)
    # Launched at 8 and at 8 + T5 + T4 = 17.
    np.testing.assert_allclose(result.kernel_starts[0] * 1e6, [10, 11, 19, 20])
