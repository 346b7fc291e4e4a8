from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_predict.callbacks.follow_up import is_noticed
from lightning_predict.callbacks.predicting import Answer
from lightning_predict.reports.predictions import Predictions
from lightning_predict.scaling.records import Checkpoints
from tests.reports.example import H100, MINIMAL, T4


def answer(*, seconds: float | None, count: int | None = 100) -> Answer:
    """11,520 s on the T4 and 1,440 s on the H100, of which 5 % are 72 s."""
    checkpoints = Checkpoints(count=count, seconds=seconds)
    return Answer(predictions=Predictions((T4, H100)), expected=None, checkpoints=checkpoints)


@pytest.mark.parametrize(
    ("estimated", "timed", "noticed"), [(1.0, 1.5, False), (1.0, 1.8, True), (1.0, 0.2, True), (None, 0.8, True)]
)
def test_a_change_of_a_minute_and_five_percent_is_noticed(estimated: float | None, timed: float, noticed: bool) -> None:
    assert is_noticed(timed, answer(seconds=estimated)) is noticed


def test_a_change_of_seconds_is_not_whatever_its_share() -> None:
    short = replace(H100, total_seconds=10.0)
    brief = replace(answer(seconds=0.1), predictions=Predictions((short,)))
    assert not is_noticed(0.5, brief)  # 40 s more than 10
    assert is_noticed(0.8, brief)


def test_without_a_total_or_a_number_there_is_nothing_to_notice() -> None:
    assert not is_noticed(1e6, answer(seconds=1.0, count=None))
    assert not is_noticed(1e6, replace(answer(seconds=1.0), predictions=Predictions((MINIMAL,))))
