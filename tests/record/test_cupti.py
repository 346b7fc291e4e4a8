"""CUPTI is detached when a recording stops, from CUDA 13 on, and never against the user's own setting."""

from __future__ import annotations

import os

import pytest
import torch

from lightning_predict.record.cupti import VARIABLE, detached_afterwards


@pytest.mark.parametrize(("version", "expected"), [("13.0", "1"), ("14.1", "1"), ("12.8", None), (None, None)])
def test_the_variable_is_set_while_the_profiler_stops_and_gone_afterwards(
    version: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.delenv(VARIABLE, raising=False)
    with detached_afterwards():
        assert os.environ.get(VARIABLE) == expected
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("own", ["0", "1"])
def test_the_users_own_setting_stands(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv(VARIABLE, own)
    with detached_afterwards():
        assert os.environ[VARIABLE] == own
    assert os.environ[VARIABLE] == own


def test_an_error_of_the_profiler_leaves_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(RuntimeError, match="CUPTI"), detached_afterwards():
        raise RuntimeError("CUPTI is gone")
    assert VARIABLE not in os.environ
