from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.training.tables import MOST_LAUNCH, SHORTEST_SECONDS, growing_launch, without_launch


def test_the_launch_runs_straight_between_the_calls_that_no_later_one_undercuts() -> None:
    # 2 (row 1) and 6 (row 5) are undercut by nothing below them: 2, 3, 4, 5, 6 between; flat above row 1.
    assert growing_launch(np.array([9.0, 2.0, 8.0, 7.0, 9.0, 6.0])).tolist() == [2.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@given(st.lists(st.floats(min_value=1e-5, max_value=1.0), min_size=1, max_size=50))
def test_the_launch_only_grows_and_exceeds_no_call(times: list[float]) -> None:
    seconds = np.array(times)
    launch = growing_launch(seconds)
    assert (np.diff(launch) >= -1e-12).all()
    assert (launch <= seconds).all()


def test_a_linear_growth_is_found_from_random_calls() -> None:
    generator = np.random.default_rng(0)
    launch = np.linspace(0.1e-3, 0.8e-3, 4000)
    device = np.exp(generator.uniform(np.log(10e-6), np.log(10e-3), 4000))
    found, clear = without_launch(launch + device)
    assert abs(np.median(found[clear] / device[clear]) - 1) < 0.01
    assert np.quantile(np.abs(found[clear] / device[clear] - 1), 0.9) < 0.1
    assert np.median((launch + device)[clear] / device[clear]) > 1.2  # the value if the launch counted


def test_calls_that_are_mostly_launch_are_left_out_and_none_takes_less_than_the_shortest() -> None:
    seconds, clear = without_launch(np.array([1e-3, 1.2e-3, 4e-3, 1.1e-3]))
    # The launch is 1, 1.0333, 1.0667 and 1.1 ms: of 1.2 ms that is 86 %, of 4 ms 27 %.
    assert clear.tolist() == [False, False, True, False]
    assert seconds[2] == pytest.approx(4e-3 - 1.06667e-3 + SHORTEST_SECONDS, rel=1e-4)
    assert seconds[0] == pytest.approx(SHORTEST_SECONDS)
    assert 0.27 < MOST_LAUNCH < 0.86
