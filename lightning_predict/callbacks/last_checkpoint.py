"""The checkpoint that a budget leaves when it ends a run, and what there is to know before going on from it.

Example::

    sentence = save_where_it_stands(trainer)   # " Its checkpoint is .../lightning_predict_budget.ckpt."
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, final

from lightning_predict.callbacks.bases import warn
from lightning_predict.callbacks.price import gpu_in_use
from lightning_predict.callbacks.trainer_state import resumes_data

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

CHECKPOINT_NAME: Final = "lightning_predict_budget.ckpt"


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """What a fit runs on.

    Attributes:
        device: Our name of the GPU, else the kind of device.
        world_size: Processes.
    """

    device: str
    world_size: int

    @staticmethod
    def of(trainer: Trainer) -> Machine:
        """The machine of this fit."""
        device = trainer.strategy.root_device
        return Machine(gpu_in_use(device) or device.type, trainer.world_size)

    @staticmethod
    def of_state(state: dict[str, Any]) -> Machine | None:
        """The machine that a checkpoint names; None where it names none."""
        return Machine(state["device"], state["world_size"]) if {"device", "world_size"} <= state.keys() else None

    def as_state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.world_size} x {self.device}"


def say_if_moved(before: Machine | None, now: Machine) -> None:
    """Warn where a run goes on on another machine.

    Args:
        before: The machine before; None where there was none, or it is not known.
        now: The machine now.
    """
    if before is not None and before != now:
        warn(
            f"CostBudget: this run was on {before} before, and is on {now} now. What was used counts as it was paid "
            "for; the rest is forecast from steps on what is in use now."
        )


def save_where_it_stands(trainer: Trainer) -> str:
    """Write a checkpoint of the whole state to `default_root_dir`; to be called on every rank, at the end of a batch.

    Returns:
        A sentence on where it is, and on the data order after a resume; empty where it could not be written, which is
        warned about.
    """
    path = os.path.join(trainer.default_root_dir, CHECKPOINT_NAME)
    try:
        trainer.save_checkpoint(path, weights_only=False)
    except Exception as error:  # A full disk must not keep the run going.
        warn(f"CostBudget could not write {path}: {type(error).__name__}: {error}")
        return ""
    if trainer.is_last_batch or resumes_data(trainer):
        return f" Its checkpoint is {path}."
    return (
        f" Its checkpoint is {path}. The loader has no state_dict: a resume trains as many batches as were left of "
        "this epoch, but Lightning begins again with the epoch's first."
    )
