"""Read from a Trainer what the rest of its run may need memory for, and say it before training goes on.

The loaders' batches are not read: what is known of a validation batch is the size that its loader was made with, and of
the longest sequence what a dataset or a sampler says in `lengths`, or a dataset of Hugging Face in its column `length`.
Example::

    ahead = MemoryAhead()
    ahead.batch_was_recorded(batch)
    ahead.tell(trainer, trace)
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, final

import torch

from lightning_predict.callbacks.bases import warn
from lightning_predict.fit.memory_ahead import Ahead, worries
from lightning_predict.tracing.trace import Trace

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


MOST_LENGTHS: Final = 10_000_000
"""Sequences whose lengths are looked at; more would keep the training waiting for seconds."""


@final
class MemoryAhead:
    """What is known of the rest of one fit, and what was said of it."""

    def __init__(self) -> None:
        self._length: int | None = None
        self._validation: Trace | None = None
        self._told: set[str] = set()

    def batch_was_recorded(self, batch: Any) -> None:
        """Take note of how long the recorded sequences are."""
        self._length = sequence_length(batch)

    def tell(self, trainer: Trainer, trace: Trace, *, validation: Trace | None = None) -> None:
        """Warn of what is still to come and may not fit on the GPU in use, each once.

        Args:
            trainer: A Trainer that is fitting.
            trace: The recorded step.
            validation: A recorded batch of validation; None keeps the one before.
        """
        self._validation = validation or self._validation
        ahead = Ahead(
            state_bytes=sum(missing_state_bytes(optimizer) or 0 for optimizer in trainer.optimizers),
            validation=self._validation,
            validation_samples=largest_validation_batch(trainer),
            length=self._length,
            longest=None if self._length is None else longest_sequence(trainer.train_dataloader),
        )
        for worry in worries(trace, ahead):
            if worry.kind not in self._told:
                self._told.add(worry.kind)
                warn(f"RuntimePredictor, memory: {worry.sentence}")


def missing_state_bytes(optimizer: Any) -> int | None:
    """Count the bytes of state that an optimizer will make with its first update; None if it is not known.

    A copy of it makes an update of copies of its parameters that have shapes and no values. After the first update none
    is missing.
    """
    try:
        if optimizer.state:
            return 0
        twin = copy.copy(optimizer)
        twin.state, twin._optimizer_step_pre_hooks, twin._optimizer_step_post_hooks = defaultdict(dict), {}, {}
        twin.param_groups = [
            {**group, "params": _without_values(group["params"]), "fused": None, "foreach": None, "capturable": False}
            for group in optimizer.param_groups
        ]
        type(optimizer).step(twin)
        values = [value for state in twin.state.values() for value in state.values()]
    except Exception:  # other people's code, for which values may matter
        return None
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))


def _without_values(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Copy what is trained, and give it gradients, on the meta device."""
    twins = []
    for parameter in parameters:
        if parameter.requires_grad:
            twin = torch.empty_like(parameter, device="meta", requires_grad=True)
            twin.grad = torch.empty_like(twin, requires_grad=False)
            twins.append(twin)
    return twins


def largest_validation_batch(trainer: Any) -> int | None:
    """Return the samples of the largest batch of validation; None before its loaders are made, and where none says."""
    sizes = []
    for loader in _leaves(trainer.val_dataloaders):
        size = getattr(loader, "batch_size", None) or getattr(
            getattr(loader, "batch_sampler", None), "batch_size", None
        )
        if isinstance(size, int):
            held = getattr(getattr(loader, "sampler", None), "__len__", None)
            sizes.append(size if held is None else min(size, held()))
    return max(sizes, default=None)


def sequence_length(batch: Any) -> int | None:
    """Return the length of a batch of sequences: the second size of its whole numbers; None where there are none."""
    return max((int(one.shape[1]) for one in _tensors(batch) if one.dim() == 2 and _is_whole(one)), default=None)


def longest_sequence(loaders: Any) -> int | None:
    """Return the length of the longest sequence of loaders whose dataset or sampler says; None if none does."""
    longest = []
    for loader in _leaves(loaders):
        for part in (getattr(loader, name, None) for name in ("dataset", "sampler", "batch_sampler")):
            lengths = getattr(part, "lengths", None)
            if part is not None and "length" in (getattr(part, "column_names", None) or ()):
                lengths = part["length"]
            if isinstance(lengths, Collection) and 0 < len(lengths) <= MOST_LENGTHS:
                longest.append(max(int(one) for one in lengths))
    return max(longest, default=None)


def _leaves(loaders: Any) -> list[Any]:
    return [loader for loader in torch.utils._pytree.tree_leaves(loaders) if loader is not None]


def _tensors(batch: Any) -> list[torch.Tensor]:
    values = dict(batch) if hasattr(batch, "keys") else batch
    return [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
