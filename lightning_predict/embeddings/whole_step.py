"""Whole training step of a recommendation model: sharded embedding tables, and dense layers replicated on each GPU.

Each GPU sends the indices of its samples to the GPUs that hold the rows. These GPUs look up the rows. While the vectors
are sent back, each GPU computes the dense layers that do not need vectors (the bottom perceptron of DLRM). In the
backward pass, the gradients of the vectors are sent, while the layers that do not need vectors run backward and their
gradients are all-reduced. Then one kernel launch updates the tables, and the optimizer updates the dense layers.
TorchRec's sharded modules use this order for a single step. (TorchRec's pipelines distribute the indices of the next
batch during a step.)

Computation and communication are two queues (`layouts/overlap.py`); the step time is the critical path through
both. `placement.py` places the tables and predicts their time. The dense layers are simulated from the recorded step,
with its host time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import MICROSECOND, mebibytes_to_bytes
from lightning_predict.embeddings.loads import KINDS
from lightning_predict.embeddings.placement import place_tables
from lightning_predict.embeddings.step import ShardingPlan, in_milliseconds, read_sharding_plan, sharded_step
from lightning_predict.embeddings.step_tables import StepTables, without_tables
from lightning_predict.embeddings.tables import tables_of_trace
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import Interconnect
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.timing import KernelModels
from lightning_predict.layouts.gradients import Bucket, buckets, has_backward, ready_gradients
from lightning_predict.layouts.layout_steps import MultiGpuStep, ends_on_each_gpu
from lightning_predict.layouts.overlap import (
    OVERLAP_COSTS,
    Event,
    Links,
    StepSplitter,
    Transfer,
    WorkSegment,
    events_of,
    overlap_transfers,
)
from lightning_predict.layouts.single_gpu import PredictionContext, SingleGpuSteps
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.memory.rank_memory import RankMemory
from lightning_predict.memory.step_memory import step_memory
from lightning_predict.record.trace import Phase, Trace
from lightning_predict.timeline.simulation import COMPUTE_STREAM, HostOperation, launch_schedule, simulate_timeline
from lightning_predict.timeline.step_prediction import StepPrediction
from lightning_predict.timeline.verdict import Bound, Verdict
from lightning_predict.uncertainty import STRAGGLER_WAIT

AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """Sharding plan for a layout, with the optimizer of the tables (one of `TABLE_OPTIMIZERS`)."""

    plan: ShardingPlan
    optimizer: str


def possible_plans(
    trace: Trace, layout: Layout, embedding: str, *, interconnect: Interconnect, models: KernelModels | None
) -> tuple[ChosenPlan, ...]:
    """Return the sharding plans for a step on a layout. Each GPU has the recorded number of samples.

    Returns:
        Plans that fit in memory, fastest tables first; a single plan if the user specifies one.
    """
    traced = tables_of_trace(trace)
    samples = traced.batch_size * layout.count
    if embedding == AUTO or embedding in KINDS:
        optimizer = table_optimizer(trace)
        placement = place_tables(
            traced.tables,
            layout,
            samples=samples,
            kinds=tuple(KINDS) if embedding == AUTO else (embedding,),
            optimizer=optimizer,
            interconnect=interconnect,
            models=models,
        )
        return tuple(ChosenPlan(plan, optimizer) for plan in placement.plans)
    path = Path(embedding)
    if not path.is_file():
        raise InvalidArgumentError(
            f"strategy: embedding={embedding!r} is not {AUTO}, {', '.join(KINDS)} or a file; write a plan with "
            "lightning-predict shard TRACE --output plan.json."
        )
    assignments, optimizer = read_sharding_plan(path, traced.tables)
    plan = sharded_step(
        assignments, layout, samples=samples, optimizer=optimizer, interconnect=interconnect, models=models
    )
    return (ChosenPlan(plan, optimizer),)


def table_optimizer(trace: Trace) -> str:
    """Return the likely optimizer of the tables, from the recorded state: 0, 1 or 2 numbers per parameter."""
    memory = trace.memory
    if not memory.optimizer_state_bytes or not memory.parameter_bytes:
        return "sgd"
    per_element = memory.optimizer_state_bytes / memory.parameter_bytes
    return "sgd" if per_element < 0.5 else "adagrad" if per_element < 1.5 else "adam"


class ShardedEmbeddings:
    """Steps and memory of layouts with sharded embedding tables. All steps of a layout use the plan of its first step.

    Args:
        strategy: A strategy with `embedding`.
        context: GPUs, models and assumptions of the predictions.
    """

    def __init__(self, strategy: Strategy, context: PredictionContext) -> None:
        self._strategy, self._context = strategy, context
        self._chosen: dict[Layout, ChosenPlan] = {}

    def steps(
        self, single: SingleGpuSteps, steps: Sequence[StepPrediction], layouts: Sequence[Layout]
    ) -> tuple[StepPrediction, ...]:
        """Return the step on each layout, as `layout_steps.on_layouts` does; errors as in `possible_plans`."""
        rows = {gpu: row for row, gpu in enumerate(self._context.gpus)}
        own = [steps[rows[layout.gpu]] for layout in layouts]
        if all(layout.count == 1 for layout in layouts):
            return tuple(own)
        shared = self.shared(single)
        return tuple(
            step if layout.count == 1 else self._best(shared, step, layout).step
            for step, layout in zip(own, layouts, strict=True)
        )

    def shared(self, single: SingleGpuSteps) -> MultiGpuStep:
        """Return the predictor of the step on several GPUs."""
        context = self._context
        return MultiGpuStep(
            single.trace, single.timed, context.gpus, origin=context.origin, models=context.models, host=single.host
        )

    def whole(self, shared: MultiGpuStep, step: StepPrediction, layout: Layout, chosen: ChosenPlan) -> WholeStep:
        """Return the step on a layout under a plan, with a timeline of its parts."""
        row = self._context.gpus.index(layout.gpu)
        return _whole_step(shared, step, row, layout, chosen, self._strategy, self._context.interconnect)

    def _best(self, shared: MultiGpuStep, step: StepPrediction, layout: Layout) -> WholeStep:
        wholes = (self.whole(shared, step, layout, plan) for plan in self._plans(shared.trace, layout))
        best = min(wholes, key=lambda whole: whole.step.seconds)
        self._chosen.setdefault(layout, best.chosen)
        return best

    def _plans(self, trace: Trace, layout: Layout) -> tuple[ChosenPlan, ...]:
        """Return the plans to consider: the layout's known plan with this step's samples, otherwise all plans."""
        known, context = self._chosen.get(layout), self._context
        tables = tables_of_trace(trace)
        if known is not None:
            assigned = known.plan.assignments
            sizes = [(table.rows, table.dim) for table in tables.tables]
            if sizes == [(assignment.table.rows, assignment.table.dim) for assignment in assigned]:
                again = sharded_step(
                    [replace(one, table=table) for one, table in zip(assigned, tables.tables, strict=True)],
                    layout,
                    samples=tables.batch_size * layout.count,
                    optimizer=known.optimizer,
                    interconnect=context.interconnect,
                    models=context.models,
                )
                return (replace(known, plan=again),)
        return possible_plans(
            trace, layout, self._strategy.embedding or AUTO, interconnect=context.interconnect, models=context.models
        )

    def needed_bytes(self, trace: Trace, layout: Layout) -> tuple[float | None, float | None]:
        """Return the peak memory of the GPUs that need the most and the least memory; None if unknown."""
        dense = without_tables(trace)
        if step_memory(dense) is None:
            return None, None
        shared = float(RankMemory(dense).most_filled(layout, Strategy()).bytes_on(layout.gpu))
        most, least = self.memory_bytes(shared, trace, layout)
        return most, least if least < most else None

    def memory_bytes(self, dense_bytes: float, trace: Trace, layout: Layout) -> tuple[float, float]:
        """Return the peak memory of the GPUs that need the most and the least memory.

        Args:
            dense_bytes: Memory of the step without tables (`without_tables`) on this layout.
            trace: The recorded step.
            layout: The GPUs, at least two.
        """
        plan = self._plans(trace, layout)[0].plan
        always = dense_bytes + sum(
            exchange.message_bytes for exchange in plan.exchanges if exchange.carries in _BUFFERED
        )
        return always + max(plan.memory_bytes), always + min(plan.memory_bytes)


_BUFFERED: Final = frozenset({"indices", "vectors", "partial sums"})  # Names of data that need another send buffer


@dataclass(frozen=True, slots=True)
class WholeStep:
    """A whole step on a layout, with its parts in the order of their starts, at the middle of the interval."""

    step: StepPrediction
    events: tuple[Event, ...]
    chosen: ChosenPlan

    @property
    def critical_path(self) -> str:
        """Text that lists the parts on the critical path of at least a microsecond."""
        merged: list[tuple[str, float]] = []
        for event in self.events:
            if event.is_critical and event.seconds >= MICROSECOND:
                if merged and merged[-1][0] == event.name:
                    merged[-1] = (event.name, merged[-1][1] + event.seconds)
                else:
                    merged.append((event.name, event.seconds))
        return ", ".join(f"{name} {in_milliseconds(seconds)}" for name, seconds in merged)


def _whole_step(
    shared: MultiGpuStep,
    step: StepPrediction,
    row: int,
    layout: Layout,
    chosen: ChosenPlan,
    strategy: Strategy,
    interconnect: Interconnect,
) -> WholeStep:
    trace, tables = shared.trace, StepTables(shared.trace)
    host = shared.host(strategy)
    order = _ordered(shared, tables, chosen.plan)
    simulated = simulate_timeline(launch_schedule(order.work, gpus=len(shared.gpus)), host)
    factors = ends_on_each_gpu(step) / shared.simulated.seconds[row]
    links = Links(layout, interconnect, OVERLAP_COSTS.slowdown_on(layout))
    dense = replace(trace, parameters=tables.dense_parameters)
    segments, transfers = _queues(dense, order, StepSplitter(simulated, row, factors), links, chosen.plan, strategy)
    walked = overlap_transfers(segments, transfers)
    low, middle, high = OVERLAP_COSTS.seconds(walked, layout, replicas=layout.count, spread=STRAGGLER_WAIT).tolist()
    events = events_of(segments, transfers, 1)
    factor = float(factors[1])
    device = float(simulated.active_seconds[row]) * factor
    sharded = replace(
        step,
        gpu=layout.name,
        interval=Interval(min(low, middle), middle, max(high, middle)),
        device_seconds=device,
        host_seconds=simulated.host_seconds,
        forward_seconds=_phase_seconds(order.work, "forward", row) * factor,
        optimizer_seconds=_phase_seconds(order.work, "optimizer", row) * factor,
        communication_seconds=float(walked.communication_seconds[1]),
        added_seconds=middle - float(walked.computing_seconds[1]),
        verdict=_verdict(step.verdict, device, simulated.host_seconds, float(walked.exposed_seconds[1]), middle),
    )
    whole = WholeStep(sharded, events, chosen)
    plan = chosen.plan
    notes = (
        f"Embedding tables: {plan.name}, updated by {chosen.optimizer} in the backward pass; {plan.reason}. "
        "Predicted for torch's modules with one kernel per table. Fused look-ups are faster: TorchRec publishes 3 "
        "times their rate for 10 tables, 10 times for 100 (one V100).",
        f"Critical path: {whole.critical_path}; the rest is waiting for the slowest GPU and the slowdown by "
        "overlapping communication.",
    )
    return replace(whole, step=replace(sharded, notes=(*step.notes, *notes)))


def _phase_seconds(work: Sequence[HostOperation], phase: str, row: int) -> float:
    return math.fsum(float(operation.seconds[row].sum()) for operation in work if operation.phase == phase)


def _verdict(verdict: Verdict | None, device: float, host: float, exposed: float, seconds: float) -> Verdict | None:
    """Return the bottleneck of the step: device, host, or communication that does not overlap."""
    if verdict is None:
        return None
    own = max(device, host)
    bound_by: Bound = "links" if exposed > own else "host" if host > device else "device"
    gain = 0.5 * device / seconds if bound_by == "device" else 0.0
    return replace(verdict, bound_by=bound_by, idle_share=min(max(1 - device / seconds, 0.0), 1.0), gain=gain)


@dataclass(frozen=True, slots=True)
class _Order:
    """Work of one GPU in launch order. Positions count operations from the start of the step."""

    work: tuple[HostOperation, ...]  # All operations: lookups first, the update of the tables after the backward pass
    free: int  # Position after the forward operations that need no looked-up vector
    gradients: int | None  # Position at which the gradients of the vectors are ready; None without a backward pass
    update: int | None  # Position of the update of the tables; None without a backward pass


LOOK_UP: Final = "look-ups"
UPDATE: Final = "update of the tables"


def _ordered(shared: MultiGpuStep, tables: StepTables, plan: ShardingPlan) -> _Order:
    operations = shared.trace.operations
    dependent, ready = tables.reads_vectors(), 0
    trains = has_backward(shared.work)
    if trains:
        ready = tables.gradients_ready()
    first: list[HostOperation] = [_table_launch(LOOK_UP, "forward", max(plan.forward_seconds), shared)]
    behind: list[HostOperation] = []
    early, late = list[HostOperation](), list[HostOperation]()
    update: list[HostOperation] = []
    for entry in shared.work:
        index = entry.operation
        if index is None or index in tables.operations:
            continue
        if entry.phase == "optimizer":
            update.append(replace(entry, seconds=entry.seconds * tables.dense_share(operations[index])))
        elif entry.phase == "forward":
            (behind if index in dependent else first).append(entry)
        elif index <= ready:
            early.append(entry)
        else:
            late.append(entry)
    work = [*first, *behind, *early, *late]
    if not trains:
        return _Order((*work, *update), len(first), None, None)
    at_update = len(work)
    work += [_table_launch(UPDATE, "backward", max(plan.backward_seconds), shared), *update]
    return _Order(tuple(work), len(first), len(first) + len(behind) + len(early), at_update)


def _table_launch(name: str, phase: Phase, seconds: float, shared: MultiGpuStep) -> HostOperation:
    """Return a kernel launch that takes `seconds` on every GPU."""
    each: Array = np.full((len(shared.gpus), 1), seconds)
    return HostOperation(name=name, phase=phase, seconds=each, streams=(COMPUTE_STREAM,))


def _queues(
    trace: Trace, order: _Order, splitter: StepSplitter, links: Links, plan: ShardingPlan, strategy: Strategy
) -> tuple[list[WorkSegment], list[Transfer]]:
    """Return the segments and transfers of a step."""
    full = list(buckets(ready_gradients(trace, order.work), cap_bytes=mebibytes_to_bytes(strategy.bucket_cap_mb)))
    marks = {1, order.free, *(bucket.ready_after for bucket in full)}
    if order.gradients is not None and order.update is not None:
        marks |= {order.gradients, order.update, order.update + 1}
    cuts = sorted(marks)
    done = {cut: position + 1 for position, cut in enumerate(cuts)}  # number of segments that are finished at a mark
    sent = _transfers(order, plan, full, links)
    ordered = sorted(
        ((done[mark] if mark else 0, transfer) for mark, several in sent.items() for transfer in several),
        key=lambda pair: pair[0],
    )
    transfers = [replace(transfer, after=after) for after, transfer in ordered]

    def last(*names: str) -> int | None:
        return max((i for i, transfer in enumerate(transfers) if transfer.name in names), default=None)

    waits = {0: last("all-to-all of indices"), done[order.free]: last(*_FORWARD)}
    if order.update is not None:
        waits[done[order.update]] = last(*_BACKWARD)
        waits[done[order.update + 1]] = len(transfers) - 1 if transfers else None
    seconds = splitter.segments(cuts)
    segments = []
    for position, each in enumerate(seconds):
        begin = cuts[position - 1] if position else 0
        segments.append(WorkSegment(each, waits_for=waits.get(position), name=_name(order, begin)))
    return segments, transfers


def _name(order: _Order, begin: int) -> str:
    if begin < order.free:
        return LOOK_UP if begin == 0 else "layers that need no vectors"
    if order.update is not None and begin >= order.update:
        return UPDATE if begin == order.update else "dense update"
    if order.gradients is not None and begin >= order.gradients:
        return "backward pass beside the gradients' exchange"
    return "layers on the vectors"


_FORWARD: Final = ("all-to-all of vectors", "reduce-scatter of partial sums")
_BACKWARD: Final = ("all-to-all of gradients", "all-gather of gradients of the sums")
_NAMES: Final[Mapping[str, str]] = {
    "alltoall": "all-to-all",
    "reduce_scatter": "reduce-scatter",
    "all_gather": "all-gather",
    "all_reduce": "all-reduce",
}


def _transfers(order: _Order, plan: ShardingPlan, full: Sequence[Bucket], links: Links) -> Mapping[int, list[Transfer]]:
    """Return the transfers by the position of the operation after which they may start; sets no `after`."""
    by_mark: dict[int, list[Transfer]] = {}
    dense = links.collective("all_reduce", [bucket.size_bytes for bucket in full])
    for bucket, seconds in zip(full, dense, strict=True):
        by_mark.setdefault(bucket.ready_after, []).append(Transfer(seconds, 0, "all-reduce of dense gradients"))
    when = {
        "indices": 0,
        "vectors": 1,
        "partial sums": 1,
        "gradients": order.gradients,
        "gradients of the sums": order.gradients,
        "dense gradients": None if order.update is None else order.update + 1,
    }
    for exchange in plan.exchanges:
        mark = when[exchange.carries]
        if mark is not None:
            seconds = np.array([exchange.time.low, exchange.time.middle, exchange.time.high])
            name = f"{_NAMES[exchange.operation]} of {exchange.carries}"
            name = name.replace("dense gradients", "gradients of copied tables")
            by_mark.setdefault(mark, []).insert(0, Transfer(seconds, 0, name))
    return by_mark
