"""From a step, its run and its price to one flat record."""

from __future__ import annotations

import pytest

from lightning_predict.cost.flat import prediction_of
from lightning_predict.cost.quotes import quote_of
from lightning_predict.gpus import gpu
from lightning_predict.gpus.layouts import Layout
from lightning_predict.scaling.records import Workload
from lightning_predict.scaling.totals import run_of
from lightning_predict.timeline.records import Iteration
from lightning_predict.timeline.same_gpu import SameGpuCheck

STEP = Iteration(
    gpu="2xT4",
    seconds=0.5,
    low_seconds=0.4,
    high_seconds=0.6,
    device_seconds=0.4,
    host_seconds=0.1,
    coverage={"mlp": 1.0},
    communication_seconds=0.3,
    added_seconds=0.1,
)
LAYOUT = Layout(gpu("T4"), 2)


def test_every_part_finds_its_place() -> None:
    workload = Workload(training_iterations=7200, samples_per_iteration=16)
    run = run_of(STEP, workload)
    quote = quote_of(run, LAYOUT, memory_bytes=2**30, usd_per_hour=0.25)
    check = SameGpuCheck(gpu="2xT4", measured_seconds=0.5, predicted_seconds=0.45, bound_by="device")
    found = prediction_of(
        STEP, run, quote, workload=workload, layout=LAYOUT, replicas=2, measured_seconds=0.5, same_gpu=check
    )
    assert (found.gpu, found.num_gpus, found.communication_seconds, found.added_seconds) == ("2xT4", 2, 0.3, 0.1)
    assert (found.iterations, found.total_seconds) == (7200, 3600)
    assert found.cost_usd == 0.5  # an hour of two GPUs
    assert found.samples_per_second == pytest.approx(2 * 16 / 0.5)
    assert (found.measured_seconds, found.unmeasured_seconds) == (0.5, 0.45)
    assert found.as_dict()["coverage"] == {"mlp": 1.0}


def test_what_is_not_known_is_none() -> None:
    workload = Workload()
    run = run_of(STEP, workload)
    quote = quote_of(run, LAYOUT, memory_bytes=None, offers=[])
    found = prediction_of(STEP, run, quote, workload=workload, layout=LAYOUT)
    assert (found.total_seconds, found.cost_usd, found.samples_per_second, found.fits) == (None, None, None, None)
    assert found.unmeasured_seconds is None
