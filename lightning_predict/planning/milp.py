"""The exact planner: one decision as a mixed-integer linear program, solved by HiGHS through SciPy.

    min  Σ_jk cost_jk x_jk + Σ_j postponed_j (1 − Σ_k x_jk) + Σ_vf period_v z_vf     under `milp_constraints.py`

A plan always comes back: where the time limit ends the search, the best plan found so far with its gap; where nothing
was found yet, the heuristic's plan with the solver's bound. Example::

    decision = MilpPlanner(time_limit_seconds=10.0).decide(problem, situation)
    decision.objective_usd, decision.gap
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from lightning_predict.errors import MissingDependencyError
from lightning_predict.planning import milp_constraints as family
from lightning_predict.planning.heuristic import HeuristicPlanner
from lightning_predict.planning.milp_constraints import Variables, variables_of
from lightning_predict.planning.objective import Options, Table, options_of
from lightning_predict.planning.placing import WAITS, Choice, decision_of
from lightning_predict.planning.records import Decision, Problem, Situation


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
        """The best decision within the time limit, and the gap that it left.

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
        """HiGHS's answer; Any because SciPy does not type it."""
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
    """Cost of waiting by job; 0 for jobs that must run, whose waiting the constraints exclude."""
    return np.where(np.isfinite(options.postponed_usd), options.postponed_usd, 0.0)


def _constant_usd(options: Options) -> float:
    """What every decision costs: all jobs waiting, and the jobs that are fixed."""
    return float(_waiting_usd(options).sum()) + options.fixed_usd


def _costs(options: Options, variables: Variables) -> Table:
    """Coefficients of the objective: running instead of waiting, and new machines until the next event."""
    waiting = _waiting_usd(options)
    running = [options.cost_usd[job, item] - waiting[job] for job, item in variables.pairs]
    machines = [
        options.period_usd[filling.machine] if filling.free_gpus is None else 0.0 for filling in variables.fillings
    ]
    return np.array([*running, *machines], dtype=float)


def _read(options: Options, variables: Variables, x: Table) -> tuple[Choice, list[int], dict[int, list[list[int]]]]:
    """The solver's numbers as a choice, the new nodes by type, and what each node holds (open ones first)."""
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
