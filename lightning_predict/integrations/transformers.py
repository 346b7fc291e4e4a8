"""`RuntimePredictorCallback`: predictions in the middle of a fit of Hugging Face's `Trainer`.

Example::

    from lightning_predict.integrations.transformers import RuntimePredictorCallback

    predictor = RuntimePredictorCallback(gpus=["L4", "H100-SXM-80GB"])
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[predictor]).train()
    predictor.predictions["L4"].total_seconds
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from lightning_predict.errors import CaptureError, InvalidArgumentError, MissingDependencyError
from lightning_predict.gpus import DEFAULT_GPUS
from lightning_predict.gpus.layouts import layouts_of
from lightning_predict.guard import never_raises, say
from lightning_predict.prediction import predict
from lightning_predict.reports.loggers import metrics
from lightning_predict.tracing.session import CaptureSession
from lightning_predict.tracing.waiting import wait_for

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingDependencyError(
        "RuntimePredictorCallback is for Hugging Face's Trainer, which is not installed: pip install transformers. For "
        "a Trainer of Lightning, take lightning_predict.callbacks.RuntimePredictor."
    ) from error

if TYPE_CHECKING:
    from torch import nn
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from lightning_predict.reports.predictions import Predictions
    from lightning_predict.tracing.trace import Trace


class RuntimePredictorCallback(TrainerCallback):
    """Predict the rest of this run on GPUs, once, after its first steps.

    A step is what lies between two optimizer updates. After `warmup_steps` of them one is recorded, the table is
    printed on the main process, and the numbers are added to the Trainer's `state.log_history` (and so to
    `trainer_state.json`). Whatever goes wrong becomes one warning.

    Args:
        gpus: Names of the GPUs or layouts to predict.
        warmup_steps: Steps before the one that is recorded.
        deadline_hours: Time that the rest of the run may take; the ranking names the cheapest GPU within it.
        usd_per_hour: Your own price of one GPU, the same for all or by name; None takes listed offers.
        print_table: Print the table of predictions and the ranking below it.
        verbose: Print the methods, the sources of prices and every note, too.

    Attributes:
        predictions: What was predicted; None before.
        trace: The recorded step; None before.

    Raises:
        UnknownGpuError: A name that the catalogue does not hold.
        InvalidArgumentError: No GPUs, or a `warmup_steps` below 1.
    """

    _session: CaptureSession | None = None
    _is_on: bool = False
    _seconds: list[float]
    _started_at: float = 0.0

    def __init__(
        self,
        gpus: Sequence[str] = DEFAULT_GPUS,
        *,
        warmup_steps: int = 3,
        deadline_hours: float | None = None,
        usd_per_hour: float | dict[str, float] | None = None,
        print_table: bool = True,
        verbose: bool = False,
    ) -> None:
        if warmup_steps < 1:
            raise InvalidArgumentError(f"warmup_steps={warmup_steps}; expected at least 1, as the first step is cold.")
        self.gpus = tuple(layout.name for layout in layouts_of(gpus))
        self.warmup_steps = warmup_steps
        self.deadline_hours = deadline_hours
        self.usd_per_hour = usd_per_hour
        self.print_table = print_table
        self.verbose = verbose
        self.predictions: Predictions | None = None
        self.trace: Trace | None = None
        self._deactivate()

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle what was given and found, but no recording."""
        return {name: value for name, value in vars(self).items() if name != "_session"} | {"_is_on": False}

    @never_raises
    def on_train_begin(
        self, /, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Reset for a new run, on the main process."""
        self._deactivate()
        self.predictions = self.trace = None
        self._is_on = bool(state.is_world_process_zero)

    @never_raises
    def on_step_begin(
        self, /, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Time a step of the warm-up, or record the one after it."""
        if not self._is_on:
            return
        if len(self._seconds) == self.warmup_steps:
            model: nn.Module = kwargs["model"]
            self._session = CaptureSession(device=torch.device(args.device), model=model)
            self._session.start()
        else:
            self._started_at = _now(args)

    @never_raises
    def on_step_end(
        self, /, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Predict once the step was recorded."""
        if not self._is_on:
            return
        if self._session is None:
            self._seconds.append(_now(args) - self._started_at)
            return
        session, self._session = self._session, None
        self._is_on = False
        session.stop()
        samples = args.per_device_train_batch_size * args.gradient_accumulation_steps
        recorded = session.trace(step_seconds=tuple(self._seconds[1:]), samples=samples)
        self.trace = replace(recorded, world_size=args.world_size)
        left = state.max_steps - state.global_step if state.max_steps > 0 else None
        found = predict(self.trace, self.gpus, iterations=left, usd_per_hour=self.usd_per_hour)
        heading = None if found.heading is None else f"Rest of this run: {found.heading}"
        self.predictions = replace(found, is_running=True, heading=heading)
        state.log_history.append({"step": state.global_step, **metrics(self.predictions)})
        if self.print_table:
            print(self.predictions.text(verbose=self.verbose))
            print(self.predictions.ranking(deadline_hours=self.deadline_hours))

    @never_raises
    def on_train_end(
        self, /, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say where a run was too short to be recorded."""
        too_short = self._is_on and self.predictions is None
        self._deactivate()
        if too_short:
            raise CaptureError(
                f"the run ended after {state.global_step} steps, before one was recorded; expected more than "
                f"warmup_steps={self.warmup_steps}."
            )

    def give_up(self, error: Exception) -> None:
        """Stop recording and say once what went wrong; training goes on."""
        self._deactivate()
        words = f"RuntimePredictorCallback stopped, training goes on: {type(error).__name__}: {error}"
        try:
            warnings.warn(words, stacklevel=2)
        except Warning:  # where warnings are errors
            say(words)

    def _deactivate(self) -> None:
        """Stop a recording that is under way, and do nothing from here on."""
        session, self._session = self._session, None
        self._is_on = False
        self._seconds = []
        if session is not None:
            session.stop()


def _now(args: TrainingArguments) -> float:
    """Return the seconds of a clock once the device has done its work."""
    wait = wait_for(args.device)
    if wait is not None:
        wait()
    return time.perf_counter()
