"""Prices, energy and goodput of layouts."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Final

from lightning_predict.cost.energy import energy
from lightning_predict.cost.memory import memory_need
from lightning_predict.cost.offers import cheapest_offer, load_offers, offers_for
from lightning_predict.cost.prediction import Charges, Price, price_of
from lightning_predict.cost.price_files import GPUS_OF_G2_VCPUS
from lightning_predict.extensions.parallel.goodput import Reliability, goodput_of
from lightning_predict.gpus import gpu
from lightning_predict.gpus.layouts import layout_of
from lightning_predict.interval import Interval
from lightning_predict.run.workload import Run
from tests.kept import Kept, numbers

LAYOUTS: Final = ("T4", "3xT4", "8xA100-SXM-80GB", "2x8xH100-SXM-80GB", "p4d.24xlarge", "RTX 4090")


def test_prices(kept: Kept) -> None:
    run = Run(
        gpu="T4", training_seconds=7000.0, validation_seconds=200.0, total=Interval(6e3, 7.2e3, 9e3), cycle_seconds=1
    )
    found = {}
    for name in LAYOUTS:
        layout = layout_of(name)
        charges = Charges(setup_minutes=20, storage_usd=3)
        found[name] = numbers(
            [
                price_of(run, layout),
                _undated(price_of(run, layout, usd_per_hour=1.7)),
                _undated(price_of(run, layout, usd_per_hour={layout.gpu.name: 0.9}, charges=charges)),
                len(offers_for(layout.gpu.name)),
                [cheapest_offer(layout.gpu.name, num_gpus=count) for count in (1, 3, 8)],
            ]
        )
    found["g2-standard"] = numbers(GPUS_OF_G2_VCPUS)
    found["offers"] = [len(load_offers()), sum(one.usd_per_gpu_hour for one in load_offers())]
    kept("prices", found)


def _undated(price: Price) -> Price:
    """Drop the day of a price of the user's, which is the day of the test."""
    assert price.priced_on == date.today().isoformat()
    return replace(price, priced_on=None)


def test_energy(kept: Kept) -> None:
    found = {
        f"{name}, {busy}": numbers(
            energy(5000.0, gpu(name), busy_share=busy, num_gpus=3, grid_grams_per_kwh=380, overhead=1.2)
        )
        for name in ("T4", "H100-SXM-80GB")
        for busy in (0.0, 0.6, 1.0)
    }
    kept("energy", found)


def test_goodput(kept: Kept) -> None:
    machines = (Reliability(), Reliability(mtbf_hours=300.0, checkpoint_gbps=0.7, restart_minutes=31.0))
    found = {
        f"{size:g} bytes on {count}, {number}": numbers(goodput_of(size, count, one))
        for number, one in enumerate(machines)
        for size in (0.0, 3e9, 2e12)
        for count in (1, 256, 16384)
    }
    kept("goodput", found)


def test_memory(kept: Kept) -> None:
    found = {}
    for name in ("L4", "8xL4"):
        for size in (1e9, 19e9, 21e9, 23e9, 30e9):
            need = memory_need(
                layout_of(name), size, spare_bytes=size / 9, allocated_bytes=size * 0.9, reported_bytes=23e9
            )
            found[f"{size:g} on {name}"] = [*numbers(need), need.fits, need.usable_bytes]
    kept("memory", found)
