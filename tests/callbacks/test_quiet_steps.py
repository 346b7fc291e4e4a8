"""A step after the recording, without any message: it is only timed."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from lightning_predict.observe.clock import clock_of_fits
from lightning_predict.testing import Clock
from tests.callbacks.small import Small

MOST_CALLS = 14
"""Calls of functions of the package in a step with both callbacks. It was 38 when both callbacks timed each step."""


def calls_of_a_step(small: Small, folder: Path, callbacks: list[Any], *, step: int) -> list[str]:
    """List the calls of our functions from one step to the next."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("lightning_predict"):
            calls.append(f"{module}.{frame.f_code.co_qualname}")

    class Watch(small.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            sys.setprofile(note if batch_idx == step else None)

    trainer = small.trainer(folder, max_epochs=1, callbacks=[Watch(), *callbacks])
    before = sys.getprofile()
    try:
        trainer.fit(small.model(), small.loader(step + 2))
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("step", [90, 190])
def test_a_quiet_step_is_timed_once_and_takes_few_calls(lightning: Small, tmp_path: Path, step: int) -> None:
    predictor = RuntimePredictor(["T4"], print_table=False)
    calls = calls_of_a_step(lightning, tmp_path, [predictor, CostBudget(usd=1e6, usd_per_hour=1.0)], step=step)
    assert predictor.predictions is not None
    assert len(calls) <= MOST_CALLS, calls
    assert [call for call in calls if "RunObserver.on_batch" in call] == [
        "lightning_predict.observe.run_observer.RunObserver.on_batch_start",
        "lightning_predict.observe.run_observer.RunObserver.on_batch_end",
    ]
    assert not any("trainer_state" in call or "<lambda>" in call for call in calls)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_forecast_is_renewed_in_a_new_epoch_in_either_order(lightning: Small, tmp_path: Path, is_first: bool) -> None:
    clock, model = Clock(), lightning.model()
    predictor, budget = RuntimePredictor(["T4"], print_table=False), CostBudget(usd=1e6, usd_per_hour=1.0)
    step, left = model.training_step, []

    class Watch(lightning.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_epoch_start(self, *_: Any) -> None:
            clock.advance(100.0)  # Before the second epoch only a guess, afterwards part of each later one.

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            left.append(None if predictor.remaining is None else predictor.remaining.middle)

    def timed(*args: Any) -> Any:
        clock.advance(1.0)
        return step(*args)

    model.training_step = timed
    ours = [predictor, budget] if is_first else [budget, predictor]
    with clock_of_fits(clock):
        lightning.trainer(tmp_path, max_epochs=3, callbacks=[*ours, Watch()]).fit(model, lightning.loader(50))
    # In the second epoch's first batch: 100 batches and one pause are left.
    assert left[50] == pytest.approx(200.0)
