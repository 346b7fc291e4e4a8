"""The study: a planner compared with queue rules, over settings and seeds, in parallel.

Random instances draw jobs that arrive like customers from a fixed mix, with deadlines and weights. Their times and
machines are those of a published study, derived in `job_times.toml`, and real times are off evenly by `error`; or
(`setting: clouds`) machines that clouds rent out today, with the times that this package predicts (`cloud_jobs.json`),
and real times as far off as its predictions were from published measurements. Each run simulates one policy on one
random instance twice: with the predicted times, and with real times that differ from them within their interval. Runs
are independent and go through joblib, so a study that is too large for one machine spreads over a cluster without a
change::

    with joblib.parallel_config("dask"):
        result = run_study(Study(nodes=(10, 100)))

The same study gives the same numbers on any number of workers. Example of `study.yaml`, with its defaults::

    setting: published
    nodes: [10]
    mean_gap_seconds: [30, 45]
    seeds: 5
    error: 0.1
    restart_seconds: 60
    policies: [fifo, edf, ps, milp]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final, final

import numpy as np
from joblib import Parallel, delayed

from lightning_predict.checked import Checked, read_json, read_toml, read_yaml
from lightning_predict.errors import CatalogueError, InvalidArgumentError, PlanningFormatError
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.planning.milp import check_scipy
from lightning_predict.planning.policies import PLANNERS, policy
from lightning_predict.planning.problem import (
    RESTART_SECONDS,
    Configuration,
    Formulation,
    Job,
    Limits,
    MachineType,
    Problem,
)
from lightning_predict.planning.simulator import ActualSeconds, simulate
from lightning_predict.timeline.step_spread import SPREAD_FILE

JOB_TIMES_FILE: Final = Path(__file__).with_name("job_times.toml")
CLOUD_JOBS_FILE: Final = Path(__file__).with_name("cloud_jobs.json")

SETTINGS: Final = ("published", "clouds")

_BYTES_PER_PARAMETER: Final = 4
_FLOPS_PER_MULTIPLY_ADD: Final = 2
_PASSES: Final = 3
"""A training step costs three forward passes: one forward, and twice as much backward."""


@cache
def study_machines(setting: str = "published") -> tuple[MachineType, ...]:
    """Return the machine types of a setting.

    Args:
        setting: `published` or `clouds`.

    Raises:
        CatalogueError: The table breaks a rule.
    """
    rows = _tables("machine") if setting == "published" else _cloud_jobs().member("machines").members()
    return tuple(_machine(str(name), row) for name, row in rows.items())


@cache
def _cloud_jobs() -> Checked:
    return read_json(CLOUD_JOBS_FILE, CatalogueError)


@cache
def cloud_job_seconds(kind: str) -> Mapping[Configuration, float]:
    """Return the predicted time of a whole run of one of the six jobs on each machine type of the clouds.

    Counts of GPUs that are slower than a smaller one are not offered.

    Args:
        kind: `JJ1` to `JJ6`.
    """
    by_gpu = _cloud_jobs().member("step_seconds").member(kind).members()
    steps = _steps(_tables("job")[kind])
    seconds: dict[Configuration, float] = {}
    for machine in study_machines("clouds"):
        fastest = math.inf
        for count, step in by_gpu[machine.gpu].members().items():
            if int(count) <= machine.num_gpus and step.positive() < fastest:
                fastest = step.positive()
                seconds[Configuration(machine=machine.name, num_gpus=int(count))] = steps * fastest
    return seconds


@cache
def study_job_kinds() -> tuple[str, ...]:
    """List the study's kinds of jobs, JJ1 to JJ6."""
    return tuple(_tables("job"))


def _tables(heading: str) -> dict[str, Checked]:
    return read_toml(JOB_TIMES_FILE, CatalogueError).member(heading).members()


@cache
def job_seconds(kind: str, machines: tuple[MachineType, ...]) -> Mapping[Configuration, float]:
    """Return the time of a whole run of one of the six jobs on 1, 2, ... GPUs of each machine type that can run it.

    More GPUs than samples in a batch are not offered, and neither are counts that are slower than a smaller one.

    Args:
        kind: `JJ1` to `JJ6`.
        machines: Machine types, each with a GPU of the catalogue.
    """
    document = read_toml(JOB_TIMES_FILE, CatalogueError)
    job = document.member("job").member(kind)
    network = document.member("network").member(job.member("network").words())
    excluded = network.optional("excluded_gpus", Checked.texts, ())
    seconds: dict[Configuration, float] = {}
    for machine in machines:
        if machine.gpu in excluded:
            continue
        fastest = math.inf
        for num_gpus in range(1, min(machine.num_gpus, _count(job, "batch")) + 1):
            time = _steps(job) * _step_seconds(document, job, network, machine.gpu, num_gpus)
            if time < fastest:
                seconds[Configuration(machine=machine.name, num_gpus=num_gpus)] = fastest = time
    return seconds


def _machine(name: str, row: Checked) -> MachineType:
    row.check_keys({"gpu", "num_gpus", "usd_per_hour"}, {"date"})
    return MachineType(
        name=name,
        gpu=find_gpu(row.member("gpu").words()).name,
        num_gpus=_count(row, "num_gpus"),
        usd_per_hour=row.member("usd_per_hour").positive(),
    )


def job_batch(kind: str) -> int:
    """Return the samples of a step of one of the six jobs, over all GPUs.

    Args:
        kind: `JJ1` to `JJ6`.
    """
    return _count(_tables("job")[kind], "batch")


def _count(row: Checked, key: str) -> int:
    return row.member(key).integer(minimum=1)


def _steps(job: Checked) -> int:
    return math.ceil(_count(job, "inputs") / _count(job, "batch")) * _count(job, "epochs")


def _step_seconds(document: Checked, job: Checked, network: Checked, gpu: str, num_gpus: int) -> float:
    """Time one step: the share of the batch of one GPU, and the exchange of gradients with the others."""
    peak = find_gpu(gpu).peak_flops_per_second["float32"]
    flops = _PASSES * _FLOPS_PER_MULTIPLY_ADD * network.member("forward_multiply_adds").positive()
    samples = math.ceil(_count(job, "batch") / num_gpus)
    computing = samples * flops / (peak * document.member("utilisation").positive())
    gradient_bytes = _BYTES_PER_PARAMETER * network.member("parameters").positive()
    exchanging = 2 * (num_gpus - 1) / num_gpus * gradient_bytes / document.member("link_bytes_per_second").positive()
    return computing + exchanging


JOBS_PER_NODE: Final = 10

WITH_ALL_FREEDOM: Final = Formulation()


def random_problem(
    *,
    nodes: int,
    mean_gap_seconds: float,
    seed: int,
    error: float = 0.0,
    setting: str = "published",
    formulation: Formulation = WITH_ALL_FREEDOM,
    restart_seconds: float = RESTART_SECONDS,
) -> Problem:
    """Return an instance of the fixed setting: ρ = 1, H = 300 s.

    Args:
        nodes: Machines at one time.
        mean_gap_seconds: Mean time between two arrivals.
        seed: Of the random numbers.
        error: Half width of the interval of the times: 0.1 is ±10 %.
        setting: `published` or `clouds`.
        formulation: Freedom of the planner.
        restart_seconds: Time that a job loses when it moves or goes on after a pause.
    """
    random = np.random.default_rng([seed, nodes])
    number = JOBS_PER_NODE * nodes
    releases = np.cumsum(random.exponential(mean_gap_seconds, size=number))
    kinds = random.choice(study_job_kinds(), size=number)
    slack = random.uniform(1.5, 4.0, size=number)
    weights = random.uniform(1.0, 5.0, size=number)
    digits = len(str(number - 1))
    jobs = []
    for index in range(number):
        kind = str(kinds[index])
        seconds = cloud_job_seconds(kind) if setting == "clouds" else job_seconds(kind, study_machines())
        job = Job(
            name=f"{index:0{digits}d}-{kinds[index]}",
            seconds=seconds,
            release_seconds=float(releases[index]),
            deadline_seconds=float(releases[index] + slack[index] * min(seconds.values())),
            tardiness_usd_per_hour=float(weights[index]),
            low_factor=1.0 - error,
            high_factor=1.0 + error,
        )
        jobs.append(job)
    return Problem(
        jobs=tuple(jobs),
        machines=study_machines(setting),
        limits=Limits(nodes=nodes),
        formulation=formulation,
        restart_seconds=restart_seconds,
    )


def random_actual_seconds(problem: Problem, *, seed: int) -> ActualSeconds:
    """Draw real times: each time of each job off by a factor drawn evenly from the job's interval.

    Jobs are drawn by name, so the order of `problem.jobs` does not matter.
    """
    random = np.random.default_rng([seed, 1])
    return {
        job.name: {
            configuration: job.seconds[configuration] * float(random.uniform(job.low_factor, job.high_factor))
            for configuration in sorted(job.seconds)
        }
        for job in sorted(problem.jobs, key=lambda job: job.name)
    }


def cloud_actual_seconds(problem: Problem, *, seed: int) -> ActualSeconds:
    """Real times of predicted jobs: off as predictions of whole steps were from published measurements.

    Logarithms of measured over predicted times deviate by GPU, by model and by what is left; their standard deviations
    were estimated with the spread of whole steps (`weights/files/whole_steps.json`). Kinds of jobs are models, and what
    is left is drawn for each kind on each GPU.

    Args:
        problem: Of the setting `clouds`.
        seed: Of the random numbers.
    """
    random = np.random.default_rng([seed, 2])
    provenance = read_json(SPREAD_FILE, CatalogueError).member("provenance")
    deviation = {key: value.positive() for key, value in provenance.member("deviations").members().items()}
    gpu_of = {machine.name: machine.gpu for machine in problem.machines}
    gpus = {gpu: random.normal(0.0, deviation["gpu"]) for gpu in sorted(set(gpu_of.values()))}
    factors = {
        (kind, gpu): math.exp(model + gpus[gpu] + random.normal(0.0, deviation["rest"]))
        for kind in study_job_kinds()
        for model in [random.normal(0.0, deviation["model"])]
        for gpu in gpus
    }
    return {
        job.name: {
            configuration: seconds * factors[job.name.split("-")[1], gpu_of[configuration.machine]]
            for configuration, seconds in job.seconds.items()
        }
        for job in problem.jobs
    }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The problems and policies that a study compares.

    Attributes:
        setting: `published` or `clouds`.
        nodes: Numbers of nodes; an instance has ten jobs per node.
        mean_gap_seconds: Mean times between two arrivals.
        seeds: Instances of each setting.
        error: Half width of the interval of the published times: 0.1 is ±10 %.
        restart_seconds: Time that a job loses when it moves or goes on after a pause.
        policies: Names of `policies.py`.
    """

    setting: str = "published"
    nodes: tuple[int, ...] = (10,)
    mean_gap_seconds: tuple[float, ...] = (30.0, 45.0)
    seeds: int = 5
    error: float = 0.1
    restart_seconds: float = RESTART_SECONDS
    policies: tuple[str, ...] = ("fifo", "edf", "ps", "milp")

    @property
    def runs(self) -> list[tuple[int, float, int, str]]:
        """Nodes, mean gap, seed and policy of every run; planners first, because they take longest."""
        order = sorted(self.policies, key=lambda name: name not in PLANNERS)
        return [
            (n, gap, seed, name)
            for name in order
            for n in self.nodes
            for gap in self.mean_gap_seconds
            for seed in range(self.seeds)
        ]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One policy on one instance.

    Attributes:
        nodes: Of the instance.
        mean_gap_seconds: Of the instance.
        seed: Of the instance.
        policy: Its name.
        predicted_usd: Machines and tardiness, had all times been as predicted.
        machine_usd: Machines, with the real times.
        tardiness_usd: Tardiness, with the real times.
        late_jobs: Jobs that ended after their deadline.
        decisions: How many.
        longest_decision_seconds: The slowest; the only figure that depends on the computer.
    """

    nodes: int
    mean_gap_seconds: float
    seed: int
    policy: str
    predicted_usd: float
    machine_usd: float
    tardiness_usd: float
    late_jobs: int
    decisions: int
    longest_decision_seconds: float

    @property
    def total_usd(self) -> float:
        """Machines and tardiness, with the real times."""
        return self.machine_usd + self.tardiness_usd

    @property
    def deviation(self) -> float:
        """Difference of the real cost from the predicted one, as a share of the latter."""
        return self.total_usd / self.predicted_usd - 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One policy in one setting, over the seeds.

    Attributes:
        nodes: Of the setting.
        mean_gap_seconds: Of the setting.
        policy: Its name.
        machine_usd: Median over the seeds.
        tardiness_usd: Median over the seeds.
        total_usd: Median over the seeds.
        cut: Median over the seeds of the cost that it saves against the best queue rule of the same seed, as a share;
            None if the study has no queue rules without sharing.
        deviation: Median over the seeds of how far real cost is from predicted cost, without sign.
        longest_decision_seconds: Over all seeds.
    """

    nodes: int
    mean_gap_seconds: float
    policy: str
    machine_usd: float
    tardiness_usd: float
    total_usd: float
    cut: float | None
    deviation: float
    longest_decision_seconds: float


def read_study(path: Path) -> Study:
    """Read `study.yaml`.

    Raises:
        PlanningFormatError: A file that is missing or malformed.
        InvalidArgumentError: A policy that does not exist, or a number out of its range.
    """
    document = read_yaml(path, PlanningFormatError)
    document.check_keys(optional=Study.__dataclass_fields__)
    get, defaults = document.optional, Study()
    study = Study(
        setting=get("setting", Checked.text, defaults.setting),
        nodes=get("nodes", lambda value: tuple(item.integer() for item in value.items()), defaults.nodes),
        mean_gap_seconds=get(
            "mean_gap_seconds",
            lambda value: tuple(_float(item) for item in value.items()),
            defaults.mean_gap_seconds,
        ),
        seeds=get("seeds", lambda value: value.integer(minimum=1), defaults.seeds),
        error=get("error", _float, defaults.error),
        restart_seconds=get("restart_seconds", _float, defaults.restart_seconds),
        policies=get("policies", lambda value: tuple(item.text() for item in value.items()), defaults.policies),
    )
    check_study(study)
    return study


def _float(value: Checked) -> float:
    return float(value.any_number())


def check_study(study: Study) -> None:
    """Refuse a study that cannot be run.

    Raises:
        InvalidArgumentError: A policy that does not exist, or a number out of its range.
    """
    for name in study.policies:
        policy(name)
    if study.setting not in SETTINGS:
        raise InvalidArgumentError(f"setting is {study.setting!r}; expected one of {', '.join(SETTINGS)}.")
    if not study.runs:
        raise InvalidArgumentError("The study has no runs; expected at least one of nodes, gaps, seeds and policies.")
    for number in study.nodes:
        if number < 1:
            raise InvalidArgumentError(f"nodes is {number}; expected 1 or more.")
    for gap in study.mean_gap_seconds:
        if not gap > 0:
            raise InvalidArgumentError(f"mean_gap_seconds is {gap}; expected seconds above 0.")
    if not study.restart_seconds >= 0:
        raise InvalidArgumentError(f"restart_seconds is {study.restart_seconds}; expected 0 or more.")
    if not 0 <= study.error < 1:
        raise InvalidArgumentError(f"error={study.error}; expected a share from 0 to below 1, such as 0.1.")


def run_study(
    study: Study, *, workers: int | None = None, on_run: Callable[[StudyRun], None] | None = None
) -> tuple[StudyRun, ...]:
    """Return all runs, sorted by setting, policy and seed.

    Args:
        study: What to run.
        workers: Processes; None follows `joblib.parallel_config`, and is one process where nothing is configured.
        on_run: Called with each run when it is done, for a progress bar.

    Raises:
        InvalidArgumentError: The study cannot be run.
        MissingDependencyError: It has the MILP, and SciPy is not installed.
    """
    check_study(study)
    if "milp" in study.policies:
        check_scipy()
    calls = (delayed(run_once)(study, *run) for run in study.runs)
    runs = []
    for run in Parallel(n_jobs=workers, return_as="generator_unordered")(calls):
        runs.append(run)
        if on_run is not None:
            on_run(run)
    order = {name: number for number, name in enumerate(study.policies)}
    return tuple(sorted(runs, key=lambda run: (run.nodes, run.mean_gap_seconds, order[run.policy], run.seed)))


def run_once(study: Study, nodes: int, mean_gap_seconds: float, seed: int, name: str) -> StudyRun:
    """Run one policy on one instance, with predicted and with real times."""
    problem = random_problem(
        nodes=nodes,
        mean_gap_seconds=mean_gap_seconds,
        seed=seed,
        error=study.error,
        setting=study.setting,
        restart_seconds=study.restart_seconds,
    )
    actual = cloud_actual_seconds if study.setting == "clouds" else random_actual_seconds
    real = simulate(problem, policy(name), actual_seconds=actual(problem, seed=seed))
    predicted = simulate(problem, policy(name))
    return StudyRun(
        nodes=nodes,
        mean_gap_seconds=mean_gap_seconds,
        seed=seed,
        policy=name,
        predicted_usd=predicted.total_usd,
        machine_usd=real.machine_usd,
        tardiness_usd=real.tardiness_usd,
        late_jobs=sum(outcome.tardiness_seconds > 0 for outcome in real.outcomes),
        decisions=real.decisions,
        longest_decision_seconds=real.longest_decision_seconds,
    )


def compare(runs: Sequence[StudyRun]) -> tuple[Comparison, ...]:
    """Take medians over the seeds, one row per setting and policy, in the order of the runs."""
    groups: dict[tuple[int, float, str], list[StudyRun]] = {}
    for run in runs:
        groups.setdefault((run.nodes, run.mean_gap_seconds, run.policy), []).append(run)
    return tuple(_comparison(key, group, runs) for key, group in groups.items())


def _comparison(key: tuple[int, float, str], group: Sequence[StudyRun], runs: Sequence[StudyRun]) -> Comparison:
    nodes, gap, name = key
    best: dict[int, float] = {}
    for run in runs:
        if (run.nodes, run.mean_gap_seconds) == (nodes, gap) and run.policy in ("fifo", "edf", "ps"):
            best[run.seed] = min(run.total_usd, best.get(run.seed, run.total_usd))
    cuts = [1 - run.total_usd / best[run.seed] for run in group if run.seed in best]
    return Comparison(
        nodes=nodes,
        mean_gap_seconds=gap,
        policy=name,
        machine_usd=median(run.machine_usd for run in group),
        tardiness_usd=median(run.tardiness_usd for run in group),
        total_usd=median(run.total_usd for run in group),
        cut=median(cuts) if cuts else None,
        deviation=median(abs(run.deviation) for run in group),
        longest_decision_seconds=max(run.longest_decision_seconds for run in group),
    )
