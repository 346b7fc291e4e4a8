"""`history`: past runs next to their predictions, shared in a folder, and forgotten."""

from dataclasses import replace
from pathlib import Path

import pytest

from lightning_predict.base.files import HISTORY_VARIABLE
from lightning_predict.run.history import HistoryRecord, append_record, read_history
from tests.cli.conftest import Run

RECORD = HistoryRecord(
    fingerprint="f" * 32,
    gpu="T4",
    samples=16,
    step_seconds=0.25,
    predicted_seconds=100.0,
    actual_seconds=110.0,
    date="2026-11-20",
    model="0123456789abcdef",
)
SLOWER = replace(RECORD, actual_seconds=130.0, date="2026-11-21")
OTHER = replace(RECORD, gpu="L4", num_gpus=8, actual_seconds=90.0, date="2026-11-22", model=None, samples=None)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "history.jsonl"
    monkeypatch.setenv(HISTORY_VARIABLE, str(path))
    return path


def test_history_compares_forgets_and_names_its_path(file: Path, run: Run) -> None:
    assert run("history").out == (
        f"No runs in {file}: RuntimePredictor stores a run there when it ends, if it ran on a GPU of the catalogue.\n"
    )
    for record in (RECORD, SLOWER, OTHER):
        append_record(record)
    lines = run("history").out.splitlines()
    assert lines[2].split() == "2026-11-20 01234567 T4 16 250 ms 1 min 40 s 1 min 50 s +10 %".split()
    assert lines[4].split() == "2026-11-22 - 8xL4 - 250 ms 1 min 40 s 1 min 30 s -10 %".split()
    # The median of 1.1 and 1.3 times the predicted time.
    assert "01234567 on T4: +20 % from predictions (2 runs)." in lines
    assert "a model without parameters"[:8] + " on 8xL4: -10 % from predictions (1 run)." in lines
    assert lines[-1] == f"From {file}."
    assert "The latest 1 of 3 runs; --count shows more." in run("history", "--count", "1").out
    answer = run("history", "--gpu", "8xL4", "--json").json
    assert [record["actual_seconds"] for record in answer["runs"]] == [90.0]
    assert answer["learnt"][0]["real_over_predicted"] == pytest.approx(0.9)


def test_forget_deletes_only_selected_runs(file: Path, run: Run) -> None:
    for record in (RECORD, SLOWER, OTHER):
        append_record(record)
    assert run("history", "forget", "--model", "0123").out == f"2 runs forgotten in {file}.\n"
    assert read_history() == (OTHER,)
    assert run("history", "forget", "--json").json == {"forgotten": 1, "path": str(file)}
    assert read_history() == ()


def test_shared_history_has_a_file_per_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv(HISTORY_VARIABLE, str(tmp_path))
    for name, record in (("one", SLOWER), ("two", RECORD), ("one", OTHER)):
        monkeypatch.setattr("platform.node", lambda name=name: name)
        append_record(record)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.jsonl", "two.jsonl"]
    assert read_history() == (RECORD, SLOWER, OTHER)  # by date, from all writers
    assert run("history", "forget", "--gpu", "T4").out == f"2 runs forgotten in {tmp_path}.\n"
    assert read_history() == (OTHER,)
