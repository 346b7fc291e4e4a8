"""CUPTI is detached when a recording stops, from CUDA 13 on, and never against the user's own setting."""

import os
from contextlib import suppress

import pytest
import torch

from lightning_predict.record.profiler import CUPTI_VARIABLE, detached_afterwards


@pytest.mark.parametrize(
    ("version", "own", "inside"),
    [
        ("13.0", None, "1"),
        ("14.1", None, "1"),
        ("12.8", None, None),
        (None, None, None),
        ("13.0", "0", "0"),
        ("13.0", "1", "1"),
    ],
)
def test_variable_is_set_only_while_the_profiler_stops(
    version: str | None, own: str | None, inside: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.delenv(CUPTI_VARIABLE, raising=False)
    if own is not None:
        monkeypatch.setenv(CUPTI_VARIABLE, own)
    with suppress(RuntimeError), detached_afterwards():
        assert os.environ.get(CUPTI_VARIABLE) == inside
        raise RuntimeError("CUPTI is gone")
    assert os.environ.get(CUPTI_VARIABLE) == own
