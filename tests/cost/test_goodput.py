"""What failures and checkpoints leave of a run: limits by hand, and a run that is drawn."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.layout_search.goodput import PUBLISHED_MTBF_HOURS, Reliability, goodput_of


def test_the_best_interval_is_youngs_where_checkpoints_are_short() -> None:
    # A second of 1e6 between failures: sqrt(2 x 1 x 1e6) = 1,414 s, and 1 / 1414 + 1414 / 2e6 = 0.14 % are lost.
    goodput = goodput_of(1e9, 1, Reliability(mtbf_hours=1e6 / 3600, checkpoint_gbps=1, restart_minutes=1e-6))
    assert goodput.checkpoint_seconds == 1.0
    assert goodput.interval_seconds == pytest.approx(math.sqrt(2e6), rel=1e-3)
    assert 1 - goodput.share == pytest.approx(1 / math.sqrt(2e6) + math.sqrt(2e6) / 2e6, rel=0.01)


def test_published_failures_and_instant_checkpoints_by_hand() -> None:
    # As published of the training of Llama 3.
    goodput = goodput_of(1e12, 16_384, Reliability())
    assert goodput.failure_seconds / 3600 == pytest.approx(3.1, abs=0.05)
    assert pytest.approx(50_700, rel=0.01) == PUBLISHED_MTBF_HOURS
    assert 0.8 < goodput.share < 0.95  # more than 90 % of effective training time there, of faster checkpoints
    # A restart of 36 s each hour is all that is lost: exp(-0.01) of the time is left.
    goodput = goodput_of(0.0, 1, Reliability(mtbf_hours=1, checkpoint_gbps=1, restart_minutes=0.6))
    assert goodput.share == pytest.approx(math.exp(-0.01), rel=1e-5)


def test_a_drawn_run_takes_as_long() -> None:
    reliability = Reliability(mtbf_hours=100, checkpoint_gbps=1, restart_minutes=10)
    goodput = goodput_of(120e9, 20, reliability)  # two minutes a checkpoint, a failure every five hours
    draw = random.Random(0)
    clock, done, intervals = 0.0, 0, 20_000
    rate = 1 / goodput.failure_seconds
    while done < intervals:
        segment = goodput.interval_seconds + goodput.checkpoint_seconds
        failure = draw.expovariate(rate)
        if failure >= segment:
            clock, done = clock + segment, done + 1
            continue
        clock += failure
        while (again := draw.expovariate(rate)) < 600:  # fails while it starts again, too
            clock += again
        clock += 600
    assert goodput.share == pytest.approx(intervals * goodput.interval_seconds / clock, rel=0.01)


@given(st.floats(1e9, 1e13), st.integers(1, 20_000), st.floats(0.5, 2))
def test_no_other_interval_is_better_and_more_gpus_are_worse(size: float, gpus: int, factor: float) -> None:
    reliability = Reliability()
    goodput = goodput_of(size, gpus, reliability)
    assert 0 < goodput.share < 1
    assert goodput_of(size, 2 * gpus, reliability).share <= goodput.share

    def wall(interval: float) -> float:
        return math.expm1((interval + goodput.checkpoint_seconds) / goodput.failure_seconds) / interval

    assert wall(goodput.interval_seconds) <= wall(factor * goodput.interval_seconds) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["mtbf_hours", "checkpoint_gbps", "restart_minutes"])
def test_reliability_rejects_values_not_above_0(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name}=0; expected a number above 0"):
        Reliability(**{name: 0})


def test_a_budget_pays_for_failures_and_checkpoints_too() -> None:
    from lightning_predict.layout_search.ranking import best_layouts
    from tests.test_prediction_on_layouts import TRACE

    plain = best_layouts(TRACE, ["8xL4"], iterations=10**8, usd_per_hour=1.0, count=1)[0]
    rare = Reliability(mtbf_hours=100, checkpoint_gbps=0.01)
    best = best_layouts(TRACE, ["8xL4"], iterations=10**8, usd_per_hour=1.0, count=1, reliability=rare)[0]
    # Parameters and Adam's two moments, 192 MiB; a GPU of eight fails every 12.5 hours.
    assert best.goodput is not None
    assert (best.goodput.checkpoint_bytes, best.goodput.failure_seconds) == (3 * 2**26, 12.5 * 3600)
    assert plain.cost_usd is not None
    assert best.cost_usd is not None
    assert best.cost_usd == pytest.approx(plain.cost_usd / best.goodput.share)
    between = (plain.cost_usd + best.cost_usd) / 2
    with pytest.raises(InvalidArgumentError, match="pays for no strategy that fits"):
        best_layouts(TRACE, ["8xL4"], iterations=10**8, usd_per_hour=1.0, count=1, reliability=rare, budget_usd=between)
