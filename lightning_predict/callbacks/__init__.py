"""The callbacks for a Trainer, of either Lightning package; the only place that knows one.

* `RuntimePredictor` says, after the first steps, how long this run takes and what it costs on other GPUs.
* `CostBudget` ends a run that breaks its budget.

The hooks are thin. What they call is `fit`, which knows no Trainer: it records steps, times the fit, counts what is
left, believes, forecasts and judges. `trainer_state` reads the Trainer, `guard` keeps errors away from it. Example::

    from lightning_predict.callbacks import CostBudget, RuntimePredictor

    trainer = Trainer(callbacks=[RuntimePredictor(gpus=["H100-SXM-80GB", "L4", "T4"]), CostBudget(usd=50)])
"""

from lightning_predict.callbacks.cost_budget import CostBudget
from lightning_predict.callbacks.runtime_predictor import RuntimePredictor

__all__ = ["CostBudget", "RuntimePredictor"]
