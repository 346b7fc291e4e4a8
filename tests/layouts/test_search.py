"""The search for the best strategies against all of them, one by one."""

from __future__ import annotations

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
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.memory.rank_memory import even_bytes
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps
from tests.layouts.example_blocks import HEADS, LENGTH, MODELS, timed_as, trace_of
from tests.layouts.test_large_runs import mixture

A100, H100 = gpu("A100-SXM-80GB"), gpu("H100-SXM-80GB")
SINGLE_BYTES = 3 * GIBIBYTE


def prepared(blocks: int, *, scale: float = 1e-3, on: Gpu = A100) -> tuple[MultiGpuStep, StepPrediction]:
    """Round numbers of milliseconds, so that launches and links count in comparison."""
    trace, seconds = trace_of(blocks)
    timed = timed_as(trace, [scale * each for each in seconds])
    shared = MultiGpuStep(trace, timed, [on], models=MODELS)
    return shared, predict_steps(trace, timed, [on])[0]


@pytest.mark.parametrize("layout", [Layout(A100, 4), Layout(A100, 2, 2), Layout(A100, 8)], ids=lambda one: one.name)
@pytest.mark.parametrize("batch", [BatchLimits(), BatchLimits(global_batch=32, max_micro_batch=2)])
@pytest.mark.parametrize("scale", [1e-5, 1e-3])
def test_the_best_are_those_of_all(layout: Layout, scale: float, batch: BatchLimits) -> None:
    shared, step = prepared(4, scale=scale)
    trace = shared.trace
    usable = 2.2 * GIBIBYTE

    def memory(strategy: Strategy) -> float:
        return even_bytes(SINGLE_BYTES, trace, layout, strategy)

    everything = [
        (
            shared.on_layout(layout, step, 0, strategy).seconds / strategy.replicas(layout) / strategy.accumulate,
            strategy.name,
        )
        for strategy in strategies_for(
            trace, layout, heads=HEADS, blocks=4, recomputes=False, is_fused=True, batch=batch
        )
        if memory(strategy) <= usable
    ]
    counts: list[tuple[int, int]] = []
    found = best_strategies(
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
    assert [one.seconds_per_batch for one in found] == pytest.approx(sorted(each for each, _ in everything)[:5])
    assert counts[-1] == (len(everything), len(everything))


@pytest.mark.parametrize("scale", [1e-5, 1e-3])
def test_no_step_is_faster_than_its_bound(scale: float) -> None:
    shared, step = prepared(4, scale=scale)
    layout = Layout(A100, 4)
    bounds = Bounds(shared, step, 0, CATALOGUE)
    for strategy in strategies_for(shared.trace, layout, heads=HEADS, blocks=4, recomputes=False, is_fused=False):
        assert bounds.lower_bound_seconds(strategy, layout) <= shared.on_layout(layout, step, 0, strategy).seconds * (
            1 + 1e-9
        ), strategy


def test_sequence_parallelism_exchanges_as_much_in_twice_the_calls() -> None:
    # A reduce-scatter and an all-gather move what an all-reduce does, and wait for the links twice.
    shared, step = prepared(4)
    bounds, layout = Bounds(shared, step, 0, CATALOGUE), Layout(A100, 4)
    plain, sequence = (bounds._exchanging(Strategy(tensor=4, sequence=one), layout) for one in (False, True))
    assert plain < sequence < 2 * plain


def test_rings_and_dealt_out_experts_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MIN_CONTEXT", LENGTH // 2)
    trace, seconds = mixture(2, 4)
    timed = timed_as(trace, [1e-3 * each for each in seconds])
    shared, layout = MultiGpuStep(trace, timed, [A100], models=MODELS), Layout(A100, 4)
    (step,) = predict_steps(trace, timed, [A100])
    bounds = Bounds(shared, step, 0, CATALOGUE)
    looked_at = list(
        strategies_for(trace, layout, heads=HEADS, blocks=2, recomputes=False, is_fused=True, length=LENGTH)
    )
    times = [shared.on_layout(layout, step, 0, strategy).seconds for strategy in looked_at]
    for strategy, seconds_of_it in zip(looked_at, times, strict=True):
        assert bounds.lower_bound_seconds(strategy, layout) <= seconds_of_it * (1 + 1e-9), strategy
    # Four experts over one, two or four replicas; rings of two, half of a sequence on each, leave two replicas.
    whole = [one for one in looked_at if one.model_parallel == 1 and one.recompute == "none"]
    degrees = {(one.context, one.expert) for one in whole if one.data in ("ddp", "zero1")}
    assert degrees == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2)}
    assert {one.expert for one in looked_at if one.data == "fsdp"} == {1}
    best = best_strategies(shared, layout, step, 0, lambda _: None, usable_bytes=1.0, wanted=5)
    each = sorted(seconds_of_it / one.replicas(layout) for one, seconds_of_it in zip(looked_at, times, strict=True))
    assert [one.seconds_per_batch for one in best] == pytest.approx(each[:5])


def test_float8_is_looked_at_where_it_is_taken_and_no_step_is_faster_than_its_bound() -> None:
    shared, step = prepared(4, on=H100)
    layout = Layout(H100, 4)
    looked_at = list(
        strategies_for(shared.trace, layout, heads=HEADS, blocks=4, recomputes=False, is_fused=True, fp8="tensorwise")
    )
    without = [one for one in looked_at if one.fp8 is None]
    assert set(looked_at) == {*without, *(replace(one, fp8="tensorwise") for one in without)}
    assert len(looked_at) == 2 * len(without)
    assert {one.last_stage for one in without if one.pipeline == 2 and one.virtual == 1} == {None, 1}  # of four blocks
    bounds = Bounds(shared, step, 0, CATALOGUE)
    times = {one: shared.on_layout(layout, step, 0, one).seconds for one in looked_at}
    for strategy, seconds in times.items():
        assert bounds.lower_bound_seconds(strategy, layout) <= seconds * (1 + 1e-9), strategy
    best = best_strategies(shared, layout, step, 0, lambda _: None, usable_bytes=1.0, wanted=5, fp8="tensorwise")
    each = sorted(seconds / one.replicas(layout) for one, seconds in times.items())
    assert [one.seconds_per_batch for one in best] == pytest.approx(each[:5])
    assert best[0].strategy.fp8 == "tensorwise"


def test_float8_is_refused_where_a_gpu_has_no_units_for_it() -> None:
    shared, step = prepared(4)
    with pytest.raises(InvalidArgumentError, match="A100-SXM-80GB has no units for float8"):
        best_strategies(shared, Layout(A100, 4), step, 0, lambda _: None, usable_bytes=1.0, wanted=5, fp8="tensorwise")


@pytest.mark.parametrize("count", [4, 8])
def test_every_strategy_makes_the_global_batch_of_small_enough_parts(count: int) -> None:
    shared, _ = prepared(4)
    samples, layout = shared.trace.samples or 0, Layout(A100, count)
    batch = BatchLimits(global_batch=16 * samples, max_micro_batch=1)
    found = list(
        strategies_for(shared.trace, layout, heads=HEADS, blocks=4, recomputes=False, is_fused=True, batch=batch)
    )
    assert {one.model_parallel for one in found} >= {1, 2, 4}
    for one in found:
        assert one.replicas(layout) * one.accumulate * samples == batch.global_batch
        assert one.micro_batches == samples
    with pytest.raises(InvalidArgumentError, match=r"No strategy makes global_batch=3 on \dxA100"):
        best_strategies(
            shared,
            layout,
            prepared(4)[1],
            0,
            lambda _: 0.0,
            usable_bytes=1,
            wanted=1,
            batch=BatchLimits(global_batch=3),
        )
    with pytest.raises(InvalidArgumentError, match="global_batch=0; expected at least 1 sample"):
        BatchLimits(global_batch=0)


def test_batches_that_add_up_repeat_the_passes_and_update_once() -> None:
    shared, step = prepared(4)
    layout = Layout(A100, 2)
    one, two, three, four = (
        shared.on_layout(layout, step, 0, Strategy(tensor=2, accumulate=count)).seconds for count in (1, 2, 3, 4)
    )
    # Stragglers are averaged out over longer steps, which moves it by a few thousandths.
    assert two - one == pytest.approx(four - three, rel=0.02)
    assert 0 < two - one < one  # the update is not repeated
    again = shared.on_layout(layout, step, 0, Strategy(tensor=2, pipeline=1, micro_batches=4))
    assert again.seconds < four


def test_what_fits_nowhere_is_refused_in_words() -> None:
    shared, step = prepared(2)
    layout = Layout(A100, 2)

    def memory(strategy: Strategy) -> float:
        return even_bytes(SINGLE_BYTES, shared.trace, layout, strategy)

    with pytest.raises(
        InvalidArgumentError, match=r"No strategy fits the step into 0\.1 GiB of each GPU of 2xA100.*least"
    ):
        best_strategies(shared, layout, step, 0, memory, usable_bytes=0.1 * GIBIBYTE, wanted=3)


def test_blocks_that_are_alike_are_timed_once() -> None:
    # All blocks do the same; only the update goes by their number.
    layout = Layout(A100, 2)
    counts = []
    for blocks in (2, 8):
        shared, step = prepared(blocks)
        for strategy in (Strategy(tensor=2), Strategy(tensor=2, sequence=True), Strategy(tensor=2, recompute="full")):
            shared.on_layout(layout, step, 0, strategy)
        counts.append(shared.timer.timed)
    assert counts[0] == counts[1]
    # Forward four problems, backward four: whole, in halves, and half of the norms under sequence parallelism.
    assert counts[0] <= 3 * 8 + 2


def test_a_model_without_blocks_is_shared_whole() -> None:
    shared, step = prepared(2)
    nameless = replace(shared.trace, operations=tuple(replace(each, module=None) for each in shared.trace.operations))
    alone = MultiGpuStep(nameless, shared.timed, [A100], models=MODELS)
    found = best_strategies(alone, Layout(A100, 2), step, 0, lambda _: None, usable_bytes=1.0, wanted=3)
    assert {one.strategy.model_parallel for one in found} == {1}
