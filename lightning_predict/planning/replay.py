"""Replays a plan with actual times that differ from the predicted times, as its exported scripts would run.

The rules are those of the scripts in `exports.py`. A segment starts at its planned time, or later, when its job has
stopped at the previous place and the segment's GPUs are free. A job that gets a stop signal writes its checkpoint. A
job that has already ended is not started again. A machine is kept until it was idle for `IDLE_MINUTES`. Nothing ends at
a predicted time, so wrong predictions lose no work, but cost time, money and deadlines. The replay can plan again from
the state at given times, as `plan --state` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import NORMAL_95
from lightning_predict.base.units import SECONDS_PER_MINUTE
from lightning_predict.planning.exports import IDLE_MINUTES
from lightning_predict.planning.objective import tardiness_usd
from lightning_predict.planning.problem import (
    Configuration,
    Job,
    Placement,
    Plan,
    PlanningProblem,
    PlanState,
    Segment,
    rental_usd,
)
from lightning_predict.planning.simulator import MEASURED_SECONDS, ActualSeconds

PREDICTION_DEVIATIONS: Final[Mapping[str, float]] = {"gpu": 0.052, "model": 0.111, "rest": 0.242}
"""Standard deviations of log(measured / predicted) of published whole steps: by GPU, by neural network, and residual
(November 2026). Later fits found smaller values. The values are
fixed, so that published figures of the planning studies can be reproduced."""


def likely_factors() -> tuple[float, float, float]:
    """Return the 5th, 50th and 95th percentile of actual over predicted times, by `PREDICTION_DEVIATIONS`."""
    deviation = math.sqrt(sum(part**2 for part in PREDICTION_DEVIATIONS.values()))
    far = math.exp(NORMAL_95 * deviation)
    return 1 / far, 1.0, far


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedJob:
    """Outcome of one job in a replay. `lost_seconds` is work that had to be done again."""

    job: str
    end_seconds: float
    deadline_seconds: float
    lost_seconds: float
    moves: int

    @property
    def is_in_time(self) -> bool:
        """Whether the job met its deadline."""
        return self.end_seconds <= self.deadline_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReplay:
    """Outcome of a whole plan in a replay, with the cost of all machines and of the tardiness of all jobs."""

    jobs: tuple[ReplayedJob, ...]
    machine_usd: float
    tardiness_usd: float

    @property
    def total_usd(self) -> float:
        """Cost of machines and tardiness."""
        return self.machine_usd + self.tardiness_usd

    @property
    def lost_seconds(self) -> float:
        """Work of all jobs that was lost and had to be done again."""
        return sum(job.lost_seconds for job in self.jobs)

    @property
    def kept_deadlines(self) -> float:
        """Share of the jobs that met their deadlines."""
        return sum(job.is_in_time for job in self.jobs) / len(self.jobs)


def slowed(problem: PlanningProblem, factors: Mapping[str, float]) -> ActualSeconds:
    """Return actual times that differ from the predicted ones by one factor per job."""
    jobs = {job.name: job for job in problem.jobs}
    for name, factor in factors.items():
        if name not in jobs or not factor > 0:
            raise InvalidArgumentError(
                f"{name!r} takes {factor!r} times as long as predicted; expected one of {sorted(jobs)} and a factor "
                "above 0."
            )
    return {
        name: {place: seconds * factors.get(name, 1.0) for place, seconds in job.seconds.items()}
        for name, job in jobs.items()
    }


def evenly(segments: Sequence[Segment], times: int) -> tuple[float, ...]:
    """Return `times` equally spaced times between a plan's start and end, both excluded."""
    end = max(segment.end_seconds for segment in segments)
    return tuple(end * number / (times + 1) for number in range(1, times + 1))


class Replanner(Protocol):
    """Function that plans again during a replay: `cheapest_plan`, or another function with this signature."""

    def __call__(self, problem: PlanningProblem, *, since: PlanState) -> Plan:
        """Plan the rest of the jobs from this state."""


def replay(
    segments: Sequence[Segment],
    problem: PlanningProblem,
    actual_seconds: ActualSeconds,
    *,
    again: Mapping[float, Replanner] = MappingProxyType({}),
) -> PlanReplay:
    """Replay a plan with jobs that take more or less time than predicted.

    `again` has functions that plan again, by the time in seconds. They are not called if all jobs have ended by then.
    """
    jobs = {job.name: job for job in problem.jobs}
    planned = {segment.job for segment in segments}
    if planned != jobs.keys():
        raise InvalidArgumentError(
            f"The plan has the jobs {sorted(planned)} and the file {sorted(jobs)}; replay a plan with its own file."
        )
    run = _Run(problem=problem, actual_seconds=actual_seconds)
    for at_seconds, replanner in sorted(again.items()):
        run.carry_out(segments, until_seconds=at_seconds)
        situation = run.situation(at_seconds)
        if situation.remaining or len(run.ends) < len(jobs):
            segments = replanner(problem, since=situation).segments
            run.go_on(segments, situation)
    run.carry_out(segments)
    return run.result()


class _Run:
    """State of a replay: when GPUs become free, and the remaining work of each job."""

    def __init__(self, *, problem: PlanningProblem, actual_seconds: ActualSeconds) -> None:
        self.problem = problem
        self.actual_seconds = actual_seconds
        self.jobs = {job.name: job for job in problem.jobs}
        self.machines = {machine.name: machine for machine in problem.machines}
        self.left: dict[str, float] = {job.name: 1.0 for job in problem.jobs}
        self.stopped: dict[str, float] = {}  # time of the job's last stop
        self.ends: dict[str, float] = {}
        self.moves: dict[str, int] = {}
        self.lost: dict[str, float] = {}
        self.started: dict[str, Configuration] = {}
        self.running: dict[str, Placement] = {}  # filled only if the plan is made again
        self.restarting: dict[str, float] = {}
        self.measured: dict[str, dict[Configuration, float]] = {}
        # By node and machine type: times when each GPU becomes free, and time spans in which the machine was used.
        self.free: dict[tuple[int, str], list[float]] = {}
        self.used: dict[tuple[int, str], list[tuple[float, float]]] = {}

    def carry_out(self, segments: Sequence[Segment], *, until_seconds: float = math.inf) -> None:
        """Run everything that starts before a moment; jobs that still run then stay in `running`."""
        waiting: dict[str, list[Segment]] = {}
        for segment in sorted(segments, key=lambda rental: (rental.start_seconds, rental.job)):
            waiting.setdefault(segment.job, []).append(segment)
        # The segment that can start first is processed first. Other segments on its machine queue behind it.
        while any(waiting.values()):
            name = min(
                (name for name, own in waiting.items() if own),
                key=lambda name: (self._start_of(waiting[name][0]), waiting[name][0].start_seconds, name),
            )
            segment = waiting[name].pop(0)
            following = waiting[name][0] if waiting[name] else None
            if self._start_of(segment) >= until_seconds:
                return
            stops_at = None if following is None else segment.end_seconds
            if self._run(self.jobs[name], segment, stops_at=stops_at, until_seconds=until_seconds):
                waiting[name].clear()

    def situation(self, now_seconds: float) -> PlanState:
        """Return the current state, as a user would describe it in a state file."""
        return PlanState(
            now_seconds=now_seconds,
            remaining={
                name: self.left[name]
                for name, job in sorted(self.jobs.items())
                if name not in self.ends and job.release_seconds <= now_seconds
            },
            running=dict(sorted(self.running.items())),
            started={name: place for name, place in sorted(self.started.items()) if name not in self.ends},
            restarting={name: self.restarting[name] for name in sorted(self.running) if self.restarting[name] > 0},
            measured={name: dict(times) for name, times in sorted(self.measured.items()) if name not in self.ends},
            spent_usd=sum(self._rent_usd(machine, stretches) for (_, machine), stretches in self.used.items()),
        )

    def go_on(self, segments: Sequence[Segment], situation: PlanState) -> None:
        """Switch to a new plan: jobs that it places elsewhere stop now, and the others continue."""
        kept = {
            segment.job: segment.placement
            for segment in segments
            if segment.start_seconds == situation.now_seconds and self.running.get(segment.job) == segment.placement
        }
        for name in self.running.keys() - kept.keys():
            self._stop(self.jobs[name], situation.now_seconds)
        self.running = kept

    def _start_of(self, segment: Segment) -> float:
        """Return the earliest start of a segment: its planned start, once its job has stopped and its GPUs are free.

        A node changes its machine type only when the node is idle, because the number of machines is limited.
        """
        (node, machine), count = self._key(segment), segment.placement.configuration.num_gpus
        free = sorted(self._gpus(segment))[count - 1]
        others = [max(gpus) for (other, kind), gpus in self.free.items() if other == node and kind != machine]
        return max(segment.start_seconds, self.stopped.get(segment.job, 0.0), free, *others)

    def _run(self, job: Job, segment: Segment, *, stops_at: float | None, until_seconds: float) -> bool:
        """Run a segment until its job ends, stops or is replanned. Return whether to drop its later segments."""
        start, configuration = self._start_of(segment), segment.placement.configuration
        if job.name in self.running:
            pause = self.restarting.get(job.name, 0.0)
        else:
            pause = self.problem.restart_seconds if job.name in self.stopped else 0.0
        works = start + pause
        whole = self.actual_seconds[job.name][configuration]
        end = works + self.left[job.name] * whole
        # A job that has not started by its stop time stays in its place, because its next segment waits for a stopped
        # job.
        moves = stops_at is not None and start < stops_at < end
        until = min(stops_at if moves and stops_at is not None else end, until_seconds)
        self.running.pop(job.name, None)
        self.started[job.name] = configuration
        done = max(0.0, until - works)
        if done >= MEASURED_SECONDS:
            self.measured.setdefault(job.name, {})[configuration] = whole
        gpus = self._gpus(segment)
        for number in sorted(range(len(gpus)), key=gpus.__getitem__)[: configuration.num_gpus]:
            gpus[number] = until
        self.used.setdefault(self._key(segment), []).append((start, until))
        if until == end:
            self.ends[job.name], self.left[job.name] = end, 0.0
            return True
        self.left[job.name] -= done / whole
        if until == until_seconds:
            self.running[job.name] = segment.placement
            self.restarting[job.name] = max(0.0, works - until)
            return True
        self._stop(job, until)
        return False

    def _stop(self, job: Job, now_seconds: float) -> None:
        """Stop a job that continues elsewhere or later."""
        if job.checkpoint is None:  # the job loses all its work; exported plans never stop a job without a checkpoint
            whole = self.actual_seconds[job.name][self.started[job.name]]
            self.lost[job.name] = self.lost.get(job.name, 0.0) + (1.0 - self.left[job.name]) * whole
            self.left[job.name] = 1.0
        self.stopped[job.name] = now_seconds
        self.moves[job.name] = self.moves.get(job.name, 0) + 1

    def result(self) -> PlanReplay:
        """Compute costs and outcomes at the end of the replay."""
        return PlanReplay(
            jobs=tuple(
                ReplayedJob(
                    job=name,
                    end_seconds=self.ends[name],
                    deadline_seconds=job.deadline_seconds,
                    lost_seconds=self.lost.get(name, 0.0),
                    moves=self.moves.get(name, 0),
                )
                for name, job in sorted(self.jobs.items())
            ),
            machine_usd=sum(self._rent_usd(machine, stretches) for (_, machine), stretches in self.used.items()),
            tardiness_usd=sum(tardiness_usd(job, self.ends[name]) for name, job in self.jobs.items()),
        )

    def _rent_usd(self, machine: str, stretches: list[tuple[float, float]]) -> float:
        """Return the price of a machine that is returned whenever it was idle for longer than the limit."""
        idle = IDLE_MINUTES * SECONDS_PER_MINUTE
        seconds, since, until = 0.0, None, 0.0
        for start, end in sorted(stretches):
            if since is None or start > until + idle:
                seconds += 0.0 if since is None else until + idle - since
                since, until = start, end
            until = max(until, end)
        seconds += 0.0 if since is None else until + idle - since
        return rental_usd(seconds=seconds, usd_per_hour=self.machines[machine].usd_per_hour)

    def _gpus(self, segment: Segment) -> list[float]:
        key = self._key(segment)
        return self.free.setdefault(key, [0.0] * self.machines[key[1]].num_gpus)

    def _key(self, segment: Segment) -> tuple[int, str]:
        return segment.placement.node, segment.placement.configuration.machine
