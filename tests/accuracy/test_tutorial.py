"""A lecture that everybody knows, predicted chapter by chapter."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.tutorial import CHAPTERS, Chapter, predicted


@pytest.mark.parametrize("chapter", [CHAPTERS[2], CHAPTERS[4]], ids=lambda chapter: chapter.words)
def test_a_step_of_gpt_2_takes_what_the_lecture_shows(chapter: Chapter) -> None:
    found, measured = predicted(chapter), chapter.milliseconds / 1e3
    assert found.iteration_seconds == pytest.approx(measured, rel=0.15)
    assert found.iteration_seconds_low < measured < found.iteration_seconds_high
