"""PyTorch's side of Keras's benchmarks, next to its prediction."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
import torch
from torch import nn

from benchmarks.accuracy.backends import ROWS, Row, predicted, segment_anything
from lightning_predict import capture


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("row", ROWS[2:], ids=lambda row: row.name)
def test_a_step_takes_what_the_page_tells(row: Row, *, compiled: bool) -> None:
    found = predicted(row, compiled=compiled)
    measured = row.compiled if compiled else row.eager
    assert 1000 * found.iteration_seconds == pytest.approx(measured, rel=0.1)


def test_the_largest_encoder_of_segment_anything_has_637_million_parameters() -> None:
    with torch.device("meta"):
        step = segment_anything()
    trace = capture(step, warmup_steps=0)
    # With its positions and its neck; the backbone alone, ViT-H, has 632.
    assert round(sum(prod(one.shape) for one in trace.parameters) / 1e6) == 637


def test_precision_is_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    predicted(Row("small", _small_step, 1, 1, allows_tf32=True), compiled=True)
    assert torch.get_float32_matmul_precision() == before


def _small_step() -> Callable[[], None]:
    layer, data = nn.Linear(8, 8), torch.zeros(8, 8)
    return lambda: layer(data).sum().backward()
