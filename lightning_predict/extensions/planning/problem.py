"""Data model of planning: from a `PlanningProblem` with jobs, machines and limits to a `Plan` with times and costs.

A `PlanningProblem` has the constant inputs, a `PlanState` the state at one moment. `RunningJobs` is a decision that
holds until the next event, and a `Plan` the result of all decisions. Example::

    t4 = MachineType(name="g4dn.xlarge", gpu="T4", num_gpus=1, usd_per_hour=0.53)
    on_t4 = Configuration(machine="g4dn.xlarge", num_gpus=1)
    job = Job(name="resnet", seconds={on_t4: 7200.0}, deadline_seconds=10800.0, tardiness_usd_per_hour=2.0)
    problem = PlanningProblem(jobs=(job,), machines=(t4,), limits=Limits(nodes=1))

Times are seconds since the start of the plan. Lists keep their given order, but no result depends on it: jobs, machines
and configurations are always processed by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, final

from lightning_predict.interval import Interval
from lightning_predict.units import seconds_to_hours


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """Type of virtual machine that can be rented.

    Attributes:
        name: Its name, unique in a problem.
        gpu: Name of its GPU.
        num_gpus: GPUs of one machine.
        usd_per_hour: Price of the whole machine, busy or not.
        provider: The cloud provider, as SkyPilot spells it; None if it does not matter.
        instance: The provider's name of the machine, if it differs from `name`.
        interruptions_per_hour: Mean interruption rate of a spot machine, an assumption of the user. None if it is not a
            spot machine.
        hosts: Slurm host names of the user's own machines of this type; empty if Slurm chooses.
        nodes: Number of machines, if it stands for several rented together for a job that spans them; `num_gpus` and
            `usd_per_hour` then include all of them.
        of: Name of the type of a single one of them; None if `nodes` is 1.
    """

    name: str
    gpu: str
    num_gpus: int
    usd_per_hour: float
    provider: str | None = None
    instance: str | None = None
    interruptions_per_hour: float | None = None
    hosts: tuple[str, ...] = ()
    nodes: int = 1
    of: str | None = None

    @property
    def kind(self) -> str:
        """Name of the single machine's type, for quotas."""
        return self.of or self.name


@final
class Configuration(NamedTuple):
    """Number of GPUs of one machine of a type, for a job; a named tuple, because it is a frequent dictionary key."""

    machine: str
    num_gpus: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Training run.

    Attributes:
        name: Its name, unique in a problem.
        seconds: Predicted time of the whole run by configuration; without an entry, it cannot run there.
        deadline_seconds: Time by which it should end; a later end costs `tardiness_usd_per_hour`.
        tardiness_usd_per_hour: Cost of an hour after the deadline (the tardiness weight ω).
        release_seconds: Time of its submission; earlier decisions do not know the job.
        low_factor: Lower end of the interval of its times, as a factor on the predicted ones.
        high_factor: Upper end of that interval.
        spreads: That interval by configuration, as factors, if it varies; takes precedence over the two above.
        command: Command that starts the training, for exported scripts; None: no scripts.
        checkpoint: Shared folder or bucket to which the command writes its checkpoint on SIGTERM, and from which it
            resumes. None: a stopped job loses its work, so a plan in which it moves is not exported.
        notes: Notes about its times, for readers of the plan.
    """

    name: str
    seconds: Mapping[Configuration, float]
    deadline_seconds: float
    tardiness_usd_per_hour: float = 1.0
    release_seconds: float = 0.0
    low_factor: float = 1.0
    high_factor: float = 1.0
    spreads: Mapping[Configuration, Interval[float]] = field(default_factory=dict)
    command: str | None = None
    checkpoint: str | None = None
    notes: tuple[str, ...] = ()

    def time(self, configuration: Configuration) -> Interval[float]:
        """Return the time of the whole run with its 90 % interval."""
        spread = self.spreads.get(configuration, Interval(self.low_factor, 1.0, self.high_factor))
        return spread.scaled(self.seconds[configuration])

    @property
    def fastest_seconds(self) -> float:
        """Time on the fastest configuration."""
        return min(self.seconds.values())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on rented machines.

    Attributes:
        nodes: Machines at one time, of all types together.
        quotas: Machines of a type at one time, by its name; no entry means no quota.
        budget_usd: Budget for machines over the whole plan, without tardiness; None means no budget.
    """

    nodes: int
    quotas: Mapping[str, int] = field(default_factory=dict)
    budget_usd: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Formulation:
    """Freedom of the planner.

    Attributes:
        shares_gpus: Jobs may share a machine, each with its own GPUs; otherwise a job has its machine alone.
        preempts: A running job may be paused, and resumes later.
        migrates: A started job may continue on another machine type or number of GPUs.
    """

    shares_gpus: bool = True
    preempts: bool = True
    migrates: bool = True

    @property
    def fixes_running_jobs(self) -> bool:
        """A running job keeps its machine until its end."""
        return not self.preempts and not self.migrates


RESTART_SECONDS: Final = 60.0
"""Default time that a job loses when it moves. If moves were free, plans would have too many."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningProblem:
    """Jobs, machines and the rules of the plan.

    Attributes:
        jobs: All jobs, of any release time.
        machines: Machine types that can be rented.
        limits: Limits on rented machines.
        formulation: Freedom of the planner.
        period_seconds: Maximum time between two decisions (H).
        tardiness_factor: Weight of tardiness relative to the cost of machines (ρ).
        postponement_factor: Weight of the worst-case tardiness of postponed jobs (ρ̂).
        restart_seconds: Time that a job loses when it moves or resumes: writing and reading a checkpoint, and starting
            a process.
        checkpoint_seconds: Work between two checkpoints of a job; an interruption of its machine loses the work since
            the last one. None is allowed only without spot machines.
        horizon_seconds: Time over which a decision counts a rented machine; None derives it from the events so far (see
            `objective.py`).
        probability: Required probability of meeting deadlines, according to the intervals of the jobs' times. A running
            job also moves to another GPU only if that pays off with this probability. 0.5 uses the predicted times.
    """

    jobs: tuple[Job, ...]
    machines: tuple[MachineType, ...]
    limits: Limits
    formulation: Formulation = Formulation()
    period_seconds: float = 300.0
    tardiness_factor: float = 1.0
    postponement_factor: float = 1.0
    restart_seconds: float = RESTART_SECONDS
    checkpoint_seconds: float | None = None
    horizon_seconds: float | None = None
    probability: float = 0.5


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Machine and GPUs of a job.

    Attributes:
        node: Number of the node, from 0.
        configuration: Machine type of the node, and the job's number of GPUs on it.
    """

    node: int
    configuration: Configuration


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """State at one moment: jobs, machines and prices.

    Attributes:
        now_seconds: The moment.
        remaining: Remaining share of the work of each submitted, unfinished job; above 0 and at most 1.
        running: Placements of running jobs.
        started: Last configuration of each job that has started, running or not.
        restarting: Seconds until a moved job resumes work, for running jobs that do not work yet.
        measured: Time of the whole run according to a job's own progress, by job and configuration.
        beside: Seconds of that time outside the steps, by job: waits for data, validation, checkpoints.
        unproven: Share of the work that is done only according to the prediction, by job, in a plan that looks ahead.
            It may take longer.
        spent_usd: Money spent on machines so far.
        mean_gap_seconds: Mean time between two decisions so far; at most the period. None before the second decision.
    """

    now_seconds: float
    remaining: Mapping[str, float]
    running: Mapping[str, Placement] = field(default_factory=dict)
    started: Mapping[str, Configuration] = field(default_factory=dict)
    restarting: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, Mapping[Configuration, float]] = field(default_factory=dict)
    overhead_seconds: Mapping[str, float] = field(default_factory=dict)
    unproven: Mapping[str, float] = field(default_factory=dict)
    spent_usd: float = 0.0
    mean_gap_seconds: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJobs:
    """Decision that holds until the next event: the jobs that run, and their placements.

    Attributes:
        placements: Placement of each running job.
        postponed: Jobs that wait, by name.
        objective_usd: Expected cost according to the planner (see `objective.py`); None for a rule without an
            objective.
        bound_usd: Lower bound on the cost of any decision; None if the method proves none.
        method: Name of the method.
        solve_seconds: Time to decide.
    """

    placements: Mapping[str, Placement]
    postponed: tuple[str, ...]
    objective_usd: float | None
    bound_usd: float | None
    method: str
    solve_seconds: float

    @property
    def gap(self) -> float | None:
        """Distance to the bound as a share of the objective; None without a bound."""
        if self.objective_usd is None or self.bound_usd is None:
            return None
        if self.objective_usd == self.bound_usd:
            return 0.0
        return (self.objective_usd - self.bound_usd) / abs(self.objective_usd)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Time span in which a job runs in one place."""

    job: str
    placement: Placement
    start_seconds: float
    end_seconds: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """Time span in which a node is rented as a machine of one type.

    Attributes:
        node: Number of the node.
        machine: Type of the machine.
        start_seconds: Start of the rental.
        end_seconds: End of the rental.
        usd: Price of that time.
    """

    node: int
    machine: str
    start_seconds: float
    end_seconds: float
    usd: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """Start, end and cost of a job.

    Attributes:
        job: Its name.
        release_seconds: Submission.
        start_seconds: First start.
        end_seconds: Actual end.
        deadline_seconds: Deadline.
        tardiness_seconds: Time between deadline and end; 0 if it was in time.
        tardiness_usd: Cost of the tardiness.
        machine_usd: Its share of the machines, by GPUs if they were shared; idle GPUs are shared in the same
            proportion.
    """

    job: str
    release_seconds: float
    start_seconds: float
    end_seconds: float
    deadline_seconds: float
    tardiness_seconds: float
    tardiness_usd: float
    machine_usd: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Result of planning: placements, times and costs.

    Attributes:
        policy: Name of the policy.
        segments: Segments of jobs, sorted by start and job.
        rentals: Rentals of machines, sorted by start and node.
        outcomes: One per job, by name.
        decisions: Number of decisions.
        longest_decision_seconds: Time of the slowest decision.
        largest_gap: Largest gap among decisions with a bound; None without any.
    """

    policy: str
    segments: tuple[Segment, ...]
    rentals: tuple[Rental, ...]
    outcomes: tuple[JobOutcome, ...]
    decisions: int
    longest_decision_seconds: float
    largest_gap: float | None

    @property
    def machine_usd(self) -> float:
        """Cost of all machines."""
        return sum(rental.usd for rental in self.rentals)

    @property
    def tardiness_usd(self) -> float:
        """Cost of all tardiness."""
        return sum(outcome.tardiness_usd for outcome in self.outcomes)

    @property
    def total_usd(self) -> float:
        """Cost of machines and tardiness."""
        return self.machine_usd + self.tardiness_usd

    @property
    def makespan_seconds(self) -> float:
        """End of the last job."""
        return max(outcome.end_seconds for outcome in self.outcomes)


class AbstractPolicy(Protocol):
    """Decision method: the planner, or a rule to compare it with."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    def decide(self, problem: PlanningProblem, situation: PlanState) -> RunningJobs:
        """Decide which jobs run from this moment on."""


def rental_usd(*, seconds: float, usd_per_hour: float) -> float:
    """Return the price of a rental of this duration."""
    return seconds_to_hours(seconds) * usd_per_hour
