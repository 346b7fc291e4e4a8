"""The few figures that say most of a GPU, from times to the file that holds them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lightning_predict as lp
from lightning_predict.base.errors import CaptureError, InvalidArgumentError, UnknownGpuError
from lightning_predict.hardware import Gpu, gpu
from lightning_predict.hardware.lookup import set_measured
from lightning_predict.hardware.user_gpus import add_gpus, read_gpus, read_measured
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import OperationShape
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.own_weights.measuring import main_rates
from lightning_predict.own_weights.measuring.clock import GpuState, Timing
from lightning_predict.own_weights.measuring.main_rates import (
    TRIAL_SIDE,
    MainRates,
    comparison,
    equivalent_bandwidth,
    gpus_file_text,
    largest_rows,
    largest_side,
    measure_main_rates,
)
from lightning_predict.record.trace import Operation, TensorInfo, Trace

A10 = gpu("A10")
RATE = 61e12


def found(own: Gpu = A10) -> MainRates:
    return MainRates(gpu=own, flops_per_second={"float16": RATE, "float32": 11e12}, dram_bytes_per_second=550e9)


def seconds_of(shape: OperationShape, on: Gpu) -> float:
    return float(predict_operation_times([shape], [on], kernel_models((on.name,))).seconds[0, 0])


def test_products_and_streams_take_as_long_as_their_measured_rates_say() -> None:
    product = OperationShape("bmm", "float16", (1, 8192, 8192, 8192))
    before, after = (seconds_of(product, on) for on in (A10, found().measured))
    # The network's share of the rate is the same, so that times follow the rates: 82.1 were assumed, 61 measured.
    assert after / before == pytest.approx(82.1 / 61, rel=0.1)
    addition = OperationShape("add", "float32", (32768, 4096))
    before, after = (seconds_of(addition, on) for on in (A10, found().measured))
    assert after / before == pytest.approx(A10.dram_bytes_per_second / 550e9, rel=0.05)


@pytest.mark.parametrize("share", [0.7, 1.0, 1.1])
def test_equivalent_bandwidth_equals_the_bandwidth_of_the_timed_gpu(share: float) -> None:
    actual = MainRates(gpu=A10, flops_per_second={}, dram_bytes_per_second=share * A10.dram_bytes_per_second).measured
    words = {"rows": 32768.0, "cols": 4096.0}
    timed = [
        (name, words, seconds_of(OperationShape(name, "float32", tuple(words.values())), actual))
        for name in ("relu", "add")
    ]
    assert equivalent_bandwidth(A10, timed) == pytest.approx(actual.dram_bytes_per_second, rel=0.03)


def test_a_gpu_that_does_as_was_assumed_keeps_its_times(tmp_path: Path) -> None:
    (tmp_path / "anchors.toml").write_text(gpus_file_text(found()), encoding="utf-8")
    (own,) = read_measured(tmp_path / "anchors.toml")
    assert own.name == "A10"
    assert own.sustained_flops_per_second == pytest.approx({"float16": RATE, "float32": 11e12})
    assert own.measured_flops_per_second == pytest.approx({"float16": RATE, "float32": 11e12})
    assert own.dram_bytes_per_second == pytest.approx(550e9)
    assert own.peak_flops_per_second == A10.peak_flops_per_second
    assert own.l2_bytes_per_second == A10.l2_bytes_per_second


def test_a_known_gpu_keeps_its_networks_and_is_corrected(tmp_path: Path) -> None:
    """A GPU with weights was predicted from its data sheet once it was measured quickly."""
    known = gpu("H200-SXM-141GB")
    rates = MainRates(gpu=known, flops_per_second={"bfloat16": 640e12}, dram_bytes_per_second=4e12, attention_share=0.7)
    (tmp_path / "anchors.toml").write_text(gpus_file_text(rates), encoding="utf-8")
    try:
        assert add_gpus(tmp_path / "anchors.toml") == (known.name,)
        assert gpu("H200") == rates.measured
    finally:
        set_measured([known])
    models = kernel_models((known.name,))
    assert models.has_own_weights(rates.measured.name, "linear", "bfloat16")
    trace = Trace.load("examples/gpt2.json.gz")
    before, after = (
        predict_work_times(trace, [card], origin=None, models=models).seconds.sum() for card in (known, rates.measured)
    )
    assert 1.05 < after / before < 4.8 / 4.0  # products by 681 / 640, memory by 4.8 / 4


def test_own_rate_of_attention_corrects_attention_alone(tmp_path: Path) -> None:
    known = gpu("H200-SXM-141GB")
    heads = TensorInfo((4, 16, 4096, 128), "bfloat16")
    call = Operation(name="aten::scaled_dot_product_attention", phase="forward", inputs=(heads, heads, heads))
    other = Operation(name="aten::gelu", phase="forward", inputs=(heads,), outputs=(heads,))
    trace = Trace(operations=(call, other), device="meta", recorder="dispatch")
    slower = MainRates(gpu=known, flops_per_second={}, dram_bytes_per_second=4.8e12, attention_share=0.7).measured
    timed = [
        predict_work_times(trace, [card], origin=None, models=kernel_models((known.name,))).interval
        for card in (replace(known, sustained_attention_share=1.0), slower)
    ]
    in_burst, own = timed
    assert own.middle / in_burst.middle == pytest.approx(np.array([[1 / 0.7, 1.0]]), rel=1e-6)
    # The user's own rate holds at both ends; a catalogue's would be that of one machine of many.
    assert own.low[0, 0] / in_burst.low[0, 0] == pytest.approx(1 / 0.7, rel=1e-6)


def test_a_rate_needs_a_peak(tmp_path: Path) -> None:
    path = tmp_path / "anchors.toml"
    path.write_text('[gpu.MINE]\nlike = "T4"\nmeasured_tflops = { tf32 = 3.0 }\n', encoding="utf-8")
    with pytest.raises(
        InvalidArgumentError, match=r"tf32 is a dtype that there is no peak of; expected one of .*float16"
    ):
        read_gpus(path)


@pytest.mark.parametrize(
    ("name", "side"),
    [("H100-SXM-80GB", 8192), ("K80", 8192), ("Quadro-P600", 4096)],  # a quarter of 2 GiB: three of 64 MiB, not of 256
)
def test_shapes_fit_into_a_quarter_of_the_memory(name: str, side: int) -> None:
    own = gpu(name)
    assert largest_side(own) == side
    assert 3 * 4 * side**2 <= own.memory_bytes / 4
    assert 3 * 4 * 4096 * largest_rows(own) <= own.memory_bytes / 4


TRIAL_FLOP = 2.0 * TRIAL_SIDE**3
TRIAL_BYTES = 4.0 * TRIAL_SIDE * 4096


def test_last_repetition_gives_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    # By a clock that goes on by a second at each look, a call is begun at 0 and, with 2.5 s, at 1 and 2: three times.
    # The T4 has units for products in float32 and float16; the card slows down to 4 and to 40 TFLOP/s.
    shape: dict[str, Any] = {"batch": 1, "heads": 1, "seq": 64, "head_dim": 128, "causal": 1}
    attention = lp.operator_seconds("attention", "T4", dtype="float16", **shape)
    attention = lp.operator_seconds(
        "attention", "T4", dtype="float16", batch=1, heads=1, seq=64, head_dim=128, causal=1
    )
    times = iter(
        [*(TRIAL_FLOP / rate for rate in (5e12, 4.5e12, 4e12, 60e12, 50e12, 40e12)), *[float(attention) / 0.8] * 3]
        + [2 * TRIAL_BYTES / 250e9] * 3
        + [3 * TRIAL_BYTES / 250e9] * 3
    )
    ticks = iter(range(1000))

    def timed(_call: Callable[[], object], _device: torch.device) -> Timing:
        state = GpuState(held_back_by=("power",))
        return Timing(flushed_seconds=next(times), warm_seconds=None, eager_seconds=9.0, state=state)

    monkeypatch.setattr(main_rates, "time_call", timed)
    names: list[str] = []
    answer = measure_main_rates(
        device="cpu", gpu="T4", seconds=2.5, is_trial=True, clock=lambda: float(next(ticks)), progress=names.append
    )
    assert answer.flops_per_second == pytest.approx({"float32": 4e12, "float16": 40e12})
    assert names == ["bmm float32", "bmm float16", "attention float16", "relu float32", "add float32"]
    assert answer.attention_share == pytest.approx(0.8)
    assert answer.state.held_back_by == ("power",)
    assert next(times, None) is None
    told = {rate.name: rate.measured for rate in comparison(answer) if rate.unit == "TFLOP/s"}
    assert told == pytest.approx({"float32 products": 4.0, "float16 products": 40.0})


def test_on_a_processor_the_command_is_tried_on_real_calls() -> None:
    answer = measure_main_rates(device="cpu", gpu="A10", seconds=0.001, is_trial=True)
    assert answer.flops_per_second.keys() == {"float32", "tf32", "float16", "bfloat16"}
    assert all(0 < rate < 10e12 for rate in answer.flops_per_second.values())
    assert 0 < answer.dram_bytes_per_second < A10.dram_bytes_per_second


def test_invalid_arguments_error_has_expected_values() -> None:
    with pytest.raises(InvalidArgumentError, match=r"Got seconds=0; expected a time above 0"):
        measure_main_rates(device="cpu", gpu="T4", seconds=0)
    with pytest.raises(InvalidArgumentError, match=r"device='cpu' is no GPU; name the one that the figures stand for"):
        measure_main_rates(device="cpu")
    with pytest.raises(UnknownGpuError, match=r"'T5' is not a GPU of the catalogue"):
        measure_main_rates(device="cpu", gpu="T5")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_there_is_nothing_to_measure() -> None:
    with pytest.raises(CaptureError, match=r"No CUDA device here to measure on"):
        measure_main_rates()
