import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.fit.recorder import (
    EXTRA_WARMUP_WINDOWS,
    MOST_NODE_COUNTS,
    UNSEEN_STEPS_PATIENCE,
    Kind,
    Window,
    WindowWatch,
    due,
    kinds_of,
    next_action,
    shares_of_kinds,
    steady_seconds,
)


def test_every_batch_that_steps_is_a_window() -> None:
    watch = WindowWatch()
    watch.batch_starts(10.0)
    first = watch.batch_ends(10.5, optimizer_steps_done=1, samples=8)
    watch.batch_starts(10.75)
    second = watch.batch_ends(11.0, optimizer_steps_done=2, samples=8)

    assert first == Window(seconds=0.5, loader_seconds=(), batches=1, optimizer_steps=1, samples=8)
    # The wait from 10.5 to 10.75 comes before the second batch.
    assert second is not None
    assert second == Window(seconds=0.25, loader_seconds=(0.25,), batches=1, optimizer_steps=1, samples=8)
    assert second.interval_seconds == 0.25 + 0.25
    assert (watch.batches_seen, watch.windows_seen) == (2, 2)


def test_accumulated_batches_add_up_without_the_waits_between_them() -> None:
    watch = WindowWatch(optimizer_steps_done=5)
    between_windows = [watch.between_windows]
    watch.batch_starts(0.0)
    assert watch.batch_ends(1.0, optimizer_steps_done=5, samples=4) is None
    between_windows.append(watch.between_windows)
    watch.batch_starts(3.0)
    window = watch.batch_ends(4.0, optimizer_steps_done=6, samples=2)
    between_windows.append(watch.between_windows)

    assert between_windows == [True, False, True]
    assert window is not None
    assert window == Window(seconds=2.0, loader_seconds=(2.0,), batches=2, optimizer_steps=1, samples=6)
    assert window.interval_seconds == 2.0 + 2 * 2.0  # two batches, each with the one wait that was seen


def test_a_window_of_two_optimizers_counts_two_steps() -> None:
    watch = WindowWatch()
    for batch in range(3):
        watch.batch_starts(float(batch))
        window = watch.batch_ends(batch + 0.5, optimizer_steps_done=2 * (batch + 1))
        assert window is not None
        assert window.optimizer_steps == 2
    assert watch.steps_per_window == 2.0


def test_a_batch_of_unknown_size_makes_the_samples_unknown() -> None:
    watch = WindowWatch()
    watch.batch_starts(0.0)
    watch.batch_ends(1.0, optimizer_steps_done=0, samples=None)
    watch.batch_starts(1.0)
    window = watch.batch_ends(2.0, optimizer_steps_done=1, samples=3)
    assert window is not None
    assert window.samples is None


def test_a_pause_is_not_a_wait_for_the_loader() -> None:
    watch = WindowWatch()
    watch.batch_starts(0.0)
    watch.batch_ends(1.0, optimizer_steps_done=1)
    watch.pause()
    watch.batch_starts(100.0)
    window = watch.batch_ends(101.0, optimizer_steps_done=2)
    assert window is not None
    assert window.loader_seconds == ()


def test_batches_whose_optimizers_lightning_does_not_see_become_windows_of_one() -> None:
    watch = WindowWatch()
    closed = []
    for batch in range(UNSEEN_STEPS_PATIENCE + 3):
        watch.batch_starts(float(batch))
        closed.append(watch.batch_ends(batch + 0.5, optimizer_steps_done=0))
    assert closed[:UNSEEN_STEPS_PATIENCE] == [None] * UNSEEN_STEPS_PATIENCE
    assert [window.batches for window in closed[UNSEEN_STEPS_PATIENCE:] if window is not None] == [1, 1, 1]
    assert watch.steps_per_window == 1.0


def test_a_batch_end_without_a_start_is_ignored() -> None:
    assert WindowWatch().batch_ends(1.0, optimizer_steps_done=1) is None


@pytest.mark.parametrize(
    ("seconds", "full_windows_after", "is_short", "expected"),
    [
        ([], 99, False, "time"),
        ([1.0], 99, False, "time"),
        ([1.0, 1.0, 1.0], 99, False, "record"),
        ([1.0, 1.0, 1.0], None, False, "record"),
        # Compilation in the first window leaves the later ones alone.
        ([30.0, 1.0, 1.0], 99, False, "record"),
        # The last one recompiled: 2.0 > 1.5 x 1.0, so another one is timed.
        ([1.0, 1.0, 2.0], 99, False, "time"),
        ([1.0, 1.0, 2.0, 1.0], 99, False, "record"),
        # The short window at the end of an epoch is neither timed nor recorded while others follow.
        ([], 99, True, "skip"),
        ([1.0, 1.0, 1.0], 1, True, "skip"),
        # Short runs: the last full window is recorded, or a short one where no full one follows.
        ([1.0], 0, False, "record"),
        ([1.0, 1.0, 2.0], 0, False, "record"),
        ([1.0], 0, True, "record"),
        # A run of one window: that one may compile and is never recorded.
        ([], 0, False, "time"),
        ([], 0, True, "time"),
    ],
)
def test_what_is_done_with_a_window(
    seconds: list[float], full_windows_after: int | None, is_short: bool, expected: str
) -> None:
    action = next_action(
        seconds, warmup_steps=3, records_wanted=1, full_windows_after=full_windows_after, is_short=is_short
    )
    assert action == expected


def test_several_records_need_as_many_windows_at_the_end() -> None:
    # Two are wanted: with this one and one more to come, recording begins now.
    assert next_action([1.0], warmup_steps=3, records_wanted=2, full_windows_after=1, is_short=False) == "record"
    assert next_action([1.0], warmup_steps=3, records_wanted=2, full_windows_after=2, is_short=False) == "time"


@given(st.integers(1, 5))
def test_a_warmup_that_never_settles_ends_nevertheless(warmup_steps: int) -> None:
    seconds = [1.0]
    while (
        next_action(seconds, warmup_steps=warmup_steps, records_wanted=1, full_windows_after=None, is_short=False)
        == "time"
        and len(seconds) < 100
    ):
        seconds.append(seconds[-1] * 2)
    assert len(seconds) <= warmup_steps + EXTRA_WARMUP_WINDOWS


@pytest.mark.parametrize(
    ("seconds", "steady"),
    [
        ([], ()),
        ([3.0], (3.0,)),
        ([30.0, 1.0, 1.0], (1.0, 1.0)),
        ([30.0, 5.0, 1.0, 1.1], (1.0, 1.1)),
        ([1.0, 1.4, 1.0], (1.0, 1.4, 1.0)),
        # Only what is slow at the beginning is warm-up; later slow steps belong to the run.
        ([1.0, 9.0, 1.0], (1.0, 9.0, 1.0)),
        ([30.0, 1.0], (1.0,)),
    ],
)
def test_steady_seconds(seconds: list[float], steady: tuple[float, ...]) -> None:
    assert steady_seconds(seconds) == steady


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=20))
def test_steady_seconds_are_the_end_of_the_list(seconds: list[float]) -> None:
    steady = steady_seconds(seconds)
    assert 1 <= len(steady) <= len(seconds)
    assert list(steady) == seconds[-len(steady) :]


PLAIN, BOTH = (
    Kind(batches=1, optimizers=frozenset({0}), nodes=7),
    Kind(batches=1, optimizers=frozenset({0, 1}), nodes=9),
)


def kinds(text: str) -> list[Kind | None]:
    """One letter a window: p for plain, b for both, - for unknown."""
    return [{"p": PLAIN, "b": BOTH, "-": None}[letter] for letter in text]


@pytest.mark.parametrize(
    ("windows", "share"),
    [
        ("ppppb", 1 / 5),  # it came once: all windows count
        ("bppppb", 1 / 5),  # from the first, left out, to the second: p p p p b
        ("bpppp", 1 / 5),
        ("ppbppppbpp", 1 / 5),
        ("ppbppppbppppb", 2 / 10),
        ("-bpppp-ppb", 1 / 7),  # p p p p p p b
        ("bbpppp", 2 / 6),  # no other lies between the two of the rarest, so that all windows count
        ("pbpbpbp", 1 / 2),
    ],
)
def test_shares_are_counted_over_whole_periods(windows: str, share: float) -> None:
    found = shares_of_kinds(kinds(windows), [PLAIN, BOTH])
    assert found == {PLAIN: pytest.approx(1 - share), BOTH: pytest.approx(share)}


def test_windows_that_were_not_recorded_count_as_what_is_most_alike() -> None:
    odd = Kind(batches=1, optimizers=frozenset({0}), nodes=8)
    other = Kind(batches=2, optimizers=frozenset({1}), nodes=8)
    assert shares_of_kinds([odd, PLAIN, PLAIN, other], [PLAIN]) == {PLAIN: 1.0}


@pytest.mark.parametrize("period", range(1, 20))
def test_a_kind_is_due_when_the_shortest_time_between_two_has_passed(period: int) -> None:
    windows = kinds(("b" + "p" * (period - 1)) * 2)
    # The last came `period` windows before the next one.
    assert due(windows, BOTH)
    assert period == 1 or not due(windows[:-1], BOTH)


def test_a_kind_that_came_once_has_a_period_of_at_least_the_windows_until_then() -> None:
    # First seen as number 3, it comes every 4 windows or less often: next as number 7 at the earliest.
    assert not due(kinds("pppb" + "ppp")[:-1], BOTH)
    assert due(kinds("pppb" + "ppp"), BOTH)
    assert due(kinds("pppb" + "ppppp"), BOTH)
    assert due(kinds("b"), BOTH)


def test_graphs_that_vary_with_the_data_are_one_kind() -> None:
    few = [Kind(batches=1, nodes=count) for count in range(MOST_NODE_COUNTS)]
    assert kinds_of(few) == few
    many = [*few, Kind(batches=1, nodes=99), Kind(batches=2, nodes=99), None]
    assert kinds_of(many) == [Kind(batches=1)] * (MOST_NODE_COUNTS + 1) + [Kind(batches=2, nodes=99), None]


def test_a_window_is_compared_with_those_of_its_kind_only() -> None:
    # Three windows were timed, of which one is of the kind of the last: it has nothing to settle against.
    action = next_action(
        [9.0], windows_timed=3, warmup_steps=3, records_wanted=1, full_windows_after=99, is_short=False
    )
    assert action == "record"


def test_a_warmup_of_three_windows_that_never_settles_is_prolonged_by_five() -> None:
    slower = [float(2**number) for number in range(9)]
    actions = [
        next_action(slower[:timed], warmup_steps=3, records_wanted=1, full_windows_after=None, is_short=False)
        for timed in range(1, 10)
    ]
    assert actions == 7 * ["time"] + 2 * ["record"]  # 3 + 5 windows are timed
