"""The study: a planner compared with queue rules, over settings and seeds, in parallel.

Random instances draw jobs that arrive like customers from a fixed mix, with deadlines and weights. Their times and
machines come from a published study, derived in `job_times.toml`, and real times are off evenly by `error`; or
(`setting: clouds`) machines that clouds rent out today, with the times that this package predicts (`cloud_jobs.json`),
and real times as far off as its predictions were from published measurements. Each run simulates one policy on one
random instance twice: with the predicted times, and with the real ones. Runs are independent and go through joblib, so
a study that is too large for one machine spreads over a cluster without a change::

    with joblib.parallel_config("dask"):
        result = run_study(Study(nodes=(10, 100)))

The same study gives the same numbers on any number of workers. Example of `study.yaml`, with its defaults::

    setting: published
    nodes: [10]
    mean_gap_seconds: [30, 45]
    restart_seconds: [60]
    seeds: [2, 3, 4, 5, 6]                # 0 and 1 served to choose constants of the planner (`objective.py`)
    error: 0.1
    policies: [edf, edf-shared, milp]

With `interruptions_per_hour` and `checkpoint_seconds`, the machines of clouds are offered at spot prices, too. With
`setting: stream` and `stream: max_min_fairness`, jobs come as in a published stream (`streams.py`), whose folder the
command names; `mean_gap_seconds` is then the stream's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
from joblib import Parallel, delayed

from benchmarks.planning.deadlines import SLACK, WEIGHTS, due_job
from benchmarks.planning.streams import Stream, read_stream
from lightning_predict.base.checked import Checked, read_json, read_toml, read_yaml
from lightning_predict.base.errors import CatalogueError, InvalidArgumentError, PlanningFormatError
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.planning.milp import check_scipy
from lightning_predict.planning.objective import least_usd
from lightning_predict.planning.policies import policy
from lightning_predict.planning.problem import RESTART_SECONDS, Configuration, Limits, MachineType, PlanningProblem
from lightning_predict.planning.queues import QUEUE_RULES
from lightning_predict.planning.simulator import ActualSeconds, simulate
from lightning_predict.planning.validation import check_problem

JOB_TIMES_FILE: Final = Path(__file__).with_name("job_times.toml")
CLOUD_JOBS_FILE: Final = Path(__file__).with_name("cloud_jobs.json")

SETTINGS: Final = ("published", "clouds", "stream")

_BYTES_PER_PARAMETER: Final = 4
_FLOPS_PER_MULTIPLY_ADD: Final = 2
_PASSES: Final = 3  # A training step costs three forward passes: one forward, and twice as much backward


@cache
def study_machines(setting: str = "published", interruptions_per_hour: float | None = None) -> tuple[MachineType, ...]:
    """Return the machine types of a setting.

    Args:
        setting: `published` or `clouds`.
        interruptions_per_hour: Of spot machines, which are then offered in addition to the others; None offers none.

    Raises:
        CatalogueError: The table breaks a rule.
    """
    if setting == "published":
        return tuple(_machine(str(name), row) for name, row in _tables("machine").items())
    rows = {str(name): row for name, row in _cloud_jobs().member("machines").members().items()}
    on_demand = tuple(_machine(name, row) for name, row in rows.items())
    if interruptions_per_hour is None:
        return on_demand
    spot = (
        replace(
            machine,
            name=f"{machine.name} spot",
            usd_per_hour=rows[machine.name].member("spot_usd_per_hour").positive(),
            interruptions_per_hour=interruptions_per_hour,
        )
        for machine in on_demand
        if rows[machine.name].has("spot_usd_per_hour")
    )
    return (*on_demand, *spot)


@cache
def _cloud_jobs() -> Checked:
    return read_json(CLOUD_JOBS_FILE, CatalogueError)


@cache
def cloud_job_seconds(kind: str, machines: tuple[MachineType, ...]) -> Mapping[Configuration, float]:
    """Return the predicted time of a whole run of one of the six jobs on each machine type of the clouds.

    Counts of GPUs that are slower than a smaller one are not offered.

    Args:
        kind: `JJ1` to `JJ6`.
        machines: Machine types of the clouds.
    """
    by_gpu = _cloud_jobs().member("step_seconds").member(kind).members()
    steps = _steps(_tables("job")[kind])
    seconds: dict[Configuration, float] = {}
    for machine in machines:
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
    row.check_keys({"gpu", "num_gpus", "usd_per_hour"}, {"date", "spot_usd_per_hour"})
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


def random_problem(
    *,
    nodes: int,
    mean_gap_seconds: float,
    seed: int,
    error: float = 0.0,
    setting: str = "published",
    restart_seconds: float = RESTART_SECONDS,
    interruptions_per_hour: float | None = None,
    checkpoint_seconds: float | None = None,
) -> PlanningProblem:
    """Return an instance of the fixed setting: ρ = 1, H = 300 s.

    Args:
        nodes: Machines at one time.
        mean_gap_seconds: Mean time between two arrivals.
        seed: Of the random numbers.
        error: Half width of the interval of the times: 0.1 is ±10 %.
        setting: `published` or `clouds`.
        restart_seconds: Time that a job loses when it moves or goes on after a pause.
        interruptions_per_hour: Of spot machines of the clouds; None offers none.
        checkpoint_seconds: Work between two checkpoints; see `PlanningProblem`.
    """
    random = np.random.default_rng([seed, nodes])
    number = JOBS_PER_NODE * nodes
    releases = np.cumsum(random.exponential(mean_gap_seconds, size=number))
    kinds = random.choice(study_job_kinds(), size=number)
    slack = random.uniform(*SLACK, size=number)
    weights = random.uniform(*WEIGHTS, size=number)
    digits = len(str(number - 1))
    machines = study_machines(setting, interruptions_per_hour)
    seconds_of = cloud_job_seconds if setting == "clouds" else job_seconds
    jobs = tuple(
        due_job(
            f"{index:0{digits}d}-{kinds[index]}",
            seconds_of(str(kinds[index]), machines),
            release_seconds=float(releases[index]),
            slack=float(slack[index]),
            weight=float(weights[index]),
            error=error,
        )
        for index in range(number)
    )
    return PlanningProblem(
        jobs=jobs,
        machines=machines,
        limits=Limits(nodes=nodes),
        restart_seconds=restart_seconds,
        checkpoint_seconds=checkpoint_seconds,
    )


def random_actual_seconds(problem: PlanningProblem, *, seed: int) -> ActualSeconds:
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


PREDICTION_DEVIATIONS: Final[Mapping[str, float]] = {"gpu": 0.052, "model": 0.111, "rest": 0.242}
"""Standard deviations of log(measured / predicted) of published whole steps: by GPU, by neural network, and residual
(November 2026). Later fits found smaller values; these keep the published figures."""


def cloud_actual_seconds(problem: PlanningProblem, *, seed: int) -> ActualSeconds:
    """Real times of predicted jobs: off as predictions of whole steps were from published measurements.

    Logarithms of measured over predicted times deviate by GPU, by model and by the remainder (`PREDICTION_DEVIATIONS`).
    Kinds of jobs are models, and the remainder is drawn for each kind on each GPU.

    Args:
        problem: Of the setting `clouds`.
        seed: Of the random numbers.
    """
    random = np.random.default_rng([seed, 2])
    gpu_of = {machine.name: machine.gpu for machine in problem.machines}
    gpus = {gpu: random.normal(0.0, PREDICTION_DEVIATIONS["gpu"]) for gpu in sorted(set(gpu_of.values()))}
    factors = {
        (kind, gpu): math.exp(model + gpus[gpu] + random.normal(0.0, PREDICTION_DEVIATIONS["rest"]))
        for kind in study_job_kinds()
        for model in [random.normal(0.0, PREDICTION_DEVIATIONS["model"])]
        for gpu in gpus
    }
    return {
        job.name: {
            configuration: seconds * factors[job.name.split("-")[1], gpu_of[configuration.machine]]
            for configuration, seconds in job.seconds.items()
        }
        for job in problem.jobs
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The numbers that make a random instance of a study."""

    nodes: int  # Machines at one time
    mean_gap_seconds: float  # Mean time between two arrivals
    restart_seconds: float  # Time that a job loses when it moves or goes on after a pause
    seed: int  # Of the random numbers

    @property
    def setting(self) -> tuple[int, float, float]:
        """All but the seed."""
        return self.nodes, self.mean_gap_seconds, self.restart_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The problems and policies that a study compares."""

    setting: str = "published"  # `published`, `clouds` or `stream`
    nodes: tuple[int, ...] = (10,)  # Numbers of nodes; an instance has ten jobs per node
    mean_gap_seconds: tuple[float, ...] = (30.0, 45.0)  # Mean times between two arrivals
    # Times that a job loses when it moves or goes on after a pause
    restart_seconds: tuple[float, ...] = (RESTART_SECONDS,)
    # One instance of each; without 0 and 1, on which constants of the planner were chosen
    seeds: tuple[int, ...] = (2, 3, 4, 5, 6)
    error: float = 0.1  # Half width of the interval of the published times: 0.1 is ±10 %
    policies: tuple[str, ...] = ("edf", "edf-shared", "milp")  # Names of `policies.py`
    # Of spot machines, which clouds then offer, too: an assumption; None leaves them out
    interruptions_per_hour: float | None = None
    checkpoint_seconds: float | None = None  # Work between two checkpoints of a job; only with spot machines
    stream: Stream | None = None  # Jobs of the setting `stream`

    @property
    def runs(self) -> list[tuple[Instance, str]]:
        """Instance and policy of every run; the planner first, because it takes longest."""
        order = sorted(self.policies, key=lambda name: policy(name) in QUEUE_RULES)
        return [
            (Instance(nodes=nodes, mean_gap_seconds=gap, restart_seconds=restart, seed=seed), name)
            for name in order
            for nodes in self.nodes
            for gap in self.mean_gap_seconds
            for restart in self.restart_seconds
            for seed in self.seeds
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One policy on one instance."""

    instance: Instance  # The planned problem
    policy: str  # Its name
    predicted_usd: float  # Machines and tardiness, had all times been as predicted
    least_usd: float  # No plan costs less than this, with the real times (see `least_usd`)
    machine_usd: float  # Machines, with the real times
    tardiness_usd: float  # Tardiness, with the real times
    late_jobs: int  # Jobs that ended after their deadline
    decisions: int  # How many
    longest_decision_seconds: float  # The slowest; the only figure that depends on the computer

    @property
    def total_usd(self) -> float:
        """Machines and tardiness, with the real times."""
        return self.machine_usd + self.tardiness_usd

    @property
    def deviation(self) -> float:
        """Difference of the real cost from the predicted one, as a share of the latter."""
        return self.total_usd / self.predicted_usd - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """The share of the cost that is saved against the best queue rule of the same seed, over the seeds."""

    # Of the worst seed. From it to the best seed is a confidence interval of the median, for any distribution: of n
    # seeds, all lie on one side of it with a chance of 2^(1-n), 6 % of five.
    low: float
    median: float  # Half of the seeds save more
    high: float  # Of the best seed
    possible: float  # Median of the saving of a plan at `least_usd`
    share: float  # Median of the saving over the possible saving


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One policy in one setting, over the seeds."""

    nodes: int  # Of the setting
    mean_gap_seconds: float  # Of the setting
    restart_seconds: float  # Of the setting
    policy: str  # Its name
    machine_usd: float  # Median over the seeds
    tardiness_usd: float  # Median over the seeds
    total_usd: float  # Median over the seeds
    saved: Saving | None  # Against queue rules; None if the study has none
    deviation: float  # Median over the seeds of how far real cost is from predicted cost, without sign
    longest_decision_seconds: float  # Over all seeds


def read_study(path: Path, *, streams: Path | None = None) -> Study:
    """Read `study.yaml`.

    Args:
        path: The file.
        streams: Folder of the published stream that it names; see `streams.py`.

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
        mean_gap_seconds=get("mean_gap_seconds", _floats, defaults.mean_gap_seconds),
        restart_seconds=get("restart_seconds", _floats, defaults.restart_seconds),
        seeds=get("seeds", lambda value: tuple(item.integer() for item in value.items()), defaults.seeds),
        error=get("error", _float, defaults.error),
        policies=get("policies", lambda value: tuple(item.text() for item in value.items()), defaults.policies),
        interruptions_per_hour=get("interruptions_per_hour", _float, None),
        checkpoint_seconds=get("checkpoint_seconds", _float, None),
    )
    if study.setting == "stream":
        if streams is None or not document.has("stream"):
            raise PlanningFormatError(
                "setting: stream needs the name of a stream (stream: max_min_fairness) and the folder that it lies in "
                "(--streams FOLDER)."
            )
        stream = read_stream(streams, document.member("stream").words())
        study = replace(study, stream=stream, mean_gap_seconds=(stream.mean_gap_seconds,))
    check_study(study)
    return study


def _float(value: Checked) -> float:
    return float(value.any_number())


def _floats(value: Checked) -> tuple[float, ...]:
    return tuple(_float(item) for item in value.items())


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
        raise InvalidArgumentError(
            "The study has no runs; expected at least one of nodes, gaps, restarts, seeds and policies."
        )
    for number in study.nodes:
        if number < 1:
            raise InvalidArgumentError(f"nodes is {number}; expected 1 or more.")
    for gap in study.mean_gap_seconds:
        if not gap > 0:
            raise InvalidArgumentError(f"mean_gap_seconds is {gap}; expected seconds above 0.")
    if not 0 <= study.error < 1:
        raise InvalidArgumentError(f"error={study.error}; expected a share from 0 to below 1, such as 0.1.")
    if study.interruptions_per_hour is not None and study.setting != "clouds":
        raise InvalidArgumentError(
            "interruptions_per_hour needs setting: clouds; the published machines have no spot price."
        )
    if (study.setting == "stream") != (study.stream is not None):
        raise InvalidArgumentError("A study has a stream where its setting is one, and only there.")
    for restart in study.restart_seconds:
        check_problem(_problem(study, Instance(nodes=1, mean_gap_seconds=1.0, restart_seconds=restart, seed=0))[0])


def _problem(study: Study, instance: Instance) -> tuple[PlanningProblem, ActualSeconds]:
    """Return an instance, and what its jobs really take."""
    if study.stream is not None:
        return study.stream.instance(nodes=instance.nodes, seed=instance.seed, restart_seconds=instance.restart_seconds)
    problem = random_problem(
        nodes=instance.nodes,
        mean_gap_seconds=instance.mean_gap_seconds,
        seed=instance.seed,
        error=study.error,
        setting=study.setting,
        restart_seconds=instance.restart_seconds,
        interruptions_per_hour=study.interruptions_per_hour,
        checkpoint_seconds=study.checkpoint_seconds,
    )
    draw = cloud_actual_seconds if study.setting == "clouds" else random_actual_seconds
    return problem, draw(problem, seed=instance.seed)


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
    return tuple(sorted(runs, key=lambda run: (run.instance.setting, order[run.policy], run.instance.seed)))


def run_once(study: Study, instance: Instance, name: str) -> StudyRun:
    """Run one policy on one instance, with predicted and with real times."""
    problem, actual = _problem(study, instance)
    real = simulate(problem, policy(name), actual_seconds=actual)
    return StudyRun(
        instance=instance,
        policy=name,
        predicted_usd=simulate(problem, policy(name)).total_usd,
        least_usd=least_usd(problem, actual),
        machine_usd=real.machine_usd,
        tardiness_usd=real.tardiness_usd,
        late_jobs=sum(outcome.tardiness_seconds > 0 for outcome in real.outcomes),
        decisions=real.decisions,
        longest_decision_seconds=real.longest_decision_seconds,
    )


def compare(runs: Sequence[StudyRun]) -> tuple[Comparison, ...]:
    """Take medians over the seeds, one row per setting and policy, in the order of the runs."""
    groups: dict[tuple[tuple[int, float, float], str], list[StudyRun]] = {}
    best: dict[Instance, float] = {}
    for run in runs:
        groups.setdefault((run.instance.setting, run.policy), []).append(run)
        if policy(run.policy) in QUEUE_RULES:
            best[run.instance] = min(run.total_usd, best.get(run.instance, run.total_usd))
    return tuple(_comparison(group, best) for group in groups.values())


def _comparison(group: Sequence[StudyRun], best: Mapping[Instance, float]) -> Comparison:
    nodes, gap, restart = group[0].instance.setting
    compared = [(run, best[run.instance]) for run in group if run.instance in best]
    saved = [1 - run.total_usd / rule for run, rule in compared]
    possible = [1 - run.least_usd / rule for run, rule in compared]
    return Comparison(
        nodes=nodes,
        mean_gap_seconds=gap,
        restart_seconds=restart,
        policy=group[0].policy,
        machine_usd=median(run.machine_usd for run in group),
        tardiness_usd=median(run.tardiness_usd for run in group),
        total_usd=median(run.total_usd for run in group),
        saved=Saving(
            low=min(saved),
            median=median(saved),
            high=max(saved),
            possible=median(possible),
            share=median(part / most if most > 0 else 0.0 for part, most in zip(saved, possible, strict=True)),
        )
        if saved
        else None,
        deviation=median(abs(run.deviation) for run in group),
        longest_decision_seconds=max(run.longest_decision_seconds for run in group),
    )
