"""`TrainerLoop`: the training loop of a Trainer, as a session sees it (`observe.run_session`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from lightning_predict.callbacks.lightning_packages import leaves_of_batch, warn
from lightning_predict.callbacks.output import log_and_save, log_values, print_on_rank_zero, print_sentence, table_text
from lightning_predict.callbacks.trainer_state import batches_of_fit, forecast_inputs, prefetched_batches
from lightning_predict.layouts.strategy import DataStrategy, GatheredDtype, Strategy
from lightning_predict.observe.forecast import ForecastInputs
from lightning_predict.observe.memory_risks import MemoryFacts, leaves_of, longest_sequence, missing_state_bytes
from lightning_predict.observe.optimizer_steps import WindowSize
from lightning_predict.observe.rank_agreement import wait_seconds
from lightning_predict.observe.remaining import HookMoment
from lightning_predict.observe.run_observer import RunObserver
from lightning_predict.observe.run_session import Loop, LoopProgress, PredictionRequest
from lightning_predict.record.trace import Trace
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import Ranking
from lightning_predict.run.workload import Workload

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_BY_CLASS: Final[dict[str, DataStrategy]] = {"FSDPStrategy": "fsdp", "ModelParallelStrategy": "fsdp"}
"""Sharding by the class name of the strategy. Some classes cannot be imported without an extra."""

_ZERO_STAGES: Final[dict[int, DataStrategy]] = {0: "ddp", 1: "zero1", 2: "zero2", 3: "fsdp"}

_MIXED_PRECISIONS: Final[dict[str, GatheredDtype]] = {"bf16-mixed": "bfloat16", "16-mixed": "float16"}
"""Dtype in which Lightning's FSDP gathers float32 parameters, by the Trainer's precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionOptions:
    """Options of `RuntimePredictor` beyond the request of predictions; its arguments describe them."""

    warmup_steps: int
    with_table: bool
    verbose: bool
    json_file: str | None
    save_trace: str | None
    advice: bool
    progress_bar: bool


class TrainerLoop(Loop):
    """Training loop of a Trainer."""

    name = "RuntimePredictor"

    def __init__(
        self, trainer: Trainer, observer: RunObserver, request: PredictionRequest, options: PredictionOptions
    ) -> None:
        super().__init__(None, show=None)
        self._trainer, self._observer, self._request, self._options = trainer, observer, request, options
        self.world_size, self.num_nodes = trainer.world_size, trainer.num_nodes
        # Size of the accumulation windows, as observed when the last trace was returned; before that, the default
        self.window_size = WindowSize()
        # Length of the recorded sequences; None if unknown or without sequences
        self.sequence_length: int | None = None

    def inputs(self, moment: HookMoment) -> ForecastInputs:
        """Read the inputs of a forecast from the Trainer."""
        self._observer.buffered = prefetched_batches(self._trainer)
        return forecast_inputs(
            self._trainer,
            window_size=self.window_size,
            moment=moment,
            batches_per_epoch=self._given_batches or self._observer.batches_per_epoch,
        )

    def progress(self) -> LoopProgress:
        """Return the Trainer's counts. `global_step` counts the updates of each optimizer, so it is divided."""
        steps = round(self._trainer.global_step / self._observer.windows.window_size.steps_per_window)
        return LoopProgress(self._trainer.fit_loop.total_batch_idx + 1, steps, batches_of_fit(self._trainer))

    def memory_facts(self, trace: Trace) -> MemoryFacts:
        """Return the facts that loaders and optimizers tell without reading a batch."""
        trainer = self._trainer
        return MemoryFacts(
            state_bytes=sum(missing_state_bytes(optimizer) or 0 for optimizer in trainer.optimizers),
            validation_samples=largest_validation_batch(trainer),
            length=self.sequence_length,
            longest=None if self.sequence_length is None else longest_sequence(trainer.train_dataloader),
        )

    def strategy(self) -> Strategy:
        """Return the Trainer's strategy."""
        return strategy_of_trainer(self._trainer)

    def notes(self, work: Workload) -> tuple[str, ...]:
        """Return notes about a loader without a length, unknown checkpoints and other processes."""
        notes, seen = [], self._observer.batches_per_epoch
        if self._given_batches is not None:
            notes.append(f"The loader has no length. Assumed: {self._given_batches:,} batches per epoch, as given.")
        elif math.isinf(self._trainer.num_training_batches) and seen is not None:
            notes.append(f"The loader has no length. Assumed: {seen:,} batches per epoch, as in the last epoch.")
        if work.training_iterations is not None and work.checkpoints.total is None:
            notes.append("Total: checkpoints are not included, because their number or size is unknown.")
        if self.world_size > 1:
            notes.append(f"Recorded on one of {self.world_size} processes.")
        return tuple(notes)

    def patience_seconds(self, longest: float) -> float:
        """Return how long the other ranks may wait."""
        return wait_seconds(self._trainer, longest)

    def show(self, text: Callable[[], str]) -> None:
        """Print a text next to the progress bar, if tables are printed."""
        if self._options.with_table:
            print_on_rank_zero(self._trainer, text)

    def table(self, predictions: Predictions, reason: str | None) -> str:
        """Return the table for this standard output."""
        return table_text(predictions, verbose=self._options.verbose, reason=reason)

    def say(self, sentence: str) -> None:
        """Print a sentence next to the progress bar, or log it."""
        print_sentence(self._trainer, sentence)

    def warn(self, message: str) -> None:
        """Show a warning on rank zero."""
        warn(message)

    def publish(self, predictions: Predictions, ranking: Ranking) -> None:
        """Log the predictions at the current step, and write the JSON file."""
        options = self._options
        log_and_save(predictions, ranking, self._trainer, verbose=options.verbose, json_file=options.json_file)

    def log(self, values: Mapping[str, float]) -> None:
        """Log values at the current step."""
        for refusal in log_values(self._trainer, "predict", values):
            warn(refusal)

    @property
    def is_at_epoch_end(self) -> bool:
        """Whether the last batch was the last of an epoch."""
        return self._trainer.is_last_batch

    @property
    def _given_batches(self) -> int | None:
        """The user's number of batches per epoch, if the loader has no length."""
        return self._request.batches_per_epoch if math.isinf(self._trainer.num_training_batches) else None


def strategy_of_trainer(trainer: Any) -> Strategy:
    """Return the strategy that the Trainer would use on several GPUs; DDP if it trains on one GPU."""
    strategy = trainer.strategy
    names = [parent.__name__ for parent in type(strategy).__mro__]
    if "DeepSpeedStrategy" in names:
        zero = (getattr(strategy, "config", None) or {}).get("zero_optimization", {})
        data = _ZERO_STAGES.get(zero.get("stage", 2), "zero2")
        is_offloaded = data != "ddp" and (zero.get("offload_optimizer") or {}).get("device") == "cpu"
        return Strategy(data=data, offload="optimizer" if is_offloaded else "none")
    for name, data in _BY_CLASS.items():
        if name in names:
            sharding = getattr(strategy, "sharding_strategy", None)
            is_hybrid = "HYBRID" in str(getattr(sharding, "name", sharding)).upper()
            degree = getattr(strategy, "_tensor_parallel_size", 1)
            return Strategy(
                data="hybrid" if is_hybrid else data,
                tensor=degree if isinstance(degree, int) else 1,
                param_dtype=_MIXED_PRECISIONS.get(str(getattr(trainer, "precision", None))),
            )
    options = getattr(strategy, "_ddp_kwargs", {})
    return Strategy(bucket_cap_mb=options.get("bucket_cap_mb") or Strategy().bucket_cap_mb)


def largest_validation_batch(trainer: Trainer) -> int | None:
    """Return the number of samples of the largest validation batch; None if unknown, or if no loader exists yet."""
    sizes = []
    for loader in leaves_of(trainer.val_dataloaders):
        size = getattr(loader, "batch_size", None) or getattr(
            getattr(loader, "batch_sampler", None), "batch_size", None
        )
        if isinstance(size, int):
            length = getattr(getattr(loader, "sampler", None), "__len__", None)
            sizes.append(size if length is None else min(size, length()))
    return max(sizes, default=None)


def sequence_length(batch: Any) -> int | None:
    """Return the sequence length of a batch, the second size of its integer tensors; None without such tensors."""
    tensors = [leaf for leaf in leaves_of_batch(batch) if isinstance(leaf, torch.Tensor)]
    return max((int(tensor.shape[1]) for tensor in tensors if tensor.dim() == 2 and _is_integer(tensor)), default=None)


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
