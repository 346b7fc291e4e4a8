"""Callbacks for a Trainer of either Lightning package. Only this folder depends on the Trainer.

* `RuntimePredictor` predicts, after the first steps, the time and cost of the run on other GPUs.
* `CostBudget` stops a run that will exceed its budget.

The hooks are thin. They call `observe`, which records steps, times the fit, counts the remaining work, forecasts and
judges the budget. `trainer_state` reads the Trainer; `guard` keeps our errors away from it. Example::

    from lightning_predict.callbacks import CostBudget, RuntimePredictor

    trainer = Trainer(callbacks=[RuntimePredictor(gpus=["H100-SXM-80GB", "L4", "T4"]), CostBudget(usd=50)])
"""

from lightning_predict.callbacks.cost_budget import CostBudget
from lightning_predict.callbacks.runtime_predictor import RuntimePredictor

__all__ = ["CostBudget", "RuntimePredictor"]
