"""What TensorBoard, W&B (offline), MLflow (a local store) and CSV hold after a fit, read back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from tests.callbacks.small import Small, our_rows

pytestmark = pytest.mark.usefixtures("readings")


@pytest.fixture(autouse=True)
def _warned(said: list[str]) -> Iterator[None]:
    """The budget warns before it ends the run: at 80 % of its dollars."""
    yield
    assert all("(usd) are used" in message for message in said)
    said.clear()


def fit(small: Small, folder: Path, logger: Any) -> RuntimePredictor:
    """A fit that predicts, and that a budget then ends."""
    predictor = RuntimePredictor(["T4", "L4"], warmup_steps=2, deadline_hours=1.0)
    budget = CostBudget(usd=20, usd_per_hour=3600)  # a dollar a second, and as many readings of the clock
    trainer = small.trainer(folder, max_epochs=1, logger=logger, callbacks=[predictor, budget])
    trainer.fit(small.model(), small.loader(8))
    assert predictor.predictions is not None
    assert budget.stopping_reason is not None
    return predictor


def test_tensorboard(small: Small, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = small.lightning.loggers.TensorBoardLogger(tmp_path)
    fit(small, tmp_path, logger)
    events = EventAccumulator(logger.log_dir)
    events.Reload()

    def text(tag: str) -> str:
        (event,) = events.Tensors(f"{tag}/text_summary")
        return str(event.tensor_proto.string_val[0].decode())

    assert "cheapest" in text("predict/ranking")
    assert "- Within 1 h: " in text("predict/ranking")
    assert text("run_budget/exceeded").startswith("**exceeded** at step ")
    assert text("run_budget/exceeded").endswith("of $20.00 (usd) are used")
    assert [scalar.value for scalar in events.Scalars("run_budget/exceeded")][-1] == 1.0
    assert events.Scalars("predict/T4/total_hours")
    assert "| GPU |" in text("predict/table")
    groups = [tag.partition("/")[0] for tag in sorted(events.Tags()["scalars"]) if "/" in tag]  # as its pages sort
    assert list(dict.fromkeys(groups)) == ["predict", "run_budget"]
    assert "predict/hours_left_here" in events.Tags()["scalars"]


def test_csv(small: Small, tmp_path: Path) -> None:
    logger = small.lightning.loggers.CSVLogger(tmp_path)
    predictor = fit(small, tmp_path, logger)
    rows = our_rows(logger)
    assert predictor.predictions is not None
    predicted = [float(row["predict/T4/iteration_ms"]) for row in rows if row["predict/T4/iteration_ms"]]
    assert predicted == [pytest.approx(predictor.predictions["T4"].iteration_seconds * 1e3)]
    assert [float(row["run_budget/exceeded"]) for row in rows if row["run_budget/exceeded"]][-1] == 1.0


def test_mlflow(lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more than mlflow-skinny
    logger = lightning.lightning.loggers.MLFlowLogger(save_dir=str(tmp_path / "mlruns"))
    fit(lightning, tmp_path, logger)
    client, run_id = logger.experiment, logger.run_id
    names = {Path(artifact.path).name for artifact in client.list_artifacts(run_id, "lightning_predict")}
    assert {"predictions.json", "predict_ranking_step_2.md", "run_budget_exceeded_step_3.md"} <= names
    folder = Path(client.get_run(run_id).info.artifact_uri.removeprefix("file://")) / "lightning_predict"
    assert "cheapest" in (folder / "predict_ranking_step_2.md").read_text()
    assert "(usd) are used" in (folder / "run_budget_exceeded_step_3.md").read_text()
    assert client.get_run(run_id).data.metrics["run_budget/exceeded"] == 1.0


def test_wandb(lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = lightning.lightning.loggers.WandbLogger(save_dir=str(tmp_path), offline=True)
    try:
        fit(lightning, tmp_path, logger)
        summary = dict(logger.experiment.summary)
    finally:
        logger.experiment.finish()
    assert "cheapest" in summary["predict/ranking_text"]
    assert summary["predict/cheapest_gpu"] == "T4"
    assert summary["run_budget/exceeded_text"].startswith("**exceeded** at step 3: ")
    assert "(usd) are used" in summary["run_budget/exceeded_text"]
