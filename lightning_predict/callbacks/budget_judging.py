"""What a budget is judged by in a running fit: the first forecast, and the use from then on; asked on rank zero alone.

Example::

    verdict = judge_first_forecast(trainer, watch, left)
    verdict = judge_later_use(trainer, watch, lambda: left, warned=set())
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lightning_predict.callbacks.bases import rank_zero_info
from lightning_predict.callbacks.budget import Verdict
from lightning_predict.callbacks.budget_watch import BudgetWatch
from lightning_predict.callbacks.budget_words import log_budget, warn_and_log
from lightning_predict.callbacks.remaining import Remaining
from lightning_predict.callbacks.trainer_state import seconds_left

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


def judge_first_forecast(trainer: Trainer, watch: BudgetWatch, left: Remaining) -> Verdict:
    """Judge the forecast after the warm-up; where early stopping may end the run, a forecast alone does not stop it.

    Args:
        trainer: The Trainer that is fitting.
        watch: What was measured.
        left: What is still to come.
    """
    if left.batches is None:
        rank_zero_info("CostBudget: the length of this run is not known; it ends once the budget is used up.")
    verdict = watch.judge_forecast(left, seconds_left=seconds_left(trainer))
    if verdict.action == "stop" and trainer.early_stopping_callbacks and watch.judge_use().action != "stop":
        return Verdict("warn", f"{verdict.reason}, unless early stopping ends it before")
    return verdict


def judge_later_use(trainer: Trainer, watch: BudgetWatch, left: Callable[[], Remaining], warned: set[str]) -> Verdict:
    """Judge what is used; now and then, forecast again.

    A forecast that breaks the budget is said once and does not end the run, which the use alone does: what was spent on
    it is not to be lost to a passing slowness.

    Args:
        trainer: The Trainer that is fitting.
        watch: What was measured.
        left: Counts what is still to come.
        warned: What was warned about; a new forecast is noted there.
    """
    verdict = watch.judge_use()
    if verdict.action == "stop" or not watch.refresh_is_due:
        return verdict
    outlook = watch.refresh(left(), seconds_left=seconds_left(trainer))
    log_budget(trainer, watch, exceeded=False)
    if outlook.action != "go on" and not warned & {"forecast", "refresh"}:
        warned.add("refresh")
        warn_and_log(trainer, f"{outlook.reason}; the run goes on until the budget is used up")
    return verdict
