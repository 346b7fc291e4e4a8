"""Warnings that later parts of a run may not fit in GPU memory, from a Trainer's loaders and optimizers.

No batches of the loaders are read. The size of a validation batch is the loader's `batch_size`. The longest sequence
comes from `lengths` of a dataset or a sampler, or from the column `length` of a Hugging Face dataset. Example::

    ahead = MemoryWarnings()
    ahead.batch_was_recorded(batch)
    ahead.warn(trainer, trace)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

from lightning_predict.callbacks.lightning_packages import warn
from lightning_predict.observe.memory_risks import (
    MemoryFacts,
    leaves_of,
    longest_sequence,
    memory_risks,
    missing_state_bytes,
)
from lightning_predict.record.trace import Trace

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@final
class MemoryWarnings:
    """Facts about the rest of one fit that determine its memory, and the warnings that were shown."""

    def __init__(self) -> None:
        self._length: int | None = None
        self._validation: Trace | None = None
        self._told: set[str] = set()

    def batch_was_recorded(self, batch: Any) -> None:
        """Store the length of the recorded sequences."""
        self._length = sequence_length(batch)

    def warn(self, trainer: Trainer, trace: Trace, *, validation: Trace | None = None) -> None:
        """Warn about each later part of the run that may not fit on the GPU in use, once per part.

        Args:
            trainer: Trainer that is fitting.
            trace: Recorded step.
            validation: Recorded validation batch; None keeps the previous recording.
        """
        self._validation = validation or self._validation
        ahead = MemoryFacts(
            state_bytes=sum(missing_state_bytes(optimizer) or 0 for optimizer in trainer.optimizers),
            validation=self._validation,
            validation_samples=largest_validation_batch(trainer),
            length=self._length,
            longest=None if self._length is None else longest_sequence(trainer.train_dataloader),
        )
        for worry in memory_risks(trace, ahead):
            if worry.kind not in self._told:
                self._told.add(worry.kind)
                warn(f"RuntimePredictor, memory: {worry.sentence}")


def largest_validation_batch(trainer: Any) -> int | None:
    """Return the number of samples of the largest validation batch; None if unknown, or if no loader exists yet."""
    sizes = []
    for loader in leaves_of(trainer.val_dataloaders):
        size = getattr(loader, "batch_size", None) or getattr(
            getattr(loader, "batch_sampler", None), "batch_size", None
        )
        if isinstance(size, int):
            held = getattr(getattr(loader, "sampler", None), "__len__", None)
            sizes.append(size if held is None else min(size, held()))
    return max(sizes, default=None)


def sequence_length(batch: Any) -> int | None:
    """Return the sequence length of a batch, the second size of its integer tensors; None without such tensors."""
    return max((int(one.shape[1]) for one in _tensors(batch) if one.dim() == 2 and _is_whole(one)), default=None)


def _tensors(batch: Any) -> list[torch.Tensor]:
    values = dict(batch) if hasattr(batch, "keys") else batch
    return [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
