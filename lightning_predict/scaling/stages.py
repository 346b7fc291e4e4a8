"""The stages of a model that several GPUs hold: what one GPU of each runs in a step.

The recorded work is cut (`tensor_parallel.py`), dealt out to stages (`pipeline_parallel.py`) and simulated again, so
that the host's launches, which no GPU more makes fewer, stay a floor. Example::

    stages = model_stages(trace, timed, gpus, host, models, Strategy(tensor=8))
    stages[0].passes.seconds  # of one micro-batch, on each GPU
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.choice import TimedWork
from lightning_predict.kernels.estimates import KernelModels
from lightning_predict.scaling.blocks import block_of
from lightning_predict.scaling.gradients import has_backward, parameter_bytes
from lightning_predict.scaling.pipeline_parallel import micro_batches_of, stage_of_blocks, stages_of
from lightning_predict.scaling.strategy import Strategy
from lightning_predict.scaling.tensor_parallel import Cut, SplitModel, cut_work, split_model, vocabulary_messages
from lightning_predict.timeline.launching import Launching, launch_order, launchings
from lightning_predict.timeline.overheads import HostModel
from lightning_predict.timeline.simulation import Simulated, simulate
from lightning_predict.tracing.records import Parameter, Trace


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one GPU of a stage runs; arrays and simulations have a row a GPU.

    Attributes:
        parameters: Its parameters, each as large as its part.
        work: One micro-batch, and the update.
        whole: Both, simulated.
        passes: The micro-batch alone, simulated.
        reduced_bytes: All_reduces of a micro-batch among the GPUs that share the blocks.
        hand_overs: Activations and gradients that it sends to a neighbour, a micro-batch.
        stream_bytes: Size of each of them.
        micro_batches: Micro-batches of a step.
        notes: What was assumed, in words.
    """

    parameters: tuple[Parameter, ...]
    work: tuple[Launching, ...]
    whole: Simulated
    passes: Simulated
    reduced_bytes: tuple[float, ...]
    hand_overs: int
    stream_bytes: float
    micro_batches: int
    notes: tuple[str, ...]


def model_stages(
    trace: Trace,
    timed: TimedWork,
    gpus: Sequence[Gpu],
    host: HostModel,
    models: KernelModels | None,
    strategy: Strategy,
) -> tuple[Stage, ...]:
    """The stages of a model's pipeline, a single one where only blocks are split.

    Args:
        trace: The step of one GPU.
        timed: Its work with device seconds, rows in the order of `gpus`.
        gpus: The GPUs.
        host: The host beside each of them.
        models: Trained models; None uses rooflines instead.
        strategy: How they share.

    Raises:
        InvalidArgumentError: The model has no blocks, or none that can be shared so.
    """
    model = split_model(trace, needs_blocks=strategy.model_parallel > 1)
    stage_of = stage_of_blocks(len(model.blocks), strategy.pipeline)
    samples = None if trace.samples is None else max(trace.samples // trace.batches, 1)
    micro_batches = micro_batches_of(strategy, samples)
    parameters = stage_parameters(trace, model, strategy)
    cut = Cut(strategy.tensor, micro_batches, _updated(trace, parameters, strategy))
    timed = cut_work(trace, timed, model, gpus, models, cut)
    work = launchings(trace, timed, timed.seconds)
    owners = list(stages_of(work, model.positions, stage_of))
    trains = has_backward(work)
    messages = _messages(trace, model, stage_of, trains=trains) if strategy.tensor > 1 else [()] * strategy.pipeline
    found = []
    for stage in range(strategy.pipeline):
        own, passes = (_of(work, owners, members) for members in ({stage, None}, {stage}))
        is_first, is_last = stage == 0, stage == strategy.pipeline - 1
        found.append(
            Stage(
                parameters=parameters[stage],
                work=own,
                whole=simulate(launch_order(own, gpus=len(gpus)), host),
                passes=simulate(launch_order(passes, gpus=len(gpus)), host),
                reduced_bytes=tuple(size / micro_batches for size in messages[stage]),
                # Activations to the next stage, gradients to the one before.
                hand_overs=trace.batches * ((not is_last) + (trains and not is_first)),
                stream_bytes=max((block.stream_bytes for block in model.blocks), default=0.0) / micro_batches,
                micro_batches=micro_batches,
                notes=tuple(_notes(timed, strategy, micro_batches)),
            )
        )
    return tuple(found)


def _of(
    work: Sequence[Launching], owners: Sequence[int | None], members: Collection[int | None]
) -> tuple[Launching, ...]:
    """The operations that these stages own."""
    return tuple(each for each, owner in zip(work, owners, strict=True) if owner in members)


def _updated(trace: Trace, parameters: Sequence[Sequence[Parameter]], strategy: Strategy) -> float:
    """Share of the parameters that the fullest stage updates on each of its GPUs."""
    everything = sum(map(parameter_bytes, trace.parameters))
    if not everything:
        return 1 / strategy.model_parallel
    return max(sum(map(parameter_bytes, own)) for own in parameters) / everything


def _messages(trace: Trace, model: SplitModel, stage_of: Sequence[int], *, trains: bool) -> list[tuple[float, ...]]:
    """Bytes of each stage's all_reduces of a batch: those of its blocks forward and back, and of the vocabulary."""
    sizes: list[list[float]] = [[] for _ in range(max(stage_of) + 1)]
    for block, stage in zip(model.blocks, stage_of, strict=True):
        sizes[stage] += block.reduced_bytes * (2 if trains else 1)
    first, last = vocabulary_messages(trace, model)
    sizes[0] += first
    sizes[-1] += last if trains else []
    return [tuple(own) for own in sizes]


def stage_parameters(trace: Trace, model: SplitModel, strategy: Strategy) -> list[tuple[Parameter, ...]]:
    """The parameters of each stage, each as large as one GPU's part of it.

    Outside of blocks, those of modules that run behind the last block alone are the last stage's, the others the
    first's.
    """
    stage_of = stage_of_blocks(len(model.blocks), strategy.pipeline)
    behind = _modules_behind(trace, model)
    stages: list[list[Parameter]] = [[] for _ in range(strategy.pipeline)]
    for parameter in trace.parameters:
        position = block_of(parameter.name, model.positions)
        if position is None:
            module = parameter.name.rpartition(".")[0]
            stage = len(stages) - 1 if module in behind else 0
        else:
            stage = stage_of[position]
        block = None if position is None else model.blocks[position]
        stages[stage].append(_part(parameter, model.is_split(parameter.shape, block), strategy.tensor))
    return [tuple(own) for own in stages]


def _part(parameter: Parameter, is_split: bool, tensor: int) -> Parameter:
    """Split along its first dimension; which one makes no difference to its size."""
    if not is_split or len(parameter.shape) < 2:
        return parameter
    rows, *others = parameter.shape
    return replace(parameter, shape=(math.ceil(rows / tensor), *others))


def _modules_behind(trace: Trace, model: SplitModel) -> set[str]:
    """Modules outside of blocks whose forward operations all come after the last block's; none without blocks."""
    forward = [operation for operation in trace.operations if operation.phase == "forward"]
    inside = [index for index, each in enumerate(forward) if model.block(each.module) is not None]
    if not inside:
        return set()
    before = {each.module for each in forward[: inside[-1]]}
    return {each.module for each in forward[inside[-1] :] if each.module is not None} - before


def _notes(timed: TimedWork, strategy: Strategy, micro_batches: int) -> Iterator[str]:
    """What was assumed, in words."""
    if strategy.tensor > 1:
        yield (
            f"Each block is split over {strategy.tensor} GPUs by heads and inner width, the vocabulary by rows; norms, "
            "dropouts and shortcuts are whole on each. Together they take as many samples as were recorded. No work "
            "hides their all_reduces."
        )
    if strategy.pipeline > 1:
        bubble = (strategy.pipeline - 1) / (strategy.pipeline - 1 + micro_batches)
        yield (
            f"{strategy.pipeline} stages cut what was recorded into {micro_batches} micro-batches, forward and "
            f"backward in turn; equal stages wait for {100 * bubble:.0f} % of the passes' time, others for the slowest."
        )
    elif micro_batches > 1:
        yield f"What was recorded is cut into {micro_batches} micro-batches, one behind the other."
    unknown = sum(not item.problems for item in timed.items)
    if unknown:
        yield f"{unknown} operations of unknown shape (fused kernels) are taken to be whole on each GPU."
