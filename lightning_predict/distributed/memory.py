"""Predicts the memory of each GPU in distributed training (DDP, ZeRO, FSDP), before and after sharding.

Persistent memory follows from the parameters. ZeRO and FSDP divide optimizer states, gradients and parameters among
ranks. Replicas also shard tensors that only the optimizer step uses, such as float32 copies of the parameters
(`memory_on`). If the model is split over GPUs, the extension `StageMemory` predicts the memory of each stage, also with
activation checkpointing. Example::

    unsharded_memory(40e9, trace, Strategy()).peak_bytes
    shared_memory_bytes(40e9, trace, layout_of("8xH100-SXM-80GB"), Strategy(data="fsdp"))
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, final

from lightning_predict.constants import constants_of
from lightning_predict.distributed.gradients import is_of_expert, parameter_bytes, unit_bytes, unit_elements
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.extensions import extension
from lightning_predict.gpus.layouts import Layout
from lightning_predict.memory.simulation import (
    blocks_of,
    copy_bytes,
    fullest_moments,
    gradient_bytes,
    moments_of_passes,
)
from lightning_predict.memory.storages import live_tensors
from lightning_predict.tracing.trace import DTYPE_BYTES, Parameter, Trace

if TYPE_CHECKING:
    from lightning_predict.extensions.parallel.stage_memory import StageMemory

_OF: Final = constants_of(__name__)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """Memory of one GPU, before sharding between replicas.

    Attributes:
        peak_bytes: Peak memory.
        parameter_bytes: Size of parameters and buffers.
        gradient_bytes: Size of the gradients.
        optimizer_state_bytes: Size of the optimizer state.
        trainable_bytes: Size of the trainable parameters.
        trained_elements: Number of elements of trainable parameters.
        unit_bytes: Size of the parameters of each FSDP unit.
        unit_elements: Number of parameter elements of each FSDP unit.
        activation_bytes: Temporary memory at the peak of the forward and backward passes.
        early_gradient_bytes: Size of the gradients that exist at the peak of the forward and backward passes; None if
            all gradients exist.
        candidate_peaks: Candidate peak times with sharded gradients, each as (temporary bytes, gradient bytes); empty
            if only the peak on a single GPU is known.
        copy_bytes: Size of the master copies of parameters, which the optimizer updates.
        update_bytes: Temporary memory of the optimizer step.
        expert_share: Share of expert parameters among trainable parameters. Fewer replicas hold experts.
    """

    peak_bytes: float
    parameter_bytes: float
    gradient_bytes: float
    optimizer_state_bytes: float
    trainable_bytes: float
    trained_elements: int
    unit_bytes: tuple[float, ...]
    unit_elements: tuple[int, ...]
    activation_bytes: float = 0.0
    early_gradient_bytes: float | None = None
    candidate_peaks: tuple[tuple[float, float], ...] = ()
    copy_bytes: float = 0.0
    update_bytes: float = 0.0
    expert_share: float = 0.0

    @property
    def persistent_bytes(self) -> float:
        """Memory that is allocated throughout the step."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_state_bytes + self.copy_bytes


def unsharded_memory(single_bytes: float, trace: Trace, strategy: Strategy) -> HeldMemory:
    """Predict the memory of the GPU that needs the most memory, before sharding between replicas.

    Args:
        single_bytes: Memory of the step on a single GPU.
        trace: The recorded step.
        strategy: Parallel strategy.
    """
    return ModelMemory(trace).unsharded(single_bytes, strategy)


@final
class ModelMemory:
    """Memory of a step by use. The memory under many strategies is derived from these values.

    Attributes:
        trace: The recorded step.
        whole: Persistent memory of a GPU that holds the whole model.
        copy_bytes: Size of copies that the optimizer updates instead of the parameters.
        update_bytes: Temporary memory of the optimizer step.
        living_bytes: Size of live tensors at the memory peak of the forward and backward passes.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.whole = held_by_parameters(trace, trace.parameters)
        self.copy_bytes, self.update_bytes = float(copy_bytes(trace)), update_bytes(trace)
        self._behind = _behind_passes(trace)
        self._early = _early_share(trace)
        self._candidate_peaks = _candidate_peaks(trace)
        self.living_bytes = float(sum(live_tensors(trace.operations, _end_of_passes(trace) or None)))

    def unsharded(self, single_bytes: float, strategy: Strategy, *, is_least_filled: bool = False) -> HeldMemory:
        """Predict the memory of the GPU that needs the most or the least memory; see `unsharded_memory`."""
        whole, written = self.whole, self.update_bytes
        known = whole.parameter_bytes + whole.gradient_bytes + whole.optimizer_state_bytes + self.copy_bytes
        # With gradient accumulation, gradients of earlier micro-batches already exist.
        late = 0.0 if strategy.accumulate > 1 else (1 - self._early) * whole.gradient_bytes
        passing = max(single_bytes - known + (1 - self._early) * whole.gradient_bytes - self._behind, 0.0)
        moments = self._peaks_with(passing)
        if strategy.runs_whole_model:
            return replace(
                whole,
                peak_bytes=max(single_bytes, known + max(passing - late, written)),
                activation_bytes=passing,
                early_gradient_bytes=whole.gradient_bytes - late,
                candidate_peaks=moments,
                copy_bytes=self.copy_bytes,
                update_bytes=written,
            )
        return self._stages.unsharded(strategy, moments, is_least_filled=is_least_filled)

    def _peaks_with(self, passing: float) -> tuple[tuple[float, float], ...]:
        """Return candidate peak times as (temporary bytes, gradient bytes).

        Args:
            passing: Temporary memory at the peak on a single GPU.
        """
        early = self._early * self.whole.gradient_bytes
        if not self._candidate_peaks:
            return ((passing, early),)
        beyond = passing + early - max(map(sum, self._candidate_peaks))
        return tuple((max(size + beyond, 0.0), gradients) for size, gradients in self._candidate_peaks)

    @cached_property
    def _stages(self) -> StageMemory:
        """Predictor for strategies that split the model or the batch."""
        made: StageMemory = extension("StageMemory")(self)
        return made


def update_bytes(trace: Trace) -> float:
    """Return the temporary memory of the optimizer step; 0 if the trace has no tensor ids."""
    if not _end_of_passes(trace) or trace.memory.peak_bytes is not None:
        return 0.0
    # CUDA updates all parameters at once, even if the trace (from the meta device) updates them one by one.
    _, moment = fullest_moments(blocks_of(trace))
    return float(moment.update_bytes + sum(one.size_bytes for one in moment.storages if one.cause == "update"))


def _end_of_passes(trace: Trace) -> int:
    """Return the index of the first operation after the backward pass; 0 without a backward pass."""
    ends = (
        index + 1 for index in range(len(trace.operations) - 1, -1, -1) if trace.operations[index].phase == "backward"
    )
    return next(ends, 0)


def _behind_passes(trace: Trace) -> float:
    """Return by how many bytes the peak of the optimizer step exceeds the peak of forward and backward."""
    if not _end_of_passes(trace) or trace.memory.peak_bytes is not None:
        return 0.0
    passes, update = (moment.total_bytes for moment in fullest_moments(blocks_of(trace)))
    return float(max(update - passes, 0))


def _early_share(trace: Trace) -> float:
    """Return the share of gradient bytes that exist at the peak of forward and backward; 1 if not recorded."""
    gradients = gradient_bytes(trace)
    if not gradients or not _end_of_passes(trace) or trace.memory.peak_bytes is not None:
        return 1.0
    blocks = blocks_of(trace)
    written = sum(one.size_bytes for one in blocks.storages if one.cause == "gradient")
    passes, _ = fullest_moments(blocks)
    return min((max(gradients - written, 0) + passes.gradient_bytes) / gradients, 1.0)


def _candidate_peaks(trace: Trace) -> tuple[tuple[float, float], ...]:
    """Return candidate peak times, as in `HeldMemory.candidate_peaks`; empty if not recorded."""
    if not _end_of_passes(trace) or trace.memory.peak_bytes is not None:
        return ()
    blocks = blocks_of(trace)
    unseen = max(gradient_bytes(trace) - sum(one.size_bytes for one in blocks.storages if one.cause == "gradient"), 0)
    return tuple((float(size), float(gradients + unseen)) for size, gradients in moments_of_passes(blocks))


def held_by_parameters(trace: Trace, parameters: tuple[Parameter, ...]) -> HeldMemory:
    """Return the persistent memory of a GPU that holds only these parameters of the trace."""
    memory = trace.memory
    everything = memory.parameter_bytes or 0
    gradients = everything if memory.gradient_bytes is None else memory.gradient_bytes
    share = share_of(sum(map(parameter_bytes, parameters)), sum(map(parameter_bytes, trace.parameters)))
    trainable = _trainable_bytes(parameters)
    trained = share_of(trainable, _trainable_bytes(trace.parameters))
    state = (memory.optimizer_state_bytes or 0) * trained
    return HeldMemory(
        peak_bytes=share * everything + trained * gradients + state,
        parameter_bytes=share * everything,
        gradient_bytes=trained * gradients,
        optimizer_state_bytes=state,
        trainable_bytes=trainable,
        trained_elements=sum(math.prod(one.shape) for one in parameters if one.requires_grad),
        unit_bytes=tuple(unit_bytes(parameters).values()),
        unit_elements=tuple(unit_elements(parameters).values()),
        expert_share=_trainable_bytes(tuple(filter(is_of_expert, parameters))) / trainable if trainable else 0.0,
    )


def _trainable_bytes(parameters: tuple[Parameter, ...]) -> float:
    return math.fsum(parameter_bytes(parameter) for parameter in parameters if parameter.requires_grad)


def share_of(part: float, whole: float) -> float:
    """Return part / whole; 1 if `whole` is 0."""
    return part / whole if whole else 1.0


# --- Sharding between replicas

GATHERED_UNITS: Final = _OF.count("GATHERED_UNITS", "units")


def shared_memory_bytes(single_bytes: float, trace: Trace, layout: Layout, strategy: Strategy) -> float:
    """Predict the peak memory of each GPU of a layout.

    - DDP adds buckets of the size of all gradients (torch's default, `gradient_as_bucket_view=False`). If gradients are
      reduced in another dtype, they are accumulated in a buffer of that dtype, even with a single replica.
    - ZeRO 1 shards the optimizer state, ZeRO 2 also the gradients, and FSDP also the parameters (Rajbhandari et al., SC
      2020). FSDP gathers three units at a time, in `param_dtype`.
    - With sharded gradients, the peak moves from the end of the backward pass towards the end of the forward pass.
    - A pipeline keeps gathered parameters from the first micro-batch to the last. Accumulated gradients, in
      `reduce_dtype`, are sharded only after the last micro-batch.
    - Master copies of the parameters are part of the optimizer state. Offloaded state takes no GPU memory.

    Args:
        single_bytes: Memory of the step on a single GPU.
        trace: The recorded step.
        layout: The GPUs.
        strategy: Parallel strategy.
    """
    if layout.count == 1:
        return single_bytes
    return memory_on(unsharded_memory(single_bytes, trace, strategy), layout, strategy)


def least_filled_bytes(single_bytes: float, trace: Trace, layout: Layout, strategy: Strategy) -> float:
    """Predict the peak memory of the GPU of a pipeline that needs the least memory."""
    return memory_on(ModelMemory(trace).unsharded(single_bytes, strategy, is_least_filled=True), layout, strategy)


def memory_on(held: HeldMemory, layout: Layout, strategy: Strategy) -> float:
    """Return the peak memory of each GPU of a layout, after sharding between replicas."""
    strategy.replicas(layout)
    count = strategy.sharded_count(layout)
    # With expert parallelism, fewer replicas hold the same experts.
    fewer = strategy.expert * strategy.experts_tensor / strategy.tensor
    share = (1 - held.expert_share + held.expert_share * min(fewer, count)) / count
    parameters, buckets = held.parameter_bytes, 0.0
    state = (held.optimizer_state_bytes + held.copy_bytes) * (0.0 if strategy.offload == "optimizer" else 1.0)
    updated = held.update_bytes
    split = strategy.split
    if split.state:
        state, updated = state * share, updated * share
    if not split.gradients and strategy.reduce_dtype is not None:
        buckets = held.trained_elements * DTYPE_BYTES[strategy.reduce_dtype]
    elif not split.gradients and (split.state or count > 1):
        buckets = held.trainable_bytes
    if split.parameters:
        whole = _gathered_bytes(held, strategy)
        together = whole if strategy.pipeline > 1 else sorted(whole, reverse=True)[:GATHERED_UNITS]
        parameters = parameters * share + sum(together)
    passes, gradients = _peak_of_passes(held, strategy, share)
    return parameters + buckets + state + max(passes, gradients + updated)


def _peak_of_passes(held: HeldMemory, strategy: Strategy, share: float) -> tuple[float, float]:
    """Return peak bytes in forward and backward, and gradient bytes in the optimizer step."""
    early = held.gradient_bytes if held.early_gradient_bytes is None else held.early_gradient_bytes
    moments = held.candidate_peaks or ((held.activation_bytes, early),)
    fullest = max(size for size, _ in moments)
    dtype = strategy.reduce_dtype
    if not strategy.split.gradients and dtype is not None:
        return fullest, 0.0  # each gradient is added to the buffer and freed
    kept = held.gradient_bytes * (share if strategy.split.gradients else 1.0)
    if strategy.split.gradients and (strategy.pipeline > 1 or (strategy.no_sync and strategy.is_accumulating)):
        added_up = held.gradient_bytes if dtype is None else held.trained_elements * float(DTYPE_BYTES[dtype])
        return fullest + added_up, kept
    if strategy.is_accumulating:
        return fullest + kept, kept
    part = share if strategy.split.gradients else 1.0
    return max(size + part * gradients for size, gradients in moments), kept


def _gathered_bytes(held: HeldMemory, strategy: Strategy) -> list[float]:
    """Return the size of each gathered FSDP unit."""
    if strategy.param_dtype is None:
        return list(held.unit_bytes)
    return [elements * float(DTYPE_BYTES[strategy.param_dtype]) for elements in held.unit_elements]
