"""Searches the parallel strategies with the highest throughput on a layout, among the strategies that fit in memory.

Candidates combine data, tensor, pipeline, context and expert parallelism, micro-batches, interleaving and
recomputation, and float8 matmuls if the user allows float8. For each candidate whose lower bound of memory fits, a
lower bound on the step time is computed: computation and communication of the slowest stage. Candidates are then
predicted in order of their bounds, and their memory is simulated if they are among the best. The search stops when no
remaining bound is below the slowest requested result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Final

import numpy as np

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.ties import clearly_less, ordered
from lightning_predict.base.units import bytes_to_gibibytes
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect
from lightning_predict.kernels.measured_scaling import WorkTimes
from lightning_predict.layouts.experts import count_experts
from lightning_predict.layouts.gradients import has_backward
from lightning_predict.layouts.groups import tensor_group
from lightning_predict.layouts.layout_steps import MultiGpuStep
from lightning_predict.layouts.model_parallel import needs_blocks, sharing_collectives
from lightning_predict.layouts.overlap import Links
from lightning_predict.layouts.pipeline_parallel import block_stages
from lightning_predict.layouts.recomputation import recomputed_matmuls, recomputed_part, with_recomputation
from lightning_predict.layouts.strategy import DATA_SPLITS, DataStrategy, Float8, Recompute, Strategy
from lightning_predict.layouts.tensor_parallel import ShardSpec, SplitModel, TransformerBlock, WorkSharder, block_of
from lightning_predict.memory.step_memory import MemoryNeed
from lightning_predict.record.trace import Operation, Trace
from lightning_predict.timeline.simulation import host_timeline, launch_schedule
from lightning_predict.timeline.step_prediction import StepPrediction

VIRTUAL_STAGES: Final = (1, 2, 4)
RECOMPUTED: Final[tuple[Recompute, ...]] = ("none", "selective", "full")

MIN_CONTEXT: Final = 4096  # Minimum number of tokens per GPU with context parallelism. Shorter sequences are not split.


@dataclass(frozen=True, slots=True)
class FoundStrategy:
    """A parallel strategy that fits in memory."""

    strategy: Strategy
    step: StepPrediction
    seconds_per_batch: float
    need: MemoryNeed = field(default_factory=MemoryNeed)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits that the user sets on the batch of a step."""

    global_batch: int | None = None  # Samples per step of all GPUs; None: one recorded batch per data-parallel group
    max_micro_batch: int | None = None  # Maximum number of samples per micro-batch; None for no limit

    def __post_init__(self) -> None:
        for name in ("global_batch", "max_micro_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgumentError(f"{name}={value}; expected at least 1 sample.")

    @property
    def words(self) -> str:
        """The limits as a text for an error message."""
        said = [f"{name}={value}" for name, value in asdict(self).items() if value is not None]
        return " with ".join(said)

    def accumulate(self, samples: int, replicas: int) -> int | None:
        """Return how many recorded batches each data-parallel group accumulates.

        Args:
            samples: Samples per recorded batch.
            replicas: Number of data-parallel groups.

        Returns:
            The number; None if the global batch is not a multiple of `samples * replicas`.
        """
        if self.global_batch is None:
            return 1
        count, rest = divmod(self.global_batch, samples * replicas)
        return count if count and not rest else None


def strategies_for(
    trace: Trace,
    layout: Layout,
    *,
    heads: int,
    blocks: int,
    recomputes: bool,
    is_fused: bool,
    length: int = 1,
    batch: BatchLimits = BatchLimits(),
    fp8: Float8 | None = None,
) -> Iterator[Strategy]:
    """Yield all candidate strategies for a layout.

    Args:
        trace: The step of one GPU.
        layout: The GPUs.
        heads: Number of attention heads, which the tensor-parallel degree must divide; 0 without transformer blocks.
        blocks: Number of blocks of the model.
        recomputes: Whether the step was recorded with gradient checkpointing.
        is_fused: Whether attention is one kernel, so that selective recomputation has no effect.
        length: Tokens per sequence; 1 if context parallelism is impossible.
        batch: Limits on the batch of a step.
        fp8: Float8 scaling that candidates may use; None for no float8.
    """
    samples = max((trace.samples or 1) // trace.batches, 1)
    parts = [2**power for power in range(samples.bit_length()) if samples % 2**power == 0]
    if batch.max_micro_batch is not None:
        parts = [count for count in parts if samples // count <= batch.max_micro_batch]
    if layout.count == 1:  # a single GPU supports only gradient accumulation
        accumulate = batch.accumulate(samples * trace.batches, 1)
        if accumulate is not None and 1 in parts:
            yield Strategy(accumulate=accumulate)
        return
    tensors = [size for size in _divisors(layout.gpus_per_node) if heads and heads % size == 0] or [1]
    pipelines = [size for size in _divisors(layout.count) if size <= max(blocks, 1)]
    recomputed: tuple[Recompute, ...] = ("none",)
    if blocks and not recomputes and has_backward(trace.operations):
        recomputed = ("none", "full") if is_fused else RECOMPUTED
    contexts = [2**power for power in range(max(length // MIN_CONTEXT, 1).bit_length())]
    experts = count_experts(trace)
    recipes = (fp8, None) if fp8 is not None and blocks else (None,)
    for tensor, pipeline, context, micro_batches, recompute in product(tensors, pipelines, contexts, parts, recomputed):
        replicas, rest = divmod(layout.count, tensor * pipeline * context)
        accumulate = None if rest else batch.accumulate(samples * trace.batches, replicas)
        if accumulate is None:
            continue
        for virtual in VIRTUAL_STAGES if pipeline > 1 else (1,):
            if virtual > 1 and (micro_batches * accumulate % pipeline or pipeline * virtual > blocks):
                continue
            for data in _data_strategies(layout, tensor * pipeline, pipeline, trains=has_backward(trace.operations)):
                degrees, ends = _expert_degrees(experts, replicas, data), _end_stages(blocks, pipeline, virtual)
                for expert, recipe, (first_stage, last_stage) in product(degrees, recipes, ends):
                    yield Strategy(
                        data=data,
                        tensor=tensor,
                        pipeline=pipeline,
                        context=context,
                        expert=expert,
                        micro_batches=micro_batches,
                        accumulate=accumulate,
                        virtual=virtual,
                        first_stage=first_stage,
                        last_stage=last_stage,
                        sequence=tensor > 1,
                        recompute=recompute,
                        fp8=recipe,
                    )


def _divisors(count: int) -> list[int]:
    return [size for size in range(1, count + 1) if count % size == 0]


def _data_strategies(layout: Layout, model_parallel: int, pipeline: int, *, trains: bool) -> tuple[DataStrategy, ...]:
    """Return the kinds of data parallelism to search; a pipeline would gather sharded parameters often."""
    if layout.count == model_parallel or not trains:
        return ("ddp",)
    return tuple(
        data
        for data, split in DATA_SPLITS.items()
        if split.is_searched
        and (pipeline == 1 or not split.parameters)
        and (layout.nodes > 1 or not split.inside_machines)
    )


def _expert_degrees(experts: int, replicas: int, data: DataStrategy) -> list[int]:
    """Return the possible degrees of expert parallelism. Expert parallelism is not combined with sharded parameters."""
    if not experts or data in ("fsdp", "hybrid"):
        return [1]
    return [degree for degree in _divisors(replicas) if experts % degree == 0]


def _end_stages(blocks: int, pipeline: int, virtual: int) -> tuple[tuple[int | None, int | None], ...]:
    """Return the numbers of blocks to try in the first and last stage; None for the same number as in other stages.

    If the blocks divide evenly, the last stage may have one block less, because it also has the output layer. If two
    blocks are missing, both end stages may have one less, as in Llama 3 405B with 126 blocks.
    """
    if pipeline == 1 or virtual > 1:
        return ((None, None),)
    each = math.ceil(blocks / pipeline)
    missing = each * pipeline - blocks
    if each > 1 and not missing:
        return ((None, None), (None, each - 1))
    return ((None, None), (each - 1, each - 1)) if each > 1 and missing == 2 < pipeline else ((None, None),)


def best_strategies(
    shared: MultiGpuStep,
    layout: Layout,
    step: StepPrediction,
    row: int,
    memory_of: Callable[[Strategy], float | None],
    *,
    usable_bytes: float,
    wanted: int,
    need_of: Callable[[Strategy], MemoryNeed] = lambda _strategy: MemoryNeed(),
    interconnect: Interconnect = CATALOGUE,
    batch: BatchLimits = BatchLimits(),
    fp8: Float8 | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> tuple[FoundStrategy, ...]:
    """Return the strategies with the lowest time per sample, fastest first.

    `memory_of` returns a lower bound of each GPU's peak memory, or None. `need_of` simulates the memory, and is called
    for strategies that are among the fastest.
    """
    bounds = Bounds(shared, step, row, interconnect)
    # (lower bound on the time per batch, strategy, number of batches per step)
    bounded: list[tuple[float, Strategy, int]] = []
    for strategy in _fitting(shared, layout, memory_of, usable_bytes, batch, fp8):
        batches = strategy.replicas(layout) * strategy.accumulate
        bounded.append((bounds.lower_bound_seconds(strategy, layout) / batches, strategy, batches))
    best: list[FoundStrategy] = []  # in the order of their lower bounds
    slowest = math.inf  # time of the slowest of the best `wanted` strategies
    least = math.inf  # memory of strategies that do not fit
    for position, (bound, strategy, batches) in enumerate(ordered(bounded, lambda candidate: candidate[0])):
        on_progress(position, len(bounded))
        if clearly_less(slowest, bound):
            break
        shared_step = shared.on_layout(layout, step, row, strategy, interconnect)
        seconds = shared_step.seconds / batches
        if clearly_less(slowest, seconds):
            continue
        need = need_of(strategy)
        if need.fits is False:
            least = min(least, need.required_bytes)
            continue
        best.append(FoundStrategy(strategy, shared_step, seconds, need))
        slowest = sorted([candidate.seconds_per_batch for candidate in best] + [math.inf] * wanted)[wanted - 1]
        best = [candidate for candidate in best if not clearly_less(slowest, candidate.seconds_per_batch)]
    on_progress(len(bounded), len(bounded))
    if not best and bounded:
        raise _nothing_fits(layout, usable_bytes, least)
    return tuple(ordered(best, lambda candidate: candidate.seconds_per_batch)[:wanted])


def _fitting(
    shared: MultiGpuStep,
    layout: Layout,
    memory_of: Callable[[Strategy], float | None],
    usable_bytes: float,
    batch: BatchLimits,
    fp8: Float8 | None,
) -> Iterator[Strategy]:
    """Yield the strategies whose lower bound of memory fits."""
    trace, model = shared.trace, _model_with_blocks(shared)
    blocks = model.blocks
    heads = math.gcd(*(size for block in blocks for size in (block.heads, block.kv_heads))) if blocks else 0
    recomputes = any(recomputed_matmuls(trace, model).values())
    is_fused = all(block.ring_bytes > 0 for block in blocks)
    samples = max((trace.samples or 1) // trace.batches, 1)
    length = min((block.tokens for block in blocks), default=1) // samples if is_fused else 1
    least = math.inf
    is_empty = True
    for strategy in strategies_for(
        trace,
        layout,
        heads=heads,
        blocks=len(blocks),
        recomputes=recomputes,
        is_fused=is_fused,
        length=length,
        batch=batch,
        fp8=fp8,
    ):
        needed = memory_of(strategy)
        least = min(least, needed or 0.0)
        if needed is None or needed <= usable_bytes:
            is_empty = False
            yield strategy
    if is_empty and math.isinf(least):
        raise InvalidArgumentError(
            f"No strategy makes {batch.words} on {layout.name} out of batches of {trace.samples} recorded sample(s): "
            "the number of data-parallel groups times these must divide it. Record a smaller batch, best of one "
            "sample, or ask for another."
        )
    if is_empty:
        raise _nothing_fits(layout, usable_bytes, least)


def _model_with_blocks(shared: MultiGpuStep) -> SplitModel:
    """Return the model with its transformer blocks; without blocks if it is not a transformer."""
    try:
        return shared.split(True)
    except InvalidArgumentError:
        return shared.split(False)


def _nothing_fits(layout: Layout, usable_bytes: float, least_bytes: float) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"No strategy fits the step into {bytes_to_gibibytes(usable_bytes):.1f} GiB of each GPU of {layout.name}: "
        f"the least needs {bytes_to_gibibytes(least_bytes):.1f} GiB. Ask for more GPUs, or record a smaller batch."
    )


@dataclass(frozen=True, slots=True)
class _Least:
    """Minimum device time of a micro-batch on one GPU, by part of the step."""

    in_blocks: float
    again: Mapping[Recompute, float]
    outside: float
    update: float


class Bounds:
    """Lower bounds on step times: computation, launches, tensor-parallel communication; equal blocks count once."""

    def __init__(self, shared: MultiGpuStep, step: StepPrediction, row: int, interconnect: Interconnect) -> None:
        self._shared, self._row, self._interconnect = shared, row, interconnect
        self._factor = step.seconds / float(shared.simulated.seconds[row])
        self._known: dict[Strategy, _Least] = {}
        self._cutters: dict[bool, WorkSharder] = {}
        self._hosts: dict[tuple[Recompute, bool], float] = {}
        self._kinds: tuple[dict[int, int], WorkTimes, list[int | None]] | None = None

    def lower_bound_seconds(self, strategy: Strategy, layout: Layout) -> float:
        """Return a lower bound on the step time. Every stage is assumed to have the largest number of blocks."""
        own = Strategy(
            tensor=strategy.tensor,
            context=strategy.context,
            micro_batches=strategy.micro_batches,
            sequence=strategy.sequence,
            expert=strategy.expert,
            fp8=strategy.fp8,
        )
        if own not in self._known:
            self._known[own] = self._least(own)
        least = self._known[own]
        model = self._model(strategy)
        in_blocks = self._factor * (least.in_blocks + least.again[strategy.recompute])
        in_blocks += self._exchanging(strategy, layout)
        everything = in_blocks + self._factor * least.outside
        host = self._host(strategy)
        stages = block_stages(strategy, len(model.blocks))
        longest = max(map(stages.count, set(stages))) / len(stages) if stages else 1.0
        slowest = max(in_blocks * longest, everything / strategy.pipeline, host / strategy.pipeline)
        together = max(everything, host, slowest)
        turning = (
            slowest * (strategy.micro_batches or 1) * strategy.accumulate + (together - slowest) / strategy.virtual
        )
        shared = strategy.sharded_count(layout) if strategy.split.state else 1
        # If the optimizer step is not sharded, a GPU updates at least its own experts. The bound also holds if all
        # parameters belong to experts.
        update = self._factor * least.update / strategy.pipeline / max(shared, strategy.expert)
        return turning + update

    def _model(self, strategy: Strategy) -> SplitModel:
        return self._shared.split(needs_blocks(strategy))

    def _exchanging(self, strategy: Strategy, layout: Layout) -> float:
        """Return the time of a micro-batch's tensor-parallel collectives."""
        if strategy.tensor == 1:
            return 0.0
        trains = has_backward(self._shared.work)
        times = (2 if trains else 1) + (strategy.recompute == "full" and trains)
        links = tensor_group(Links(layout, self._interconnect), strategy)
        seconds = 0.0
        for sizes, count in Counter(block.reduced_bytes for block in self._model(strategy).blocks).items():
            each = [size / ((strategy.micro_batches or 1) * strategy.context) for size in sizes]
            for operation, share in sharing_collectives(strategy).items():
                durations = links.collective(operation, [share * size for size in each])
                seconds += count * times * sum(float(duration[1]) for duration in durations)
        return seconds

    def _host(self, strategy: Strategy) -> float:
        """Return the host time of forward and backward of a micro-batch."""
        key = strategy.recompute, strategy.runs_whole_model
        if key not in self._hosts:
            work = with_recomputation(self._shared.work, self._model(strategy), strategy.recompute)
            passes = [each for each in work if each.phase in ("forward", "backward")]
            timeline = host_timeline(launch_schedule(passes, gpus=len(self._shared.gpus)), self._shared.host(strategy))
            self._hosts[key] = timeline.seconds
        return self._hosts[key]

    def _least(self, strategy: Strategy) -> _Least:
        trace, blocks = self._shared.trace, needs_blocks(strategy)
        counts, timed, owners = self._distinct()
        if blocks not in self._cutters:
            self._cutters[blocks] = WorkSharder(trace, timed, self._shared.split(blocks), self._shared.timer)
        cut = ShardSpec(
            strategy.tensor,
            strategy.micro_batches or 1,
            1 / strategy.tensor,
            context=strategy.context,
            sequence=strategy.sequence,
            expert=strategy.expert,
            fp8=strategy.fp8,
            cast=0.0,
        )
        seconds = self._cutters[blocks].shard(cut).seconds[self._row]
        inside, outside, update = 0.0, 0.0, 0.0
        forward: dict[int, list[tuple[Operation, float]]] = {}
        for item, phase, owner, own in zip(timed.items, timed.phases, owners, seconds.tolist(), strict=True):
            if phase == "optimizer":
                update += own
            elif phase in ("forward", "backward") and owner is None:
                outside += own
            elif phase in ("forward", "backward") and owner is not None:
                inside += counts[owner] * own
                if phase == "forward":
                    forward.setdefault(owner, []).append((trace.operations[item.operations[0]], own))
        again = dict.fromkeys(RECOMPUTED, 0.0)
        for owner, operations in forward.items():
            for recompute in RECOMPUTED:
                repeated = recomputed_part([operation for operation, _ in operations], recompute)
                again[recompute] += counts[owner] * sum(operations[index][1] for index in repeated)
        return _Least(inside, again, outside, update)

    def _distinct(self) -> tuple[dict[int, int], WorkTimes, list[int | None]]:
        """Return the distinct blocks, so that identical blocks are timed only once.

        Returns:
            Number of identical blocks of each kind, work of one block per kind, and owner of each operation.
        """
        if self._kinds is None:
            trace, timed, model = self._shared.trace, self._shared.timed, _model_with_blocks(self._shared)
            first: dict[TransformerBlock, int] = {}
            alike = [first.setdefault(replace(block, name=""), index) for index, block in enumerate(model.blocks)]
            counts = dict(Counter(alike))
            kept, owners = list[int](), list[int | None]()
            for column, item in enumerate(timed.items):
                owner = block_of(trace.operations[item.operations[0]].module, model.positions)
                if owner is None or owner in counts:
                    kept.append(column)
                    owners.append(owner)
            chosen = np.array(kept, dtype=np.intp)
            part = replace(
                timed,
                items=tuple(timed.items[column] for column in kept),
                families=tuple(timed.families[column] for column in kept),
                phases=tuple(timed.phases[column] for column in kept),
                interval=timed.interval.map(lambda seconds: seconds[:, chosen]),
                shares={},
            )
            self._kinds = counts, part, owners
        return self._kinds
