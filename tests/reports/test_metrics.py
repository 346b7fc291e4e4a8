from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.reports.metrics import metrics
from lightning_predict.reports.predictions import Predictions
from tests.reports.example import BARE, FULL, MINIMAL

MLFLOW_KEY = re.compile(r"[a-zA-Z0-9_/. -]+")


def test_every_known_value_has_its_key() -> None:
    assert metrics(Predictions((FULL["T4"],))) == pytest.approx(
        {
            "predict/T4/iteration_ms": 48.0,
            "predict/T4/iteration_ms_low": 45.0,
            "predict/T4/iteration_ms_high": 52.0,
            "predict/T4/total_hours": 3.2,  # 11,520 s / 3,600
            "predict/T4/cost_usd": 1.12,
            "predict/T4/memory_gib": 7.81,
            "predict/T4/memory_free_gib": 6.29,
        }
    )


def test_what_is_not_known_is_not_logged() -> None:
    assert set(metrics(BARE)) == {
        f"predict/{gpu}/iteration_ms{end}" for gpu in ("L4", "A10") for end in ("", "_low", "_high")
    }
    assert "predict/K80/cost_usd" not in metrics(FULL)
    assert "predict/K80/total_hours" in metrics(FULL)


def test_a_cost_of_nothing_is_a_known_value() -> None:
    assert metrics(Predictions((replace(MINIMAL, cost_usd=0.0),)))["predict/L4/cost_usd"] == 0.0


def test_the_separator_is_the_loggers() -> None:
    assert "predict-T4-iteration_ms" in metrics(FULL, separator="-")


@given(st.lists(st.from_regex(r"[A-Za-z0-9.-]+", fullmatch=True), unique=True, max_size=5))
def test_keys_of_any_allowed_gpu_name_are_distinct_and_allowed_by_mlflow(names: list[str]) -> None:
    keys = metrics(Predictions(tuple(replace(MINIMAL, gpu=name) for name in names)))
    assert len(keys) == 3 * len(names)
    assert all(MLFLOW_KEY.fullmatch(key) for key in keys)
