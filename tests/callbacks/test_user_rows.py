"""The rows of a user's loggers are the same with and without the callbacks, whatever the logger makes of its steps."""

import threading
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from tests.callbacks.small import BATCH_SIZE, Small


def ours() -> list[Any]:
    return [RuntimePredictor(["T4"], warmup_steps=2, print_table=False), CostBudget(usd=1e6, usd_per_hour=1.0)]


def logging_model(small: Small, *, manual: bool, own_step: int | None) -> Any:
    """A model that logs in training and validation, for a monotonic logger also by a step of its own."""
    base = type(small.gan() if manual else small.model(validates=True))

    class Logging(base):  # type: ignore[misc,valid-type]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("train_loss", float(self.batches_trained))
            if own_step is not None:
                self.log("step", float(self.batches_trained * own_step))
            return super().training_step(batch, batch_idx)

    return Logging()


CASES: dict[str, dict[str, Any]] = {
    "each batch": {},
    "every fifth batch": {"log_every_n_steps": 5},
    "accumulation": {"accumulate_grad_batches": 3},
    "two optimizers by hand": {"manual": True},
    "samples as steps": {"own_step": BATCH_SIZE},
}


def fit(small: Small, folder: Path, logger: Any, case: dict[str, Any], callbacks: list[Any]) -> Any:
    options = dict(case)
    manual, own_step = options.pop("manual", False), options.pop("own_step", None)
    trainer = small.trainer(folder, max_epochs=2, logger=logger, callbacks=callbacks, **options)
    validation = None if manual else small.loader(4)
    trainer.fit(logging_model(small, manual=manual, own_step=own_step), small.loader(12), validation)
    return logger


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_metrics_csv_of_the_user_is_byte_for_byte_the_same(small: Small, tmp_path: Path, case: dict[str, Any]) -> None:
    def written(name: str, callbacks: list[Any]) -> bytes:
        logger = small.lightning.loggers.CSVLogger(tmp_path / name, flush_logs_every_n_steps=1)
        monitor = small.lightning.callbacks.LearningRateMonitor("step")
        fit(small, tmp_path, logger, case, [*callbacks, monitor])
        return (Path(logger.log_dir) / "metrics.csv").read_bytes()

    assert written("with", ours()) == written("without", [])


def monotonic(small: Small) -> Any:
    """Return a logger that drops rows whose step goes back, as W&B, and keeps an active run per thread, as MLflow."""
    active = threading.local()

    class Monotonic(small.lightning.loggers.logger.DummyLogger):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.rows: list[tuple[int, dict[str, float]]] = []
            self.runs, self.last, self.empty = 0, -1, 0

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            if not hasattr(active, "run"):
                active.run = self.runs = self.runs + 1
            self.empty += not metrics
            users = {name: value for name, value in metrics.items() if "/" not in name}
            if step >= self.last and users:
                self.rows.append((step, users))
            self.last = max(step, self.last)

    return Monotonic()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_logger_whose_steps_may_not_go_back_drops_no_row_of_the_user(
    small: Small, tmp_path: Path, case: dict[str, Any]
) -> None:
    observed, alone = (fit(small, tmp_path, monotonic(small), case, callbacks) for callbacks in (ours(), []))
    assert (observed.rows, observed.runs) == (alone.rows, 1)
    assert observed.empty == 0  # after fewer than 20 batches, there is no outcome to log


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up <TemporaryDirectory:ResourceWarning")
def test_rows_that_the_user_sends_to_wandb_with_a_step_are_kept(
    lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    steps: list[int] = []

    class Own(lightning.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            steps.append(trainer.logger.experiment.step)  # W&B drops a row whose step is below
            trainer.logger.experiment.log({"mine": batch_idx}, step=batch_idx)

    logger = lightning.lightning.loggers.WandbLogger(save_dir=str(tmp_path), offline=True)
    predictor = RuntimePredictor(["T4"], warmup_steps=2, print_table=False)
    budget = CostBudget(usd=1e6, usd_per_hour=1.0)
    trainer = lightning.trainer(tmp_path, max_epochs=1, logger=logger, callbacks=[predictor, budget, Own()])
    trainer.fit(lightning.model(), lightning.loader(40))
    summary = dict(logger.experiment.summary)
    logger.experiment.finish()
    assert all(step <= batch for batch, step in enumerate(steps))
    assert summary["predict/T4/iteration_ms"] > 0
    assert summary["run_budget/usd_used"] > 0
