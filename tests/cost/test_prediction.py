"""A run at a price, and a step, its run and its price in one Prediction."""

import copy
import json
import math
import pickle
from dataclasses import replace
from datetime import date

import pytest

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import FIELDS, Charges, Prediction, check_price, offer_for, price_of
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.memory.step_memory import memory_need
from lightning_predict.run.workload import Run, Workload, predict_run
from lightning_predict.timeline.step_prediction import StepPrediction

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


def test_run_costs_its_hours_times_the_users_or_the_offers_price() -> None:
    price = price_of(TWO_HOURS, T4, offers=[OFFER])
    assert (price.usd_per_hour, price.cost_usd) == (2.0, 4.0)
    assert price_of(TWO_HOURS, T4, offers=[OFFER], usd_per_hour=3.0).cost_usd == 6.0
    by_name = price_of(TWO_HOURS, T4, offers=[OFFER], usd_per_hour={"T4": 4.0})
    assert (by_name.cost_usd, by_name.offer) == (8.0, "your own price")
    assert by_name.priced_on == date.today().isoformat()
    assert offer_for(T4, offers=[OFFER], usd_per_hour={"L4": 4.0}) is OFFER
    nothing = price_of(TWO_HOURS, T4, offers=[])
    assert (nothing.usd_per_hour, nothing.cost_usd, nothing.offer) == (None, None, None)
    assert price_of(UNKNOWN, T4, offers=[OFFER]).cost_usd is None


def test_charges_add_to_cost_of_run() -> None:
    # Two hours and 30 minutes at $2 an hour, and $1.50.
    charges = Charges(setup_minutes=30, storage_usd=1.5)
    assert price_of(TWO_HOURS, T4, offers=[OFFER], charges=charges).cost_usd == pytest.approx(6.5)
    assert charges.sentence == ("Costs of other GPUs include 30 min of setup and $1.50 for storage and transfer.")
    assert price_of(TWO_HOURS, T4, offers=[OFFER], charges=Charges(minimum_minutes=180)).cost_usd == 6.0
    assert price_of(TWO_HOURS, T4, offers=[OFFER], charges=Charges(minimum_minutes=60)).cost_usd == 4.0
    assert Charges().sentence is None
    three = Charges(setup_minutes=20, storage_usd=3, minimum_minutes=60).sentence
    assert three is not None
    assert three.endswith("20 min of setup, $3.00 for storage and transfer and at least 60 min of each machine.")
    with pytest.raises(InvalidArgumentError, match="storage_usd=-1 is out of range; expected a number of at least 0"):
        Charges(storage_usd=-1)


@pytest.mark.parametrize("price", [0.0, -1.0, math.inf, math.nan, {"T4": -2.0}])
def test_a_price_must_be_above_zero(price: float | dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is not a price; expected US dollars per hour above 0\."):
        check_price(price)
    check_price(None)
    check_price({"T4": 0.3})


STEP = StepPrediction(
    gpu="2xT4",
    interval=Interval(0.4, 0.5, 0.6),
    device_seconds=0.4,
    host_seconds=0.1,
    coverage={"mlp": 1.0},
    communication_seconds=0.3,
    added_seconds=0.1,
)
LAYOUT = Layout(gpu("T4"), 2)


def test_every_part_has_its_values_by_flat_names() -> None:
    run = predict_run(STEP, Workload(training_iterations=7200, samples_per_iteration=16), replicas=2)
    step = replace(STEP, measured_seconds=0.5, unmeasured_seconds=0.45)
    found = Prediction(LAYOUT, step, run, price_of(run, LAYOUT, usd_per_hour=0.25), memory_need(LAYOUT, 2**30))
    assert (found.gpu, found.num_gpus, found.communication_seconds, found.added_seconds) == ("2xT4", 2, 0.3, 0.1)
    assert (found.iterations, found.total_seconds) == (7200, 3600)
    assert found.cost_usd == 0.5  # an hour of two GPUs
    assert found.samples_per_second == pytest.approx(2 * 16 / 0.5)
    assert (found.measured_seconds, found.unmeasured_seconds) == (0.5, 0.45)
    assert (found.memory_bytes, found.fits, found.memory_fit) == (2**30, True, "fits")
    values = found.as_dict()
    seconds = ("iteration_seconds", "iteration_seconds_low", "iteration_seconds_high")
    assert [values[name] for name in seconds] == [found.iteration.middle, found.iteration.low, found.iteration.high]
    assert (values["total_seconds"], values["total_seconds_low"]) == (found.total_seconds, found.total_seconds_low)
    assert not {"iteration", "total"} & values.keys()
    assert values["coverage"] == {"mlp": 1.0}
    assert json.loads(json.dumps(values)) == values


def test_unknown_values_have_no_number_and_each_value_a_description() -> None:
    run = predict_run(STEP, Workload())
    found = Prediction(LAYOUT, STEP, run, price_of(run, LAYOUT, offers=[]), memory_need(LAYOUT, None))
    assert (found.total_seconds, found.cost_usd, found.samples_per_second, found.fits) == (None, None, None, None)
    assert found.unmeasured_seconds is None
    assert all(row.__doc__ for row in FIELDS)
    keys = [row.log for row in FIELDS if row.log is not None]
    assert len(keys) == len(set(keys))


def test_json_has_every_value_except_intervals_and_predictions_can_be_copied() -> None:
    run = predict_run(STEP, Workload(training_iterations=10))
    prediction = Prediction(LAYOUT, STEP, run, price_of(run, LAYOUT), memory_need(LAYOUT, 1e9))
    sizes = {f"{name}_bytes{end}" for name in ("allocated", "reserved", "process") for end in ("", "_low", "_high")}
    others = {"iteration", "cycle", "total", "remaining", "energy", "process"}
    assert {row.name for row in FIELDS} - others | sizes == set(prediction.as_dict())
    assert not any(isinstance(value, property) for value in vars(Prediction).values())
    assert pickle.loads(pickle.dumps(prediction)) == prediction == copy.deepcopy(prediction)
