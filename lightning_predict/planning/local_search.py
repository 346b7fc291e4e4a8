"""Local search: change one job, or two at once, as long as the plan gets cheaper.

Changing one job cannot take GPUs from a job that profits less from them; changing a pair can: while the first of the
two tries every number of GPUs of its machine type, the second takes the best that this leaves. Example::

    improve_one(state, np.random.default_rng(0))
    improve_pairs(state, np.random.default_rng(0), pairs=60)
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from lightning_predict.planning.placing import WAITS
from lightning_predict.planning.search_state import SearchState

_LEAST_GAIN_USD: Final = 1e-9
"""Smaller gains are rounding."""


def improve_one(state: SearchState, random: np.random.Generator) -> bool:
    """Give single jobs their best configuration until none gains; whether anything changed."""
    changed = False
    while sum(_reassign(state, int(job)) for job in random.permutation(len(state.choice))):
        changed = True
    return changed


def _reassign(state: SearchState, job: int) -> bool:
    """Move one job to its best place; whether the plan got cheaper."""
    before, total = int(state.choice[job]), state.total_usd()
    state.set(job, WAITS)
    _place_best(state, job)
    if state.total_usd() < total - _LEAST_GAIN_USD:
        return True
    state.set(job, before)
    return False


def improve_pairs(state: SearchState, random: np.random.Generator, *, pairs: int) -> None:
    """Change two jobs at once: one gets fewer or more GPUs of its machine type, the other its best place after that.

    Args:
        state: The plan to improve.
        random: Which pairs, where there are more than `pairs`.
        pairs: How many ordered pairs to try.
    """
    jobs = len(state.choice)
    every = jobs * (jobs - 1)
    for number in random.permutation(every) if every <= pairs else random.integers(every, size=pairs):
        first, second = divmod(int(number), jobs - 1)
        _rearrange(state, first, second + (second >= first))


def _rearrange(state: SearchState, first: int, second: int) -> None:
    """The cheapest of what both have and what both could have, if the first kept its machine type."""
    before = int(state.choice[first]), int(state.choice[second])
    if before[0] == WAITS:
        return
    best, cheapest = before, state.total_usd() - _LEAST_GAIN_USD
    state.set(first, WAITS)
    state.set(second, WAITS)
    machine_of = state.options.machine_of
    for item in np.flatnonzero(np.isfinite(state.prices(first)) & (machine_of == machine_of[before[0]])):
        state.set(first, int(item))
        _place_best(state, second)
        total = state.total_usd()
        if total < cheapest:
            best, cheapest = (int(item), int(state.choice[second])), total
        state.set(second, WAITS)
        state.set(first, WAITS)
    state.set(first, best[0])
    state.set(second, best[1])


def _place_best(state: SearchState, job: int) -> None:
    """Run a waiting job where that costs least, if it costs less than waiting."""
    prices = state.prices(job)
    item = int(np.argmin(prices))
    must_run = math.isinf(state.options.postponed_usd[job])
    if prices[item] < 0 or (must_run and math.isfinite(prices[item])):
        state.set(job, item)
