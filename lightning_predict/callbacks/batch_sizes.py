"""Largest batch size that fits on each GPU, from the user's own step on the meta device.

The training step of the fit is never run again. The user passes a separate step, which runs at the current batch size.
Example::

    def meta_step(batch_size):
        with torch.device("meta"):
            model, rows = Model(), torch.empty(batch_size, 512)
        return lambda: model(rows).sum().backward()

    RuntimePredictor(meta_step=meta_step)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch

from lightning_predict.base.errors import CaptureError
from lightning_predict.base.guard import keeps_random_state, own_error
from lightning_predict.callbacks.arguments import MetaStep
from lightning_predict.callbacks.lightning_packages import warn
from lightning_predict.callbacks.output import log_values, print_on_rank_zero
from lightning_predict.callbacks.trainer_state import logger_step
from lightning_predict.observe.run_session import PredictionRequest
from lightning_predict.record.recording import capture
from lightning_predict.record.trace import Trace
from lightning_predict.reports.loggers import LoggedTable, log_table

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from lightning_predict.advice.largest_batch import LargestBatch

_PRECISIONS: Final = {"bfloat16": "bf16-mixed", "float16": "16-mixed", None: None}
"""Precision of the steps on the meta device, by the autocast dtype of the recorded step."""


def try_batch_sizes(meta_step: MetaStep, trace: Trace, request: PredictionRequest) -> tuple[LargestBatch, ...]:
    """Return the largest batch on each GPU, without changes to the run's random state and gradients.

    On an error, warn and return an empty tuple, so that the predictions are kept.
    """
    from lightning_predict.advice.largest_batch import largest_batches_on

    try:
        return largest_batches_on(_on_meta(meta_step, trace), request.layouts, request.assumptions)
    except Exception as error:
        own_error(error)
        warn(f"RuntimePredictor found no largest batch size: {type(error).__name__}: {error}")
        return ()


@keeps_random_state
def _on_meta(meta_step: MetaStep, trace: Trace) -> Trace:
    """Record the user's step on the meta device, with the batch size and precision of the fit."""
    if trace.samples is None:
        raise CaptureError("the batch size in use could not be read from the batch")
    samples, precision = trace.samples_per_batch, _PRECISIONS.get(trace.flags.autocast_dtype)
    # Our hooks run without function modes, but the user's step may enter one, such as `torch.device("meta")`.
    with torch.enable_grad(), torch._C._EnableTorchFunction():
        captured = capture(meta_step(samples), samples_per_step=samples, precision=precision)
    if captured.device != "meta":
        raise CaptureError(f"meta_step ran on {captured.device}; make its tensors on the meta device")
    return captured


def show_batch_sizes(batches: Sequence[LargestBatch], trainer: Trainer, *, with_table: bool) -> None:
    """Print the largest batches, and log them at the current step."""
    if not batches:
        return
    lines = [batch.sentence for batch in batches]
    if with_table:
        print_on_rank_zero(trainer, lambda: "\n".join(["From steps captured on the meta device:", *lines, ""]))
    values = {}
    for batch in batches:
        if batch.batch_size is not None and batch.samples_per_second is not None:
            values[f"{batch.gpu}/largest_batch_size"] = float(batch.batch_size)
            values[f"{batch.gpu}/largest_batch_samples_per_second"] = batch.samples_per_second
    table = LoggedTable(
        key="predict/batch_size",
        columns=("gpu", "batch_size", "samples_per_second", "usd_per_million_samples"),
        rows=tuple(
            (each.gpu, each.batch_size, each.samples_per_second, each.usd_per_million_samples) for each in batches
        ),
        markdown="\n".join(f"- {line}" for line in lines),
    )
    step = logger_step(trainer)
    for refusal in (*log_values(trainer, "predict", values), *log_table(trainer.loggers, table, step=step)):
        warn(refusal)
