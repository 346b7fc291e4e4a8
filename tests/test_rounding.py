"""No prediction depends on the last bits: not on the BLAS kernels of a processor, not on the rounding of a network."""

from typing import Any

import numpy as np
import pytest

from lightning_predict.base.ties import TIE, clearly_less, greatest, least, ordered
from lightning_predict.kernels import models
from lightning_predict.kernels.operations import Array
from tests.blas_kernels import KERNELS, Found, moved, predicted, predictions, supports

LIKE_HASWELL = 1e-5  # Float32 rounds at 1e-7, and a step adds up thousands of kernels

NOISE = 1e-6
FROM_NOISE = 1e-4


@pytest.fixture(scope="module")
def by_haswell() -> Found:
    return predicted("HASWELL")


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "HASWELL"])
def test_every_blas_kernel_gives_the_same_fields_and_labels(kernel: str, by_haswell: Found) -> None:
    if not supports(kernel):
        pytest.skip(f"this processor cannot run OpenBLAS's {kernel}")
    assert moved(by_haswell, predicted(kernel), tolerance=LIKE_HASWELL) == []


def test_noise_of_a_network_moves_no_label(by_haswell: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, draw = models.predict_log_utilisations, np.random.default_rng(1)

    def noisy(*arguments: Any) -> Array:
        values = exact(*arguments)
        changed: Array = values + draw.uniform(-NOISE, NOISE, values.shape)
        return changed

    monkeypatch.setattr(models, "predict_log_utilisations", noisy)
    after = predictions()
    assert moved(by_haswell, after, tolerance=NOISE / 10)  # the noise arrives
    assert moved(by_haswell, after, tolerance=FROM_NOISE) == []


@pytest.mark.parametrize("step", [-TIE / 10, 0.0, TIE / 10])
def test_ties_go_to_the_first_value_regardless_of_rounding(step: float) -> None:
    times = {"b": 1.0, "c": 2.0, "a": 1.0 + step, "d": 2.0 - 2 * step, "e": 0.0}
    assert ordered(times, times.__getitem__) == ["e", "b", "a", "c", "d"]
    assert ordered(times, times.__getitem__, reverse=True) == ["c", "d", "b", "a", "e"]
    assert least(list(times)[:4], times.__getitem__) == "b"
    assert greatest(times, times.__getitem__) == "c"
    assert not clearly_less(times["b"], times["a"])
    assert not clearly_less(times["a"], times["b"])


def test_ties_infinities_and_arrays_are_compared_clearly() -> None:
    assert clearly_less(1.0, 1.0 + 2 * TIE)
    assert clearly_less(-1.0, -1.0 + 2 * TIE)
    assert clearly_less(1.0, np.inf)
    assert not clearly_less(np.inf, np.inf)
    assert clearly_less(np.array([1.0, 1.0, 0.0]), np.array([2.0, 1.0 + TIE / 2, 0.0])).tolist() == [True, False, False]
    before = {"step": [1.0, 0.0, "device", None]}
    assert moved(before, {"step": [1.0 + LIKE_HASWELL / 2, 3e-16, "device", None]}, tolerance=LIKE_HASWELL) == []
    assert moved(before, {"step": [1.1, 0.0, "host", None]}, tolerance=LIKE_HASWELL) == [
        "step [0]: 1.0 -> 1.1",
        "step [2]: device -> host",
    ]
