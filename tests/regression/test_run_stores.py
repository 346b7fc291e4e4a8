"""MLflow's folder and database, written by MLflow and by hand; the history; tables."""

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from lightning_predict.base.errors import InvalidArgumentError, MeasurementTableError
from lightning_predict.regression.runs import read_runs
from lightning_predict.run.history import append_record
from tests.regression.test_run_tables import OWN, write
from tests.run.test_history import RECORD


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs that MLflow wrote: three that ended, one that failed, one that was deleted."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more than mlflow-skinny
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.create_experiment("sweep")
    for number, (size, status) in enumerate([(8, "FINISHED"), (16, "FINISHED"), (32, "FINISHED"), (64, "FAILED")]):
        run = client.create_run(experiment, run_name=f"run-{number}").info.run_id
        client.log_param(run, "batch_size", size)
        client.log_param(run, "trainer/global_step", 100)
        client.log_metric(run, "seconds", 1.0, step=0)
        client.log_metric(run, "seconds", 10.0 + size, step=1)  # the last value counts
        client.set_tag(run, "gpu", "T4")
        client.set_terminated(run, status)
    client.delete_run(client.create_run(experiment).info.run_id)
    return tmp_path / "mlruns"


def test_a_folder_that_mlflow_wrote(folder: Path) -> None:
    table = read_runs(folder)
    assert sorted(run.seconds for run in table.runs) == [18.0, 26.0, 42.0]
    assert {run.setting.iterations for run in table.runs} == {100}
    assert {run.setting.gpu for run in table.runs} == {"T4"}
    assert table.notes == ("1 of 4 runs did not run to their end, and are left out.",)


def test_wrong_cell_and_meta_file_of_a_folder_are_named(folder: Path) -> None:
    path = next(path for path in folder.rglob("params/batch_size") if path.read_text() == "16")
    path.write_text("sixteen")
    words = f"{folder}, run run-1: params.batch_size is 'sixteen'; expected a finite number."
    with pytest.raises(MeasurementTableError, match=f"^{re.escape(words)}$"):
        read_runs(folder)
    next(folder.glob("*/*/meta.yaml")).write_text("a: [")
    with pytest.raises(
        MeasurementTableError,
        match=r"meta\.yaml, line 1, column 5 is not valid YAML: expected the node content, but found '<stream",
    ):
        read_runs(folder)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The tables of MLflow's database that are read, with the columns that it gives them."""
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE runs
                (run_uuid TEXT, name TEXT, status TEXT, start_time INT, end_time INT, lifecycle_stage TEXT);
            CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
            CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);
            CREATE TABLE latest_metrics (key TEXT, value REAL, run_uuid TEXT);
            INSERT INTO runs VALUES
                ('a', 'first', 'FINISHED', 1761990000000, 1761990210500, 'active'),
                ('b', 'second', 'RUNNING', 1761990000000, NULL, 'active'),
                ('c', 'third', 'FINISHED', 1761990000000, 1761990210500, 'deleted');
            INSERT INTO params VALUES ('bs', '64', 'a'), ('bs', '64', 'b'), ('bs', '64', 'c');
            INSERT INTO latest_metrics VALUES ('global_step', 1000, 'a');
            INSERT INTO tags VALUES ('gpu', 'T4', 'a');
            """
        )
    return path


def test_databases_of_mlflow_are_read_and_others_refused(database: Path, tmp_path: Path) -> None:
    table = read_runs(database, columns={"batch_size": "params.bs"})
    (run,) = table.runs
    assert (run.seconds, run.setting.batch_size, run.setting.iterations, run.setting.gpu) == (210.5, 64, 1000, "T4")
    assert table.notes == ("1 of 2 runs did not run to their end, and are left out.",)
    path = tmp_path / "photos.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE photos (id INT)")
    with pytest.raises(MeasurementTableError, match=r"photos\.db is not a database of MLflow: no such table: runs\."):
        read_runs(path)
    with pytest.raises(FileNotFoundError):
        read_runs(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()


def test_a_history(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for samples in (8, 16, 32):
        append_record(replace(RECORD, model="m", samples=samples, step_seconds=0.1 * samples), path)
    append_record(RECORD, path)  # of before models were told apart
    table = read_runs(path)
    assert [(run.model, run.setting.batch_size) for run in table.runs] == [("m", 8), ("m", 16), ("m", 32)]
    assert [run.seconds for run in table.runs] == pytest.approx([0.8, 1.6, 3.2])
    assert table.notes == ("1 of 4 runs do not say their model or batch size, and are left out.",)
    with pytest.raises(InvalidArgumentError, match="is a history, whose columns are known; leave columns and values"):
        read_runs(path, values={"gpu": "T4"})


def test_any_other_file_is_a_table_and_a_history_needs_runs_with_models(tmp_path: Path) -> None:
    path = append_record(RECORD, tmp_path / "history.jsonl")
    with pytest.raises(MeasurementTableError, match=r"history\.jsonl holds no run with its model and batch size\."):
        read_runs(path)
    assert len(read_runs(write(tmp_path, OWN)).runs) == 2
