"""Turn one GPU's step into that of a layout: what the GPUs exchange, and how much of it is exposed.

Each GPU runs the recorded step on samples of its own. The simulated step of one GPU is cut where gradients become ready
(DDP, ZeRO) or where another unit's parameters are needed (FSDP); `overlap.py` walks through the segments with the
collectives at the same time. Where several GPUs hold the model once, a replica is the slowest stage of it
(`model_parallel.py`). An optimizer whose state lies in the memory of the host is `update_seconds`. A layout of one GPU
is the step itself, exactly. Example::

    steps = iterations(trace, timed, gpus)
    on_layouts(trace, timed, gpus, steps, [layout_of("8xL4")], strategy_of("ddp"))[0].added_seconds
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final, final

import numpy as np

from lightning_predict.distributed.gradients import (
    ROOT,
    Visit,
    buckets,
    has_backward,
    parameter_bytes,
    ready_gradients,
    trained_elements,
    unit_bytes,
    visits,
)
from lightning_predict.distributed.overlap import (
    OVERLAP_COSTS,
    WAITS,
    Cutter,
    Ends,
    Links,
    OverlapCosts,
    Transfer,
    Walked,
    WorkSegment,
    narrowed,
    walk,
)
from lightning_predict.distributed.strategy import Strategy, data_group, expert_data_group
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.extensions.parallel.experts import is_of_expert
from lightning_predict.extensions.parallel.model_parallel import (
    Stage,
    divided_step,
    model_stages,
    needs_blocks,
    pace_of,
    stage_factors,
)
from lightning_predict.extensions.parallel.pipeline_parallel import idle_share, overlapping_micro_batches, turns
from lightning_predict.extensions.parallel.tensor_parallel import ProblemClock, SplitModel, WorkCutter, split_model
from lightning_predict.gpus.layouts import Layout, in_domains
from lightning_predict.gpus.records import Gpu
from lightning_predict.interval import Interval
from lightning_predict.kernels.choice import TimedWork, timed_work
from lightning_predict.kernels.fabric import CATALOGUE, Interconnect, check_links, link_notes
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.timing import KernelModels
from lightning_predict.timeline.anchoring import anchor
from lightning_predict.timeline.host import UNKNOWN_HOST, Host, HostModel
from lightning_predict.timeline.iteration import Iteration
from lightning_predict.timeline.simulation import Launching, launch_order, launchings, run_queues
from lightning_predict.timeline.whole_steps import SameGpuCheck, corrected_iterations, corrected_work, same_gpu_check
from lightning_predict.tracing.collectives import without_collectives
from lightning_predict.tracing.trace import DTYPE_BYTES, Trace
from lightning_predict.units import gigabytes_to_bytes, mebibytes_to_bytes

# --- An optimizer's state in the memory of the host (ZeRO-Offload)

HOST_BYTES_PER_SECOND: Final = gigabytes_to_bytes(200)
"""Memory bandwidth that the update reaches on the processors of a machine. An assumption: half of what two sockets with
eight channels of DDR4-3200 have."""

PCIE_SHARE: Final = 0.8
"""Share of a PCIe link's rate that copies from pinned memory reach. An assumption."""

OPTIMIZER_STATES, STATE_BYTES = 3, 4
"""Adam's two moments and the copy of the parameters that it updates, in float32."""

HOST_SPREAD: Final = 2.0
"""Factor up and down, as machines differ in memory channels and processors. An assumption."""


def update_seconds(*, trained_bytes: float, state_bytes: float, gpu: Gpu, gpus_per_node: int) -> Ends:
    """Time an update on the host; (low, middle, high).

    ZeRO-Offload (Ren et al., 2021) keeps the optimizer's state in the memory of the host, whose processor updates it.
    Gradients go down to the host, new parameters up again, over each GPU's own PCIe link; the processor reads and
    writes the state of its machine's GPUs. Gradients go down behind the backward pass; the update and the way up stand
    behind it.

    Args:
        trained_bytes: One GPU's share of the parameters, which go up, and of the gradients, which went down.
        state_bytes: Its share of the optimizer's state, copies of the parameters included, read and written once.
        gpu: For its link.
        gpus_per_node: GPUs whose shares one machine's processors update.
    """
    copying = trained_bytes / (PCIE_SHARE * gpu.pcie_bytes_per_second)
    traffic = 2 * state_bytes + trained_bytes  # state in both directions, gradients in one
    computing = traffic * gpus_per_node / HOST_BYTES_PER_SECOND
    return (copying + computing) * np.array([1 / HOST_SPREAD, 1.0, HOST_SPREAD])


# --- Steps of layouts


def on_layouts(
    trace: Trace,
    timed: TimedWork,
    gpus: Sequence[Gpu],
    steps: Sequence[Iteration],
    layouts: Sequence[Layout],
    strategy: Strategy,
    *,
    interconnect: Interconnect = CATALOGUE,
    origin: Gpu | None = None,
    models: KernelModels | None = None,
    host: Host = UNKNOWN_HOST,
) -> tuple[Iteration, ...]:
    """Return the step on each layout.

    Args:
        trace: The step of one GPU.
        timed: Its work with device seconds, rows in the order of `gpus`.
        gpus: The GPUs of the layouts, each once.
        steps: The step on one of each.
        layouts: Where to run it; each replica of the model with as many samples as the trace.
        strategy: How they share the model.
        interconnect: What is known of the links.
        origin: GPU that the trace was recorded on.
        models: Trained models, which time the parts of a model that several GPUs hold; None uses rooflines instead.
        host: What is assumed of the host of the GPUs, as in `steps`.
    """
    rows = {gpu.name: row for row, gpu in enumerate(gpus)}
    own = [rows[layout.gpu.name] for layout in layouts]
    if all(layout.count == 1 for layout in layouts):
        return tuple(steps[row] for row in own)
    shared = SharedStep(trace, timed, gpus, origin=origin, models=models, host=host)
    return tuple(
        shared.on(layout, steps[row], row, strategy, interconnect) for layout, row in zip(layouts, own, strict=True)
    )


@final
class SharedStep:
    """One step, simulated on each GPU, ready to be shared out.

    Raises:
        InvalidArgumentError: The trace knows no parameters.
    """

    def __init__(
        self,
        trace: Trace,
        timed: TimedWork,
        gpus: Sequence[Gpu],
        *,
        origin: Gpu | None = None,
        models: KernelModels | None = None,
        host: Host = UNKNOWN_HOST,
    ) -> None:
        self._trace, self._timed, self._gpus, self._models = trace, timed, gpus, models
        self._work = launchings(trace, timed, timed.seconds)
        if has_backward(self._work) and not trace.parameters:
            raise InvalidArgumentError(
                "The trace knows no parameters, so that what several GPUs exchange is not known; record it with "
                "lightning_predict.capture or the callback, or ask for one GPU."
            )
        self._stages: dict[tuple[Strategy, float], tuple[Stage, ...]] = {}
        self._models_of_blocks: dict[bool, SplitModel] = {}
        self._cutters: dict[bool, WorkCutter] = {}
        self._clock = ProblemClock(gpus, models)
        self._host = anchor(trace, timed, origin, host).host
        self._simulated = run_queues(launch_order(self._work, gpus=len(gpus)), self._host)

    def on(
        self,
        layout: Layout,
        step: Iteration,
        row: int,
        strategy: Strategy,
        interconnect: Interconnect = CATALOGUE,
        *,
        overlap_costs: OverlapCosts = OVERLAP_COSTS,
    ) -> Iteration:
        """Return the step on a layout, from the step on one of its GPUs, which stands at `row`."""
        if layout.count == 1:
            return step.accumulated(strategy.accumulate)
        check_links(layout)
        named, layout = layout, in_domains(layout)
        if not strategy.is_whole:
            noted = replace(step, notes=(*step.notes, *link_notes(layout, interconnect)))
            return replace(self._divided(layout, noted, row, strategy, interconnect, overlap_costs), gpu=named.name)
        walked = self.walked(layout, step, row, strategy, interconnect, overlap_costs=overlap_costs)
        replicas = strategy.replicas(layout)
        low, middle, high = overlap_costs.seconds(
            walked, np.full(3, step.seconds), layout, replicas=replicas, spread=WAITS
        )
        added = float(middle - step.seconds)
        verdict = step.verdict
        if verdict is not None:
            own = step.device_seconds, step.host_seconds
            verdict = verdict.shared(device=own[0], host=own[1], exposed=max(added, 0.0), seconds=float(middle))
        return replace(
            step,
            gpu=named.name,
            interval=Interval(float(min(low, middle)), float(middle), float(max(high, middle))),
            communication_seconds=float(walked.communication_seconds[1]),
            added_seconds=added,
            verdict=verdict,
            notes=(*step.notes, *link_notes(layout, interconnect)),
        )

    def walked(
        self,
        layout: Layout,
        step: Iteration,
        row: int,
        strategy: Strategy,
        interconnect: Interconnect = CATALOGUE,
        *,
        overlap_costs: OverlapCosts = OVERLAP_COSTS,
    ) -> Walked:
        """Return the step's segments with the collectives that overlap them, at both ends and in the middle."""
        strategy.replicas(layout)
        links = Links(layout, interconnect, overlap_costs.slowdown_on(layout))
        cutter = Cutter(self._simulated, row, narrowed_ends(step) / self._simulated.seconds[row])
        return _exchanged(self._trace, self._work, cutter, links, strategy)

    def split(self, blocks: bool) -> SplitModel:
        """Return the model of the trace, with its blocks or without.

        Raises:
            InvalidArgumentError: It has no transformer blocks.
        """
        if blocks not in self._models_of_blocks:
            self._models_of_blocks[blocks] = split_model(self._trace, needs_blocks=blocks)
        return self._models_of_blocks[blocks]

    def cutter(self, blocks: bool) -> WorkCutter:
        """Return what cuts the work of the model, with its blocks or without."""
        if blocks not in self._cutters:
            self._cutters[blocks] = WorkCutter(self._trace, self._timed, self.split(blocks), self._clock)
        return self._cutters[blocks]

    @property
    def clock(self) -> ProblemClock:
        """The models and assumptions that time the parts of its work."""
        return self._clock

    @property
    def trace(self) -> Trace:
        """The step of one GPU."""
        return self._trace

    @property
    def timed(self) -> TimedWork:
        """Its work with device seconds."""
        return self._timed

    @property
    def gpus(self) -> Sequence[Gpu]:
        """The GPUs, each once."""
        return self._gpus

    @property
    def models(self) -> KernelModels | None:
        """Trained models; None uses rooflines instead."""
        return self._models

    @property
    def seconds(self) -> Array:
        """The step on each GPU as it was simulated, shape (gpus,)."""
        return self._simulated.seconds

    @property
    def work(self) -> tuple[Launching, ...]:
        """The step's operations in the order of the host."""
        return self._work

    def host(self, strategy: Strategy, overlap_costs: OverlapCosts = OVERLAP_COSTS) -> HostModel:
        """Return the host of each GPU; of a step that a framework divides, a slower one."""
        if strategy.is_whole or self._trace.has_measured_kernels:
            return self._host
        return replace(self._host, factor=self._host.factor * overlap_costs.framework_host)

    def _divided(
        self,
        layout: Layout,
        step: Iteration,
        row: int,
        strategy: Strategy,
        interconnect: Interconnect,
        overlap_costs: OverlapCosts,
    ) -> Iteration:
        """Return the step where several GPUs hold the model once, or cut its batch: the slowest stage sets the pace."""
        group = data_group(layout, strategy)
        host = self.host(strategy, overlap_costs)
        alike = (_of_stages(strategy), host.factor)
        if alike not in self._stages:
            blocks = needs_blocks(strategy)
            model, work = self.split(blocks), self.cutter(blocks)
            self._stages[alike] = model_stages(
                self._trace, self._timed, self._gpus, host, self._models, strategy, model=model, cutter=work
            )
        device_factors = _device_ends(step, strategy) / self._simulated.seconds[row]
        paces = [
            pace_of(stage, layout, strategy, interconnect, row, stage_factors(stage, row, device_factors, host))
            for stage in self._stages[alike]
        ]
        pace = max(paces, key=lambda pace: float(pace.seconds[1]))
        factors = stage_factors(pace.stage, row, device_factors, host)
        links = Links(group.layout, interconnect, overlap_costs.slowdown_on(layout), group.groups_per_node)
        alike_experts = expert_data_group(layout, strategy)
        experts = replace(links, layout=alike_experts.layout, groups_per_node=alike_experts.groups_per_node)
        together = overlapping_micro_batches(strategy, pace.stage.micro_batches)
        cutter = Cutter(pace.stage.whole, row, factors, pace.exposed, micro_batches=together)
        trace = replace(self._trace, parameters=pace.stage.parameters)
        each = turns(
            [float(own.seconds[1]) for own in paces],
            pace.stage.micro_batches,
            virtual=strategy.virtual,
            idle=idle_share(strategy, float(pace.stage.weight_share[row])),
        )
        # A pipeline keeps the parameters that it gathered; else each micro-batch gathers them again.
        is_sharded = strategy.split.parameters and strategy.pipeline == 1
        before = list[Walked]()
        if is_sharded and pace.stage.micro_batches > 1:
            alone = Cutter(pace.stage.passes, row, factors, pace.exposed)
            before = [_exchanged(trace, pace.stage.pass_work, alone, links, strategy)] * (pace.stage.micro_batches - 1)
        last = _exchanged(trace, pace.stage.work, cutter, links, strategy, experts)
        walked = pace.repeated(last, each, before=before, together=together)
        seconds = overlap_costs.seconds(walked, walked.seconds, layout, replicas=layout.count, spread=WAITS)
        return divided_step(step, self._work, self._simulated, pace, each, layout, seconds, walked)


_NOT_OF_STAGES: Final[Mapping[str, Any]] = {
    "bucket_cap_mb": 25.0,
    "shard": None,
    "overlap_grad_reduce": True,
    "overlap_param_gather": False,
    "overlap_tensor": False,
    "param_dtype": None,
}
"""Options without effect on what a stage runs; strategies that differ by them alone share their stages."""


def _of_stages(strategy: Strategy) -> Strategy:
    """Return the strategy as far as it decides on what a stage runs."""
    if strategy.offload != "none":
        return strategy
    return replace(strategy, **_NOT_OF_STAGES, data="fsdp" if strategy.split.parameters else "ddp")


def narrowed_ends(step: Iteration) -> Ends:
    """Return the ends of a step of one GPU as those of a step on many GPUs."""
    return narrowed(_ends(step))


def _device_ends(step: Iteration, strategy: Strategy) -> Ends:
    """Return the ends of a step whose model is divided; in float8 as wide as on one GPU.

    What narrows them was read off steps in 16 bits. Float8 hangs on the container: Llama 3.1 8B on eight H100 took
    10.9 s in one of NeMo's and 9.7 s in a later one.
    """
    return narrowed_ends(step) if strategy.fp8 is None else _ends(step)


def _ends(step: Iteration) -> Ends:
    return np.array([step.low_seconds, step.seconds, step.high_seconds])


def _exchanged(
    trace: Trace,
    work: Sequence[Launching],
    cutter: Cutter,
    links: Links,
    strategy: Strategy,
    experts: Links | None = None,
) -> Walked:
    """Return the work with what the replicas exchange meanwhile; without a backward pass that is nothing.

    Args:
        trace: With the parameters of one GPU.
        work: Its operations.
        cutter: Cuts their time.
        links: The links among replicas.
        strategy: How the GPUs share.
        experts: The links among those that hold the same experts; None: among all.
    """
    if not has_backward(work):
        (whole,) = cutter.segments([])
        return Walked(whole, np.zeros(3), np.zeros(3))
    if strategy.split.parameters:
        return _sharded(trace, work, cutter, links, strategy)
    return _bucketed(trace, work, cutter, {False: links, True: experts or links}, strategy)


def _bucketed(
    trace: Trace,
    work: Sequence[Launching],
    cutter: Cutter,
    links_of: Mapping[bool, Links],
    strategy: Strategy,
) -> Walked:
    """Time data parallelism with whole parameters on every GPU.

    DDP: all_reduce of each bucket behind the backward pass, or all of them after it. ZeRO 1 and 2: each GPU updates its
    share of the parameters, for which it needs its share of the gradients' sums alone (reduce_scatter), and all gather
    what was updated afterwards; stage 1 keeps the other gradients in memory. Gradients of experts pass among the GPUs
    that hold the same ones alone.

    Args:
        trace: With the parameters of one GPU.
        work: Its operations.
        cutter: Cuts their time.
        links_of: The links among replicas, and those among GPUs that hold the same experts, by whether they are these.
        strategy: How the GPUs share.
    """
    gradients, cap_bytes = ready_gradients(trace, work), mebibytes_to_bytes(strategy.bucket_cap_mb)
    apart = strategy.expert > 1  # else all are exchanged alike, and together
    exchanged = [
        bucket
        for is_expert in (False, True)
        for bucket in buckets([one for one in gradients if (apart and one.is_expert) == is_expert], cap_bytes=cap_bytes)
    ]
    exchanged.sort(key=lambda bucket: bucket.after)
    update = _update(work)
    durations = cutter.segments([*(bucket.after for bucket in exchanged), update])
    *before, last = durations
    last = _shared_update(last, cutter.busy(update), trace, links_of[False], strategy)
    operation = "reduce_scatter" if strategy.split.state else "all_reduce"
    share = _reduced_share(trace, strategy)
    seconds = [
        links_of[apart and bucket.is_expert].collective(operation, [share * bucket.size_bytes])[0]
        for bucket in exchanged
    ]
    ready = range(1, len(seconds) + 1) if strategy.overlap_grad_reduce else [len(before)] * len(seconds)
    gathers = list[Ends]()
    if strategy.split.state:
        for is_expert, links in links_of.items():
            size = sum(bucket.size_bytes for bucket in exchanged if (apart and bucket.is_expert) == is_expert)
            gathers += links.collective("all_gather", [size]) if size else []
    # Behind the forward pass: what the update before this step left to be gathered comes first.
    early = gathers if strategy.overlap_param_gather else []
    transfers = [Transfer(each, after=0) for each in early]
    transfers += [Transfer(each, after=after) for each, after in zip(seconds, ready, strict=True)]
    segments = [*map(WorkSegment, before), WorkSegment(last, waits_for=len(transfers) - 1 if transfers else None)]
    transfers += [] if early else [Transfer(each, after=len(segments)) for each in gathers]
    return walk(segments, transfers)


def _shared_update(last: Ends, busy: Ends, trace: Trace, links: Links, strategy: Strategy) -> Ends:
    """Return the time behind the backward pass where each GPU updates its share, or its machine's processors do."""
    if not strategy.split.state or not busy.any():
        return last
    # GPUs that hold the same experts are as many times fewer as the experts are dealt out.
    dealt = _expert_share(trace) * (min(strategy.expert, _sharing(links, strategy)) - 1)
    count = _sharing(links, strategy) / (1 + dealt)
    if strategy.offload == "none":
        shared: Ends = last - busy * (1 - 1 / count)
        return shared
    trained = sum(parameter_bytes(one) for one in trace.parameters if one.requires_grad)
    return (
        last
        - busy
        + update_seconds(
            trained_bytes=trained / count,
            state_bytes=OPTIMIZER_STATES * trained_elements(trace) * STATE_BYTES / count,
            gpu=links.layout.gpu,
            gpus_per_node=links.layout.gpus_per_node * links.groups_per_node,
        )
    )


def _expert_share(trace: Trace) -> float:
    """Divide the trained parameters of experts by all; 0 without any."""
    own = sum(parameter_bytes(one) for one in trace.parameters if one.requires_grad and is_of_expert(one))
    everything = sum(parameter_bytes(one) for one in trace.parameters if one.requires_grad)
    return own / everything if everything else 0.0


def _sharing(links: Links, strategy: Strategy) -> int:
    """Count the GPUs of a data-parallel group that split what each would hold whole."""
    if not strategy.split.inside_machines:
        return links.layout.count
    return min(strategy.shard or links.layout.gpus_per_node, links.layout.count)


def _reduced_share(trace: Trace, strategy: Strategy) -> float:
    """Divide the size of what is exchanged of the gradients by that of the gradients."""
    dtype = strategy.reduce_dtype or strategy.param_dtype
    own = sum(parameter_bytes(one) for one in trace.parameters if one.requires_grad)
    return 1.0 if dtype is None or not own else trained_elements(trace) * DTYPE_BYTES[dtype] / own


def _sharded(
    trace: Trace,
    work: Sequence[Launching],
    cutter: Cutter,
    links: Links,
    strategy: Strategy,
) -> Walked:
    """Time a step whose parameters lie in shares.

    FSDP: a unit's parameters are gathered while the unit before it computes, in the forward and again in the backward
    pass (of every batch), after which its gradients are scattered. `hybrid` does so inside each machine, or inside
    groups of `shard` GPUs, and adds up the shares of the groups. A pipeline of torch's keeps what it gathered, and
    scatters all gradients of a stage behind its last backward pass (`torch.distributed.pipelining.stage`).
    """
    units = unit_bytes(trace)
    stops = list(visits(work, units))
    group = _sharding_links(links, strategy)
    gathered, reduced = _gathered_share(trace, strategy), _reduced_share(trace, strategy)
    gathered_bytes = [size * gathered for size in units.values()]
    reduced_bytes = [size * reduced for size in units.values()]
    gathers = dict(zip(units, group.collective("all_gather", gathered_bytes), strict=True))
    scatters = dict(zip(units, group.collective("reduce_scatter", reduced_bytes), strict=True))
    copies = links.layout.count // group.layout.count
    if copies > 1:
        across = _across(links, group)
        added = across.collective("all_reduce", [size / group.layout.count for size in reduced_bytes])
        scatters = {unit: seconds + more for (unit, seconds), more in zip(scatters.items(), added, strict=True)}
    update = _update(work)
    head, *durations = cutter.segments([*(visit.begin for visit in stops), update])
    durations[-1] = _shared_update(durations[-1], cutter.busy(update), trace, links, strategy)
    last = _last_visits(stops)
    segments, transfers, gathered_root = [WorkSegment(head)], list[Transfer](), False
    is_piped, late = strategy.pipeline > 1, list[Array]()
    ready: dict[int, int] = {}

    def gather(position: int, after: int) -> None:
        """Gather for the visit at this position; the root's parameters stay to the end of its backward pass."""
        nonlocal gathered_root
        if position >= len(stops) or position in ready or (is_piped and stops[position].is_backward):
            return
        unit = stops[position].unit
        if unit != ROOT or not gathered_root:
            ready[position] = len(transfers)
            transfers.append(Transfer(gathers.get(unit, np.zeros(3)), after=after))
        gathered_root = gathered_root or unit == ROOT

    for position, visit in enumerate(stops):
        gather(position, 0 if position == 0 else len(segments))
        gather(position + 1, len(segments))  # the host runs ahead; two units' parameters are there at most
        segments.append(WorkSegment(durations[position], waits_for=ready.get(position)))
        if position in last:
            seconds = scatters.get(visit.unit, np.zeros(3))
            if is_piped:
                late.append(seconds)
            else:
                transfers.append(Transfer(seconds, after=len(segments)))
            gathered_root = gathered_root and visit.unit != ROOT
    transfers += [Transfer(seconds, after=len(segments)) for seconds in late]
    segments.append(WorkSegment(durations[-1], waits_for=len(transfers) - 1 if transfers else None))
    return walk(segments, transfers)


def _sharding_links(links: Links, strategy: Strategy) -> Links:
    """Return the links among the GPUs that split the parameters."""
    if not strategy.split.inside_machines:
        return links
    count = _sharing(links, strategy)
    inside = min(count, links.layout.gpus_per_node)
    own = replace(links.layout, gpus_per_node=inside, nodes=count // inside)
    return replace(links, layout=own, groups_per_node=links.groups_per_node * (links.layout.gpus_per_node // inside))


def _across(links: Links, group: Links) -> Links:
    """Return the links among GPUs that hold the same share, one of each sharding group."""
    layout, own = links.layout, group.layout
    inside = max(layout.gpus_per_node // own.gpus_per_node, 1)
    copies = layout.count // own.count
    inside = inside if copies % inside == 0 else 1
    same = replace(layout, gpus_per_node=inside, nodes=copies // inside)
    return replace(links, layout=same, groups_per_node=links.groups_per_node * (layout.gpus_per_node // inside))


def _gathered_share(trace: Trace, strategy: Strategy) -> float:
    """Divide the size of what is gathered of the parameters by that of the parameters."""
    own = sum(map(parameter_bytes, trace.parameters))
    elements = sum(prod(one.shape) for one in trace.parameters)
    return 1.0 if strategy.param_dtype is None or not own else elements * DTYPE_BYTES[strategy.param_dtype] / own


def _last_visits(stops: Sequence[Visit]) -> set[int]:
    """Find each unit's last visit in the backward pass of each batch, when its gradients are complete."""
    last: dict[tuple[int, str], int] = {}
    batch, was_backward = 0, False
    for position, visit in enumerate(stops):
        batch += was_backward and not visit.is_backward
        was_backward = visit.is_backward
        if visit.is_backward:
            last[batch, visit.unit] = position
    return set(last.values())


def _update(work: Sequence[Launching]) -> int:
    """Find where the optimizer begins, after the last backward operation."""
    return max(index for index, operation in enumerate(work) if operation.phase == "backward") + 1


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """The GPUs, models and assumptions that all steps of one prediction share.

    Attributes:
        gpus: The GPUs, each once.
        origin: GPU that the steps were recorded on; None off CUDA and where the catalogue lacks it.
        models: Trained models; None uses rooflines instead.
        method: How kernels are predicted, see `kernels/choice.py`.
        host: What is assumed of the host of the GPUs.
        interconnect: What is known of the links between GPUs.
    """

    gpus: tuple[Gpu, ...]
    origin: Gpu | None
    models: KernelModels | None
    method: str
    host: Host
    interconnect: Interconnect


@final
@dataclass(frozen=True, slots=True)
class SingleSteps:
    """A recorded step as that of one process, and what it takes on one of each GPU.

    Attributes:
        recorded: The step as it was recorded.
        trace: The step without what processes exchanged.
        timed: Its work with device seconds as the check corrects them, rows in the order of the setting's GPUs.
        host: What is assumed of their host, with the correction of the check.
        steps: One Iteration per GPU.
        check: The GPU in use, predicted too; None if nothing was measured on it.
    """

    recorded: Trace
    trace: Trace
    timed: TimedWork
    host: Host
    steps: tuple[Iteration, ...]
    check: SameGpuCheck | None


def single_steps(trace: Trace, setting: Setting) -> SingleSteps:
    """Return the step on one of each GPU."""
    alone = without_collectives(trace)
    check = same_gpu_check(alone, setting.origin, setting.models)
    timed = timed_work(alone, setting.gpus, origin=setting.origin, models=setting.models, method=setting.method)
    steps = corrected_iterations(alone, timed, setting.gpus, origin=setting.origin, check=check, host=setting.host)
    work, factor = corrected_work(alone, timed, check)
    return SingleSteps(trace, alone, work, setting.host.scaled(factor), steps, check)


def shared_steps(
    single: SingleSteps, steps: Sequence[Iteration], layouts: Sequence[Layout], strategy: Strategy, setting: Setting
) -> tuple[Iteration, ...]:
    """Return the step on layouts."""
    return on_layouts(
        single.trace,
        single.timed,
        setting.gpus,
        steps,
        layouts,
        strategy,
        interconnect=setting.interconnect,
        origin=setting.origin,
        models=setting.models,
        host=single.host,
    )
