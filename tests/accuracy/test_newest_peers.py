"""What the newest tools are asked for: models of the published size."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.finetuning import MODELS
from benchmarks.peers.newest import _cells, _shape_of, _shape_of_qwen
from lightning_predict.record.named_models.configurations import shipped


def test_models_have_their_published_number_of_parameters() -> None:
    """Published: 1,836,828,672, 7,721,324,544 and 14,167,290,880 (Qwen), 1,543,714,304 and 1,711,376,384 (the T4)."""
    sizes = [_shape_of_qwen(model)["parameters"] for model in MODELS]
    assert sizes == pytest.approx([1_836_828_672, 7_721_324_544, 14_167_290_880], rel=1e-3)
    others = [
        _shape_of(dict(shipped("hf", name).config))["parameters"]
        for name in ("Qwen/Qwen2.5-1.5B-Instruct", "HuggingFaceTB/SmolLM2-1.7B")
    ]
    assert others == pytest.approx([1_543_714_304, 1_711_376_384], rel=1e-3)


def test_a_row_has_the_median_the_worst_and_the_bias() -> None:
    assert _cells([0.1, -0.3, 0.2]) == ("3", "20.0", "-30", "+10.0")
