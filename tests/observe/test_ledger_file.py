"""Whether two runs are the same, and where each keeps its files."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_predict.observe.ledger_file import (
    LEDGER_NAME,
    SavedLedger,
    find_ledger,
    jobs_in_use,
    read_ledger,
    save_ledger,
)
from lightning_predict.observe.meters import Use

GONE = f"{socket.gethostname()}:4194305"
"""A process that cannot exist on this machine: above the largest number that Linux gives."""


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


def kept(run: str = "aaaaaaaaaa", **values: object) -> SavedLedger:
    base = SavedLedger(run=run, use=Use(600.0, {"usd": (2.0, 600.0)}), date="2026-11-27", process=GONE)
    return replace(base, **values)  # type: ignore[arg-type]


def test_a_killed_run_is_continued_from_its_checkpoint_only() -> None:
    assert kept().is_continued_by("aaaaaaaaaa")
    assert not kept().is_continued_by("bbbbbbbbbb")


def test_a_run_that_ended_is_not_continued() -> None:
    assert not kept(ended=True).is_continued_by("aaaaaaaaaa")


def test_a_run_in_another_process_is_not_continued() -> None:
    assert not kept(process=f"{socket.gethostname()}:{os.getppid()}").is_continued_by("aaaaaaaaaa")
    assert kept(process=f"another-machine:{os.getppid()}").is_continued_by("aaaaaaaaaa")


@pytest.mark.parametrize(
    ("variables", "restarted"),
    [
        ({"SLURM_JOB_ID": "17"}, {"SLURM_RESTART_COUNT": "1"}),
        (
            {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"},
            {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"},
        ),
    ],
)
def test_a_job_is_continued_if_it_was_restarted(
    variables: dict[str, str], restarted: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    before = kept(jobs=jobs_in_use())
    assert not before.is_continued_by("bbbbbbbbbb")  # another run of the same job: a sweep
    for name, value in restarted.items():
        monkeypatch.setenv(name, value)
    assert before.is_continued_by("bbbbbbbbbb")
    assert not replace(before, command="another run of the sweep").is_continued_by("bbbbbbbbbb")
    assert not replace(before, ended=True).is_continued_by("bbbbbbbbbb")


def test_the_default_name_of_torchrun_is_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    before = kept(jobs=jobs_in_use())
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setattr(os, "getppid", lambda: 1)  # another torchrun
    assert not before.is_continued_by("bbbbbbbbbb")


def test_the_index_of_a_kubernetes_job_is_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    assert jobs_in_use() == {}


def test_runs_in_one_folder_get_files_of_their_own(tmp_path: Path) -> None:
    def names(run: str, resumed_seconds: float = 0.0) -> tuple[str, str]:
        place = find_ledger(str(tmp_path), run=run, resumed_seconds=resumed_seconds)
        return Path(place.ledger).stem, Path(place.checkpoint).stem

    first, own = "lightning_predict_budget", "lightning_predict_budget-bbbbbbbb"
    assert names("aaaaaaaaaa") == (first, first)
    save_ledger(tmp_path / LEDGER_NAME, kept())
    assert names("bbbbbbbbbb") == (own, own)  # the first may be resumed
    assert names("aaaaaaaaaa") == (first, first)
    save_ledger(tmp_path / LEDGER_NAME, kept(ended=True))
    assert names("bbbbbbbbbb") == (first, first)  # its amounts are no longer needed
    (tmp_path / f"{first}.ckpt").touch()
    save_ledger(tmp_path / LEDGER_NAME, kept(ended=True, saved_seconds=590.0))
    assert names("bbbbbbbbbb") == (own, own)  # its checkpoint is its only one
    assert names("aaaaaaaaaa", 590.0) == (first, first)  # resumed from that checkpoint
    assert names("aaaaaaaaaa", 300.0)[1] == "lightning_predict_budget-aaaaaaaa"  # from an earlier one


def test_a_killed_run_finds_its_own_file_among_others(tmp_path: Path) -> None:
    save_ledger(tmp_path / LEDGER_NAME, kept())
    own = find_ledger(str(tmp_path), run="bbbbbbbbbb", resumed_seconds=0.0)
    save_ledger(own.ledger, kept("bbbbbbbbbb", use=Use(900.0)))
    found = find_ledger(str(tmp_path), run="bbbbbbbbbb", resumed_seconds=0.0)
    assert found.kept is not None
    assert (found.ledger, found.kept.use.seconds) == (own.ledger, 900.0)


def test_a_ledger_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    file = tmp_path / LEDGER_NAME
    file.write_text(
        json.dumps({"run": "a", "job": "SLURM_JOB_ID=17", "seconds": 9.0, "usd": 1.0, "date": "2026-11-23"})
    )
    found = read_ledger(file)
    assert found is not None
    assert found.is_continued_by("a")
    assert (found.use.seconds, found.use.amount("usd")) == (9.0, 1.0)


def test_ledger_is_written_to_a_remote_file_system(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    folder = f"memory://{tmp_path.name}"
    place = find_ledger(folder, run="aaaaaaaaaa", resumed_seconds=0.0)
    assert place.checkpoint == f"{folder}/lightning_predict_budget.ckpt"
    save_ledger(place.ledger, kept())
    found = find_ledger(folder, run="aaaaaaaaaa", resumed_seconds=0.0).kept
    assert found is not None
    assert replace(found, use=kept().use) == kept()
    assert found.use.amount("usd") == 2.0
