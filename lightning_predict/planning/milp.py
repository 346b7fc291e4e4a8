"""MILP planner: optimizes one decision as a mixed-integer linear program, solved by HiGHS through SciPy.

::

    min  Σ_jk cost_jk x_jk + Σ_j stay_j s_j + Σ_j postponed_j (1 − Σ_k x_jk − s_j)
        + Σ_n period_n y_n + Σ_vf period_v z_vf

subject to the rows that `Program` adds. Index sets: jobs j, machine types v
with G_v GPUs each, sizes q (number of GPUs of a machine that a job uses), and currently rented nodes n. Variables::

    x_jk ∈ {0, 1}       job j starts on configuration k = (v, g), on a node that is new to it
    s_j  ∈ {0, 1}       job j stays where it runs; if x and s are 0, the job waits
    y_n  ∈ {0, 1}       node n is kept
    u_nq ∈ {0, 1, …}    number of jobs of size q that start on a kept node
    z_vf ∈ {0, 1, …}    number of new nodes of machine type v with filling f

`Options` contains the prices: `cost_usd` (cost_jk), `stay_usd` (stay_j), `postponed_usd` (postponed_j) and `period_usd`
(period_v, and period_n by the type of node n).

This differs from the published models. The published models have variables for each node (w_n, y_vn, x_jvgn). In these
models, a job that keeps its configuration may change its node without a restart. Free nodes are interchangeable, so any
plan could be written in many ways, and a solver would have to reject each of them. Therefore free nodes are counted by
their filling here. For an 8-GPU machine, a filling is a partition of 8 into sizes (22 partitions). A node with running
jobs has its own variables, because a job that leaves the node must restart, which costs time.

Tardiness needs no variables, because x_jk and s_j determine it (`objective.py`).

The planner always returns a decision. If the time limit ends the search, this is the best decision found so far, with
its gap. Without any decision, running jobs stay. Waiting jobs then start in queue order, or not at all with a
budget. Example::

    decision = MilpPlanner(time_limit_seconds=10.0).decide(problem, situation)
    decision.objective_usd, decision.gap
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from lightning_predict.base.errors import MissingDependencyError
from lightning_predict.planning.objective import Options, cheapest_usd, options_of
from lightning_predict.planning.problem import Job, Placement, PlanningProblem, PlanState, RunningJobs
from lightning_predict.planning.queues import EARLIEST_DEADLINE_FIRST

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult


MOST_WAITING: Final = 60  # Waiting jobs that a decision considers: 1,000 jobs take 10 s with 60, minutes with all


@lru_cache(maxsize=256)
def fillings(sizes: tuple[int, ...], capacity: int) -> tuple[tuple[int, ...], ...]:
    """Return all maximal fillings of a node: the number of jobs of each size, in the order of `sizes` (largest first).

    With sizes 1 to 8 and 8 GPUs, these are the 22 partitions of 8.
    """

    def extend(position: int, left: int) -> list[tuple[int, ...]]:
        if position == len(sizes):
            return [()]
        return [
            (count, *rest)
            for count in range(left // sizes[position], -1, -1)
            for rest in extend(position + 1, left - count * sizes[position])
        ]

    smallest = min(sizes, default=capacity + 1)
    everything = extend(0, capacity)
    return tuple(
        counts
        for counts in everything
        if sum(counts) and capacity - sum(s * c for s, c in zip(sizes, counts, strict=True)) < smallest
    )


class Program:
    """Linear program of a decision, built column by column and row by row. Columns have the order x, s, y, u, z."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.costs: list[float] = []
        self._entries: list[tuple[int, int, float]] = []  # row, column, coefficient
        self._limits: list[tuple[float, float]] = []  # of each row
        # Cost of waiting of each job; 0 for jobs that must run, for which the rows exclude waiting.
        self.waiting_usd = np.where(np.isfinite(options.postponed_usd), options.postponed_usd, 0.0)
        machines, running = options.machines, options.running
        index_of = {machine.name: index for index, machine in enumerate(machines)}
        self._size_of = dict(zip(options.configurations, options.size_of.tolist(), strict=True))
        self.starts = {
            (int(job), int(item)): self._column(options.cost_usd[job, item] - self.waiting_usd[job])
            for job, item in np.argwhere(np.isfinite(options.cost_usd))
        }
        self.stays = {
            job: self._column(options.stay_usd[job] - self.waiting_usd[job])
            for job, place in enumerate(running)
            if place is not None
        }
        used = {item for _, item in self.starts}
        sizes = [
            tuple(sorted({int(options.size_of[item]) for item in used if options.machine_of[item] == v}, reverse=True))
            for v in range(len(machines))
        ]
        kept = sorted({(place.node, index_of[place.configuration.machine]) for place in running if place is not None})
        self.kept = {node: (self._column(options.period_usd[machine]), machine) for node, machine in kept}
        self.first_count = len(self.costs)  # columns from here on are counts, without an upper bound
        self.slots = {(node, v, size): self._column(0.0) for node, v in kept for size in sizes[v]}
        self.fillings = [
            (self._column(options.period_usd[v]), v, {q: n for q, n in zip(sizes[v], counts, strict=True) if n})
            for v, machine in enumerate(machines)
            for counts in fillings(sizes[v], machine.num_gpus)
        ]
        self._add_one_place()
        self._add_room()
        self._add_slots()
        self._add_nodes()
        if math.isfinite(options.budget_usd):
            self._add_budget()

    def _column(self, cost: float) -> int:
        self.costs.append(float(cost))
        return len(self.costs) - 1

    def _row(self, entries: Iterable[tuple[int, float]], upper: float, lower: float = -math.inf) -> None:
        self._entries += [(len(self._limits), column, value) for column, value in entries]
        self._limits.append((lower, upper))

    def _place(self, job: int) -> Placement:
        place = self.options.running[job]
        assert place is not None
        return place

    def _add_one_place(self) -> None:
        """Add at most one place per job: Σ_k x_jk + s_j ≤ 1, or = 1 if the job must not wait."""
        for job, postponed_usd in enumerate(self.options.postponed_usd):
            columns = [column for (own, _), column in self.starts.items() if own == job]
            columns += [self.stays[job]] if job in self.stays else []
            self._row([(column, 1.0) for column in columns], 1.0, 0.0 if math.isfinite(postponed_usd) else 1.0)

    def _add_room(self) -> None:
        """Add the capacity of kept nodes: Σ_q q u_nq + Σ_j g_j s_j ≤ G y_n, and s_j ≤ y_n."""
        for node, (column, machine) in self.kept.items():
            gpus = [(column, -float(self.options.machines[machine].num_gpus))]
            gpus += [
                (stay, float(self._size_of[self._place(job).configuration]))
                for job, stay in self.stays.items()
                if self._place(job).node == node
            ]
            gpus += [(slot, float(size)) for (own, _, size), slot in self.slots.items() if own == node]
            self._row(gpus, 0.0)
        for job, stay in self.stays.items():
            self._row([(stay, 1.0), (self.kept[self._place(job).node][0], -1.0)], 0.0)

    def _add_slots(self) -> None:
        """Limit the starts of each size by its slots: Σ_{j, k: (v, q)} x_jk ≤ Σ_f slots_fq z_vf + Σ_{n: v} u_nq."""
        rows: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for (_, item), column in self.starts.items():
            key = (int(self.options.machine_of[item]), int(self.options.size_of[item]))
            rows.setdefault(key, []).append((column, 1.0))
        for (_, machine, size), column in self.slots.items():
            rows[machine, size].append((column, -1.0))
        for column, machine, counts in self.fillings:
            for size, count in counts.items():
                rows[machine, size].append((column, -float(count)))
        for row in rows.values():
            self._row(row, 0.0)

    def _add_nodes(self) -> None:
        """Limit the number of rented machines: Σ_n y_n + Σ_vf z_vf ≤ N, and per type Σ_{n: v} y_n + Σ_f z_vf ≤ Q_v.

        A type that combines several machines counts as several machines, in N and in the quota of the single machine's
        type.
        """
        rented = [*self.kept.values(), *((column, machine) for column, machine, _ in self.fillings)]
        machines = self.options.machines
        self._row([(column, float(machines[v].nodes)) for column, v in rented], float(self.options.nodes))
        for machine, quota in zip(machines, self.options.quotas.tolist(), strict=True):
            alike = [(column, v) for column, v in rented if machines[v].kind == machine.kind]
            self._row([(column, float(machines[v].nodes)) for column, v in alike], float(quota))

    def _add_budget(self) -> None:
        """Limit the cost, Σ_jk m_jk x_jk + Σ_j m_j s_j + Σ_j r_j (1 − Σ_k x_jk − s_j) + idle GPUs ≤ B.

        m_jk is the job's share of its machine until its end, and r_j is the budget reserved for a job that waits. The
        cost of idle GPUs is the price of the machines until the next event, minus the shares of their jobs. The
        published models lack this constraint.
        """
        options = self.options
        capacity = np.array([machine.num_gpus for machine in options.machines])[options.machine_of]
        part = options.period_usd[options.machine_of] * options.size_of / capacity  # (K,)
        used = dict(zip(options.configurations, part.tolist(), strict=True))
        row = [
            (column, float(options.machine_usd[job, item] - options.reserved_usd[job] - part[item]))
            for (job, item), column in self.starts.items()
        ]
        for job, column in self.stays.items():
            idle = options.reserved_usd[job] + used[self._place(job).configuration]
            row.append((column, float(options.stay_machine_usd[job] - idle)))
        rented = [*self.kept.values(), *((column, machine) for column, machine, _ in self.fillings)]
        row += [(column, float(options.period_usd[machine])) for column, machine in rented]
        self._row(row, options.budget_usd - float(options.reserved_usd.sum()))

    def solve(self, **options: float) -> OptimizeResult:
        """Solve the program with HiGHS."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        rows, columns, values = zip(*self._entries, strict=True) if self._entries else ((), (), ())
        count = len(self.costs)
        matrix = csr_array((np.array(values, dtype=float), (rows, columns)), shape=(len(self._limits), count))
        upper = np.where(np.arange(count) >= self.first_count, np.inf, 1.0)
        with _libraries_print_nothing():
            return milp(
                np.array(self.costs),
                integrality=np.ones(count),
                bounds=Bounds(np.zeros(count), upper),
                constraints=LinearConstraint(matrix, *np.array(self._limits).T),
                options=options,
            )

    def placements(self, x: npt.NDArray[np.int64]) -> dict[str, Placement]:
        """Convert a solution to placements. Kept nodes are filled first, then new nodes."""
        options = self.options
        placements = {options.jobs[job]: self._place(job) for job, column in self.stays.items() if x[column]}
        places: dict[tuple[int, int], list[int]] = {}  # nodes with room for a job, by machine and size
        for (node, machine, size), column in self.slots.items():
            places.setdefault((machine, size), []).extend([node] * int(x[column]))
        taken = {node for node, (column, _) in self.kept.items() if x[column]}
        free = (node for node in range(options.nodes) if node not in taken)
        for column, machine, counts in self.fillings:
            for _ in range(int(x[column])):
                node = next(free)
                for size, count in counts.items():
                    places.setdefault((machine, size), []).extend([node] * count)
        for (job, item), column in self.starts.items():
            if x[column]:
                node = places[int(options.machine_of[item]), int(options.size_of[item])].pop(0)
                placements[options.jobs[job]] = Placement(node=node, configuration=options.configurations[item])
        return dict(sorted(placements.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class MilpPlanner:
    """Planner that optimizes each decision."""

    time_limit_seconds: float = 30.0
    relative_gap: float = 1e-4
    name: str = "MILP"

    def decide(self, problem: PlanningProblem, situation: PlanState) -> RunningJobs:
        """Return the best decision found within the time limit, with its gap."""
        started = time.perf_counter()
        check_scipy()
        program = Program(options_of(*_most_urgent(problem, situation)))
        constant = float(program.waiting_usd.sum())
        result = program.solve(time_limit=self.time_limit_seconds, mip_rel_gap=self.relative_gap)
        bound = None if result.mip_dual_bound is None else float(result.mip_dual_bound) + constant
        if result.x is None:
            placements = _queued(problem, situation)
        else:
            placements = program.placements(np.rint(result.x).astype(int))
        return RunningJobs(
            placements=placements,
            objective_usd=None if result.x is None else float(result.fun) + constant,
            bound_usd=bound,
            solve_seconds=time.perf_counter() - started,
        )


def _most_urgent(problem: PlanningProblem, situation: PlanState) -> tuple[PlanningProblem, PlanState]:
    """Leave out all waiting jobs but `MOST_WAITING`: those whose delay costs most per second of work (Smith's rule)."""
    waiting = {
        job.name: job for job in problem.jobs if job.name in situation.remaining and job.name not in situation.running
    }
    if len(waiting) <= MOST_WAITING:
        return problem, situation
    order = sorted(waiting, key=lambda name: (-_delay_usd(waiting[name]), name))
    left = set(order[MOST_WAITING:])
    limits = problem.limits
    if limits.budget_usd is not None:
        reserve = sum(cheapest_usd(waiting[name], problem) * situation.remaining[name] for name in left)
        limits = replace(limits, budget_usd=limits.budget_usd - reserve)
    remaining = {name: share for name, share in situation.remaining.items() if name not in left}
    jobs = tuple(job for job in problem.jobs if job.name not in left)
    return replace(problem, jobs=jobs, limits=limits), replace(situation, remaining=remaining)


def _delay_usd(job: Job) -> float:
    return job.tardiness_usd_per_hour / job.fastest_seconds


@contextmanager
def _libraries_print_nothing() -> Iterator[None]:
    """Suppress what C libraries print to standard output, which is reserved for a command's JSON and table.

    HiGHS sometimes prints a line even if its output is off (github.com/jump-dev/HiGHS.jl/issues/312).
    """
    if os.name != "posix":
        yield
        return
    flush = ctypes.CDLL(None).fflush  # C's own buffer, unknown to Python
    flush(None)
    standard_output, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        flush(None)
        os.dup2(standard_output, 1)
        os.close(standard_output)
        os.close(nowhere)


def check_scipy() -> None:
    """Raise an error with the install command if SciPy is not installed."""
    try:
        import scipy.optimize  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "The MILP needs SciPy, which is not installed: pip install lightning-predict[planning]. "
            "The queue rules (edf, fifo, ps and their -shared forms) work without it."
        ) from error


def _queued(problem: PlanningProblem, situation: PlanState) -> dict[str, Placement]:
    """Keep running jobs, and start the others in queue order; with a budget, none, as a queue cannot keep it."""
    if problem.limits.budget_usd is not None:
        return dict(situation.running)
    rule = replace(EARLIEST_DEADLINE_FIRST, shares_gpus=problem.formulation.shares_gpus)
    return dict(rule.decide(problem, situation).placements)
