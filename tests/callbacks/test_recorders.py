"""The recorders with a session and a clock of the tests' own: when they record, and with what they label it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from lightning_predict.callbacks.recorders import TIMED_VALIDATION_BATCHES, Pace, StepRecorder, ValidationRecorder
from lightning_predict.tracing.records import Trace


@dataclass
class Clock:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class FakeSession:
    """A session that notes when it starts and stops."""

    number: int
    events: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.events.append("start")

    def stop(self) -> None:
        self.events.append("stop")

    def trace(
        self,
        *,
        step_seconds: Sequence[float] = (),
        loader_seconds: Sequence[float] = (),
        samples: int | None = None,
        batches: int = 1,
        optimizer_steps: int | None = None,
    ) -> Trace:
        return Trace(
            operations=(),
            device="cpu",
            recorder=f"session {self.number}",
            step_seconds=tuple(step_seconds),
            loader_seconds=tuple(loader_seconds),
            samples=samples,
            batches=batches,
            optimizer_steps=-1 if optimizer_steps is None else optimizer_steps,
        )


class Loop:
    """A recorder in a loop of batches, each with its seconds."""

    def __init__(
        self, *, warmup_steps: int = 2, capture_steps: int = 1, accumulates: int = 1, is_manual: bool = False
    ) -> None:
        self.clock = Clock()
        self.sessions: list[FakeSession] = []
        self.accumulates = accumulates
        self.batches = 0
        self.recorder = StepRecorder(
            warmup_steps=warmup_steps,
            capture_steps=capture_steps,
            clock=self.clock,
            new_session=self.new_session,
            is_manual=is_manual,
        )

    def new_session(self) -> FakeSession:
        self.sessions.append(FakeSession(len(self.sessions)))
        return self.sessions[-1]

    def start(self, *, full_windows_after: int | None = None) -> None:
        self.recorder.batch_starts(full_windows_after=full_windows_after, next_is_short=False)

    def batch(self, seconds: float, *, full_windows_after: int | None = None, steps_a_window: int = 1) -> Trace | None:
        self.start(full_windows_after=full_windows_after)
        self.clock.seconds += seconds
        self.batches += 1
        done = steps_a_window * (self.batches // self.accumulates)
        trace = self.recorder.batch_ends(optimizer_steps_done=done, samples=8)
        self.clock.seconds += 0.25  # the loader
        return trace


def test_it_times_then_records_one_step() -> None:
    loop = Loop()
    assert [loop.batch(1.0), loop.batch(1.0)] == [None, None]
    assert loop.sessions == []
    trace = loop.batch(5.0)
    assert trace is not None
    assert trace.step_seconds == (1.0, 1.0)  # what was recorded is slower, and is not among them
    assert trace.loader_seconds == (0.25,)
    assert (trace.samples, trace.batches, trace.optimizer_steps) == (8, 1, 1)
    assert loop.sessions[0].events == ["start", "stop"]


def test_the_recording_stands_still_between_the_batches_of_a_window() -> None:
    loop = Loop(accumulates=2)
    traces = [loop.batch(1.0) for _ in range(6)]
    assert traces[:5] == [None] * 5
    assert traces[5] is not None
    assert traces[5].step_seconds == (2.0, 2.0)
    assert (traces[5].batches, traces[5].samples) == (2, 16)
    assert loop.sessions[0].events == ["start", "stop", "start", "stop"]


def test_of_three_recorded_steps_the_one_of_middle_length_counts() -> None:
    loop = Loop(capture_steps=3)
    traces = [loop.batch(seconds) for seconds in (1.0, 1.0, 9.0, 4.0, 5.0)]
    assert traces[:4] == [None] * 4
    assert traces[4] is not None
    assert traces[4].recorder == "session 2"


def test_of_two_the_shorter_counts() -> None:
    loop = Loop(capture_steps=2)
    traces = [loop.batch(seconds) for seconds in (1.0, 1.0, 9.0, 4.0)]
    assert traces[3] is not None
    assert traces[3].recorder == "session 1"


def test_a_step_that_is_slow_to_settle_is_waited_for() -> None:
    loop = Loop()
    assert [loop.batch(seconds) for seconds in (1.0, 3.0, 1.0)] == [None] * 3
    assert loop.batch(1.0) is not None


def test_optimizers_that_nobody_counted_are_left_to_the_session() -> None:
    loop = Loop(accumulates=10**6)
    traces = [loop.batch(1.0) for _ in range(16 + 3)]
    assert traces[-1] is not None
    assert traces[-1].optimizer_steps == -1


def test_a_batch_that_never_ends_is_not_recorded() -> None:
    loop = Loop()
    loop.batch(1.0)
    loop.batch(1.0)
    loop.start()
    trace = loop.batch(1.0)  # The epoch was left; this batch belongs to the next.
    assert [session.events for session in loop.sessions] == [["start", "stop"], ["start", "stop"]]
    assert trace is not None
    assert trace.recorder == "session 1"


def test_a_pause_ends_a_batch_that_never_ends() -> None:
    loop = Loop()
    loop.batch(1.0)
    loop.batch(1.0)
    loop.start()
    loop.recorder.pause()
    assert loop.sessions[0].events == ["start", "stop"]


def test_a_pause_between_batches_leaves_the_recording() -> None:
    loop = Loop(accumulates=2)
    for _ in range(5):
        loop.batch(1.0)
    loop.recorder.pause()
    assert loop.batch(1.0) is not None


def test_stopping_ends_the_recording() -> None:
    loop = Loop()
    loop.batch(1.0)
    loop.batch(1.0)
    loop.start()
    loop.recorder.stop()
    loop.recorder.stop()
    assert loop.sessions[0].events == ["start", "stop"]


def test_the_pace_is_the_trainers_in_automatic_optimization() -> None:
    assert Loop().recorder.pace == Pace()


def test_the_pace_is_seen_in_manual_optimization() -> None:
    loop = Loop(accumulates=3, is_manual=True)
    assert loop.recorder.pace == Pace(batches_per_window=1, steps_per_window=1.0)
    for _ in range(3):
        loop.batch(1.0, steps_a_window=2)
    assert loop.recorder.pace == Pace(batches_per_window=3, steps_per_window=2.0)


class ValidationLoop:
    def __init__(self, *, records_first: bool = True) -> None:
        self.clock = Clock()
        self.sessions: list[FakeSession] = []
        self.recorder = ValidationRecorder(clock=self.clock, new_session=self.new_session, records_first=records_first)

    def new_session(self) -> FakeSession:
        self.sessions.append(FakeSession(len(self.sessions)))
        return self.sessions[-1]

    def run(self, batches: int) -> Trace | None:
        self.recorder.run_starts()
        for number in range(batches):
            self.recorder.batch_starts(batches_in_run=batches)
            self.clock.seconds += 1.0 + number
            self.recorder.batch_ends(samples=8)
        return self.recorder.trace()


def test_the_second_validation_batch_is_recorded() -> None:
    trace = ValidationLoop().run(2)
    assert trace is not None
    assert (trace.samples, trace.batches, trace.optimizer_steps, trace.step_seconds) == (8, 1, 0, ())


def test_later_validation_batches_are_timed_up_to_a_few() -> None:
    trace = ValidationLoop().run(20)
    assert trace is not None
    assert trace.step_seconds == tuple(1.0 + number for number in range(2, 2 + TIMED_VALIDATION_BATCHES))


def test_the_only_validation_batch_is_recorded() -> None:
    assert ValidationLoop().run(1) is not None


def test_but_not_where_it_may_compile() -> None:
    loop = ValidationLoop(records_first=False)
    assert loop.run(1) is None
    assert not loop.recorder.is_done
    assert loop.run(2) is not None


def test_a_recording_of_validation_is_made_once() -> None:
    loop = ValidationLoop()
    loop.run(3)
    loop.run(3)
    assert len(loop.sessions) == 1


def test_stopping_forgets_the_recording_of_validation() -> None:
    loop = ValidationLoop()
    loop.recorder.run_starts()
    loop.recorder.batch_starts(batches_in_run=1)
    loop.recorder.stop()
    assert loop.sessions[0].events == ["start", "stop"]
    assert not loop.recorder.is_done


@pytest.mark.parametrize("batches", [1, 2, 7])
def test_validation_leaves_its_session_stopped(batches: int) -> None:
    loop = ValidationLoop()
    loop.run(batches)
    assert [session.events for session in loop.sessions] == [["start", "stop"]]
