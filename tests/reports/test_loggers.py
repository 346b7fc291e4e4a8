"""Metrics as every logger takes them, and the real loggers, read back from what they wrote."""

import csv
import importlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger

from lightning_predict.base.interval import Interval
from lightning_predict.reports.loggers import (
    CSV_FILE,
    QUANTITIES,
    TENSORBOARD_WIDTH,
    log_predictions,
    log_text,
    metrics,
    selected_gpus,
    write_json,
)
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import rank
from lightning_predict.reports.table import markdown_table
from lightning_predict.testing import with_values
from tests.reports.example import BARE, FULL, MINIMAL

MLFLOW_KEY = re.compile(r"[a-zA-Z0-9_/. -]+")


def test_every_known_value_has_its_key() -> None:
    brief = metrics(Predictions((FULL["T4"],)))
    assert set(brief) == {f"predict/T4/{name}" for name in ("iteration_ms", "total_hours", "cost_usd")}
    assert metrics(Predictions((FULL["T4"],)), in_full=True) == pytest.approx(
        {
            "predict/T4/iteration_ms": 48.0,
            "predict/T4/iteration_ms_low": 45.0,
            "predict/T4/iteration_ms_high": 52.0,
            "predict/T4/remaining_hours": 3.2,  # 11,520 s / 3,600
            "predict/T4/total_hours": 3.2,
            "predict/T4/cost_usd": 1.12,
            "predict/T4/samples_per_second": FULL["T4"].samples_per_second,
            "predict/T4/memory_gib": 7.81,
            "predict/T4/memory_free_gib": 6.29,
        }
    )


def test_only_decisive_gpus_of_many_are_logged() -> None:
    # Dollars an hour and hours: a is the cheapest, d the fastest, b the cheapest within two hours, e does not fit.
    offered = {"a": (1.0, 4.0), "b": (2.5, 2.0), "c": (9.0, 3.0), "d": (9.0, 1.0), "e": (0.1, 0.5)}
    many = Predictions(
        tuple(
            with_values(
                MINIMAL,
                gpu=gpu,
                total=Interval(3600 * hours, 3600 * hours, 3600 * hours),
                cost_usd=price * hours,
                memory_fit="exceeds" if gpu == "e" else "fits",
            )
            for gpu, (price, hours) in offered.items()
        ),
        used_gpu="c",
    )
    chosen = selected_gpus(rank(many, deadline_hours=2.0), many)
    assert chosen == {"a", "b", "c", "d"}
    assert {key.split("/")[1] for key in metrics(many, gpus=chosen)} == chosen
    few = Predictions(tuple(many.values())[:3])
    assert selected_gpus(rank(few), few) == {"a", "b", "c"}
    nowhere = Predictions(tuple(with_values(prediction, memory_fit="exceeds") for prediction in many.values()))
    assert selected_gpus(rank(nowhere), nowhere) == set(offered)


def test_only_known_values_are_logged_with_the_loggers_separator() -> None:
    assert set(metrics(BARE)) == {"predict/L4/iteration_ms", "predict/A10/iteration_ms"}
    assert set(metrics(BARE, in_full=True)) == {
        f"predict/{gpu}/iteration_ms{end}" for gpu in ("L4", "A10") for end in ("", "_low", "_high")
    }
    assert "predict/K80/cost_usd" not in metrics(FULL)
    assert "predict/K80/total_hours" in metrics(FULL)
    assert metrics(Predictions((with_values(MINIMAL, cost_usd=0.0),)))["predict/L4/cost_usd"] == 0.0
    assert "predict-T4-iteration_ms" in metrics(FULL, separator="-")


@given(st.lists(st.from_regex(r"[A-Za-z0-9.-]+", fullmatch=True), unique=True, max_size=5))
def test_keys_of_any_allowed_gpu_name_are_distinct_and_allowed_by_mlflow(names: list[str]) -> None:
    keys = metrics(Predictions(tuple(with_values(MINIMAL, gpu=name) for name in names)), in_full=True)
    assert len(keys) == 3 * len(names)
    assert all(MLFLOW_KEY.fullmatch(key) for key in keys)


STEP = 4


class BrokenLogger(TensorBoardLogger):
    """Its server has gone."""

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        raise ConnectionError("no route to host")


class PickyLogger(TensorBoardLogger):
    """It takes numbers and no text."""

    @property
    def experiment(self) -> Any:
        experiment = super().experiment

        class Picky:
            def __getattr__(self, name: str) -> Any:
                if name == "add_text":
                    raise NotImplementedError("no text here")
                return getattr(experiment, name)

        return Picky()


class CountingLogger:
    """Not a Lightning class at all; it has the public interface only."""

    group_separator = "."

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, float], int]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.calls.append((metrics, step))


def events(logger: TensorBoardLogger) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger.finalize("success")
    accumulator = EventAccumulator(logger.log_dir)
    accumulator.Reload()
    return accumulator


def csv_rows(logger: CSVLogger) -> list[dict[str, str]]:
    with open(Path(logger.log_dir) / CSV_FILE, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_tensorboard_gets_scalars_and_the_table(package: str, tmp_path: Path) -> None:
    logger = importlib.import_module(f"{package}.loggers").TensorBoardLogger(tmp_path)
    assert log_predictions([logger], FULL, step=STEP) == ()
    written = events(logger)
    assert set(written.Tags()["scalars"]) == set(metrics(FULL))
    (scalar,) = written.Scalars("predict/T4/iteration_ms")
    assert (scalar.step, scalar.value) == (STEP, pytest.approx(48.0))
    (text,) = written.Tensors("predict/table/text_summary")
    assert text.step == STEP
    assert text.tensor_proto.string_val[0].decode() == markdown_table(FULL, verbose=False, width=TENSORBOARD_WIDTH)
    assert written.Tags()["tensors"] == ["predict/table/text_summary"]


def test_csv_gets_a_row_per_metric_in_a_file_of_its_own(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    assert log_predictions([logger], FULL, step=STEP) == log_predictions([logger], BARE, step=STEP + 1) == ()
    rows = csv_rows(logger)
    assert [int(row["step"]) for row in rows] == [STEP] * len(metrics(FULL)) + [STEP + 1] * len(metrics(BARE))
    logged = {row["name"]: float(row["value"]) for row in rows[: len(metrics(FULL))]}
    assert logged == pytest.approx(metrics(FULL))
    assert not (Path(logger.log_dir) / "metrics.csv").exists()  # of the user


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
def test_csv_of_the_user_or_of_an_earlier_run_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "csv" / "v"
    folder.mkdir(parents=True)
    (folder / CSV_FILE).write_text("mine\n1\n")
    for _ in range(2):  # two runs
        logger = CSVLogger(tmp_path, name="csv", version="v")
        assert log_predictions([logger], BARE, step=1) == log_predictions([logger], BARE, step=2) == ()
    assert (folder / CSV_FILE).read_text() == "mine\n1\n"
    contents = [(folder / f"lightning_predict-{number}.csv").read_text() for number in (2, 3)]
    assert contents[0] == contents[1]
    assert contents[0].count("\n") == 1 + 2 * len(metrics(BARE))
    assert len(list(folder.iterdir())) == 3


@pytest.fixture
def wandb_logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbLogger]:
    pytest.importorskip("wandb")
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_CONFIG_DIR": str(tmp_path / "config"),
        "WANDB_CACHE_DIR": str(tmp_path / "cache"),
        "WANDB_DATA_DIR": str(tmp_path / "data"),
    }.items():
        monkeypatch.setenv(name, value)
    logger = WandbLogger(save_dir=tmp_path, project="predictions", offline=True)
    yield logger
    logger.experiment.finish()


# wandb 0.31 keeps tables in a temporary folder that it leaves to the garbage collector; not something we can close.
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up <TemporaryDirectory:ResourceWarning")
def test_wandb_gets_metrics_and_a_table_of_numbers(wandb_logger: WandbLogger, tmp_path: Path) -> None:
    assert log_predictions([wandb_logger], FULL, step=STEP) == ()
    wandb_logger.experiment.log({"loss": 1.0})  # the user's next row, which ours are part of
    summary = dict(wandb_logger.experiment.summary)
    assert {key: summary[key] for key in metrics(FULL)} == pytest.approx(metrics(FULL))
    assert summary["trainer/global_step"] == STEP
    assert (summary["predict/cheapest_gpu"], summary["predict/fastest_gpu"]) == ("T4", "H100-SXM-80GB")
    assert (summary["predict/cheapest_usd"], summary["predict/cheapest_hours"]) == (1.12, pytest.approx(3.2))
    (path,) = Path(wandb_logger.experiment.dir).glob("media/table/predict/table_*.table.json")
    table = json.loads(path.read_text())
    others = ["measured_ms", "fits", "memory_fit", "covered_by", "offer"]
    assert table["columns"] == ["gpu", "in_use", *QUANTITIES, *others]
    rows = {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["data"]}
    assert list(rows) == ["H100-SXM-80GB", "T4", "K80"]
    assert rows["T4"]["in_use"] is True
    assert rows["T4"]["measured_ms"] == pytest.approx(47.5)
    assert rows["T4"]["total_hours"] == pytest.approx(3.2)
    # Four significant digits, which a page has room for.
    numbers = [cell for row in table["data"] for cell in row if isinstance(cell, float)]
    assert numbers == [float(f"{number:.4g}") for number in numbers]
    assert rows["K80"]["cost_usd"] is None
    assert rows["K80"]["fits"] is False
    assert rows["K80"]["memory_fit"] == "exceeds"
    assert rows["T4"]["covered_by"] == "mlp 0.920, roofline 0.080"


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up <TemporaryDirectory:ResourceWarning")  # as above
def test_a_wandb_table_may_have_columns_in_which_nothing_is_known(wandb_logger: WandbLogger) -> None:
    assert log_predictions([wandb_logger], BARE, step=STEP) == ()


def test_mlflow_gets_metrics_and_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    # A folder is the one store that needs no server and no database; MLflow 3 wants to be asked for it.
    store = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)  # MLflow sets it itself; here it is restored afterwards
    logger = MLFlowLogger(tracking_uri=store)
    assert log_predictions([logger], FULL, step=STEP) == ()
    client: Any = logger.experiment
    assert client.get_run(logger.run_id).data.metrics == pytest.approx(metrics(FULL))
    (measured,) = client.get_metric_history(logger.run_id, "predict/T4/iteration_ms")
    assert measured.step == STEP
    read = json.loads(Path(client.download_artifacts(logger.run_id, "lightning_predict/predictions.json")).read_text())
    assert read == json.loads(FULL.to_json()) | {"step": STEP}
    markdown = Path(client.download_artifacts(logger.run_id, "lightning_predict/predictions.md")).read_text()
    assert markdown == markdown_table(FULL)


def test_failing_logger_and_refused_output_do_not_affect_others(tmp_path: Path) -> None:
    before, broken, after = CSVLogger(tmp_path / "1"), BrokenLogger(tmp_path / "2"), CSVLogger(tmp_path / "3")
    assert log_predictions([before, broken, after], FULL, step=STEP) == (
        "BrokenLogger could not log the metrics of the predictions: ConnectionError: no route to host",
    )
    assert len(csv_rows(before)) == len(csv_rows(after)) == len(metrics(FULL))
    logger = PickyLogger(tmp_path)
    assert log_predictions([logger], FULL, step=STEP) == (
        "PickyLogger could not log the table of the predictions: NotImplementedError: no text here",
    )


class DrawingLogger(TensorBoardLogger):
    """Draws a random number in each call, also in the thread that sends tables."""

    @property
    def experiment(self) -> Any:
        random.random()
        return super().experiment


def test_random_numbers_continue_after_a_logger_that_draws(tmp_path: Path) -> None:
    logger, before = DrawingLogger(tmp_path), random.getstate()
    assert log_predictions([logger], FULL, step=STEP) == log_text([logger], "run/event", "warned", step=STEP) == ()
    assert random.getstate() == before


def test_any_other_logger_gets_metrics_and_lightnings_dummy_takes_them() -> None:
    logger = CountingLogger()
    assert log_predictions([logger], FULL, step=STEP) == ()
    assert logger.calls == [(metrics(FULL, separator="."), STEP)]
    assert log_predictions([DummyLogger()], FULL, step=STEP) == log_predictions([], FULL, step=STEP) == ()


def test_json_is_written_to_a_new_folder_and_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_json(FULL, tmp_path / "new" / "folder" / "found.json")
    assert path == tmp_path / "new" / "folder" / "found.json"
    assert json.loads(path.read_text()) == FULL.as_dict()
    assert list(path.parent.iterdir()) == [path]
    path = write_json(BARE, tmp_path / "own" / "found.json")

    def full_disk(part: str, whole: str) -> None:
        raise OSError(f"No space left on device for {part}, {whole}")

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", full_disk)
        with pytest.raises(OSError, match="No space left"):
            write_json(FULL, path)
    assert json.loads(path.read_text()) == BARE.as_dict()
    assert list(path.parent.iterdir()) == [path]
    write_json(FULL, path)
    assert json.loads(path.read_text()) == FULL.as_dict()
