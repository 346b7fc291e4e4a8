"""Prints optimization advice below the table of predictions, for `RuntimePredictor(advice=True)`.

On a GPU, the profiler does not record the data flow between operations. Therefore the dispatch recorder records another
optimizer step with its data flow. With the data flow, the advice also covers compilation, other batch sizes and more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightning_predict.base.errors import LightningPredictError
from lightning_predict.callbacks.lightning_packages import shapes_of, warn
from lightning_predict.callbacks.output import log_values, print_on_rank_zero
from lightning_predict.observe.micro_batches import MicroBatches
from lightning_predict.observe.optimizer_steps import StepCounter
from lightning_predict.observe.recorder import stop_with_retry
from lightning_predict.observe.run_session import RunSession
from lightning_predict.record.data_flow import with_data_flow
from lightning_predict.record.environment import autograd_nodes
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Trace

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from lightning_predict.advice.advice_text import Advice


def print_advice(trainer: Trainer, trace: Trace, session: RunSession) -> Advice | None:
    """Print at most three lines of advice on rank zero, and log the gains.

    Returns:
        The advice; None on other ranks, or if the advice failed with a warning.
    """
    from lightning_predict.advice.advice import advice_for
    from lightning_predict.advice.advice_text import short_lines

    if not trainer.is_global_zero:
        return None
    predictions = session.results.predictions
    iterations = None if predictions is None else next(iter(predictions.values())).iterations
    try:
        advice = advice_for(trace, session.request.layouts, session.assumptions(trace), iterations=iterations)
    except LightningPredictError as error:  # the predictions are still valid
        warn(f"RuntimePredictor could not advise: {error}")
        return None
    print_on_rank_zero(trainer, lambda: "\n".join(short_lines(advice)) + "\n")
    for refusal in log_values(
        trainer, "predict", {key.removeprefix("predict/"): value for key, value in advice.metrics().items()}
    ):
        warn(refusal)
    return advice


class DataFlowRecorder:
    """Records the data flow of the next accumulation window, for a recorded step with measured kernels."""

    def __init__(self, trainer: Trainer, pl_module: LightningModule, trace: Trace, count: StepCounter) -> None:
        self.trace = trace
        self._count = count
        self._window: int | None = None
        self._batches, self._nodes_at_start = MicroBatches(expected=trace.batches), 0
        self._is_in_batch = self._is_over = False
        self._session = CaptureSession(
            device=trainer.strategy.root_device, model=pl_module, optimizers=trainer.optimizers, records_data_flow=True
        )

    @staticmethod
    def is_useful(trace: Trace) -> bool:
        """Return whether the data flow of the next optimizer step would add information to the recorded step."""
        return trace.has_measured_kernels and not trace.compiled and not trace.other_steps

    def on_batch_start(self, batch: Any) -> None:
        """Record the batch if an optimizer step has begun here, and no equal batch was recorded yet."""
        if self._is_over or (self._window is None and not self._count.between_windows):
            return
        if self._window is None:
            self._window = self._count.windows
        self._is_in_batch, self._nodes_at_start = True, autograd_nodes()
        if not self._batches.begins(shapes_of(batch), ignores_shapes=False):
            return
        try:
            self._session.start()
        except LightningPredictError as error:
            self._ends(error)

    def on_batch_end(self) -> bool:
        """End the batch. Return whether the optimizer step is over, with or without recorded data flow."""
        if self._is_in_batch:
            self.stop()
            self._batches.ends(autograd_nodes() - self._nodes_at_start)
            if self._count.windows != self._window:
                try:
                    followed = self._session.trace(
                        batches=self.trace.batches, represented_by=self._batches.represented_by or ()
                    )
                    self.trace = with_data_flow(self.trace, followed)
                except LightningPredictError as error:
                    self._ends(error)
                self._is_over = True
        return self._is_over

    def _ends(self, error: LightningPredictError) -> None:
        note = f"Tensors could not be followed: {str(error).rstrip('.')}."
        self._is_over, self.trace = True, replace(self.trace, notes=(*self.trace.notes, note))

    def stop(self) -> None:
        """Stop recording."""
        self._is_in_batch = False
        stop_with_retry(self._session)
