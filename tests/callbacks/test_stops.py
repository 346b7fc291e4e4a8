"""What else decides by validation, after each kind of stop: the best checkpoint, early stopping, a sweep's summary."""

import os
import resource
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_predict.base.errors import BudgetExceededError
from lightning_predict.callbacks import CostBudget, budget_fit
from lightning_predict.testing import Clock
from tests.callbacks.small import Small

TRAINED, VALIDATED = 10, 20  # Batches of an epoch and of its validation


def worsening(small: Small, time: Clock, validation_seconds: float) -> Any:
    """A model that trains a batch in a second, whose validations have the means 1, 2, 3 and so on.

    The first batch of each is 190 below its mean and the others 10 above, so that every part of it looks better.
    """
    model = small.model()
    step = model.training_step

    def training_step(batch: torch.Tensor, batch_idx: int) -> Any:
        time.advance(1.0)
        return step(batch, batch_idx)

    def validation_step(batch: torch.Tensor, batch_idx: int) -> None:
        time.advance(validation_seconds)
        mean = 1 + model.validated // VALIDATED
        model.validated += 1
        model.log("monitored", float(mean - 190 if batch_idx == 0 else mean + 10))

    model.training_step, model.validation_step, model.validated = training_step, validation_step, 0
    return model


# An epoch is 10 s of training and 20 batches of validation, of 0.1 s or of a minute each. Of 17.5 s the first takes 12;
# after 4 batches more 1.5 s are left, less than the validation that ends a run takes, and after 6 nothing.
STOPS: dict[str, tuple[float, float, str, int, int]] = {
    # name: budget in seconds, a validation batch's, on_exceed, batches trained, batches validated
    "a forecast": (100.0, 0.1, "stop", 67, 140),  # 79 % are six epochs of 12 s and 7 batches
    "what is used": (17.5, 0.1, "stop", 14, 40),
    "what is used, by an error": (17.5, 0.1, "raise", 16, 20),
    "a validation that ends a little over it": (1190.0, 60.0, "stop", 10, 20),
    "within a validation": (1300.0, 60.0, "stop", 11, 22),
    "within a validation, by an error": (1300.0, 60.0, "raise", 20, 22),
    "none, only a warning": (17.5, 0.1, "warn", 30, 60),
}


@pytest.mark.parametrize("kind", STOPS)
def test_only_whole_validations_count_for_what_else_decides_by_them(
    kind: str, small: Small, tmp_path: Path, time: Clock
) -> None:
    seconds, validation_seconds, on_exceed, trained, validated = STOPS[kind]
    model = worsening(small, time, validation_seconds)
    budget = CostBudget(hours=seconds / 3600, on_exceed=on_exceed)  # type: ignore[arg-type]
    callbacks = small.lightning.callbacks
    best = callbacks.ModelCheckpoint(tmp_path / "best", monitor="monitored", save_top_k=1, filename="{monitored:.2f}")
    stopping = callbacks.EarlyStopping("monitored", patience=10**6)
    logger = small.lightning.loggers.CSVLogger(tmp_path, flush_logs_every_n_steps=10**6)
    trainer = small.trainer(
        tmp_path,
        # A run that may end early is not stopped by a forecast.
        callbacks=[budget, best, *([stopping] if kind != "a forecast" else [])],
        num_sanity_val_steps=0,
        max_epochs=3 if kind != "a forecast" else 100,
        logger=logger,
        enable_checkpointing=True,
    )
    rows: list[dict[str, float]] = []
    log = logger.log_metrics

    def log_metrics(metrics: Mapping[str, float], step: int | None = None) -> None:
        rows.append(dict(metrics))
        log(metrics, step)

    logger.log_metrics = log_metrics
    raised = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that most of the budget is used
        try:
            trainer.fit(model, small.loader(TRAINED), small.loader(VALIDATED))
        except BudgetExceededError as error:
            raised = error
    assert (model.batches_trained, model.validated) == (trained, validated)
    assert (raised is not None) == ("error" in kind)  # a stop never raises
    whole = validated // VALIDATED
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["monitored=1.00.ckpt"]
    assert float(best.best_model_score) == 1.0
    if kind != "a forecast":
        assert float(stopping.best_score) == 1.0
        assert stopping.wait_count == whole - 1
    # A sweep compares the value that was logged last.
    assert float(trainer.callback_metrics["monitored"]) == whole
    assert [row["monitored"] for row in rows if "monitored" in row] == list(range(1, whole + 1))


def exhaust_files(_: pytest.MonkeyPatch) -> None:
    """Allow no further open file."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def remove_package(patch: pytest.MonkeyPatch) -> None:
    """Let imports of further modules of the package fail, as if the package was uninstalled."""

    class Gone:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.startswith("lightning_predict."):
                raise ModuleNotFoundError(name)

    patch.setattr(sys, "meta_path", [Gone(), *sys.meta_path])


def fail_to_forecast(patch: pytest.MonkeyPatch) -> None:
    """Let each forecast fail."""
    patch.setattr(budget_fit, "forecast_inputs", lambda *_, **__: 1 / 0)


def close_outputs(patch: pytest.MonkeyPatch) -> None:
    """Take standard output and error away."""
    patch.setattr(sys, "stdout", None)
    patch.setattr(sys, "stderr", None)


@pytest.mark.skipif(os.name != "posix", reason="limits of open files")
@pytest.mark.parametrize("fault", [exhaust_files, remove_package, fail_to_forecast, close_outputs])
@pytest.mark.filterwarnings("ignore::lightning_predict.callbacks.lightning_packages.LightningPredictWarning")
def test_fault_that_begins_during_the_run_does_not_keep_the_budget_from_ending_it(
    fault: Callable[[pytest.MonkeyPatch], None], lightning: Small, tmp_path: Path, time: Clock
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    model = lightning.model()
    step = model.training_step
    with pytest.MonkeyPatch.context() as patch:

        def training_step(batch: torch.Tensor, batch_idx: int) -> Any:
            time.advance(1.0)
            if batch_idx == 2:
                fault(patch)
            return step(batch, batch_idx)

        model.training_step = training_step
        budget = CostBudget(hours=100 / 3600)
        trainer = lightning.trainer(tmp_path, max_epochs=1, callbacks=[budget])
        try:
            trainer.fit(model, lightning.loader(300))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    # The forecast ends the run once 79 % are used of the budget; without a forecast, the used amount ends it.
    assert model.batches_trained == (100 if fault is fail_to_forecast else 79)
    assert budget.stopping_reason is not None
