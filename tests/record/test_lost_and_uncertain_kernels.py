"""Launches whose kernels were lost, and float32 products whose kernels' names do not tell TF32."""

from typing import Any

import pytest

from lightning_predict.hardware import gpu
from lightning_predict.record.kineto import trace_of_kineto
from lightning_predict.record.trace import Trace
from tests.record.kineto_files import Device, mark
from tests.record.test_events import event

B200 = gpu("B200-SXM-180GB")
SIDE = 4096


def trace_of(events: list[dict[str, Any]], *, name: str = "NVIDIA B200") -> Trace:
    document = {"traceEvents": [mark(0, 0, 20_000), *events], "deviceProperties": [{"id": 0, "name": name}]}
    return trace_of_kineto(document, "x", step=0, gpu=None)


def product_at(rate: float, kernel: str) -> Trace:
    """A float32 product of 4096 x 4096 x 4096 at a rate in FLOP/s."""
    device = Device(shapes=False)
    inputs: dict[str, Any] = {"Input Dims": [[SIDE, SIDE], [SIDE, SIDE]], "Input type": ["float", "float"]}
    device.product(100, 2 * SIDE**3 / rate * 1e6, kernel=kernel, **inputs)
    return trace_of(device.events)


@pytest.mark.parametrize(("share", "is_tf32"), [(0.9, False), (4.0, True)])
def test_matmul_faster_than_float32_peak_used_tf32(share: float, is_tf32: bool) -> None:
    rate = share * B200.peak_flops_per_second["float32"]
    trace = product_at(rate, "nvjet_sm100_sss_128x256_64x5_2x1_2cta_h_bz_TNN")
    assert trace.flags.matmul_tf32 is is_tf32
    assert any("its matmul kernels show that it was on" in note for note in trace.notes) is is_tf32


def products(count: int, lost: int) -> Trace:
    device = Device()
    for number in range(count):
        device.product(100 + 100.0 * number, 50)
    kernels = [each for each in device.events if each["cat"] == "kernel"]
    return trace_of([each for each in device.events if each not in kernels[:lost]])


def lost_notes(trace: Trace) -> list[str]:
    return [note for note in trace.notes if "recorded no kernel" in note]


def test_lost_kernels_and_graphs_are_noted() -> None:
    assert lost_notes(products(20, 3)) == [
        "The profiler recorded no kernel for 3 of 20 kernel launches. Operations without kernels are predicted from "
        "their shapes."
    ]
    device = Device()
    device.product(100, 50)
    lost = event("cudaGraphLaunch", 300, 6, "cuda_runtime", correlation=9)
    assert lost_notes(trace_of([*device.events, lost]))[0].startswith(
        "The profiler recorded no kernel for 1 of 2 kernel launches."
    )
    assert lost_notes(products(20, 0)) == []
    assert lost_notes(products(20, 20)) == []  # no counters at all: another note says so
    assert not product_at(4 * B200.peak_flops_per_second["float32"], "some_kernel").flags.matmul_tf32
