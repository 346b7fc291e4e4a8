"""Properties of a Gpu."""

import pickle
from dataclasses import FrozenInstanceError

import pytest

from lightning_predict.hardware import gpu
from tests.example_gpu import BIG, OLD, SMALL


def test_tf32_falls_back_to_float32() -> None:
    assert SMALL.peak("tf32") == 4e12
    assert OLD.peak("tf32") == OLD.peak("float32") == 1e12


def test_a_dtype_that_is_not_supported_has_no_peak_and_no_ridge() -> None:
    assert SMALL.peak("float8") is None
    assert SMALL.ridge_flops_per_byte("float8") is None


def test_the_ridge_is_where_computing_and_loading_take_equally_long() -> None:
    assert SMALL.ridge_flops_per_byte("float32") == 1e12 / 100e9
    assert BIG.ridge_flops_per_byte("float16") == 16e12 / 300e9


def test_a_gpu_is_a_key_a_value_and_cannot_change() -> None:
    row = gpu("T4")
    assert {row: 1}[gpu("tesla t4")] == 1
    assert pickle.loads(pickle.dumps(row)) == row
    with pytest.raises(FrozenInstanceError):
        row.power_watts = 1.0  # type: ignore[misc]
