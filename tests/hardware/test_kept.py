"""What follows from the row of a GPU: its rates, its slices, and the smallest step on it."""

from typing import Final

import lightning_predict as lp
from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.hardware.records import Gpu
from lightning_predict.hardware.slices import slice_of
from lightning_predict.kernels.operations import COMPUTE_BYTES
from lightning_predict.testing import example_trace
from tests.kept import Kept, overall

SLICES: Final = {"A100-SXM-80GB": "3g.40gb", "H100-SXM-80GB": "1g.10gb"}


def newest() -> list[Gpu]:
    """One GPU of each generation."""
    gpus = map(gpu, gpu_names())
    return list({(row.library_vendor, row.compute_capability): row for row in gpus}.values())


def test_rates_and_the_smallest_step(kept: Kept) -> None:
    predictions = lp.predict(example_trace(64), gpus=newest(), history=False)
    values = {}
    for row, prediction in zip(newest(), predictions.values(), strict=True):
        rates = [rate for dtype in COMPUTE_BYTES for rate in (row.peak(dtype) or 0.0, row.lanes_peak(dtype))]
        values[row.name] = [overall(rates), prediction.iteration_seconds]
    kept("rates and the smallest step", values)


def test_slices(kept: Kept) -> None:
    values = {}
    for name, profile in SLICES.items():
        part = slice_of(gpu(name), profile)
        rates = (part.l2_bytes, part.l2_bytes_per_second, part.pcie_bytes_per_second)
        values[part.name] = [
            part.streaming_multiprocessors,
            part.memory_bytes,
            part.dram_bytes_per_second,
            overall(rates),
        ]
    kept("slices", values)
