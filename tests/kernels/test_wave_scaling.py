import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware import gpu
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.roofline import SHORTEST_KERNEL_SECONDS
from lightning_predict.kernels.wave_scaling import (
    FULL_TRAFFIC_SHARE,
    blocks_per_multiprocessor,
    memory_boundedness,
    ridge_of,
    scaled_seconds,
    wave_blocks,
)
from lightning_predict.record.trace import Kernel
from tests.example_gpu import BIG, SMALL

GAMMAS = st.floats(0, 1)
BLOCKS = st.integers(1, 1_000_000)
LONG_SECONDS = 1e6  # So long that the part which no GPU shortens does not count


def kernel(blocks: int, *, threads: int = 256, registers: int = 32, shared: int = 0) -> Kernel:
    return Kernel(
        name="k",
        seconds=LONG_SECONDS,
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        registers_per_thread=registers,
        shared_memory_bytes=shared,
        stream=7,
        start_seconds=0.0,
    )


def test_threads_registers_and_shared_memory_limit_the_blocks_of_a_multiprocessor() -> None:
    assert blocks_per_multiprocessor(kernel(1, threads=256, registers=16), SMALL) == 2048 // 256
    # 100 registers x 32 threads = 3200 -> 3328 a warp (13 x 256); 8 warps: 26,624 of 65,536.
    assert blocks_per_multiprocessor(kernel(1, threads=256, registers=100), SMALL) == 2
    # 33 registers x 32 threads = 1,056 -> 1,280 a warp; 4 warps take 5,120 of 65,536: 12 blocks, and 15 unrounded.
    assert blocks_per_multiprocessor(kernel(1, threads=128, registers=33), SMALL) == 12
    # 30,000 -> 30,208 bytes (118 x 256) of 100,000.
    assert blocks_per_multiprocessor(kernel(1, shared=30_000), SMALL) == 3
    # 3,100 -> 3,328 bytes of 100,000: 30 blocks, and 32 unrounded.
    assert blocks_per_multiprocessor(kernel(1, threads=32, registers=0, shared=3100), SMALL) == 30
    assert blocks_per_multiprocessor(kernel(1, shared=1_000_000), SMALL) == 1
    assert wave_blocks(kernel(1), SMALL) == 80
    assert wave_blocks(kernel(1), BIG) == 160


@pytest.mark.parametrize(("name", "blocks"), [("T4", 16), ("RTX-3090", 16), ("L4", 24), ("V100-SXM2-16GB", 32)])
def test_however_small_blocks_are_an_sm_holds_only_so_many(name: str, blocks: int) -> None:
    # Blocks of one warp: by threads alone a T4's SM would hold 1024 / 32 = 32, a V100's 64.
    assert blocks_per_multiprocessor(kernel(1, threads=32, registers=16), gpu(name)) == blocks


def factor(kernel: Kernel, origin: Gpu, destination: Gpu, gamma: float) -> float:
    return scaled_seconds(kernel, origin=origin, destination=destination, gamma=gamma) / kernel.seconds


@given(gamma=GAMMAS, blocks=BLOCKS)
def test_scaling_to_the_same_gpu_changes_nothing(gamma: float, blocks: int) -> None:
    assert math.isclose(factor(kernel(blocks), SMALL, SMALL, gamma), 1.0)


def test_few_and_many_waves_by_hand() -> None:
    # Bandwidth 1/3, waves 80/160 = 1/2, clock 1/1.5; gamma 0.5: sqrt(1/3) · sqrt(1/2 · 2/3) = sqrt(1/9) = 1/3.
    assert math.isclose(factor(kernel(10**6), SMALL, BIG, 0.5), 1 / 3)
    # 240 blocks: 3 waves of 80 on SMALL, 2 of 160 on BIG. gamma 0: 2/3 waves · clock 1/1.5 = 4/9.
    assert math.isclose(factor(kernel(240), SMALL, BIG, 0.0), 4 / 9)
    # gamma 1: both draw their whole bandwidth.
    assert math.isclose(factor(kernel(240), SMALL, BIG, 1.0), 1 / 3)
    # A block draws 100e9 / (80 / 4 · 1 GHz) = 300e9 / (160 / 4 · 1.5 GHz) = 5 bytes a cycle: 10 blocks draw 50 GB/s on
    # SMALL, 75 on BIG, as the clocks are. Bound by compute, one wave on either takes as long as its clock is slow.
    assert math.isclose(FULL_TRAFFIC_SHARE, 1 / 4)
    for gamma in (0.0, 0.5, 1.0):
        assert math.isclose(factor(kernel(10), SMALL, BIG, gamma), 1 / 1.5)
    # 30 blocks fill SMALL's 100 GB/s (20 do); on BIG, where 40 would, they draw 30 · 5 · 1.5 = 225.
    assert math.isclose(factor(kernel(30), SMALL, BIG, 1.0), 100 / 225)
    faster = replace(SMALL, name="FASTER", dram_bytes_per_second=2 * SMALL.dram_bytes_per_second)
    assert math.isclose(factor(kernel(10**6), SMALL, faster, 1.0), 0.5)
    assert math.isclose(factor(kernel(10**6), SMALL, faster, 0.0), 1.0)


SLOWER_TO_FASTER = [("T4", "V100-SXM2-16GB"), ("T4", "A100-SXM-40GB"), ("L4", "A100-SXM-40GB"), ("T4", "H100-SXM-80GB")]


@pytest.mark.parametrize(("small", "large"), SLOWER_TO_FASTER)
@given(blocks=BLOCKS, gamma=GAMMAS, threads=st.sampled_from([32, 128, 256, 512, 1024]))
def test_a_smaller_gpu_is_never_faster(small: str, large: str, blocks: int, gamma: float, threads: int) -> None:
    launched = kernel(blocks, threads=threads)
    assert factor(launched, gpu(large), gpu(small), gamma) >= 1 - 1e-9
    assert factor(launched, gpu(small), gpu(large), gamma) <= 1 + 1e-9


@given(blocks=BLOCKS, more=BLOCKS)
def test_traffic_goes_over_from_the_clock_to_the_bandwidth_as_blocks_grow(blocks: int, more: int) -> None:
    few, many = (factor(kernel(count), SMALL, BIG, 1.0) for count in (blocks, blocks + more))
    assert 1 / 3 - 1e-9 <= many <= few + 1e-9 <= 1 / 1.5 + 2e-9


@given(gamma=GAMMAS, blocks=BLOCKS)
def test_there_and_back_again(gamma: float, blocks: int) -> None:
    there = scaled_seconds(kernel(blocks), origin=SMALL, destination=BIG, gamma=gamma)
    back = scaled_seconds(replace(kernel(blocks), seconds=there), origin=BIG, destination=SMALL, gamma=gamma)
    assert math.isclose(back, LONG_SECONDS, rel_tol=1e-6)


def test_no_gpu_shortens_the_start() -> None:
    for seconds in (SHORTEST_KERNEL_SECONDS / 2, SHORTEST_KERNEL_SECONDS):
        short = replace(kernel(10**6), seconds=seconds)
        assert scaled_seconds(short, origin=SMALL, destination=BIG, gamma=1.0) == seconds
    twice = replace(kernel(10**6), seconds=2 * SHORTEST_KERNEL_SECONDS)
    # The second half is a third on BIG.
    assert math.isclose(
        scaled_seconds(twice, origin=SMALL, destination=BIG, gamma=1.0), SHORTEST_KERNEL_SECONDS * 4 / 3
    )


def copy(name: str) -> Kernel:
    return replace(kernel(1), name=name, grid=(0, 0, 0), block=(0, 0, 0))


@pytest.mark.parametrize("name", ["Memcpy DtoD (Device -> Device)", "Memset (Device)"])
def test_a_copy_on_the_device_goes_with_its_bandwidth(name: str) -> None:
    assert math.isclose(factor(copy(name), SMALL, BIG, 0.2), 1 / 3)


@pytest.mark.parametrize("name", ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)"])
def test_copy_from_host_scales_with_bandwidth_of_its_link(name: str) -> None:
    assert math.isclose(factor(copy(name), gpu("H100-SXM-80GB"), gpu("T4"), 1.0), 4, rel_tol=0.02)  # PCIe 5.0, 3.0


def test_gamma_is_one_without_arithmetic_and_half_at_the_ridge_of_its_dtype() -> None:
    assert memory_boundedness(intensity=0, ridge=10) == 1
    assert memory_boundedness(intensity=10, ridge=10) == 0.5
    assert memory_boundedness(intensity=math.inf, ridge=10) == 0
    assert ridge_of(SMALL, "float16") == 8e12 / 100e9
    assert ridge_of(SMALL, "float32") == 1e12 / 100e9
    assert ridge_of(SMALL, "float8") == ridge_of(SMALL, "float32")


@given(low=st.floats(0, 1e6), more=st.floats(0, 1e6), ridge=st.floats(1e-3, 1e3))
def test_gamma_falls_with_intensity_and_stays_between_zero_and_one(low: float, more: float, ridge: float) -> None:
    first = memory_boundedness(intensity=low, ridge=ridge)
    assert 0 <= memory_boundedness(intensity=low + more, ridge=ridge) <= first <= 1


@pytest.mark.parametrize(("intensity", "ridge"), [(-1.0, 1.0), (1.0, 0.0)])
def test_a_negative_intensity_or_no_ridge_is_refused(intensity: float, ridge: float) -> None:
    with pytest.raises(InvalidArgumentError, match="expected an intensity of at least 0 and a ridge above 0"):
        memory_boundedness(intensity=intensity, ridge=ridge)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
def test_of_many_waves_it_is_habitats_equation(gamma: float) -> None:
    other = replace(SMALL, name="OTHER", streaming_multiprocessors=40, dram_bytes_per_second=500e9)
    # D_o / D_d = 1/5, W_o / W_d = 10/40 and the same clock; a thousand waves leave nothing to round.
    given = kernel(1000 * 40 * blocks_per_multiprocessor(kernel(1), SMALL))
    start = SHORTEST_KERNEL_SECONDS
    scaled = scaled_seconds(given, origin=SMALL, destination=other, gamma=gamma)
    assert (scaled - start) / (given.seconds - start) == pytest.approx(0.2**gamma * 0.25 ** (1 - gamma))
