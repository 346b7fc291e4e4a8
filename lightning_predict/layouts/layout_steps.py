"""Predicts the step on several GPUs from the step on one GPU.

Each GPU runs the recorded step on its own samples, and communicates with its replicas (`data_parallel.py`). Strategies
that change the work of a GPU divide the step into stages, and the slowest stage determines the step time
(`model_parallel.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.base.ties import greatest
from lightning_predict.hardware.layouts import Layout, in_domains
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect, check_communication, link_assumption_notes
from lightning_predict.kernels.measured_scaling import WorkTimes
from lightning_predict.kernels.timing import KernelModels
from lightning_predict.layouts.data_parallel import overlap_with_collectives
from lightning_predict.layouts.gradients import has_backward
from lightning_predict.layouts.groups import data_group, expert_data_group
from lightning_predict.layouts.model_parallel import (
    Stage,
    model_parallel_step,
    model_stages,
    needs_blocks,
    stage_factors,
    stage_times,
)
from lightning_predict.layouts.overlap import OVERLAP_COSTS, Ends, Links, OverlappedStep, StepSplitter
from lightning_predict.layouts.pipeline_parallel import bubble_ratio, overlapping_micro_batches, pass_micro_batches
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.layouts.tensor_parallel import ShapeTimer, SplitModel, WorkSharder, split_model
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.calibration import calibrate_step
from lightning_predict.timeline.host import UNKNOWN_HOST, Host, HostModel
from lightning_predict.timeline.simulation import host_operations, launch_schedule, simulate_timeline
from lightning_predict.timeline.step_prediction import StepPrediction
from lightning_predict.uncertainty import STRAGGLER_WAIT, on_several_gpus


class MultiGpuStep:
    """A recorded step, simulated on a single GPU of each model, that predicts the step on layouts of several GPUs.

    `timed` has one row per GPU, in the order of `gpus`, which has no duplicates. Without `models`, rooflines time the
    parts of a split model.
    """

    def __init__(
        self,
        trace: Trace,
        timed: WorkTimes,
        gpus: Sequence[Gpu],
        *,
        origin: Gpu | None = None,
        models: KernelModels | None = None,
        host: Host = UNKNOWN_HOST,
    ) -> None:
        self.trace, self.timed, self.gpus, self._models = trace, timed, gpus, models
        self.work = host_operations(trace, timed, timed.seconds)
        if has_backward(self.work) and not trace.parameters:
            raise InvalidArgumentError(
                "The trace has no parameters, so the communication of several GPUs is unknown. Record it with "
                "lightning_predict.capture or the callback, or ask for one GPU."
            )
        self._host = calibrate_step(trace, timed, origin, host).host
        self.simulated = simulate_timeline(launch_schedule(self.work, gpus=len(gpus)), self._host)
        self.timer = ShapeTimer(gpus, models)
        self._models_of_blocks: dict[bool, SplitModel] = {}
        self._sharders: dict[bool, WorkSharder] = {}
        self._stages: dict[tuple[Strategy, float], tuple[Stage, ...]] = {}

    def on_layout(
        self, layout: Layout, step: StepPrediction, row: int, strategy: Strategy, interconnect: Interconnect = CATALOGUE
    ) -> StepPrediction:
        """Return the step on a layout.

        Each replica processes the number of samples of the trace.
        """
        if layout.count == 1:
            if not strategy.changes_operations:
                return step.accumulated(strategy.accumulate)
            return self._divided(layout, step, row, strategy.on_one_gpu, interconnect)
        check_communication(layout)
        named, layout = layout, in_domains(layout)
        step = replace(step, notes=(*step.notes, *link_assumption_notes(layout, interconnect)))
        if not strategy.runs_whole_model:
            shared = self._divided(layout, step, row, strategy, interconnect)
            return replace(shared, gpu=named.name)
        overlapped = self.overlapped(layout, step, row, strategy, interconnect)
        replicas = strategy.replicas(layout)
        low, middle, high = OVERLAP_COSTS.seconds(overlapped, layout, replicas=replicas, spread=STRAGGLER_WAIT)
        added = float(middle - step.seconds)
        verdict = step.verdict
        if verdict is not None:
            own = step.device_seconds, step.host_seconds
            verdict = verdict.on_several_gpus(
                device=own[0], host=own[1], exposed_communication_seconds=max(added, 0.0), seconds=float(middle)
            )
        return replace(
            step,
            gpu=named.name,
            interval=Interval(float(min(low, middle)), float(middle), float(max(high, middle))),
            communication_seconds=float(overlapped.communication_seconds[1]),
            added_seconds=added,
            verdict=verdict,
        )

    def overlapped(
        self, layout: Layout, step: StepPrediction, row: int, strategy: Strategy, interconnect: Interconnect = CATALOGUE
    ) -> OverlappedStep:
        """Schedule the segments and collectives of a step whose work is not divided; arguments as in `on_layout`."""
        strategy.replicas(layout)
        links = Links(layout, interconnect, OVERLAP_COSTS.slowdown_on(layout))
        splitter = StepSplitter(self.simulated, row, ends_on_each_gpu(step) / self.simulated.seconds[row])
        return overlap_with_collectives(self.trace, self.work, splitter, links, strategy)

    def split(self, needs_blocks: bool) -> SplitModel:
        """Return the recorded neural network as blocks and other layers, which can be split over GPUs."""
        if needs_blocks not in self._models_of_blocks:
            self._models_of_blocks[needs_blocks] = split_model(self.trace, needs_blocks=needs_blocks)
        return self._models_of_blocks[needs_blocks]

    def host(self, strategy: Strategy) -> HostModel:
        """Return the host model of each GPU. A framework that splits the model over GPUs makes the host slower."""
        if (strategy.batch_parallel == 1 and strategy.expert == 1) or self.trace.has_measured_kernels:
            return self._host
        return replace(self._host, factor=self._host.factor * OVERLAP_COSTS.framework_host)

    def _stages_of(self, strategy: Strategy, host: HostModel) -> tuple[Stage, ...]:
        key = (_of_stages(strategy), host.factor)
        if key not in self._stages:
            blocks = needs_blocks(strategy)
            model = self.split(blocks)
            if blocks not in self._sharders:
                self._sharders[blocks] = WorkSharder(self.trace, self.timed, model, self.timer)
            self._stages[key] = model_stages(
                self.trace,
                self.timed,
                self.gpus,
                host,
                self._models,
                strategy,
                model=model,
                sharder=self._sharders[blocks],
            )
        return self._stages[key]

    def _divided(
        self, layout: Layout, step: StepPrediction, row: int, strategy: Strategy, interconnect: Interconnect
    ) -> StepPrediction:
        """Return the step under a strategy that divides or changes the work of a step."""
        whole = Links(layout, interconnect)
        host = self.host(strategy) if layout.count > 1 else self._host
        device_factors = ends_on_each_gpu(step) / self.simulated.seconds[row]
        paces = [
            stage_times(stage, whole, strategy, row, stage_factors(stage, row, device_factors, host))
            for stage in self._stages_of(strategy, host)
        ]
        pace = greatest(paces, lambda pace: float(pace.seconds[1]))
        factors = stage_factors(pace.stage, row, device_factors, host)
        whole = replace(whole, slowdown=OVERLAP_COSTS.slowdown_on(layout))  # during computation
        links, experts = data_group(whole, strategy), expert_data_group(whole, strategy)
        together = overlapping_micro_batches(strategy, pace.stage.micro_batches)
        splitter = StepSplitter(pace.stage.whole, row, factors, pace.exposed, micro_batches=together)
        trace = replace(self.trace, parameters=pace.stage.parameters)
        schedule_length = pass_micro_batches(
            [float(stage.seconds[1]) for stage in paces],
            pace.stage.micro_batches,
            virtual=strategy.virtual,
            # A stage waits for one of the recorded batches, whose time all of them have
            idle=bubble_ratio(strategy, float(pace.stage.weight_share[row])) / self.trace.batches,
        )
        before = list[OverlappedStep]()
        # A pipeline keeps gathered parameters. Without a pipeline, each micro-batch gathers parameters again.
        if strategy.split.parameters and strategy.pipeline == 1 and pace.stage.micro_batches > 1:
            alone = StepSplitter(pace.stage.passes, row, factors, pace.exposed)
            micro_batch = overlap_with_collectives(trace, pace.stage.pass_work, alone, links, strategy, experts)
            before = [micro_batch] * (pace.stage.micro_batches - 1)
        last = overlap_with_collectives(trace, pace.stage.work, splitter, links, strategy, experts)
        overlapped = pace.repeated(last, schedule_length, before=before, together=together)
        seconds = OVERLAP_COSTS.seconds(overlapped, layout, replicas=layout.count, spread=STRAGGLER_WAIT)
        return model_parallel_step(step, self.work, self.simulated, pace, schedule_length, layout, seconds, overlapped)


def _of_stages(strategy: Strategy) -> Strategy:
    """Return a cache key of the stages: the strategy without the options that do not change stages."""
    if strategy.offload != "none":
        return strategy
    plain = Strategy()
    return replace(
        strategy,
        data="fsdp" if strategy.split.parameters else "ddp",
        bucket_cap_mb=plain.bucket_cap_mb,
        shard=plain.shard,
        overlap_grad_reduce=plain.overlap_grad_reduce,
        overlap_param_gather=plain.overlap_param_gather,
        overlap_tensor=plain.overlap_tensor,
        param_dtype=plain.param_dtype,
    )


def ends_on_each_gpu(step: StepPrediction) -> Ends:
    """Return (low, middle, high) seconds of a step's work on each of several GPUs."""
    return on_several_gpus(np.array([step.low_seconds, step.seconds, step.high_seconds]))
