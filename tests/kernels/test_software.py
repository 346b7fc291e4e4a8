import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.kernels.corrections import (
    attention_factors,
    attention_kernel,
    torch_version_factor,
    torch_version_factors,
    uses_newest_attention,
)
from lightning_predict.kernels.operations import OperationShape, operation_shape
from lightning_predict.record.trace import Operation


@pytest.mark.parametrize(
    ("version", "years"),
    [
        ("2.9.1", 0.0),
        ("2.1.0", 0.0),
        ("1.13.0a0+d0d6b1f", 1.0),  # October 2022, a year before 2.1
        ("1.11.0", 1.6),  # March 2022
        ("1.10.2", 2.0),  # October 2021
        ("1.7.0a0+7036e91", 3.0),  # October 2020
        ("1.4.0", 3.8),  # January 2020
        ("1.0.1", 3.8),  # counts as 1.4
        ("", 0.0),
    ],
)
def test_five_percent_are_added_for_each_year_before_torch_2_1(version: str, years: float) -> None:
    assert torch_version_factor({"torch": version} if version else {}) == pytest.approx(
        math.exp(0.05 * years), rel=1e-3
    )


@pytest.mark.parametrize(("dtype", "years"), [(torch.float16, 3.0), (torch.float32, 0.0)])
def test_a_step_is_predicted_for_the_release_that_it_was_recorded_with(dtype: torch.dtype, years: float) -> None:
    # Products in float32 on lanes took no longer; all but a thousandth of the step is products.
    with torch.device("meta"):
        layer, data = torch.nn.Linear(4096, 4096, bias=False, dtype=dtype), torch.empty(8192, 4096, dtype=dtype)
    trace = lp.capture(lambda: layer(data).backward(torch.empty(8192, 4096, dtype=dtype, device="meta")))
    of_2020, of_today = (
        lp.predict(replace(trace, software={"torch": version}), ["L4"])["L4"].device_seconds
        for version in ("1.7.1", "2.4.0")
    )
    assert of_2020 / of_today == pytest.approx(math.exp(0.05 * years), rel=1e-2)


@pytest.mark.parametrize(("name", "years"), [("relu", 0.0), ("layer_norm", 3.0), ("batch_norm_backward", 3.0)])
def test_what_streams_memory_gained_nothing_and_norms_did(name: str, years: float) -> None:
    (factor,) = torch_version_factors(
        [operation_shape(name, "float32", rows=4096, cols=512)], [gpu("L4")], {"torch": "1.7.1"}
    )
    assert factor == pytest.approx([math.exp(0.05 * years)], rel=1e-3)


@pytest.mark.parametrize(
    ("dtype", "version", "years"), [("float16", "1.4", 3.8), ("float16", "1.5", 0.0), ("float32", "1.4", 0.0)]
)
def test_before_wide_loads_16_bit_work_element_by_element_lagged(dtype: str, version: str, years: float) -> None:
    (factor,) = torch_version_factors(
        [operation_shape("relu", dtype, rows=4096, cols=512)], [gpu("L4")], {"torch": version}
    )
    assert factor == pytest.approx([math.exp(0.05 * years)], rel=1e-3)


A100, H100 = gpu("A100-SXM-80GB"), gpu("H100-SXM-80GB")
FORWARD = OperationShape("attention", "bfloat16", (1.0, 32.0, 32.0, 6000.0, 6000.0, 128.0, 1.0))
BACKWARD = replace(FORWARD, operation="attention_backward")
PRODUCT = OperationShape("linear", "bfloat16", (1.0, 128.0, 128.0, 128.0))
SLOWDOWN = attention_factors([FORWARD], [None], [H100], {"torch": "2.6.0"}).item()
WHOLE = "aten::scaled_dot_product_attention"


@pytest.mark.parametrize(
    ("release", "name", "is_newest"),
    [
        ("2.2.0", "H100-SXM-80GB", False),
        ("2.10.0", "B200-SXM-180GB", False),
        ("2.11.0", "B200-SXM-180GB", True),
        (None, "H200", True),
        ("2.13.0", "A100-SXM-80GB", False),
    ],
)
def test_attention_kernels_follow_from_release_and_gpu(release: str | None, name: str, is_newest: bool) -> None:
    assert uses_newest_attention(release, gpu(name)) == is_newest


def test_older_attention_takes_longer() -> None:
    factors = attention_factors([FORWARD, BACKWARD, PRODUCT], [None] * 3, [A100, H100], {"torch": "2.6.0"})
    assert factors == pytest.approx(np.array([[1.0, 1.0, 1.0], [SLOWDOWN, SLOWDOWN, 1.0]]), rel=1e-2)


@pytest.mark.parametrize(("width", "published"), [(64, (1.18, 1.28, 1.54)), (128, (1.51, 1.61, 1.75))])
def test_older_attention_on_hopper_loses_most_in_long_sequences(width: int, published: tuple[float, ...]) -> None:
    """FlashAttention 3's paper: 16,384 tokens in sequences of 512, 1,024 and 8,192, forward, without a mask."""
    heads = 2048.0 / width
    for length, slowdown in zip((512.0, 1024.0, 8192.0), published, strict=True):
        shape = OperationShape("attention", "bfloat16", (16384 / length, heads, heads, length, length, width, 0.0))
        factor = attention_factors([shape], [None], [H100], {"torch": "2.6.0"}).item()
        assert factor == pytest.approx(slowdown, rel=0.09)


@pytest.mark.parametrize(
    ("name", "release", "slowdown"),
    [
        ("aten::_scaled_dot_product_cudnn_attention", "2.6.0", 1.0),
        ("flash_attn_3::_flash_attn_forward", "2.6.0", 1.0),
        ("flash_attn::_flash_attn_forward", "2.13.0", SLOWDOWN),
        (WHOLE, "2.13.0", 1.0),
    ],
)
def test_named_attention_kernel_runs_under_any_release(name: str, release: str, slowdown: float) -> None:
    kernel = attention_kernel(Operation(name=name, phase="forward"))
    assert attention_factors([FORWARD], [kernel], [H100], {"torch": release}).item() == slowdown
