"""The exact planner: one decision as a mixed-integer linear program, solved by HiGHS through SciPy.

    min  Σ_jk cost_jk x_jk + Σ_j postponed_j (1 − Σ_k x_jk) + Σ_vf period_v z_vf     under the constraints below

Sets: jobs j, machine types v with G_v GPUs, sizes s (GPUs that a job takes of its machine), nodes. Variables:

    x_jk ∈ {0, 1}       job j runs on configuration k = (v, g); a job without any waits
    z_vf ∈ {0, 1, …}    how many nodes become machines of type v that are filled in the way f
    u_of ∈ {0, 1, …}    how many of the open nodes of kind o = (type, free GPUs) are filled in the way f

Ours: the published models name each node (w_n, y_vn, x_jvgn). Free nodes are all alike, so any plan can be
written in many ways, and a solver has to refute each of them. Here nodes are counted by how they are filled: a filling
of an 8-GPU machine is one of the 22 ways to write 8 as a sum of sizes. The same plans are allowed; names are given to
the nodes afterwards (`placement.py`).
Tardiness needs no variables, because x_jk fixes it (`objective.py`).

A plan always comes back: where the time limit ends the search, the best plan found so far with its gap; where nothing
was found yet, the heuristic's plan with the solver's bound. Example::

    decision = MilpPlanner(time_limit_seconds=10.0).decide(problem, situation)
    decision.objective_usd, decision.gap
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from lightning_predict.errors import MissingDependencyError
from lightning_predict.planning import milp as family
from lightning_predict.planning.heuristic import HeuristicPlanner
from lightning_predict.planning.objective import Options, Table, options_of
from lightning_predict.planning.placement import WAITS, Choice, decision_of, fillings
from lightning_predict.planning.problem import Decision, Problem, Situation

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """One way to fill a kind of node.

    Attributes:
        machine: Index of the machine type.
        free_gpus: GPUs of an open node that are free; None for a new node.
        slots: How many jobs of each size it holds, by size.
        limit: How many nodes of the kind there are.
    """

    machine: int
    free_gpus: int | None
    slots: dict[int, int]
    limit: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """The columns of the MILP: first x, then z and u.

    Attributes:
        pairs: Job and configuration index of each x.
        fillings: The filling of each z and u.
    """

    pairs: tuple[tuple[int, int], ...]
    fillings: tuple[Filling, ...]

    @property
    def count(self) -> int:
        """Number of columns."""
        return len(self.pairs) + len(self.fillings)

    def filling_columns(self) -> list[tuple[int, Filling]]:
        """Number the columns of the fillings."""
        return list(enumerate(self.fillings, start=len(self.pairs)))


def variables_of(options: Options) -> Variables:
    """Return the columns for a decision."""
    pairs = tuple((int(job), int(item)) for job, item in np.argwhere(np.isfinite(options.cost_usd)))
    ways: list[Filling] = []
    for index, machine in enumerate(options.machines):
        sizes = tuple(sorted({int(size) for size in options.size_of[options.machine_of == index]}, reverse=True))
        new = min(len(options.free_nodes), int(options.quotas[index]))
        kinds: list[tuple[int, int | None, int]] = [(machine.num_gpus, None, new)]
        open_nodes = Counter(node.free_gpus for node in options.open_nodes if node.machine == index)
        kinds += [(gpus, gpus, number) for gpus, number in sorted(open_nodes.items())]
        for capacity, free_gpus, limit in kinds:
            for counts in fillings(sizes, capacity):
                slots = {size: count for size, count in zip(sizes, counts, strict=True) if count}
                ways.append(Filling(machine=index, free_gpus=free_gpus, slots=slots, limit=limit))
    return Variables(pairs=pairs, fillings=tuple(ways))


def one_configuration(options: Options, variables: Variables) -> LinearConstraint:
    """Constrain a job to one configuration at most, and to exactly one where it must not wait: Σ_k x_jk ≤ 1, or = 1."""
    rows = [[(column, 1.0) for column, (j, _) in enumerate(variables.pairs) if j == job] for job in _jobs(options)]
    lower = np.where(np.isfinite(options.postponed_usd), 0.0, 1.0)
    return _constraint(variables, rows, lower, np.ones(len(rows)))


def slots(options: Options, variables: Variables) -> LinearConstraint:
    """Require as many places of a size as jobs take: Σ_{j, k: (v, s)} x_jk ≤ Σ_f slots_fs (z_vf + u_of)."""
    kinds = sorted({(int(v), int(s)) for v, s in zip(options.machine_of, options.size_of, strict=True)})
    rows = [
        [
            (column, 1.0)
            for column, (_, item) in enumerate(variables.pairs)
            if (options.machine_of[item], options.size_of[item]) == (machine, size)
        ]
        + [
            (column, -float(filling.slots[size]))
            for column, filling in variables.filling_columns()
            if filling.machine == machine and size in filling.slots
        ]
        for machine, size in kinds
    ]
    return _constraint(variables, rows, np.full(len(rows), -np.inf), np.zeros(len(rows)))


def nodes(options: Options, variables: Variables) -> LinearConstraint:
    """Allow no more new machines than free nodes: Σ_vf z_vf ≤ N."""
    row = [(column, 1.0) for column, filling in variables.filling_columns() if filling.free_gpus is None]
    return _constraint(variables, [row], np.array([-np.inf]), np.array([float(len(options.free_nodes))]))


def quotas(options: Options, variables: Variables) -> LinearConstraint:
    """Allow no more machines of a type than its quota: Σ_f z_vf ≤ Q_v for each v."""
    rows = [
        [
            (column, 1.0)
            for column, filling in variables.filling_columns()
            if filling.machine == machine and filling.free_gpus is None
        ]
        for machine in range(len(options.machines))
    ]
    return _constraint(variables, rows, np.full(len(rows), -np.inf), options.quotas.astype(float))


def open_nodes(options: Options, variables: Variables) -> LinearConstraint:
    """Constrain an open node to be filled once: Σ_f u_of ≤ number of open nodes of kind o."""
    kinds = Counter((node.machine, node.free_gpus) for node in options.open_nodes)
    rows = [
        [
            (column, 1.0)
            for column, filling in variables.filling_columns()
            if (filling.machine, filling.free_gpus) == kind
        ]
        for kind in sorted(kinds)
    ]
    upper = np.array([float(kinds[kind]) for kind in sorted(kinds)])
    return _constraint(variables, rows, np.full(len(rows), -np.inf), upper)


def budget(options: Options, variables: Variables) -> LinearConstraint:
    """Keep the budget: Σ_jk m_jk x_jk + Σ_j r_j (1 − Σ_k x_jk) + idle GPUs until the next event ≤ B.

    m_jk is the job's share of its machine until its end, r_j what is kept for a job that waits; idle is the price of
    the machines until the next event without the shares of their jobs. Ours.
    """
    row = []
    for column, (job, item) in enumerate(variables.pairs):
        machine = options.machines[options.machine_of[item]]
        used = float(options.period_usd[options.machine_of[item]]) * float(options.size_of[item]) / machine.num_gpus
        row.append((column, float(options.machine_usd[job, item] - options.reserved_usd[job]) - used))
    row += [
        (column, float(options.period_usd[filling.machine]))
        for column, filling in variables.filling_columns()
        if filling.free_gpus is None
    ]
    left = options.budget_usd - float(options.reserved_usd.sum())
    return _constraint(variables, [row], np.array([-np.inf]), np.array([left]))


def has_budget(options: Options) -> bool:
    """Tell whether the budget is a limit at all."""
    return math.isfinite(options.budget_usd)


def _jobs(options: Options) -> range:
    return range(len(options.jobs))


def _constraint(
    variables: Variables,
    rows: list[list[tuple[int, float]]],
    lower: npt.NDArray[np.float64],
    upper: npt.NDArray[np.float64],
) -> LinearConstraint:
    """Return the rows lower ≤ A · (x, z, u) ≤ upper, from the entries of A."""
    from scipy.optimize import LinearConstraint
    from scipy.sparse import csr_array

    entries = [(number, column, value) for number, row in enumerate(rows) for column, value in row]
    row_of, column_of, values = zip(*entries, strict=True) if entries else ((), (), ())
    matrix = csr_array((np.array(values, dtype=float), (row_of, column_of)), shape=(len(rows), variables.count))
    return LinearConstraint(matrix, lower, upper)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MilpPlanner:
    """Decides by the MILP.

    Attributes:
        time_limit_seconds: For one decision.
        relative_gap: The search ends when no plan can be cheaper by more than this share.
        name: What tables call it.
    """

    time_limit_seconds: float = 30.0
    relative_gap: float = 1e-6
    name: str = "MILP"

    def decide(self, problem: Problem, situation: Situation) -> Decision:
        """Return the best decision within the time limit, and the gap that it left.

        Raises:
            MissingDependencyError: SciPy is not installed.
        """
        started = time.perf_counter()
        check_scipy()
        options = options_of(problem, situation)
        if not options.jobs:
            return _nothing_to_decide(options, situation)
        variables = variables_of(options)
        result = self._solve(options, variables)
        bound = None if result.mip_dual_bound is None else float(result.mip_dual_bound) + _constant_usd(options)
        seconds = time.perf_counter() - started
        if result.x is None:
            decision = HeuristicPlanner().decide(problem, situation)
            return Decision(
                placements=decision.placements,
                postponed=decision.postponed,
                objective_usd=decision.objective_usd,
                bound_usd=bound,
                method=f"{decision.method}; MILP: {result.message}",
                solve_seconds=seconds + decision.solve_seconds,
            )
        choice, opened, bins = _read(options, variables, result.x)
        return decision_of(
            options,
            situation,
            choice,
            opened=opened,
            bins=bins,
            objective_usd=float(result.fun) + _constant_usd(options),
            bound_usd=bound,
            method=self.name,
            solve_seconds=seconds,
        )

    def _solve(self, options: Options, variables: Variables) -> Any:
        """Ask HiGHS for the answer; Any because SciPy does not type it."""
        from scipy.optimize import Bounds, milp

        constraints = [
            family.one_configuration(options, variables),
            family.slots(options, variables),
            family.nodes(options, variables),
            family.quotas(options, variables),
        ]
        if options.open_nodes:
            constraints.append(family.open_nodes(options, variables))
        if family.has_budget(options):
            constraints.append(family.budget(options, variables))
        upper = [1.0] * len(variables.pairs) + [float(filling.limit) for filling in variables.fillings]
        return milp(
            _costs(options, variables),
            integrality=np.ones(variables.count),
            bounds=Bounds(np.zeros(variables.count), np.maximum(upper, 0.0)),
            constraints=constraints,
            options={"time_limit": self.time_limit_seconds, "mip_rel_gap": self.relative_gap},
        )


def check_scipy() -> None:
    """Say how to install SciPy where it is missing.

    Raises:
        MissingDependencyError: It is.
    """
    try:
        import scipy.optimize  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "The MILP needs SciPy, which is not installed: pip install lightning-predict[planning]. "
            "The heuristic planner works without it."
        ) from error


def _waiting_usd(options: Options) -> Table:
    """Cost the wait of each job; 0 for jobs that must run, whose waiting the constraints exclude."""
    return np.where(np.isfinite(options.postponed_usd), options.postponed_usd, 0.0)


def _constant_usd(options: Options) -> float:
    """Find what every decision costs: all jobs waiting, and the jobs that are fixed."""
    return float(_waiting_usd(options).sum()) + options.fixed_usd


def _costs(options: Options, variables: Variables) -> Table:
    """Build the coefficients of the objective: running instead of waiting, and new machines until the next event."""
    waiting = _waiting_usd(options)
    running = [options.cost_usd[job, item] - waiting[job] for job, item in variables.pairs]
    machines = [
        options.period_usd[filling.machine] if filling.free_gpus is None else 0.0 for filling in variables.fillings
    ]
    return np.array([*running, *machines], dtype=float)


def _read(options: Options, variables: Variables, x: Table) -> tuple[Choice, list[int], dict[int, list[list[int]]]]:
    """Return the solver's numbers as a choice, the new nodes by type, and what each node holds (open ones first)."""
    choice = np.full(len(options.jobs), WAITS, dtype=np.int64)
    for column, (job, item) in enumerate(variables.pairs):
        if x[column] > 0.5:
            choice[job] = item
    opened = [0] * len(options.machines)
    new: dict[int, list[list[int]]] = {index: [] for index in range(len(options.machines))}
    held: dict[tuple[int, int], list[list[int]]] = {}
    for column, filling in variables.filling_columns():
        number = round(x[column])
        sizes = [size for size, count in filling.slots.items() for _ in range(count)]
        if filling.free_gpus is None:
            opened[filling.machine] += number
            new[filling.machine] += [sizes] * number
        else:
            held.setdefault((filling.machine, filling.free_gpus), []).extend([sizes] * number)
    bins = {}
    for index in new:
        fillings_left = {key: list(value) for key, value in held.items()}
        first = [
            fillings_left[key].pop() if fillings_left.get(key := (index, node.free_gpus)) else []
            for node in options.open_nodes
            if node.machine == index
        ]
        bins[index] = first + new[index]
    return choice, opened, bins


def _nothing_to_decide(options: Options, situation: Situation) -> Decision:
    return decision_of(
        options,
        situation,
        np.empty(0, dtype=np.int64),
        opened=[0] * len(options.machines),
        bins={index: [] for index in range(len(options.machines))},
        objective_usd=options.fixed_usd,
        bound_usd=options.fixed_usd,
        method="nothing to decide",
        solve_seconds=0.0,
    )
