"""A run at a price, and a step, its run and its price in one Prediction."""

from __future__ import annotations

import math
from datetime import date

import pytest

from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import check_price, offer_for, prediction_of, quote_of
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus import gpu
from lightning_predict.gpus.layouts import Layout
from lightning_predict.interval import Interval
from lightning_predict.run.totals import run_of
from lightning_predict.run.workload import Run, Workload
from lightning_predict.timeline.iteration import Iteration
from lightning_predict.timeline.same_gpu import SameGpuCheck

T4 = Layout(gpu("T4"))
TWO_HOURS = Run(
    gpu="T4",
    cycle_seconds=1,
    training_seconds=7200,
    validation_seconds=0,
    total=Interval(7000, 7200, 7500),
)
UNKNOWN = Run(
    gpu="T4",
    cycle_seconds=1,
    training_seconds=None,
    validation_seconds=None,
    total=None,
)
OFFER = Offer(
    provider="P", instance="four", gpu="T4", num_gpus=4, usd_per_hour=2.0, date="2026-01-01", source="https://p.example"
)


def test_a_run_costs_its_hours_times_the_price_of_the_whole_machine() -> None:
    quote = quote_of(TWO_HOURS, T4, memory_bytes=1e9, offers=[OFFER])
    assert (quote.usd_per_hour, quote.cost_usd) == (2.0, 4.0)
    assert quote.fits is True


def test_the_users_price_comes_first() -> None:
    assert quote_of(TWO_HOURS, T4, memory_bytes=None, offers=[OFFER], usd_per_hour=3.0).cost_usd == 6.0
    by_name = quote_of(TWO_HOURS, T4, memory_bytes=None, offers=[OFFER], usd_per_hour={"T4": 4.0})
    assert by_name.cost_usd == 8.0
    assert by_name.offer is not None
    assert by_name.offer.label == f"user own price ({date.today().isoformat()})"


def test_a_price_for_another_gpu_leaves_the_listed_offer() -> None:
    offer = offer_for(T4, offers=[OFFER], usd_per_hour={"L4": 4.0})
    assert offer is OFFER


def test_without_an_offer_or_a_length_the_cost_is_unknown() -> None:
    nothing = quote_of(TWO_HOURS, T4, memory_bytes=None, offers=[])
    assert (nothing.usd_per_hour, nothing.cost_usd, nothing.offer, nothing.fits) == (None, None, None, None)
    assert quote_of(UNKNOWN, T4, memory_bytes=None, offers=[OFFER]).cost_usd is None


@pytest.mark.parametrize("price", [0.0, -1.0, math.inf, math.nan, {"T4": -2.0}])
def test_a_price_must_be_above_zero(price: float | dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is not a price; expected US dollars per hour above 0\."):
        check_price(price)
    check_price(None)
    check_price({"T4": 0.3})


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
    values = found.as_dict()
    step = ("iteration_seconds", "iteration_seconds_low", "iteration_seconds_high")
    assert [values[name] for name in step] == [found.iteration.middle, found.iteration.low, found.iteration.high]
    assert (values["total_seconds"], values["total_seconds_low"]) == (found.total_seconds, found.total_seconds_low)
    assert not {"iteration", "total"} & values.keys()
    assert values["coverage"] == {"mlp": 1.0}


def test_what_is_not_known_is_none() -> None:
    workload = Workload()
    run = run_of(STEP, workload)
    quote = quote_of(run, LAYOUT, memory_bytes=None, offers=[])
    found = prediction_of(STEP, run, quote, workload=workload, layout=LAYOUT)
    assert (found.total_seconds, found.cost_usd, found.samples_per_second, found.fits) == (None, None, None, None)
    assert found.unmeasured_seconds is None
