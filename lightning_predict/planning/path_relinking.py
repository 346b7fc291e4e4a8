"""Path relinking: walk from one good plan to another, and keep the best plan on the way.

Two good plans agree about most jobs. Where they differ, one difference after another is taken over, each time the one
that leaves the cheapest plan. Example::

    better = relink(start, goal)
    assert better.total_usd() <= min(start.total_usd(), goal.total_usd())
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from lightning_predict.planning.placing import WAITS
from lightning_predict.planning.search_state import SearchState

_TRIED: Final = 24
"""Differences that are tried before one is taken over; trying all would take the square of their number."""


def relink(start: SearchState, goal: SearchState) -> SearchState:
    """The best plan between two, the ends included."""
    walker = start.copy()
    best = min(start, goal, key=SearchState.total_usd).copy()
    while True:
        different = [int(job) for job in np.flatnonzero(walker.choice != goal.choice)]
        steps = [(total, job) for job in different[:_TRIED] if math.isfinite(total := _total_after(walker, goal, job))]
        if not steps:
            # Each step that is left breaks a limit: make room first, by letting those jobs wait.
            running = [job for job in different if walker.choice[job] != WAITS]
            if not running:
                return best
            for job in running:
                walker.set(job, WAITS)
            continue
        total, job = min(steps)
        walker.set(job, int(goal.choice[job]))
        if total < best.total_usd():
            best = walker.copy()


def _total_after(walker: SearchState, goal: SearchState, job: int) -> float:
    """Cost of the plan if this job did as in the goal; infinite where the limits forbid it. Changes nothing."""
    before, after = int(walker.choice[job]), int(goal.choice[job])
    walker.set(job, WAITS)
    possible = after == WAITS or math.isfinite(walker.prices(job)[after])
    if possible:
        walker.set(job, after)
    total = walker.total_usd() if possible else math.inf
    walker.set(job, before)
    return total
