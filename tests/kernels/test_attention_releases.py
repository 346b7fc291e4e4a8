"""Attention's kernels by the release of torch that brings them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_predict.hardware import gpu
from lightning_predict.kernels.corrections import (
    FIRST_GENERATION_LOSS,
    FIRST_GENERATION_TOKENS,
    ON_HOPPER,
    attention_factors,
    flash_generation,
)
from lightning_predict.kernels.operations import OperationShape

A100, H100 = gpu("A100-SXM-80GB"), gpu("H100-SXM-80GB")
FORWARD = OperationShape("causal_attention", "bfloat16", (1.0, 32.0, 32.0, 6000.0, 6000.0, 128.0))
BACKWARD = replace(FORWARD, operation="causal_attention_backward")
PRODUCT = OperationShape("linear", "bfloat16", (1.0, 128.0, 128.0, 128.0))
WHOLE = "aten::scaled_dot_product_attention"


@pytest.mark.parametrize(
    ("release", "name", "generation"),
    [
        ("2.1.2", "H100-SXM-80GB", 1),
        ("2.2.0", "H100-SXM-80GB", 2),
        ("2.10.0", "B200-SXM-180GB", 2),
        ("2.11.0", "B200-SXM-180GB", 3),
        (None, "H200", 3),
        ("2.13.0", "A100-SXM-80GB", 2),
        ("2.0.1", "L4", 1),
    ],
)
def test_the_generation_follows_from_the_release_and_the_gpu(release: str | None, name: str, generation: int) -> None:
    assert flash_generation(release, gpu(name)) == generation


def test_older_attention_takes_longer_and_nothing_else_does() -> None:
    names = [WHOLE] * 3
    found = attention_factors([FORWARD, BACKWARD, PRODUCT], names, [A100, H100], {"torch": "2.6.0"})
    assert found.tolist() == [[1.0, 1.0, 1.0], [*ON_HOPPER, 1.0]]
    # Half of the loss where there are as many keys as its constant says.
    first = attention_factors(
        [replace(FORWARD, dims=(1.0, 32.0, 32.0, FIRST_GENERATION_TOKENS, FIRST_GENERATION_TOKENS, 128.0))],
        [WHOLE],
        [A100],
        {"torch": "2.1"},
    )
    assert first[0, 0] == pytest.approx(1 + FIRST_GENERATION_LOSS / 2)


def test_what_asks_for_cudnn_gets_it_under_any_release() -> None:
    name = "aten::_scaled_dot_product_cudnn_attention"
    assert (attention_factors([FORWARD], [name], [H100], {"torch": "2.6.0"}) == 1).all()
    assert (attention_factors([FORWARD], [WHOLE], [H100], {}) == 1).all()
