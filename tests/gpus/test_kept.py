"""What follows from the row of a GPU: its generation, its rates, its slices, and the smallest step on it."""

from __future__ import annotations

from typing import Final

import lightning_predict as lp
from lightning_predict.gpus import gpu, gpu_names
from lightning_predict.gpus.records import Gpu
from lightning_predict.gpus.slices import slice_of
from lightning_predict.kernels.operations import COMPUTE_BYTES
from lightning_predict.testing import example_trace
from tests.kept import Kept, numbers

SLICES: Final = {"A100-SXM-80GB": "3g.40gb", "H100-SXM-80GB": "1g.10gb"}


def newest() -> list[Gpu]:
    """One GPU of each generation."""
    gpus = map(gpu, gpu_names())
    return list({(one.ruled_by, one.compute_capability): one for one in gpus}.values())


def test_rates(kept: Kept) -> None:
    found = {}
    for one in newest():
        rates = [(one.peak(dtype), one.lanes_peak(dtype), one.ridge_flops_per_byte(dtype)) for dtype in COMPUTE_BYTES]
        found[one.name] = [one.overclock, *numbers(rates)]
    kept("rates", found)


def test_generations(kept: Kept) -> None:
    kept("generations", {one.name: numbers(one.generation) for one in newest()})


def test_slices(kept: Kept) -> None:
    found = {}
    for name, profile in SLICES.items():
        part = slice_of(gpu(name), profile)
        found[part.name] = [
            part.streaming_multiprocessors,
            part.memory_bytes,
            part.l2_bytes,
            part.l2_bytes_per_second,
            part.dram_bytes_per_second,
            part.pcie_bytes_per_second,
            *part.peak_flops_per_second.values(),
        ]
    kept("slices", found)


def test_the_smallest_step(kept: Kept) -> None:
    predictions = lp.predict(example_trace(64), gpus=newest(), history=False)
    kept("smallest step", {name: numbers(one.iteration) for name, one in predictions.items()})
