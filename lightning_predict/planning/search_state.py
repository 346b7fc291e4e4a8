"""A choice that a heuristic is changing: what it costs, and what each change would cost.

The state keeps how many jobs of each size every machine type holds, so a change of one job is priced for all its
configurations at once, by asking `packing.nodes_needed` for at most one machine type anew. Example::

    state = SearchState(options)
    state.set(job, int(np.argmin(state.prices(job))))
    state.total_usd()
"""

from __future__ import annotations

import math
from typing import final

import numpy as np
import numpy.typing as npt

from lightning_predict.planning.objective import Options, Table
from lightning_predict.planning.packing import further_nodes, nodes_needed, pack
from lightning_predict.planning.placing import WAITS, Choice

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
        """An independent state of the same choice."""
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
        """Cost of running a job that waits on each configuration, less the cost of waiting, (K,).

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
        """The objective of the choice; infinite where a job waits that must not."""
        total = self.options.fixed_usd
        for job, item in enumerate(self.choice.tolist()):
            total += self._waiting[job] if item == WAITS else self._cells[job][item]
        for number, price in zip(self.opened, self._period, strict=True):
            total += number * price
        return total

    def bins(self) -> dict[int, list[list[int]]]:
        """A packing of the choice, by machine type: open nodes first, in their order."""
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
        """How many further nodes one more job needs, by machine and size."""
        for machine in self._outdated:
            counts, capacity = tuple(self._counts[machine]), self._capacity[machine]
            table = further_nodes(counts, capacity=capacity, open_free=self._open_free[machine])
            self._further[self._begin[machine] : self._begin[machine + 1]] = table
        self._outdated.clear()
        return self._further

    def _spent_usd(self) -> float:
        """What the budget counts of the choice; see `milp_constraints.budget`."""
        rows = np.arange(len(self.choice))
        running = self.choice != WAITS
        cells = self.options.machine_usd[rows[running], self.choice[running]] - self._used[self.choice[running]]
        machines = sum(count * price for count, price in zip(self.opened, self._period, strict=True))
        return float(cells.sum() + self.options.reserved_usd[~running].sum()) + machines

    def _over_budget(self, job: int, further: Table) -> npt.NDArray[np.bool_]:
        """Which configurations of a job that waits would break the budget, (K,)."""
        after = self._spent_usd() - self.options.reserved_usd[job] + self.options.machine_usd[job]
        over: npt.NDArray[np.bool_] = np.greater(after - self._used + further, self.options.budget_usd + _TOLERANCE_USD)
        return over


def _used_usd(options: Options) -> Table:
    """Part of a machine's price until the next event that a job's own share covers, (K,)."""
    capacity = np.array([machine.num_gpus for machine in options.machines], dtype=float)
    used: Table = options.period_usd[options.machine_of] * options.size_of / capacity[options.machine_of]
    return used
