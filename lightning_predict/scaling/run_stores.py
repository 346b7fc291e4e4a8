"""Past runs from where they are kept: an MLflow store on disk, the package's own history, or a table.

MLflow's folder `mlruns` holds a folder for each run, with a file for each parameter and metric; its database keeps them
as rows. Both are read as they are, without MLflow. Example::

    read_runs(Path("mlruns"), values={"gpu": "T4"})
    read_runs(Path("mlflow.db"), columns={"batch_size": "params.bs"})
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import yaml

from lightning_predict.errors import InvalidArgumentError, MeasurementTableError
from lightning_predict.scaling.history import HistoryRecord, read_history
from lightning_predict.scaling.run_tables import RunRow, RunTable, read_table, runs_of_rows
from lightning_predict.scaling.runs import PastRun, RunSetting

DATABASES: Final = (".db", ".sqlite", ".sqlite3")

STATUS_NAMES: Final = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
"""MLflow's numbers for how a run ended, as its folders hold them."""


def read_runs(
    path: Path, *, columns: Mapping[str, str] | None = None, values: Mapping[str, str] | None = None
) -> RunTable:
    """Past runs, whatever keeps them.

    Args:
        path: A CSV file; an MLflow folder or database; or a history (`.jsonl`, of which columns are known).
        columns: Column of a field, where it has another name than the usual ones.
        values: Value of a field that no column has; the same for all runs.

    Raises:
        MeasurementTableError: A column is missing, a cell is wrong, or there is no run.
        InvalidArgumentError: A field that there is not, or columns given for a history.
        OSError: The file cannot be read.
    """
    if path.is_dir():
        return runs_of_rows(_folder_rows(path), str(path), columns=columns, values=values)
    if path.suffix in DATABASES:
        return runs_of_rows(_database_rows(path), str(path), columns=columns, values=values)
    if path.suffix == ".jsonl":
        if columns or values:
            raise InvalidArgumentError(f"{path} is a history, whose columns are known; leave columns and values out.")
        return runs_of_history(read_history(path), str(path))
    return read_table(path, columns=columns, values=values)


def runs_of_history(records: tuple[HistoryRecord, ...], source: str) -> RunTable:
    """Runs of the history as past runs: each is one iteration as measured, of the model that its parameters make.

    Records without the samples of a step, or of before models were told apart, are left out, and said.

    Raises:
        MeasurementTableError: No record is left.
    """
    known = [one for one in records if one.samples is not None and one.model is not None]
    if not known:
        raise MeasurementTableError(f"{source} holds no run with its model and batch size.")
    gone = len(records) - len(known)
    return RunTable(
        tuple(
            PastRun(
                model=str(one.model),
                setting=RunSetting(iterations=1, batch_size=one.samples or 1, gpu=one.gpu, num_gpus=one.num_gpus),
                seconds=one.step_seconds,
            )
            for one in known
        ),
        (f"{gone} of {len(records)} runs do not say their model or batch size, and are left out.",) if gone else (),
    )


def _folder_rows(folder: Path) -> Iterator[RunRow]:
    """Runs of a folder: `<experiment>/<run>/meta.yaml`, `params/<name>` and `metrics/<name>`."""
    for meta in sorted(folder.glob("*/*/meta.yaml")):
        run = meta.parent
        try:
            about = yaml.safe_load(meta.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise MeasurementTableError(f"{meta} is not YAML: {error}") from error
        if not isinstance(about, dict) or about.get("lifecycle_stage") == "deleted":
            continue
        status = about.get("status")
        cells = {"status": STATUS_NAMES.get(status, str(status)) if isinstance(status, int) else str(status)}
        cells |= {key: str(about[key]) for key in ("start_time", "end_time") if about.get(key) is not None}
        for kind in ("params", "tags"):
            files = (path for path in (run / kind).rglob("*") if path.is_file())
            cells |= {
                f"{kind}.{path.relative_to(run / kind).as_posix()}": path.read_text(encoding="utf-8").strip()
                for path in files
            }
        for path in (path for path in (run / "metrics").rglob("*") if path.is_file()):
            lines = path.read_text(encoding="utf-8").split("\n")
            last = next((line.split() for line in reversed(lines) if line.strip()), [])
            cells[f"metrics.{path.relative_to(run / 'metrics').as_posix()}"] = last[1] if len(last) > 1 else ""
        yield RunRow(f"{folder}, run {about.get('run_name') or run.name}", cells)


def _database_rows(path: Path) -> Iterator[RunRow]:
    """Runs of a database: tables `runs`, `params`, `latest_metrics`, `tags`."""
    if not path.is_file():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        try:
            runs = database.execute(
                "SELECT run_uuid, name, status, start_time, end_time FROM runs WHERE lifecycle_stage = 'active'"
            ).fetchall()
            cells: dict[str, dict[str, str]] = {run[0]: {} for run in runs}
            for kind, table in (("params", "params"), ("metrics", "latest_metrics"), ("tags", "tags")):
                for run, key, value in database.execute(f"SELECT run_uuid, key, value FROM {table}"):
                    if run in cells:
                        cells[run][f"{kind}.{key}"] = str(value)
        except sqlite3.DatabaseError as error:
            raise MeasurementTableError(f"{path} is not a database of MLflow: {error}.") from error
    for run, name, status, start, end in runs:
        times = {key: str(value) for key, value in (("start_time", start), ("end_time", end)) if value is not None}
        yield RunRow(f"{path}, run {name or run}", {"status": str(status)} | times | cells[run])
