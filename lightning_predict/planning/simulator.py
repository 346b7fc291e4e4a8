"""Simulates a plan event by event: jobs arrive, run and end, and a policy makes a new decision at every event.

An event is the submission of a job, the end of a job, or a period without either. Between events, every running job
works at its own speed. A machine is paid from the decision that rents the machine to the decision that returns it,
busy or idle.

If `actual_seconds` is given, jobs take these times instead of the predicted times. The policy uses the predicted time
of a job in the first minute of its work, and then a time derived from the job's progress. The resulting plan is the
actual outcome. Without `actual_seconds`, the plan is the expected outcome.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from lightning_predict.base.errors import InfeasiblePlanError
from lightning_predict.planning.objective import expected_seconds, tardiness_usd
from lightning_predict.planning.problem import (
    AbstractPolicy,
    Configuration,
    Job,
    JobOutcome,
    Placement,
    Plan,
    PlanningProblem,
    PlanState,
    Rental,
    RunningJobs,
    Segment,
    rental_usd,
)
from lightning_predict.planning.validation import check_problem, check_situation

ActualSeconds = Mapping[str, Mapping[Configuration, float]]  # Actual time of the whole run, by job and configuration
MEASURED_SECONDS: Final = 60.0  # Seconds of work after which a job's speed counts as measured

_TOLERANCE_SECONDS: Final = 1e-6


def simulate(
    problem: PlanningProblem,
    policy: AbstractPolicy,
    *,
    actual_seconds: ActualSeconds | None = None,
    since: PlanState | None = None,
) -> Plan:
    """Simulate all jobs to their end.

    Args:
        problem: Jobs, machines and limits.
        policy: The policy that decides.
        actual_seconds: Actual times of the jobs. If None, the predicted times are used.
        since: Progress of the jobs. If None, the plan starts at the beginning. Jobs that were submitted before and are
            not in `since.remaining` have ended. The resulting plan contains only later times.

    Raises:
        InfeasiblePlanError: The problem cannot be planned, or the policy never starts some jobs.
        InvalidArgumentError: A number is out of its range, or the state contradicts the problem.
    """
    check_problem(problem)
    if since is not None:
        check_situation(since, problem)
    run = _Simulation(problem=problem, policy=policy, actual_seconds=actual_seconds, since=since)
    if since is not None:
        run.decide()
    while run.arrivals or run.remaining:
        run.advance(run.next_event_seconds())
        run.end_jobs()
        run.admit_jobs()
        run.decide()
    return run.plan()


@dataclass(slots=True)
class _Work:
    """A running job. At `start_seconds`, the share `remaining` of the work is left, of a run of `seconds`."""

    placement: Placement
    segment_start_seconds: float
    start_seconds: float
    remaining: float
    seconds: float

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.remaining * self.seconds

    def remaining_at(self, now_seconds: float) -> float:
        return self.remaining - max(0.0, now_seconds - self.start_seconds) / self.seconds


@dataclass(kw_only=True)
class _Simulation:
    """State of the simulation between two events."""

    problem: PlanningProblem
    policy: AbstractPolicy
    actual_seconds: ActualSeconds | None
    since: PlanState | None
    now_seconds: float = 0.0
    last_decision_seconds: float = 0.0
    remaining: dict[str, float] = field(default_factory=dict)
    work: dict[str, _Work] = field(default_factory=dict)
    started: dict[str, Configuration] = field(default_factory=dict)
    measured: dict[str, dict[Configuration, float]] = field(default_factory=dict)
    first_start: dict[str, float] = field(default_factory=dict)
    machine_usd: dict[str, float] = field(default_factory=dict)
    rented: dict[int, tuple[str, float]] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    rentals: list[Rental] = field(default_factory=list)
    outcomes: list[JobOutcome] = field(default_factory=list)
    decisions: list[RunningJobs] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.jobs: dict[str, Job] = {job.name: job for job in self.problem.jobs}
        self.machines = {machine.name: machine for machine in self.problem.machines}
        # Sorted in reverse order, so that the next job to arrive is last.
        self.arrivals = sorted(self.problem.jobs, key=lambda job: (job.release_seconds, job.name), reverse=True)
        if self.since is not None:
            self._go_on_from(self.since)

    def _seconds(self, job: Job, configuration: Configuration) -> float:
        """Return the actual time of the job's whole run on this configuration, with expected interruptions."""
        known = self.since or PlanState(now_seconds=0.0, remaining={})
        real = job if self.actual_seconds is None else replace(job, seconds=self.actual_seconds[job.name])
        known = known if self.actual_seconds is None else replace(known, measured={})
        return expected_seconds(real, self.problem, known)[configuration]

    def _go_on_from(self, since: PlanState) -> None:
        """Initialize the state from the progress of a running plan."""
        self.now_seconds = self.last_decision_seconds = since.now_seconds
        self.arrivals = [job for job in self.arrivals if job.release_seconds > since.now_seconds]
        self.remaining = dict(since.remaining)
        self.started = dict(since.started)
        self.measured = {name: dict(seconds) for name, seconds in since.measured.items()}
        self._rent({placement.node: placement.configuration.machine for placement in since.running.values()})
        for name, placement in since.running.items():
            self._start(name, placement, lost_seconds=since.restarting.get(name, 0.0))

    def next_event_seconds(self) -> float:
        """Return the time of the next submission, end of a job, or end of a period."""
        ends = min((work.end_seconds for work in self.work.values()), default=math.inf)
        arrival = self.arrivals[-1].release_seconds if self.arrivals else math.inf
        patience = max((self.jobs[name].deadline_seconds for name in self.remaining), default=0.0)
        if not self.work and math.isinf(arrival) and self.now_seconds > patience + self.problem.period_seconds:
            raise self._stuck()
        period = self.last_decision_seconds + self.problem.period_seconds if self.remaining else math.inf
        return max(self.now_seconds, min(ends, arrival, period))

    def advance(self, until_seconds: float) -> None:
        """Advance the clock. The price of each machine is divided among its jobs, in proportion to their GPUs."""
        by_node: dict[int, list[str]] = {}
        for name in sorted(self.work):
            by_node.setdefault(self.work[name].placement.node, []).append(name)
        for node, names in by_node.items():
            machine, _ = self.rented[node]
            price = rental_usd(
                seconds=until_seconds - self.now_seconds, usd_per_hour=self.machines[machine].usd_per_hour
            )
            gpus = {name: self.work[name].placement.configuration.num_gpus for name in names}
            for name in names:
                self.machine_usd[name] = self.machine_usd.get(name, 0.0) + price * gpus[name] / sum(gpus.values())
        self.now_seconds = until_seconds

    def end_jobs(self) -> None:
        """Remove the jobs that have ended by the current time."""
        ended = sorted(
            name for name, work in self.work.items() if work.end_seconds <= self.now_seconds + _TOLERANCE_SECONDS
        )
        for name in ended:
            self._close_segment(name)
            del self.remaining[name]
            job = self.jobs[name]
            self.outcomes.append(
                JobOutcome(
                    job=name,
                    release_seconds=job.release_seconds,
                    start_seconds=self.first_start[name],
                    end_seconds=self.now_seconds,
                    deadline_seconds=job.deadline_seconds,
                    tardiness_seconds=max(0.0, self.now_seconds - job.deadline_seconds),
                    tardiness_usd=tardiness_usd(job, self.now_seconds),
                    machine_usd=self.machine_usd[name],
                )
            )

    def admit_jobs(self) -> None:
        """Add the jobs that have been submitted by the current time."""
        while self.arrivals and self.arrivals[-1].release_seconds <= self.now_seconds:
            self.remaining[self.arrivals.pop().name] = 1.0

    def decide(self) -> None:
        """Ask the policy for a decision, and carry it out."""
        for name, work in self.work.items():
            self.remaining[name] = max(work.remaining_at(self.now_seconds), 0.0)
            if self.actual_seconds is not None and self.now_seconds - work.start_seconds >= MEASURED_SECONDS:
                here = work.placement.configuration
                self.measured.setdefault(name, {})[here] = self.actual_seconds[name][here]
        placements: Mapping[str, Placement] = {}
        if self.remaining:
            situation = PlanState(
                now_seconds=self.now_seconds,
                remaining=dict(sorted(self.remaining.items())),
                running={name: self.work[name].placement for name in sorted(self.work)},
                started=dict(sorted(self.started.items())),
                restarting={
                    name: work.start_seconds - self.now_seconds
                    for name, work in sorted(self.work.items())
                    if work.start_seconds > self.now_seconds
                },
                measured={name: dict(self.measured[name]) for name in sorted(self.measured.keys() & self.remaining)},
                spent_usd=self._spent_usd(),
                mean_gap_seconds=self._mean_gap_seconds(),
            )
            decision = self.policy.decide(self.problem, situation)
            self.decisions.append(decision)
            placements = decision.placements
        self.last_decision_seconds = self.now_seconds
        self._rent({item.node: item.configuration.machine for item in placements.values()})
        for name in sorted(self.jobs.keys() & (self.work.keys() | placements.keys())):
            current = self.work[name].placement if name in self.work else None
            wanted = placements.get(name)
            if current != wanted:
                if current is not None:
                    self._close_segment(name)
                if wanted is not None:
                    lost = self.problem.restart_seconds if name in self.started else 0.0
                    self._start(name, wanted, lost_seconds=lost)

    def plan(self) -> Plan:
        """Return the resulting plan."""
        gaps = [decision.gap for decision in self.decisions]
        known = [gap for gap in gaps if gap is not None]
        return Plan(
            policy=self.policy.name,
            segments=tuple(sorted(self.segments, key=lambda item: (item.start_seconds, item.job))),
            rentals=tuple(sorted(self.rentals, key=lambda item: (item.start_seconds, item.node))),
            outcomes=tuple(sorted(self.outcomes, key=lambda item: item.job)),
            decisions=len(self.decisions),
            longest_decision_seconds=max((decision.solve_seconds for decision in self.decisions), default=0.0),
            largest_gap=max(known, default=None),
        )

    def _start(self, name: str, placement: Placement, *, lost_seconds: float) -> None:
        """Begin a segment of a job. First, the job loses the time of its restart."""
        self.work[name] = _Work(
            placement=placement,
            segment_start_seconds=self.now_seconds,
            start_seconds=self.now_seconds + lost_seconds,
            remaining=self.remaining[name],
            seconds=self._seconds(self.jobs[name], placement.configuration),
        )
        self.started[name] = placement.configuration
        self.first_start.setdefault(name, self.now_seconds)

    def _close_segment(self, name: str) -> None:
        work = self.work.pop(name)
        if self.now_seconds > work.segment_start_seconds:
            self.segments.append(
                Segment(
                    job=name,
                    placement=work.placement,
                    start_seconds=work.segment_start_seconds,
                    end_seconds=self.now_seconds,
                )
            )

    def _rent(self, wanted: Mapping[int, str]) -> None:
        """Rent and return machines, so that each node has the requested type."""
        for node in sorted(self.rented.keys() | wanted.keys()):
            machine, _ = self.rented.get(node, (None, self.now_seconds))
            if machine == wanted.get(node):
                continue
            if machine is not None:
                self._give_back(node)
            if node in wanted:
                self.rented[node] = (wanted[node], self.now_seconds)

    def _give_back(self, node: int) -> None:
        self.rentals.append(self._rental(node, *self.rented.pop(node)))

    def _rental(self, node: int, machine: str, since: float) -> Rental:
        price = rental_usd(seconds=self.now_seconds - since, usd_per_hour=self.machines[machine].usd_per_hour)
        return Rental(node=node, machine=machine, start_seconds=since, end_seconds=self.now_seconds, usd=price)

    def _mean_gap_seconds(self) -> float | None:
        """Return the mean time between two decisions so far; at first, the value of the initial state."""
        begin = 0.0 if self.since is None else self.since.now_seconds
        number, passed = len(self.decisions), self.now_seconds - begin
        if number and passed:
            return max(passed / number, _TOLERANCE_SECONDS)
        return None if self.since is None else self.since.mean_gap_seconds

    def _spent_usd(self) -> float:
        running = (self._rental(node, machine, since).usd for node, (machine, since) in self.rented.items())
        before = 0.0 if self.since is None else self.since.spent_usd
        return before + sum(rental.usd for rental in self.rentals) + sum(running)

    def _stuck(self) -> InfeasiblePlanError:
        waiting = ", ".join(repr(name) for name in sorted(self.remaining))
        limits = self.problem.limits
        constraint = (
            f"the number of nodes ({limits.nodes}) and the quotas ({dict(limits.quotas)})"
            if limits.budget_usd is None
            else f"the budget: ${self._spent_usd():.2f} of ${limits.budget_usd:.2f} are spent"
        )
        return InfeasiblePlanError(
            f"{self.policy.name!r} starts none of the jobs {waiting}, and no event is left. The limit is "
            f"{constraint}. Raise it, or remove jobs."
        )
