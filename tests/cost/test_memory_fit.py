from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.cost.memory_fit import CONTEXT_BYTES, MARGIN, STORES_ECC_IN_MEMORY, memory_fit, usable_bytes
from lightning_predict.gpus import gpu, gpu_names
from lightning_predict.units import GIBIBYTE, MEBIBYTE


@pytest.mark.parametrize(
    ("needed", "answer"),
    [(90.9, "fits"), (91.0, "tight"), (100.0, "tight"), (100.1, "exceeds"), (None, None)],  # 100 / 1.1 = 90.909...
)
def test_with_a_margin_of_ten_percent_narrowly_or_not(needed: float | None, answer: str | None) -> None:
    assert MARGIN == 0.1
    assert memory_fit(needed, 100.0) == answer


# What torch reports as total_memory, in GiB, read in messages of out-of-memory errors; of what is left, the context.
REPORTED = {
    "T4": 14.56,
    "L40S": 44.53,
    "RTX-4090": 23.68,
    "RTX-6000-Ada": 50_865_307_648 / GIBIBYTE,
    "H100-SXM-80GB": 79.1,
}


@pytest.mark.parametrize("name", REPORTED)
def test_what_is_usable_is_never_more_than_a_card_reports_and_little_less(name: str) -> None:
    assert CONTEXT_BYTES == 430 * MEBIBYTE
    truth = REPORTED[name] * GIBIBYTE - CONTEXT_BYTES
    assert 0.97 * truth <= usable_bytes(gpu(name)) <= 1.001 * truth


def test_what_the_card_at_hand_reports_comes_first() -> None:
    assert usable_bytes(gpu("T4"), 15 * GIBIBYTE) == 15 * GIBIBYTE - 430 * MEBIBYTE


def test_every_card_named_for_its_ecc_is_in_the_catalogue() -> None:
    assert set(gpu_names()) >= STORES_ECC_IN_MEMORY


@given(st.floats(0, 1e12), st.floats(0, 1e12), st.floats(0, 1e12))
def test_who_needs_more_never_fits_better(one: float, other: float, usable: float) -> None:
    order = ["fits", "tight", "exceeds"]
    less, more = sorted((one, other))
    answers = [memory_fit(needed, usable) for needed in (less, more)]
    assert order.index(str(answers[0])) <= order.index(str(answers[1]))
