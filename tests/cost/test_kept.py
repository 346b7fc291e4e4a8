"""Prices, energy and goodput of layouts."""

from __future__ import annotations

from typing import Final

from lightning_predict.base.interval import Interval
from lightning_predict.cost.energy import energy
from lightning_predict.cost.offers import load_offers
from lightning_predict.cost.prediction import Charges, price_of
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.layout_search.goodput import Reliability, goodput_of
from lightning_predict.memory.step_memory import memory_need
from lightning_predict.run.workload import Run
from tests.kept import Kept, numbers

LAYOUTS: Final = ("T4", "3xT4", "8xA100-SXM-80GB", "2x8xH100-SXM-80GB", "p4d.24xlarge", "RTX 4090")


def test_prices(kept: Kept) -> None:
    run = Run(
        gpu="T4", training_seconds=7000.0, validation_seconds=200.0, total=Interval(6e3, 7.2e3, 9e3), cycle_seconds=1
    )
    charges = Charges(setup_minutes=20, storage_usd=3)
    found: dict[str, object] = {}
    for layout in map(layout_of, LAYOUTS):
        listed, own = price_of(run, layout), price_of(run, layout, usd_per_hour=1.7, charges=charges)
        found[layout.name] = [listed.usd_per_hour, listed.cost_usd, own.cost_usd]
    found["offers"] = [len(load_offers()), sum(one.usd_per_gpu_hour for one in load_offers())]
    kept("prices", found)


def test_energy(kept: Kept) -> None:
    found = {
        f"{name}, {busy}": energy(5000.0, gpu(name), busy_share=busy, num_gpus=3, overhead=1.2).kilowatt_hours
        for name in ("T4", "H100-SXM-80GB")
        for busy in (0.0, 0.6)
    }
    kept("energy", found)


def test_goodput(kept: Kept) -> None:
    machines = (Reliability(), Reliability(mtbf_hours=300.0, checkpoint_gbps=0.7, restart_minutes=31.0))
    sizes = {"small": (3e9, 256), "large": (2e12, 16384)}
    found = {
        word: [part for one in machines for part in numbers(goodput_of(*size, one))[:2]] for word, size in sizes.items()
    }
    kept("goodput", found)


def test_memory(kept: Kept) -> None:
    found = {}
    for size in (1e9, 21e9, 23e9):
        need = memory_need(
            layout_of("L4"), size, releasable_bytes=size / 9, allocated_bytes=size * 0.9, reported_bytes=23e9
        )
        found[f"{size:g}"] = [need.memory_free_bytes, need.fit_probability, need.usable_bytes]
    kept("memory", found)
