import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.observe.optimizer_steps import (
    MAX_NODE_COUNTS,
    UNSEEN_STEPS_PATIENCE,
    StepCounter,
    StepKind,
    StepTimer,
    TimedStep,
    WindowSize,
    may_be_next,
    merge_varying_kinds,
    shares_of_kinds,
)
from lightning_predict.observe.recorder import EXTRA_WARMUP_WINDOWS, next_action
from tests.known import known


class Watch:
    """A count and a timer, told of batches."""

    def __init__(self, *, optimizer_steps_done: int = 0, is_manual: bool = False) -> None:
        self.count, self.timer = StepCounter(), StepTimer()
        self.count.start_training(optimizer_steps_done=optimizer_steps_done, is_manual=is_manual)

    def batch(self, start: float, end: float, *, steps: int, samples: int | None = None) -> TimedStep | None:
        self.timer.on_batch_start(start)
        self.count.on_batch_end(steps)
        return self.timer.on_batch_end(end, self.count, samples=samples)


def test_batches_that_step_are_windows_and_accumulated_ones_add_up() -> None:
    watch = Watch()
    first = watch.batch(10.0, 10.5, steps=1, samples=8)
    second = watch.batch(10.75, 11.0, steps=2, samples=8)

    assert first == TimedStep(seconds=0.5, loader_seconds=(), batches=1, optimizer_steps=1, samples=8)
    # The wait from 10.5 to 10.75 comes before the second batch.
    assert second == TimedStep(seconds=0.25, loader_seconds=(0.25,), batches=1, optimizer_steps=1, samples=8)
    assert (watch.count.batches, watch.count.windows) == (2, 2)
    watch = Watch(optimizer_steps_done=5)
    between_windows = [watch.count.between_windows]
    assert watch.batch(0.0, 1.0, steps=5, samples=4) is None
    between_windows.append(watch.count.between_windows)
    window = watch.batch(3.0, 4.0, steps=6, samples=2)
    between_windows.append(watch.count.between_windows)

    assert between_windows == [True, False, True]
    assert window == TimedStep(seconds=2.0, loader_seconds=(2.0,), batches=2, optimizer_steps=1, samples=6)


def test_two_optimizers_count_two_steps_and_unknown_sizes_or_pauses_no_samples_or_waits() -> None:
    watch = Watch(is_manual=True)
    for number in range(3):
        window = watch.batch(float(number), number + 0.5, steps=2 * (number + 1))
        assert known(window).optimizer_steps == 2
    assert watch.count.window_size == WindowSize(batches_per_window=1, steps_per_window=2.0)
    watch = Watch()
    watch.batch(0.0, 1.0, steps=0, samples=None)
    window = known(watch.batch(1.0, 2.0, steps=1, samples=3))
    assert window.samples is None
    watch = Watch()
    watch.batch(0.0, 1.0, steps=1)
    watch.timer.pause()
    window = watch.batch(100.0, 101.0, steps=2)
    assert known(window).loader_seconds == ()


def test_batches_whose_optimizers_lightning_does_not_see_become_windows_of_one() -> None:
    watch = Watch(is_manual=True)
    closed = [watch.batch(float(number), number + 0.5, steps=0) for number in range(UNSEEN_STEPS_PATIENCE + 3)]
    assert closed[:UNSEEN_STEPS_PATIENCE] == [None] * UNSEEN_STEPS_PATIENCE
    assert [window.batches for window in closed[UNSEEN_STEPS_PATIENCE:] if window is not None] == [1, 1, 1]
    assert watch.count.window_size == WindowSize(batches_per_window=1, steps_per_window=1.0)


@pytest.mark.parametrize(
    ("seconds", "full_windows_after", "is_short", "expected"),
    [
        ([], 99, False, "time"),
        ([1.0], 99, False, "time"),
        ([1.0, 1.0, 1.0], 99, False, "record"),
        ([1.0, 1.0, 1.0], None, False, "record"),
        # Compilation in the first window leaves the later ones alone.
        ([30.0, 1.0, 1.0], 99, False, "record"),
        # The last one recompiled: such a small number does not agree to a half, 2.0 > 1.5 x 1.0, so another one is
        # timed.
        ([1.0, 1.0, 2.0], 99, False, "time"),
        ([1.0, 1.0, 2.0, 1.0, 1.0], 99, False, "record"),
        # Steps that still fall: the slow beginning is left out.
        ([9.0, 4.0, 1.0, 1.1], 99, False, "record"),
        # The short window at the end of an epoch is not timed or recorded while others follow.
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
def test_action_for_the_next_window(
    seconds: list[float], full_windows_after: int | None, is_short: bool, expected: str
) -> None:
    action = next_action(seconds, warmup_steps=3, full_windows_after=full_windows_after, is_short=is_short)
    assert action == expected


@given(st.integers(1, 5), st.lists(st.sampled_from([1e-3, 1.0, 7.0, 1e3]), min_size=12, max_size=12))
def test_warmup_ends_for_any_step_times(warmup_steps: int, seconds: list[float]) -> None:
    actions = [
        next_action(seconds[:timed], warmup_steps=warmup_steps, full_windows_after=None, is_short=False)
        for timed in range(12)
    ]
    assert actions[:warmup_steps] == ["time"] * warmup_steps
    assert "record" in actions[: warmup_steps + EXTRA_WARMUP_WINDOWS + 1]


PLAIN, BOTH = (
    StepKind(batches=1, optimizers=frozenset({0}), nodes=7),
    StepKind(batches=1, optimizers=frozenset({0, 1}), nodes=9),
)


def kinds(text: str) -> list[StepKind | None]:
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
    shares = shares_of_kinds(kinds(windows), [PLAIN, BOTH])
    assert shares == {PLAIN: pytest.approx(1 - share), BOTH: pytest.approx(share)}


def test_kinds_are_compared_by_graph_and_due_after_their_period() -> None:
    odd = StepKind(batches=1, optimizers=frozenset({0}), nodes=8)
    other = StepKind(batches=2, optimizers=frozenset({1}), nodes=8)
    assert shares_of_kinds([odd, PLAIN, PLAIN, other], [PLAIN]) == {PLAIN: 1.0}
    # First seen as number 3, it comes every 4 windows or less often: next as number 7 at the earliest.
    assert not may_be_next(kinds("pppb" + "ppp")[:-1], BOTH)
    assert may_be_next(kinds("pppb" + "ppp"), BOTH)
    assert may_be_next(kinds("pppb" + "ppppp"), BOTH)
    assert may_be_next(kinds("b"), BOTH)
    # Three windows were timed, one of the last kind: it has nothing to settle against.
    action = next_action([9.0], windows_timed=3, warmup_steps=3, full_windows_after=99, is_short=False)
    assert action == "record"


@pytest.mark.parametrize("period", range(1, 20))
def test_a_kind_is_due_when_the_shortest_time_between_two_has_passed(period: int) -> None:
    windows = kinds(("b" + "p" * (period - 1)) * 2)
    # The last came `period` windows before the next one.
    assert may_be_next(windows, BOTH)
    assert period == 1 or not may_be_next(windows[:-1], BOTH)


def test_graphs_that_vary_with_the_data_are_one_kind() -> None:
    few = [StepKind(batches=1, nodes=count) for count in range(MAX_NODE_COUNTS)]
    assert merge_varying_kinds(few) == few
    many = [*few, StepKind(batches=1, nodes=99), StepKind(batches=2, nodes=99), None]
    assert merge_varying_kinds(many) == [StepKind(batches=1)] * (MAX_NODE_COUNTS + 1) + [
        StepKind(batches=2, nodes=99),
        None,
    ]
