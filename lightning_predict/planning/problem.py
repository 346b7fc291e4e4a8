"""Data model of planning: a `PlanningProblem` with jobs, machines and limits, and a `Plan` with times and costs.

A `PlanningProblem` has the constant inputs. A `PlanState` is the state at one moment. `RunningJobs` is a decision that
holds until the next event. A `Plan` is the result of all decisions. Example::

    t4 = MachineType(name="g4dn.xlarge", gpu="T4", num_gpus=1, usd_per_hour=0.53)
    on_t4 = Configuration(machine="g4dn.xlarge", num_gpus=1)
    job = Job(name="resnet", seconds={on_t4: 7200.0}, deadline_seconds=10800.0, tardiness_usd_per_hour=2.0)
    problem = PlanningProblem(jobs=(job,), machines=(t4,), limits=Limits(nodes=1))

Times are seconds since the start of the plan. Lists keep their given order, but no result depends on the order: jobs,
machines and configurations are always processed by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from lightning_predict.base.interval import Interval
from lightning_predict.base.units import seconds_to_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """Type of virtual machine that can be rented."""

    name: str  # Name of the type, unique in a problem
    gpu: str
    num_gpus: int  # Number of GPUs per machine
    usd_per_hour: float  # Price of the whole machine, busy or not
    provider: str | None = None  # Cloud provider, as SkyPilot spells it; None for any provider
    instance: str | None = None  # The provider's name of the instance type, if it differs from `name`
    # Mean rate at which a spot machine is interrupted, an assumption of the user; None for other machines
    interruptions_per_hour: float | None = None
    hosts: tuple[str, ...] = ()  # Slurm host names of the user's own machines of this type. If empty, Slurm chooses.
    # Number of machines, if this type stands for several machines that are rented together for one job. `num_gpus` and
    # `usd_per_hour` then include all of them.
    nodes: int = 1
    base_type: str | None = None  # Name of the type of a single one of these machines; None if `nodes` is 1

    @property
    def kind(self) -> str:
        """Name of the single machine's type, to which quotas apply."""
        return self.base_type or self.name


class Configuration(NamedTuple):
    """Number of GPUs of one machine type that a job uses; a named tuple, as a fast key of dictionaries."""

    machine: str
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training run."""

    name: str  # Name of the job, unique in a problem
    seconds: Mapping[Configuration, float]  # Predicted time of the whole run, by possible configuration
    deadline_seconds: float  # Time by which the job should end. A later end costs `tardiness_usd_per_hour`.
    tardiness_usd_per_hour: float = 1.0  # Cost per hour after the deadline (the tardiness weight ω)
    release_seconds: float = 0.0  # Time at which the job is submitted. Earlier decisions do not know the job.
    low_factor: float = 1.0  # Lower end of the interval of its times, relative to the predicted times
    high_factor: float = 1.0  # Upper end of the interval of its times, relative to the predicted times
    # Interval of the relative times by configuration, if the intervals differ. `spreads` takes precedence over
    # `low_factor` and `high_factor`.
    spreads: Mapping[Configuration, Interval[float]] = field(default_factory=dict)
    command: str | None = None  # Command that starts the training, for exported scripts; None writes no scripts
    # Shared folder or bucket for the job's checkpoint. The command writes the checkpoint on SIGTERM and resumes from
    # it. If None, a stopped job loses its work, so a plan in which this job moves is not exported.
    checkpoint: str | None = None
    notes: tuple[str, ...] = ()  # Notes about the job's times, for readers of the plan

    @property
    def can_move(self) -> bool:
        """Whether a running job can be stopped and resumed: without a checkpoint, it would lose all its work."""
        return self.checkpoint is not None

    def time(self, configuration: Configuration) -> Interval[float]:
        """Return the time of the whole run with its 90 % interval."""
        spread = self.spreads.get(configuration, Interval(self.low_factor, 1.0, self.high_factor))
        return spread.scaled(self.seconds[configuration])

    @property
    def fastest_seconds(self) -> float:
        """Time on the fastest configuration."""
        return min(self.seconds.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on rented machines."""

    nodes: int  # Maximum number of machines at one time, of all types together
    # Maximum number of machines of each type at one time, by the type's name. A type without an entry has no quota.
    quotas: Mapping[str, int] = field(default_factory=dict)
    budget_usd: float | None = None  # Budget for machines over the whole plan, without tardiness; None: no budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Formulation:
    """What the planner may do with jobs."""

    shares_gpus: bool = True  # Whether jobs may share a machine, each with its own GPUs, or have it alone
    preempts: bool = True  # Whether a running job may be paused and resumed later
    migrates: bool = True  # Whether a started job may continue on another machine type or number of GPUs

    @property
    def fixes_running_jobs(self) -> bool:
        """Whether a running job keeps its machine until its end."""
        return not self.preempts and not self.migrates


RESTART_SECONDS: Final = 60.0  # Default time that a job loses when it moves


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningProblem:
    """Jobs, machines, limits and rules for a plan."""

    jobs: tuple[Job, ...]
    machines: tuple[MachineType, ...]  # Machine types that can be rented
    limits: Limits
    formulation: Formulation = Formulation()  # What the planner may do with jobs
    period_seconds: float = 300.0  # Maximum time between two decisions (H)
    tardiness_factor: float = 1.0  # Weight of tardiness relative to the cost of machines (ρ)
    # Time that a job loses when it moves or resumes. The time includes writing and reading a checkpoint and starting a
    # process.
    restart_seconds: float = RESTART_SECONDS
    # Time between two checkpoints of a job. If a spot machine is interrupted, the work since the last checkpoint is
    # lost. None is allowed only without spot machines.
    checkpoint_seconds: float | None = None
    # Time over which a decision counts the cost of a rented machine. If None, it is derived from the events so far (see
    # `objective.py`).
    horizon_seconds: float | None = None
    # Required probability of meeting deadlines, according to the intervals of the jobs' times. A running job moves to
    # another GPU only if the move pays off with this probability. A value of 0.5 uses the predicted times.
    probability: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Machine and GPUs of a job; nodes are counted from 0."""

    node: int
    configuration: Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """State of a plan at one moment: jobs, machines and money spent."""

    now_seconds: float
    remaining: Mapping[str, float]  # Remaining share of the work of each submitted, unfinished job; in (0, 1]
    running: Mapping[str, Placement] = field(default_factory=dict)
    # Last configuration of each job that has started, running or not
    started: Mapping[str, Configuration] = field(default_factory=dict)
    # For running jobs that have just moved: seconds until the job resumes work
    restarting: Mapping[str, float] = field(default_factory=dict)
    # Time of the whole run according to the job's own progress, by job and configuration
    measured: Mapping[str, Mapping[Configuration, float]] = field(default_factory=dict)
    spent_usd: float = 0.0  # Money spent on machines so far
    mean_gap_seconds: float | None = None  # Mean time between two decisions so far, at most the period; None before


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJobs:
    """Decision that holds until the next event: which jobs run, and where."""

    placements: Mapping[str, Placement]
    objective_usd: float | None  # Expected cost according to the planner; None for a rule without an objective
    bound_usd: float | None  # Lower bound on the cost of any decision; None if the method gives no bound
    solve_seconds: float

    @property
    def gap(self) -> float | None:
        """Difference between objective and lower bound, as a share of the objective; None without a bound."""
        if self.objective_usd is None or self.bound_usd is None:
            return None
        if self.objective_usd == self.bound_usd:
            return 0.0
        return (self.objective_usd - self.bound_usd) / abs(self.objective_usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Time span in which a job runs in one place."""

    job: str
    placement: Placement
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """Time span in which a node is rented as a machine of one type, and its price."""

    node: int
    machine: str
    start_seconds: float
    end_seconds: float
    usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """Start, end and cost of a job.

    `machine_usd` is the job's share of the cost of machines. A shared machine is divided by the jobs' numbers of GPUs,
    and the cost of idle GPUs in the same proportion.
    """

    job: str
    release_seconds: float
    start_seconds: float
    end_seconds: float
    deadline_seconds: float
    tardiness_seconds: float
    tardiness_usd: float
    machine_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutlook:
    """Expected costs of a plan over all draws, and the probability that each job meets its deadline, by name."""

    machine_usd: float
    tardiness_usd: float
    in_time: Mapping[str, float]

    @property
    def usd(self) -> float:
        """Expected total cost."""
        return self.machine_usd + self.tardiness_usd

    def shortfall(self, probability: float) -> float:
        """Sum over the jobs of the missing probability of their deadlines."""
        return sum(max(0.0, probability - chance) for chance in self.in_time.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Result of planning: placements, times and costs."""

    policy: str
    segments: tuple[Segment, ...]  # Segments of jobs, sorted by start and job
    rentals: tuple[Rental, ...]  # Rentals of machines, sorted by start and node
    outcomes: tuple[JobOutcome, ...]  # One outcome per job, sorted by name
    decisions: int
    longest_decision_seconds: float
    largest_gap: float | None  # Largest gap among decisions with a bound; None if no decision has one
    outlook: PlanOutlook | None = None  # Expected cost and probability of each deadline; None if not computed

    @property
    def machine_usd(self) -> float:
        """Cost of all machines."""
        return sum(rental.usd for rental in self.rentals)

    @property
    def tardiness_usd(self) -> float:
        """Cost of the tardiness of all jobs."""
        return sum(outcome.tardiness_usd for outcome in self.outcomes)

    @property
    def total_usd(self) -> float:
        """Cost of machines and tardiness."""
        return self.machine_usd + self.tardiness_usd

    @property
    def makespan_seconds(self) -> float:
        """Time at which the last job ends."""
        return max(outcome.end_seconds for outcome in self.outcomes)


class AbstractPolicy(Protocol):
    """Decision method: the planner or a queue rule."""

    @property
    def name(self) -> str:
        """Name of the policy in tables."""

    def decide(self, problem: PlanningProblem, situation: PlanState) -> RunningJobs:
        """Decide which jobs run from this moment on."""


def rental_usd(*, seconds: float, usd_per_hour: float) -> float:
    """Return the price of a rental of this duration."""
    return seconds_to_hours(seconds) * usd_per_hour
