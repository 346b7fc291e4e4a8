"""Time GPUs that hold parts of a model: what one GPU of each stage runs, and the pace of the slowest stage.

The recorded work is cut (`tensor_parallel.py`), dealt out to stages (`pipeline_parallel.py`) and simulated again, so
that the host's launches, which no GPU more makes fewer, stay a floor.

The collectives inside blocks, and what stages hand over, stand in the way of the work behind them: they are hidden by
nothing but the device's waits for the host. Example::

    stages = model_stages(trace, timed, gpus, host, models, Strategy(tensor=8))
    stages[0].passes.seconds  # of one micro-batch, on each GPU
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from lightning_predict.distributed.gradients import has_backward, parameter_bytes
from lightning_predict.distributed.overlap import Ends, Links, Walked
from lightning_predict.distributed.pipeline_parallel import (
    hand_over_seconds,
    micro_batches_of,
    stage_of_blocks,
    stages_of,
)
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.distributed.tensor_parallel import (
    Cut,
    SplitModel,
    block_of,
    cut_work,
    split_model,
    vocabulary_messages,
)
from lightning_predict.gpus.layouts import Layout
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.choice import TimedWork
from lightning_predict.kernels.estimates import KernelModels
from lightning_predict.kernels.fabric import Interconnect
from lightning_predict.timeline.iteration import Iteration
from lightning_predict.timeline.overheads import HostModel
from lightning_predict.timeline.simulation import Launching, Simulated, launch_order, launchings, simulate
from lightning_predict.tracing.trace import Parameter, Phase, Trace


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


@final
@dataclass(frozen=True, slots=True)
class Pace:
    """A micro-batch in one stage; all times (low, middle, high).

    Attributes:
        stage: The stage.
        row: The layout's GPU.
        seconds: The micro-batch.
        communication_seconds: Its collectives inside the model.
        exposed: What of them makes it longer.
        update_seconds: The update behind the last micro-batch.
    """

    stage: Stage
    row: int
    seconds: Ends
    communication_seconds: Ends
    exposed: Ends
    update_seconds: Ends

    def repeated(self, walked: Walked, turns: float, *, exchanges: int) -> Walked:
        """A whole step: the last micro-batch and the update with what replicas exchange beside them, and those before.

        Args:
            walked: The last micro-batch and the update.
            turns: Micro-batches' worth of time of a step.
            exchanges: Micro-batches that are exchanged so; the others are not.
        """
        exchanged = walked.seconds - self.update_seconds
        before = (exchanges - 1) * exchanged + (turns - exchanges) * self.seconds
        return Walked(
            before + walked.seconds, exchanges * walked.communication_seconds, exchanges * walked.exposed_seconds
        )


def pace_of(
    stage: Stage, layout: Layout, strategy: Strategy, interconnect: Interconnect, row: int, factors: Ends
) -> Pace:
    """A micro-batch of a stage on a layout.

    Args:
        stage: The stage.
        layout: All GPUs.
        strategy: How they share.
        interconnect: What is known of the links.
        row: The layout's GPU.
        factors: By what the simulated times are multiplied; (low, middle, high).
    """
    communication = _communication(stage, layout, strategy, interconnect)
    passes, active = stage.passes.seconds[row] * factors, stage.passes.active_seconds[row] * factors
    # The device waits for the host or for the collectives, whichever is longer.
    exposed = np.maximum(communication - (passes - active), 0.0)
    update = (stage.whole.seconds[row] - stage.passes.seconds[row]) * factors
    return Pace(stage, row, passes + exposed, communication, exposed, np.maximum(update, 0.0))


def _communication(stage: Stage, layout: Layout, strategy: Strategy, interconnect: Interconnect) -> Ends:
    """Seconds of a micro-batch's collectives inside the model, each alone on its links; (low, middle, high)."""
    sharing = Links(Layout(layout.gpu, strategy.tensor), interconnect, slowdown=1.0)
    seconds = sum(sharing.collective("all_reduce", stage.reduced_bytes), np.zeros(3))
    if stage.hand_overs:
        seconds = seconds + stage.hand_overs * hand_over_seconds(stage.stream_bytes, layout, strategy, interconnect)
    return seconds


def divided_step(
    step: Iteration,
    work: Sequence[Launching],
    simulated: Simulated,
    pace: Pace,
    turns: float,
    layout: Layout,
    seconds: Ends,
    walked: Walked,
) -> Iteration:
    """The step of a layout whose GPUs hold parts of the model.

    Args:
        step: The step of one GPU.
        work: Its operations.
        simulated: The same, simulated.
        pace: The slowest stage.
        turns: Times that its micro-batch fits into the passes of a step.
        layout: The GPUs.
        seconds: The step on them; (low, middle, high).
        walked: What the replicas exchange in it.
    """
    stage, row = pace.stage, pace.row
    low, middle, high = seconds.tolist()
    again = stage.micro_batches - 1
    device = stage.whole.active_seconds[row] + again * stage.passes.active_seconds[row]
    host = stage.whole.host_seconds + again * stage.passes.host_seconds
    forward = _phase_share(stage.work, work, "forward", row) * turns
    waiting = turns * float(pace.exposed[1]) / (2 if has_backward(work) else 1)
    return replace(
        step,
        gpu=layout.name,
        seconds=middle,
        low_seconds=min(low, middle),
        high_seconds=max(high, middle),
        device_seconds=step.device_seconds * _ratio(float(device), float(simulated.active_seconds[row])),
        host_seconds=step.host_seconds * _ratio(host, simulated.host_seconds),
        forward_seconds=step.forward_seconds * forward + waiting,
        optimizer_seconds=step.optimizer_seconds * _phase_share(stage.work, work, "optimizer", row),
        verdict=None,  # that of one GPU's step; what bounds a part was not asked
        communication_seconds=float(
            walked.communication_seconds[1] + stage.micro_batches * pace.communication_seconds[1]
        ),
        added_seconds=middle - step.seconds,
        notes=(*step.notes, *stage.notes),
    )


def _phase_share(part: Sequence[Launching], whole: Sequence[Launching], phase: Phase, row: int) -> float:
    """Device time of a phase in a part over that in the whole."""
    one, all_of_it = (
        math.fsum(float(each.seconds[row].sum()) for each in work if each.phase == phase) for work in (part, whole)
    )
    return _ratio(one, all_of_it)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
