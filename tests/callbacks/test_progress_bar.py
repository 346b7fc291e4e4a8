"""Remaining time of the run, in the Trainer's own progress bar."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_predict.base.interval import Interval
from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.callbacks.progress_bar import ShownInBar, left_in_words
from lightning_predict.testing import Clock
from tests.callbacks.small import Small
from tests.callbacks.test_cost_budget import timed_model


def fitted(small: Small, folder: Path, time: Clock, bar: Any, predictor: RuntimePredictor) -> dict[int, Any]:
    """Text of the bar after some of 400 steps of 1 s, and the values that the Trainer would log."""
    shown: dict[int, Any] = {}

    class Watch(small.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            shown[trainer.global_step] = bar.get_metrics(trainer, module) if trainer.global_step in (3, 40) else None

        def on_train_end(self, trainer: Any, *_: Any) -> None:
            shown[0] = trainer.progress_bar_metrics | trainer.logged_metrics | trainer.callback_metrics

    trainer = small.trainer(folder, callbacks=[predictor, Watch(), bar], max_epochs=1, enable_progress_bar=True)
    trainer.fit(timed_model(small, time, [1.0]), small.loader(400))
    return shown


@pytest.mark.parametrize("bar", ["TQDMProgressBar", "RichProgressBar"])
def test_the_whole_run_stands_in_lightnings_own_bar_until_it_ends(
    small: Small, tmp_path: Path, time: Clock, bar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # room for the interval
    own = getattr(small.lightning.callbacks, bar)()
    predictor = RuntimePredictor(["T4"], print_table=False, learn_from_history=False)
    shown = fitted(small, tmp_path, time, own, predictor)
    assert shown[3] == {}  # nothing was predicted yet
    assert list(shown[40]) == ["left"]
    assert shown[40]["left"].startswith("6 min (5 min ")  # 360 steps of 1 s
    assert shown[0] == {}
    assert "get_metrics" not in vars(own)


def test_it_can_be_turned_off(small: Small, tmp_path: Path, time: Clock) -> None:
    bar = small.lightning.callbacks.TQDMProgressBar()
    predictor = RuntimePredictor(["T4"], print_table=False, learn_from_history=False, progress_bar=False)
    assert fitted(small, tmp_path, time, bar, predictor)[40] == {}


class Bar:
    """A user's own progress bar."""

    def get_metrics(self, trainer: Any, module: Any) -> dict[str, Any]:
        return {"loss": trainer}


def test_the_text_is_made_once_a_second_and_what_fails_in_it_leaves_the_bar_alone() -> None:
    clock, texts = Clock(), iter(("one", "two"))
    bar = Bar()
    shown = ShownInBar(bar, lambda: next(texts), clock=clock)
    assert list(bar.get_metrics(0.5, None).items()) == [("left", "one"), ("loss", 0.5)]
    clock.seconds += 0.9
    assert bar.get_metrics(0.5, None)["left"] == "one"
    clock.seconds += 0.1
    assert bar.get_metrics(0.5, None)["left"] == "two"
    clock.seconds += 1.0
    assert bar.get_metrics(0.5, None) == {"loss": 0.5}  # no text is left: an exception
    shown.remove()
    assert vars(bar) == {}


def test_metrics_of_other_code_stay_in_the_bar() -> None:
    bar: Any = SimpleNamespace(get_metrics=lambda: {"left": "theirs"})
    theirs = bar.get_metrics
    shown = ShownInBar(bar, lambda: "ours", clock=Clock())
    assert bar.get_metrics() == {"left": "theirs"}  # as it was logged under this name
    shown.remove()
    assert bar.get_metrics is theirs
    shown = ShownInBar(bar, lambda: "ours", clock=Clock())
    bar.get_metrics = later = dict
    shown.remove()
    assert bar.get_metrics is later


def test_left_in_words() -> None:
    # 3 h 12 min at $1.78125 an hour are 3.2 x 1.78125 = $5.70.
    left = Interval(10_200.0, 11_520.0, 13_200.0)
    assert left_in_words(left, usd_per_hour=1.78125, columns=120) == "3 h 12 min (2 h 50 min to 3 h 40 min), $5.70"
    assert left_in_words(left, usd_per_hour=None, columns=120) == "3 h 12 min (2 h 50 min to 3 h 40 min)"
    assert left_in_words(left, usd_per_hour=1.78125, columns=119) == "3 h 12 min, $5.70"
    assert left_in_words(left, usd_per_hour=1.78125, columns=99) == "3 h 12 min"
    assert left_in_words(left, usd_per_hour=1.78125, at_most=True, columns=119) == "≤ 3 h 12 min, $5.70"
    assert left_in_words(None, usd_per_hour=1.0) is None


def test_output_that_is_no_terminal_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    left = Interval(60.0, 120.0, 180.0)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)  # as in a notebook, or with the output in a file
    assert left_in_words(left, usd_per_hour=None) == "2 min (1 min to 3 min)"
    monkeypatch.setenv("COLUMNS", "80")
    assert left_in_words(left, usd_per_hour=None) == "2 min"


def test_richs_bar_keeps_to_one_line_of_80_columns(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The column of logged values has 19 columns of 80; `left: 59 min 59 s` has 17.
    monkeypatch.setenv("COLUMNS", "80")
    longest = max((left_in_words(Interval(t, t, t), usd_per_hour=9.0) or "" for t in (3599.0, 86_399.0, 8e6)), key=len)
    assert len(f"left: {longest}") <= 19
