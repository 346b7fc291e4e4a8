"""Budgets of runs with a slow start or with stalls: one that fits is never ended, one that exceeds is ended in time.

`python -m tests.observe.test_slow_starts` prints the table: budgets that ended a run that needs less, and the share of
its budget that a run has used when it is ended, if it needs 1 / 0.7 of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest

from tests.observe.scenarios import Scenario, decay, every, made_by_workers, noisier, noisy, stalled, wandering
from tests.observe.simulating import forecasts, stopped


def begins(batches: int, factor: float) -> Callable[[int], float]:
    """Return steps of which the first take `factor` times as long as the later ones, of a second."""
    return lambda batch: factor if batch < batches else 1.0


def epochs(*factors: float) -> Callable[[int], float]:
    """Return steps whose epochs of 50 batches take these times as long as the last ones."""
    return lambda batch: factors[min(batch // 50, len(factors) - 1)]


ONE: dict[str, Any] = {"epochs": 1, "batches": 600}

SLOW_STARTS = {
    **{
        f"{batches} x {factor} s, then 1 s": Scenario(step=begins(batches, factor), epochs=12)
        for batches, factor in (
            (2, 20), (3, 12), (3, 20), (4, 10), (5, 8), (8, 8), (10, 5), (16, 4), (20, 6), (40, 5), (100, 3), (140, 2)
        )
    },
    "first of five epochs from disk, five times slower": Scenario(step=epochs(5.0, 1.0), epochs=5),
    "first of five epochs eight times slower": Scenario(step=epochs(8.0, 1.0), epochs=5),
    "first of five epochs three times slower": Scenario(step=epochs(3.0, 1.0), epochs=5),
    "first of two epochs three times slower": Scenario(step=epochs(3.0, 1.0), epochs=2, batches=150),
    "each epoch faster": Scenario(step=epochs(4.0, 3.0, 2.0, 1.0), epochs=8),
    "smaller images": Scenario(step=epochs(3.0, 2.0, 1.0), epochs=8),
    "another job in the first 100 batches": Scenario(step=lambda batch: 2.5 if batch < 100 else 1.0, epochs=10),
    "compiles 40 shapes": Scenario(step=lambda batch: 9.0 if batch % 3 == 0 and batch < 120 else 1.0, epochs=12),
    "falls over 300 batches": Scenario(step=decay(4.0, 300), epochs=12),
    "slow loader at first": Scenario(step=lambda _: 1.0, wait=lambda batch: 4.0 if batch < 60 else 0.01, epochs=8),
    "slow sanity check and first validation": Scenario(
        step=lambda _: 1.0, check=(20.0, 20.0), validation=lambda run: [20.0 if run == 0 else 1.0] * 4, epochs=8
    ),
    "slow first accumulation windows": Scenario(
        step=lambda batch: (6.0 if batch < 64 else 1.0) * (1.5 if batch % 8 == 7 else 1.0), accumulation=8, epochs=8
    ),
    "one epoch, smaller images": Scenario(step=lambda batch: 2.5 if batch < 250 else 0.6, **ONE),
    "one epoch, 140 x 2": Scenario(step=begins(140, 2.0), **ONE),
    "one epoch, 100 x 3": Scenario(step=begins(100, 3.0), **ONE),
    "one epoch, falls over 300": Scenario(step=decay(4.0, 300), **ONE),
}  # fmt: skip
"""Runs that become faster, whose first forecasts are far too long."""

OTHERS = {
    "constant": Scenario(step=begins(0, 1.0), wait=begins(0, 1.0), epochs=8),
    "one epoch": Scenario(step=begins(0, 1.0), **ONE),
    "noise of 40 %": Scenario(step=noisy(begins(0, 1.0), 0.4, 2), epochs=8),
    "rare slow steps": Scenario(step=noisier(begins(0, 1.0), 3), epochs=8),
    "load that wanders": Scenario(step=wandering(begins(0, 1.0), 4), epochs=8),
    "5x every 10th": Scenario(step=every(10, 5.0), epochs=8),
    "stall every 40th": Scenario(step=every(40, 22.0), epochs=8),
    "two kinds in turn": Scenario(step=every(5, 2.5, phase=0), epochs=8),
    "larger images": Scenario(step=epochs(0.4, 0.6, 0.8, 1.0), epochs=8),
    "another job in the middle": Scenario(step=lambda batch: 2.5 if 150 <= batch < 250 else 1.0, epochs=8),
    "another job now and then": Scenario(step=lambda batch: 2.0 if batch % 200 < 60 else 1.0, epochs=8),
    "longer sequences": Scenario(step=lambda batch: 1 + batch / 600, **ONE),
    "lower clock from a third on": Scenario(step=lambda batch: 1.5 if batch > 200 else 1.0, **ONE),
    "workers too slow": made_by_workers(noisy(begins(0, 0.3), 0.05, 9), step=0.03, workers=2),
    "validation as long as training": Scenario(step=begins(0, 1.0), validation=lambda _: [1.0] * 50, epochs=6),
}
"""Runs with a steady pace, or that become slower."""

SHAPES = SLOW_STARTS | OTHERS
BUDGETS = (1.1, 1.25, 2.0)


@pytest.mark.parametrize("share", BUDGETS)
@pytest.mark.parametrize("name", SHAPES)
def test_run_within_its_budget_is_not_stopped(name: str, share: float) -> None:
    assert stopped(SHAPES[name], share)[1] == SHAPES[name].steps


@pytest.mark.parametrize("share", [1.1, 1.25])
def test_run_within_its_budget_is_not_stopped_by_stalls(share: float) -> None:
    seeds = range(1, 60, 2)
    assert [seed for seed in seeds if stopped(stalled(seed), share)[1] < stalled(seed).steps] == []


def test_run_that_exceeds_its_budget_is_stopped_at_half_of_it() -> None:
    ends = {name: stopped(run, 0.7) for name, run in SHAPES.items()}
    assert all(batches < SHAPES[name].steps for name, (_, batches) in ends.items())
    used = [share for share, _ in ends.values()]
    assert statistics.median(used) <= 0.5
    assert max(used) <= 0.85
    # Neither is any of those with stalls, which last into the second half of some budgets.
    later = [stopped(run, 0.7) for run in map(stalled, range(1, 20, 2))]
    assert statistics.median(share for share, _ in later) <= 2 / 3


def test_suspended_process_is_not_expected_to_be_suspended_again() -> None:
    # 300 batches of 30 ms, one of them 12 s: 133 s were forecast for the remaining 8 s.
    run = Scenario(step=lambda batch: 12.0 if batch == 20 else 0.03, wait=lambda batch: 0.0, epochs=1, batches=300)
    found, end = forecasts(run, {32, 64})
    for now, rest in found.values():
        assert rest.forecast is not None
        assert rest.forecast.middle <= 1.05 * (end - now)


if __name__ == "__main__":
    false = {name: [share for share in BUDGETS if stopped(run, share)[1] < run.steps] for name, run in SHAPES.items()}
    late = {name: stopped(run, 0.7)[0] for name, run in SHAPES.items()}
    for name, share in late.items():
        print(f"{name:52} {share:6.1%} {' '.join(f'false stop at {budget} x' for budget in false[name])}")
    stops = sum(map(len, false.values()))
    print(f"{len(SHAPES)} shapes: {stops} false stops of {len(BUDGETS) * len(SHAPES)}; ended at", end=" ")
    print(f"{statistics.median(late.values()):.1%} of the budget in the median, {max(late.values()):.1%} at worst")
