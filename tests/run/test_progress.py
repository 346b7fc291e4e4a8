"""Progress files of runs: time of writing, content, and rejected files."""

import json
from pathlib import Path

import pytest

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.run.progress import PlanSlot, ProgressKeeper, place_in_use, read_progress, write_progress
from tests.known import known

PLACE = PlanSlot(job="bert", node=1, machine="box", num_gpus=2)


def test_progress_is_written_once_a_minute_with_speed_of_process(tmp_path: Path) -> None:
    now = [1000.0]
    keeper = ProgressKeeper(batches=200, place=PLACE, clock=lambda: now[0], wall_clock=lambda: 5e8 + now[0])
    first = known(
        keeper.after(101)
    )  # 100 batches lie before a resume; the first of this process may have waited for anything
    assert (first.done, first.whole_seconds, first.began) == (101 / 200, None, 5e8 + 1000)
    now[0] = 1059.0
    assert keeper.after(110) is None
    now[0] = 1060.0
    second = known(keeper.after(131, batch_seconds=lambda: 1.5))
    assert second.whole_seconds == pytest.approx(60 / 30 * 200)  # 30 batches in a minute, of 200
    assert second.beside_seconds == pytest.approx((2 - 1.5) * 200)  # 1.5 s of each 2 s are the batch's own
    now[0] = 1061.0
    last = known(keeper.after(150, has_ended=True))  # stopped early by its own rule
    assert (last.done, last.has_ended) == (1.0, True)
    write_progress(tmp_path / "of" / "bert.json", second)
    assert read_progress(tmp_path / "of" / "bert.json") == second


def test_pace_is_unknown_before_a_minute_of_training() -> None:
    now = [0.0]
    keeper = ProgressKeeper(batches=200, place=None, clock=lambda: now[0], wall_clock=lambda: now[0])
    keeper.after(5)
    now[0] = 90.0
    waited = known(keeper.after(5))  # a minute and a half without a batch
    assert waited.whole_seconds is None
    keeper = ProgressKeeper(batches=200, place=None, clock=lambda: now[0], wall_clock=lambda: now[0])
    keeper.after(5)
    now[0] = 149.0
    ended = known(keeper.after(35, has_ended=True))  # thirty batches, in 59 s
    assert ended.whole_seconds is None


def test_run_of_unknown_length_writes_no_progress() -> None:
    assert ProgressKeeper(batches=None, place=None).after(5) is None


def test_place_in_plan_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTNING_PREDICT_PLACE", raising=False)
    assert place_in_use() is None
    monkeypatch.setenv("LIGHTNING_PREDICT_PLACE", '{"job": "bert", "node": 1, "machine": "box", "num_gpus": 2}')
    assert place_in_use() == PLACE
    monkeypatch.setenv("LIGHTNING_PREDICT_PLACE", "box")
    with pytest.raises(InvalidArgumentError, match="LIGHTNING_PREDICT_PLACE=box is not JSON"):
        place_in_use()


def test_damaged_progress_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    row = {
        "place": None,
        "done": 1.5,
        "has_ended": False,
        "whole_seconds": None,
        "beside_seconds": None,
        "began": 0.0,
        "written": 1.0,
    }
    path.write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match="expected a share from 0 to 1"):
        read_progress(path)
