"""Hugging Face's guide to a bigger model and faster training, next to its prediction."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.guide import ROWS, UPDATES, Row, predicted


@pytest.mark.parametrize("row", ROWS[:3], ids=lambda row: row.name)
def test_a_run_of_the_guide_takes_what_it_tells(row: Row) -> None:
    found = predicted(row)
    assert UPDATES * found.iteration_seconds == pytest.approx(row.seconds, rel=0.1)
    memory = found.memory.process
    assert memory is not None
    assert memory.middle / 2**20 == pytest.approx(row.mebibytes, rel=0.15)
