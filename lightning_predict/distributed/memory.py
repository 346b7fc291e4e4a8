"""Predicts the memory of a GPU that holds part of the model, before and after sharding between replicas.

Persistent memory follows from the parameters of the largest stage, with split ones divided. Activations follow from the
tensors of the stage's blocks that the backward pass reads, with split ones divided. They are multiplied by the number
of micro-batches in flight (`pipeline_parallel.under_way`). Recomputed activations are not kept: of a block only its
input is kept, or everything except the inside of its attention. Tensors that only the optimizer update uses are float32
copies of parameters and gradients, which replicas shard like the optimizer state (`memory_on`). Example::

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
    """Memory of one GPU in bytes, before sharding between replicas.

    Attributes:
        peak_bytes: Peak of all memory.
        parameter_bytes: Parameters and buffers.
        gradient_bytes: Gradients.
        optimizer_state_bytes: Optimizer state.
        trainable_bytes: Parameters with a gradient.
        trained_elements: Number of elements of trainable parameters.
        unit_bytes: Parameters of each FSDP unit.
        unit_elements: Number of elements of each FSDP unit.
        activation_bytes: Temporary memory of the forward and backward passes at their peak.
        early_gradient_bytes: Gradients that exist at that peak; None for all gradients.
        copy_bytes: Master copies of the parameters, which the optimizer updates.
        update_bytes: Temporaries of the optimizer update.
        expert_share: Share of trainable parameters in experts, which fewer replicas hold.
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
        """Memory that persists through the step."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_state_bytes + self.copy_bytes


def communicators(strategy: Strategy, layout: Layout) -> int:
    """Return the number of communicators (process groups) of each GPU of a layout."""
    if layout.count == 1:
        return 0
    degrees = (strategy.tensor, strategy.pipeline, strategy.context, strategy.expert)
    among_replicas = 0 if strategy.replicas(layout) == 1 else 2 if strategy.split.inside_machines else 1
    return among_replicas + sum(degree > 1 for degree in degrees)


def held_memory(single_bytes: float, trace: Trace, strategy: Strategy) -> HeldMemory:
    """Predict the memory of the GPU that needs the most."""
    return ModelMemory(trace).held(single_bytes, strategy)


@final
class ModelMemory:
    """Memory of a step by purpose, from which the memory under many strategies is derived.

    Args:
        trace: The step.
        model: Its blocks, if already known.
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
        """Predict the memory of the GPU that needs the most; see `held_memory`."""
        trace, whole, written = self._trace, self._whole, self._written
        # With gradient accumulation, gradients of earlier micro-batches already exist.
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
    """Return the bytes of master copies used only by the optimizer update, and of the update's temporaries.

    Args:
        trace: A trace with tensor ids; otherwise both are 0.
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
    # Less than one byte per parameter cannot be copies; these are scalars and step counters.
    copies = copies if copies >= sum(math.prod(one.shape) for one in trace.parameters) else 0.0
    peak = sum(live_tensors(trace.operations[end:]))
    return copies, min(written, float(peak))


def _end_of_passes(trace: Trace) -> int:
    """Return the index of the first operation after the backward pass; 0 without one."""
    ends = (
        index + 1 for index in range(len(trace.operations) - 1, -1, -1) if trace.operations[index].phase == "backward"
    )
    return next(ends, 0)


def _behind_passes(trace: Trace) -> float:
    """Return by how many bytes the peak of live tensors in the step exceeds the peak in its passes."""
    end = _end_of_passes(trace)
    if not end or trace.memory.peak_bytes is not None:
        return 0.0
    whole, passes = (sum(live_tensors(trace.operations, until)) for until in (None, end))
    return float(max(whole - passes, 0))


def _micro_batches(trace: Trace, strategy: Strategy) -> int:
    """Return the number of micro-batches per batch of the step."""
    samples = None if trace.samples is None else max(trace.samples // trace.batches, 1)
    return micro_batches_of(strategy, samples)


def _early_share(trace: Trace) -> float:
    """Return the share of the gradients that exist at the peak of the passes; 1 if they were not recorded."""
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
    """Return each stage's share of the temporary memory that a whole batch needs on one GPU.

    Most of it is activations that the backward pass reads. With a pipeline, the rest is proportional to them. If one
    GPU has all layers, the rest at the peak is the gradient of the logits, plus allocator overhead in proportion to
    both. The vocabulary of the logits is split by tensor parallelism.

    Args:
        trace: The step.
        model: Its blocks.
        strategy: Parallel strategy.
        kept_storages: Storages that the forward pass keeps for the backward pass.
        passing_bytes: Temporary memory of the step.
        living_bytes: Live tensors at the peak of the passes.
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
    if strategy.recompute in ("operations", "layers", "full"):  # the input of each recomputed block
        for position, (block, stage) in enumerate(zip(model.blocks, stage_of, strict=True)):
            input_bytes = block.stream_bytes / (strategy.tensor if strategy.sequence else 1)
            sizes[stage] += input_bytes if is_recomputed(position, strategy.recompute) else 0.0
    if strategy.recompute == "operations":  # other outputs are kept, even if the backward pass does not read them
        for tensor, block in _kept_unread(trace, model, kept_storages):
            is_split = strategy.sequence or model.is_split(tensor.shape, block)
            sizes[stage_of[model.positions[block.name]]] += tensor.size_bytes / (strategy.tensor if is_split else 1)
    total += max(recorded_again.values(), default=0.0)
    parts = micro_batches * strategy.context
    if total == 0:  # no tensors were recorded: split evenly
        return [count / parts / strategy.pipeline for count in held]
    # Recomputed activations exist for one block of one micro-batch at a time.
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
    """A storage that the forward pass keeps for the backward pass.

    Attributes:
        tensor: Tensor in the storage.
        position: Position of its block, or of the preceding block; None before the first one.
        block: Block that contains it; None outside blocks.
        is_split: Whether tensor parallelism splits it.
        is_core: Whether the block's attention wrote it.
        is_passing: Whether an operation of the block wrote it that recomputation of `operations` repeats (not
            attention, and not every second matmul).
        is_again: Whether the backward pass recomputes it, so that it exists for one block at a time.
        is_expert: Whether an expert wrote it, for the tokens routed to it.
        is_gathered: Whether matmuls of the block read it whole. With sequence parallelism, the gathered tensor is kept
            for their gradients, as in torch's DTensor, unless the strategy gathers it again.
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
    """Yield the storages that the forward pass keeps for the backward pass."""
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
    """Yield outputs that are kept although the backward pass does not read or recompute them.

    Compiled code does not keep tensors that are only used in the sum at the end of the block.
    """
    met = {kept.tensor.id for kept in kept_storages} | _written_in_blocks(trace, model, "operations")
    if trace.compiled or any(operation.name == COMPILED_CALL for operation in trace.operations):
        met |= _leaving_blocks(trace, model)
    for operation in trace.operations:
        block = model.block(operation.module) if operation.phase == "forward" else None
        if block is None:
            continue
        met |= {tensor.id for tensor in operation.inputs}  # inputs of views existed before
        yield from ((tensor, block) for tensor in operation.outputs if tensor.id not in met)
        met |= {tensor.id for tensor in operation.outputs}


def _leaving_blocks(trace: Trace, model: SplitModel) -> set[int | None]:
    """Return the storages that the last forward operation of each block reads."""
    last = {
        block.name: operation
        for operation in trace.operations
        if operation.phase == "forward" and (block := model.block(operation.module)) is not None
    }
    return {tensor.id for operation in last.values() for tensor in operation.inputs}


def _kept_again(trace: Trace, model: SplitModel) -> Iterator[_Kept]:
    """Yield the storages that the backward pass recomputes in a step with activation checkpointing."""
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
    """Return the storages written by operations that a recomputation repeats, without views of kept tensors."""
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
    """Return the persistent memory of a GPU with the given subset of the trace's parameters."""
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
    """Return part / whole; 1 if both are unknown."""
    return part / whole if whole else 1.0


# --- Sharding between replicas

GATHERED_UNITS: Final = 2
"""Number of FSDP units whose parameters are gathered at once: the current one and the next."""


def shared_memory_bytes(single_bytes: float, trace: Trace, layout: Layout, strategy: Strategy) -> float:
    """Predict the peak memory of each GPU of a layout.

    - DDP adds buckets as large as all gradients (torch's default, `gradient_as_bucket_view=False`). Gradients reduced
      in another dtype are accumulated in a buffer of that dtype, regardless of the number of replicas.
    - ZeRO 1 shards the optimizer state, ZeRO 2 also the gradients, and FSDP all three (Rajbhandari et al., SC 2020).
      Under FSDP, parameters of two units at a time are whole, in `param_dtype`.
    - A pipeline keeps gathered parameters from the first micro-batch to the last. It also keeps accumulated gradients,
      in `reduce_dtype`, which are sharded only after the last micro-batch.
    - Master copies of the parameters are part of the optimizer state; offloaded state takes no GPU memory.

    Model parallelism is applied first, see `held_memory`.
    """
    if layout.count == 1:
        return single_bytes
    return memory_on(held_memory(single_bytes, trace, strategy), layout, strategy)


def memory_on(held: HeldMemory, layout: Layout, strategy: Strategy) -> float:
    """Return each GPU's peak memory on a layout, given the memory before sharding between replicas."""
    strategy.replicas(layout)
    count = strategy.sharded_count(layout)
    # Expert parallelism divides the number of replicas that hold the same experts.
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
    """Return the bytes of each FSDP unit when gathered."""
    if strategy.param_dtype is None:
        return list(held.unit_bytes)
    return [elements * float(DTYPE_BYTES[strategy.param_dtype]) for elements in held.unit_elements]
