"""Predicts steps under strategies that change a GPU's work: model parallelism, micro-batches, gradient checkpointing.

The core's `MultiGpuStep` creates a `DividedStep` if a strategy needs it. With model parallelism, the slowest stage
determines the step time (`model_parallel.py`). Example::

    MultiGpuStep(trace, timed, gpus).divided.on(layout, step, 0, parse_strategy("tensor=8"), CATALOGUE, OVERLAP_COSTS)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, final

from lightning_predict.base.ties import greatest
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import Interconnect
from lightning_predict.layouts.groups import data_group, expert_data_group
from lightning_predict.layouts.layout_steps import (
    MultiGpuStep,
    ends_of,
    narrowed_interval,
    overlap_with_collectives,
)
from lightning_predict.layouts.model_parallel import (
    Stage,
    model_parallel_step,
    model_stages,
    needs_blocks,
    stage_factors,
    stage_times,
)
from lightning_predict.layouts.overlap import Ends, Links, OverlapCosts, OverlappedStep, StepSplitter
from lightning_predict.layouts.pipeline_parallel import (
    bubble_ratio,
    overlapping_micro_batches,
    pass_micro_batches,
)
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.layouts.tensor_parallel import ShapeTimer, SplitModel, WorkSharder, split_model
from lightning_predict.timeline.step_prediction import StepPrediction
from lightning_predict.uncertainty import STRAGGLER_WAIT


@final
class DividedStep:
    """Predictor of a recorded step whose work is divided among GPUs.

    Args:
        shared: The step, simulated on a single GPU of each requested type.

    Attributes:
        clock: Predictor of operation times of any shape, with the kernel models of the prediction.
    """

    def __init__(self, shared: MultiGpuStep) -> None:
        self._shared = shared
        self._stages: dict[tuple[Strategy, float], tuple[Stage, ...]] = {}
        self._models_of_blocks: dict[bool, SplitModel] = {}
        self._cutters: dict[bool, WorkSharder] = {}
        self.clock = ShapeTimer(shared.gpus, shared.models)

    def split(self, blocks: bool) -> SplitModel:
        """Return the recorded neural network as blocks and other layers, which can be split over GPUs.

        Raises:
            InvalidArgumentError: Blocks are requested, but the model has no transformer blocks.
        """
        if blocks not in self._models_of_blocks:
            self._models_of_blocks[blocks] = split_model(self._shared.trace, needs_blocks=blocks)
        return self._models_of_blocks[blocks]

    def sharder(self, blocks: bool) -> WorkSharder:
        """Return the object that splits the model's work over GPUs; argument as in `split`."""
        if blocks not in self._cutters:
            self._cutters[blocks] = WorkSharder(self._shared.trace, self._shared.timed, self.split(blocks), self.clock)
        return self._cutters[blocks]

    def on(
        self,
        layout: Layout,
        step: StepPrediction,
        row: int,
        strategy: Strategy,
        interconnect: Interconnect,
        overlap_costs: OverlapCosts,
    ) -> StepPrediction:
        """Return the step on a layout; arguments as in `MultiGpuStep.on_layout`."""
        group = data_group(layout, strategy)
        host = self._shared.host(strategy, overlap_costs)
        alike = (_of_stages(strategy), host.factor)
        if alike not in self._stages:
            blocks, own = needs_blocks(strategy), self._shared
            model, work = self.split(blocks), self.sharder(blocks)
            self._stages[alike] = model_stages(
                own.trace, own.timed, own.gpus, host, own.models, strategy, model=model, sharder=work
            )
        device_factors = _device_ends(step, strategy) / self._shared.simulated.seconds[row]
        paces = [
            stage_times(stage, layout, strategy, interconnect, row, stage_factors(stage, row, device_factors, host))
            for stage in self._stages[alike]
        ]
        pace = greatest(paces, lambda pace: float(pace.seconds[1]))
        factors = stage_factors(pace.stage, row, device_factors, host)
        links = Links(group.layout, interconnect, overlap_costs.slowdown_on(layout), group.groups_per_node)
        alike_experts = expert_data_group(layout, strategy)
        experts = replace(links, layout=alike_experts.layout, groups_per_node=alike_experts.groups_per_node)
        together = overlapping_micro_batches(strategy, pace.stage.micro_batches)
        splitter = StepSplitter(pace.stage.whole, row, factors, pace.exposed, micro_batches=together)
        trace = replace(self._shared.trace, parameters=pace.stage.parameters)
        each = pass_micro_batches(
            [float(each_pace.seconds[1]) for each_pace in paces],
            pace.stage.micro_batches,
            virtual=strategy.virtual,
            idle=bubble_ratio(strategy, float(pace.stage.weight_share[row])),
        )
        # A pipeline keeps gathered parameters. Without a pipeline, each micro-batch gathers parameters again.
        is_sharded = strategy.split.parameters and strategy.pipeline == 1
        before = list[OverlappedStep]()
        if is_sharded and pace.stage.micro_batches > 1:
            alone = StepSplitter(pace.stage.passes, row, factors, pace.exposed)
            one = overlap_with_collectives(trace, pace.stage.pass_work, alone, links, strategy, experts)
            before = [one] * (pace.stage.micro_batches - 1)
        last = overlap_with_collectives(trace, pace.stage.work, splitter, links, strategy, experts)
        walked = pace.repeated(last, each, before=before, together=together)
        seconds = overlap_costs.seconds(walked, walked.seconds, layout, replicas=layout.count, spread=STRAGGLER_WAIT)
        return model_parallel_step(step, self._shared.work, self._shared.simulated, pace, each, layout, seconds, walked)


_NOT_OF_STAGES: Final[Mapping[str, Any]] = {
    "bucket_cap_mb": 25.0,
    "shard": None,
    "overlap_grad_reduce": True,
    "overlap_param_gather": False,
    "overlap_tensor": False,
    "param_dtype": None,
}
"""Default values of the options that do not change the work of a stage. Strategies that differ only in these options
have the same stages."""


def _of_stages(strategy: Strategy) -> Strategy:
    """Return a cache key of the stages: the strategy without the options that do not change stages."""
    if strategy.offload != "none":
        return strategy
    return replace(strategy, **_NOT_OF_STAGES, data="fsdp" if strategy.split.parameters else "ddp")


def _device_ends(step: StepPrediction, strategy: Strategy) -> Ends:
    """Return (low, middle, high) seconds of a step, narrowed for many GPUs; float8 stays wide, as releases differ."""
    return narrowed_interval(step) if strategy.fp8 is None else ends_of(step)
