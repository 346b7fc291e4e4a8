"""Times in which a step runs no operation, with clocks that stand still."""

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
from lightning_predict.record.pauses import SHORTEST_PAUSE_SECONDS, PauseTimer, user_seconds
from lightning_predict.record.profiler import ProfilerRecorder
from lightning_predict.record.trace import Operation, Trace

THREE = tuple(Operation(name=name, phase="forward") for name in ("aten::mm", "aten::relu", "aten::sum"))


class Clocks:
    """Clocks of the pauses."""

    def __init__(self) -> None:
        self.own = 0.0

    def pauses(self) -> PauseTimer:
        return PauseTimer(clock=lambda: self.own)

    def works(self, seconds: float) -> None:
        self.own += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def python(pauses: PauseTimer) -> list[float]:
    return [operation.python_seconds for operation in pauses.placed(THREE)]


def test_work_of_the_steps_own_code_stands_before_the_operation_that_follows(clocks: Clocks) -> None:
    pauses = clocks.pauses()
    for before, seconds in enumerate((0.03, 0.0, 0.02)):
        pauses.begins()
        clocks.works(seconds)
        pauses.ends(before=before)
        clocks.works(1.0)  # the operation itself
    assert python(pauses) == pytest.approx([0.03, 0, 0.02])


def test_pytorchs_own_work_between_steps_and_before_a_backward_pass_grows_with_them_and_does_not_count(
    clocks: Clocks,
) -> None:
    """3,000 parameters are set to no gradient in 10 to 20 ms, and 20,000 nodes made ready in 10."""
    forward = [Operation(name="aten::mm", phase="forward")] * 20_000
    operations = (*forward, Operation(name="aten::mm", phase="backward"))
    pauses = clocks.pauses()
    for before, seconds in ((0, 0.02), (20_000, 0.02)):
        pauses.begins()
        clocks.works(seconds)
        pauses.ends(before=before)
    counted = [sum(one.python_seconds for one in pauses.placed(operations, parameters=n)) for n in (0, 3_000)]
    assert counted == pytest.approx([0.02, 0.0])
    short = pauses.placed((*forward[:20], *operations[-1:]))  # with few calls, 20 ms are the step's own
    assert sum(one.python_seconds for one in short) == pytest.approx(0.04)


def test_pytorchs_own_work_on_all_parameters_before_an_update_does_not_count(clocks: Clocks) -> None:
    """Clipping the norm of 400 parameters' gradients passes through them in 16 ms at worst; a loss's are its own."""
    operations = [Operation(name="aten::mm", phase=phase) for phase in ("forward", "backward", "optimizer")]
    pauses = clocks.pauses()
    for before in (1, 2):
        pauses.begins()
        clocks.works(0.016)
        pauses.ends(before=before)
    counted = [one.python_seconds for one in pauses.placed(operations, parameters=400)]
    assert counted == pytest.approx([0.0, 0.016, 0.0])
    few = [one.python_seconds for one in pauses.placed(operations, parameters=20)]  # 16 ms are more than theirs
    assert few == pytest.approx([0.0, 0.016, 0.016])


def test_freeing_the_nodes_that_one_operation_made_does_not_count(clocks: Clocks) -> None:
    """An LSTM of 4 layers and 64 steps is one operation on the meta device and 3,850 nodes, freed in 6 to 9 ms."""
    pauses = clocks.pauses()
    pauses.begins()
    clocks.works(0.009)
    pauses.ends(before=3)
    assert [one.python_seconds for one in pauses.placed(THREE, parameters=16, nodes=3_850)] == [0, 0, 0]
    counted = [one.python_seconds for one in pauses.placed(THREE, parameters=16, nodes=100)]
    assert counted == pytest.approx([0.009, 0, 0])


def test_the_nodes_of_one_operation_that_makes_many_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    placed = PauseTimer.placed

    def noting(pauses: PauseTimer, operations: Sequence[Operation], **sizes: int) -> tuple[Operation, ...]:
        counted.append(sizes["nodes"])
        return placed(pauses, operations, **sizes)

    monkeypatch.setattr(PauseTimer, "placed", noting)
    with torch.device("meta"):
        model, sequence = nn.LSTM(8, 8, 2), torch.zeros(5, 3, 8)
    trace = lp.capture(lambda: model(sequence)[0].sum().backward())
    assert sum(one.name == "aten::lstm" for one in trace.operations) == 1
    # Two layers of five steps, each of a product and the gates' five activations at least.
    assert counted[-1] >= 2 * 5 * 6


def test_what_follows_the_last_operation_comes_before_the_first_of_the_next_step(clocks: Clocks) -> None:
    pauses = clocks.pauses()
    pauses.begins()
    clocks.works(0.03)
    pauses.ends(before=3)
    assert python(pauses) == pytest.approx([0.03, 0, 0])
    assert pauses.placed(()) == ()


def test_a_pause_of_the_framework_is_left_out(clocks: Clocks) -> None:
    pauses = clocks.pauses()
    pauses.begins()
    clocks.works(0.9 * SHORTEST_PAUSE_SECONDS)
    pauses.ends(before=0)
    assert python(pauses) == [0, 0, 0]


def test_only_the_time_of_the_recording_thread_counts() -> None:
    pauses = PauseTimer()
    pauses.begins()
    time.sleep(10 * SHORTEST_PAUSE_SECONDS)  # as if other programs had the processor
    pauses.ends(before=1)
    pauses.begins()
    until = user_seconds() + 4 * SHORTEST_PAUSE_SECONDS
    while user_seconds() < until:
        pass
    pauses.ends(before=2)
    none, still, worked = python(pauses)
    assert (none, still) == (0, 0)
    assert worked >= 4 * SHORTEST_PAUSE_SECONDS


def test_large_tensors_of_the_cpu_are_freed_for_nothing() -> None:
    """The kernel unmaps 800 MB in 80 ms, which a GPU's allocator keeps."""
    weight = torch.ones(8, requires_grad=True)

    def step() -> None:
        data = torch.ones(100_000_000)
        first = (data * 2)[:8].clone()
        del data
        (weight * first).sum().backward()

    assert sum(one.python_seconds for one in lp.capture(step).operations) == 0


def test_a_pause_in_which_only_the_framework_ran_is_left_out(clocks: Clocks) -> None:
    pauses = PauseTimer(lambda: True, clock=lambda: clocks.own)
    pauses.begins()
    clocks.works(0.05)
    pauses.ends(before=0)
    assert python(pauses) == [0, 0, 0]


def test_collecting_garbage_is_not_the_steps(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "callbacks", [])
    pauses = clocks.pauses()
    pauses.open()
    clocks.works(0.006)
    (collects,) = gc.callbacks
    collects("start", {})
    clocks.works(0.05)
    collects("stop", {})
    pauses.ends(before=1)
    pauses.close(after=1)
    assert gc.callbacks == []
    assert python(pauses) == pytest.approx([0, 0.006, 0])


def test_operations_inside_operations_are_no_pause(clocks: Clocks) -> None:
    pauses = clocks.pauses()
    pauses.begins()
    pauses.ends(before=0)  # a composite begins, and its parts
    clocks.works(1.0)
    pauses.ends(before=0)
    pauses.begins()
    pauses.begins()
    pauses.ends(before=1)
    assert python(pauses) == [0, 0, 0]


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


@pytest.fixture
def step_clocks(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """Clocks of the tests' own for recorded code: only `works` takes time, however busy the machine is."""
    monkeypatch.setattr(dispatch, "PauseTimer", partial(PauseTimer, clock=lambda: clocks.own))
    return clocks


def test_an_environment_of_30_ms_is_seen_on_every_gpu(step_clocks: Clocks) -> None:
    trace = training(lambda: step_clocks.works(0.03))
    assert sum(operation.python_seconds for operation in trace.operations) == pytest.approx(0.03)
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

    clocks: Clocks

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        self.clocks.works(0.02)
        super().step()
        return loss


@pytest.mark.parametrize("has_closure", [False, True])
def test_the_preparation_of_an_update_is_no_work_of_the_step_but_what_stands_before_it_is(
    has_closure: bool, step_clocks: Clocks
) -> None:
    model = nn.Linear(16, 16)
    optimizer = Slow(model.parameters(), lr=0.1)
    optimizer.clocks = step_clocks
    data = torch.ones(4, 16)

    def loss() -> float:
        optimizer.zero_grad()
        output = model(data).sum()
        output.backward()
        step_clocks.works(0.03)  # a metric
        return 0.0

    def step() -> None:
        if has_closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()

    trace = lp.capture(step)
    assert sum(operation.python_seconds for operation in trace.operations) == pytest.approx(0.03)  # not 0.05


def test_what_a_backward_pass_does_between_its_operations_is_left_out(step_clocks: Clocks) -> None:
    weight = nn.Parameter(torch.ones(4))

    def slow(gradient: torch.Tensor) -> None:
        step_clocks.works(0.03)

    def step() -> None:
        step_clocks.works(0.01)
        loss = (weight.exp() * 2).sum()
        loss.backward()

    handle = weight.register_hook(slow)
    try:
        trace = lp.capture(step)
    finally:
        handle.remove()
    assert sum(operation.python_seconds for operation in trace.operations) == pytest.approx(0.01)  # not 0.04


def test_a_profile_begins_where_the_step_does() -> None:
    recorder = ProfilerRecorder(cuda=False)
    recorder.start()
    time.sleep(0.03)
    torch.ones(4).exp()
    recorder.stop()
    trace = recorder.trace()
    assert trace.operations[0].host_start_seconds is not None
    assert trace.operations[0].host_start_seconds > 0.03
    assert trace.profiled_seconds is not None
    assert trace.profiled_seconds > trace.operations[0].host_start_seconds
