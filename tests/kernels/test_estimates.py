from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lightning_predict.kernels  # noqa: F401  (registers the operations)
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels.estimates import (
    DETOUR_SPREAD,
    ROOFLINE_SPREAD,
    SHORTEST_KERNEL_SECONDS,
    compute_dtype_on,
    problem_times,
)
from lightning_predict.kernels.operations import batch_of, problem
from lightning_predict.kernels.roofline import roofline_seconds
from tests.example_gpu import BIG, OLD, SMALL
from tests.kernels.example_models import half_speed

LINEAR = problem("linear", "float32", m=512, n=512, k=512)
ADD = problem("add", "float32", rows=4096, cols=4096)


def test_a_model_serves_what_it_knows_and_the_roofline_the_rest() -> None:
    times = problem_times([LINEAR, ADD], [SMALL, BIG], half_speed("linear/float32"))
    np.testing.assert_allclose(times.seconds[:, 0], 2 * roofline_seconds(batch_of([LINEAR]), [SMALL, BIG])[:, 0])
    expected = roofline_seconds(batch_of([ADD]), [SMALL, BIG])[:, 0] / 0.8 + SHORTEST_KERNEL_SECONDS
    np.testing.assert_allclose(times.seconds[:, 1], expected)
    np.testing.assert_array_equal(times.model_share, [[1, 0], [1, 0]])
    np.testing.assert_allclose(times.high_seconds[0] / times.seconds[0], [1.1, ROOFLINE_SPREAD])


def test_without_models_everything_comes_from_the_roofline() -> None:
    times = problem_times([LINEAR, ADD], [SMALL], None)
    assert not times.model_share.any()


def test_a_sibling_dtype_is_scaled_by_the_rooflines_and_widens_the_interval() -> None:
    item = problem("linear", "tf32", m=4096, n=4096, k=4096)
    times = problem_times([item], [SMALL], half_speed("linear/bfloat16"))
    # SMALL: tf32 at half of bfloat16's rate, so 2 x (2 · 4096³ / 4 TFLOP/s).
    np.testing.assert_allclose(times.seconds, [[2 * 2 * 4096**3 / 4e12]])
    np.testing.assert_allclose(times.high_seconds / times.seconds, 1.1 * DETOUR_SPREAD)
    assert times.model_share[0, 0] == 1


def test_tf32_is_float32_on_a_gpu_without_it() -> None:
    assert compute_dtype_on("tf32", OLD) == "float32"
    assert compute_dtype_on("tf32", SMALL) == "tf32"
    item = problem("linear", "tf32", m=4096, n=4096, k=4096)
    both = [item, problem("linear", "float32", m=4096, n=4096, k=4096)]
    times = problem_times(both, [OLD, SMALL], half_speed("linear/float32", "linear/bfloat16"))
    assert times.seconds[0, 0] == times.seconds[0, 1]
    np.testing.assert_allclose(times.seconds[1, 1] / times.seconds[1, 0], 4)


def test_float8_is_scaled_from_bfloat16_with_a_wider_interval() -> None:
    eight = replace(SMALL, peak_flops_per_second={**SMALL.peak_flops_per_second, "float8": 16e12})
    assert compute_dtype_on("float8", eight) == "float8"
    words = {"m": 4096, "n": 4096, "k": 4096}
    items = [problem("linear", "float8", **words), problem("linear", "bfloat16", **words)]
    times = problem_times(items, [eight], half_speed("linear/bfloat16"))
    np.testing.assert_allclose(times.seconds[0], [2 * 2 * 4096**3 / 16e12, 2 * 2 * 4096**3 / 8e12])
    np.testing.assert_allclose(times.high_seconds / times.seconds, [[1.1 * DETOUR_SPREAD, 1.1]])


def test_float8_without_units_for_it_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^SMALL has no units for float8; expected .*Choose bfloat16 or"):
        compute_dtype_on("float8", SMALL)


def test_a_reduction_counts_its_parts_and_widens_the_interval() -> None:
    item = problem("attention_backward", "bfloat16", batch=2, heads=8, seq=1024, head_dim=64)
    models = half_speed("attention/bfloat16")
    forward = problem("attention", "bfloat16", batch=2, heads=8, seq=1024, head_dim=64)
    times = problem_times([item, forward], [SMALL], models)
    np.testing.assert_allclose(times.seconds[0, 0], 3 * times.seconds[0, 1])
    np.testing.assert_allclose(times.high_seconds[0, 0] / times.seconds[0, 0], 1.1 * DETOUR_SPREAD)


def test_a_part_without_a_model_lowers_the_models_share() -> None:
    item = problem("attention_backward", "float64", batch=1, heads=1, seq=64, head_dim=64)
    times = problem_times([item], [SMALL], half_speed("linear/float32"))
    assert times.model_share[0, 0] == 0
    assert times.seconds[0, 0] > 0


def test_duplicates_get_the_same_time_and_keep_their_places() -> None:
    times = problem_times([LINEAR, ADD, LINEAR], [SMALL], half_speed("linear/float32"))
    assert times.seconds[0, 0] == times.seconds[0, 2] != times.seconds[0, 1]


@given(m=st.integers(1, 10**6), n=st.integers(1, 10**5), k=st.integers(1, 10**5))
def test_nothing_is_faster_than_its_bound_and_intervals_hold_their_middle(m: int, n: int, k: int) -> None:
    items = [problem("linear", "float32", m=m, n=n, k=k), problem("gelu", "float16", rows=m, cols=n)]
    times = problem_times(items, [SMALL, BIG, OLD], half_speed("linear/float32"))
    for column, item in enumerate(items):
        bound = roofline_seconds(batch_of([item]), [SMALL, BIG, OLD], least=True)[:, 0]
        assert np.all(times.low_seconds[:, column] >= bound)
    assert np.all(times.low_seconds <= times.seconds)
    assert np.all(times.seconds <= times.high_seconds)
    assert np.all(np.isfinite(times.high_seconds))
