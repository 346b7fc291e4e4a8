"""The history, tables, and folders without runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from lightning_predict.base.errors import InvalidArgumentError, MeasurementTableError
from lightning_predict.regression.runs import read_runs
from lightning_predict.run.history import append_record
from tests.regression.test_run_tables import OWN, write
from tests.run.test_history import RECORD


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
    with pytest.raises(MeasurementTableError, match=r"holds no trainer_state\.json or wandb-summary\.json"):
        read_runs(tmp_path)
