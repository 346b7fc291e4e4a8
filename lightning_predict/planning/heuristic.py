"""The planner for sizes past the MILP: randomised greedy, local search and path relinking.

A node that is scarce is worth more than its rent. The greedy start lets every job choose its cheapest configuration at
some price of a node, serves first the jobs that lose most by waiting, and so gets from one price to the next plans that
spread scarce nodes differently (the price takes the place of a random order; ours). The best of these are
improved by changing one job, then two at a time; path relinking walks from each good plan to the best one and looks
for a better one on the way. The same seed gives the same plan. Example::

    decision = HeuristicPlanner(seed=0).decide(problem, situation)
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lightning_predict.planning.local_search import improve_one, improve_pairs
from lightning_predict.planning.objective import Options, Table, options_of
from lightning_predict.planning.path_relinking import relink
from lightning_predict.planning.placing import WAITS, Choice, decision_of
from lightning_predict.planning.records import Decision, Problem, Situation
from lightning_predict.planning.search_state import SearchState

_NOISE: Final = 0.1
"""Greedy starts see costs that are off by up to this share, so that ties and near ties fall differently."""

_LARGE_JOBS: Final = 150
"""From this many jobs on fewer plans are kept: one sweep already takes seconds."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HeuristicPlanner:
    """Decides by randomised greedy starts, local search and path relinking.

    Attributes:
        starts: Greedy starts.
        elite: How many of them are improved and relinked.
        pairs: How many ordered pairs of jobs one local search tries to change together.
        seed: Of the random numbers.
        name: What tables call it.
    """

    starts: int = 12
    elite: int = 3
    pairs: int = 100
    seed: int = 0
    name: str = "planner"

    def decide(self, problem: Problem, situation: Situation) -> Decision:
        """The best decision found."""
        started = time.perf_counter()
        options = options_of(problem, situation)
        state = self._search(options, situation)
        return decision_of(
            options,
            situation,
            state.choice,
            opened=state.opened,
            bins=state.bins(),
            objective_usd=state.total_usd(),
            bound_usd=None,
            method=self.name,
            solve_seconds=time.perf_counter() - started,
        )

    def _search(self, options: Options, situation: Situation) -> SearchState:
        random = np.random.default_rng(self.seed)
        start = SearchState(options, running_choice(options, situation))
        if not options.jobs:
            return start
        elite_size = self.elite if len(options.jobs) < _LARGE_JOBS else 2
        starts = [start] + [greedy(options, price, random) for price in _node_prices(options, self.starts)]
        if not math.isfinite(start.total_usd()):
            starts = starts[1:]
        for state in starts:
            _keep_what_must_run(state, situation)
        elite = sorted(starts, key=SearchState.total_usd)[:elite_size]
        for state in elite:
            improve_one(state, random)
            improve_pairs(state, random, pairs=self.pairs)
            improve_one(state, random)
        best = min(elite, key=SearchState.total_usd)
        for state in elite:
            if state is not best:
                other = relink(state, best)
                improve_one(other, random)
                best = min(best, other, key=SearchState.total_usd)
        return best


def greedy(options: Options, node_usd: float, random: np.random.Generator) -> SearchState:
    """A plan in which every job chose for itself, at a price of a node on top of its rent.

    Args:
        options: The table of the decision.
        node_usd: What a whole node costs beside its rent until the next event.
        random: Source of the noise.
    """
    capacity = np.array([machine.num_gpus for machine in options.machines], dtype=float)[options.machine_of]
    part = options.size_of / capacity
    noise = random.uniform(1 - _NOISE, 1 + _NOISE, size=options.cost_usd.shape)
    wish = options.cost_usd * noise + part * (options.period_usd[options.machine_of] + node_usd)
    waiting = np.where(
        np.isfinite(options.postponed_usd), options.postponed_usd, wish.max(initial=0.0, where=np.isfinite(wish)) * 2
    )
    gain = (waiting - wish.min(axis=1)) / part[wish.argmin(axis=1)]
    state = SearchState(options)
    for job in np.argsort(-gain, kind="stable"):
        _serve(state, int(job), wish[job], float(waiting[job]))
    return state


def _serve(state: SearchState, job: int, wish: Table, waiting_usd: float) -> None:
    """Give a job the configuration it wishes most among those that are possible, unless it would rather wait."""
    possible = np.where(np.isfinite(state.prices(job)), wish, math.inf)
    item = int(np.argmin(possible))
    if possible[item] <= waiting_usd:
        state.set(job, item)


def running_choice(options: Options, situation: Situation) -> Choice:
    """The choice that changes nothing: running jobs keep what they have, the others wait."""
    index = {configuration: number for number, configuration in enumerate(options.configurations)}
    choice = np.full(len(options.jobs), WAITS, dtype=np.int64)
    for number, job in enumerate(options.jobs):
        if job in situation.running:
            choice[number] = index[situation.running[job].configuration]
    return choice


def _keep_what_must_run(state: SearchState, situation: Situation) -> None:
    """Where a job that must run found no place, start over from what runs now."""
    waiting = state.choice == WAITS
    if np.isinf(state.options.postponed_usd[waiting]).any():
        for job, item in enumerate(running_choice(state.options, situation)):
            state.set(job, WAITS)
            if item != WAITS:
                state.set(job, int(item))


def _node_prices(options: Options, number: int) -> list[float]:
    """Prices from nothing to far above any rent, evenly spread by ratio."""
    rent = float(options.period_usd.max())
    return [0.0, *np.geomspace(rent / 10, rent * 1000, max(number - 1, 1)).tolist()]
