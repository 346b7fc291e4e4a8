"""Which settings load the weights anew."""

from pathlib import Path

import pytest

from lightning_predict.base.files import CACHE_VARIABLE, HISTORY_VARIABLE
from lightning_predict.kernels.models import kernel_models


def test_only_settings_of_weights_load_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = kernel_models(("T4",))
    monkeypatch.setenv(HISTORY_VARIABLE, str(tmp_path / "another.jsonl"))
    assert kernel_models(("T4",)) is loaded
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert kernel_models(("T4",)) is not loaded
