"""Problems of round numbers, and what every decision must keep."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.planning.study import random_problem
from lightning_predict.cost.offers import load_offers
from lightning_predict.planning.problem import (
    Configuration,
    Formulation,
    Job,
    Limits,
    MachineType,
    Placement,
    PlanningProblem,
    PlanState,
)

HOUR = 3600.0
SMALL = MachineType(name="small", gpu="T4", num_gpus=1, usd_per_hour=1.0)
LARGE = MachineType(name="large", gpu="A10", num_gpus=4, usd_per_hour=6.0)


def on(machine: str, num_gpus: int) -> Configuration:
    return Configuration(machine=machine, num_gpus=num_gpus)


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


TWO_JOBS = PlanningProblem(
    jobs=(
        job("a", hours={on("small", 1): 4.0, on("large", 4): 1.0}, deadline=2.0, weight=3.0),
        job("b", hours={on("small", 1): 2.0}, deadline=3.0, weight=1.0),
    ),
    machines=(SMALL, LARGE),
    limits=Limits(nodes=2),
    restart_seconds=0.0,
)
"""a: in time on large (6 $), 2 h late on small (4 $ and 6 $ of tardiness); b: 2 $ on small."""


def at_start(problem: PlanningProblem) -> PlanState:
    """All jobs wait."""
    return PlanState(now_seconds=0.0, remaining={item.name: 1.0 for item in problem.jobs})


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
    """One machine type a node, no more nodes, GPUs and machines of a type than there are."""
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


def cloud_machines() -> tuple[MachineType, ...]:
    """Machines of several clouds at the newest price of each, and the first of them as a spot machine."""
    newest = {offer.instance: offer for offer in sorted(load_offers(), key=lambda offer: offer.date)}
    machines = tuple(
        MachineType(
            name=name,
            gpu=newest[name].gpu,
            num_gpus=newest[name].num_gpus,
            usd_per_hour=newest[name].usd_per_hour,
            provider=newest[name].provider,
        )
        for name in ("g5.12xlarge", "NC4as T4 v3", "gpu_1x_a100_sxm4", "a2-highgpu-1g", "1x H100 SXM")
    )
    return *machines, replace(machines[0], name="spot", instance=machines[0].name, interruptions_per_hour=0.05)


def read_by(python: str, code: str, files: Mapping[str, str], folder: Path) -> list[str]:
    """Write files to a folder, and return the lines that code in another Python prints about those in YAML."""
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    paths = [str(folder / name) for name in sorted(files) if name.endswith((".yaml", ".yml"))]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"HOME": str(folder)}
    ran = subprocess.run([python, "-c", code, *paths], capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == len(paths)
    return lines
