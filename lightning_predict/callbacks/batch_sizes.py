"""Largest batch size that fits on each GPU, from the user's own step on the meta device.

The training step of the fit is never run again. The user passes a separate step, which runs at the current batch size
and at twice this size. Example::

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
from lightning_predict.base.guard import own_error
from lightning_predict.callbacks.arguments import MetaStep
from lightning_predict.callbacks.lightning_packages import warn
from lightning_predict.callbacks.output import log_values, print_on_rank_zero
from lightning_predict.callbacks.rest_prediction import PredictionRequest
from lightning_predict.record.recording import capture
from lightning_predict.record.trace import Trace
from lightning_predict.reports.loggers import LoggedTable, log_table
from lightning_predict.run.batch_size import BatchSizeOption

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_PRECISIONS: Final = {"bfloat16": "bf16-mixed", "float16": "16-mixed", None: None}
"""Precision of the steps on the meta device, by the autocast dtype of the recorded step."""


def batch_sizes_on_meta(meta_step: MetaStep, trace: Trace, question: PredictionRequest) -> tuple[BatchSizeOption, ...]:
    """Return the largest batch size that fits on each GPU, without changes to the run's random state and gradients."""
    from lightning_predict.advice.what_if import batch_sizes_that_fit

    if trace.samples is None:
        raise CaptureError("the batch size in use could not be read from the batch")
    size = max(1, trace.samples // trace.batches)
    precision = _PRECISIONS.get(trace.flags.autocast_dtype)
    # Our hooks run without function modes, but the user's step may enter one, such as `torch.device("meta")`.
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch._C._EnableTorchFunction():
        traces = {
            samples: capture(meta_step(samples), samples_per_step=samples, precision=precision)
            for samples in (size, 2 * size)
        }
    elsewhere = {one.device for one in traces.values()} - {"meta"}
    if elsewhere:
        raise CaptureError(f"meta_step ran on {', '.join(sorted(elsewhere))}; make its tensors on the meta device")
    return batch_sizes_that_fit(traces, question.layouts, question.assumptions)


def try_batch_sizes(meta_step: MetaStep, trace: Trace, question: PredictionRequest) -> tuple[BatchSizeOption, ...]:
    """Return the largest batch sizes. On an error, warn and return an empty tuple, so that the predictions are kept."""
    try:
        return batch_sizes_on_meta(meta_step, trace, question)
    except Exception as error:
        own_error(error)
        warn(f"RuntimePredictor found no largest batch size: {type(error).__name__}: {error}")
        return ()


def show_batch_sizes(options: Sequence[BatchSizeOption], trainer: Trainer, *, with_table: bool) -> None:
    """Print the options, and log them at the current step."""
    if not options:
        return
    from lightning_predict.advice.what_if import batch_size_lines

    lines = batch_size_lines(options)
    if with_table:
        print_on_rank_zero(trainer, lambda: "Largest batch size (from steps captured on the meta device):")
        print_on_rank_zero(trainer, lambda: "\n".join(lines) + "\n")
    values = {}
    for option in options:
        if option.batch_size is not None and option.samples_per_second is not None:
            separated = f"{option.gpu}/largest_batch"
            values[f"{separated}_size"] = float(option.batch_size)
            values[f"{separated}_samples_per_second"] = option.samples_per_second
    table = LoggedTable(
        key="predict/batch_size",
        columns=("gpu", "batch_size", "samples_per_second", "usd_per_million_samples"),
        rows=tuple((one.gpu, one.batch_size, one.samples_per_second, one.usd_per_million_samples) for one in options),
        markdown="\n".join(f"- {line}" for line in lines),
    )
    refusals = (*log_values(trainer, "predict", values), *log_table(trainer.loggers, table, step=trainer.global_step))
    for refusal in refusals:
        warn(refusal)
