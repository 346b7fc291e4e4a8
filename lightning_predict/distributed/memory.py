"""Memory of one GPU that holds a part of the model, before the replicas share anything.

What lives through the step goes by the parameters: those of the fullest stage, the split ones divided. What the
backward pass reads goes by its tensors: those of the stage's blocks, the split ones divided, for as many micro-batches
as are under way at once, which under 1F1B are as many as there are stages from this one on (Narayanan et al., 2021).
Example::

    held_memory(40e9, trace, Strategy(tensor=8)).peak_bytes
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

from lightning_predict.distributed.gradients import parameter_bytes, unit_bytes
from lightning_predict.distributed.model_parallel import stage_parameters
from lightning_predict.distributed.pipeline_parallel import micro_batches_of, stage_of_blocks, stages_of
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.distributed.tensor_parallel import SplitModel, split_model
from lightning_predict.tracing.trace import Parameter, TensorInfo, Trace


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
        unit_bytes: Parameters of each unit that FSDP gathers.
    """

    peak_bytes: float
    parameter_bytes: float
    gradient_bytes: float
    optimizer_state_bytes: float
    trainable_bytes: float
    unit_bytes: tuple[float, ...]


def held_memory(single_bytes: float, trace: Trace, strategy: Strategy) -> HeldMemory:
    """What the fullest GPU holds.

    Args:
        single_bytes: Peak memory of the step on one GPU.
        trace: The step.
        strategy: How the GPUs share the model.

    Raises:
        InvalidArgumentError: The model cannot be shared so.
    """
    whole = _of_parameters(trace, trace.parameters)
    lasting = whole.parameter_bytes + whole.gradient_bytes + whole.optimizer_state_bytes
    activations = max(single_bytes - lasting, 0.0)
    if strategy.is_whole:
        return replace(whole, peak_bytes=single_bytes)
    model = split_model(trace, needs_blocks=strategy.model_parallel > 1)
    stages = [_of_parameters(trace, own) for own in stage_parameters(trace, model, strategy)]
    shares = activation_shares(trace, model, strategy)
    held = (
        replace(own, peak_bytes=own.peak_bytes + share * activations) for own, share in zip(stages, shares, strict=True)
    )
    return max(held, key=lambda own: own.peak_bytes)


def activation_shares(trace: Trace, model: SplitModel, strategy: Strategy) -> list[float]:
    """Of what the backward pass of a whole batch on one GPU reads, the share that a GPU of each stage holds at once."""
    stage_of = stage_of_blocks(len(model.blocks), strategy.pipeline)
    samples = None if trace.samples is None else max(trace.samples // trace.batches, 1)
    micro_batches = micro_batches_of(strategy, samples)
    sizes = [0.0] * strategy.pipeline
    total = 0.0
    for tensor, stage, is_split in _kept(trace, model, stage_of):
        total += tensor.size_bytes
        sizes[stage] += tensor.size_bytes / (strategy.tensor if is_split else 1)
    under_way = (min(strategy.pipeline - stage, micro_batches) for stage in range(strategy.pipeline))
    if total == 0:  # no tensors were seen: evenly
        return [count / micro_batches / strategy.pipeline for count in under_way]
    return [size / total * count / micro_batches for size, count in zip(sizes, under_way, strict=True)]


def _kept(trace: Trace, model: SplitModel, stage_of: tuple[int, ...]) -> Iterator[tuple[TensorInfo, int, bool]]:
    """Each storage that the forward pass leaves to the backward pass, its stage, and whether it is split."""
    read = {tensor.id for operation in trace.operations if operation.phase == "backward" for tensor in operation.inputs}
    met = set[int | None]()
    for operation, stage in zip(trace.operations, stages_of(trace.operations, model.positions, stage_of), strict=True):
        if operation.phase != "forward" or stage is None:
            continue
        block = model.block(operation.module)
        for tensor in (*operation.inputs, *operation.outputs):
            if tensor.id is None or tensor.id not in read or tensor.id in met or tensor.shape in model.parameters:
                continue
            met.add(tensor.id)
            yield tensor, stage, model.is_split(tensor.shape, block)


def _of_parameters(trace: Trace, parameters: tuple[Parameter, ...]) -> HeldMemory:
    """What lives through the step of a GPU with these of the trace's parameters."""
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
        unit_bytes=tuple(unit_bytes(replace(trace, parameters=parameters)).values()),
    )


def _trainable_bytes(parameters: tuple[Parameter, ...]) -> float:
    return math.fsum(parameter_bytes(parameter) for parameter in parameters if parameter.requires_grad)


def _share(part: float, whole: float) -> float:
    """A part of a whole; all of it where neither is known."""
    return part / whole if whole else 1.0
