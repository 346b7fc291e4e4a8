"""Tell what to change first, below the table of predictions: `RuntimePredictor(advice=True)`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lightning_predict.callbacks.bases import warn
from lightning_predict.callbacks.predicting import Question
from lightning_predict.callbacks.showing import log_values
from lightning_predict.changes.advice import Advice, advice_for
from lightning_predict.changes.advice_text import short_lines
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.errors import LightningPredictError
from lightning_predict.tracing.trace import Trace

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


def tell_advice(
    trainer: Trainer, pl_module: LightningModule, trace: Trace, question: Question, *, iterations: int | None
) -> Advice | None:
    """Print at most three lines of advice and log its gains, on rank zero; None on the others, and after a warning.

    Args:
        trainer: The Trainer.
        pl_module: Its module, which prints.
        trace: The recorded step.
        question: What the user asked for.
        iterations: Steps still to come; None if not known.
    """
    if not trainer.is_global_zero:
        return None
    assumptions = replace(question.assumptions, strategy=question.strategy or Strategy())
    try:
        advice = advice_for(trace, question.layouts, assumptions, iterations=iterations)
    except LightningPredictError as error:  # the predictions hold without it
        warn(f"RuntimePredictor could not advise: {error}")
        return None
    pl_module.print("\n".join(short_lines(advice)) + "\n")
    told = {key.removeprefix("predict/"): value for key, value in advice.metrics().items()}
    for refusal in log_values(trainer, "predict", told):
        warn(refusal)
    return advice
