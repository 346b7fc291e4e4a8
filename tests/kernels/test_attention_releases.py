"""Attention's kernels by the release of torch that brings them."""

from dataclasses import replace

import pytest

from lightning_predict.hardware import gpu
from lightning_predict.kernels.corrections import (
    ON_HOPPER,
    attention_factors,
    attention_kernel,
    uses_newest_attention,
)
from lightning_predict.kernels.operations import OperationShape
from lightning_predict.record.trace import Operation

A100, H100 = gpu("A100-SXM-80GB"), gpu("H100-SXM-80GB")
FORWARD = OperationShape("causal_attention", "bfloat16", (1.0, 32.0, 32.0, 6000.0, 6000.0, 128.0))
BACKWARD = replace(FORWARD, operation="causal_attention_backward")
PRODUCT = OperationShape("linear", "bfloat16", (1.0, 128.0, 128.0, 128.0))
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
    found = attention_factors([FORWARD, BACKWARD, PRODUCT], [None] * 3, [A100, H100], {"torch": "2.6.0"})
    assert found.tolist() == [[1.0, 1.0, 1.0], [ON_HOPPER, ON_HOPPER, 1.0]]


@pytest.mark.parametrize(
    ("name", "release", "slowdown"),
    [
        ("aten::_scaled_dot_product_cudnn_attention", "2.6.0", 1.0),
        ("flash_attn_3::_flash_attn_forward", "2.6.0", 1.0),
        ("flash_attn::_flash_attn_forward", "2.13.0", ON_HOPPER),
        (WHOLE, "2.13.0", 1.0),
    ],
)
def test_named_attention_kernel_runs_under_any_release(name: str, release: str, slowdown: float) -> None:
    kernel = attention_kernel(Operation(name=name, phase="forward"))
    assert attention_factors([FORWARD], [kernel], [H100], {"torch": release}).item() == slowdown
