"""A fit is the same with and without RuntimePredictor, and nothing that fails in it harms the fit or stays behind."""

import copy
import os
import pickle
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import Optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from lightning_predict.base.errors import CaptureError
from lightning_predict.callbacks import CostBudget, RuntimePredictor, output
from lightning_predict.callbacks.lightning_packages import LightningPredictWarning
from lightning_predict.record.session import CaptureSession
from tests.callbacks.conftest import Call
from tests.callbacks.small import Small

GPUS = ["T4"]

optimizer = sys.modules[Optimizer.__module__]
"""`torch.optim.optimizer`, a name that the package `torch.optim` has deleted."""


def assert_nothing_is_open() -> None:
    assert not torch._C._autograd._profiler_enabled()
    assert _get_current_dispatch_mode_stack() == []
    assert _get_current_function_mode_stack() == []
    for hooks in (
        torch.nn.modules.module._global_forward_hooks,
        torch.nn.modules.module._global_forward_pre_hooks,
        optimizer._global_optimizer_pre_hooks,
        optimizer._global_optimizer_post_hooks,
    ):
        assert not hooks


@pytest.fixture(autouse=True)
def _leaves_nothing_open() -> Any:
    assert_nothing_is_open()
    yield
    assert_nothing_is_open()


def off_and_unharmed(small: Small, folder: Path, words: str) -> RuntimePredictor:
    """A fit in which the predictor gives up with one warning that holds these words."""
    predictor = RuntimePredictor(GPUS)
    model = small.model(validates=True)
    trainer = small.trainer(folder, max_epochs=3, callbacks=predictor)
    with pytest.warns(LightningPredictWarning, match=words) as warned:
        trainer.fit(model, small.loader(4), small.loader(2))
    assert len([warning for warning in warned if issubclass(warning.category, LightningPredictWarning)]) == 1
    assert model.batches_trained == 12
    assert predictor.predictions is None
    return predictor


def test_a_prediction_that_fails(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("lightning_predict.prediction.predict_workload", fails)
    off_and_unharmed(small, tmp_path, "RuntimePredictor is off, and training goes on: ZeroDivisionError: by zero")


def test_a_prediction_that_takes_too_long_is_dropped_in_words(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()
    monkeypatch.setattr("lightning_predict.observe.run_session.PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr("lightning_predict.prediction.predict_workload", lambda *args, **options: done.wait(60))
    start = time.monotonic()
    off_and_unharmed(small, tmp_path, "the prediction took more than 0.05 s")
    assert time.monotonic() - start < 30
    done.set()  # its thread ends


@pytest.mark.parametrize("method", ["start", "stop", "trace"])
def test_a_recorder_that_fails(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    works = getattr(CaptureSession, method)

    def fails(self: CaptureSession, **options: Any) -> None:
        works(self, **options)
        self.stop() if method == "start" else None
        raise CaptureError("out of order")

    monkeypatch.setattr(CaptureSession, method, fails)
    off_and_unharmed(small, tmp_path, "training goes on: CaptureError: out of order")


def test_validation_that_cannot_be_recorded_is_estimated(lightning: Small, tmp_path: Path, calls: list[Call]) -> None:
    model = lightning.model()
    model.validation_step = lambda batch, batch_idx: None  # not one torch operation
    trainer = lightning.trainer(tmp_path, max_epochs=1, callbacks=RuntimePredictor(GPUS))
    trainer.fit(model, lightning.loader(8), lightning.loader(2))
    (call,) = calls
    assert call.validation is None
    assert call.workload.validation_iterations == 2


@pytest.mark.parametrize("failing_batch", [2, 4, 6])
def test_the_users_own_error_leaves_nothing_open(small: Small, tmp_path: Path, failing_batch: int) -> None:
    # Batch 4 is the one that is recorded.
    model = small.model()
    step = model.training_step

    def failing(batch: torch.Tensor, batch_idx: int) -> Any:
        loss = step(batch, batch_idx)
        if model.batches_trained == failing_batch:
            raise KeyError("the user's own")
        return loss

    model.training_step = failing
    trainer = small.trainer(tmp_path, max_epochs=1, callbacks=RuntimePredictor(GPUS))
    with pytest.raises(KeyError, match="the user's own"):
        trainer.fit(model, small.loader(8))


def test_an_error_in_validation_leaves_nothing_open(small: Small, tmp_path: Path) -> None:
    model = small.model(validates=True)

    def failing(batch: torch.Tensor, batch_idx: int) -> None:
        if batch_idx == 1:  # the one that is recorded
            raise KeyError("the user's own")

    model.validation_step = failing
    trainer = small.trainer(tmp_path, max_epochs=1, callbacks=RuntimePredictor(GPUS))
    with pytest.raises(KeyError, match="the user's own"):
        trainer.fit(model, small.loader(4), small.loader(4))


def test_an_interruption_leaves_nothing_open(lightning: Small, tmp_path: Path) -> None:
    model = lightning.model()

    def interrupted(batch: torch.Tensor, batch_idx: int) -> None:
        if batch_idx == 3:
            raise KeyboardInterrupt

    model.on_before_zero_grad = lambda optimizer: interrupted(torch.empty(0), model.batches_trained - 1)
    trainer = lightning.trainer(tmp_path, max_epochs=1, callbacks=RuntimePredictor(GPUS))
    with pytest.raises(SystemExit):
        trainer.fit(model, lightning.loader(8))


@pytest.mark.usefixtures("readings")
def test_an_epoch_that_is_cut_short_in_the_recorded_batch(lightning: Small, tmp_path: Path, calls: list[Call]) -> None:
    model = lightning.model(validates=True)
    # Lightning leaves the epoch before its fourth batch, after the callbacks were told that it begins.
    model.on_train_batch_start = lambda batch, batch_idx: -1 if model.batches_trained == 3 and batch_idx == 3 else None
    trainer = lightning.trainer(tmp_path, max_epochs=2, callbacks=RuntimePredictor(GPUS))
    trainer.fit(model, lightning.loader(8), lightning.loader(2))
    assert model.batches_trained == 3 + 8
    assert [one.name for one in calls[0].trace.operations if one.phase == "forward"].count("aten::addmm") == 2
    assert calls[0].workload.training_iterations == 8 - 1


def test_compiled_code_stays_compiled(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    compilations = 0

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        nonlocal compilations
        compilations += 1
        return graph.forward

    def fitted(folder: Path, callbacks: list[Any]) -> tuple[int, dict[str, torch.Tensor]]:
        nonlocal compilations
        torch._dynamo.reset()
        compilations = 0
        model = small.model()
        torch.manual_seed(3)
        model.network = torch.compile(model.network, backend=backend)
        small.trainer(folder, max_epochs=3, callbacks=callbacks).fit(model, small.loader(6))
        return compilations, {name: value.clone() for name, value in model.state_dict().items()}

    try:
        graphs_with, weights_with = fitted(tmp_path, [RuntimePredictor(GPUS)])
        graphs_without, weights_without = fitted(tmp_path, [])
    finally:
        torch._dynamo.reset()
    assert graphs_with == graphs_without >= 1
    assert calls[0].trace.compiled
    for name, weight in weights_with.items():
        assert torch.equal(weight, weights_without[name]), name


@pytest.mark.parametrize("moment", ["on_train_start", "on_train_batch_start", "training_step", "on_validation_start"])
def test_callbacks_can_be_copied_and_pickled_while_they_record(small: Small, tmp_path: Path, moment: str) -> None:
    callbacks: list[Any] = [RuntimePredictor(GPUS, print_table=False), CostBudget(hours=1000, usd=1e6, usd_per_hour=1)]
    copies: list[Any] = []

    def copied(*_: Any) -> None:
        copies.append([[copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))] for callback in callbacks])

    class Copier(small.lightning.Callback):  # type: ignore[misc,name-defined]
        """Stands behind ours, so that it copies what they have begun."""

    model = small.model(validates=True)
    if moment == "training_step":
        step = model.training_step

        def training_step(batch: torch.Tensor, batch_idx: int) -> Any:
            copied()
            return step(batch, batch_idx)

        model.training_step = training_step
    else:
        setattr(Copier, moment, lambda self, *_: copied())
    with warnings.catch_warnings():
        warnings.simplefilter("error", LightningPredictWarning)
        trainer = small.trainer(tmp_path, max_epochs=3, callbacks=[*callbacks, Copier()])
        trainer.fit(model, small.loader(4), small.loader(2))
    assert model.batches_trained == 12
    assert callbacks[0].predictions is not None
    assert len(copies) >= 1
    for predictor, budget in zip(*copies[-1], strict=True):
        assert predictor.gpus == ("T4",)
        assert (predictor.predictions is None) == (moment == "on_train_start")
        assert 0 < budget.state_dict()["seconds"] <= callbacks[1].state_dict()["seconds"]
        # A copy serves another fit as the callback itself would.
        again = small.model(validates=True)
        small.trainer(tmp_path, max_epochs=2, callbacks=[predictor, budget]).fit(
            again, small.loader(4), small.loader(2)
        )
        assert again.batches_trained == 8
        assert predictor.predictions is not None


@pytest.mark.parametrize("name", ["history", "save_trace", "json_file"])
def test_pipe_without_reader_does_not_block_training(
    lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    if name == "history":
        monkeypatch.setenv("LIGHTNING_PREDICT_HISTORY", str(pipe))
    given: dict[str, Any] = {} if name == "history" else {name: pipe}
    predictor = RuntimePredictor(GPUS, print_table=False, **given)
    model = lightning.model()
    with pytest.warns(LightningPredictWarning) as warned:
        lightning.trainer(tmp_path, max_epochs=2, callbacks=predictor).fit(model, lightning.loader(4))
    said = [str(warning.message) for warning in warned if warning.category is LightningPredictWarning]
    words = "predicts without earlier runs" if name == "history" else f"could not write {name}"
    assert words in said[0]
    assert all("not a regular file; name one" in words for words in said)
    assert model.batches_trained == 8
    assert predictor.predictions is not None


def test_a_logger_that_hangs_keeps_no_run_waiting(
    lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()

    class Hung(lightning.lightning.loggers.TensorBoardLogger):  # type: ignore[misc,name-defined]
        @property
        def experiment(self) -> Any:
            experiment = super().experiment
            experiment.add_text = lambda *_, **__: done.wait(60)
            return experiment

    monkeypatch.setattr(output, "PATIENCE_SECONDS", 0.01)
    predictor, model = RuntimePredictor(GPUS, print_table=False), lightning.model()
    trainer = lightning.trainer(tmp_path, max_epochs=2, callbacks=predictor, logger=Hung(tmp_path))
    words = "Hung may lack .*: Hung (did not answer within 0.01 s|has not answered yet)"
    with pytest.warns(LightningPredictWarning, match=words):
        trainer.fit(model, lightning.loader(4))
    done.set()
    assert model.batches_trained == 8
    assert predictor.predictions is not None
