"""Values and helpers of `base`: intervals, units, notes, timeouts and errors."""

import copy
import json
import math
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base import units
from lightning_predict.base.errors import LightningPredictError, UnknownGpuError
from lightning_predict.base.interval import Interval
from lightning_predict.base.note import Note, details, is_detail
from lightning_predict.base.timeout import BackgroundTask, run_with_timeout
from lightning_predict.kernels.operations import Array
from lightning_predict.uncertainty import interval_of_maximum

STEP = Interval(4.0, 5.0, 7.0)


def test_interval_is_scaled_added_clamped_and_widened_end_by_end() -> None:
    assert STEP.scaled(2.0) == Interval(8.0, 10.0, 14.0)
    assert STEP.added(1.0) == Interval(5.0, 6.0, 8.0)
    assert STEP.added(Interval(1.0, 2.0, 4.0)) == Interval(5.0, 7.0, 11.0)
    assert STEP.contains(4.0)
    assert not STEP.contains(7.1)
    assert STEP.clamp_max(6.0) == Interval(4.0, 5.0, 6.0)
    assert STEP.clamp_max(3.0) == Interval(3.0, 3.0, 3.0)
    assert STEP.clamp_max(9.0) == STEP
    assert STEP.clamp_min(4.5) == Interval(4.5, 5.0, 7.0)
    assert Interval.from_factor(10.0, 2.0) == Interval(5.0, 10.0, 20.0)
    assert Interval(4.0, 10.0, 30.0).widened(2.0) == Interval(2.0, 10.0, 60.0)
    assert Interval(1.0, 2.0, 3.0).map(max, Interval.from_factor(2.0, 2.0)) == Interval(1.0, 2.0, 4.0)


def test_arrays_are_changed_number_by_number() -> None:
    both = Interval(np.array([1.0, 4.0]), np.array([2.0, 5.0]), np.array([3.0, 7.0]))
    limited = both.scaled(np.array([1.0, 2.0])).added(1.0).clamp_min(3.0).clamp_max(9.0)
    # The first: 1, 2, 3 -> 2, 3, 4 -> 3, 3, 4. The second: 8, 10, 14 -> 9, 11, 15 -> 9, 9, 9.
    assert [end.tolist() for end in (limited.low, limited.middle, limited.high)] == [[3, 9], [3, 9], [4, 9]]


def array(*ends: float) -> Interval[Array]:
    return Interval(*(np.array([float(end)]) for end in ends))


def later(one: tuple[float, float, float], other: tuple[float, float, float]) -> list[float]:
    return [float(end[0]) for end in interval_of_maximum(array(*one), array(*other))]


def test_maximum_of_intervals_is_above_equal_ones_and_ignores_lower_ones() -> None:
    # Both by t in 5 %: each in 22.4 %, at odds of 0.288 = 19^-0.4227; in 95 %: each in 97.47 %, 38.5 = 19^1.2398.
    assert later((0.5, 1, 2), (0.5, 1, 2)) == pytest.approx([0.5**0.4227, 2**1.2398], rel=1e-3)
    for early in ((1.0, 2.0, 4.0), (0.0, 0.0, 0.0)):
        assert later(early, (4.0, 5.0, 7.0)) == later((4.0, 5.0, 7.0), early) == [4.0, 7.0]
    low, high = later((5.0, 5.0, 5.0), (4.0, 6.0, 8.0))
    assert low == pytest.approx(5, rel=1e-3)
    assert high == pytest.approx(8, rel=1e-3)


def test_maximum_is_at_least_each_interval_at_each_end() -> None:
    random = np.random.default_rng(1)
    middle = random.uniform(1, 2, (2, 100))
    one, other = (Interval(own / random.uniform(1.1, 3, 100), own, own * random.uniform(1.1, 3, 100)) for own in middle)
    low, high = interval_of_maximum(one, other)
    assert (low >= np.maximum(one.low, other.low) * (1 - 1e-6)).all()
    assert (high >= np.maximum(one.high, other.high) * (1 - 1e-6)).all()
    assert (low <= np.maximum(one.middle, other.middle)).all()
    assert (high <= 1.3 * np.maximum(one.high, other.high)).all()


VALUES = st.floats(1e-9, 1e12)


@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        (units.nanoseconds_to_seconds(5e8), 0.5),
        (units.seconds_to_milliseconds(0.25), 250),
        (units.seconds_to_microseconds(0.25), 250_000),
        (units.seconds_to_hours(5400), 1.5),
        (units.gibibytes_to_bytes(2), 2 * 1024**3),
        (units.mebibytes_to_bytes(2), 2 * 1024**2),
        (units.kibibytes_to_bytes(2), 2 * 1024),
        (units.teraflops_to_flops(1.5), 1.5e12),
        (units.gigabytes_to_bytes(1.5), 1.5e9),
        (units.megahertz_to_hertz(1.5), 1.5e6),
    ],
)
def test_conversions_by_hand(given_value: float, expected: float) -> None:
    assert given_value == expected


@given(VALUES)
def test_unit_conversions_are_inverse(value: float) -> None:
    assert math.isclose(units.milliseconds_to_seconds(units.seconds_to_milliseconds(value)), value)
    assert math.isclose(units.microseconds_to_seconds(units.seconds_to_microseconds(value)), value)
    assert math.isclose(units.hours_to_seconds(units.seconds_to_hours(value)), value)
    assert math.isclose(units.bytes_to_gibibytes(units.gibibytes_to_bytes(value)), value)


def test_note_is_its_sentence_and_stays_a_detail_in_copies() -> None:
    note = Note("cudnn.benchmark is off.", is_detail=True)
    assert note == "cudnn.benchmark is off."
    assert "benchmark" in note
    assert json.dumps([note]) == '["cudnn.benchmark is off."]'
    assert repr(note) == "'cudnn.benchmark is off.'"
    (note,) = details(["no decision"])
    assert is_detail(note)
    assert is_detail(copy.deepcopy(note))
    assert is_detail(pickle.loads(pickle.dumps(note)))
    assert not is_detail("a decision")
    assert not is_detail(Note("a decision"))


def test_timeout_returns_the_result_or_the_original_error() -> None:
    assert run_with_timeout(5.0, lambda: [1, 2]) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        run_with_timeout(5.0, lambda: 1 / 0)
    done = threading.Event()
    background = BackgroundTask(lambda: done.wait(60))
    assert not background.is_done()
    done.set()
    assert background.is_done(wait_seconds=30)
    assert background.result() is True


def test_call_beyond_the_timeout_is_abandoned() -> None:
    goes_on, is_done = threading.Event(), threading.Event()

    def takes_long() -> None:
        goes_on.wait()
        is_done.set()

    with pytest.raises(TimeoutError, match=r"not done within 0\.05 s"):
        run_with_timeout(0.05, takes_long)
    assert not is_done.is_set()
    goes_on.set()
    is_done.wait()


def test_escape_sequences_of_a_terminal_are_shown_as_their_codes() -> None:
    for error in (LightningPredictError, UnknownGpuError):
        assert str(error("GPU \x1b[31mT4\x07\nline")) == r"GPU \x1b[31mT4\x07" + "\nline"
