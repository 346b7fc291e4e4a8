"""Callbacks `RuntimePredictor` and `CostBudget` for a Trainer. Only this folder depends on Lightning.

* `RuntimePredictor` predicts, after the first steps, the time and cost of the run on other GPUs.
* `CostBudget` stops a run that will exceed its budget.

The hooks are thin: they call `observe`, which records steps, times the fit, counts the remaining work, makes forecasts
and checks the budget. `trainer_state` reads the Trainer. `guard` keeps errors of this package away from the Trainer.
Example::

    from lightning_predict.callbacks import CostBudget, RuntimePredictor

    trainer = Trainer(callbacks=[RuntimePredictor(gpus=["H100-SXM-80GB", "L4", "T4"]), CostBudget(usd=50)])
"""

from lightning_predict.callbacks.cost_budget import CostBudget
from lightning_predict.callbacks.runtime_predictor import RuntimePredictor

__all__ = ["CostBudget", "RuntimePredictor"]
