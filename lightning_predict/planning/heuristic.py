"""The planner for sizes past the MILP: randomised greedy, local search and path relinking.

A node that is scarce is worth more than its rent. The greedy start lets every job choose its cheapest configuration at
some price of a node, serves first the jobs that lose most by waiting, and so gets from one price to the next plans that
spread scarce nodes differently (the price takes the place of a random order; ours). The best of these are
improved by changing one job, then two at a time; path relinking walks from each good plan to the best one and looks
for a better one on the way. The same seed gives the same plan.

The search state keeps how many jobs of each size every machine type holds, so a change of one job is priced for all its
configurations at once. Changing one job cannot take GPUs from a job that profits less from them; changing a pair can:
while the first of the two tries every number of GPUs of its machine type, the second takes the best that this leaves.
Example::

    decision = HeuristicPlanner(seed=0).decide(problem, situation)
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lightning_predict.planning.objective import Options, Table, options_of
from lightning_predict.planning.placement import WAITS, Choice, decision_of, further_nodes, nodes_needed, pack
from lightning_predict.planning.problem import Decision, Problem, Situation

_TOLERANCE_USD = 1e-12


@final
class SearchState:
    """A choice in which every job waits at first, except where `choice` says otherwise.

    Attributes:
        options: The table of the decision.
        choice: Configuration index of each job, or `WAITS`.
        opened: New nodes of each machine type.
    """

    def __init__(self, options: Options, choice: Choice | None = None) -> None:
        self.options = options
        self.choice: Choice = np.full(len(options.jobs), WAITS, dtype=np.int64)
        self._capacity = [machine.num_gpus for machine in options.machines]
        self._counts = [[0] * capacity for capacity in self._capacity]
        self._open_free = [
            tuple(sorted(node.free_gpus for node in options.open_nodes if node.machine == index))
            for index in range(len(options.machines))
        ]
        self.opened = [0] * len(options.machines)
        self._machine: list[int] = options.machine_of.tolist()
        self._size: list[int] = options.size_of.tolist()
        self._period: list[float] = options.period_usd.tolist()
        # The sizes of all machines one after another: where each machine begins, and the place of each configuration.
        self._begin: list[int] = np.cumsum([0, *self._capacity]).tolist()
        self._place = np.array(self._begin[:-1], dtype=np.int64)[options.machine_of] + options.size_of - 1
        self._rent = np.repeat(options.period_usd, self._capacity)
        self._further = np.zeros(self._begin[-1])
        self._outdated = set(range(len(self._capacity)))
        self._used = _used_usd(options)
        self._cells = options.cost_usd.tolist()
        self._waiting: list[float] = options.postponed_usd.tolist()
        for job, item in enumerate([] if choice is None else choice):
            if item != WAITS:
                self.set(job, int(item))

    def copy(self) -> SearchState:
        """Return an independent state of the same choice."""
        other = SearchState.__new__(SearchState)
        other.__dict__.update(self.__dict__)
        other.choice = self.choice.copy()
        other._counts = [list(counts) for counts in self._counts]
        other.opened = list(self.opened)
        other._further = self._further.copy()
        other._outdated = set(self._outdated)
        return other

    def set(self, job: int, item: int) -> None:
        """Give a job another configuration, or let it wait."""
        for configuration, change in ((int(self.choice[job]), -1), (item, 1)):
            if configuration != WAITS:
                machine = self._machine[configuration]
                self._counts[machine][self._size[configuration] - 1] += change
                self._outdated.add(machine)
                self.opened[machine] = self._needed(machine, tuple(self._counts[machine]))
        self.choice[job] = item

    def prices(self, job: int) -> Table:
        """Price running a waiting job on each configuration, less the cost of waiting, (K,).

        Infinite where it cannot run, or where the nodes, a quota or the budget do not allow it.
        """
        options = self.options
        nodes_left = len(options.free_nodes) - sum(self.opened)
        left = np.minimum(nodes_left, options.quotas - self.opened)
        more = self._further_nodes()
        by_size = np.where(more > np.repeat(left, self._capacity), math.inf, more * self._rent)
        further: Table = by_size[self._place]
        waiting = options.postponed_usd[job]
        prices: Table = options.cost_usd[job] + further - (waiting if math.isfinite(waiting) else 0.0)
        if math.isfinite(options.budget_usd):
            prices[self._over_budget(job, further)] = math.inf
        return prices

    def total_usd(self) -> float:
        """Return the objective of the choice; infinite where a job waits that must not."""
        total = self.options.fixed_usd
        for job, item in enumerate(self.choice.tolist()):
            total += self._waiting[job] if item == WAITS else self._cells[job][item]
        for number, price in zip(self.opened, self._period, strict=True):
            total += number * price
        return total

    def bins(self) -> dict[int, list[list[int]]]:
        """Return a packing of the choice, by machine type: open nodes first, in their order."""
        result = {}
        for machine, capacity in enumerate(self._capacity):
            sizes = [self._size[item] for item in self.choice if item != WAITS and self._machine[item] == machine]
            free = [node.free_gpus for node in self.options.open_nodes if node.machine == machine]
            where, new = pack(sizes, capacity=capacity, free=free)
            held: list[list[int]] = [[] for _ in range(len(free) + new)]
            for size, node in zip(sizes, where, strict=True):
                held[node].append(size)
            result[machine] = held
        return result

    def _needed(self, machine: int, counts: tuple[int, ...]) -> int:
        return nodes_needed(counts, capacity=self._capacity[machine], open_free=self._open_free[machine])

    def _further_nodes(self) -> Table:
        """Find how many further nodes one more job needs, by machine and size."""
        for machine in self._outdated:
            counts, capacity = tuple(self._counts[machine]), self._capacity[machine]
            table = further_nodes(counts, capacity=capacity, open_free=self._open_free[machine])
            self._further[self._begin[machine] : self._begin[machine + 1]] = table
        self._outdated.clear()
        return self._further

    def _spent_usd(self) -> float:
        """Find what the budget counts of the choice; see `milp_constraints.budget`."""
        rows = np.arange(len(self.choice))
        running = self.choice != WAITS
        cells = self.options.machine_usd[rows[running], self.choice[running]] - self._used[self.choice[running]]
        machines = sum(count * price for count, price in zip(self.opened, self._period, strict=True))
        return float(cells.sum() + self.options.reserved_usd[~running].sum()) + machines

    def _over_budget(self, job: int, further: Table) -> npt.NDArray[np.bool_]:
        """Find which configurations of a job that waits would break the budget, (K,)."""
        after = self._spent_usd() - self.options.reserved_usd[job] + self.options.machine_usd[job]
        over: npt.NDArray[np.bool_] = np.greater(after - self._used + further, self.options.budget_usd + _TOLERANCE_USD)
        return over


def _used_usd(options: Options) -> Table:
    """Return the part of a machine's price until the next event that a job's own share covers, (K,)."""
    capacity = np.array([machine.num_gpus for machine in options.machines], dtype=float)
    used: Table = options.period_usd[options.machine_of] * options.size_of / capacity[options.machine_of]
    return used


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
    """Take the cheapest of what both have and what both could have, if the first kept its machine type."""
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


_TRIED: Final = 24
"""Differences that are tried before one is taken over; trying all would take the square of their number."""


def relink(start: SearchState, goal: SearchState) -> SearchState:
    """Return the best plan between two, the ends included."""
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
    """Cost the plan if this job did as in the goal; infinite where the limits forbid it. Changes nothing."""
    before, after = int(walker.choice[job]), int(goal.choice[job])
    walker.set(job, WAITS)
    possible = after == WAITS or math.isfinite(walker.prices(job)[after])
    if possible:
        walker.set(job, after)
    total = walker.total_usd() if possible else math.inf
    walker.set(job, before)
    return total


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
        """Return the best decision found."""
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
    """Return a plan in which every job chose for itself, at a price of a node on top of its rent.

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
    """Return the choice that changes nothing: running jobs keep what they have, the others wait."""
    index = {configuration: number for number, configuration in enumerate(options.configurations)}
    choice = np.full(len(options.jobs), WAITS, dtype=np.int64)
    for number, job in enumerate(options.jobs):
        if job in situation.running:
            choice[number] = index[situation.running[job].configuration]
    return choice


def _keep_what_must_run(state: SearchState, situation: Situation) -> None:
    """Start over from what runs now if a job that must run found no place."""
    waiting = state.choice == WAITS
    if np.isinf(state.options.postponed_usd[waiting]).any():
        for job, item in enumerate(running_choice(state.options, situation)):
            state.set(job, WAITS)
            if item != WAITS:
                state.set(job, int(item))


def _node_prices(options: Options, number: int) -> list[float]:
    """List prices from nothing to far above any rent, evenly spread by ratio."""
    rent = float(options.period_usd.max())
    return [0.0, *np.geomspace(rent / 10, rent * 1000, max(number - 1, 1)).tolist()]
