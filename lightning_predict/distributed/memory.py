"""Derive the memory of one GPU that holds a part of the model, before and after the replicas share anything.

What lives through the step goes by the parameters: those of the fullest stage, the split ones divided. What the
backward pass reads goes by its tensors: those of the stage's blocks, the split ones divided, for as many micro-batches
as are under way at once (`pipeline_parallel.under_way`). What is computed again is not kept: of a block its input, or
all but what lies inside its attention. What the update alone meets are float32 copies of the parameters and of their
gradients, which replicas share as they share the optimizer's state (`memory_on`). Example::

    held_memory(40e9, trace, Strategy(tensor=8)).peak_bytes
    shared_memory_bytes(40e9, trace, layout_of("8xH100-SXM-80GB"), Strategy(data="fsdp"))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from lightning_predict.distributed.gradients import parameter_bytes, unit_bytes, unit_elements
from lightning_predict.distributed.strategy import Recompute, Strategy
from lightning_predict.extensions.parallel.experts import experts_module, is_of_expert
from lightning_predict.extensions.parallel.model_parallel import needs_blocks, stage_parameters
from lightning_predict.extensions.parallel.pipeline_parallel import block_stages, micro_batches_of, stages_of, under_way
from lightning_predict.extensions.parallel.recomputation import (
    PRODUCT_NAMES,
    chosen_operations,
    is_recomputed,
    recomputed_products,
)
from lightning_predict.extensions.parallel.tensor_parallel import SplitModel, TransformerBlock, split_model
from lightning_predict.gpus.layouts import Layout
from lightning_predict.kernels.traffic import COMPILED_CALL
from lightning_predict.memory.simulation import blocks_of, fullest_moments, gradient_bytes
from lightning_predict.memory.storages import live_tensors
from lightning_predict.tracing.trace import DTYPE_BYTES, Operation, Parameter, TensorInfo, Trace


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """Bytes of one GPU.

    Attributes:
        peak_bytes: All of it.
        parameter_bytes: Parameters and buffers.
        gradient_bytes: Gradients.
        optimizer_state_bytes: State of the optimizers.
        trainable_bytes: Parameters that have a gradient.
        trained_elements: Number of their values.
        unit_bytes: Parameters of each unit that FSDP gathers.
        unit_elements: Number of values of each of them.
        activation_bytes: What lives in the passes alone.
        early_gradient_bytes: Gradients that are there when that is the most; None for all of them.
        copy_bytes: Copies of the parameters that the optimizer updates in their stead.
        update_bytes: What the update writes in passing.
        expert_share: Share of the trainable parameters that lies in experts, which fewer replicas hold.
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
        """Bytes that live through the step."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_state_bytes + self.copy_bytes


def communicators(strategy: Strategy, layout: Layout) -> int:
    """Count the groups in which each GPU of a layout exchanges something."""
    if layout.count == 1:
        return 0
    degrees = (strategy.tensor, strategy.pipeline, strategy.context, strategy.expert)
    among_replicas = 0 if strategy.replicas(layout) == 1 else 2 if strategy.split.inside_machines else 1
    return among_replicas + sum(degree > 1 for degree in degrees)


def held_memory(single_bytes: float, trace: Trace, strategy: Strategy) -> HeldMemory:
    """Derive what the fullest GPU holds."""
    return ModelMemory(trace).held(single_bytes, strategy)


@final
class ModelMemory:
    """The memory of a step by its parts, ready to be shared among GPUs in many ways.

    Args:
        trace: The step.
        model: Its blocks, where they are known already.
    """

    def __init__(self, trace: Trace, model: SplitModel | None = None) -> None:
        self._trace, self._model = trace, model
        self._whole = _of_parameters(trace, trace.parameters)
        self._copies, self._written = update_memory(trace)
        self._behind = _behind_passes(trace)
        self._early = _early_share(trace)
        self._written_in_passing = float(sum(live_tensors(trace.operations, _end_of_passes(trace) or None)))
        self._kept: tuple[_Kept, ...] | None = None
        self._stages: dict[tuple[int | None, ...], list[HeldMemory]] = {}

    def held(self, single_bytes: float, strategy: Strategy) -> HeldMemory:
        """Derive what the fullest GPU holds; see `held_memory`."""
        trace, whole, written = self._trace, self._whole, self._written
        # Where gradients are added up, those of the micro-batches before are there.
        late_share = 0.0 if strategy.accumulate > 1 else 1 - self._early
        late = late_share * whole.gradient_bytes
        known = whole.parameter_bytes + whole.gradient_bytes + whole.optimizer_state_bytes
        passing = max(single_bytes - known + (1 - self._early) * whole.gradient_bytes - self._behind, 0.0)
        if strategy.is_whole:
            return replace(
                whole,
                peak_bytes=max(single_bytes, known + self._copies + max(passing - late, written)),
                activation_bytes=passing,
                early_gradient_bytes=whole.gradient_bytes - late,
                copy_bytes=self._copies,
                update_bytes=written,
            )
        model = self._split(strategy)
        degrees = (strategy.tensor, strategy.pipeline, strategy.virtual, strategy.expert)
        key = (*degrees, strategy.first_stage, strategy.last_stage)
        if key not in self._stages:
            self._stages[key] = [_of_parameters(trace, own) for own in stage_parameters(trace, model, strategy)]
        stages = self._stages[key]
        if self._kept is None:
            is_again = any(recomputed_products(trace, model).values())
            self._kept = (*_kept(trace, model), *(_kept_again(trace, model) if is_again else ()))
        shares = _shares(trace, model, strategy, self._kept, passing, self._written_in_passing)
        late_share = 0.0 if _micro_batches(trace, strategy) > 1 else late_share
        held = []
        for own, share in zip(stages, shares, strict=True):
            part = _share(own.trainable_bytes, whole.trainable_bytes)
            activations = share * passing
            lasting = own.peak_bytes + part * self._copies
            late = late_share * own.gradient_bytes
            held.append(
                replace(
                    own,
                    peak_bytes=lasting + max(activations - late, part * written),
                    activation_bytes=activations,
                    early_gradient_bytes=own.gradient_bytes - late,
                    copy_bytes=part * self._copies,
                    update_bytes=part * written,
                )
            )
        return max(held, key=lambda own: own.peak_bytes)

    def _split(self, strategy: Strategy) -> SplitModel:
        if self._model is None or (needs_blocks(strategy) and not self._model.blocks):
            self._model, self._kept = split_model(self._trace, needs_blocks=needs_blocks(strategy)), None
        return self._model


def update_memory(trace: Trace) -> tuple[float, float]:
    """Return the bytes of the copies that the update alone meets, and of what it writes in passing.

    Args:
        trace: Recorded where tensors are told apart; else both are 0.
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
    # Fewer bytes than a byte for each value are no copies, but scalars and steps.
    copies = copies if copies >= sum(math.prod(one.shape) for one in trace.parameters) else 0.0
    peak = sum(live_tensors(trace.operations[end:]))
    return copies, min(written, float(peak))


def _end_of_passes(trace: Trace) -> int:
    """Find where the update begins; 0 without a backward pass."""
    ends = (
        index + 1 for index in range(len(trace.operations) - 1, -1, -1) if trace.operations[index].phase == "backward"
    )
    return next(ends, 0)


def _behind_passes(trace: Trace) -> float:
    """Return the bytes by which what lives at the fullest moment of a step exceeds the fullest moment of its passes."""
    end = _end_of_passes(trace)
    if not end or trace.memory.peak_bytes is not None:
        return 0.0
    whole, passes = (sum(live_tensors(trace.operations, until)) for until in (None, end))
    return float(max(whole - passes, 0))


def _micro_batches(trace: Trace, strategy: Strategy) -> int:
    """Return how many micro-batches a batch of the step is taken in."""
    samples = None if trace.samples is None else max(trace.samples // trace.batches, 1)
    return micro_batches_of(strategy, samples)


def _early_share(trace: Trace) -> float:
    """Return the share of the gradients that is there when the passes hold the most; all where they were not seen."""
    gradients = gradient_bytes(trace)
    if not gradients or not _end_of_passes(trace) or trace.memory.peak_bytes is not None:
        return 1.0
    blocks = blocks_of(trace)
    written = sum(one.size_bytes for one in blocks.storages if one.cause == "gradient")
    passes, _ = fullest_moments(blocks)
    return min((max(gradients - written, 0) + passes.gradient_bytes) / gradients, 1.0)


def _shares(
    trace: Trace,
    model: SplitModel,
    strategy: Strategy,
    kept_storages: Sequence[_Kept],
    passing_bytes: float,
    living_bytes: float,
) -> list[float]:
    """Compute each stage's share of what a whole batch on one GPU holds in passing.

    Most of it is what the backward pass reads. The rest goes by it where stages are dealt out; where one GPU has all
    layers, what lives besides at the fullest moment is the gradient of the logits, whose vocabulary GPUs that share
    blocks share, too, and what the allocator reserves beyond both goes by their sum.

    Args:
        trace: The step.
        model: Its blocks.
        strategy: How GPUs share.
        kept_storages: What the forward pass leaves to the backward pass.
        passing_bytes: What the step holds in passing.
        living_bytes: Tensors of it at the fullest moment of the passes.
    """
    stage_of = block_stages(strategy, len(model.blocks))
    micro_batches = _micro_batches(trace, strategy)
    held = [under_way(strategy, stage, micro_batches * strategy.accumulate) for stage in range(strategy.pipeline)]
    sizes, again = [0.0] * strategy.pipeline, dict[str, float]()
    recorded_again = dict[str, float]()
    total = 0.0
    for kept in kept_storages:
        size = kept.tensor.size_bytes
        if kept.is_again and kept.block is not None:
            recorded_again[kept.block] = recorded_again.get(kept.block, 0.0) + size
        else:
            total += size
        is_whole = kept.is_gathered and not strategy.gather_again
        is_shared = kept.is_split or (strategy.sequence and kept.block is not None and not is_whole)
        own = size / (strategy.tensor if is_shared else 1) * (strategy.capacity if kept.is_expert else 1.0)
        is_again = kept.position is not None and is_recomputed(kept.position, strategy.recompute)
        if strategy.recompute in ("selective", "operations"):
            is_again = kept.is_core if strategy.recompute == "selective" else kept.is_passing
        if kept.block is not None and (is_again or kept.is_again):
            again[kept.block] = again.get(kept.block, 0.0) + own
        else:
            sizes[0 if kept.position is None else stage_of[kept.position]] += own
    if strategy.recompute in ("operations", "layers", "full"):  # the input of each block
        for position, (block, stage) in enumerate(zip(model.blocks, stage_of, strict=True)):
            input_bytes = block.stream_bytes / (strategy.tensor if strategy.sequence else 1)
            sizes[stage] += input_bytes if is_recomputed(position, strategy.recompute) else 0.0
    if strategy.recompute == "operations":  # what is not computed again is kept, whether it is read or not
        for tensor, block in _kept_unread(trace, model, kept_storages):
            is_split = strategy.sequence or model.is_split(tensor.shape, block)
            sizes[stage_of[model.positions[block.name]]] += tensor.size_bytes / (strategy.tensor if is_split else 1)
    total += max(recorded_again.values(), default=0.0)
    parts = micro_batches * strategy.context
    if total == 0:  # no tensors were seen: evenly
        return [count / parts / strategy.pipeline for count in held]
    # What is computed again lives for one block of one micro-batch at a time.
    passing = max(again.values(), default=0.0)
    shares = [(size * count + passing) / total / parts for size, count in zip(sizes, held, strict=True)]
    if strategy.pipeline > 1:
        return shares
    living = min(max(living_bytes, total), max(passing_bytes, total))
    beyond = living / total - 1
    return [(share + beyond / strategy.tensor / parts) / (1 + beyond) for share in shares]


@final
@dataclass(frozen=True, slots=True)
class _Kept:
    """A storage that the forward pass leaves to the backward pass.

    Attributes:
        tensor: What it holds.
        position: Position of the block that it goes with, its own or the one before it; None before the first.
        block: The block that it lies in; None outside of all.
        is_split: Each GPU that shares the block holds its part.
        is_core: Written inside the block's attention.
        is_passing: Written in the block, neither by its attention nor by every second product.
        is_again: Computed again in the backward pass, so that it lives for one block at a time.
        is_expert: Written by an expert, for the tokens that are routed to it.
        is_gathered: Read whole by products of the block: where each GPU has its part of the sequence, what was gathered
            for them is kept for their gradients, as torch's DTensor keeps it, unless the strategy gathers it again.
    """

    tensor: TensorInfo
    position: int | None
    block: str | None
    is_split: bool
    is_core: bool
    is_passing: bool = False
    is_again: bool = False
    is_expert: bool = False
    is_gathered: bool = False


def _kept(trace: Trace, model: SplitModel) -> Iterator[_Kept]:
    """Return each storage that the forward pass leaves to the backward pass."""
    read = {tensor.id for operation in trace.operations if operation.phase == "backward" for tensor in operation.inputs}
    core, passing = (_written_in_blocks(trace, model, what) for what in ("selective", "operations"))
    multiplied = {
        tensor.id
        for operation in trace.operations
        if operation.phase == "forward"
        and operation.name in PRODUCT_NAMES
        and model.block(operation.module) is not None
        for tensor in operation.inputs
    }
    met = set[int | None]()
    goes_with = list(stages_of(trace.operations, model.positions, range(len(model.blocks))))
    for operation, position in zip(trace.operations, goes_with, strict=True):
        if operation.phase != "forward":
            continue
        block = model.block(operation.module)
        name = None if block is None else block.name
        for tensor in (*operation.inputs, *operation.outputs):
            if tensor.id is None or tensor.id not in read or tensor.id in met or tensor.shape in model.parameters:
                continue
            met.add(tensor.id)
            yield _Kept(
                tensor,
                position if model.blocks else None,
                name,
                model.is_split(tensor.shape, block),
                tensor.id in core,
                tensor.id in passing,
                is_expert=experts_module(operation.module) is not None,
                is_gathered=tensor.id in multiplied,
            )


def _kept_unread(
    trace: Trace, model: SplitModel, kept_storages: Sequence[_Kept]
) -> Iterator[tuple[TensorInfo, TransformerBlock]]:
    """Find what operations write that are not computed again, beyond what the backward pass reads.

    Of that, compiled code keeps nothing that only goes into the sum that leaves the block.
    """
    met = {kept.tensor.id for kept in kept_storages} | _written_in_blocks(trace, model, "operations")
    if trace.compiled or any(operation.name == COMPILED_CALL for operation in trace.operations):
        met |= _leaving_blocks(trace, model)
    for operation in trace.operations:
        block = model.block(operation.module) if operation.phase == "forward" else None
        if block is None:
            continue
        met |= {tensor.id for tensor in operation.inputs}  # what is only viewed was there before
        yield from ((tensor, block) for tensor in operation.outputs if tensor.id not in met)
        met |= {tensor.id for tensor in operation.outputs}


def _leaving_blocks(trace: Trace, model: SplitModel) -> set[int | None]:
    """Find the storages that the last forward operation of a block reads."""
    last = {
        block.name: operation
        for operation in trace.operations
        if operation.phase == "forward" and (block := model.block(operation.module)) is not None
    }
    return {tensor.id for operation in last.values() for tensor in operation.inputs}


def _kept_again(trace: Trace, model: SplitModel) -> Iterator[_Kept]:
    """Find each storage that the backward pass of a step with activation checkpointing computes again."""
    calls = {
        (model.block(operation.module), operation.name, tuple(tensor.shape for tensor in operation.inputs))
        for operation in trace.operations
        if operation.phase == "forward" and model.block(operation.module) is not None
    }
    read = {tensor.id for operation in trace.operations if operation.phase == "backward" for tensor in operation.inputs}
    met = set[int | None]()
    for operation in trace.operations:
        block = model.block(operation.module) if operation.phase == "backward" else None
        call = (block, operation.name, tuple(tensor.shape for tensor in operation.inputs))
        if block is None or call not in calls:
            continue
        for tensor in operation.outputs:
            if tensor.id is not None and tensor.id in read and tensor.id not in met:
                met.add(tensor.id)
                position = model.positions[block.name]
                is_split = model.is_split(tensor.shape, block)
                yield _Kept(tensor, position, block.name, is_split, is_core=False, is_again=True)


def _written_in_blocks(trace: Trace, model: SplitModel, recompute: Recompute) -> set[int | None]:
    """Find storages that operations write which such a recomputation repeats; a view of what is kept is none."""
    by_block: dict[str, list[Operation]] = {}
    for operation in trace.operations:
        block = model.block(operation.module) if operation.phase == "forward" else None
        if block is not None:
            by_block.setdefault(block.name, []).append(operation)
    found = set[int | None]()
    for own in by_block.values():
        repeated = {id(operation) for operation in chosen_operations(own, recompute)}
        met = set[int | None]()
        for operation in own:
            written = {tensor.id for tensor in operation.outputs} - met
            met |= written | {tensor.id for tensor in operation.inputs}
            found |= written if id(operation) in repeated else set()
    return found


def _of_parameters(trace: Trace, parameters: tuple[Parameter, ...]) -> HeldMemory:
    """Count the bytes that live through the step of a GPU with these of the trace's parameters."""
    memory = trace.memory
    everything = memory.parameter_bytes or 0
    gradients = everything if memory.gradient_bytes is None else memory.gradient_bytes
    share = _share(sum(map(parameter_bytes, parameters)), sum(map(parameter_bytes, trace.parameters)))
    trainable = _trainable_bytes(parameters)
    trained = _share(trainable, _trainable_bytes(trace.parameters))
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


def _share(part: float, whole: float) -> float:
    """Return a part of a whole; all of it where neither is known."""
    return part / whole if whole else 1.0


# --- What replicas share of it

GATHERED_UNITS: Final = 2
"""Units of FSDP whose parameters are whole at once: the one that computes, and the next."""


def shared_memory_bytes(single_bytes: float, trace: Trace, layout: Layout, strategy: Strategy) -> float:
    """Derive the peak memory of each GPU of a layout.

    DDP adds its buckets, as large as all gradients (torch's default, `gradient_as_bucket_view=False`); gradients that
    are exchanged in a dtype of their own have a buffer of that dtype, which they are added up in, however few replicas
    there are. ZeRO 1 leaves each GPU its share of the optimizer's state, ZeRO 2 of the gradients, too, and FSDP of all
    three (Rajbhandari et al., SC 2020), while the parameters of two units at a time are whole, in `param_dtype`; a
    pipeline keeps them all from the first micro-batch to the last one, and so the sums of their gradients, in
    `reduce_dtype`, which replicas share behind the last alone. Copies of the parameters that the optimizer updates are
    part of its state; what is offloaded is not there. A part of the model comes first, see `held_memory`.
    """
    if layout.count == 1:
        return single_bytes
    return memory_on(held_memory(single_bytes, trace, strategy), layout, strategy)


def memory_on(held: HeldMemory, layout: Layout, strategy: Strategy) -> float:
    """Compute each GPU's peak memory on a layout, from what the fullest holds before replicas share anything."""
    strategy.replicas(layout)
    count = strategy.sharded_count(layout)
    # Replicas that hold the same experts are as many times fewer as the experts are dealt out.
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
    """Return the bytes of each unit as FSDP gathers it."""
    if strategy.param_dtype is None:
        return list(held.unit_bytes)
    return [elements * float(DTYPE_BYTES[strategy.param_dtype]) for elements in held.unit_elements]
