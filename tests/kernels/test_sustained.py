"""Sustained rates of GPUs in large matmuls, and their effect on the base."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.hardware.own_rates import gpu_with_rates
from lightning_predict.hardware.records import Gpu
from lightning_predict.hardware.slices import slice_of
from lightning_predict.kernels.corrections import sustained_factors
from lightning_predict.kernels.models import OTHER_16_BIT, kernel_models
from lightning_predict.kernels.operations import operation_shape, shape_batch
from lightning_predict.kernels.roofline import (
    HEADROOM,
    REDUCED,
    roofline_seconds,
    sustained_flops,
    sustained_rate_uncertainty,
    with_sustained_peaks,
)
from lightning_predict.kernels.timing import predict_operation_times
from tests.example_gpu import SMALL

GPUS = tuple(gpu(name) for name in gpu_names())
every_gpu = pytest.mark.parametrize("card", GPUS, ids=lambda card: card.name)
SQUARE = 8192


def units_of(card: Gpu) -> list[str]:
    """Dtypes that the GPU has units for."""
    oldest = {"float32": (0, 0), "float16": (7, 0), "bfloat16": (8, 0), "tf32": (8, 0)}
    return [
        dtype
        for dtype in REDUCED
        if card.compute_capability >= oldest[dtype]
        and dtype in card.peak_flops_per_second
        and dtype not in card.emulated_dtypes
    ]


def test_a_product_takes_the_rate_that_the_gpu_sustains() -> None:
    """A product of memory-bound shape keeps its time; a large one runs at the sustained rate."""
    own = gpu_with_rates(gpu("H200-SXM-141GB"), {"bf16": 600e12})
    models = kernel_models((own.name,))
    large, thin = (operation_shape("linear", "bfloat16", m=m, n=8192, k=8192) for m in (8192, 1))
    seconds = predict_operation_times([large, thin], [own], models).seconds
    slowdowns = sustained_factors([large, thin], [own], seconds, models)
    factors = slowdowns.middle
    assert 2 * 8192**3 / (seconds * factors)[0, 0] == pytest.approx(600e12)
    assert factors[0, 1] == pytest.approx(1.0, abs=0.01)
    assert (slowdowns.low == factors).all()  # the user's own machine is no other
    assert (sustained_factors([large], [gpu("T4")], seconds[:, :1], models).middle == 1).all()  # no rate is known


def test_rates_of_the_user_count_as_bursts_and_leave_other_dtypes_between_machines() -> None:
    """The catalogue's 1,103 TFLOP/s are one B200's; the networks' bursts were timed on another."""
    card = gpu("B200")
    models = kernel_models((card.name,))
    large = [operation_shape("linear", "bfloat16", m=8192, n=8192, k=8192)]
    seconds = predict_operation_times(large, [card], models).seconds
    slowdown = 1 / 1103e12 / (seconds[0, 0] / (2 * 8192**3))
    found = sustained_factors(large, [card], seconds, models)
    assert [end[0, 0] for end in (found.low, found.middle, found.high)] == pytest.approx([1.0, slowdown**0.5, slowdown])
    card = gpu("B200")
    own = gpu_with_rates(card, {"fp32": 60e12})
    models = kernel_models((card.name,))
    large = [operation_shape("linear", "bfloat16", m=8192, n=8192, k=8192)]
    seconds = predict_operation_times(large, [card], models).seconds
    assert sustained_factors(large, [own], seconds, models) == sustained_factors(large, [card], seconds, models)


@pytest.mark.parametrize(("name", "slowdown"), [("B200", 0.853**-0.5), ("B300", 1.0), ("H100", 1.0)])
def test_attention_in_16_bits_takes_the_share_that_the_gpu_sustains(name: str, slowdown: float) -> None:
    """A share is published for one B200 alone, and counts half. Memory-bound work keeps its rate on all GPUs."""
    card = gpu(name)
    shape = {"batch": 4, "heads": 16, "kv_heads": 16, "seq": 8192, "head_dim": 128}
    passes = [operation_shape(kind, "bfloat16", **shape) for kind in ("attention", "attention_backward")]
    memory_bound = [
        operation_shape("layer_norm", "bfloat16", rows=65536, cols=4096),
        operation_shape("add", "bfloat16", rows=65536, cols=4096),
    ]
    shapes = [*passes, *memory_bound, operation_shape("attention", "float32", **shape)]
    models = kernel_models((card.name,))
    seconds = predict_operation_times(shapes, [card], models).seconds
    factors = np.broadcast_to(sustained_factors(shapes, [card], seconds, models).middle, seconds.shape)
    assert factors[0].tolist() == pytest.approx([slowdown] * 2 + [1.0] * 3)


def test_slices_reach_no_larger_share_and_twice_the_batch_takes_no_less() -> None:
    """A slice took the whole card's measured rate, and so reached 98 % of its own peak."""
    whole, part = gpu("A100-SXM-40GB"), gpu("A100-SXM-40GB-MIG-1g.5gb")
    shares = [sustained_flops(card, "bfloat16") / card.peak_flops_per_second["bfloat16"] for card in (whole, part)]
    assert shares[0] == pytest.approx(shares[1])
    assert slice_of(replace(whole, sustained_attention_share=0.9), "1g.5gb").sustained_attention_share == 1.0
    models = kernel_models(())
    rows = 2.0 ** np.arange(3, 16)
    for dtype in ("float32", "bfloat16"):
        seconds = models.estimate(shape_batch("linear", dtype, m=rows, n=4096, k=1024), GPUS[-40:]).seconds
        assert (seconds[:, 1:] >= 0.72 * seconds[:, :-1]).all()  # as `growth.py` has it: other kernels may be better
        assert (seconds[:, -1] > 2 * seconds[:, 0]).all()


def test_sustained_rate_is_measured_or_limited_by_power_and_clock() -> None:
    assert sustained_flops(replace(SMALL, measured_flops_per_second={"float16": 5e12}), "float16") == 5e12
    strong = replace(SMALL, power_watts=1e6)  # 50 lanes a multiprocessor, compute capability 8.0
    assert sustained_flops(strong, "float32") == pytest.approx(0.85e12)
    assert sustained_flops(strong, "float16") == pytest.approx(8e12)
    # 0.73 W a TFLOP/s at 7 nm and 8 TFLOP/s: with 5.84 W the rate falls by sqrt(2).
    weak = replace(SMALL, power_watts=0.73 * 8)
    assert sustained_flops(weak, "float16") == pytest.approx(8e12 / math.sqrt(2))
    weaker = replace(weak, power_watts=weak.power_watts / 2)
    assert sustained_flops(weaker, "float16") < sustained_flops(weak, "float16")
    strong = replace(SMALL, power_watts=1e6, highest_clock_hz=1.25e9)
    assert sustained_flops(strong, "float16") == pytest.approx(0.9 * 1.25 * 8e12)


def test_a_rate_measured_in_one_16_bit_dtype_stands_for_the_other() -> None:
    measured = replace(
        SMALL,
        peak_flops_per_second={"float32": 1e12, "float16": 8e12, "bfloat16": 8e12},
        measured_flops_per_second={"float16": 5e12},
    )
    assert sustained_flops(measured, "bfloat16") == 5e12
    assert sustained_flops(measured, "float32") == sustained_flops(SMALL, "float32")
    assert sustained_rate_uncertainty(measured, "bfloat16") == sustained_rate_uncertainty(measured, "float16")
    # Volta emulates bfloat16, at a rate of its own.
    assert sustained_flops(gpu("V100-SXM2-16GB"), "float16") == 94.84e12


def test_the_base_sees_rates_instead_of_peaks() -> None:
    seen = with_sustained_peaks(gpu("RTX-3090"))
    assert seen.peak_flops_per_second["bfloat16"] == HEADROOM * 76.58e12
    assert (
        seen.peak_flops_per_second["float8" if "float8" in seen.peak_flops_per_second else "int8"]
        == (gpu("RTX-3090").peak_flops_per_second["int8"])
    )
    p100 = gpu("P100-PCIe-16GB")
    assert with_sustained_peaks(p100).peak_flops_per_second["float16"] == p100.peak_flops_per_second["float16"]


@every_gpu
def test_rates_lie_below_the_peak_and_lower_precision_is_no_slower(card: Gpu) -> None:
    rates = {dtype: sustained_flops(card, dtype) for dtype in units_of(card)}
    for dtype, rate in rates.items():
        assert 0.25 <= rate / (card.peak_flops_per_second[dtype] * card.overclock) <= 1.0, dtype
        assert rate >= rates["float32"]


@every_gpu
def test_large_products_are_no_faster_than_the_highest_clock_and_near_what_was_measured(card: Gpu) -> None:
    models = kernel_models((card.name,))
    for dtype in units_of(card):
        if dtype == "tf32":
            continue  # through bfloat16
        batch = shape_batch("linear", dtype, m=SQUARE, n=SQUARE, k=SQUARE)
        seconds = models.estimate(batch, [card]).seconds[0, 0]
        peak = card.peak_flops_per_second[dtype] * card.overclock
        assert seconds >= 2 * SQUARE**3 / peak
        assert seconds >= roofline_seconds(batch, [card], least=True)[0, 0]
        measured = card.measured_flops_per_second.get(dtype)
        if measured is not None and not models.has_own_weights(card.name, "linear", dtype):
            slower = math.log(seconds * measured / (2 * SQUARE**3))
            # Where its own products in the other 16-bit dtype are slower than people's bursts, most of it is trusted.
            other = OTHER_16_BIT.get(dtype)
            is_known = other is not None and models.has_own_weights(card.name, "linear", other)
            assert -0.15 < slower < (0.35 if is_known else 0.15)


def test_a_board_of_a_measured_chip_that_has_no_more_power_lasts_no_longer() -> None:
    """The L40S has the RTX 6000 Ada's chip and 50 W more, and its own products take longer than the base says."""
    models, own = kernel_models(tuple(gpu_names())), gpu("RTX-6000-Ada")
    batch = shape_batch("linear", "float16", m=SQUARE, n=SQUARE, k=SQUARE)
    known = replace(own, measured_flops_per_second={"float16": sustained_flops(own, "float16")})
    smaller = replace(own, streaming_multiprocessors=own.streaming_multiprocessors - 1)
    seconds, *others = models.estimate(batch, [own, known, smaller]).seconds[:, 0]
    # With a rate of its own, or as another chip, it is as fast as the base says; the transferred part is more than a
    # tenth.
    assert all(seconds > 1.1 * other for other in others)
    hungry = replace(own, power_watts=gpu("L40S").power_watts + 1)
    assert models.estimate(batch, [hungry]).seconds[0, 0] < seconds / 1.1
