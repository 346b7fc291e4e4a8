"""Problems from files: a YAML file of machines, limits and jobs, the jobs perhaps in a CSV next to it.

Example of `jobs.yaml`; times are in hours, as people write them, and become seconds here::

    nodes: 2
    budget_usd: 60
    restart_seconds: 60                   # the default; lost by a job that moves
    machines:
      - g4dn.xlarge                       # an offer that ships with the package, or your own:
      - {name: box, gpu: A10, num_gpus: 4, usd_per_hour: 3.0}
      - {spot: g4dn.xlarge, interruptions_per_hour: 0.05}   # its spot price; how often it is taken away you say
    checkpoint_seconds: 600               # with spot machines: what came after the last checkpoint is lost
    jobs:
      - name: resnet
        hours: {g4dn.xlarge: {1: 9.5}, g4dn.xlarge spot: {1: 9.5}, box: {1: 4.0, 2: 2.2, 4: 1.3}}
        deadline_hours: 8
        tardiness_usd_per_hour: 2
      - {name: bert, trace: bert.json, iterations: 200000, deadline_hours: 24}

`jobs: jobs.csv` reads a table instead: one line per job and configuration, with the columns name, machine, num_gpus,
hours, deadline_hours, and perhaps release_hours, tardiness_usd_per_hour, command, checkpoint. With `remaining_epochs`,
`hours` is the time of one epoch. The times of a job that names a trace are predicted: on one, two, four, ... GPUs of
each machine type, as far as it has them, where the step fits (`times_of_trace`).

What an exported plan needs beside times: `command`, which starts the training, and, of a job that may move,
`checkpoint`, a shared folder or a bucket. Machines of your own may be named for Slurm: `hosts: [dgx1, dgx2]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lightning_predict.checked import Checked, File, read_csv, read_yaml, shown
from lightning_predict.cost.offers import load_offers
from lightning_predict.cost.price_files import at_spot_prices
from lightning_predict.errors import PlanningFormatError
from lightning_predict.gpus.layouts import Layout, layout_of
from lightning_predict.interval import Interval
from lightning_predict.planning.problem import (
    RESTART_SECONDS,
    Configuration,
    Formulation,
    Job,
    Limits,
    MachineType,
    Placement,
    Problem,
    Situation,
    usd,
)
from lightning_predict.planning.validation import check_problem, check_situation
from lightning_predict.prediction import predict
from lightning_predict.run.progress import PROGRESS_PREFIX, Place, Progress, read_progress
from lightning_predict.tracing.trace import Trace
from lightning_predict.units import hours_to_seconds

DEADLINE_PROBABILITY: Final = 0.9
"""Deadlines of a file of jobs are to be kept with this probability, unless it says otherwise."""


def times_of_trace(
    path: Path, iterations: int, machines: tuple[MachineType, ...]
) -> Mapping[Configuration, Interval[float]]:
    """Return the seconds of the run that is still to come, with their 90 % interval, by configuration.

    A configuration is left out where the step is known not to fit in its GPUs' memory. A trace that does not know its
    parameters gives configurations of one GPU, because what several would exchange is unknown.

    Args:
        path: A trace, as `Trace.save` writes it.
        iterations: Training steps still to come.
        machines: Machine types, each with a GPU of the catalogue.

    Raises:
        TraceError: The file is missing or is not a trace.
        UnknownGpuError: A machine type has a GPU that the catalogue does not hold.
    """
    trace = Trace.load(str(path))
    layouts = {
        Configuration(machine=machine.name, num_gpus=count): Layout(layout_of(machine.gpu).gpu, count).name
        for machine in machines
        for count in _counts(machine.num_gpus if trace.parameters else 1)
    }
    predictions = predict(trace, gpus=list(layouts.values()), iterations=iterations)
    return {
        configuration: seconds
        for configuration, name in layouts.items()
        if predictions[name].fits is not False and (seconds := predictions[name].total) is not None
    }


def _counts(most: int) -> list[int]:
    """List powers of two up to the number of GPUs of a machine, and that number."""
    return sorted({*(2**power for power in range(most.bit_length()) if 2**power <= most), most})


_TOP_KEYS: Final = frozenset({"nodes", "machines", "jobs"})
_TOP_OPTIONAL: Final = frozenset(
    {
        "budget_usd",
        "quotas",
        "formulation",
        "period_seconds",
        "restart_seconds",
        "checkpoint_seconds",
        "tardiness_factor",
        "postponement_factor",
        "probability",
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
        "checkpoint",
    }
)
_CSV_KEYS: Final = frozenset({"name", "machine", "num_gpus", "hours", "deadline_hours"})
_CSV_OF_A_JOB: Final = frozenset({"release_hours", "tardiness_usd_per_hour", "command", "checkpoint"})


def read_problem(path: Path) -> Problem:
    """Read and check a problem.

    Args:
        path: The YAML file.

    Raises:
        PlanningFormatError: A file that is missing or malformed.
        InvalidArgumentError: A number out of its range.
        TraceError: A trace that a job names is missing or is not a trace.
        InfeasiblePlanError: A job or a limit that no plan can satisfy.
    """
    document = read_yaml(path, PlanningFormatError)
    document.check_keys(_TOP_KEYS, _TOP_OPTIONAL)
    machines = tuple(_machine(item) for item in document.member("machines").items(named=["name"]))
    jobs = document.member("jobs")
    rows = _csv_jobs(path.parent / jobs.value) if isinstance(jobs.value, str) else jobs.items(named=["name"])
    problem = Problem(
        jobs=tuple(_job(row, machines, path.parent) for row in rows),
        machines=machines,
        limits=_limits(document),
        formulation=document.optional("formulation", _formulation, Formulation()),
        period_seconds=_number(document, "period_seconds", 300.0),
        tardiness_factor=_number(document, "tardiness_factor", 1.0),
        postponement_factor=_number(document, "postponement_factor", 1.0),
        restart_seconds=_number(document, "restart_seconds", RESTART_SECONDS),
        checkpoint_seconds=document.optional("checkpoint_seconds", _float, None),
        probability=_number(document, "probability", DEADLINE_PROBABILITY),
    )
    check_problem(problem)
    return problem


def read_situation(path: Path, problem: Problem) -> Situation:
    """Read how far a running plan is.

    Jobs that are not listed have not run yet. Example of `state.yaml`::

        now_hours: 3.5
        spent_usd: 12.4                                          # on machines, so far
        jobs:
          resnet: {done: 0.6, node: 0, machine: box, num_gpus: 2, measured_hours: 2.5} # it runs
          bert: {done: 0.1, machine: box, num_gpus: 1}            # it last ran so, and waits
          unet: {done: 1}                                         # it has ended

    `measured_hours` is the time of the whole run where the job ran last, as its progress shows; what it takes elsewhere
    is predicted anew from it.

    Args:
        path: The YAML file.
        problem: What is planned.

    Raises:
        PlanningFormatError: A file that is missing or malformed.
        InvalidArgumentError: What the problem does not allow, such as a job that it does not list.
    """
    document = read_yaml(path, PlanningFormatError)
    document.check_keys({"now_hours", "jobs"}, {"spent_usd"})
    now_seconds = hours_to_seconds(document.member("now_hours").any_number())
    remaining = {job.name: 1.0 for job in problem.jobs if job.release_seconds <= now_seconds}
    running: dict[str, Placement] = {}
    started: dict[str, Configuration] = {}
    measured: dict[str, dict[Configuration, float]] = {}
    for key, row in document.member("jobs").members().items():
        name = str(key)
        row.check_keys({"done"}, {"node", "machine", "num_gpus", "measured_hours"})
        remaining[name] = 1.0 - float(row.member("done").any_number())
        if remaining[name] == 0.0:
            del remaining[name]
            continue
        if any(row.has(key) for key in ("machine", "num_gpus", "node", "measured_hours")):
            started[name] = Configuration(
                machine=row.member("machine").words(), num_gpus=row.member("num_gpus").integer(minimum=1)
            )
        if row.has("node"):
            running[name] = Placement(node=row.member("node").integer(), configuration=started[name])
        if row.has("measured_hours"):
            measured[name] = {started[name]: hours_to_seconds(row.member("measured_hours").any_number())}
    situation = Situation(
        now_seconds=now_seconds,
        remaining=dict(sorted(remaining.items())),
        running=running,
        started=started,
        measured=measured,
        spent_usd=_number(document, "spent_usd", 0.0),
    )
    check_situation(situation, problem)
    return situation


PROGRESS_IS_OLD_SECONDS: Final = 900.0
"""A run whose file was last written longer ago does not run any more."""


def read_progress_of(folder: Path, problem: Problem, *, now: float) -> Situation:
    """Read how far a plan is from the files that its jobs keep (`run/progress.py`), wherever they lie in a folder.

    The plan began when the first of its jobs did. A job without a file has not run yet. Jobs of other plans, which the
    problem does not list, are left out; of two files of one job, the one written last counts. What was spent is taken
    from the times of these files: machines that jobs have left are not in it.

    Args:
        folder: Folder that the jobs' checkpoints share.
        problem: What is planned.
        now: Seconds since 1970.

    Raises:
        PlanningFormatError: No job of the problem has a file there.
        InvalidArgumentError: A file that is damaged, or what the problem does not allow.
    """
    jobs = {job.name: job for job in problem.jobs}
    found: dict[str, tuple[Progress, Place]] = {}
    began = math.inf
    for path in sorted(folder.rglob(f"{PROGRESS_PREFIX}*.json")):
        one = read_progress(path)
        if one.place is not None and one.place.job in jobs:
            name = one.place.job
            began = min(began, one.began - jobs[name].release_seconds)
            if name not in found or found[name][0].written < one.written:
                found[name] = (one, one.place)
    if not found:
        raise PlanningFormatError(
            f"{folder} holds no {PROGRESS_PREFIX}*.json of a job of this file; expected the folder that the jobs' "
            "checkpoints share, where RuntimePredictor keeps them."
        )
    now_seconds = now - began
    situation = Situation(
        now_seconds=now_seconds,
        remaining={
            job.name: 1.0 - found[job.name][0].done if job.name in found else 1.0
            for job in sorted(problem.jobs, key=lambda job: job.name)
            if job.release_seconds <= now_seconds and not (job.name in found and found[job.name][0].done == 1.0)
        },
    )
    going = {name: pair for name, pair in sorted(found.items()) if name in situation.remaining}
    places = {
        name: Placement(node=place.node, configuration=Configuration(place.machine, place.num_gpus))
        for name, (_, place) in going.items()
    }
    rents: dict[Placement, tuple[float, float]] = {}
    for one, place in found.values():
        node = Placement(node=place.node, configuration=Configuration(place.machine, 0))
        since, until = rents.get(node, (math.inf, 0.0))
        rents[node] = min(since, one.began), max(until, one.written)
    prices = {machine.name: machine.usd_per_hour for machine in problem.machines}
    situation = replace(
        situation,
        spent_usd=sum(
            usd(seconds=until - since, usd_per_hour=prices.get(node.configuration.machine, 0.0))
            for node, (since, until) in rents.items()
        ),
        running={name: places[name] for name, (one, _) in going.items() if now - one.written < PROGRESS_IS_OLD_SECONDS},
        started={name: place.configuration for name, place in places.items()},
        measured={
            name: {places[name].configuration: one.whole_seconds}
            for name, (one, _) in going.items()
            if one.whole_seconds is not None
        },
    )
    check_situation(situation, problem)
    return situation


def _float(value: Checked) -> float:
    return float(value.any_number())


def _number(row: Checked, key: str, default: float) -> float:
    return row.optional(key, _float, default)


def _machine(row: Checked) -> MachineType:
    if isinstance(row.value, str):
        return _offered(row, row.value)
    if not isinstance(row.value, dict):
        raise row.wrong("the name of an offer, or keys and values")
    if row.has("spot"):
        row.check_keys({"spot", "interruptions_per_hour"})
        return _spot(row)
    row.check_keys(
        {"name", "gpu", "num_gpus", "usd_per_hour"}, {"provider", "instance", "interruptions_per_hour", "hosts"}
    )
    return MachineType(
        name=row.member("name").words(),
        gpu=row.member("gpu").words(),
        num_gpus=row.member("num_gpus").integer(minimum=1),
        usd_per_hour=float(row.member("usd_per_hour").any_number()),
        provider=row.optional("provider", Checked.words, None),
        instance=row.optional("instance", Checked.words, None),
        interruptions_per_hour=row.optional("interruptions_per_hour", _float, None),
        hosts=row.optional("hosts", Checked.texts, ()),
    )


def _offered(row: Checked, instance: str, *, spot: bool = False) -> MachineType:
    """Return the newest offer of this instance that ships with the package."""
    known = at_spot_prices(load_offers()) if spot else load_offers()
    offers = [offer for offer in known if offer.instance == instance]
    if not offers:
        raise row.wrong(
            f"one of the offers that ship with the package{' and have a spot price' if spot else ''}, or a machine in "
            "full, as {name: ..., gpu: ..., num_gpus: ..., usd_per_hour: ...}"
        )
    newest = max(offers, key=lambda offer: (offer.date, -offer.usd_per_hour))
    return MachineType(
        name=instance,
        gpu=newest.gpu,
        num_gpus=newest.num_gpus,
        usd_per_hour=newest.usd_per_hour,
        provider=newest.provider,
    )


def _spot(row: Checked) -> MachineType:
    """Return an instance at the newest of its spot prices that ship with the package."""
    machine = _offered(row.member("spot"), row.member("spot").words(), spot=True)
    return replace(
        machine,
        name=f"{machine.name} spot",
        instance=machine.name,
        interruptions_per_hour=_float(row.member("interruptions_per_hour")),
    )


def _limits(document: Checked) -> Limits:
    quotas = document.member("quotas").members() if "quotas" in document.mapping() else {}
    return Limits(
        nodes=document.member("nodes").integer(minimum=1),
        quotas={str(name): quota.integer() for name, quota in quotas.items()},
        budget_usd=float(document.member("budget_usd").any_number()) if document.has("budget_usd") else None,
    )


def _formulation(value: Checked) -> Formulation:
    value.check_keys(optional={"shares_gpus", "preempts", "migrates"})
    return Formulation(**{name: item.flag() for name, item in value.members().items()})


def _job(row: Checked, machines: tuple[MachineType, ...], folder: Path) -> Job:
    row.check_keys({"name", "deadline_hours"}, _JOB_OPTIONAL)
    times = _times(row, machines, folder)
    # One factor a job: the widest of its intervals.
    low = min((time.low / time.middle for time in times.values()), default=1.0)
    high = max((time.high / time.middle for time in times.values()), default=1.0)
    return Job(
        name=row.member("name").words(),
        seconds={configuration: time.middle for configuration, time in times.items()},
        deadline_seconds=hours_to_seconds(row.member("deadline_hours").any_number()),
        release_seconds=hours_to_seconds(_number(row, "release_hours", 0.0)),
        tardiness_usd_per_hour=_number(row, "tardiness_usd_per_hour", 1.0),
        low_factor=_number(row, "low_factor", low),
        high_factor=_number(row, "high_factor", high),
        command=row.optional("command", Checked.words, None),
        checkpoint=row.optional("checkpoint", Checked.words, None),
    )


def _times(row: Checked, machines: tuple[MachineType, ...], folder: Path) -> Mapping[Configuration, Interval[float]]:
    """Return the seconds of the whole run by configuration, stated or predicted; stated ones have no width."""
    if row.has("hours") == row.has("trace"):
        raise row.problem("must state either hours (by machine and number of GPUs) or a trace with iterations.")
    if row.has("trace"):
        trace = row.member("trace")
        return times_of_trace(folder / trace.words(), row.member("iterations").integer(minimum=1), machines)
    epochs = _number(row, "remaining_epochs", 1.0)
    seconds = {}
    for machine, by_gpus in row.member("hours").members().items():
        for num_gpus, hours in by_gpus.members().items():
            if isinstance(num_gpus, bool) or not isinstance(num_gpus, int):
                raise by_gpus.problem(
                    f"has the key {shown(num_gpus)}; expected a number of GPUs, for example {{1: 5.2, 2: 2.8}}."
                )
            configuration = Configuration(machine=str(machine), num_gpus=num_gpus)
            stated = hours_to_seconds(hours.any_number()) * epochs
            seconds[configuration] = Interval(stated, stated, stated)
    return seconds


def _csv_jobs(path: Path) -> list[Checked]:
    """Return the lines of a CSV as jobs; what belongs to the job must agree on all of its lines."""
    try:
        lines = list(read_csv(path, PlanningFormatError, name=path.name))
    except OSError as error:
        raise PlanningFormatError(f"{path} cannot be read: {error}") from error
    jobs: dict[str, dict[str, Any]] = {}
    for line in lines:
        row = replace(line, value={key: cell for key, cell in line.value.items() if cell != ""})
        row.check_keys(_CSV_KEYS, _CSV_OF_A_JOB)
        own: dict[str, Any] = {"name": row.member("name").words()}
        for key in ("deadline_hours", "release_hours", "tardiness_usd_per_hour"):
            if row.has(key):
                own[key] = row.member(key).parsed().any_number()
        for key in ("command", "checkpoint"):
            if row.has(key):
                own[key] = row.member(key).words()
        job = jobs.setdefault(own["name"], own | {"hours": {}})
        if {key: value for key, value in job.items() if key != "hours"} != own:
            raise row.problem(f"gives job {own['name']!r} another deadline, release, weight or command than above.")
        num_gpus = row.member("num_gpus").parsed().integer(minimum=1)
        job["hours"].setdefault(row.member("machine").words(), {})[num_gpus] = row.member("hours").parsed().any_number()
    file = File(path.name, PlanningFormatError)
    return [Checked(job, file, f"jobs[{name!r}]") for name, job in jobs.items()]
