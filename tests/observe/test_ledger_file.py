"""Whether two runs are the same, and where each keeps its files."""

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
    remove_own,
    save_ledger,
    save_own,
    start_of,
)
from lightning_predict.observe.meters import Use
from tests.callbacks.rank_surroundings import full_disk
from tests.known import known

GONE = f"{socket.gethostname()}:4194305"
"""A process that cannot exist on this machine: above the largest number that Linux gives."""


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


def kept(run: str = "aaaaaaaaaa", **values: object) -> SavedLedger:
    base = SavedLedger(run=run, use=Use(600.0, {"usd": (2.0, 600.0)}), date="2026-11-27", process=GONE, started="")
    return replace(base, **values)  # type: ignore[arg-type]


def test_only_a_killed_run_of_the_same_process_is_continued_from_its_checkpoint() -> None:
    assert kept().is_continued_by("aaaaaaaaaa")
    assert not kept().is_continued_by("bbbbbbbbbb")
    assert not kept(ended=True).is_continued_by("aaaaaaaaaa")
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


def test_default_name_of_torchrun_and_index_of_a_kubernetes_job_are_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    assert jobs_in_use() == {}
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    before = kept(jobs=jobs_in_use())
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setattr(os, "getppid", lambda: 1)  # another torchrun
    assert not before.is_continued_by("bbbbbbbbbb")


FIRST = "lightning_predict_budget"


def names(folder: Path, run: str, *, owner: str, has_checkpoint: bool = False) -> str:
    """Return the stem of the files that a fit writes, after it has looked for its ledger."""
    earlier, _ = find_ledger(str(folder), run=run)
    place = save_own(str(folder), kept(run, owner=owner), place=earlier, has_checkpoint=has_checkpoint)
    assert known(read_ledger(place.ledger)).owner == owner
    assert Path(place.checkpoint).stem == Path(place.ledger).stem
    return Path(place.ledger).stem


def test_first_run_in_a_folder_has_the_plain_name_and_keeps_it(tmp_path: Path) -> None:
    assert names(tmp_path, "aaaaaaaaaa", owner="one") == FIRST
    (tmp_path / f"{FIRST}.ckpt").touch()
    assert save_own(str(tmp_path), kept(owner="one"), place=None, has_checkpoint=True).ledger.endswith(LEDGER_NAME)


def test_ledger_that_a_full_disk_cuts_off_is_removed(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(OSError, match="File too large"):
        save_own(str(tmp_path), kept(owner="one"), place=None)
    assert list(tmp_path.iterdir()) == []


def test_killed_run_that_resumes_continues_its_file(tmp_path: Path) -> None:
    save_ledger(tmp_path / LEDGER_NAME, kept(owner="killed"))
    assert names(tmp_path, "aaaaaaaaaa", owner="later") == FIRST
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize(
    "before",
    [
        {LEDGER_NAME: kept(owner="other").content},  # may be resumed
        {LEDGER_NAME: kept(owner="other", ended=True).content},
        {LEDGER_NAME: b"{"},  # damaged, or not yet written
        {f"{FIRST}.ckpt": b"precious"},  # without a ledger
        {LEDGER_NAME: kept("bbbbbbbbbb", owner="killed").content, f"{FIRST}.ckpt": b"precious"},  # ended by its budget
        {LEDGER_NAME: kept("bbbbbbbbbb", owner="killed").content, f"{LEDGER_NAME}.lock": b""},  # a branch continues it
    ],
)  # fmt: skip
def test_file_of_another_run_is_never_written(before: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    assert names(tmp_path, "bbbbbbbbbb", owner="own") == f"{FIRST}-own"
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_of_branches_of_a_killed_run_one_continues_its_file(tmp_path: Path) -> None:
    save_ledger(tmp_path / LEDGER_NAME, kept(owner="killed"))
    saved, _ = find_ledger(str(tmp_path), run="aaaaaaaaaa")
    stems = [
        Path(save_own(str(tmp_path), kept(owner=owner), place=saved).ledger).stem for owner in ("b1", "b2", "b3", "b4")
    ]
    assert stems == [FIRST, *(f"{FIRST}-b{number}" for number in (2, 3, 4))]


def test_run_whose_file_another_machine_took_over_moves_to_a_file_of_its_own(tmp_path: Path) -> None:
    place = save_own(str(tmp_path), kept(owner="one"), place=None)
    save_ledger(place.ledger, kept(owner="another machine"))
    assert Path(save_own(str(tmp_path), kept(owner="one"), place=place).ledger).stem == f"{FIRST}-one"


def test_most_seconds_of_a_run_count_and_damaged_ledgers_are_told(tmp_path: Path) -> None:
    save_ledger(tmp_path / LEDGER_NAME, kept("bbbbbbbbbb"))
    for owner, seconds in (("x", 900.0), ("y", 700.0)):
        save_ledger(tmp_path / f"{FIRST}-{owner}.json", kept("bbbbbbbbbb", use=Use(seconds)))
    (tmp_path / f"{FIRST}-z.json").write_text("{")
    saved, unread = find_ledger(str(tmp_path), run="bbbbbbbbbb")
    assert saved is not None
    assert (Path(saved.ledger).stem, known(saved.kept).use.seconds) == (f"{FIRST}-x", 900.0)
    assert len(unread) == 1
    assert f"{FIRST}-z.json" in unread[0]


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="only Linux tells the start of a process")
def test_process_number_that_is_used_again_is_no_running_run() -> None:
    alive = f"{socket.gethostname()}:{os.getppid()}"
    assert kept(process=alive, started="1").is_continued_by("aaaaaaaaaa")
    assert not kept(process=alive, started=start_of(os.getppid())).is_continued_by("aaaaaaaaaa")


def test_a_ledger_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    file = tmp_path / LEDGER_NAME
    file.write_text(
        json.dumps({"run": "a", "job": "SLURM_JOB_ID=17", "seconds": 9.0, "usd": 1.0, "date": "2026-11-23"})
    )
    ledger = known(read_ledger(file))
    assert ledger.is_continued_by("a")
    assert (ledger.use.seconds, ledger.use.amount("usd")) == (9.0, 1.0)


def test_ledger_is_written_to_a_remote_file_system(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    folder = f"memory://{tmp_path.name}"
    place = save_own(folder, kept(owner="one"), place=None)
    assert place.checkpoint == f"{folder}/lightning_predict_budget.ckpt"
    assert save_own(folder, kept(owner="two"), place=None).ledger == f"{folder}/lightning_predict_budget-two.json"
    saved, _ = find_ledger(folder, run="aaaaaaaaaa")
    assert saved is not None
    assert saved.kept is not None
    assert replace(saved.kept, use=kept().use) == kept(owner="one")
    assert saved.kept.use.amount("usd") == 2.0
    assert save_own(folder, kept(owner="three"), place=saved).ledger == place.ledger
    remove_own(place, "two")
    assert read_ledger(place.ledger) is not None
    remove_own(place, "three")
    assert read_ledger(place.ledger) is None
