"""From one GPU's step to that of a layout: what the GPUs exchange, and what of it no work hides.

Each GPU runs the recorded step on samples of its own. The simulated step of one GPU is cut where gradients become ready
(DDP, ZeRO) or where another unit's parameters are needed (FSDP); `timeline/communication.py` walks through the pieces
with the collectives beside them. A layout of one GPU is the step itself, exactly. Example::

    steps = iterations(trace, timed, gpus)
    on_layouts(trace, timed, gpus, steps, [layout_of("8xL4")], strategy_of("ddp"))[0].added_seconds
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.layouts import Layout
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.choice import TimedWork
from lightning_predict.kernels.estimates import KernelModels
from lightning_predict.kernels.fabric import CATALOGUE, Interconnect, collective
from lightning_predict.kernels.operations import Array
from lightning_predict.scaling.friction import FRICTION, Friction
from lightning_predict.scaling.gradients import (
    ROOT,
    Visit,
    buckets,
    has_backward,
    ready_gradients,
    unit_bytes,
    visits,
)
from lightning_predict.scaling.model_parallel import Stage, data_group, divided_step, model_stages
from lightning_predict.scaling.strategy import Strategy
from lightning_predict.timeline.communication import Piece, Transfer, Walked, walk
from lightning_predict.timeline.queues import anchored_host, launchings
from lightning_predict.timeline.records import Iteration
from lightning_predict.timeline.simulation import COMPUTE_STREAM, Launching, Simulated, simulate
from lightning_predict.tracing.records import Trace
from lightning_predict.units import mebibytes_to_bytes

MACHINE_SPREAD: Final = 2.5
"""Factor up and down around a collective, on machines that nobody measured: of the published machines whose links are
there at all, nine in ten lie within it (`python -m lightning_predict.fitting.evaluation` prints their bandwidths)."""

Ends = Array
"""Low end, middle and high end of a 90 % interval, shape (3,)."""


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
) -> tuple[Iteration, ...]:
    """The step on each layout.

    Args:
        trace: The step of one GPU.
        timed: Its work with device seconds, rows in the order of `gpus`.
        gpus: The GPUs of the layouts, each once.
        steps: The step on one of each.
        layouts: Where to run it; each GPU with as many samples as the trace.
        strategy: How they share the model.
        interconnect: What is known of the links.
        origin: GPU that the trace was recorded on.
        models: Trained models, which time the parts of a model that several GPUs hold; None uses rooflines instead.

    Raises:
        InvalidArgumentError: The layout's GPUs cannot share the work so, or the trace knows no parameters.
    """
    rows = {gpu.name: row for row, gpu in enumerate(gpus)}
    own = [rows[layout.gpu.name] for layout in layouts]
    if all(layout.count == 1 for layout in layouts):
        return tuple(steps[row] for row in own)
    shared = SharedStep(trace, timed, gpus, origin=origin, models=models)
    return tuple(
        shared.on(layout, steps[row], row, strategy, interconnect) for layout, row in zip(layouts, own, strict=True)
    )


@final
class SharedStep:
    """One step, simulated on each GPU, ready to be shared out.

    Args:
        trace: See `on_layouts`.
        timed: See `on_layouts`.
        gpus: See `on_layouts`.
        origin: See `on_layouts`.
        models: See `on_layouts`.

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
    ) -> None:
        self._trace, self._timed, self._gpus, self._models = trace, timed, gpus, models
        self._work = launchings(trace, timed, timed.seconds)
        if has_backward(self._work) and not trace.parameters:
            raise InvalidArgumentError(
                "The trace knows no parameters, so that what several GPUs exchange is not known; record it with "
                "lightning_predict.capture or the callback, or ask for one GPU."
            )
        self._stages: dict[Strategy, tuple[Stage, ...]] = {}
        self._host = anchored_host(trace, timed, origin, 1.0)
        self._simulated = simulate(self._work, self._host, gpus=len(gpus))

    def on(
        self, layout: Layout, step: Iteration, row: int, strategy: Strategy, interconnect: Interconnect = CATALOGUE
    ) -> Iteration:
        """The step on a layout, from the step on one of its GPUs, which stands at `row`.

        Raises:
            InvalidArgumentError: The layout's GPUs cannot share the work so.
        """
        if layout.count == 1:
            return step
        if strategy.model_parallel > 1:
            return self._divided(layout, step, row, strategy, interconnect)
        walked = self.walked(layout, step, row, strategy, interconnect)
        spread = np.array([0.0, 1.0, 2.0])
        replicas = strategy.replicas(layout)
        low, middle, high = FRICTION.seconds(walked, np.full(3, step.seconds), replicas=replicas, spread=spread)
        return replace(
            step,
            gpu=layout.name,
            seconds=float(middle),
            low_seconds=float(min(low, middle)),
            high_seconds=float(max(high, middle)),
            communication_seconds=float(walked.communication_seconds[1]),
            added_seconds=float(middle - step.seconds),
        )

    def walked(
        self,
        layout: Layout,
        step: Iteration,
        row: int,
        strategy: Strategy,
        interconnect: Interconnect = CATALOGUE,
        *,
        friction: Friction = FRICTION,
    ) -> Walked:
        """The step's pieces with the collectives beside them, at the low end, the middle and the high end.

        Raises:
            InvalidArgumentError: The layout's GPUs cannot share the work so.
        """
        strategy.replicas(layout)
        links = _Links(layout, interconnect, friction.slowdown)
        cutter = _Cutter(self._simulated, row, _ends(step) / self._simulated.seconds[row])
        return _exchanged(self._trace, self._work, cutter, links, strategy)

    def _divided(
        self, layout: Layout, step: Iteration, row: int, strategy: Strategy, interconnect: Interconnect
    ) -> Iteration:
        """The step where several GPUs hold the model once: the slowest stage sets the pace of all."""
        group = data_group(layout, strategy)
        if strategy not in self._stages:
            self._stages[strategy] = model_stages(
                self._trace, self._timed, self._gpus, self._host, self._models, strategy
            )
        factors = _ends(step) / self._simulated.seconds[row]
        paces = [stage.pace(layout, strategy, interconnect, row, factors) for stage in self._stages[strategy]]
        pace = max(paces, key=lambda pace: float(pace.seconds[1]))
        links = _Links(group.layout, interconnect, FRICTION.slowdown, group.groups_per_node)
        cutter = _Cutter(pace.stage.whole, row, factors, pace.exposed)
        trace = replace(self._trace, parameters=pace.stage.parameters)
        walked = pace.repeated(_exchanged(trace, pace.stage.work, cutter, links, strategy))
        spread = np.array([0.0, 1.0, 2.0])
        seconds = FRICTION.seconds(walked, walked.seconds, replicas=layout.count, spread=spread)
        return divided_step(step, self._work, self._simulated, pace, strategy, layout, seconds, walked)


def _ends(step: Iteration) -> Ends:
    return np.array([step.low_seconds, step.seconds, step.high_seconds])


def _exchanged(trace: Trace, work: Sequence[Launching], cutter: _Cutter, links: _Links, strategy: Strategy) -> Walked:
    """The work with what the replicas exchange beside it; without a backward pass that is nothing."""
    if not has_backward(work):
        (whole,) = cutter.pieces([])
        return Walked(whole, np.zeros(3), np.zeros(3))
    if strategy.data in ("fsdp", "hybrid"):
        return _sharded(trace, work, cutter, links, strategy)
    return _bucketed(trace, work, cutter, links, strategy)


class _Cutter:
    """Cuts the simulated step of one GPU into pieces, at each end of its interval."""

    def __init__(self, simulated: Simulated, row: int, factors: Ends, exposed: Ends | None = None) -> None:
        on_compute = simulated.kernel_streams == COMPUTE_STREAM
        self._owners = simulated.kernel_owners[on_compute]
        ends = (simulated.kernel_starts + simulated.kernel_seconds)[row, on_compute]
        self._ends = np.maximum.accumulate(ends - simulated.begins[row]) if len(ends) else ends
        self._total = float(simulated.seconds[row])
        self._busy = simulated.busy[row]
        self._factors, self._exposed = factors, exposed

    def pieces(self, cuts: Sequence[int]) -> list[Array]:
        """Time between cuts (ascending numbers of operations), from the beginning of the step to its end.

        Collectives inside the model, which stand in the way, are spread over all pieces but that behind the last cut.
        """
        kernels = np.searchsorted(self._owners, np.asarray(cuts))
        moments = [float(self._ends[count - 1]) if count else 0.0 for count in kernels]
        bounded = np.clip([0.0, *moments, self._total], 0.0, self._total)
        durations = [duration * self._factors for duration in np.diff(bounded)]
        if self._exposed is None:
            return durations
        passes = max(len(durations) - 1, 1)
        stretch = 1 + self._exposed / sum(durations[:passes])
        return [duration * stretch for duration in durations[:passes]] + durations[passes:]

    def busy(self, begin: int) -> Ends:
        """Time in which the operations from `begin` on keep the device busy."""
        seconds: Ends = float(self._busy[begin:].sum()) * self._factors
        return seconds


@final
@dataclass(frozen=True, slots=True)
class _Links:
    """A layout and what is known of its links."""

    layout: Layout
    interconnect: Interconnect
    slowdown: float
    groups_per_node: int = 1

    def collective(self, operation: str, sizes: Sequence[float], *, groups_per_node: int = 1) -> list[Ends]:
        """Low end, middle and high end of each message's time, beside the step."""
        if not sizes:
            return []
        found = collective(
            operation,
            sizes,
            self.layout,
            interconnect=self.interconnect,
            groups_per_node=self.groups_per_node * groups_per_node,
        )
        spread = MACHINE_SPREAD if self.interconnect == CATALOGUE else 1.0
        ends = [found.low_seconds / spread, found.seconds, found.high_seconds * spread]
        return list(self.slowdown * np.stack(ends, axis=1))


def _bucketed(
    trace: Trace,
    work: Sequence[Launching],
    cutter: _Cutter,
    links: _Links,
    strategy: Strategy,
) -> Walked:
    """Data parallelism with whole parameters on every GPU.

    DDP: all_reduce of each bucket behind the backward pass. ZeRO 1 and 2: each GPU updates its share of the parameters,
    which all gather afterwards; stage 2 keeps its share of the gradients only (reduce_scatter).
    """
    exchanged = list(buckets(ready_gradients(trace, work), cap_bytes=mebibytes_to_bytes(strategy.bucket_cap_mb)))
    update = _update(work)
    durations = cutter.pieces([*(bucket.after for bucket in exchanged), update])
    *before, last = durations
    if strategy.data != "ddp":
        last = last - cutter.busy(update) * (1 - 1 / links.layout.count)
    operation = "reduce_scatter" if strategy.data == "zero2" else "all_reduce"
    seconds = links.collective(operation, [bucket.size_bytes for bucket in exchanged])
    transfers = [Transfer(each, after=position + 1) for position, each in enumerate(seconds)]
    pieces = [*map(Piece, before), Piece(last, waits_for=len(transfers) - 1 if transfers else None)]
    if strategy.data != "ddp":
        size = sum(bucket.size_bytes for bucket in exchanged)
        transfers.append(Transfer(links.collective("all_gather", [size])[0], after=len(pieces)))
    return walk(pieces, transfers)


def _sharded(
    trace: Trace,
    work: Sequence[Launching],
    cutter: _Cutter,
    links: _Links,
    strategy: Strategy,
) -> Walked:
    """Parameters in shares.

    FSDP: a unit's parameters are gathered while the unit before it computes, in the forward and again in the backward
    pass, after which its gradients are scattered. `hybrid` does so inside each machine, and adds up the shares of the
    machines.
    """
    units = unit_bytes(trace)
    stops = list(visits(work, units))
    inside = replace(links, layout=Layout(links.layout.gpu, links.layout.gpus_per_node))
    group = inside if strategy.data == "hybrid" else links
    sizes = list(units.values())
    gathers = dict(zip(units, group.collective("all_gather", sizes), strict=True))
    scatters = dict(zip(units, group.collective("reduce_scatter", sizes), strict=True))
    if strategy.data == "hybrid" and links.layout.nodes > 1:
        across = replace(links, layout=Layout(links.layout.gpu, 1, links.layout.nodes))
        shares = [size / inside.layout.count for size in sizes]
        added = across.collective("all_reduce", shares, groups_per_node=inside.layout.count)
        scatters = {unit: seconds + more for (unit, seconds), more in zip(scatters.items(), added, strict=True)}
    update = _update(work)
    head, *durations = cutter.pieces([*(visit.begin for visit in stops), update])
    durations[-1] = durations[-1] - cutter.busy(update) * (1 - 1 / group.layout.count)
    last = _last_visits(stops)
    pieces, transfers, gathered_root = [Piece(head)], list[Transfer](), False
    ready: dict[int, int] = {}

    def gather(position: int, after: int) -> None:
        """For the visit at this position; the root's parameters stay once they are there."""
        nonlocal gathered_root
        if position >= len(stops) or position in ready:
            return
        unit = stops[position].unit
        if unit != ROOT or not gathered_root:
            ready[position] = len(transfers)
            transfers.append(Transfer(gathers.get(unit, np.zeros(3)), after=after))
        gathered_root = gathered_root or unit == ROOT

    for position, visit in enumerate(stops):
        gather(position, 0)
        gather(position + 1, len(pieces))  # the host runs ahead; two units' parameters are there at most
        pieces.append(Piece(durations[position], waits_for=ready.get(position)))
        if last.get(visit.unit) == position:
            transfers.append(Transfer(scatters.get(visit.unit, np.zeros(3)), after=len(pieces)))
    pieces.append(Piece(durations[-1], waits_for=len(transfers) - 1 if transfers else None))
    return walk(pieces, transfers)


def _last_visits(stops: Sequence[Visit]) -> dict[str, int]:
    """Position of each unit's last visit in the backward phase, when its gradients are complete."""
    return {visit.unit: position for position, visit in enumerate(stops) if visit.is_backward}


def _update(work: Sequence[Launching]) -> int:
    """Where the optimizer begins, after the last backward operation."""
    return max(index for index, operation in enumerate(work) if operation.phase == "backward") + 1
