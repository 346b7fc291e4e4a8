"""What a budget says: in warnings, and in the loggers.

Example::

    log_budget(trainer, watch, exceeded=True, reason="21.0 s of 20.0 s (hours) are used")
    warn_and_log(trainer, "16.5 s of 20.0 s (hours) are used")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_predict.callbacks.bases import warn
from lightning_predict.callbacks.budget_watch import BudgetWatch
from lightning_predict.callbacks.showing import log_event, log_values

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


def log_budget(trainer: Trainer, watch: BudgetWatch, *, exceeded: bool, reason: str = "") -> None:
    """Log what is used, allowed and forecast, and the reason in words where the budget is exceeded.

    Args:
        trainer: The Trainer that is fitting.
        watch: What is known.
        exceeded: The budget is.
        reason: Why.
    """
    refusals = log_values(trainer, "budget", watch.metrics() | {"exceeded": float(exceeded)})
    if exceeded:
        refusals += log_event(trainer, "budget", "exceeded", reason)
    for refusal in refusals:
        warn(refusal)


def warn_and_log(trainer: Trainer, reason: str) -> None:
    """Warn, and note it in the loggers.

    Args:
        trainer: The Trainer that is fitting.
        reason: Why.
    """
    warn(f"CostBudget: {reason}.")
    refusals = log_values(trainer, "budget", {"warned": 1.0})
    for refusal in refusals + log_event(trainer, "budget", "warned", reason):
        warn(refusal)
