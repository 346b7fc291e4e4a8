"""From a `PlanningProblem` to a `Plan`: jobs, machines and limits, and what ran where and when, and what that cost.

A `PlanningProblem` holds what does not change, a `Situation` what is known at one moment, `RunningJobs` say what runs
from that moment until the next event, and a `Plan` what they add up to. Example::

    t4 = MachineType(name="g4dn.xlarge", gpu="T4", num_gpus=1, usd_per_hour=0.53)
    on_t4 = Configuration(machine="g4dn.xlarge", num_gpus=1)
    job = Job(name="resnet", seconds={on_t4: 7200.0}, deadline_seconds=10800.0, tardiness_usd_per_hour=2.0)
    problem = PlanningProblem(jobs=(job,), machines=(t4,), limits=Limits(nodes=1))

Times are seconds from one common origin, the moment in which planning starts. Lists keep the order they are given in,
but no result depends on it: jobs, machines and configurations are always visited by name.
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
    """A type of virtual machine that can be rented.

    Attributes:
        name: Its name, unique in a problem.
        gpu: Name of its GPU.
        num_gpus: GPUs of one machine.
        usd_per_hour: Price of the whole machine, busy or not.
        provider: Who rents it out, as SkyPilot spells it; None if it does not matter.
        instance: The provider's name of the machine, where `name` is another.
        interruptions_per_hour: How often a spot machine is taken away, on average: an assumption of whoever plans. None
            if it is not a spot machine.
        hosts: Names of own machines of this type, as Slurm knows them; empty where Slurm chooses.
        nodes: Machines that it stands for: several are rented together for a job that spans them, and `num_gpus` and
            `usd_per_hour` are of all of them.
        of: Name of the type of one of them; None where it stands for one.
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
        """Name of the type of one machine, which quotas count."""
        return self.of or self.name


@final
class Configuration(NamedTuple):
    """So many GPUs of one machine of a type, on which a job can run: a key of many tables, so that it hashes fast."""

    machine: str
    num_gpus: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training run.

    Attributes:
        name: Its name, unique in a problem.
        seconds: Predicted time of the whole run by configuration; where an entry is absent, it cannot run there.
        deadline_seconds: Time by which it should have ended; what is later is paid by `tardiness_usd_per_hour`.
        tardiness_usd_per_hour: What an hour after the deadline costs (the tardiness weight ω).
        release_seconds: Time of its submission; no decision before it knows the job.
        low_factor: Lower end of the interval of its times, as a factor of the predicted ones.
        high_factor: Upper end of that interval.
        spreads: That interval by configuration, as factors, where times are not known alike; before the two above.
        command: What starts the training, for the exported scripts; None: they are not written.
        checkpoint: Folder that all machines share, or bucket, that the command writes its checkpoint to on SIGTERM and
            goes on from; None: what stops has lost its work, so that a plan in which it moves is not exported.
        notes: What a reader of a plan has to know of its times.
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
        """Give the time of the whole run with its 90 % interval."""
        spread = self.spreads.get(configuration, Interval(self.low_factor, 1.0, self.high_factor))
        return spread.scaled(self.seconds[configuration])

    @property
    def fastest_seconds(self) -> float:
        """Time on the fastest configuration."""
        return min(self.seconds.values())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on what may be rented.

    Attributes:
        nodes: Machines at one time, of all types together.
        quotas: Machines at one time of a type, by its name; no entry means no quota.
        budget_usd: For machines over the whole plan, tardiness not counted; None means no budget.
    """

    nodes: int
    quotas: Mapping[str, int] = field(default_factory=dict)
    budget_usd: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Formulation:
    """The freedom that the planner has.

    Attributes:
        shares_gpus: Jobs may share a machine, each with GPUs of its own; else a job has its machine alone.
        preempts: A running job may be put back into the queue, and goes on later where it stopped.
        migrates: A job that has started may go on with another machine type or number of GPUs.
    """

    shares_gpus: bool = True
    preempts: bool = True
    migrates: bool = True

    @property
    def fixes_running_jobs(self) -> bool:
        """A job that runs keeps its machine until its end."""
        return not self.preempts and not self.migrates


RESTART_SECONDS: Final = 60.0
"""What a job is assumed to lose when it moves, by default. If moves were free, a plan would be full of
them."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningProblem:
    """Jobs, machines and the rules of the plan.

    Attributes:
        jobs: All jobs, of any release time.
        machines: What can be rented.
        limits: How much of it.
        formulation: Freedom of the planner.
        period_seconds: A decision holds this long at most (H).
        tardiness_factor: Weight of tardiness against the cost of machines (ρ).
        postponement_factor: Weight of the worst-case tardiness of postponed jobs (ρ̂).
        restart_seconds: Time that a job loses whenever it moves or goes on after a pause: a checkpoint is written and
            read, and a process started.
        checkpoint_seconds: A job writes a checkpoint after so much work; an interruption of its machine loses what came
            after it. None only without spot machines.
        horizon_seconds: How long a rented machine is counted in a decision; None takes it from the events so far (see
            `objective.py`).
        probability: Deadlines are to be kept with this probability, as far as the intervals of the jobs' times say,
            and a running job moves to another GPU only if that pays with it; 0.5 plans with the times as predicted.
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
    """The machine and the GPUs on which a job runs.

    Attributes:
        node: Number of the node, from 0.
        configuration: Machine type of the node, and GPUs that the job has on it.
    """

    node: int
    configuration: Configuration


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that is known at one moment: jobs, machines and prices.

    Attributes:
        now_seconds: The moment.
        remaining: Share of the work that is left of each job that was submitted and has not ended, above 0, at most 1.
        running: Where jobs run now.
        started: Last configuration of each job that has run, whether it runs now or not.
        restarting: Seconds until a job works that has moved, of those that run but do not work yet.
        measured: Time of the whole run that a job's own progress shows, by job and by configuration that it ran on.
        beside: Seconds of that time, by job, that pass beside its steps: waits for data, validation, checkpoints.
        unproven: Share of the work that is done only as predicted, by job: a plan looks ahead. What nobody has seen yet
            may take longer.
        spent_usd: Paid for machines so far.
        mean_gap_seconds: Mean time between two decisions so far; at most the period. None before the second decision.
    """

    now_seconds: float
    remaining: Mapping[str, float]
    running: Mapping[str, Placement] = field(default_factory=dict)
    started: Mapping[str, Configuration] = field(default_factory=dict)
    restarting: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, Mapping[Configuration, float]] = field(default_factory=dict)
    beside: Mapping[str, float] = field(default_factory=dict)
    unproven: Mapping[str, float] = field(default_factory=dict)
    spent_usd: float = 0.0
    mean_gap_seconds: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJobs:
    """The jobs that run, and their places, until the next event.

    Attributes:
        placements: Where each job runs.
        postponed: Jobs that wait, by name.
        objective_usd: What the planner expects this to cost (see `objective.py`); None from a rule that has none.
        bound_usd: No decision can cost less; None if the method proves nothing.
        method: Name of the method.
        solve_seconds: Time it took.
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
    """A stretch of time in which a job runs in one place."""

    job: str
    placement: Placement
    start_seconds: float
    end_seconds: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """A stretch of time in which a node is a machine of one type.

    Attributes:
        node: Number of the node.
        machine: Type of the machine.
        start_seconds: When it is rented.
        end_seconds: When it is given back.
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
    """The start, the end and the cost of a job.

    Attributes:
        job: Its name.
        release_seconds: When it was submitted.
        start_seconds: When it first ran.
        end_seconds: When it ended.
        deadline_seconds: When it should have ended.
        tardiness_seconds: How much later it ended; 0 where it was in time.
        tardiness_usd: What that costs.
        machine_usd: Its share of the machines, by GPUs where they were shared; idle GPUs are shared alike.
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
    """All that runs, where and when.

    Attributes:
        policy: Name of what decided.
        segments: Where and when jobs run, by start and job.
        rentals: Which machines are rented when, by start and node.
        outcomes: One per job, by name.
        decisions: How many decisions were made.
        longest_decision_seconds: The slowest of them.
        largest_gap: Largest gap of those that have a bound; None if none has.
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
        """Machines and tardiness."""
        return self.machine_usd + self.tardiness_usd

    @property
    def makespan_seconds(self) -> float:
        """End of the last job."""
        return max(outcome.end_seconds for outcome in self.outcomes)


class AbstractPolicy(Protocol):
    """A way to decide: the planner, or a rule to compare it with."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    def decide(self, problem: PlanningProblem, situation: Situation) -> RunningJobs:
        """Find what runs from this moment on."""


def rental_usd(*, seconds: float, usd_per_hour: float) -> float:
    """Compute the dollars for this long at this price."""
    return seconds_to_hours(seconds) * usd_per_hour
