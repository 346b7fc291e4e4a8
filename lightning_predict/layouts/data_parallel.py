"""Data parallelism: schedules the communication between replicas together with the work of a step.

The simulated step of one GPU is split where gradients become ready (DDP, ZeRO), or where parameters of another unit are
needed (FSDP). `overlap.py` then schedules these segments together with the collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lightning_predict.base.units import mebibytes_to_bytes
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.roofline import DELIVERED_SHARE, LINK_SHARE
from lightning_predict.layouts.gradients import (
    ROOT,
    UnitSegment,
    buckets,
    has_backward,
    is_of_expert,
    parameter_bytes,
    ready_gradients,
    trainable_parameter_count,
    unit_bytes,
    unit_segments,
)
from lightning_predict.layouts.overlap import (
    Ends,
    Links,
    OverlappedStep,
    StepSplitter,
    Transfer,
    WorkSegment,
    overlap_transfers,
)
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.record.trace import Parameter, Trace
from lightning_predict.timeline.simulation import HostOperation
from lightning_predict.uncertainty import ASSUMED_SPREAD

# --- Optimizer state in host memory (ZeRO-Offload)

HOST_BYTES_PER_SECOND: Final = 200_000_000_000.0  # Memory bandwidth of the optimizer step on the CPUs of a machine
OPTIMIZER_STATES, STATE_BYTES = 3, 4  # States per parameter (Adam's moments, master copy), bytes of each


def update_seconds(*, trained_bytes: float, state_bytes: float, gpu: Gpu, gpus_per_node: int) -> Ends:
    """Return the time of an optimizer step on the host as (low, middle, high).

    ZeRO-Offload (Ren et al., 2021) keeps the optimizer state in host memory, where the CPU updates the state. Gradients
    are copied to the host before the update, and parameters are copied back after the update. Each GPU uses its own
    PCIe link. The CPU reads and writes the state of all GPUs of the machine.

    Args:
        trained_bytes: Size of the parameters that one GPU copies back, which is also the size of its gradients.
        state_bytes: Size of one GPU's share of the optimizer state, including master parameters.
        gpu: The GPU; its PCIe bandwidth counts.
        gpus_per_node: Number of GPUs that share the CPUs of one machine.
    """
    copying = trained_bytes / (LINK_SHARE * gpu.pcie_bytes_per_second)
    traffic = 2 * state_bytes + trained_bytes  # state is read and written, gradients are read
    computing = traffic * gpus_per_node / HOST_BYTES_PER_SECOND
    return (copying + computing) * np.array([1 / ASSUMED_SPREAD, 1.0, ASSUMED_SPREAD])


# --- Communication between replicas


def _copy_seconds(moved_bytes: float, gpu: Gpu) -> float:
    """Return the time of a copy that reads and writes `moved_bytes` in total."""
    return moved_bytes / (DELIVERED_SHARE * gpu.dram_bytes_per_second)


def overlap_with_collectives(
    trace: Trace,
    work: Sequence[HostOperation],
    splitter: StepSplitter,
    links: Links,
    strategy: Strategy,
    experts: Links | None = None,
) -> OverlappedStep:
    """Schedule the work of a step together with communication between replicas, if there is a backward pass.

    Without `experts`, `links` also join GPUs that hold the same experts.
    """
    if not has_backward(work):
        (whole,) = splitter.segments([])
        return OverlappedStep(whole, np.zeros(3), np.zeros(3))
    if strategy.split.parameters:
        return _sharded(trace, work, splitter, links, strategy, experts if strategy.expert > 1 else None)
    return _bucketed(trace, work, splitter, {False: links, True: experts or links}, strategy)


def _bucketed(
    trace: Trace,
    work: Sequence[HostOperation],
    splitter: StepSplitter,
    links_of: Mapping[bool, Links],
    strategy: Strategy,
) -> OverlappedStep:
    """Schedule data parallelism in which every GPU holds all parameters.

    DDP all-reduces each bucket during or after the backward pass. With ZeRO 1 and 2, each GPU updates only its share of
    the parameters, so a reduce-scatter gives each GPU its share of the summed gradients. Then an all-gather distributes
    the updated parameters. Expert gradients are communicated only between GPUs that hold the same experts,
    over `links_of[True]`.
    """
    gradients, cap_bytes = ready_gradients(trace, work), mebibytes_to_bytes(strategy.bucket_cap_mb)
    apart = strategy.expert > 1  # without expert parallelism, all gradients share buckets
    exchanged = [
        bucket
        for is_expert in (False, True)
        for bucket in buckets(
            [gradient for gradient in gradients if (apart and gradient.is_expert) == is_expert], cap_bytes=cap_bytes
        )
    ]
    exchanged.sort(key=lambda bucket: bucket.ready_after)
    update = _update(work)
    durations = splitter.segments([*(bucket.ready_after for bucket in exchanged), update])
    *before, last = durations
    last = _shared_update(last, splitter.busy(update), trace, links_of[False], strategy)
    operation = "reduce_scatter" if strategy.split.state else "all_reduce"
    trained = [parameter for parameter in trace.parameters if parameter.requires_grad]
    share = _share_in(strategy.reduce_dtype or strategy.param_dtype, trained)
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
    # The forward pass then begins while the parameters of the previous update are gathered.
    early = gathers if strategy.overlap_param_gather else []
    transfers = [Transfer(each, after=0) for each in early]
    transfers += [Transfer(each, after=after) for each, after in zip(seconds, ready, strict=True)]
    if strategy.data == "ddp" and strategy.model_parallel == 1 < links_of[False].layout.count:
        # Each gradient is copied into its bucket, and back from the sum (`gradient_as_bucket_view=False`).
        copies = [_copy_seconds(2 * bucket.size_bytes, links_of[False].layout.gpu) for bucket in exchanged]
        before = [duration + copy for duration, copy in zip(before, [*copies, 0.0], strict=True)]
        last = last + sum(copies)
    segments = [*map(WorkSegment, before), WorkSegment(last, waits_for=len(transfers) - 1 if transfers else None)]
    transfers += [] if early else [Transfer(each, after=len(segments)) for each in gathers]
    return overlap_transfers(segments, transfers)


_PRODUCTS: Final = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


def _shared_update(last: Ends, busy: Ends, trace: Trace, links: Links, strategy: Strategy) -> Ends:
    """Return the time after the backward pass, if the optimizer step is sharded or runs on the CPU."""
    if not strategy.split.state or not busy.any():
        return last
    sizes = [
        (parameter_bytes(parameter), is_of_expert(parameter))
        for parameter in trace.parameters
        if parameter.requires_grad
    ]
    trained, experts = sum(size for size, _ in sizes), sum(size for size, is_expert in sizes if is_expert)
    share = strategy.sharded_share(_sharing(links, strategy), experts / trained if trained else 0.0)
    if strategy.offload == "none":
        # Muon's matrices are dealt out whole, so each host launches only the work of its own
        multiplies = any(
            operation.phase == "optimizer" and operation.name.startswith(_PRODUCTS) for operation in trace.operations
        )
        shared: Ends = last * share if multiplies else last - busy * (1 - share)
        return shared
    return (
        last
        - busy
        + update_seconds(
            trained_bytes=trained * share,
            state_bytes=OPTIMIZER_STATES * trainable_parameter_count(trace) * STATE_BYTES * share,
            gpu=links.layout.gpu,
            gpus_per_node=links.layout.gpus_per_node * links.groups_per_node,
        )
    )


def _sharing(links: Links, strategy: Strategy) -> int:
    """Return the number of GPUs that share one copy of the optimizer state."""
    if not strategy.split.inside_machines:
        return links.layout.count
    return min(strategy.shard or links.layout.gpus_per_node, links.layout.count)


def _share_in(dtype: str | None, parameters: Sequence[Parameter]) -> float:
    """Return the bytes of parameters or gradients in a dtype, relative to the stored bytes."""
    own = sum(map(parameter_bytes, parameters))
    return sum(parameter_bytes(parameter, dtype) for parameter in parameters) / own if own else 1.0


def _sharded(
    trace: Trace,
    work: Sequence[HostOperation],
    splitter: StepSplitter,
    links: Links,
    strategy: Strategy,
    experts: Links | None,
) -> OverlappedStep:
    """Schedule a step with sharded parameters.

    FSDP gathers the parameters of a unit while the previous unit computes, in the forward pass and again in the
    backward pass of every micro-batch. Then FSDP reduce-scatters the unit's gradients. `hybrid` shards inside each
    machine, or in groups of `shard` GPUs, and all-reduces the shards across groups. torch's pipelines keep gathered
    parameters, and scatter all gradients of a stage after its last backward pass
    (`torch.distributed.pipelining.stage`). Gathered parameters are copied out of one buffer, and gradients into one,
    between the operations (`split_with_sizes_copy`, `_chunk_cat` in torch's module `_fsdp_collectives`). Gradients of
    frozen parameters do not exist. Experts that are dealt out are sharded among the GPUs that hold the same ones.
    """
    units = unit_bytes(trace.parameters)
    stops = list(unit_segments(work, units))
    group = _sharding_links(links, strategy)
    trained = [parameter for parameter in trace.parameters if parameter.requires_grad]
    gathered = _share_in(strategy.param_dtype, trace.parameters)
    reduced = _share_in(strategy.reduce_dtype or strategy.param_dtype, trained)
    sizes = unit_bytes(trained)
    reduced_bytes = [sizes.get(unit, 0.0) * reduced for unit in units]
    kept = _share_in(strategy.param_dtype, trained)
    copied_out = {unit: _copy_seconds(2 * gathered * size, links.layout.gpu) for unit, size in units.items()}
    copied_in = {unit: _copy_seconds((kept + reduced) * size, links.layout.gpu) for unit, size in sizes.items()}
    links_of = {False: group, True: experts or group}
    gathers = _of_units(units, "all_gather", trace.parameters, gathered, links_of)
    scatters = _of_units(units, "reduce_scatter", trained, reduced, links_of)
    copies = links.layout.count // group.layout.count
    if copies > 1:
        across = _across(links, group)
        added = across.collective("all_reduce", [size / group.layout.count for size in reduced_bytes])
        scatters = {unit: seconds + more for (unit, seconds), more in zip(scatters.items(), added, strict=True)}
    update = _update(work)
    head, *durations = splitter.segments([*(visit.first_operation for visit in stops), update])
    durations[-1] = _shared_update(durations[-1], splitter.busy(update), trace, links, strategy)
    last = _last_visits(stops)
    segments, transfers, gathered_root = [WorkSegment(head)], list[Transfer](), False
    is_piped, late = strategy.pipeline > 1, list[Array]()
    ready: dict[int, int] = {}

    def gather(position: int, after: int) -> None:
        """Add a gather for the segment at this position. The root stays gathered until its backward pass ends."""
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
        gather(position + 1, len(segments))  # prefetch: the host runs ahead, but at most two units are gathered
        copying = copied_out.get(visit.unit, 0.0) if position in ready else 0.0
        copying += copied_in.get(visit.unit, 0.0) if position in last else 0.0
        segments.append(WorkSegment(durations[position] + copying, waits_for=ready.get(position)))
        if position in last:
            seconds = scatters.get(visit.unit, np.zeros(3))
            if is_piped:
                late.append(seconds)
            else:
                transfers.append(Transfer(seconds, after=len(segments)))
            gathered_root = gathered_root and visit.unit != ROOT
    transfers += [Transfer(seconds, after=len(segments)) for seconds in late]
    segments.append(WorkSegment(durations[-1], waits_for=len(transfers) - 1 if transfers else None))
    return overlap_transfers(segments, transfers)


def _of_units(
    units: Iterable[str], operation: str, parameters: Sequence[Parameter], share: float, links_of: Mapping[bool, Links]
) -> dict[str, Ends]:
    """Return the time of a collective for each FSDP unit, with experts and other parameters over their own links."""
    totals = {unit: np.zeros(3) for unit in units}
    apart = links_of[True] is not links_of[False]
    for is_expert, links in links_of.items():
        sizes = unit_bytes([parameter for parameter in parameters if (apart and is_of_expert(parameter)) == is_expert])
        times = links.collective(operation, [size * share for size in sizes.values()])
        for unit, seconds in zip(sizes, times, strict=True):
            totals[unit] = totals[unit] + seconds
    return totals


def _sharding_links(links: Links, strategy: Strategy) -> Links:
    """Return the links between the GPUs that share one copy of the parameters."""
    if not strategy.split.inside_machines:
        return links
    count = _sharing(links, strategy)
    inside = min(count, links.layout.gpus_per_node)
    own = replace(links.layout, gpus_per_node=inside, nodes=count // inside)
    return replace(links, layout=own, groups_per_node=links.groups_per_node * (links.layout.gpus_per_node // inside))


def _across(links: Links, group: Links) -> Links:
    """Return the links between GPUs that hold the same shard, one GPU in each sharding group."""
    layout, own = links.layout, group.layout
    inside = max(layout.gpus_per_node // own.gpus_per_node, 1)
    copies = layout.count // own.count
    inside = inside if copies % inside == 0 else 1
    same = replace(layout, gpus_per_node=inside, nodes=copies // inside)
    return replace(links, layout=same, groups_per_node=links.groups_per_node * (layout.gpus_per_node // inside))


def _last_visits(stops: Sequence[UnitSegment]) -> set[int]:
    """Return the index of each unit's last backward segment in each micro-batch; its gradients are then complete."""
    last: dict[tuple[int, str], int] = {}
    batch, was_backward = 0, False
    for position, visit in enumerate(stops):
        batch += was_backward and not visit.is_backward
        was_backward = visit.is_backward
        if visit.is_backward:
            last[batch, visit.unit] = position
    return set(last.values())


def _update(work: Sequence[HostOperation]) -> int:
    """Return the index of the first optimizer operation after the last backward operation."""
    return max(index for index, operation in enumerate(work) if operation.phase == "backward") + 1
