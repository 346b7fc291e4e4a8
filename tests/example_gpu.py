"""GPUs of round numbers, so that a test can derive its times by hand."""

from dataclasses import replace

from lightning_predict.testing import SMALL_GPU

SMALL = SMALL_GPU

BIG = replace(  # Twice the SMs, 1.5 times the clock, three times the bandwidth
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

OLD = replace(  # As SMALL, without tensor cores
    SMALL,
    name="OLD",
    reported_names=("Test OLD",),
    architecture="pascal",
    compute_capability=(6, 0),
    peak_flops_per_second={"float64": 0.5e12, "float32": 1e12, "float16": 1e12, "bfloat16": 1e12},
    emulated_dtypes=frozenset({"float16", "bfloat16"}),
)
