"""Batch norms with float16 weights, which cuDNN does not take."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lightning_predict as lp


@pytest.mark.parametrize(("precision", "is_noted"), [("16-true", True), ("16-mixed", False), ("bf16-true", False)])
def test_float16_weights_of_batch_norms_are_noted(precision: str, *, is_noted: bool) -> None:
    dtypes = {"16-true": torch.float16, "16-mixed": torch.float32, "bf16-true": torch.bfloat16}
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to(dtypes[precision])
        images = torch.empty(4, 3, 16, 16, dtype=dtypes[precision])
    trace = lp.capture(lambda: model(images).float().sum().backward(), precision=precision)
    notes = lp.predict(trace, ["T4"], history=False).notes
    assert any("Batch norms with float16 weights" in note for note in notes) is is_noted
