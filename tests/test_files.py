import os
import secrets
import threading
from pathlib import Path

import pytest

from lightning_predict.base.files import history_path, in_hook, reject_irregular, write_atomically
from lightning_predict.base.timeout import run_unless_hanging
from lightning_predict.cost.offers import load_offers
from lightning_predict.run.history import append_record, read_history
from tests.run.test_history import RECORD


def test_file_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "found.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    link = tmp_path / "link.json"
    link.symlink_to(path)
    write_atomically(link, b"through the link")
    assert link.is_symlink()
    assert path.read_bytes() == b"through the link"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"half")
    assert path.read_bytes() == b"through the link"
    assert sorted(tmp_path.iterdir()) == [path, link]


def test_processes_with_equal_ids_write_separate_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Machines that share a folder have equal process numbers: 228 of 800 reads were damaged.
    path, before, seen = tmp_path / "ledger.json", os.replace, []

    def replace(part: str, target: str) -> None:
        seen.append(part)
        if len(seen) == 1:
            write_atomically(path, b"of another machine")  # while ours is written, and not yet in its place
            assert Path(part).read_bytes() == b"ours"
        before(part, target)

    monkeypatch.setattr(os, "replace", replace)
    write_atomically(path, b"ours")
    assert len(set(seen)) == 2
    assert path.read_bytes() == b"ours"


def test_symbolic_link_at_the_temporary_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda _: "foreseen")
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    (tmp_path / ".ledger.json.foreseen.part").symlink_to(precious)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "ledger.json", b"ours")
    assert precious.read_bytes() == b"precious"


def test_named_pipe_is_refused_without_blocking(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        with pytest.raises(OSError, match="not a regular file; name one"):
            in_hook(path, path.read_bytes)
    reject_irregular(tmp_path / "not there")


def test_hanging_file_system_is_waited_for_once(tmp_path: Path) -> None:
    path, goes_on = tmp_path / "home", threading.Event()
    with pytest.raises(TimeoutError, match=f"{path} did not answer within 0.01 s"):
        in_hook(path, lambda: goes_on.wait(60), seconds=0.01)
    with pytest.raises(TimeoutError, match=f"{path} has not answered yet"):
        in_hook(path, lambda: goes_on.wait(60), seconds=1e9)
    goes_on.set()
    threads = [thread for thread in threading.enumerate() if thread.name == "lightning-predict"]
    for thread in threads:
        thread.join(60)
    assert in_hook(path, lambda: 7, seconds=1e9) == 7


def test_an_error_is_raised_as_it_is() -> None:
    def fails() -> None:
        raise ZeroDivisionError("by zero")

    with pytest.raises(ZeroDivisionError, match="by zero"):
        run_unless_hanging(60.0, "a server", fails)


@pytest.mark.parametrize("answer", ["raises", "~/.local/share/lightning-predict"])
def test_missing_home_directory_creates_no_folder(answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of a container: the history went to a folder called "~" in the working directory.
    def without_home(_: str) -> str:
        if answer == "raises":
            raise RuntimeError("could not determine the home directory")
        return answer

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIGHTNING_PREDICT_HISTORY", raising=False)
    monkeypatch.setattr("platformdirs.user_data_dir", without_home)
    monkeypatch.setattr("platformdirs.user_cache_dir", without_home)
    assert read_history() == ()
    assert load_offers()
    with pytest.raises(NotADirectoryError, match="no-home-directory"):
        in_hook(history_path(), lambda: append_record(RECORD))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="permissions of files")
def test_private_file_stays_private_when_it_is_rewritten(tmp_path: Path) -> None:
    file = tmp_path / "predictions.json"
    file.write_text("{}")
    file.chmod(0o600)
    write_atomically(file, b"[]")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("[]", 0o600)
