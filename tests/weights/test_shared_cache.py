"""A cache that many processes share, that cannot be written or read, is full, or is deleted while it is in use."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.weights.example import GPUS, publish, serving

ROOT = Path(__file__).parents[2]
RIGHT = dict.fromkeys(GPUS, 4.0)

# Permissions do not hold root; without these two capabilities they do.
HELD = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    publish(tmp_path / "served", *GPUS, bias=4.0)
    with serving(tmp_path / "served") as server:
        yield server.url


def said(url: str, cache: Path, processes: int, *, within: Sequence[str] = ()) -> list[Any]:
    command = [*within, sys.executable, "-m", "tests.weights.sharing", url, str(cache), str(processes)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr
    return list(json.loads(ran.stdout))


def test_sixteen_processes_fill_one_cache(url: str, tmp_path: Path) -> None:
    assert said(url, tmp_path / "cache", 16) == [[RIGHT, []]] * 16
    (release,) = (tmp_path / "cache").iterdir()
    kept = sorted(path.name for path in release.iterdir())
    assert len(kept) == len(GPUS) + 1  # each file once, their manifest, and nothing half-written
    assert not [name for name in kept if name.startswith(".")]


def test_a_cache_may_be_deleted_while_processes_use_it(url: str, tmp_path: Path) -> None:
    ended = threading.Event()

    def delete() -> None:
        while not ended.wait(0.002):
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)

    deleting = threading.Thread(target=delete)
    deleting.start()
    try:
        answers = said(url, tmp_path / "cache", 16)
    finally:
        ended.set()
        deleting.join()
    assert [biases for biases, _ in answers] == [RIGHT] * 16
    assert all(
        "cannot be kept in the cache" in note or "could not be used" in note for _, notes in answers for note in notes
    )


@pytest.mark.skipif(bool(HELD) and shutil.which(HELD[0]) is None, reason="root without setpriv may write anywhere")
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_cache_that_may_only_be_read_or_not_even_that(url: str, tmp_path: Path, mode: int) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    for biases, notes in said(url, cache, 2, within=HELD):
        assert biases == RIGHT
        assert "cannot be kept in the cache" in notes[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_cache_on_a_full_disk(url: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        for biases, notes in said(url, disk / "cache", 4):
            assert biases == RIGHT
            assert "No space left on device" in notes[0]
    finally:
        subprocess.run(["umount", disk], check=True)
