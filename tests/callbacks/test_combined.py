"""Profilers, devices, ranks and errors of ours at once: a sample of `python -m tests.soak.combined`, which has all."""

from pathlib import Path

import pytest

from tests.soak.combined import FUNCTIONS, Case, cases, harm, outcome

SAMPLE = (
    Case("none", "cuda", "two ranks", "RuntimeError", FUNCTIONS[0]),
    Case("none", "eager", "two ranks", "StopIteration", FUNCTIONS[5]),
    Case("inside", "cuda", "one", "MemoryError", FUNCTIONS[3]),
)


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_a_run_ends_as_without_us(case: Case, tmp_path: Path) -> None:
    plain = outcome(case, tmp_path / "plain", with_callbacks=False)
    assert set(plain[0]) == {0}
    assert "outcome" in plain[1]
    assert harm(case, plain, tmp_path / "ours") is None


def test_the_sample_is_of_the_soak() -> None:
    assert set(SAMPLE) <= set(cases(None, "0"))
