"""Every test here needs a GPU and says so where there is none."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _needs_cuda() -> None:
    if not torch.cuda.is_available():
        pytest.fail("tests/gpu needs a CUDA device; torch.cuda.is_available() is False here.")
