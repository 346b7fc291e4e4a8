"""Fits that use one feature of Lightning each, for comparing a fit with our callbacks to one without.

fit = FITS["accumulation"]
    plain, watched = outcome(fit, folder, []), outcome(fit, folder, callbacks())
differences(plain, watched)     # [] where nothing differs
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from tests.callbacks.small import Small

LIGHTNING: Final = Small("lightning.pytorch")
_callbacks: Final[Any] = LIGHTNING.lightning.callbacks
BATCHES, EPOCHS = 6, 3

Fit = Callable[[Path, list[Any]], tuple[Any, Any]]
"""Fits in a folder with these callbacks; gives the Trainer and the model."""


@dataclass(frozen=True)
class Outcome:
    """Result of a fit."""

    weights: dict[str, Tensor]  # Of the model, by name
    optimizers: list[Any]  # State of each optimizer
    random: tuple[Any, ...]  # States of the generators of torch, numpy and Python
    metrics: dict[str, Any]  # Logged metrics, without our own
    counts: tuple[int, int, int]  # Optimizer steps, epochs and batches


def callbacks() -> list[Any]:
    """Give both callbacks, with a budget that is never used up."""
    return [RuntimePredictor(["T4", "8xL4"], print_table=False), CostBudget(usd=1e6, usd_per_hour=1)]


def outcome(fit: Fit, folder: Path, ours: list[Any]) -> Outcome:
    """Fit from the same seeds and return its result."""
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    folder.mkdir(parents=True, exist_ok=True)
    trainer, model = fit(folder, ours)
    metrics = {
        key: value for key, value in trainer.callback_metrics.items() if not key.startswith(("predict", "budget"))
    }
    return Outcome(
        weights={key: value.detach().clone() for key, value in model.state_dict().items() if torch.is_tensor(value)},
        optimizers=[optimizer.state_dict() for optimizer in trainer.optimizers],
        random=(torch.get_rng_state(), np.random.get_state()[1], random.getstate()),  # type: ignore[index]
        metrics=metrics,
        counts=(trainer.global_step, trainer.current_epoch, getattr(model, "batches_trained", 0)),
    )


def differences(first: Outcome, other: Outcome) -> list[str]:
    """Name the parts in which two outcomes differ, to the last bit."""
    names = ("weights", "optimizers", "random", "metrics", "counts")
    return [name for name in names if not is_same(getattr(first, name), getattr(other, name))]


def is_same(first: Any, other: Any) -> bool:
    """Compare to the last bit, within containers too."""
    if isinstance(first, Tensor):
        return isinstance(other, Tensor) and first.dtype is other.dtype and torch.equal(first, other)
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, other))
    if isinstance(first, Mapping):
        return first.keys() == other.keys() and all(is_same(first[key], other[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(other) and all(map(is_same, first, other))
    return bool(first == other)


def _fit(model: Any, folder: Path, ours: list[Any], *, train: Any = None, **options: Any) -> tuple[Any, Any]:
    own = options.pop("callbacks", [])
    options = {"max_epochs": EPOCHS} | options
    trainer = LIGHTNING.trainer(folder, callbacks=[*own, *ours], **options)
    validation = LIGHTNING.loader(2) if model.__class__.__name__ == "ValidatedModel" else None
    trainer.fit(model, LIGHTNING.loader(BATCHES) if train is None else train, validation)
    return trainer, model


def _options(**options: Any) -> Fit:
    """A fit with options of the Trainer."""
    return lambda folder, ours: _fit(LIGHTNING.model(validates=True), folder, ours, **options)


def _callback(make: Callable[[], Any], **options: Any) -> Fit:
    """A fit with a callback of Lightning's."""
    return lambda folder, ours: _fit(LIGHTNING.model(validates=True), folder, ours, callbacks=[make()], **options)


def _optimizer(make: Callable[[Any], Any]) -> Fit:
    """A fit with what `configure_optimizers` is to give."""

    def fit(folder: Path, ours: list[Any]) -> tuple[Any, Any]:
        model = LIGHTNING.model(validates=True)
        model.configure_optimizers = lambda: make(model)
        return _fit(model, folder, ours)

    return fit


def _one_cycle(model: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=BATCHES * EPOCHS + 1)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def _plateau(model: Any) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


class _Thaw(_callbacks.BaseFinetuning):  # type: ignore[misc]
    """Freezes the first layer and thaws it in the second epoch."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.network[0])

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.network[0], optimizer)


def _manual(folder: Path, ours: list[Any]) -> tuple[Any, Any]:
    return _fit(LIGHTNING.gan(accumulates=2), folder, ours)


def _stream(folder: Path, ours: list[Any]) -> tuple[Any, Any]:
    return _fit(
        LIGHTNING.model(validates=True), folder, ours, train=LIGHTNING.stream(BATCHES), max_steps=15, max_epochs=-1
    )


def _several_loaders(folder: Path, ours: list[Any]) -> tuple[Any, Any]:
    model = LIGHTNING.model()
    step = model.training_step
    model.training_step = lambda batch, batch_idx: step(batch["one"], batch_idx) + step(batch["other"], batch_idx)
    return _fit(model, folder, ours, train={"one": LIGHTNING.loader(BATCHES), "other": LIGHTNING.loader(3)})


def _recomputed(folder: Path, ours: list[Any]) -> tuple[Any, Any]:
    model = LIGHTNING.model(validates=True)
    network = model.network

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network

        def forward(self, batch: Tensor) -> Any:
            return checkpoint(self.inner, batch, use_reentrant=False)

    model.network = Recomputed()
    return _fit(model, folder, ours)


def _skipped(folder: Path, ours: list[Any]) -> tuple[Any, Any]:
    """Trains every second batch."""
    model = LIGHTNING.model(validates=True)
    step = model.training_step
    model.training_step = lambda batch, batch_idx: None if batch_idx % 2 else step(batch, batch_idx)
    return _fit(model, folder, ours)


def _compiled(folder: Path, ours: list[Any]) -> tuple[Any, Any]:
    model = LIGHTNING.model(validates=True)
    model.network.compile(backend="eager")
    try:
        return _fit(model, folder, ours)
    finally:
        torch._dynamo.reset()


def _resumed(folder: Path, ours: list[Any]) -> tuple[Any, Any]:
    """Saves in the middle of the second epoch, and goes on from there with a new model and a new Trainer."""
    path = folder / "middle.ckpt"

    class Save(LIGHTNING.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == BATCHES + 3:
                trainer.save_checkpoint(path)

    _fit(LIGHTNING.model(validates=True), folder, callbacks() if ours else [], callbacks=[Save()], max_epochs=2)
    torch.manual_seed(7)
    model = LIGHTNING.model(seed=5, validates=True)
    trainer = LIGHTNING.trainer(folder, callbacks=ours, max_epochs=EPOCHS)
    trainer.fit(model, LIGHTNING.loader(BATCHES), LIGHTNING.loader(2), ckpt_path=str(path), weights_only=False)
    return trainer, model


def _learning_rate_found(folder: Path, ours: list[Any]) -> tuple[Any, Any]:
    model = LIGHTNING.model(validates=True)
    model.lr = 0.01
    model.configure_optimizers = lambda: torch.optim.Adam(model.parameters(), lr=model.lr)
    trainer = LIGHTNING.trainer(folder, callbacks=ours, max_epochs=EPOCHS)
    tuner = LIGHTNING.lightning.tuner.Tuner(trainer)
    tuner.lr_find(model, LIGHTNING.loader(BATCHES), LIGHTNING.loader(2), num_training=8)
    trainer.fit(model, LIGHTNING.loader(BATCHES), LIGHTNING.loader(2))
    return trainer, model


class _DrawsNumbers(TorchFunctionMode):
    """Draws a random number in each call, as an emulation of stochastic rounding does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            torch.rand(())
        return func(*args, **(kwargs or {}))


class _EntersMode(_callbacks.Callback):  # type: ignore[misc]
    """Trains within a function mode that draws."""

    mode = _DrawsNumbers()

    def on_train_start(self, *_: Any) -> None:
        self.mode.__enter__()  # type: ignore[no-untyped-call]

    def on_train_end(self, *_: Any) -> None:
        self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def _within_mode(folder: Path, ours: list[Any]) -> tuple[Any, Any]:
    with _DrawsNumbers():
        return _fit(LIGHTNING.model(), folder, ours)


FITS: Final[dict[str, Fit]] = {  # Fits by the feature that they use
    "plain": _options(),
    "accumulation": _options(accumulate_grad_batches=2),
    "scheduled accumulation": _callback(lambda: _callbacks.GradientAccumulationScheduler({0: 1, 1: 3})),
    "autocast": _options(precision="bf16-mixed"),
    "double precision": _options(precision="64-true"),
    "clipping by norm": _options(gradient_clip_val=0.1),
    "clipping by value": _options(gradient_clip_val=0.1, gradient_clip_algorithm="value"),
    "averaged weights (SWA)": _callback(
        lambda: _callbacks.StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=1, annealing_epochs=1)
    ),
    "averaged weights (EMA)": _callback(lambda: _callbacks.EMAWeightAveraging(decay=0.9)),
    "finetuning": _callback(_Thaw),
    "pruning": _callback(lambda: _callbacks.ModelPruning("l1_unstructured", amount=0.2, parameter_names=["weight"])),
    "early stopping": _callback(lambda: _callbacks.EarlyStopping("val_loss", mode="max", patience=0)),
    "checkpoints": lambda folder, ours: _fit(
        LIGHTNING.model(validates=True),
        folder,
        ours,
        callbacks=[_callbacks.ModelCheckpoint(folder, every_n_train_steps=4, save_last=True)],
        enable_checkpointing=True,
    ),
    "resumed within an epoch": _resumed,
    "manual optimization": _manual,
    "LBFGS": _optimizer(lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)),
    "a schedule each step": _optimizer(_one_cycle),
    "a schedule by validation": _optimizer(_plateau),
    "overfit_batches": _options(overfit_batches=2, max_epochs=6),
    "limits, and validation within an epoch": _options(
        limit_train_batches=5, val_check_interval=2, limit_val_batches=1
    ),
    "fast_dev_run": _options(fast_dev_run=True),
    "a loader without a length": _stream,
    "several loaders": _several_loaders,
    "a profiler of Lightning's": _options(profiler="simple"),
    "detection of anomalies": _options(detect_anomaly=True),
    "activation checkpointing": _recomputed,
    "compiled": _compiled,
    "batches that are skipped": _skipped,
    "learning-rate finder": _learning_rate_found,
    "deterministic": _options(deterministic=True),
    "within a function mode that draws": _within_mode,
    "a mode entered before our hooks": _callback(_EntersMode),
    "a mode entered after our hooks": lambda folder, ours: _fit(LIGHTNING.model(), folder, [*ours, _EntersMode()]),
    "a logger and a monitor": lambda folder, ours: _fit(
        LIGHTNING.model(validates=True),
        folder,
        ours,
        callbacks=[_callbacks.LearningRateMonitor("step")],
        logger=LIGHTNING.lightning.loggers.CSVLogger(folder),
    ),
}

UNPREDICTED: Final = frozenset({"fast_dev_run"})  # Too short, or watched by something else: there is nothing to predict
