"""Times in which a step runs no operation, with a clock that the tests set."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.record import dispatch
from lightning_predict.record.pauses import SHORTEST_PAUSE_SECONDS, PauseTimer, ThreadUse, thread_use
from lightning_predict.record.profiler import ProfilerRecorder
from lightning_predict.record.trace import Operation, Phase, Trace


def of_phases(*phases: Phase) -> list[Operation]:
    return [Operation(name="aten::mm", phase=phase) for phase in phases]


THREE = of_phases("forward", "forward", "forward")
UPDATE = of_phases("forward", "backward", "optimizer")
DEEP = of_phases(*["forward"] * 20_000, "backward")  # type: ignore[arg-type]


class Clock:
    """CPU time of the recording thread."""

    def __init__(self) -> None:
        self.now = self.idle = self.waits = 0.0

    def pauses(self, *, is_framework: bool = False) -> PauseTimer:
        return PauseTimer(lambda: is_framework, clock=self.use)

    def use(self) -> ThreadUse:
        return ThreadUse(user_seconds=self.now, idle_seconds=self.idle, waits=self.waits)

    def works(self, seconds: float) -> None:
        self.now += seconds

    def idles(self, seconds: float, *, waits: int) -> None:
        self.idle, self.waits = self.idle + seconds, self.waits + waits


@pytest.fixture
def clock() -> Clock:
    return Clock()


def python(pauses: PauseTimer, operations: Sequence[Operation] = THREE, **sizes: int) -> dict[int, float]:
    """Return the Python time before each operation that has some, by position."""
    placed = pauses.placed(operations, **sizes)
    return {place: operation.python_seconds for place, operation in enumerate(placed) if operation.python_seconds}


@pytest.mark.parametrize(
    ("pauses", "operations", "sizes", "expected"),
    [
        pytest.param({0: 0.03, 1: 0.0, 2: 0.02}, THREE, {}, {0: 0.03, 2: 0.02}, id="before operations"),
        pytest.param({3: 0.03}, THREE, {}, {0: 0.03}, id="after the last operation, before the next step"),
        pytest.param({0: 0.9 * SHORTEST_PAUSE_SECONDS}, THREE, {}, {}, id="too short"),
        # 3,000 parameters are set to no gradient in 10 to 20 ms, and 20,000 nodes made ready in 10.
        pytest.param({0: 0.02, 20_000: 0.02}, DEEP, {"parameters": 0}, {0: 0.02}, id="ready for many nodes"),
        pytest.param({0: 0.02, 20_000: 0.02}, DEEP, {"parameters": 3_000}, {}, id="gradients of many parameters"),
        pytest.param({1: 0.02}, UPDATE, {}, {1: 0.02}, id="before a backward pass of few nodes"),
        # Clipping the norm of 400 parameters' gradients takes 16 ms at worst; work before the loss counts.
        pytest.param({1: 0.016, 2: 0.016}, UPDATE, {"parameters": 400}, {1: 0.016}, id="clipping"),
        pytest.param({1: 0.016, 2: 0.016}, UPDATE, {"parameters": 20}, {1: 0.016, 2: 0.016}, id="before an update"),
        # An LSTM of 4 layers and 64 steps is one operation on the meta device and 3,850 nodes, freed in 6 to 9 ms.
        pytest.param({3: 0.009}, THREE, {"parameters": 16, "nodes": 3_850}, {}, id="freeing many nodes"),
        pytest.param({3: 0.009}, THREE, {"parameters": 16, "nodes": 100}, {0: 0.009}, id="freeing few nodes"),
    ],
)
def test_pauses_that_torch_cannot_explain_count_as_python_time(
    clock: Clock,
    pauses: dict[int, float],
    operations: list[Operation],
    sizes: dict[str, int],
    expected: dict[int, float],
) -> None:
    timer = clock.pauses()
    for before, seconds in pauses.items():
        timer.begins()
        clock.works(seconds)
        timer.ends(before=before)
        clock.works(1.0)  # the operation itself
    assert python(timer, operations, **sizes) == pytest.approx(expected)
    assert timer.placed(()) == ()


def test_pause_in_which_only_torch_ran_does_not_count(clock: Clock) -> None:
    timer = clock.pauses(is_framework=True)
    timer.begins()
    clock.works(0.05)
    timer.ends(before=0)
    assert python(timer) == {}


@pytest.mark.parametrize(("waits", "is_framework", "expected"), [(1, False, 0.003), (0, False, 0.0), (1, True, 0.0)])
def test_idle_time_is_a_wait_if_user_code_gave_up_the_processor(
    clock: Clock, waits: int, is_framework: bool, expected: float
) -> None:
    timer = clock.pauses(is_framework=is_framework)
    timer.begins()
    clock.idles(0.003, waits=waits)  # without a wait, other programs had the processor
    timer.ends(before=0)
    clock.idles(0.5, waits=1)  # inside an operation, torch waits for its other threads
    assert timer.waited_seconds == pytest.approx(expected)
    assert python(timer) == {}


def test_garbage_collection_does_not_count(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "callbacks", [])
    timer = clock.pauses()
    timer.open()
    clock.works(0.006)
    (collects,) = gc.callbacks
    collects("start", {})
    clock.works(0.05)
    collects("stop", {})
    timer.ends(before=1)
    timer.close(after=1)
    assert gc.callbacks == []
    assert python(timer) == pytest.approx({1: 0.006})


def test_nodes_of_recurrent_layers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    placed = PauseTimer.placed

    def noting(pauses: PauseTimer, operations: Sequence[Operation], **sizes: int) -> tuple[Operation, ...]:
        counted.append(sizes["nodes"])
        return placed(pauses, operations, **sizes)

    monkeypatch.setattr(PauseTimer, "placed", noting)
    with torch.device("meta"):
        model, sequence = nn.LSTM(8, 8, 2), torch.zeros(5, 3, 8)
    trace = lp.capture(lambda: model(sequence)[0].sum().backward())
    assert sum(operation.name == "aten::lstm" for operation in trace.operations) == 1
    # Two layers of five steps, each of a product and the gates' five activations at least.
    assert counted[-1] >= 2 * 5 * 6


def test_only_cpu_time_of_the_recording_thread_counts() -> None:
    pauses = PauseTimer()
    pauses.begins()
    time.sleep(10 * SHORTEST_PAUSE_SECONDS)  # as if other programs had the processor
    pauses.ends(before=1)
    pauses.begins()
    until = thread_use().user_seconds + 4 * SHORTEST_PAUSE_SECONDS
    while thread_use().user_seconds < until:
        pass
    pauses.ends(before=2)
    seconds = python(pauses)
    assert list(seconds) == [2]
    assert seconds[2] >= 4 * SHORTEST_PAUSE_SECONDS


def test_release_of_large_cpu_tensors_does_not_count() -> None:
    """The kernel unmaps 800 MB in 80 ms, which a GPU's allocator keeps."""
    weight = torch.ones(8, requires_grad=True)

    def step() -> None:
        data = torch.ones(100_000_000)
        first = (data * 2)[:8].clone()
        del data
        (weight * first).sum().backward()

    assert min(python_of(lp.capture(step)) for _ in range(3)) == 0  # on a busy machine, one may show user time


def python_of(trace: Trace) -> float:
    return sum(operation.python_seconds for operation in trace.operations)


@pytest.fixture
def step_clock(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Clock of recorded code: only `works` takes time, however busy the machine is."""
    monkeypatch.setattr(dispatch, "PauseTimer", partial(PauseTimer, clock=clock.use))
    return clock


def training(environment: Callable[[], None]) -> Trace:
    """A step that works on its own before its loss, as reinforcement learning does."""
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.ones(4, 16)

    def step() -> None:
        output = model(data)
        environment()
        optimizer.zero_grad()
        output.sum().backward()
        optimizer.step()

    return lp.capture(step)


def test_environment_of_30_ms_bounds_the_step_on_every_gpu(step_clock: Clock) -> None:
    trace = training(lambda: step_clock.works(0.03))
    assert python_of(trace) == pytest.approx(0.03)
    result = lp.predict(trace, gpus=["T4", "H100-SXM-80GB"], history=False)
    without = lp.predict(training(lambda: None), gpus=["T4", "H100-SXM-80GB"], history=False)
    for gpu, step in result.items():
        assert step.iteration_seconds > without[gpu].iteration_seconds + 0.02
        assert step.verdict is not None
        assert step.verdict.bound_by == "host"
        assert step.notes[-1].startswith("The recorded step has ")
        assert step.notes[-1].endswith(
            " ms outside operations (Python work, data, waits). This counts as host time on every GPU."
        )
    assert not any("outside operations" in note for note in without["T4"].notes)


class Slow(torch.optim.SGD):
    """An optimizer that prepares its update for long, as one of many parameters does under a recorder."""

    clock: Clock

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        self.clock.works(0.02)
        super().step()
        return loss


@pytest.mark.parametrize("has_closure", [False, True])
def test_preparation_of_an_update_does_not_count(has_closure: bool, step_clock: Clock) -> None:
    model = nn.Linear(16, 16)
    optimizer = Slow(model.parameters(), lr=0.1)
    optimizer.clock = step_clock
    data = torch.ones(4, 16)

    def loss() -> float:
        optimizer.zero_grad()
        model(data).sum().backward()
        step_clock.works(0.03)  # a metric
        return 0.0

    def step() -> None:
        if has_closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()

    assert python_of(lp.capture(step)) == pytest.approx(0.03)  # not 0.05


def test_hooks_within_a_backward_pass_do_not_count(step_clock: Clock) -> None:
    weight = nn.Parameter(torch.ones(4))

    def step() -> None:
        step_clock.works(0.01)
        (weight.exp() * 2).sum().backward()

    handle = weight.register_hook(lambda _gradient: step_clock.works(0.03))
    try:
        trace = lp.capture(step)
    finally:
        handle.remove()
    assert python_of(trace) == pytest.approx(0.01)  # not 0.04


def test_profile_begins_with_the_code_before_the_first_operation() -> None:
    recorder = ProfilerRecorder(cuda=False)
    recorder.start()
    time.sleep(0.03)
    torch.ones(4).exp()
    recorder.stop()
    trace = recorder.trace()
    assert 0.03 < (trace.operations[0].host_start_seconds or 0) < (trace.profiled_seconds or 0)
