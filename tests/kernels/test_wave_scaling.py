from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels.operations import problem_batch
from lightning_predict.kernels.wave_scaling import (
    blocks_per_multiprocessor,
    many_wave_factors,
    memory_boundedness,
    scaled_seconds,
    wave_blocks,
)
from lightning_predict.tracing.records import Kernel
from tests.example_gpu import BIG, SMALL

GAMMAS = st.floats(0, 1)
BLOCKS = st.integers(1, 1_000_000)


def kernel(blocks: int, *, threads: int = 256, registers: int = 32, shared: int = 0) -> Kernel:
    return Kernel(
        name="k",
        seconds=1.0,
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        registers_per_thread=registers,
        shared_memory_bytes=shared,
        stream=7,
        start_seconds=0.0,
    )


def test_threads_limit_the_blocks_of_a_multiprocessor() -> None:
    assert blocks_per_multiprocessor(kernel(1, threads=256, registers=16), SMALL) == 2048 // 256


def test_registers_limit_them_in_units_of_a_warp() -> None:
    # 100 registers x 32 threads = 3200 -> 3328 a warp (13 x 256); 8 warps: 26,624 of 65,536.
    assert blocks_per_multiprocessor(kernel(1, threads=256, registers=100), SMALL) == 2


def test_shared_memory_limits_them() -> None:
    # 30,000 -> 30,208 bytes (118 x 256) of 100,000.
    assert blocks_per_multiprocessor(kernel(1, shared=30_000), SMALL) == 3


def test_a_block_that_needs_more_than_there_is_still_counts_as_one() -> None:
    assert blocks_per_multiprocessor(kernel(1, shared=1_000_000), SMALL) == 1


def test_a_wave_is_blocks_per_multiprocessor_times_multiprocessors() -> None:
    assert wave_blocks(kernel(1), SMALL) == 80
    assert wave_blocks(kernel(1), BIG) == 160


@given(gamma=GAMMAS, blocks=BLOCKS)
def test_scaling_to_the_same_gpu_changes_nothing(gamma: float, blocks: int) -> None:
    assert math.isclose(scaled_seconds(kernel(blocks), origin=SMALL, destination=SMALL, gamma=gamma), 1.0)


def test_equation_two_by_hand() -> None:
    # Bandwidth 1/3, waves 80/160 = 1/2, clock 1/1.5; gamma 0.5: sqrt(1/3) · sqrt(1/2 · 2/3) = sqrt(1/9) = 1/3.
    got = scaled_seconds(kernel(10**6), origin=SMALL, destination=BIG, gamma=0.5)
    assert math.isclose(got, 1 / 3)


def test_equation_one_by_hand() -> None:
    # 240 blocks: 3 waves of 80 on SMALL, 2 of 160 on BIG. gamma 1: 2/3 · (1/3 · 160/80) = 4/9.
    got = scaled_seconds(kernel(240), origin=SMALL, destination=BIG, gamma=1.0)
    assert math.isclose(got, 4 / 9)
    # gamma 0: 2/3 waves · clock 1/1.5 = 4/9 too.
    assert math.isclose(scaled_seconds(kernel(240), origin=SMALL, destination=BIG, gamma=0.0), 4 / 9)


@given(gamma=GAMMAS)
def test_equation_one_becomes_two_when_both_gpus_run_whole_waves(gamma: float) -> None:
    launched = kernel(160 * 1000)
    exact = scaled_seconds(launched, origin=SMALL, destination=BIG, gamma=gamma, equation="exact")
    large = scaled_seconds(launched, origin=SMALL, destination=BIG, gamma=gamma, equation="large")
    assert math.isclose(exact, large)


def test_there_and_back_again() -> None:
    there = scaled_seconds(kernel(10**6), origin=SMALL, destination=BIG, gamma=0.3)
    back = scaled_seconds(replace(kernel(10**6), seconds=there), origin=BIG, destination=SMALL, gamma=0.3)
    assert math.isclose(back, 1.0)


def test_twice_the_bandwidth_halves_the_time_of_a_memory_bound_kernel() -> None:
    faster = replace(SMALL, name="FASTER", dram_bytes_per_second=2 * SMALL.dram_bytes_per_second)
    assert math.isclose(scaled_seconds(kernel(10**6), origin=SMALL, destination=faster, gamma=1.0), 0.5)
    assert math.isclose(scaled_seconds(kernel(10**6), origin=SMALL, destination=faster, gamma=0.0), 1.0)


def test_a_copy_has_no_waves_and_scales_with_bandwidth() -> None:
    copy = replace(kernel(1), grid=(0, 0, 0), block=(0, 0, 0))
    assert math.isclose(scaled_seconds(copy, origin=SMALL, destination=BIG, gamma=0.2), 1 / 3)


def test_gamma_is_one_without_arithmetic_half_at_the_ridge_and_zero_without_traffic() -> None:
    assert memory_boundedness(intensity=0, ridge=10) == 1
    assert memory_boundedness(intensity=10, ridge=10) == 0.5
    assert memory_boundedness(intensity=math.inf, ridge=10) == 0


@given(low=st.floats(0, 1e6), more=st.floats(0, 1e6), ridge=st.floats(1e-3, 1e3))
def test_gamma_falls_with_intensity_and_stays_between_zero_and_one(low: float, more: float, ridge: float) -> None:
    first = memory_boundedness(intensity=low, ridge=ridge)
    second = memory_boundedness(intensity=low + more, ridge=ridge)
    assert 0 <= second <= first <= 1


@pytest.mark.parametrize(("intensity", "ridge"), [(-1.0, 1.0), (1.0, 0.0)])
def test_a_negative_intensity_or_no_ridge_is_refused(intensity: float, ridge: float) -> None:
    with pytest.raises(InvalidArgumentError, match="expected an intensity of at least 0 and a ridge above 0"):
        memory_boundedness(intensity=intensity, ridge=ridge)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_factors_of_problems_are_those_of_kernels_of_many_waves(dtype: str) -> None:
    batch = problem_batch("linear", dtype, m=[1, 64, 4096], n=4096, k=4096)
    factors = many_wave_factors(batch, origin=SMALL, destination=BIG)
    huge = kernel(blocks=10**9)
    for index, factor in enumerate(factors):
        intensity = float(batch.flops[index] / batch.bytes_moved[index])
        gamma = memory_boundedness(intensity=intensity, ridge=BIG.peak_flops_per_second[dtype] / 300e9)
        expected = scaled_seconds(huge, origin=SMALL, destination=BIG, gamma=gamma, equation="large") / huge.seconds
        assert factor == pytest.approx(expected)
