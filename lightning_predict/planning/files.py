"""Problems from files: a YAML file of machines, limits and jobs, the jobs perhaps in a CSV beside it.

Example of `jobs.yaml`; times are in hours, as people write them, and become seconds here::

    nodes: 2
    budget_usd: 60
    restart_seconds: 60                   # the default; lost by a job that moves
    machines:
      - g4dn.xlarge                       # an offer that ships with the package, or your own:
      - {name: box, gpu: A10, num_gpus: 4, usd_per_hour: 3.0}
    jobs:
      - name: resnet
        hours: {g4dn.xlarge: {1: 9.5}, box: {1: 4.0, 2: 2.2, 4: 1.3}}
        deadline_hours: 8
        tardiness_usd_per_hour: 2
      - {name: bert, trace: bert.json, iterations: 200000, deadline_hours: 24}

`jobs: jobs.csv` reads a table instead: a line a job and configuration, with the columns name, machine, num_gpus, hours,
deadline_hours, and perhaps release_hours, tardiness_usd_per_hour, command. With `remaining_epochs`, `hours` is the time
of one epoch. A trace needs someone who predicts: `times_of_trace`, which `lightning_predict.planning.traces` has.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from lightning_predict.cost.offers import load_offers
from lightning_predict.errors import PlanningFormatError
from lightning_predict.planning.fields import Fields, read_yaml
from lightning_predict.planning.problem import Configuration, Formulation, Job, Limits, MachineType, Problem
from lightning_predict.planning.validation import check_problem
from lightning_predict.units import hours_to_seconds

TimesOfTrace = Callable[[Path, int, tuple[MachineType, ...]], Mapping[Configuration, float]]
"""Seconds by configuration, from the path of a trace, a number of iterations and machine types."""

RESTART_SECONDS: Final = 60.0
"""What a file that does not say so assumes a job to lose when it moves: writing and reading a checkpoint. Were moves
free, a plan would be full of them."""

_TOP_KEYS: Final = frozenset({"nodes", "machines", "jobs"})
_TOP_OPTIONAL: Final = frozenset(
    {
        "budget_usd",
        "quotas",
        "formulation",
        "period_seconds",
        "restart_seconds",
        "tardiness_factor",
        "postponement_factor",
    }
)
_JOB_OPTIONAL: Final = frozenset(
    {
        "hours",
        "trace",
        "iterations",
        "remaining_epochs",
        "release_hours",
        "tardiness_usd_per_hour",
        "low_factor",
        "high_factor",
        "command",
    }
)
_CSV_KEYS: Final = frozenset({"name", "machine", "num_gpus", "hours", "deadline_hours"})
_CSV_OF_A_JOB: Final = frozenset({"release_hours", "tardiness_usd_per_hour", "command"})


def read_problem(path: Path, *, times_of_trace: TimesOfTrace | None = None) -> Problem:
    """Read and check a problem.

    Args:
        path: The YAML file.
        times_of_trace: Predicts the times of jobs that name a trace.

    Raises:
        PlanningFormatError: A file that is missing, malformed, or asks for a trace where nobody predicts.
        InvalidArgumentError: A number out of its range.
        InfeasiblePlanError: A job or a limit that no plan can satisfy.
    """
    fields = read_yaml(path)
    fields.check_keys(_TOP_KEYS, _TOP_OPTIONAL)
    machines = tuple(_machine(fields, item, number) for number, item in enumerate(fields.items("machines"), start=1))
    jobs = fields.values["jobs"]
    rows = _csv_jobs(path.parent / jobs) if isinstance(jobs, str) else fields.children("jobs", "job")
    problem = Problem(
        jobs=tuple(_job(row, machines, path.parent, times_of_trace) for row in rows),
        machines=machines,
        limits=_limits(fields),
        formulation=_formulation(fields.child("formulation", "formulation")),
        period_seconds=fields.number("period_seconds", 300.0),
        tardiness_factor=fields.number("tardiness_factor", 1.0),
        postponement_factor=fields.number("postponement_factor", 1.0),
        restart_seconds=fields.number("restart_seconds", RESTART_SECONDS),
    )
    check_problem(problem)
    return problem


def _machine(fields: Fields, item: Any, number: int) -> MachineType:
    if isinstance(item, str):
        return _offered(fields, item)
    if not isinstance(item, Mapping):
        raise fields.error(f"machine {number} is {item!r}; expected the name of an offer, or keys and values.")
    row = Fields(fields.file, f"machine {item.get('name', number)!r}", item)
    row.check_keys(frozenset({"name", "gpu", "num_gpus", "usd_per_hour"}), frozenset({"provider"}))
    return MachineType(
        name=row.text("name"),
        gpu=row.text("gpu"),
        num_gpus=row.count("num_gpus"),
        usd_per_hour=row.number("usd_per_hour"),
        provider=row.text("provider") if row.has("provider") else None,
    )


def _offered(fields: Fields, instance: str) -> MachineType:
    """The newest offer of this instance that ships with the package."""
    offers = [offer for offer in load_offers() if offer.instance == instance]
    if not offers:
        raise fields.error(
            f"machine {instance!r} is not among the offers that ship with the package; state it in full, as "
            "{name: ..., gpu: ..., num_gpus: ..., usd_per_hour: ...}."
        )
    newest = max(offers, key=lambda offer: (offer.date, -offer.usd_per_hour))
    return MachineType(
        name=instance,
        gpu=newest.gpu,
        num_gpus=newest.num_gpus,
        usd_per_hour=newest.usd_per_hour,
        provider=newest.provider,
    )


def _limits(fields: Fields) -> Limits:
    quotas = fields.child("quotas", "quotas")
    counts = {}
    for name, quota in quotas.values.items():
        if isinstance(quota, bool) or not isinstance(quota, int):
            raise quotas.error(f"{name} is {quota!r}; expected a whole number.")
        counts[str(name)] = quota
    budget = fields.number("budget_usd") if fields.has("budget_usd") else None
    return Limits(nodes=fields.count("nodes"), quotas=counts, budget_usd=budget)


def _formulation(fields: Fields) -> Formulation:
    fields.check_keys(frozenset(), frozenset({"shares_gpus", "preempts", "migrates"}))
    return Formulation(
        shares_gpus=fields.flag("shares_gpus", True),
        preempts=fields.flag("preempts", True),
        migrates=fields.flag("migrates", True),
    )


def _job(row: Fields, machines: tuple[MachineType, ...], folder: Path, times_of_trace: TimesOfTrace | None) -> Job:
    row.check_keys(frozenset({"name", "deadline_hours"}), _JOB_OPTIONAL)
    return Job(
        name=row.text("name"),
        seconds=_seconds(row, machines, folder, times_of_trace),
        deadline_seconds=hours_to_seconds(row.number("deadline_hours")),
        release_seconds=hours_to_seconds(row.number("release_hours", 0.0)),
        tardiness_usd_per_hour=row.number("tardiness_usd_per_hour", 1.0),
        low_factor=row.number("low_factor", 1.0),
        high_factor=row.number("high_factor", 1.0),
        command=row.text("command") if row.has("command") else None,
    )


def _seconds(
    row: Fields, machines: tuple[MachineType, ...], folder: Path, times_of_trace: TimesOfTrace | None
) -> Mapping[Configuration, float]:
    """Seconds of the whole run by configuration, stated or predicted."""
    if row.has("hours") == row.has("trace"):
        raise row.error("state either hours (by machine and number of GPUs) or a trace with iterations.")
    if row.has("trace"):
        if times_of_trace is None:
            raise row.error("this call does not predict traces; pass times_of_trace, or state hours instead.")
        return times_of_trace(folder / row.text("trace"), row.count("iterations"), machines)
    epochs = row.number("remaining_epochs", 1.0)
    seconds = {}
    hours = row.child("hours", f"{row.place}: hours")
    for machine in hours.values:
        by_gpus = hours.child(machine, f"{row.place}: hours: {machine}")
        for gpus, time in by_gpus.values.items():
            num_gpus: Any = gpus  # YAML's keys need not be texts
            if isinstance(num_gpus, bool) or not isinstance(num_gpus, int):
                raise by_gpus.error(f"{num_gpus!r} is no number of GPUs; expected, for example, {{1: 5.2, 2: 2.8}}.")
            per_epoch = Fields(row.file, by_gpus.place, {f"{num_gpus} GPUs": time}).number(f"{num_gpus} GPUs")
            seconds[Configuration(machine=str(machine), num_gpus=num_gpus)] = hours_to_seconds(per_epoch) * epochs
    return seconds


def _csv_jobs(path: Path) -> list[Fields]:
    """The lines of a CSV as jobs; what belongs to the job must agree on all of its lines."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    except OSError as error:
        raise PlanningFormatError(f"{path} cannot be read: {error}") from error
    jobs: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=2):
        row = Fields(path.name, f"line {number}", {key: value for key, value in line.items() if value != ""})
        row.check_keys(_CSV_KEYS, _CSV_OF_A_JOB)
        own: dict[str, Any] = {"name": row.text("name")}
        own |= {
            key: _parsed(row, key)
            for key in ("deadline_hours", "release_hours", "tardiness_usd_per_hour")
            if row.has(key)
        }
        own |= {"command": row.text("command")} if row.has("command") else {}
        job = jobs.setdefault(own["name"], own | {"hours": {}})
        if {key: value for key, value in job.items() if key != "hours"} != own:
            raise row.error(f"job {own['name']!r} has another deadline, release, weight or command than above.")
        gpus = _parsed(row, "num_gpus")
        if gpus != int(gpus):
            raise row.error(f"num_gpus is {line['num_gpus']!r}; expected a whole number.")
        job["hours"].setdefault(row.text("machine"), {})[int(gpus)] = _parsed(row, "hours")
    return [Fields(path.name, f"job {name!r}", job) for name, job in jobs.items()]


def _parsed(row: Fields, key: str) -> float:
    try:
        return float(row.values[key])
    except ValueError:
        raise row.error(f"{key} is {row.values[key]!r}; expected a number.") from None
