"""The recorders with a session and a clock of the tests' own: when they record, and with what they label it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import pytest

from lightning_predict.base.errors import NothingRecordedError
from lightning_predict.observe import recorder as recorders
from lightning_predict.observe.optimizer_steps import StepCounter, StepKind, WindowSize, merge_varying_kinds
from lightning_predict.observe.recorder import StepRecorder, ValidationRecorder
from lightning_predict.observe.run_observer import RunObserver
from lightning_predict.record.trace import Trace
from tests.known import known


@dataclass
class Clock:
    """A clock that waits for the device of a loop, where it has one."""

    seconds: float = 0.0
    readings: int = 0
    device: Loop | None = None

    def __call__(self) -> float:
        self.readings += 1
        if self.device is not None:
            self.seconds = max(self.seconds, self.device.device_free)
        return self.seconds


@dataclass
class FakeSession:
    """A session that notes when it starts and stops."""

    number: int
    events: list[str] = field(default_factory=list)
    optimizers_seen: Sequence[object] | None = None
    records_first_and_last_only: bool = False
    retry: Callable[[], Any] | None = None

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
        represented_by: Sequence[int] = (),
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
            software={"shown by": " ".join(map(str, represented_by))},
            optimizer_steps=-1 if optimizer_steps is None else optimizer_steps,
        )


class Loop:
    """A recorder in a loop of batches, each with its seconds."""

    def __init__(
        self,
        *,
        warmup_steps: int = 2,
        accumulates: int = 1,
        is_manual: bool = False,
        optimizers: int = 0,
        device_seconds: float | None = None,
        profiles: bool = False,
    ) -> None:
        self.profiles = profiles
        self.clock = Clock() if device_seconds is None else Clock(device=self)
        self.device_seconds, self.device_free = device_seconds or 0.0, 0.0
        self.sessions: list[FakeSession] = []
        self.accumulates = accumulates
        self.batches = 0
        self.nodes = 0
        self.compiled = 0
        self.optimizers = [object() for _ in range(optimizers)]
        self.count = StepCounter()
        self.count.start_training(optimizer_steps_done=0, is_manual=is_manual)
        self.recorder = StepRecorder(
            warmup_steps=warmup_steps,
            clock=self.clock,
            host_clock=None if device_seconds is None else lambda: self.clock.seconds,
            new_session=self.new_session,
            optimizers=self.optimizers,
            autograd_nodes=lambda: self.nodes,
            compilations=lambda: self.compiled,
            count=self.count,
        )

    def new_session(self) -> Any:
        self.sessions.append(FakeSession(len(self.sessions), records_first_and_last_only=self.profiles))
        return self.sessions[-1]

    def start(self, *, full_windows_after: int | None = None, shapes: object = None) -> None:
        self.recorder.on_batch_start(full_windows_after=full_windows_after, next_is_short=False, shapes=lambda: shapes)

    def batch(
        self,
        seconds: float,
        *,
        full_windows_after: int | None = None,
        steps_a_window: int = 1,
        due: Sequence[int] = (),
        seen: Sequence[int] | None = None,
        nodes: int = 0,
        compiles: bool = False,
        loader: float = 0.25,
        shapes: object = None,
        steps_done: int | None = None,
    ) -> Trace | None:
        self.start(full_windows_after=full_windows_after, shapes=shapes)
        self.device_free = max(self.device_free, self.clock.seconds) + self.device_seconds
        self.clock.seconds += seconds
        self.nodes += nodes
        self.compiled += compiles
        for position in due:
            self.recorder.optimizer_steps(self.optimizers[position])
        if self.sessions and seen is not None:
            self.sessions[-1].optimizers_seen = [self.optimizers[position] for position in seen]
        self.batches += 1
        done = steps_a_window * (self.batches // self.accumulates) if steps_done is None else steps_done
        self.count.on_batch_end(done)
        trace = self.recorder.on_batch_end(samples=8)
        self.clock.seconds += loader
        return trace


def test_it_times_then_records_one_step() -> None:
    loop = Loop()
    assert [loop.batch(1.0), loop.batch(1.0)] == [None, None]
    assert loop.sessions == []
    trace = known(loop.batch(5.0))
    assert trace.step_seconds == (1.0,)  # the first is cold, and the recorded step is slower
    assert trace.loader_seconds == (0.25,)
    assert (trace.samples, trace.batches, trace.optimizer_steps) == (8, 1, 1)
    assert loop.sessions[0].events == ["start", "stop"]


def test_on_a_gpu_a_block_that_waits_once_comes_before_the_recording() -> None:
    # The host takes 1 s, the device 3: alone a step takes 3, and the host was done after 1; so do steps in a row.
    loop = Loop(device_seconds=3.0)
    traces = [loop.batch(1.0, loader=0.0) for _ in range(2 + 8 + 1)]
    assert traces[:10] == [None] * 10
    trace = known(traces[10])
    assert trace.step_seconds == (3.0,)
    assert trace.host_seconds_unprofiled == (1.0,)
    assert (trace.running_step_seconds, trace.running_steps) == (3.0, 8)
    assert len(loop.sessions) == 1


def test_blocks_run_accumulated_batches_without_a_wait_unless_the_run_is_short() -> None:
    loop = Loop(device_seconds=3.0, accumulates=4)
    traces = [loop.batch(1.0, loader=0.0) for _ in range(4 * (2 + 2 + 1))]
    trace = known(traces[-1])
    assert (trace.running_step_seconds, trace.running_steps, trace.batches) == (12.0, 2, 4)
    assert trace.host_seconds_unprofiled == (4.0,)
    short = Loop(device_seconds=3.0)
    traces = [short.batch(1.0, loader=0.0, full_windows_after=33 - number) for number in range(3)]
    trace = known(traces[-1])
    assert trace.running_step_seconds is None
    assert trace.host_seconds_unprofiled == (1.0,)
    loop = Loop(device_seconds=3.0)
    for _ in range(2):
        loop.batch(1.0, loader=0.0)
    before = loop.clock.readings
    for _ in range(8):
        loop.batch(1.0, loader=0.0)
    assert loop.clock.readings == before + 2  # as it begins, and at its end


def test_broken_blocks_are_tried_once_more_or_discarded() -> None:
    loop = Loop(device_seconds=3.0)
    for _ in range(5):
        loop.batch(1.0, loader=0.0)
    loop.recorder.pause()  # validation
    traces = [loop.batch(1.0, loader=0.0) for _ in range(9)]
    assert traces[:8] == [None] * 8
    assert traces[8] is not None
    assert traces[8].running_steps == 8
    twice = Loop(device_seconds=3.0)
    for _ in range(2):
        for _ in range(5):
            assert twice.batch(1.0, loader=0.0) is None
        twice.recorder.pause()
    assert known(twice.batch(1.0, loader=0.0)).running_step_seconds is None
    compiling = Loop(device_seconds=3.0)
    for number in range(4):
        compiling.batch(1.0, loader=0.0, compiles=number == 3)
    traces = [compiling.batch(1.0, loader=0.0) for _ in range(9)]
    assert traces[8] is not None
    assert traces[8].running_steps == 8  # the second block
    kinds = Loop(device_seconds=3.0)
    traces = [kinds.batch(1.0, loader=0.0, nodes=10 + number // 4 % 2) for number in range(80)]
    trace = next(trace for trace in traces if trace is not None)
    assert trace.running_step_seconds is None
    busy, idle = (
        [loop.batch(1.0, loader=wait) for _ in range(11)][-1]
        for loop, wait in ((Loop(device_seconds=3.0), 1.0), (Loop(device_seconds=3.0), 4.0))
    )
    assert known(busy).running_step_seconds == 3.0  # the device works through waits of 1 s
    assert idle is not None
    assert idle.running_step_seconds is None


def test_long_windows_stand_still_between_batches_and_are_not_quiet() -> None:
    loop = Loop(accumulates=2)
    traces = [loop.batch(1.0) for _ in range(6)]
    assert traces[:5] == [None] * 5
    assert traces[5] is not None
    assert traces[5].step_seconds == (2.0,)
    assert (traces[5].batches, traces[5].samples) == (2, 16)
    assert loop.sessions[0].events == ["start", "stop", "start", "stop"]
    loop = Loop(accumulates=2)
    assert [loop.batch(1.0) is not None for _ in range(6)] == [False] * 5 + [True]
    assert not loop.recorder.is_quiet
    assert loop.recorder.is_idle is False  # until the next window begins
    loop.batch(1.0)
    assert loop.recorder.is_idle


def test_slow_steps_and_uncounted_optimizers_are_waited_for() -> None:
    loop = Loop()
    assert [loop.batch(seconds) for seconds in (1.0, 3.0, 1.0)] == [None] * 3
    assert loop.batch(1.0) is not None
    loop = Loop(accumulates=10**6, is_manual=True)
    traces = [loop.batch(1.0) for _ in range(16 + 3)]
    assert traces[-1] is not None
    assert traces[-1].optimizer_steps == -1


def test_recording_ends_with_a_batch_that_never_ends_a_pause_or_a_stop() -> None:
    left, paused, stopped = Loop(), Loop(), Loop()
    for loop in (left, paused, stopped):
        loop.batch(1.0)
        loop.batch(1.0)
        loop.start()
    trace = left.batch(1.0)  # The epoch was left; this batch belongs to the next.
    assert [session.events for session in left.sessions] == [["start", "stop"], ["start", "stop"]]
    assert known(trace).recorder == "session 1"
    paused.recorder.pause()
    assert paused.sessions[0].events == ["start", "stop"]
    stopped.recorder.stop()
    stopped.recorder.stop()
    assert stopped.sessions[0].events == ["start", "stop"]


def recorded(loop: Loop) -> int:
    """Windows that a session was made for."""
    return len(loop.sessions)


def test_skipped_updates_are_recorded_again_and_unseen_ones_taken_as_they_are() -> None:
    loop = Loop(optimizers=1)
    assert [loop.batch(1.0, due=[0]) for _ in range(2)] == [None, None]
    # Due, but not made: the gradients were not finite.
    assert loop.batch(1.0, due=[0], seen=[]) is None
    trace = known(loop.batch(1.0, due=[0], seen=[0]))
    assert trace.recorder == "session 1"
    assert trace.other_steps == ()
    # A wrapper that torch's hooks do not see: after four rejected windows the fifth counts.
    loop = Loop(optimizers=1)
    traces = [loop.batch(1.0, due=[0], seen=[]) for _ in range(2 + 4 + 1)]
    assert traces[:-1] == [None] * 6
    assert traces[-1] is not None
    assert traces[-1].recorder == "session 4"


def test_compiled_and_periodic_windows_are_recorded_again_when_due() -> None:
    loop = Loop()
    # The first window compiles, and autograd makes more nodes while it does.
    loop.batch(9.0, nodes=70, compiles=True)
    loop.batch(1.0, nodes=7)
    assert loop.batch(3.0, nodes=40, compiles=True) is None
    trace = known(loop.batch(1.0, nodes=7))
    assert (trace.recorder, trace.other_steps) == ("session 1", ())
    # Every tenth window is another one: seen at 0 and, after the capture, at 10; due and recorded at 20; timed at 30.
    loop = Loop()
    traces = {number: loop.batch(1.0, nodes=9 if number % 10 == 0 else 7) for number in range(40)}
    given = {number: trace for number, trace in traces.items() if trace is not None}
    assert list(given) == [2, 30]
    assert given[2].other_steps == ()
    (other,) = given[30].other_steps
    assert other.share == 0.1
    assert other.trace.step_seconds == (1.0,)
    assert recorded(loop) == 2


def test_the_clock_is_left_alone_between_two_traces() -> None:
    loop = Loop()
    for number in range(10):
        loop.batch(1.0, nodes=9 if number == 0 else 7)
    finished = [loop.recorder.is_finished]
    # Start and end of three windows, and once more where the recorder of the third has started.
    assert loop.clock.readings == 2 * 3 + 1
    for _ in range(64):
        loop.batch(1.0, nodes=7)
    assert [*finished, loop.recorder.is_finished] == [False, True]
    assert loop.clock.readings == 2 * 3 + 1


def test_once_complete_kinds_are_looked_for_again_only_where_another_turns_up(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    assert [loop.batch(1.0, nodes=5) is not None for _ in range(3)] == [False, False, True]
    assert loop.recorder.is_quiet
    searches: list[int] = []

    def noting(windows: Iterable[StepKind | None]) -> list[StepKind | None]:
        searches.append(1)
        return merge_varying_kinds(windows)

    monkeypatch.setattr(recorders, "merge_varying_kinds", noting)
    for _ in range(20):
        assert loop.batch(1.0, nodes=5) is None
    assert searches == []
    assert len(loop.sessions) == 1
    # Another graph in every tenth window: it is waited for, recorded when it is due, and given.
    traces = [loop.batch(1.0, nodes=5 + 4 * (number % 10 == 9)) for number in range(40)]
    assert len(searches) > 0
    (given,) = (trace for trace in traces if trace is not None)
    assert [step.share for step in given.other_steps] == [0.1]
    assert loop.recorder.is_quiet


def test_waiting_ends_with_the_run_and_returns_the_trace() -> None:
    loop = Loop(optimizers=2)
    traces = [loop.batch(1.0, due=[0], full_windows_after=7 - number) for number in range(8)]
    assert [number for number, trace in enumerate(traces) if trace is not None] == [7]
    assert traces[7] is not None
    assert traces[7].notes == (
        "Optimizer 1 (object) made no update in the first 8 batches. Its time and memory are not included.",
    )
    loop = Loop(optimizers=2)
    for _ in range(4):
        loop.batch(1.0, due=[0])
    assert loop.recorder.unreturned_trace() is not None
    assert loop.recorder.unreturned_trace() is None


def test_the_pace_is_seen_in_manual_optimization() -> None:
    loop = Loop(accumulates=3, is_manual=True)
    assert loop.recorder.window_size == WindowSize(batches_per_window=1, steps_per_window=1.0)
    for _ in range(3):
        loop.batch(1.0, steps_a_window=2)
    assert loop.recorder.window_size == WindowSize(batches_per_window=3, steps_per_window=2.0)


class ValidationLoop:
    def __init__(self, *, records_first: bool = True, prefers_first: bool = False) -> None:
        self.clock = Clock()
        self.sessions: list[FakeSession] = []
        self.recorder = ValidationRecorder(
            clock=self.clock, new_session=self.new_session, records_first=records_first, prefers_first=prefers_first
        )

    def new_session(self) -> Any:
        self.sessions.append(FakeSession(len(self.sessions)))
        return self.sessions[-1]

    def run(self, batches: int) -> Trace | None:
        self.recorder.on_run_start()
        for number in range(batches):
            self.recorder.on_batch_start(batches_in_run=batches)
            self.clock.seconds += 1.0 + number
            self.recorder.on_batch_end(samples=8)
        return self.recorder.trace()


def test_validation_is_recorded_in_its_second_or_only_batch_unless_it_may_compile() -> None:
    trace = known(ValidationLoop().run(2))
    assert (trace.samples, trace.batches, trace.optimizer_steps, trace.step_seconds) == (8, 1, 0, ())
    assert ValidationLoop().run(1) is not None
    loop = ValidationLoop(records_first=False)
    assert loop.run(1) is None
    assert not loop.recorder.is_done
    assert loop.run(2) is not None


@pytest.mark.parametrize(("shapes", "profiles", "starts"), [((8, 512), False, 2), (None, False, 32), (None, True, 2)])
def test_of_a_long_window_the_first_and_the_last_batch_are_recorded(
    shapes: object, profiles: bool, starts: int
) -> None:
    # Unless their shapes are not known: then each is, but by a profiler, whose events take memory.
    loop = Loop(warmup_steps=1, accumulates=32, profiles=profiles)
    traces = [loop.batch(1.0, shapes=shapes) for _ in range(64)]
    assert traces[:-1] == [None] * 63
    assert traces[-1] is not None
    assert traces[-1].batches == 32
    assert loop.sessions[0].events.count("start") == starts
    represented_by = (0, *[31] * 31) if starts == 2 else tuple(range(32))
    assert traces[-1].software["shown by"] == " ".join(map(str, represented_by))


def test_batches_of_other_shapes_are_recorded_each_once() -> None:
    loop = Loop(warmup_steps=1, accumulates=6)
    traces = [loop.batch(1.0, shapes=length) for length in (64, 64, 64, 64, 64, 64, 64, 32, 64, 32, 64, 64)]
    assert traces[-1] is not None
    # The fourth is of 32, as the second: that one shows it. The first, which makes the gradients, shows no other: as
    # lengths differ, the third is recorded, and the fifth, which need not be, is shown by the last.
    assert traces[-1].software["shown by"] == "0 1 2 1 5 5"
    assert loop.sessions[0].events.count("start") == 4


def test_windows_unlike_those_before_are_recorded_whole_the_next_time() -> None:
    loop = Loop(warmup_steps=1, accumulates=4)
    for _ in range(2):  # one for warm-up
        traces = [loop.batch(1.0, shapes=length) for length in (64, 64, 64, 32)]
    assert traces[-1] is None  # nothing but the first was recorded with a length of 64
    traces = [loop.batch(1.0, shapes=length) for length in (64, 64, 64, 32)]
    assert traces[-1] is not None
    assert traces[-1].software["shown by"] == "0 1 2 3"
    assert [session.events.count("start") for session in loop.sessions] == [2, 4]
    loop = Loop(warmup_steps=1, accumulates=4)
    for _ in range(2):
        traces = [loop.batch(1.0, shapes=64, nodes=nodes) for nodes in (10, 20, 10, 10)]
    assert traces[-1] is None
    traces = [loop.batch(1.0, shapes=64, nodes=nodes) for nodes in (10, 20, 10, 10)]
    assert traces[-1] is not None
    assert len(loop.sessions[1].events) == 2 * 4
    loop = Loop(warmup_steps=1, accumulates=4, profiles=True)
    for _ in range(4):
        loop.batch(1.0)
    loop.accumulates, loop.batches = 3, 3  # a schedule that changes: the window that is recorded now has three batches
    traces = [loop.batch(1.0) for _ in range(6)]
    assert [trace is not None for trace in traces] == [False] * 5 + [True]
    assert traces[-1] is not None
    assert traces[-1].batches == 3
    assert [session.events.count("start") for session in loop.sessions] == [1, 3]


@pytest.mark.parametrize("profiles", [True, False])
def test_what_had_to_be_taken_like_another_batch_is_said(profiles: bool) -> None:
    loop = Loop(warmup_steps=1, accumulates=4, profiles=profiles)
    for _ in range(2):
        # Of a profiler, or in the last window of a run, there is no other chance.
        traces = [loop.batch(1.0, shapes=length, full_windows_after=0) for length in (64, 64, 64, 32)]
    assert traces[-1] is not None
    assert traces[-1].notes == (
        "2 of the 4 batches of a step differ from the recorded ones. Predictions treat them like the last recorded "
        "one.",
    )


def test_windows_that_grow_after_the_recording_are_another_kind() -> None:
    loop = Loop(warmup_steps=2)
    assert [loop.batch(1.0) is None for _ in range(5)] == [True, True, False, True, True]
    loop.accumulates, loop.batches = 2, 10  # as a schedule of accumulation says; five updates were made
    traces = [loop.batch(1.0) for _ in range(20)]
    later = next(trace for trace in traces if trace is not None)
    assert {later.batches, *(other.trace.batches for other in later.other_steps)} == {1, 2}


def stored(*roots: object) -> int:
    """Count the references to values that objects hold, directly and through others."""
    seen: set[int] = set()
    left: list[object] = list(roots)
    references = 0
    while left:
        value = left.pop()
        if id(value) not in seen and not isinstance(value, type | ModuleType | FunctionType):
            seen.add(id(value))
            held = gc.get_referents(value)
            references += len(held)
            left += held
    return references


def steps_never(loop: Loop, _: int) -> None:
    loop.batch(1.0, steps_done=0)


def steps_until_the_recording(loop: Loop, batch: int) -> None:
    loop.batch(1.0, steps_done=min(batch + 1, 2))


def accumulates_without_end(loop: Loop, _: int) -> None:
    loop.accumulates = 10**9
    loop.batch(1.0)


@pytest.mark.parametrize("train", [steps_never, steps_until_the_recording, accumulates_without_end])
@pytest.mark.parametrize("computes", [True, False])
def test_nothing_that_a_recorder_stores_grows_with_the_run(
    train: Callable[[Loop, int], None], computes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not computes:

        def nothing(*_: object, **__: object) -> Trace:
            raise NothingRecordedError("Nothing was recorded.")

        monkeypatch.setattr(FakeSession, "trace", nothing)
    loop, sizes = Loop(is_manual=train is not accumulates_without_end), list[int]()
    for batch in range(8_001):
        if loop.recorder.is_finished:  # the fit drops it
            return
        train(loop, batch)
        for session in loop.sessions:
            session.events[:] = session.events[:2]
        if batch in (2_000, 8_000):
            sizes.append(stored(loop.recorder, loop.count))
    assert sizes[1] <= sizes[0] + 16


def test_nothing_that_an_observer_stores_grows_with_the_run() -> None:
    clock, sizes = Clock(), list[int]()
    observer = RunObserver(clock)
    for batch in range(200_001):
        if batch % 10 == 0:
            observer.on_epoch_start()
        observer.on_batch_start()
        clock.seconds += 1.0 + batch % 7
        observer.on_batch_end()
        if batch % 10 == 9:
            observer.on_validation_start(is_check=False)
            observer.validation.on_batch_start()
            clock.seconds += 1.0
            observer.validation.on_batch_end()
            observer.on_validation_end()
            observer.on_checkpoint(observer)
            observer.on_epoch_end()
        if batch in (100_000, 200_000):
            sizes.append(stored(observer))
    # At 1,024 means, two each become one, so between 512 and 1,024 are stored.
    assert sizes[1] <= sizes[0] + 5 * 512
