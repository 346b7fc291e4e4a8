"""Predicts model parallelism (tensor, pipeline, context): a GPU's work in each stage, and the slowest stage's time.

The recorded work is split (`tensor_parallel.py`), assigned to stages (`pipeline_parallel.py`) and simulated again. More
GPUs do not reduce the host's kernel launches, which remain a lower bound. Collectives inside blocks and transfers
between stages are on the critical path, and overlap only with times in which the device waits for the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lightning_predict.base.interval import Interval
from lightning_predict.base.ties import clearly_less, greatest
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.measured_scaling import WorkTimes
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.timing import KernelModels
from lightning_predict.layouts.experts import check_experts, launched_by_expert, messages, routed_bytes
from lightning_predict.layouts.gradients import has_backward, is_of_expert, parameter_bytes
from lightning_predict.layouts.groups import context_group, expert_group, tensor_group
from lightning_predict.layouts.overlap import Ends, Links, OverlappedStep
from lightning_predict.layouts.pipeline_parallel import block_stages, micro_batches_of, send_seconds, stages_of
from lightning_predict.layouts.recomputation import (
    check_recomputation,
    is_recomputed,
    recomputed_matmuls,
    reduced_again,
    with_recomputation,
)
from lightning_predict.layouts.strategy import Recompute, Strategy
from lightning_predict.layouts.tensor_parallel import (
    ShapeTimer,
    ShardSpec,
    SplitModel,
    WorkSharder,
    block_of,
    is_weight_gradient,
    split_model,
    vocabulary_messages,
)
from lightning_predict.record.trace import DTYPE_BYTES, Parameter, Phase, Trace
from lightning_predict.timeline.host import HostModel
from lightning_predict.timeline.simulation import (
    HostOperation,
    SimulatedTimeline,
    host_operations,
    launch_schedule,
    simulate_timeline,
)
from lightning_predict.timeline.step_prediction import StepPrediction
from lightning_predict.timeline.verdict import Bound, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Work of one GPU in a pipeline stage. Arrays and simulations have one row per GPU model."""

    parameters: tuple[Parameter, ...]  # Parameters of the stage, with the shape of one GPU's part
    work: tuple[HostOperation, ...]  # Operations of one micro-batch and the optimizer step
    whole: SimulatedTimeline  # Simulation of `work`
    pass_work: tuple[HostOperation, ...]  # Operations of one micro-batch
    passes: SimulatedTimeline  # Simulation of `pass_work`
    reduced_bytes: tuple[float, ...]  # Message sizes of the tensor-parallel all-reduces, per micro-batch
    routed_bytes: tuple[float, ...]  # Message sizes of the expert-parallel all-to-alls, per micro-batch
    ring_bytes: tuple[float, ...]  # Sizes of keys and values that circulate in the context-parallel group
    attention_seconds: Array  # Time of attention on each GPU model, which overlaps with the ring, shape (gpus,)
    weight_share: Array  # Share of a micro-batch's time that computes weight gradients, shape (gpus,)
    sent_tensors: int  # Number of tensors (activations and gradients) sent to neighbouring stages, per micro-batch
    stream_bytes: float  # Size of a tensor that is sent to a neighbouring stage
    micro_batches: int  # Number of micro-batches per step
    notes: tuple[str, ...]


def model_stages(
    trace: Trace,
    timed: WorkTimes,
    gpus: Sequence[Gpu],
    host: HostModel,
    models: KernelModels | None,
    strategy: Strategy,
    *,
    model: SplitModel | None = None,
    sharder: WorkSharder | None = None,
) -> tuple[Stage, ...]:
    """Return the pipeline stages of a model; a single stage without pipeline parallelism."""
    model = model or split_model(trace, needs_blocks=needs_blocks(strategy))
    check_experts(trace, strategy)
    check_recomputation(trace, model, strategy.recompute)
    stage_of = block_stages(strategy, len(model.blocks))
    samples = None if trace.samples is None else max(trace.samples // trace.batches, 1)
    micro_batches = micro_batches_of(strategy, samples)
    parameters = stage_parameters(trace, model, strategy)
    spec = _shard_spec(strategy, micro_batches, _updated(trace, parameters, strategy))
    sharder = sharder or WorkSharder(trace, timed, model, ShapeTimer(gpus, models))
    timed = sharder.shard(spec)
    work = with_recomputation(host_operations(trace, timed, timed.seconds), model, strategy.recompute)
    if strategy.expert_launches:
        work = tuple(launched_by_expert(trace, work, strategy))
    owners = list(stages_of(work, model.positions, stage_of))
    trains = has_backward(work)
    reduced = _messages(trace, model, stage_of, trains=trains, recompute=strategy.recompute)
    routed = _routed(trace, model, stage_of, strategy, trains=trains)
    rings = _rings(model, stage_of, strategy, trains=trains)
    weights = _weight_shares(trace, timed, model)
    stream = max((block.stream_bytes for block in model.blocks), default=0.0)
    stages = []
    for stage in range(strategy.pipeline):
        own, passes = (
            tuple(operation for operation, owner in zip(work, owners, strict=True) if owner in members)
            for members in ({stage, None}, {stage})
        )
        is_first, is_last = stage == 0, stage == strategy.pipeline - 1
        stages.append(
            Stage(
                parameters=parameters[stage],
                work=own,
                whole=simulate_timeline(launch_schedule(own, gpus=len(gpus)), host),
                pass_work=passes,
                passes=simulate_timeline(launch_schedule(passes, gpus=len(gpus)), host),
                reduced_bytes=tuple(size / spec.rows for size in reduced[stage]) if strategy.tensor > 1 else (),
                # Tensor-parallel GPUs send a part of the tokens each if they do not share the experts.
                routed_bytes=tuple(
                    size / spec.rows * strategy.experts_tensor / strategy.tensor for size in routed[stage]
                ),
                ring_bytes=tuple(size / micro_batches / strategy.tensor for size in rings[stage]),
                attention_seconds=_attention_seconds(passes, len(gpus)),
                weight_share=weights,
                # activations to the next stage, gradients to the previous stage
                sent_tensors=trace.batches
                * (
                    (strategy.virtual - is_last) + trains * (strategy.virtual - is_first)
                    if strategy.pipeline > 1
                    else 0
                ),
                stream_bytes=stream / micro_batches,
                micro_batches=micro_batches * strategy.accumulate,
                notes=tuple(_notes(timed, strategy, micro_batches, trace.batches)),
            )
        )
    return tuple(stages)


def _shard_spec(strategy: Strategy, micro_batches: int, updated: float) -> ShardSpec:
    """Return how the work of a batch is split over GPUs."""
    repeated, is_sharded = micro_batches * strategy.accumulate, strategy.split.parameters
    return ShardSpec(
        strategy.tensor,
        micro_batches,
        updated,
        context=strategy.context,
        sequence=strategy.sequence,
        expert=strategy.expert,
        expert_tensor=strategy.expert_tensor,
        capacity=strategy.capacity,
        fp8=strategy.fp8,
        # Gathered parameters are cast again after each gather, as in torchao's layers.
        cast=1.0 if is_sharded else 1 / repeated,
        # Gradients of later micro-batches are added to earlier ones; FSDP scatters gradients first.
        added=0.0 if is_sharded and strategy.pipeline == 1 else 1 - 1 / repeated,
        sum_bytes=None if strategy.reduce_dtype is None else DTYPE_BYTES[strategy.reduce_dtype],
    )


def needs_blocks(strategy: Strategy) -> bool:
    """Return whether the strategy requires a model with transformer blocks."""
    return strategy.batch_parallel > 1 or strategy.changes_operations


def _attention_seconds(work: Sequence[HostOperation], gpus: int) -> Array:
    """Return the device time of fused attention on each GPU model, shape (gpus,)."""
    fused = (each.seconds.sum(axis=1) for each in work if "scaled_dot_product" in each.name)
    seconds: Array = sum(fused, np.zeros(gpus))
    return seconds


def _weight_shares(trace: Trace, timed: WorkTimes, model: SplitModel) -> Array:
    """Return the share of the forward and backward time that computes weight gradients, shape (gpus,)."""
    passes, weights = np.zeros(len(timed.seconds)), np.zeros(len(timed.seconds))  # each (gpus,)
    for item, phase, seconds in zip(timed.items, timed.phases, timed.seconds.T, strict=True):
        if phase in ("forward", "backward"):
            passes += seconds
            operation = trace.operations[item.operations[0]]
            block = model.block(operation.module)
            if any(is_weight_gradient(shape, operation.phase, model, block) for shape in item.shapes):
                weights += seconds
    return np.divide(weights, passes, out=np.zeros_like(passes), where=passes > 0)


def _updated(trace: Trace, parameters: Sequence[Sequence[Parameter]], strategy: Strategy) -> float:
    """Return the share of all parameters that one GPU updates: the maximum over the stages."""
    everything = sum(map(parameter_bytes, trace.parameters))
    if not everything:
        return 1 / strategy.model_parallel
    return max(sum(map(parameter_bytes, own)) for own in parameters) / everything


def _messages(
    trace: Trace, model: SplitModel, stage_of: Sequence[int], *, trains: bool, recompute: Recompute
) -> list[tuple[float, ...]]:
    """Return the message sizes of each stage's all-reduces per batch, with all-reduces that recomputation repeats."""
    sizes: list[list[float]] = [[] for _ in range(max(stage_of, default=0) + 1)]
    again = recomputed_matmuls(trace, model) if trains else {}
    for position, (block, stage) in enumerate(zip(model.blocks, stage_of, strict=True)):
        sizes[stage] += block.reduced_bytes * (2 if trains else 1)
        repeated = reduced_again(block, again.get(block.name, 0))
        if recompute in ("full", "layers") and is_recomputed(position, recompute):
            repeated = block.reduced_bytes
        elif recompute == "operations":  # sums are kept, but gathered tensors are not, so half of each pair is repeated
            repeated = block.reduced_bytes[::2]
        sizes[stage] += repeated if trains else ()
    first, last = vocabulary_messages(trace, model)
    sizes[0] += first
    sizes[-1] += last if trains else []
    return [tuple(own) for own in sizes]


def _routed(
    trace: Trace, model: SplitModel, stage_of: Sequence[int], strategy: Strategy, *, trains: bool
) -> list[tuple[float, ...]]:
    """Return the message sizes of each stage's all-to-alls per batch."""
    sizes: list[list[float]] = [[] for _ in range(strategy.pipeline)]
    for holder, size in (routed_bytes(trace) if strategy.expert > 1 else {}).items():
        position = block_of(holder, model.positions)
        sizes[0 if position is None else stage_of[position]].append(size)
    return [tuple(messages(own, strategy, trains=trains)) for own in sizes]


def _rings(model: SplitModel, stage_of: Sequence[int], strategy: Strategy, *, trains: bool) -> list[tuple[float, ...]]:
    """Return the message sizes of each stage's ring transfers per batch: keys and values twice, gradients once."""
    sizes: list[list[float]] = [[] for _ in range(strategy.pipeline)]
    if strategy.context > 1:
        for block, stage in zip(model.blocks, stage_of, strict=True):
            sizes[stage] += [block.ring_bytes] * (3 if trains else 1)
    return [tuple(own) for own in sizes]


def stage_parameters(trace: Trace, model: SplitModel, strategy: Strategy) -> list[tuple[Parameter, ...]]:
    """Return the parameters of each stage, with the shapes of one GPU's part.

    A parameter outside blocks belongs to the last stage if its module runs only after the last block, otherwise to the
    first stage.
    """
    stage_of = block_stages(strategy, len(model.blocks))
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
        is_expert = is_of_expert(parameter)
        parts = strategy.experts_tensor if is_expert else strategy.tensor
        own = _part(parameter, model.is_split(parameter.shape, block), parts)
        stages[stage].append(_part(own, is_expert, strategy.expert))
    return [tuple(own) for own in stages]


def _part(parameter: Parameter, is_split: bool, parts: int) -> Parameter:
    """Divide a parameter along its first dimension. The size does not depend on the dimension."""
    if not is_split or parts == 1 or len(parameter.shape) < 2:
        return parameter
    rows, *others = parameter.shape
    return replace(parameter, shape=(math.ceil(rows / parts), *others))


def _modules_behind(trace: Trace, model: SplitModel) -> set[str]:
    """Return the modules outside blocks that run only after the last block in forward; empty without blocks."""
    forward = [operation for operation in trace.operations if operation.phase == "forward"]
    inside = [index for index, each in enumerate(forward) if model.block(each.module) is not None]
    if not inside:
        return set()
    before = {each.module for each in forward[: inside[-1]]}
    return {each.module for each in forward[inside[-1] :] if each.module is not None} - before


_AGAIN: Final[Mapping[Recompute, str]] = {  # Description of each kind of recomputation, for the user
    "selective": "attention",
    "operations": "all of a block but attention and every second product",
    "layers": "every second block",
    "full": "every block",
}


def _notes(timed: WorkTimes, strategy: Strategy, micro_batches: int, batches: int) -> Iterator[str]:
    if strategy.tensor > 1:
        rest = "shared as well" if strategy.sequence else "whole on each"
        yield (
            f"Each block is split over {strategy.tensor} GPUs by heads and inner width, the vocabulary by rows; norms, "
            f"dropouts and shortcuts are {rest}. Together they take as many samples as were recorded. "
            f"{'Products hide a part of' if strategy.overlap_tensor else 'No work hides'} "
            f"their {'all_gathers and reduce_scatters' if strategy.sequence else 'all_reduces'}."
        )
    if strategy.context > 1:
        yield (
            f"Each sequence is split over {strategy.context} GPUs, evenly under a causal mask, too; keys and values go "
            "around in a ring behind attention."
        )
    if strategy.expert > 1:
        yield (
            f"Experts are dealt out over {strategy.expert} GPUs, and "
            + (
                "tokens are taken to be evenly routed (capacity= says otherwise)"
                if strategy.capacity == 1
                else f"the fullest take {strategy.capacity:g} times as many tokens as evenly routed"
            )
            + "; no work hides their all-to-alls."
        )
    if strategy.expert_launches:
        yield "Each expert's products are launched by themselves, in float8 behind a cast of each operand."
    if strategy.fp8 is not None:
        yield (
            f"Products of the blocks run in float8 with {strategy.fp8} scales, at the speed-up of large products "
            "over half precision. Their inputs are scaled and cast in extra passes."
        )
    if strategy.recompute != "none":
        yield f"The backward pass computes {_AGAIN[strategy.recompute]} again."
    if strategy.offload != "none":
        yield "The optimizer's state lives in the host's memory, and its processors update; their speed is assumed."
    if strategy.pipeline > 1:
        idle = (strategy.pipeline - 1) / strategy.virtual
        all_micro_batches = micro_batches * strategy.accumulate * batches
        bubble = 100 * idle / (idle + all_micro_batches)
        idle_words = f"{bubble:.0f}" if bubble >= 0.5 else "less than 1"
        each = f"{strategy.pipeline} stages"
        if strategy.virtual > 1:
            each += f" of {strategy.virtual} parts each, interleaved,"
        order = {
            "1f1b": f"alternating forward and backward; equal stages wait for {idle_words} % of the passes' time, "
            "others for the slowest",
            "gpipe": f"all forward, then all backward; equal stages wait for {idle_words} % of the passes' time, "
            "others for the slowest",
            "zero_bubble": "gradients of weights where a stage would wait",
        }[strategy.schedule]
        if all_micro_batches > micro_batches:
            yield f"{each} work through {all_micro_batches} micro-batches, {order}."
        else:
            cut = f"split the recorded batch into {micro_batches} micro-batches"
            yield f"{each} {'process the recorded batch at once' if micro_batches == 1 else cut}, {order}."
    elif micro_batches > 1:
        yield f"The recorded batch is split into {micro_batches} sequential micro-batches."
    if strategy.accumulate > 1:
        yield f"A step is {strategy.accumulate} batches as large as the recorded one, whose gradients add up."
    unknown = sum(not item.shapes for item in timed.items)
    if unknown:
        yield f"{unknown} operations of unknown shape (fused kernels) are taken to be whole on each GPU."


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Times of one micro-batch in one stage, each as (low, middle, high)."""

    stage: Stage
    row: int  # Row of the layout's GPU model in arrays
    seconds: Ends  # Time of the micro-batch
    communication_seconds: Ends  # Time of the micro-batch's collectives inside the model
    exposed: Ends  # Part of `communication_seconds` that does not overlap with computation

    def repeated(
        self, last: OverlappedStep, schedule_length: float, *, before: Sequence[OverlappedStep] = (), together: int = 1
    ) -> OverlappedStep:
        """Return the times of a whole step, from the times of its micro-batches.

        Args:
            last: Times of the last micro-batches and the optimizer step, which overlap with communication between
                replicas.
            schedule_length: Time of forward and backward of the whole step, in micro-batches.
            before: Earlier micro-batches that overlap with communication between replicas.
            together: Number of micro-batches in `last`.
        """
        seconds = (schedule_length - together - len(before)) * self.seconds
        micro_batches = [*before, last]
        return OverlappedStep(
            seconds + sum(micro_batch.seconds for micro_batch in micro_batches),
            sum((micro_batch.communication_seconds for micro_batch in micro_batches), np.zeros(3)),
            sum((micro_batch.exposed_seconds for micro_batch in micro_batches), np.zeros(3)),
        )


def stage_factors(stage: Stage, row: int, factors: Ends, host: HostModel) -> Ends:
    """Return (low, middle, high) of a stage's micro-batch time, relative to the middle.

    At each end, either the device or the host is the bottleneck.
    """
    device, launching = float(stage.passes.active_seconds[row]), stage.passes.host_seconds
    exposed = float(stage.passes.seconds[row]) - max(device, launching)  # waits in which host and device alternate
    launched = launching * np.array((host.low_factor, 1.0, host.high_factor))
    ends = np.maximum(device * factors, launched) + exposed  # (3,)
    ratios: Ends = ends / float(stage.passes.seconds[row]) if stage.passes.seconds[row] > 0 else factors
    return ratios


TENSOR_HIDDEN: Final = 0.45  # Share of tensor-parallel communication that overlaps, of perfect overlap with matmuls


def ring_overhead(context: int) -> Ends:
    """Return the additional time of ring attention, relative to even shares of attention, as (low, middle, high).

    The implementation is unknown. Transformer Engine deals out causal attention evenly. Without that, the last of n
    GPUs computes n - 1 whole blocks and half a block, where an even share is n / 2 blocks. torch's ring is even, too,
    but attention took 1.7 to 2 times an even share on four and eight H100 in torchtitan's runs, for unknown reasons.
    """
    return np.array([0.0, 0.0, 1 - 1 / context])


def sharing_collectives(strategy: Strategy) -> dict[str, float]:
    """Return the collectives of tensor parallelism, each with a factor on its message size.

    With one float8 scale per tensor, each GPU casts its part before the all-gather, as in Transformer Engine and
    torchao. With other scales, tensors are assumed to be sent in their own dtype.
    """
    if not strategy.sequence:
        return {"all_reduce": 1.0}
    return {"reduce_scatter": 1.0, "all_gather": 0.5 if strategy.fp8 == "tensorwise" else 1.0}


def stage_times(stage: Stage, links: Links, strategy: Strategy, row: int, factors: Ends) -> StageTimes:
    """Predict the time of a stage's micro-batch on a layout. `factors` on simulated times are (low, middle, high)."""
    communication, unhidden = _communication(stage, links, strategy, row)
    passes, active = stage.passes.seconds[row] * factors, stage.passes.active_seconds[row] * factors
    # The device waits for the host or for the collectives, whichever takes longer.
    exposed = np.maximum(unhidden - (passes - active), 0.0)
    if stage.ring_bytes:
        exposed = exposed + ring_overhead(strategy.context) * stage.attention_seconds[row]
    return StageTimes(stage, row, passes + exposed, communication, exposed)


def _communication(stage: Stage, links: Links, strategy: Strategy, row: int) -> tuple[Ends, Ends]:
    """Return (low, middle, high) of a micro-batch's collectives: of all, and of all that do not overlap."""
    sharing = tensor_group(links, strategy)
    seconds = np.zeros(3)  # (3,): low end, middle, high end
    for operation, share in sharing_collectives(strategy).items():
        sizes = [share * size for size in stage.reduced_bytes]
        seconds = seconds + sum(sharing.collective(operation, sizes), np.zeros(3))
    hidden = np.zeros(3)
    if strategy.overlap_tensor:  # split into `tensor` parts; all except the first part overlap with matmuls
        hidden = TENSOR_HIDDEN * np.minimum((1 - 1 / strategy.tensor) * seconds, stage.passes.active_seconds[row])
    if stage.routed_bytes:
        routed = expert_group(links, strategy).collective("alltoall", stage.routed_bytes)
        seconds = seconds + sum(routed, np.zeros(3))
    if stage.sent_tensors:
        seconds = seconds + stage.sent_tensors * send_seconds(stage.stream_bytes, links, strategy)
    if not stage.ring_bytes:
        return seconds, seconds - hidden
    rings: Ends = sum(context_group(links, strategy).collective("all_gather", stage.ring_bytes), np.zeros(3))
    return seconds + rings, seconds - hidden + np.maximum(rings - stage.attention_seconds[row], 0.0)


def model_parallel_step(
    step: StepPrediction,
    work: Sequence[HostOperation],
    simulated: SimulatedTimeline,
    slowest_stage: StageTimes,
    schedule_length: float,
    layout: Layout,
    seconds: Ends,
    overlapped: OverlappedStep,
) -> StepPrediction:
    """Return the step of a layout with model parallelism.

    `schedule_length` counts micro-batches of the slowest stage. `seconds` are (low, middle, high).
    """
    stage, row = slowest_stage.stage, slowest_stage.row
    low, middle, high = seconds.tolist()
    again = stage.micro_batches - 1
    device = stage.whole.active_seconds[row] + again * stage.passes.active_seconds[row]
    alone = step.seconds * _ratio(
        float(stage.whole.seconds[row] + again * stage.passes.seconds[row]), float(simulated.seconds[row])
    )
    host = stage.whole.host_seconds + again * stage.passes.host_seconds
    forward = _phase_share(stage.work, work, "forward", row) * schedule_length
    waiting = schedule_length * float(slowest_stage.exposed[1]) / (2 if has_backward(work) else 1)
    return replace(
        step,
        gpu=layout.name,
        interval=Interval(min(low, middle), middle, max(high, middle)),
        device_seconds=step.device_seconds * _ratio(float(device), float(simulated.active_seconds[row])),
        host_seconds=step.host_seconds * _ratio(host, simulated.host_seconds),
        forward_seconds=step.forward_seconds * forward + waiting,
        optimizer_seconds=step.optimizer_seconds * _phase_share(stage.work, work, "optimizer", row),
        verdict=_verdict(step, slowest_stage, schedule_length, middle, overlapped),
        communication_seconds=float(
            overlapped.communication_seconds[1] + stage.micro_batches * slowest_stage.communication_seconds[1]
        ),
        added_seconds=middle - alone,
        notes=(*step.notes, *stage.notes),
    )


def _verdict(
    step: StepPrediction, slowest_stage: StageTimes, schedule_length: float, seconds: float, overlapped: OverlappedStep
) -> Verdict | None:
    """Return the bottleneck of a model-parallel step: the largest part of the time of its slowest stage.

    Host and device are distinguished as on one GPU. `links` is communication that does not overlap with computation.
    `bubble` is the time spent waiting for other stages.
    """
    if step.verdict is None:
        return None
    stage, row = slowest_stage.stage, slowest_stage.row
    micro_batches = stage.micro_batches
    alone = float(stage.passes.seconds[row])
    is_host = clearly_less(float(stage.passes.active_seconds[row]), stage.passes.host_seconds)
    spent: dict[Bound, float] = {
        "host" if is_host else "device": micro_batches * alone,
        "links": schedule_length * float(slowest_stage.exposed[1]) + float(overlapped.exposed_seconds[1]),
        "bubble": (schedule_length - micro_batches) * float(slowest_stage.seconds[1]),
    }
    bound_by = greatest(spent, spent.__getitem__)
    idle = 1 - micro_batches * float(stage.passes.active_seconds[row]) / seconds
    gain = 0.5 * spent.get("device", 0.0) / seconds  # with a GPU twice as fast
    return replace(step.verdict, bound_by=bound_by, idle_share=min(max(idle, 0.0), 1.0), gain=gain)


def _phase_share(part: Sequence[HostOperation], whole: Sequence[HostOperation], phase: Phase, row: int) -> float:
    """Return the device time of a phase in a part of the work, relative to the phase in the whole work."""
    of_part, all_of_it = (
        math.fsum(float(each.seconds[row].sum()) for each in work if each.phase == phase) for work in (part, whole)
    )
    return _ratio(of_part, all_of_it)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
