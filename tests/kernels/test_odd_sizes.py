from __future__ import annotations

import math

import pytest

from lightning_predict.gpus import gpu
from lightning_predict.kernels.odd_sizes import ODD_SIZE_SPREAD, is_odd_size, odd_size_seconds
from lightning_predict.kernels.operations import batch_of, problem, problem_batch
from lightning_predict.kernels.utilisation import UtilisationModels
from tests.kernels.example_networks import constant_weights

A100 = gpu("A100-SXM-40GB")


def test_odd_sizes_run_at_a_rate_of_their_own() -> None:
    batch = problem_batch("linear", "bfloat16", m=1024, n=[1001, 1000, 1000], k=[512, 511, 512])
    odd_columns, odd_depth, even = odd_size_seconds(batch, [A100])[0]
    # 108 multiprocessors at 1.41 GHz, 768 FLOPs a clock.
    rate = 108 * 1.41e9 * 768
    assert odd_columns == pytest.approx(2 * 1024 * 1001 * 512 / rate)
    assert odd_depth == pytest.approx(2 * 1024 * 1000 * 511 / rate)
    assert even == 0


def test_an_odd_number_of_rows_or_a_single_column_is_no_matter() -> None:
    assert not odd_size_seconds(problem_batch("linear", "float16", m=1023, n=1, k=512), [A100]).any()


@pytest.mark.parametrize(("operation", "dtype"), [("linear", "float32"), ("bmm", "float64")])
def test_wider_elements_may_start_anywhere(operation: str, dtype: str) -> None:
    assert not odd_size_seconds(problem_batch(operation, dtype, b=1, m=8, n=7, k=7), [A100]).any()


def test_other_operations_have_no_such_sizes() -> None:
    assert not odd_size_seconds(problem_batch("add", "float16", rows=7, cols=7), [A100]).any()


def test_an_estimate_is_slower_and_less_sure_at_odd_sizes() -> None:
    models = UtilisationModels(constant_weights("matmul_half", utilisation=0.8, interval=math.log(1.5)))
    batch = problem_batch("linear", "bfloat16", m=8192, n=[8191, 8192], k=8192)
    estimate = models.estimate(batch, [A100])
    odd, even = estimate.seconds[0]
    # At even sizes 0.8 of 312 TFLOP/s, at odd ones 108 x 1.41 GHz x 768 = 117 TFLOP/s.
    assert odd / even == pytest.approx(0.8 * 312 / 117, rel=0.01)
    assert estimate.high_seconds[0] / estimate.seconds[0] == pytest.approx([1.5 * ODD_SIZE_SPREAD, 1.5])
    assert estimate.low_seconds[0] / estimate.seconds[0] == pytest.approx([1 / 1.5, 1 / 1.5], rel=0.2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (8, 8), (9, 8), (8, 9), (1, 9), (50257, 768)])
def test_a_problem_is_odd_where_it_has_a_time_for_it(dtype: str, n: int, k: int) -> None:
    item = problem("linear", dtype, m=7, n=n, k=k)
    assert is_odd_size(item) == bool(odd_size_seconds(batch_of([item]), [A100])[0, 0] > 0)


def test_only_products_are_of_odd_size() -> None:
    assert not is_odd_size(problem("gelu", "float16", rows=7, cols=9))
