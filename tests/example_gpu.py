"""GPUs of round numbers, so that a test can derive its times by hand."""

from __future__ import annotations

from dataclasses import replace

from lightning_predict.gpus.records import Gpu, Source

SMALL = Gpu(
    name="SMALL",
    reported_names=("Test SMALL",),
    aliases=(),
    architecture="ampere",
    compute_capability=(8, 0),
    launch_year=2020,
    streaming_multiprocessors=10,
    cores_per_multiprocessor=50,
    float64_lanes_per_multiprocessor=20,  # 0.4 TFLOP/s: the tensor cores add to it
    base_clock_hz=0.8e9,
    boost_clock_hz=1e9,
    highest_clock_hz=1e9,
    peak_flops_per_second={"float64": 0.5e12, "float32": 1e12, "tf32": 4e12, "float16": 8e12, "bfloat16": 8e12},
    emulated_dtypes=frozenset(),
    measured_flops_per_second={},
    dram_bytes_per_second=100e9,
    l2_bytes=1e6,
    l2_bytes_per_second=400e9,
    memory_bytes=8e9,
    memory_kind="HBM2",
    max_threads_per_multiprocessor=2048,
    max_blocks_per_multiprocessor=32,
    registers_per_multiprocessor=65536,
    shared_memory_bytes_per_multiprocessor=100_000,
    nvlink_bytes_per_second=None,
    pcie_bytes_per_second=10e9,
    has_peer_access=True,
    power_watts=100,
    single_source=True,
    sources={"*": (Source("made up", "https://example.com", "2026-01-01"),)},
)
"""1 TFLOP/s in float32, 100 GB/s."""

BIG = replace(
    SMALL,
    name="BIG",
    reported_names=("Test BIG",),
    streaming_multiprocessors=20,
    boost_clock_hz=1.5e9,
    highest_clock_hz=1.5e9,
    peak_flops_per_second={"float64": 1e12, "float32": 2e12, "tf32": 8e12, "float16": 16e12, "bfloat16": 16e12},
    dram_bytes_per_second=300e9,
    memory_bytes=16e9,
)
"""Twice the SMs, 1.5 times the clock, three times the bandwidth."""

OLD = replace(
    SMALL,
    name="OLD",
    reported_names=("Test OLD",),
    architecture="pascal",
    compute_capability=(6, 0),
    peak_flops_per_second={"float64": 0.5e12, "float32": 1e12, "float16": 1e12, "bfloat16": 1e12},
    emulated_dtypes=frozenset({"float16", "bfloat16"}),
)
"""As SMALL, without tensor cores."""
