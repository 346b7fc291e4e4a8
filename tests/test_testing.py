import pytest

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.testing import SMALL_GPU, Clock, example_offer, example_prediction, example_trace, with_values


def test_example_trace_predicts_and_clock_and_values_change_on_request() -> None:
    prediction = lp.predict(example_trace(), gpus=[SMALL_GPU], history=False)["SMALL"]
    # Three products of 2 x 512^3 FLOPs at 1 TFLOP/s take 0.81 ms at least.
    assert prediction.device_seconds >= 3 * 2 * 512**3 / 1e12
    assert prediction.gpu == "SMALL"
    prediction = with_values(example_prediction("T4"), cost_usd=1.12, iteration=Interval(0.4, 0.5, 0.6))
    assert (prediction.cost_usd, prediction.iteration_seconds_high) == (1.12, 0.6)
    with pytest.raises(InvalidArgumentError, match=r"A prediction has no colour; give names of its values\."):
        with_values(prediction, colour=1)
    clock = Clock()
    clock.advance(2.5)
    assert clock() == 2.5


def test_offers_are_a_price_list() -> None:
    prediction = lp.predict(
        example_trace(samples=16),
        gpus=["T4"],
        iterations=1000,
        offers=[example_offer("T4", 0.35), example_offer("L4", 0.7)],
        history=False,
    )["T4"]
    assert prediction.usd_per_hour == 0.35
