"""Faults in functions that a fit reaches: a sample of those of `python -m tests.soak.faults`, which takes all."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import torch

from tests.soak.faults import ERRORS, fit, injected, reached

SAMPLE: Final = 23
"""Each so manieth function is taken."""


@pytest.mark.filterwarnings("ignore")
def test_no_fault_of_ours_reaches_a_fit_or_leaves_anything_behind(tmp_path: Path, said: list[str]) -> None:
    plain = fit(tmp_path, with_callbacks=False)
    names = reached(tmp_path)
    assert len(names) > 200
    for number, name in enumerate(names[::SAMPLE]):
        kind = ("RuntimeError", "MemoryError", "ENOSPC")[number % 3]
        result, was_reached = injected(tmp_path, name, 0, ERRORS[kind])
        assert was_reached, name
        assert result.left == (), name
        assert result.error is None, name
        assert result.batches == plain.batches, name
        assert torch.equal(result.weights, plain.weights), name
    said.clear()
