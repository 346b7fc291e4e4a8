"""Problems of round numbers, scripted policies, and what every decision must keep."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchmarks.planning.study import random_problem
from lightning_predict.planning.problem import (
    Configuration,
    Formulation,
    Job,
    Limits,
    MachineType,
    Placement,
    PlanningProblem,
    PlanState,
    RunningJobs,
)
from lightning_predict.planning.simulator import simulate

HOUR = 3600.0
SMALL = MachineType(name="small", gpu="T4", num_gpus=1, usd_per_hour=1.0)
LARGE = MachineType(name="large", gpu="A10", num_gpus=4, usd_per_hour=6.0)


def on(machine: str, num_gpus: int) -> Configuration:
    return Configuration(machine=machine, num_gpus=num_gpus)


def at(node: int, machine: str, num_gpus: int) -> Placement:
    return Placement(node=node, configuration=on(machine, num_gpus))


def job(
    name: str, *, hours: Mapping[Configuration, float], deadline: float, weight: float = 1.0, release: float = 0.0
) -> Job:
    """All times in hours."""
    return Job(
        name=name,
        seconds={configuration: value * HOUR for configuration, value in hours.items()},
        deadline_seconds=deadline * HOUR,
        tardiness_usd_per_hour=weight,
        release_seconds=release * HOUR,
        checkpoint="/shared",
    )


TWO_JOBS = PlanningProblem(  # a: in time on large (6 $), 2 h late on small (4 $ and 6 $ of tardiness); b: 2 $ on small
    jobs=(
        job("a", hours={on("small", 1): 4.0, on("large", 4): 1.0}, deadline=2.0, weight=3.0),
        job("b", hours={on("small", 1): 2.0}, deadline=3.0, weight=1.0),
    ),
    machines=(SMALL, LARGE),
    limits=Limits(nodes=2),
    restart_seconds=0.0,
)

STAYING = replace(TWO_JOBS, formulation=Formulation(preempts=False, migrates=False))

ONE_EVENT = replace(TWO_JOBS, period_seconds=1e9)  # Only submissions and ends are events


def at_start(problem: PlanningProblem) -> PlanState:
    """All jobs wait."""
    return PlanState(now_seconds=0.0, remaining={item.name: 1.0 for item in problem.jobs})


def running(*, now_hours: float = 0.0, remaining: Mapping[str, float], **placements: Placement) -> PlanState:
    """Some jobs run where they started."""
    started = {name: placement.configuration for name, placement in placements.items()}
    return PlanState(now_seconds=now_hours * HOUR, remaining=remaining, running=placements, started=started)


@dataclass(frozen=True)
class Script:
    """A policy that plays back decisions, one per event; the last one holds."""

    decisions: tuple[dict[str, Placement], ...]
    seen: list[PlanState] = field(default_factory=list)
    name: str = "script"

    def decide(self, problem: PlanningProblem, situation: PlanState) -> RunningJobs:
        self.seen.append(situation)
        placements = self.decisions[min(len(self.seen), len(self.decisions)) - 1]
        return RunningJobs(
            placements={name: item for name, item in placements.items() if name in situation.remaining},
            objective_usd=None,
            bound_usd=None,
            solve_seconds=0.0,
        )


PLAN = simulate(ONE_EVENT, Script(({"a": at(0, "large", 4), "b": at(1, "small", 1)},)))
MOVED = simulate(  # a goes from small to large after an hour
    replace(ONE_EVENT, period_seconds=HOUR),
    Script(({"a": at(0, "small", 1), "b": at(1, "small", 1)}, {"a": at(0, "large", 4), "b": at(1, "small", 1)})),
)


def crowd(
    jobs: int,
    nodes: int,
    *,
    seed: int,
    machines: frozenset[str] | None = None,
    formulation: Formulation = Formulation(),  # noqa: B008
) -> PlanningProblem:
    """Jobs of the comparison that all wait at the start, on some of its machine types."""
    problem = random_problem(nodes=jobs // 10 + 1, mean_gap_seconds=10.0, seed=seed)
    offered = tuple(item for item in problem.machines if machines is None or item.name in machines)
    names = {item.name for item in offered}
    waiting = tuple(
        replace(
            item,
            seconds={place: value for place, value in item.seconds.items() if place.machine in names},
            release_seconds=0.0,
            deadline_seconds=item.deadline_seconds - item.release_seconds,
        )
        for item in problem.jobs[:jobs]
    )
    return replace(problem, jobs=waiting, machines=offered, limits=Limits(nodes=nodes), formulation=formulation)


def assert_allowed(problem: PlanningProblem, placements: Mapping[str, Placement]) -> None:
    """One machine type per node, no more nodes, GPUs and machines of a type than there are."""
    capacity = {machine.name: machine.num_gpus for machine in problem.machines}
    types: dict[int, str] = {}
    used: dict[int, int] = {}
    jobs_on: dict[int, int] = {}
    for name, placement in placements.items():
        node, machine = placement.node, placement.configuration.machine
        assert placement.configuration in next(item for item in problem.jobs if item.name == name).seconds
        assert types.setdefault(node, machine) == machine
        used[node] = used.get(node, 0) + placement.configuration.num_gpus
        jobs_on[node] = jobs_on.get(node, 0) + 1
        assert 0 <= node < problem.limits.nodes
    assert all(gpus <= capacity[types[node]] for node, gpus in used.items())
    for machine, quota in problem.limits.quotas.items():
        assert list(types.values()).count(machine) <= quota
    if not problem.formulation.shares_gpus:
        assert set(jobs_on.values()) <= {1}
