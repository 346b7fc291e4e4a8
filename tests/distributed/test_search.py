"""The search for the best strategies against all of them, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_predict.distributed.layout_steps import SharedStep
from lightning_predict.distributed.search import Bounds, best_strategies, strategies_for
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus import gpu
from lightning_predict.gpus.layouts import Layout
from lightning_predict.kernels.fabric import CATALOGUE
from lightning_predict.run.sharing import shared_memory_bytes
from lightning_predict.timeline.iteration import Iteration, iterations
from lightning_predict.units import GIBIBYTE
from tests.distributed.example_blocks import HEADS, MODELS, timed_as, trace_of

A100 = gpu("A100-SXM-80GB")
SINGLE_BYTES = 3 * GIBIBYTE


def prepared(blocks: int, *, scale: float = 1e-3) -> tuple[SharedStep, Iteration]:
    """Round numbers of milliseconds, so that launches and links count beside them."""
    trace, seconds = trace_of(blocks)
    timed = timed_as(trace, [scale * each for each in seconds])
    shared = SharedStep(trace, timed, [A100], models=MODELS)
    return shared, iterations(trace, timed, [A100])[0]


@pytest.mark.parametrize("layout", [Layout(A100, 4), Layout(A100, 2, 2), Layout(A100, 8)], ids=lambda one: one.name)
@pytest.mark.parametrize("scale", [1e-5, 1e-3])
def test_the_best_are_those_of_all(layout: Layout, scale: float) -> None:
    shared, step = prepared(4, scale=scale)
    trace = shared.trace
    usable = 2.2 * GIBIBYTE

    def memory(strategy: Strategy) -> float:
        return shared_memory_bytes(SINGLE_BYTES, trace, layout, strategy)

    everything = [
        (shared.on(layout, step, 0, strategy).seconds / strategy.replicas(layout), strategy.name)
        for strategy in strategies_for(trace, layout, heads=HEADS, blocks=4, recomputes=False, is_fused=True)
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
        on_progress=lambda done, of: counts.append((done, of)),
    )
    assert len(everything) > 5
    assert [one.seconds_per_batch for one in found] == pytest.approx(sorted(each for each, _ in everything)[:5])
    assert counts[-1] == (len(everything), len(everything))
    assert all(one.candidate.memory_bytes == memory(one.candidate.strategy) for one in found)


@pytest.mark.parametrize("scale", [1e-5, 1e-3])
def test_no_step_is_faster_than_its_bound(scale: float) -> None:
    shared, step = prepared(4, scale=scale)
    layout = Layout(A100, 4)
    bounds = Bounds(shared, step, 0, CATALOGUE)
    for strategy in strategies_for(shared.trace, layout, heads=HEADS, blocks=4, recomputes=False, is_fused=False):
        assert bounds.seconds(strategy, layout) <= shared.on(layout, step, 0, strategy).seconds * (1 + 1e-9), strategy


def test_what_fits_nowhere_is_refused_in_words() -> None:
    shared, step = prepared(2)
    layout = Layout(A100, 2)

    def memory(strategy: Strategy) -> float:
        return shared_memory_bytes(SINGLE_BYTES, shared.trace, layout, strategy)

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
            shared.on(layout, step, 0, strategy)
        counts.append(shared.clock.timed)
    assert counts[0] == counts[1]
    # Forward four problems, backward four: whole, in halves, and half of the norms under sequence parallelism.
    assert counts[0] <= 3 * 8 + 2


def test_a_model_without_blocks_is_shared_whole() -> None:
    shared, step = prepared(2)
    nameless = replace(shared.trace, operations=tuple(replace(each, module=None) for each in shared.trace.operations))
    alone = SharedStep(nameless, shared.timed, [A100], models=MODELS)
    found = best_strategies(alone, Layout(A100, 2), step, 0, lambda _: None, usable_bytes=1.0, wanted=3)
    assert {one.candidate.strategy.model_parallel for one in found} == {1}
