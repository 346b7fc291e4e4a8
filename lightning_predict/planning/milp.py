"""MILP planner: optimizes one decision as a mixed-integer linear program, solved by HiGHS through SciPy.

::

    min  Σ_jk cost_jk x_jk + Σ_j stay_j s_j + Σ_j postponed_j (1 − Σ_k x_jk − s_j)
        + Σ_n period_n y_n + Σ_vf period_v z_vf

subject to the constraints of `one_place`, `room`, `slots`, `nodes` and `budget`. Index sets: jobs j, machine types v
with G_v GPUs each, sizes q (number of GPUs of a machine that a job uses), and currently rented nodes n. Variables::

    x_jk ∈ {0, 1}       job j starts on configuration k = (v, g), on a node that is new to it
    s_j  ∈ {0, 1}       job j stays where it runs; if x and s are 0, the job waits
    y_n  ∈ {0, 1}       node n is kept
    u_nq ∈ {0, 1, …}    number of jobs of size q that start on a kept node
    z_vf ∈ {0, 1, …}    number of new nodes of machine type v with filling f

`Options` contains the prices: `cost_usd` (cost_jk), `stay_usd` (stay_j), `postponed_usd` (postponed_j) and `period_usd`
(period_v, and period_n by the type of node n). To add a variable, extend `Variables` and the five constraints.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from lightning_predict.base.errors import MissingDependencyError
from lightning_predict.planning.objective import Options, Table, options_of
from lightning_predict.planning.problem import Placement, PlanningProblem, PlanState, RunningJobs
from lightning_predict.planning.queues import EARLIEST_DEADLINE_FIRST

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint


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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """Columns of the linear program, in this order.

    Job and configuration of each x, job and node of each s, node and machine of each y, node, machine and size of each
    u, machine and jobs by size of each z.
    """

    starts: tuple[tuple[int, int], ...]
    stays: tuple[tuple[int, int], ...]
    kept: tuple[tuple[int, int], ...]
    slots: tuple[tuple[int, int, int], ...]
    fillings: tuple[tuple[int, dict[int, int]], ...]

    @property
    def first_stay(self) -> int:
        """Column of the first s."""
        return len(self.starts)

    @property
    def first_kept(self) -> int:
        """Column of the first y."""
        return self.first_stay + len(self.stays)

    @property
    def first_slot(self) -> int:
        """Column of the first u."""
        return self.first_kept + len(self.kept)

    @property
    def first_filling(self) -> int:
        """Column of the first z."""
        return self.first_slot + len(self.slots)

    @property
    def count(self) -> int:
        """Number of columns."""
        return self.first_filling + len(self.fillings)


def variables_of(options: Options) -> Variables:
    """Return the columns of the linear program for a decision."""
    starts = tuple((int(job), int(item)) for job, item in np.argwhere(np.isfinite(options.cost_usd)))
    used = {item for _, item in starts}
    sizes = [
        tuple(sorted({int(options.size_of[item]) for item in used if options.machine_of[item] == index}, reverse=True))
        for index in range(len(options.machines))
    ]
    index_of = {machine.name: index for index, machine in enumerate(options.machines)}
    kept = tuple(
        sorted({(place.node, index_of[place.configuration.machine]) for place in options.running if place is not None})
    )
    return Variables(
        starts=starts,
        stays=tuple((job, place.node) for job, place in enumerate(options.running) if place is not None),
        kept=kept,
        slots=tuple((node, machine, size) for node, machine in kept for size in sizes[machine]),
        fillings=tuple(
            (index, {size: count for size, count in zip(sizes[index], counts, strict=True) if count})
            for index, machine in enumerate(options.machines)
            for counts in fillings(sizes[index], machine.num_gpus)
        ),
    )


Entries = list[tuple[int, float]]
"""Row of a constraint, as pairs of column and coefficient."""


def one_place(options: Options, variables: Variables) -> LinearConstraint:
    """Return the constraint of at most one place per job: Σ_k x_jk + s_j ≤ 1, or = 1 if the job must not wait."""
    rows: list[Entries] = [[] for _ in options.jobs]
    for column, (job, _) in enumerate(variables.starts):
        rows[job].append((column, 1.0))
    for column, (job, _) in enumerate(variables.stays, start=variables.first_stay):
        rows[job].append((column, 1.0))
    lower = np.where(np.isfinite(options.postponed_usd), 0.0, 1.0)  # (J,)
    return _constraint(variables, rows, lower, np.ones(len(rows)))


def room(options: Options, variables: Variables) -> LinearConstraint:
    """Return the capacity constraint of kept nodes: Σ_q q u_nq + Σ_j g_j s_j ≤ G y_n, and s_j ≤ y_n."""
    column_of = {node: column for column, (node, _) in enumerate(variables.kept, start=variables.first_kept)}
    size_of = dict(zip(options.configurations, options.size_of.tolist(), strict=True))
    gpus: dict[int, Entries] = {
        node: [(column_of[node], -float(options.machines[machine].num_gpus))] for node, machine in variables.kept
    }
    stays: list[Entries] = []
    for column, (job, node) in enumerate(variables.stays, start=variables.first_stay):
        place = options.running[job]
        assert place is not None
        gpus[node].append((column, float(size_of[place.configuration])))
        stays.append([(column, 1.0), (column_of[node], -1.0)])
    for column, (node, _, size) in enumerate(variables.slots, start=variables.first_slot):
        gpus[node].append((column, float(size)))
    return _at_most(variables, [*gpus.values(), *stays], 0.0)


def slots(options: Options, variables: Variables) -> LinearConstraint:
    """Limit the starts of each size by its slots: Σ_{j, k: (v, q)} x_jk ≤ Σ_f slots_fq z_vf + Σ_{n: v} u_nq."""
    rows: dict[tuple[int, int], Entries] = {}
    for column, (_, item) in enumerate(variables.starts):
        key = (int(options.machine_of[item]), int(options.size_of[item]))
        rows.setdefault(key, []).append((column, 1.0))
    for column, (_, machine, size) in enumerate(variables.slots, start=variables.first_slot):
        rows[machine, size].append((column, -1.0))
    for column, (machine, counts) in enumerate(variables.fillings, start=variables.first_filling):
        for size, count in counts.items():
            rows[machine, size].append((column, -float(count)))
    return _at_most(variables, list(rows.values()), 0.0)


def nodes(options: Options, variables: Variables) -> LinearConstraint:
    """Limit the number of rented machines: Σ_n y_n + Σ_vf z_vf ≤ N, and per type Σ_{n: v} y_n + Σ_f z_vf ≤ Q_v.

    A type that combines several machines counts as several machines, in N and in the quota of the single machine's
    type.
    """
    machines = [
        *enumerate((machine for _, machine in variables.kept), start=variables.first_kept),
        *enumerate((machine for machine, _ in variables.fillings), start=variables.first_filling),
    ]
    sizes = [float(machine.nodes) for machine in options.machines]
    kinds = [machine.kind for machine in options.machines]
    rows: list[Entries] = [[(column, sizes[of]) for column, of in machines]]
    rows += [[(column, sizes[of]) for column, of in machines if kinds[of] == kind] for kind in kinds]
    return _at_most(variables, rows, np.array([options.nodes, *options.quotas.tolist()], dtype=float))


def budget(options: Options, variables: Variables) -> LinearConstraint:
    """Limit the cost: Σ_jk m_jk x_jk + Σ_j m_j s_j + Σ_j r_j (1 − Σ_k x_jk − s_j) + idle GPUs until the next event ≤ B.

    m_jk is the job's share of its machine until its end, and r_j is the budget reserved for a job that waits. The cost
    of idle GPUs is the price of the machines until the next event, minus the shares of their jobs. The published models
    lack this constraint.
    """
    part = options.period_usd[options.machine_of] * options.size_of  # (K,)
    part = part / np.array([machine.num_gpus for machine in options.machines])[options.machine_of]
    used = dict(zip(options.configurations, part.tolist(), strict=True))
    row: Entries = [
        (column, float(options.machine_usd[job, item] - options.reserved_usd[job] - part[item]))
        for column, (job, item) in enumerate(variables.starts)
    ]
    for column, (job, _) in enumerate(variables.stays, start=variables.first_stay):
        place = options.running[job]
        assert place is not None
        row.append((column, options.stay_machine_usd[job] - options.reserved_usd[job] - used[place.configuration]))
    row += _rents(options, variables)
    return _at_most(variables, [row], options.budget_usd - float(options.reserved_usd.sum()))


def _rents(options: Options, variables: Variables) -> Entries:
    """Return the price of each machine until the next event, as coefficients."""
    kept = enumerate((machine for _, machine in variables.kept), start=variables.first_kept)
    new = enumerate((machine for machine, _ in variables.fillings), start=variables.first_filling)
    return [(column, float(options.period_usd[machine])) for column, machine in (*kept, *new)]


def _at_most(variables: Variables, rows: Sequence[Entries], upper: float | Table) -> LinearConstraint:
    return _constraint(variables, rows, np.full(len(rows), -np.inf), np.broadcast_to(upper, len(rows)))


def _constraint(variables: Variables, rows: Sequence[Entries], lower: Table, upper: Table) -> LinearConstraint:
    """Return the constraint lower ≤ A · (x, s, y, u, z) ≤ upper, from the entries of A."""
    from scipy.optimize import LinearConstraint
    from scipy.sparse import csr_array

    entries = [(number, column, value) for number, row in enumerate(rows) for column, value in row]
    row_of, column_of, values = zip(*entries, strict=True) if entries else ((), (), ())
    # (rows, columns)
    matrix = csr_array((np.array(values, dtype=float), (row_of, column_of)), shape=(len(rows), variables.count))
    return LinearConstraint(matrix, lower, upper)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MilpPlanner:
    """Planner that optimizes each decision.

    Attributes:
        time_limit_seconds: Time limit of one decision.
        relative_gap: The search stops when no plan can be cheaper by more than this share.
        name: Name in tables.
    """

    time_limit_seconds: float = 30.0
    relative_gap: float = 1e-4
    name: str = "MILP"

    def decide(self, problem: PlanningProblem, situation: PlanState) -> RunningJobs:
        """Return the best decision found within the time limit, with its gap.

        Raises:
            MissingDependencyError: SciPy is not installed.
        """
        started = time.perf_counter()
        check_scipy()
        options = options_of(problem, situation)
        variables = variables_of(options)
        constant = float(_waiting_usd(options).sum())
        result = self._solve(options, variables)
        bound = None if result.mip_dual_bound is None else float(result.mip_dual_bound) + constant
        if result.x is None:
            placements = _queued(problem, situation)
        else:
            placements = _placements(options, variables, np.rint(result.x).astype(int))
        return RunningJobs(
            placements=placements,
            postponed=tuple(sorted(situation.remaining.keys() - placements.keys())),
            objective_usd=None if result.x is None else float(result.fun) + constant,
            bound_usd=bound,
            method=self.name if result.x is not None else f"queue; {self.name}: {result.message}",
            solve_seconds=time.perf_counter() - started,
        )

    def _solve(self, options: Options, variables: Variables) -> Any:
        """Solve the program with HiGHS. The result has the type Any, because SciPy has no type annotations."""
        from scipy.optimize import Bounds, milp

        constraints = [family(options, variables) for family in (one_place, room, slots, nodes)]
        if math.isfinite(options.budget_usd):
            constraints.append(budget(options, variables))
        counted = np.arange(variables.count) >= variables.first_slot
        with _libraries_print_nothing():
            return milp(
                _costs(options, variables),
                integrality=np.ones(variables.count),
                bounds=Bounds(np.zeros(variables.count), np.where(counted, np.inf, 1.0)),
                constraints=constraints,
                options={"time_limit": self.time_limit_seconds, "mip_rel_gap": self.relative_gap},
            )


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
    """Raise an error with the install command if SciPy is not installed.

    Raises:
        MissingDependencyError: SciPy is not installed.
    """
    try:
        import scipy.optimize  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "The MILP needs SciPy, which is not installed: pip install lightning-predict[planning]. "
            "The queue rules (edf, fifo, ps and their -shared forms) work without it."
        ) from error


def _waiting_usd(options: Options) -> Table:
    """Return the cost of waiting of each job; 0 for jobs that must run, for which the constraints exclude waiting."""
    return np.where(np.isfinite(options.postponed_usd), options.postponed_usd, 0.0)


def _costs(options: Options, variables: Variables) -> Table:
    """Return the coefficients of the objective.

    A job has its running cost minus its waiting cost, and a machine has its price until the next event.
    """
    waiting = _waiting_usd(options)
    costs = np.zeros(variables.count)
    costs[: variables.first_stay] = [options.cost_usd[job, item] - waiting[job] for job, item in variables.starts]
    costs[variables.first_stay : variables.first_kept] = [
        options.stay_usd[job] - waiting[job] for job, _ in variables.stays
    ]
    for column, price in _rents(options, variables):
        costs[column] = price
    return costs


def _placements(options: Options, variables: Variables, x: npt.NDArray[np.int64]) -> dict[str, Placement]:
    """Convert the solution to placements. Kept nodes are filled first, then new nodes."""
    placements: dict[str, Placement] = {}
    taken = {node for column, (node, _) in enumerate(variables.kept, start=variables.first_kept) if x[column]}
    for column, (job, _) in enumerate(variables.stays, start=variables.first_stay):
        place = options.running[job]
        if x[column] and place is not None:
            placements[options.jobs[job]] = place
    places: dict[tuple[int, int], list[int]] = {}  # nodes with room for a job, by machine and size
    for column, (node, machine, size) in enumerate(variables.slots, start=variables.first_slot):
        places.setdefault((machine, size), []).extend([node] * int(x[column]))
    free = (node for node in range(options.nodes) if node not in taken)
    for column, (machine, counts) in enumerate(variables.fillings, start=variables.first_filling):
        for _ in range(int(x[column])):
            node = next(free)
            for size, count in counts.items():
                places.setdefault((machine, size), []).extend([node] * count)
    for column, (job, item) in enumerate(variables.starts):
        if x[column]:
            nodes_left = places[int(options.machine_of[item]), int(options.size_of[item])]
            configuration = options.configurations[item]
            placements[options.jobs[job]] = Placement(node=nodes_left.pop(0), configuration=configuration)
    return dict(sorted(placements.items()))


def _queued(problem: PlanningProblem, situation: PlanState) -> dict[str, Placement]:
    """Keep running jobs, and start the others in queue order.

    With a budget, start no waiting job, because a queue rule cannot keep a budget.
    """
    if problem.limits.budget_usd is not None:
        return dict(situation.running)
    rule = replace(EARLIEST_DEADLINE_FIRST, shares_gpus=problem.formulation.shares_gpus)
    return dict(rule.decide(problem, situation).placements)
