"""Each part of a recording stops by itself, even if another part raises."""

from typing import Any

import pytest
import torch
from torch.profiler import profile

from lightning_predict.callbacks.prediction_fit import PredictionFit
from lightning_predict.record.dispatch import DispatchRecorder
from lightning_predict.record.hooks import ModuleWatch, OptimizerWatch
from lightning_predict.record.modes import OperationMode, WholeCallMode
from lightning_predict.record.profiler import ProfilerRecorder
from lightning_predict.record.session import CaptureSession
from tests.record.test_session import nothing_is_left
from tests.record.workloads import perceptron_step

PARTS = [
    (ModuleWatch, "close"),
    (OptimizerWatch, "close"),
    (DispatchRecorder, "stop"),
    (OperationMode, "__exit__"),
    (WholeCallMode, "__exit__"),
    (ProfilerRecorder, "stop"),
    (profile, "stop"),
    (CaptureSession, "_note_end"),
]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "name"), PARTS, ids=[f"{owner.__name__}.{name}" for owner, name in PARTS])
@pytest.mark.parametrize("recorder", ["dispatch", "profiler"])
def test_error_in_one_part_stops_all_others(
    owner: type, name: str, recorder: str, late: bool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(owner, name)
    raised: list[int] = []

    def fail(*arguments: Any) -> Any:
        if late:
            original(*arguments)
        if not raised:
            raised.append(1)
            raise error("in the middle of stopping")
        return None if late else original(*arguments)

    step = perceptron_step()
    session = CaptureSession(device=torch.device("cpu"), model=step.model, compiled=recorder == "profiler")
    if recorder == "profiler":
        session._recorder = ProfilerRecorder(cuda=False, has_hooks=True)
    session.start()
    step()
    monkeypatch.setattr(owner, name, fail)
    try:
        session.stop()
    except KeyboardInterrupt:
        assert error is KeyboardInterrupt
    session.stop()  # as the callback's on_exception and teardown do
    monkeypatch.undo()
    session.stop()
    assert nothing_is_left()


def test_interrupt_at_the_start_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    for owner in (DispatchRecorder, ProfilerRecorder):
        session = CaptureSession(device=torch.device("cpu"), compiled=owner is ProfilerRecorder)
        with monkeypatch.context() as patch:
            patch.setattr(owner, "start", interrupt)
            with pytest.raises(KeyboardInterrupt):
                session.start()
        assert nothing_is_left()


def test_both_recorders_of_a_fit_stop_after_an_error() -> None:
    class Part:
        def __init__(self, error: BaseException | None = None) -> None:
            self.stopped = False
            self.error = error

        def stop(self) -> None:
            self.stopped = True
            if self.error is not None:
                raise self.error

    steps, validation = Part(ZeroDivisionError()), Part(KeyboardInterrupt())
    recording = object.__new__(PredictionFit)
    recording.steps, recording._validation = steps, validation  # type: ignore[assignment]
    recording._data_flow = recording._bar = None
    with pytest.raises(KeyboardInterrupt):
        recording.closes(ended=False)
    assert steps.stopped
    assert validation.stopped
