"""Predicts the memory of a GPU that holds only part of the model, or processes only part of a batch.

Persistent memory is the largest stage's parameters, gradients and optimizer state. Activations are the tensors of the
stage that the backward pass reads, times the number of micro-batches in flight (`pipeline_parallel.in_flight`). Tensor
parallelism divides parameters and activations by the number of GPUs that share them. Activation checkpointing
(recomputation) keeps fewer activations: full recomputation keeps only a block's input, and selective recomputation
keeps all tensors outside attention. Example::

    unsharded_memory(40e9, trace, Strategy(tensor=8)).peak_bytes  # which calls `StageMemory.unsharded`
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from lightning_predict.constants import constants_of
from lightning_predict.distributed.gradients import experts_module
from lightning_predict.distributed.memory import HeldMemory, ModelMemory, held_by_parameters, share_of
from lightning_predict.distributed.strategy import Recompute, Strategy
from lightning_predict.extensions.parallel.model_parallel import needs_blocks, stage_parameters
from lightning_predict.extensions.parallel.pipeline_parallel import block_stages, in_flight, micro_batches_of, stages_of
from lightning_predict.extensions.parallel.recomputation import (
    MATMUL_NAMES,
    chosen_operations,
    is_recomputed,
    recomputed_matmuls,
)
from lightning_predict.extensions.parallel.tensor_parallel import SplitModel, TransformerBlock, split_model
from lightning_predict.kernels.memory_bound import COMPILED_CALL
from lightning_predict.memory.storages import computed_again
from lightning_predict.tracing.trace import Operation, TensorInfo, Trace

_OF: Final = constants_of(__name__)


@final
class StageMemory:
    """Memory of GPUs that share a model.

    Args:
        memory: Memory of the whole step on a single GPU.
    """

    def __init__(self, memory: ModelMemory) -> None:
        self._memory = memory
        self._model: SplitModel | None = None
        self._kept: tuple[_Kept, ...] | None = None
        self._held: dict[tuple[int | None, ...], list[HeldMemory]] = {}

    def unsharded(
        self, strategy: Strategy, candidate_peaks: Sequence[tuple[float, float]], *, is_least_filled: bool = False
    ) -> HeldMemory:
        """Predict the memory of the GPU that needs the most memory.

        Args:
            strategy: Parallel strategy.
            candidate_peaks: Candidate peak times of the unsplit step, each as (temporary bytes, gradient bytes).
            is_least_filled: Predict the GPU that needs the least memory instead.
        """
        trace, whole, written = self._memory.trace, self._memory.whole, self._memory.update_bytes
        model = self._split(strategy)
        degrees = (strategy.tensor, strategy.pipeline, strategy.virtual, strategy.expert, strategy.experts_tensor)
        key = (*degrees, strategy.first_stage, strategy.last_stage)
        if key not in self._held:
            self._held[key] = [held_by_parameters(trace, own) for own in stage_parameters(trace, model, strategy)]
        stages = self._held[key]
        if self._kept is None:
            is_again = any(recomputed_matmuls(trace, model).values())
            self._kept = (*_kept(trace, model), *(_kept_again(trace, model) if is_again else ()))
        shares = _shares(trace, model, strategy, self._kept, candidate_peaks[0][0], self._memory.living_bytes)
        is_added_up = _micro_batches(trace, strategy) * strategy.accumulate > 1
        held = []
        for own, share in zip(stages, shares, strict=True):
            part = share_of(own.trainable_bytes, whole.trainable_bytes)
            scaled = tuple(
                (share * size, own.gradient_bytes if is_added_up else part * gradients)
                for size, gradients in candidate_peaks
            )
            lasting = own.peak_bytes + part * self._memory.copy_bytes
            passes = max(size + gradients - own.gradient_bytes for size, gradients in scaled)
            held.append(
                replace(
                    own,
                    peak_bytes=lasting + max(passes, part * written),
                    activation_bytes=scaled[0][0],
                    early_gradient_bytes=scaled[0][1],
                    candidate_peaks=scaled,
                    copy_bytes=part * self._memory.copy_bytes,
                    update_bytes=part * written,
                )
            )
        return (min if is_least_filled else max)(held, key=lambda own: own.peak_bytes)

    def _split(self, strategy: Strategy) -> SplitModel:
        if self._model is None or (needs_blocks(strategy) and not self._model.blocks):
            self._model, self._kept = split_model(self._memory.trace, needs_blocks=needs_blocks(strategy)), None
        return self._model


def _micro_batches(trace: Trace, strategy: Strategy) -> int:
    samples = None if trace.samples is None else max(trace.samples // trace.batches, 1)
    return micro_batches_of(strategy, samples)


def _shares(
    trace: Trace,
    model: SplitModel,
    strategy: Strategy,
    kept_storages: Sequence[_Kept],
    passing_bytes: float,
    living_bytes: float,
) -> list[float]:
    """Return each stage's share of the temporary memory that a whole batch needs on a single GPU.

    Most temporary memory is activations that the backward pass reads. The remainder is the logits gradient in the last
    stage. Allocator overhead is proportional to the sum of both. Tensor parallelism splits the vocabulary of the logits
    unless `Strategy.loss` says otherwise.
    """
    stage_of, logits = block_stages(strategy, len(model.blocks)), _logits(model, kept_storages)
    micro_batches = _micro_batches(trace, strategy)
    held = [in_flight(strategy, stage, micro_batches * strategy.accumulate) for stage in range(strategy.pipeline)]
    sizes, whole, again = [0.0] * strategy.pipeline, [0.0] * strategy.pipeline, dict[str, float]()
    recorded_again = dict[str, float]()
    total = 0.0
    for kept in kept_storages:
        size = kept.tensor.size_bytes
        if kept.is_in_recomputed_block and kept.block is not None:
            recorded_again[kept.block] = recorded_again.get(kept.block, 0.0) + size
        else:
            total += size
        is_whole = kept.is_gathered and not strategy.gather_again
        is_shared = kept.is_split or (strategy.sequence and kept.block is not None and not is_whole)
        if kept.is_of_vocabulary(model):
            is_shared = strategy.loss != "gathered"
            if strategy.loss == "fused":
                size, logits = (logits * FUSED_PROBABILITY_BYTES if kept.tensor.elements == logits else 0), 0
        own = size / (strategy.tensor if is_shared else 1) * (strategy.capacity if kept.is_expert else 1.0)
        is_again = kept.position is not None and is_recomputed(kept.position, strategy.recompute)
        if strategy.recompute in ("selective", "operations"):
            is_again = kept.is_attention if strategy.recompute == "selective" else kept.is_recomputed_by_operations
        if kept.block is not None and (is_again or kept.is_in_recomputed_block):
            again[kept.block] = again.get(kept.block, 0.0) + own
        else:
            sizes[0 if kept.position is None else stage_of[kept.position]] += own
        whole[0 if kept.position is None else stage_of[kept.position]] += own
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
    if total == 0:  # no tensors were recorded, so memory is split evenly
        return [count / parts / strategy.pipeline for count in held]
    # Recomputed activations exist only for one block of one micro-batch at a time.
    passing = max(again.values(), default=0.0)
    # A recomputed block's input is one of its tensors, so recomputation never needs more than keeping all tensors.
    limits = [math.inf if strategy.recompute == "operations" else size for size in whole]
    shares = [
        min(size * count + passing, limit * count) / total / parts
        for size, limit, count in zip(sizes, limits, held, strict=True)
    ]
    beyond = min(max(living_bytes, total), max(passing_bytes, total)) / total - 1
    last = beyond / (1 if strategy.loss == "gathered" else strategy.tensor) / parts
    if strategy.loss == "fused":
        last = _logits(model, kept_storages) * FUSED_GRADIENT_BYTES / total / strategy.tensor / parts
    return [(share + (last if stage == len(shares) - 1 else 0.0)) / (1 + beyond) for stage, share in enumerate(shares)]


FUSED_PROBABILITY_BYTES: Final = _OF.count("FUSED_PROBABILITY_BYTES", "bytes")

FUSED_GRADIENT_BYTES: Final = _OF.count("FUSED_GRADIENT_BYTES", "bytes")


def _logits(model: SplitModel, kept_storages: Sequence[_Kept]) -> int:
    return max((one.tensor.elements for one in kept_storages if one.is_of_vocabulary(model)), default=0)


@final
@dataclass(frozen=True, slots=True)
class _Kept:
    """A storage that the forward pass keeps for the backward pass.

    Attributes:
        position: Index of the block that wrote the storage, or of the preceding block; None before the first block.
        is_recomputed_by_operations: Whether the recomputation `operations` repeats the operation that wrote the
            storage.
        is_in_recomputed_block: Whether the backward pass recomputes the storage, so that it exists only for one block
            at a time.
        is_expert: Whether an expert wrote the storage, for the tokens that were routed to this expert.
        is_gathered: Whether matmuls of the block read the whole tensor. With sequence parallelism, the gathered tensor
            is then kept for the backward pass, as in torch's DTensor, unless `Strategy.gather_again` is set.
    """

    tensor: TensorInfo
    position: int | None
    block: str | None
    is_split: bool
    is_attention: bool
    is_recomputed_by_operations: bool = False
    is_in_recomputed_block: bool = False
    is_expert: bool = False
    is_gathered: bool = False

    def is_of_vocabulary(self, model: SplitModel) -> bool:
        """Whether the storage holds logits or probabilities: one value per word of the vocabulary."""
        return self.block is None and model.vocabulary is not None and self.tensor.shape[-1:] == (model.vocabulary,)


def _kept(trace: Trace, model: SplitModel) -> Iterator[_Kept]:
    """Yield the storages that the forward pass keeps for the backward pass."""
    read = {tensor.id for operation in trace.operations if operation.phase == "backward" for tensor in operation.inputs}
    core, passing = (_written_in_blocks(trace, model, what) for what in ("selective", "operations"))
    multiplied = {
        tensor.id
        for operation in trace.operations
        if operation.phase == "forward" and operation.name in MATMUL_NAMES and model.block(operation.module) is not None
        for tensor in operation.inputs
    }
    met = set[int | None](computed_again(trace.operations))
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
    """Yield outputs that are kept although no backward pass reads them; compiled code drops a block's last sum."""
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
    """Return the ids of the storages that the last forward operation of each block reads."""
    last = {
        block.name: operation
        for operation in trace.operations
        if operation.phase == "forward" and (block := model.block(operation.module)) is not None
    }
    return {tensor.id for operation in last.values() for tensor in operation.inputs}


def _kept_again(trace: Trace, model: SplitModel) -> Iterator[_Kept]:
    """Yield the storages that the backward pass recomputes, in a step recorded with gradient checkpointing."""
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
                yield _Kept(tensor, position, block.name, is_split, is_attention=False, is_in_recomputed_block=True)


def _written_in_blocks(trace: Trace, model: SplitModel, recompute: Recompute) -> set[int | None]:
    """Return the ids of the storages that a recomputation writes again, without views of kept tensors."""
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
