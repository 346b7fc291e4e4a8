"""Fine-tuning that others published, next to its prediction."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.finetuning import LENGTHS, MODELS, main, predicted


def test_an_update_of_qwen_takes_what_its_page_tells() -> None:
    model, at = MODELS[0], LENGTHS.index(2048)
    found = predicted(model, LENGTHS[at])
    assert found.iteration_seconds == pytest.approx(model.seconds[at], rel=0.1)
    assert found.iteration_seconds_low < model.seconds[at] < found.iteration_seconds_high
    assert found.memory.process is not None
    assert found.memory.process.middle == pytest.approx(model.gigabytes[at] * 1e9, rel=0.15)


def test_models_are_chosen_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["3B"])
    assert "expected 1.8B, 7B, 14B" in capsys.readouterr().err
