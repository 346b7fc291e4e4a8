"""`best_layouts` finds the fastest parallel strategy, micro-batches and recomputation of a step for given layouts.

Only strategies that fit in memory are returned. If the step has embedding bags, the search includes sharded tables
(`embedding=auto`). Example::

    import lightning_predict as lp

    for one in lp.best_layouts(trace, ["8x8xH100-SXM-80GB"], iterations=10_000):
        print(one.strategy.name, one.samples_per_second, one.prediction.cost_usd, one.bound_by)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lightning_predict.assumptions import Assumptions, fill_in_assumptions
from lightning_predict.base.errors import InfeasiblePlanError, InvalidArgumentError
from lightning_predict.base.ties import ordered
from lightning_predict.base.units import hours_to_seconds
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import Prediction, UserPrice
from lightning_predict.embeddings.tables import is_look_up
from lightning_predict.embeddings.whole_step import AUTO
from lightning_predict.hardware.layouts import Layout, layouts_of
from lightning_predict.hardware.own_rates import OwnRates
from lightning_predict.kernels.interconnect import Interconnect
from lightning_predict.layout_search.goodput import Goodput, Reliability, checkpoint_bytes, goodput_of
from lightning_predict.layout_search.search import BatchLimits, FoundStrategy, best_strategies
from lightning_predict.layouts.strategy import Float8, Strategy
from lightning_predict.memory.rank_memory import RankMemory
from lightning_predict.memory.step_memory import step_memory, usable_bytes
from lightning_predict.prediction import remaining_steps, step_in_float16, takes_float16
from lightning_predict.record.trace import Trace, weighted_kinds
from lightning_predict.step_predictor import StepPredictor
from lightning_predict.weights.source import AnyWeights

SPARE = 4  # Ratio of searched to requested results with a budget, because the budget may exclude some results


@dataclass(frozen=True, slots=True)
class RankedLayout:
    """A layout with a parallel strategy, and its prediction."""

    prediction: Prediction  # Predicted time, memory and cost
    strategy: Strategy  # How the GPUs share the work
    seconds_per_batch: float  # Time to process the number of samples of the recorded step
    goodput: Goodput | None = None  # Effect of failures and checkpoints; None without reliability data
    kernels: tuple[str, ...] = ()  # Kernels that the prediction assumes instead of PyTorch's eager ones
    lacked_kernels: tuple[str, ...] = ()  # Kernels asked for that the GPU does not have

    @property
    def total_seconds(self) -> float | None:
        """Total seconds of the run, including failures and checkpoints if known."""
        seconds = self.prediction.total_seconds
        return seconds if seconds is None or self.goodput is None else seconds / self.goodput.share

    @property
    def cost_usd(self) -> float | None:
        """Cost of the run in dollars, including failures and checkpoints if known."""
        cost = self.prediction.cost_usd
        return cost if cost is None or self.goodput is None else cost / self.goodput.share

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second of all GPUs; None if the trace does not state the samples per step."""
        return self.prediction.samples_per_second

    @property
    def samples_per_usd(self) -> float | None:
        """Samples per dollar, including failures and checkpoints; None without a price or number of samples."""
        hourly = self.prediction.usd_per_hour
        if self.samples_per_second is None or not hourly:
            return None
        left = 1.0 if self.goodput is None else self.goodput.share
        return left * self.samples_per_second / (hourly / hours_to_seconds(1.0))

    @property
    def bound_by(self) -> str | None:
        """Main bottleneck of the step; None if unknown."""
        verdict = self.prediction.step.verdict
        return None if verdict is None else verdict.bound_by


@fill_in_assumptions
def best_layouts(  # noqa: D417
    trace: Trace,
    gpus: Sequence[str],
    *,
    iterations: int | None = None,
    budget_usd: float | None = None,
    global_batch: int | None = None,
    max_micro_batch: int | None = None,
    fp8: Float8 | None = None,
    reliability: Reliability | None = None,
    count: int = 10,
    offers: Sequence[Offer] | None = None,
    usd_per_hour: UserPrice = None,
    weights: AnyWeights = None,
    interconnect: Interconnect | None = None,
    release: str | None = None,
    kernels: str | Sequence[str] = (),
    host: str | float | None = None,
    measured: OwnRates | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> tuple[RankedLayout, ...]:
    """Return the fastest parallel strategies on layouts that fit in memory.

    The search covers data, tensor, pipeline, context and expert parallelism, micro-batches and recomputation. Each
    data-parallel group processes a batch of the recorded size, or several such batches to reach the global batch.
    Strategies are ranked by their time for the same number of samples.

    Args:
        trace: One step, recorded on one GPU or on the meta device.
        gpus: Names of layouts, for example `8x8xH100-SXM-80GB`.
        iterations: Number of remaining steps, for the time and cost of the run: steps of the global batch if
            `global_batch` is given, otherwise recorded steps.
        budget_usd: Maximum cost of the run; needs `iterations`.
        global_batch: Samples of all GPUs per optimizer step. The samples of the recorded batch, times the number of
            groups, must divide this number.
        max_micro_batch: Maximum number of samples that a group processes at once.
        fp8: Also consider float8 matmuls in transformer blocks, with this scaling: `tensorwise`, `rowwise`, `blockwise`
            or `mx`. Float8 changes the computed results. None for no float8.
        reliability: GPU failure rate and checkpoint speed. The cost of failures then counts towards the budget.
        count: Maximum number of results.
        kernels: What the job runs instead of PyTorch's eager kernels, as for `predict`; a GPU that lacks some of the
            kernels runs without them (`lacked_kernels` of a result).
        on_progress: Called with the number of finished candidates of a layout, and the number of all candidates.
        The other arguments are fields of `Assumptions`.

    Returns:
        The best strategies, fastest first.

    Raises:
        InvalidArgumentError: No strategy fits in memory or in the budget, or an argument is impossible.
        LightningPredictError: `predict` failed.
    """
    _check_arguments(trace, iterations, budget_usd, global_batch, count)
    batch = BatchLimits(global_batch=global_batch, max_micro_batch=max_micro_batch)
    assumptions = Assumptions(
        offers=offers,
        usd_per_hour=usd_per_hour,
        weights=weights,
        interconnect=interconnect,
        release=release,
        kernels=kernels,
        host=host,
        measured=measured,
    ).of_step(trace)
    kinds, shares = weighted_kinds(trace)
    kind = kinds[max(range(len(kinds)), key=lambda index: shares[index])]  # only the most common kind is searched
    remaining = remaining_steps(kind, _recorded_steps(kind, iterations, global_batch))
    wanted = count if budget_usd is None else SPARE * count
    ranked = []
    for (lacked, is_changed), own in _alike(kind, assumptions.with_own_rates(layouts_of(gpus)), assumptions).items():
        applied = assumptions.without_kernels(lacked)
        shown = step_in_float16(kind, applied) if is_changed else kind
        step = StepPredictor(shown, [layout.gpu for layout in own], applied, remaining)
        for layout in map(step.with_offered_network, own):
            for strategy in _found(step, layout, batch, fp8, count=wanted, on_progress=on_progress):
                choice = _ranked(step, layout, strategy, reliability, is_changed=is_changed)
                ranked.append(replace(choice, kernels=applied.kernels_applied, lacked_kernels=lacked))
    if budget_usd is not None:
        ranked = _within(ranked, budget_usd)
    return tuple(ordered(ranked, lambda choice: choice.seconds_per_batch)[:count])


def _alike(
    trace: Trace, layouts: Iterable[Layout], assumptions: Assumptions
) -> dict[tuple[tuple[str, ...], bool], list[Layout]]:
    """Group layouts by the kernels that their GPU lacks, and by whether it runs a bfloat16 step in float16."""
    alike: dict[tuple[tuple[str, ...], bool], list[Layout]] = {}
    for layout in layouts:
        key = assumptions.kernels_missing_on(layout.gpu), takes_float16(trace, layout)
        alike.setdefault(key, []).append(layout)
    return alike


def _recorded_steps(trace: Trace, iterations: int | None, global_batch: int | None) -> int | None:
    """Return the number of recorded steps in the given steps of the global batch."""
    if iterations is None or global_batch is None or not trace.samples:
        return iterations
    return math.ceil(iterations * global_batch / trace.samples)


def _ranked(
    step: StepPredictor, layout: Layout, best: FoundStrategy, reliability: Reliability | None, *, is_changed: bool
) -> RankedLayout:
    strategy, need, goodput = best.strategy, best.need, None
    if reliability is not None and (size := checkpoint_bytes(step.trace)) is not None:
        goodput = goodput_of(size, layout.count, reliability)
    if strategy.pipeline > 1 or strategy.expert > 1:
        need = step.memory_need(layout, strategy)  # with the least filled GPU
    own = replace(best.step, precision="16-mixed") if is_changed else best.step
    prediction = step.prediction(layout, strategy, own, need)
    return RankedLayout(prediction, strategy, best.seconds_per_batch, goodput)


def _check_arguments(
    trace: Trace, iterations: int | None, budget_usd: float | None, global_batch: int | None, count: int
) -> None:
    if budget_usd is not None and not 0 < budget_usd < math.inf:
        raise InvalidArgumentError(f"budget_usd={budget_usd:g}; expected dollars above 0.")
    if budget_usd is not None and iterations is None:
        raise InvalidArgumentError(f"budget_usd={budget_usd:g} needs iterations=N, the number of remaining steps.")
    if count < 1:
        raise InvalidArgumentError(f"count={count}; expected at least 1.")
    if global_batch is not None and trace.samples is None:
        raise InvalidArgumentError(
            f"global_batch={global_batch} of a trace that does not say how many samples it has; record it with "
            "samples_per_step."
        )


def _found(
    step: StepPredictor,
    layout: Layout,
    batch: BatchLimits,
    fp8: Float8 | None,
    *,
    count: int,
    on_progress: Callable[[int, int], None],
) -> tuple[FoundStrategy, ...]:
    (single,) = step.kinds
    row = step.setting.gpus.index(layout.gpu)
    ranks = step.ranks.setdefault(id(step.trace), RankMemory(step.trace)) if step_memory(step.trace) else None

    def bytes_of(strategy: Strategy) -> float | None:
        return None if ranks is None else max(ranks.lower_bounds(layout, strategy))

    tables = _with_shared_tables(step, layout)
    try:
        strategies = best_strategies(
            step.shared(single),
            layout,
            single.steps[row],
            row,
            bytes_of,
            need_of=lambda strategy: step.memory_need(layout, strategy, finds_least=False),
            usable_bytes=usable_bytes(layout.gpu),
            wanted=count,
            interconnect=step.setting.interconnect,
            batch=batch,
            fp8=fp8,
            on_progress=on_progress,
        )
    except InvalidArgumentError:
        if not tables:
            raise
        strategies = ()
    return (*tables, *strategies)


def _with_shared_tables(step: StepPredictor, layout: Layout) -> tuple[FoundStrategy, ...]:
    """Return the fastest sharding of a step's embedding bags; empty without bags, or if nothing fits."""
    if layout.count == 1 or not any(
        is_look_up(operation) and "embedding_bag" in operation.name for operation in step.trace.operations
    ):
        return ()
    strategy = Strategy(embedding=AUTO)
    try:
        shared = step.iteration(layout, strategy)
    except (InvalidArgumentError, InfeasiblePlanError):
        return ()
    need = step.memory_need(layout, strategy)
    if need.fits is False:
        return ()
    return (FoundStrategy(strategy, shared, shared.seconds / layout.count, need),)


def tokens_per_sample(trace: Trace) -> int | None:
    """Return the tokens per sample, from the first embedding lookup; None if unknown."""
    for operation in trace.operations:
        if operation.name == "aten::embedding" and operation.phase == "forward":
            indices = next((tensor for tensor in operation.inputs if tensor.dtype == "int64"), None)
            if indices is not None and trace.samples and math.prod(indices.shape) % trace.samples == 0:
                return math.prod(indices.shape) // max(trace.samples // trace.batches, 1)
            return None
    return None


def _within(ranked: Sequence[RankedLayout], budget_usd: float) -> list[RankedLayout]:
    """Return the results that cost at most the budget."""
    costs = [choice.cost_usd for choice in ranked]
    affordable = [choice for choice, cost in zip(ranked, costs, strict=True) if cost is not None and cost <= budget_usd]
    if not affordable:
        known = [cost for cost in costs if cost is not None]
        least = f"the cheapest costs ${min(known):,.2f}" if known else "no price of these layouts is known"
        raise InvalidArgumentError(f"budget_usd={budget_usd:g} pays for no strategy that fits: {least}.")
    return affordable
