"""The search for the best strategies compared with a prediction of all strategies."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.units import GIBIBYTE
from lightning_predict.hardware import Gpu, gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import CATALOGUE
from lightning_predict.layout_search import search
from lightning_predict.layout_search.search import BatchLimits, Bounds, best_strategies, strategies_for
from lightning_predict.layouts.layout_steps import MultiGpuStep
from lightning_predict.layouts.strategy import Float8, Strategy
from lightning_predict.memory.rank_memory import even_bytes
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps
from tests.layouts.example_blocks import A100, HEADS, LENGTH, MODELS, mixture, timed_as, trace_of

H100 = gpu("H100-SXM-80GB")
SINGLE_BYTES = 3 * GIBIBYTE


def prepared(
    blocks: int, *, scale: float = 1e-3, on: Gpu = A100, experts: int = 0
) -> tuple[MultiGpuStep, StepPrediction]:
    """Round numbers of milliseconds, so that launches and links count in comparison."""
    trace, seconds = mixture(blocks, experts) if experts else trace_of(blocks)
    timed = timed_as(trace, [scale * each for each in seconds])
    return MultiGpuStep(trace, timed, [on], models=MODELS), predict_steps(trace, timed, [on])[0]


def candidates(
    shared: MultiGpuStep,
    layout: Layout,
    *,
    blocks: int = 4,
    length: int = 1,
    is_fused: bool = True,
    batch: BatchLimits | None = None,
    fp8: Float8 | None = None,
) -> Iterator[Strategy]:
    return strategies_for(
        shared.trace,
        layout,
        heads=HEADS,
        blocks=blocks,
        recomputes=False,
        is_fused=is_fused,
        length=length,
        batch=batch or BatchLimits(),
        fp8=fp8,
    )


@pytest.mark.parametrize("layout", [Layout(A100, 4), Layout(A100, 2, 2), Layout(A100, 8)], ids=lambda one: one.name)
@pytest.mark.parametrize("batch", [BatchLimits(), BatchLimits(global_batch=32, max_micro_batch=2)])
@pytest.mark.parametrize("scale", [1e-5, 1e-3])
def test_search_finds_best_of_all_strategies(layout: Layout, scale: float, batch: BatchLimits) -> None:
    shared, step = prepared(4, scale=scale)
    usable = 2.2 * GIBIBYTE

    def memory(strategy: Strategy) -> float:
        return even_bytes(SINGLE_BYTES, shared.trace, layout, strategy)

    everything = [
        shared.on_layout(layout, step, 0, strategy).seconds / strategy.replicas(layout) / strategy.accumulate
        for strategy in candidates(shared, layout, batch=batch)
        if memory(strategy) <= usable
    ]
    counts: list[tuple[int, int]] = []
    ranked = best_strategies(
        shared,
        layout,
        step,
        0,
        memory,
        usable_bytes=usable,
        wanted=5,
        batch=batch,
        on_progress=lambda done, of: counts.append((done, of)),
    )
    assert len(everything) > 5
    assert [candidate.seconds_per_batch for candidate in ranked] == pytest.approx(sorted(everything)[:5])
    assert counts[-1] == (len(everything), len(everything))


@pytest.mark.parametrize("scale", [1e-5, 1e-3])
def test_bound_is_never_above_predicted_time(scale: float) -> None:
    shared, step = prepared(4, scale=scale)
    layout = Layout(A100, 4)
    bounds = Bounds(shared, step, 0, CATALOGUE)
    for strategy in candidates(shared, layout, is_fused=False):
        seconds = shared.on_layout(layout, step, 0, strategy).seconds
        assert bounds.lower_bound_seconds(strategy, layout) <= seconds * (1 + 1e-9), strategy


def test_sequence_parallelism_doubles_calls_and_accumulation_repeats_passes() -> None:
    # A reduce-scatter and an all-gather move what an all-reduce does, and wait for the links twice.
    shared, step = prepared(4)
    bounds, layout = Bounds(shared, step, 0, CATALOGUE), Layout(A100, 4)
    plain, sequence = (bounds._exchanging(Strategy(tensor=4, sequence=enabled), layout) for enabled in (False, True))
    assert plain < sequence < 2 * plain
    layout = Layout(A100, 2)
    one, two, three, four = (
        shared.on_layout(layout, step, 0, Strategy(tensor=2, accumulate=count)).seconds for count in (1, 2, 3, 4)
    )
    # Stragglers are averaged out over longer steps, which moves it by a few thousandths.
    assert two - one == pytest.approx(four - three, rel=0.02)
    assert 0 < two - one < one  # the update is not repeated
    assert shared.on_layout(layout, step, 0, Strategy(tensor=2, micro_batches=4)).seconds < four


def check_search(
    shared: MultiGpuStep, step: StepPrediction, layout: Layout, strategies: list[Strategy], fp8: Float8 | None = None
) -> Strategy:
    """Compare the search and its bounds with all strategies, and return the best one."""
    bounds, times = Bounds(shared, step, 0, CATALOGUE), {}
    for strategy in strategies:
        seconds = shared.on_layout(layout, step, 0, strategy).seconds
        assert bounds.lower_bound_seconds(strategy, layout) <= seconds * (1 + 1e-9), strategy
        times[strategy] = seconds / strategy.replicas(layout)
    best = best_strategies(shared, layout, step, 0, lambda _: None, usable_bytes=1.0, wanted=5, fp8=fp8)
    assert [candidate.seconds_per_batch for candidate in best] == pytest.approx(sorted(times.values())[:5])
    return best[0].strategy


def test_search_covers_context_expert_and_float8_parallelism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MIN_CONTEXT", LENGTH // 2)
    shared, step = prepared(2, experts=4)
    layout = Layout(A100, 4)
    strategies = list(candidates(shared, layout, blocks=2, length=LENGTH))
    check_search(shared, step, layout, strategies)
    # Four experts over one, two or four replicas; rings of two, half of a sequence on each, leave two replicas.
    whole = [strategy for strategy in strategies if strategy.model_parallel == 1 and strategy.recompute == "none"]
    degrees = {(strategy.context, strategy.expert) for strategy in whole if strategy.data in ("ddp", "zero1")}
    assert degrees == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2)}
    assert {strategy.expert for strategy in strategies if strategy.data == "fsdp"} == {1}
    shared, step = prepared(4, on=H100)
    layout = Layout(H100, 4)
    strategies = list(candidates(shared, layout, fp8="tensorwise"))
    without = [strategy for strategy in strategies if strategy.fp8 is None]
    assert set(strategies) == {*without, *(replace(strategy, fp8="tensorwise") for strategy in without)}
    assert len(strategies) == 2 * len(without)
    assert {one.last_stage for one in without if one.pipeline == 2 and one.virtual == 1} == {None, 1}  # of four blocks
    assert check_search(shared, step, layout, strategies, "tensorwise").fp8 == "tensorwise"


@pytest.mark.parametrize("count", [4, 8])
def test_every_strategy_reaches_global_batch_with_small_micro_batches(count: int) -> None:
    shared, _ = prepared(4)
    samples, layout = shared.trace.samples or 0, Layout(A100, count)
    batch = BatchLimits(global_batch=16 * samples, max_micro_batch=1)
    strategies = list(candidates(shared, layout, batch=batch))
    assert {strategy.model_parallel for strategy in strategies} >= {1, 2, 4}
    for strategy in strategies:
        assert strategy.replicas(layout) * strategy.accumulate * samples == batch.global_batch
        assert strategy.micro_batches == samples


@pytest.mark.parametrize(
    ("usable_gibibytes", "batch", "fp8", "message"),
    [
        (100, {"global_batch": 3}, None, "No strategy makes global_batch=3 on 4xA100"),
        (100, {"global_batch": 0}, None, "global_batch=0; expected at least 1 sample"),
        (100, {}, "tensorwise", "A100-SXM-80GB has no units for float8"),
        (0.1, {}, None, r"No strategy fits the step into 0\.1 GiB of each GPU of 4xA100.*least"),
    ],
)
def test_impossible_search_is_refused(
    usable_gibibytes: float, batch: dict[str, int], fp8: Float8 | None, message: str
) -> None:
    shared, step = prepared(4)
    layout = Layout(A100, 4)
    with pytest.raises(InvalidArgumentError, match=message):
        best_strategies(
            shared,
            layout,
            step,
            0,
            lambda strategy: even_bytes(SINGLE_BYTES, shared.trace, layout, strategy),
            usable_bytes=usable_gibibytes * GIBIBYTE,
            wanted=1,
            batch=BatchLimits(**batch),
            fp8=fp8,
        )


def test_blocks_are_timed_once_and_needed_to_divide() -> None:
    # All blocks do the same; only the update depends on their number.
    layout = Layout(A100, 2)
    counts = []
    for blocks in (2, 8):
        shared, step = prepared(blocks)
        for strategy in (Strategy(tensor=2), Strategy(tensor=2, sequence=True), Strategy(tensor=2, recompute="full")):
            shared.on_layout(layout, step, 0, strategy)
        counts.append(shared.timer.timed)
    assert counts[0] == counts[1]
    # Forward four shapes, backward four: whole, in halves, and half of the norms under sequence parallelism.
    assert counts[0] <= 3 * 8 + 2
    shared, step = prepared(2)
    nameless = replace(shared.trace, operations=tuple(replace(each, module=None) for each in shared.trace.operations))
    alone = MultiGpuStep(nameless, shared.timed, [A100], models=MODELS)
    found = best_strategies(alone, Layout(A100, 2), step, 0, lambda _: None, usable_bytes=1.0, wanted=3)
    assert {candidate.strategy.model_parallel for candidate in found} == {1}
