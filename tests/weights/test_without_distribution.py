"""Weights load if the package is only on the path, not installed (PYTHONPATH alone)."""

import importlib.metadata
from pathlib import Path

import pytest

from lightning_predict import __version__
from lightning_predict.base.files import cache_folder
from lightning_predict.weights.store import load_weights


def test_no_installed_distribution_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert load_weights(["T4"]).gpus
    assert cache_folder(tmp_path) == tmp_path / __version__
