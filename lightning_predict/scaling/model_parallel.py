"""A model over several GPUs: what each GPU of a pipeline's stage runs, and what it waits for.

The recorded work is cut (`tensor_parallel.py`), dealt out to stages (`pipeline_parallel.py`) and simulated again, so
that the host's launches, which no GPU more makes fewer, stay a floor. The collectives inside blocks stand in the way of
the work behind them: they are hidden by nothing but the device's waits for the host. Example::

    stages = model_stages(trace, timed, gpus, host, models, Strategy(tensor=8))
    stages[0].passes.seconds  # of one micro-batch, on each GPU
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from lightning_predict.gpus.layouts import Layout
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.choice import TimedWork
from lightning_predict.kernels.estimates import KernelModels
from lightning_predict.kernels.fabric import Interconnect, collective
from lightning_predict.kernels.operations import Array
from lightning_predict.scaling.blocks import block_of
from lightning_predict.scaling.gradients import has_backward, parameter_bytes
from lightning_predict.scaling.pipeline_parallel import (
    ends,
    hand_over_seconds,
    micro_batches_of,
    stage_of_blocks,
    stages_of,
    turns,
)
from lightning_predict.scaling.strategy import Strategy
from lightning_predict.scaling.tensor_parallel import Cut, SplitModel, cut_work, split_model, vocabulary_messages
from lightning_predict.timeline.communication import Walked
from lightning_predict.timeline.overheads import HostModel
from lightning_predict.timeline.queues import launchings
from lightning_predict.timeline.records import Iteration
from lightning_predict.timeline.simulation import Launching, Simulated, simulate
from lightning_predict.tracing.records import Parameter, Phase, Trace


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
        turns: Micro-batches' worth of time of a step.
    """

    parameters: tuple[Parameter, ...]
    work: tuple[Launching, ...]
    whole: Simulated
    passes: Simulated
    reduced_bytes: tuple[float, ...]
    hand_overs: int
    stream_bytes: float
    micro_batches: int
    turns: int

    def communication(self, layout: Layout, strategy: Strategy, interconnect: Interconnect) -> Array:
        """Seconds of a micro-batch's collectives inside the model, each alone on its links; (low, middle, high)."""
        sharing = Layout(layout.gpu, strategy.tensor)
        seconds = np.zeros(3)
        if self.reduced_bytes:
            seconds = ends(collective("all_reduce", self.reduced_bytes, sharing, interconnect=interconnect))
        if self.hand_overs:
            one = hand_over_seconds(self.stream_bytes, layout, strategy, interconnect)
            seconds = seconds + self.hand_overs * one
        return seconds

    def pace(self, layout: Layout, strategy: Strategy, interconnect: Interconnect, row: int, factors: Array) -> Pace:
        """A micro-batch in this stage on a layout.

        Args:
            layout: All GPUs.
            strategy: How they share.
            interconnect: What is known of the links.
            row: The layout's GPU.
            factors: By what the simulated times are multiplied; (low, middle, high).
        """
        communication = self.communication(layout, strategy, interconnect)
        passes, active = self.passes.seconds[row] * factors, self.passes.active_seconds[row] * factors
        # The device waits for the host or for the collectives, whichever is longer.
        exposed = np.maximum(communication - (passes - active), 0.0)
        return Pace(self, row, passes + exposed, communication, exposed)


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
    """

    stage: Stage
    row: int
    seconds: Array
    communication_seconds: Array
    exposed: Array

    def repeated(self, walked: Walked) -> Walked:
        """A whole step: the last micro-batch with what the replicas exchange beside it, and all turns before it."""
        before = (self.stage.turns - 1) * self.seconds
        return Walked(before + walked.seconds, walked.communication_seconds, walked.exposed_seconds)


def divided_step(
    step: Iteration,
    work: Sequence[Launching],
    simulated: Simulated,
    pace: Pace,
    strategy: Strategy,
    layout: Layout,
    seconds: Array,
    walked: Walked,
) -> Iteration:
    """The step of a layout whose GPUs hold parts of the model.

    Args:
        step: The step of one GPU.
        work: Its operations.
        simulated: The same, simulated.
        pace: The slowest stage.
        strategy: How the GPUs share.
        layout: The GPUs.
        seconds: The step on them; (low, middle, high).
        walked: What the replicas exchange in it.
    """
    stage, row = pace.stage, pace.row
    low, middle, high = seconds.tolist()
    again = stage.micro_batches - 1
    device = stage.whole.active_seconds[row] + again * stage.passes.active_seconds[row]
    host = stage.whole.host_seconds + again * stage.passes.host_seconds
    forward = _phase_share(stage.work, work, "forward", row) * stage.turns
    waiting = stage.turns * float(pace.exposed[1]) / (2 if has_backward(work) else 1)
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
        notes=(*step.notes, *_notes(stage, strategy)),
    )


def _phase_share(part: Sequence[Launching], whole: Sequence[Launching], phase: Phase, row: int) -> float:
    """Device time of a phase in a part over that in the whole."""
    one, all_of_it = (
        math.fsum(float(each.seconds[row].sum()) for each in work if each.phase == phase) for work in (part, whole)
    )
    return _ratio(one, all_of_it)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _notes(stage: Stage, strategy: Strategy) -> Iterator[str]:
    """What was assumed, in words."""
    if strategy.tensor > 1:
        yield (
            f"Each block is split over {strategy.tensor} GPUs by heads and inner width, the vocabulary by rows; norms, "
            "dropouts and shortcuts are whole on each. No work hides their all_reduces."
        )
    if strategy.pipeline > 1:
        bubble = (strategy.pipeline - 1) / stage.turns
        yield (
            f"{strategy.pipeline} stages work through {stage.micro_batches} micro-batches, forward and backward in "
            f"turn: each GPU waits for {100 * bubble:.0f} % of the passes' time. The slowest stage sets the pace."
        )


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
    model = split_model(trace)
    model.check(strategy.tensor)
    stage_of = stage_of_blocks(len(model.blocks), strategy.pipeline)
    samples = None if trace.samples is None else trace.samples // trace.batches
    micro_batches = micro_batches_of(strategy, samples)
    parameters = stage_parameters(trace, model, strategy)
    everything = sum(map(parameter_bytes, trace.parameters))
    most = max(sum(map(parameter_bytes, own)) for own in parameters)
    updated = min(most / everything, 1.0) if everything else 1 / strategy.model_parallel
    timed = cut_work(trace, timed, model, gpus, models, Cut(strategy.tensor, micro_batches, updated))
    work = launchings(trace, timed, timed.seconds)
    owners = list(stages_of(work, model.positions, stage_of))
    trains = any(operation.phase == "backward" for operation in work)
    messages = _messages(trace, model, stage_of, trains=trains) if strategy.tensor > 1 else [()] * strategy.pipeline
    found = []
    for stage in range(strategy.pipeline):
        own = [each for each, owner in zip(work, owners, strict=True) if owner in (stage, None)]
        passes = [each for each, owner in zip(work, owners, strict=True) if owner == stage]
        neighbours = (stage > 0) + (stage < strategy.pipeline - 1)
        found.append(
            Stage(
                parameters=parameters[stage],
                work=tuple(own),
                whole=simulate(own, host, gpus=len(gpus)),
                passes=simulate(passes, host, gpus=len(gpus)),
                reduced_bytes=tuple(size / micro_batches for size in messages[stage]),
                # Forward to the next one, backward to the one before.
                hand_overs=trace.batches * (neighbours if trains else int(stage < strategy.pipeline - 1)),
                stream_bytes=max(block.stream_bytes for block in model.blocks) / micro_batches,
                micro_batches=micro_batches,
                turns=turns(stages=strategy.pipeline, micro_batches=micro_batches),
            )
        )
    return tuple(found)


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
    """Modules outside of blocks whose forward operations all come after the last block's."""
    forward = [operation for operation in trace.operations if operation.phase == "forward"]
    inside = [index for index, each in enumerate(forward) if model.block(each.module) is not None]
    before = {each.module for each in forward[: inside[-1]]}
    return {each.module for each in forward[inside[-1] :] if each.module is not None} - before


@final
@dataclass(frozen=True, slots=True)
class DataGroup:
    """GPUs that hold the same part of the model and exchange its gradients.

    GPUs that share a block come first in the layout, then the replicas, then the stages (Narayanan et al., 2021).

    Attributes:
        layout: One of its GPUs a replica.
        groups_per_node: Such groups in each machine, which share its network.
    """

    layout: Layout
    groups_per_node: int


def data_group(layout: Layout, strategy: Strategy) -> DataGroup:
    """The data-parallel group of each GPU of a layout.

    Raises:
        InvalidArgumentError: The GPUs cannot be divided so.
    """
    replicas = strategy.replicas(layout)
    if strategy.model_parallel == 1:
        return DataGroup(layout, 1)
    inside = math.gcd(replicas, layout.gpus_per_node // strategy.tensor)
    return DataGroup(Layout(layout.gpu, inside, replicas // inside), layout.gpus_per_node // inside)
