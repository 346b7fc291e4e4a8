"""Budgets of runs with a slow start or with stalls: one that fits is never ended, one that exceeds is ended in time."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest

from tests.observe.scenarios import Scenario, decay, stalled
from tests.observe.simulating import forecasts, stopped


def begins(batches: int, factor: float) -> Callable[[int], float]:
    """Return steps of which the first take `factor` times as long as the later ones, of a second."""
    return lambda batch: factor if batch < batches else 1.0


def epochs(*factors: float) -> Callable[[int], float]:
    """Return steps whose epochs of 50 batches take these times as long as the last ones."""
    return lambda batch: factors[min(batch // 50, len(factors) - 1)]


SHAPES = {
    **{
        f"{batches} x {factor} s, then 1 s": Scenario(step=begins(batches, factor), epochs=12)
        for batches, factor in (
            (2, 20), (3, 12), (3, 20), (4, 10), (5, 8), (8, 8), (10, 5), (16, 4), (20, 6), (40, 5), (100, 3), (140, 2)
        )
    },
    "first of five epochs from disk, five times slower": Scenario(step=epochs(5.0, 1.0), epochs=5),
    "first of five epochs three times slower": Scenario(step=epochs(3.0, 1.0), epochs=5),
    "each epoch faster": Scenario(step=epochs(4.0, 3.0, 2.0, 1.0), epochs=8),
    "another job in the first 100 batches": Scenario(step=lambda batch: 2.5 if batch < 100 else 1.0, epochs=10),
    "compiles 40 shapes": Scenario(step=lambda batch: 9.0 if batch % 3 == 0 and batch < 120 else 1.0, epochs=12),
    "falls over 300 batches": Scenario(step=decay(4.0, 300), epochs=12),
    "slow loader at first": Scenario(step=lambda _: 1.0, wait=lambda batch: 4.0 if batch < 60 else 0.01, epochs=8),
    "slow sanity check and first validation": Scenario(
        step=lambda _: 1.0, check=(20.0, 20.0), validation=lambda run: [20.0 if run == 0 else 1.0] * 4, epochs=8
    ),
}  # fmt: skip
"""Runs that become faster, whose first forecasts are far too long."""


@pytest.mark.parametrize("share", [1.1, 1.25, 2.0])
@pytest.mark.parametrize("name", SHAPES)
def test_run_within_its_budget_is_not_stopped_after_a_slow_start(name: str, share: float) -> None:
    assert stopped(SHAPES[name], share)[1] == SHAPES[name].steps


@pytest.mark.parametrize("share", [1.1, 1.25])
def test_run_within_its_budget_is_not_stopped_by_stalls(share: float) -> None:
    seeds = range(1, 60, 2)
    assert [seed for seed in seeds if stopped(stalled(seed), share)[1] < stalled(seed).steps] == []


def test_run_that_exceeds_its_budget_is_stopped_at_two_thirds_of_it() -> None:
    plain = [Scenario(step=begins(0, 1.0), wait=begins(0, 1.0), epochs=8), Scenario(step=begins(0, 1.0), epochs=8)]
    runs = [*plain, *map(stalled, range(1, 20, 2))]
    ends = [stopped(run, 0.7) for run in runs]
    assert all(batches < run.steps for run, (_, batches) in zip(runs, ends, strict=True))
    assert statistics.median(used for used, _ in ends) <= 2 / 3
    assert [used for used, _ in ends[: len(plain)]] == pytest.approx([0.6, 0.6], abs=0.01)


def test_suspended_process_is_not_expected_to_be_suspended_again() -> None:
    # 300 batches of 30 ms, one of them 12 s: 133 s were forecast for the remaining 8 s.
    run = Scenario(step=lambda batch: 12.0 if batch == 20 else 0.03, wait=lambda batch: 0.0, epochs=1, batches=300)
    found, end = forecasts(run, {32, 64})
    for now, rest in found.values():
        assert rest.forecast is not None
        assert rest.forecast.middle <= 1.05 * (end - now)
