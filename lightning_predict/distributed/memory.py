"""Predicts the memory of each GPU in distributed training (DDP, ZeRO, FSDP), before and after sharding.

Persistent memory follows from the parameters. Some tensors are used only by the optimizer update: float32 copies of
parameters and gradients. Replicas shard these like the optimizer state (`memory_on`). For a divided model, the
extension `StageMemory` predicts the memory of a stage. Example::

    held_memory(40e9, trace, Strategy()).peak_bytes
    shared_memory_bytes(40e9, trace, layout_of("8xH100-SXM-80GB"), Strategy(data="fsdp"))
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, final

from lightning_predict.distributed.gradients import is_of_expert, parameter_bytes, unit_bytes, unit_elements
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.extensions import extension
from lightning_predict.gpus.layouts import Layout
from lightning_predict.memory.simulation import blocks_of, fullest_moments, gradient_bytes
from lightning_predict.memory.storages import live_tensors
from lightning_predict.tracing.trace import DTYPE_BYTES, Parameter, Trace

if TYPE_CHECKING:
    from lightning_predict.extensions.parallel.stage_memory import StageMemory


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """Memory of one GPU in bytes, before sharding between replicas.

    Attributes:
        peak_bytes: Peak of all memory.
        parameter_bytes: Size of parameters and buffers.
        gradient_bytes: Size of the gradients.
        optimizer_state_bytes: Size of the optimizer state.
        trainable_bytes: Size of the parameters that have a gradient.
        trained_elements: Number of elements of trainable parameters.
        unit_bytes: Parameter size of each FSDP unit.
        unit_elements: Number of parameter elements of each FSDP unit.
        activation_bytes: Temporary memory at the peak of the forward and backward passes.
        early_gradient_bytes: Size of the gradients that exist at this peak; None for all gradients.
        copy_bytes: Size of master copies of the parameters, which the optimizer updates.
        update_bytes: Temporary memory of the optimizer update.
        expert_share: Share of the trainable parameters that belong to experts, which fewer replicas hold.
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
    copy_bytes: float = 0.0
    update_bytes: float = 0.0
    expert_share: float = 0.0

    @property
    def lasting_bytes(self) -> float:
        """Memory that persists through the whole step."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_state_bytes + self.copy_bytes


def held_memory(single_bytes: float, trace: Trace, strategy: Strategy) -> HeldMemory:
    """Predict the memory of the GPU that needs most."""
    return ModelMemory(trace).held(single_bytes, strategy)


@final
class ModelMemory:
    """Memory of a step by use, from which the memory under many strategies is derived.

    Args:
        trace: The step.

    Attributes:
        trace: The step.
        whole: Persistent memory of a GPU that holds the whole model.
        copy_bytes: Size of the copies that the optimizer updates instead of the parameters.
        update_bytes: Temporary memory of the optimizer update.
        living_bytes: Size of live tensors at the memory peak of the passes.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.whole = held_by_parameters(trace, trace.parameters)
        self.copy_bytes, self.update_bytes = update_memory(trace)
        self._behind = _behind_passes(trace)
        self._early = _early_share(trace)
        self.living_bytes = float(sum(live_tensors(trace.operations, _end_of_passes(trace) or None)))

    def held(self, single_bytes: float, strategy: Strategy) -> HeldMemory:
        """Predict the memory of the GPU that needs most; see `held_memory`."""
        whole, written = self.whole, self.update_bytes
        # With gradient accumulation, the gradients of earlier micro-batches exist already.
        late_share = 0.0 if strategy.accumulate > 1 else 1 - self._early
        late = late_share * whole.gradient_bytes
        known = whole.parameter_bytes + whole.gradient_bytes + whole.optimizer_state_bytes
        passing = max(single_bytes - known + (1 - self._early) * whole.gradient_bytes - self._behind, 0.0)
        if strategy.runs_whole_model:
            return replace(
                whole,
                peak_bytes=max(single_bytes, known + self.copy_bytes + max(passing - late, written)),
                activation_bytes=passing,
                early_gradient_bytes=whole.gradient_bytes - late,
                copy_bytes=self.copy_bytes,
                update_bytes=written,
            )
        return self._stages.held(strategy, passing, late_share)

    @cached_property
    def _stages(self) -> StageMemory:
        """The same memory, for strategies that divide the model or the batch."""
        made: StageMemory = extension("StageMemory")(self)
        return made


def update_memory(trace: Trace) -> tuple[float, float]:
    """Return the size of master copies that only the optimizer update uses, and of the update's temporary tensors.

    Args:
        trace: A trace with tensor ids. Without these, both sizes are 0.
    """
    end = _end_of_passes(trace)
    met, written, given = set[int](), 0.0, 0.0
    for index, operation in enumerate(trace.operations):
        for tensors, is_given in ((operation.inputs, True), (operation.outputs, False)):
            for tensor in tensors:
                if tensor.id is None or tensor.id in met:
                    continue
                met.add(tensor.id)
                if index >= end:
                    given += tensor.size_bytes * is_given
                    written += tensor.size_bytes * (not is_given)
    if not end or trace.memory.peak_bytes is not None:
        return 0.0, 0.0
    copies = given - (trace.memory.optimizer_state_bytes or 0)
    # Less than one byte per parameter cannot be copies of parameters; these are scalars and step counters.
    copies = copies if copies >= sum(math.prod(one.shape) for one in trace.parameters) else 0.0
    peak = sum(live_tensors(trace.operations[end:]))
    return copies, min(written, float(peak))


def _end_of_passes(trace: Trace) -> int:
    """Return the index of the first operation after the backward pass; 0 without a backward pass."""
    ends = (
        index + 1 for index in range(len(trace.operations) - 1, -1, -1) if trace.operations[index].phase == "backward"
    )
    return next(ends, 0)


def _behind_passes(trace: Trace) -> float:
    """Return the number of bytes by which the peak of live tensors in the step exceeds their peak in the passes."""
    end = _end_of_passes(trace)
    if not end or trace.memory.peak_bytes is not None:
        return 0.0
    whole, passes = (sum(live_tensors(trace.operations, until)) for until in (None, end))
    return float(max(whole - passes, 0))


def _early_share(trace: Trace) -> float:
    """Return the share of the gradients that exist at the memory peak of the passes; 1 if they were not recorded."""
    gradients = gradient_bytes(trace)
    if not gradients or not _end_of_passes(trace) or trace.memory.peak_bytes is not None:
        return 1.0
    blocks = blocks_of(trace)
    written = sum(one.size_bytes for one in blocks.storages if one.cause == "gradient")
    passes, _ = fullest_moments(blocks)
    return min((max(gradients - written, 0) + passes.gradient_bytes) / gradients, 1.0)


def held_by_parameters(trace: Trace, parameters: tuple[Parameter, ...]) -> HeldMemory:
    """Return the persistent memory of a GPU that holds a given subset of the trace's parameters."""
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
        unit_bytes=tuple(unit_bytes(replace(trace, parameters=parameters)).values()),
        unit_elements=tuple(unit_elements(parameters).values()),
        expert_share=_trainable_bytes(tuple(filter(is_of_expert, parameters))) / trainable if trainable else 0.0,
    )


def _trainable_bytes(parameters: tuple[Parameter, ...]) -> float:
    return math.fsum(parameter_bytes(parameter) for parameter in parameters if parameter.requires_grad)


def share_of(part: float, whole: float) -> float:
    """Return part / whole; 1 if both are unknown."""
    return part / whole if whole else 1.0


# --- Sharding between replicas

GATHERED_UNITS: Final = 2
"""Number of FSDP units whose parameters are gathered at the same time: the current one and the next one."""


def shared_memory_bytes(single_bytes: float, trace: Trace, layout: Layout, strategy: Strategy) -> float:
    """Predict the peak memory of each GPU of a layout.

    - DDP adds buckets of the same size as all gradients (torch's default, `gradient_as_bucket_view=False`). If
      gradients are reduced in another dtype, a buffer of that dtype accumulates them, with any number of replicas.
    - ZeRO 1 shards the optimizer state, ZeRO 2 also the gradients, and FSDP all three (Rajbhandari et al., SC 2020).
      Under FSDP, the parameters of two units at a time are gathered, in `param_dtype`.
    - A pipeline keeps gathered parameters from the first micro-batch to the last. It also keeps accumulated gradients
      in `reduce_dtype`, which are sharded only after the last micro-batch.
    - Master copies of the parameters are part of the optimizer state. Offloaded state takes no GPU memory.

    Model parallelism is applied before this, see `held_memory`.
    """
    if layout.count == 1:
        return single_bytes
    return memory_on(held_memory(single_bytes, trace, strategy), layout, strategy)


def memory_on(held: HeldMemory, layout: Layout, strategy: Strategy) -> float:
    """Return the peak memory of each GPU on a layout, from the memory before sharding between replicas."""
    strategy.replicas(layout)
    count = strategy.sharded_count(layout)
    # With expert parallelism, fewer replicas hold the same experts.
    share = (1 - held.expert_share + held.expert_share * min(strategy.expert, count)) / count
    gradients, parameters, buckets = held.gradient_bytes, held.parameter_bytes, 0.0
    early = gradients if held.early_gradient_bytes is None else held.early_gradient_bytes
    state = (held.optimizer_state_bytes + held.copy_bytes) * (0.0 if strategy.offload == "optimizer" else 1.0)
    updated = held.update_bytes
    split = strategy.split
    if split.state:
        state, updated = state * share, updated * share
    if split.gradients:
        dtype = strategy.reduce_dtype
        added_up = gradients if dtype is None else held.trained_elements * float(DTYPE_BYTES[dtype])
        early = added_up if strategy.pipeline > 1 else early * share
        gradients *= share
    elif strategy.reduce_dtype is not None:
        buckets = held.trained_elements * DTYPE_BYTES[strategy.reduce_dtype]
    elif split.state or count > 1:
        buckets = held.trainable_bytes
    if split.parameters:
        whole = _gathered_bytes(held, strategy)
        together = whole if strategy.pipeline > 1 else sorted(whole, reverse=True)[:GATHERED_UNITS]
        parameters = parameters * share + sum(together)
    return parameters + buckets + state + max(early + held.activation_bytes, gradients + updated)


def _gathered_bytes(held: HeldMemory, strategy: Strategy) -> list[float]:
    """Return the size of each FSDP unit when it is gathered."""
    if strategy.param_dtype is None:
        return list(held.unit_bytes)
    return [elements * float(DTYPE_BYTES[strategy.param_dtype]) for elements in held.unit_elements]
