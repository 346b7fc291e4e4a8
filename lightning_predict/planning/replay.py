"""Replay a plan against other times than the predicted ones, as its exported lines would carry it out.

The rules are those of `exports.py`: a stretch starts no sooner than planned, once its job has stopped where it ran
before and its GPUs are free; a job that is told to stop writes its checkpoint, and one that has ended by then is not
started again; a machine is kept until nothing has run on it for `IDLE_MINUTES`. Nothing ends at a predicted moment, so
no work is lost: what a wrong time costs is time, money and deadlines. Example::

    late = replay(plan.segments, problem, {"resnet": 1.3, "bert": 0.9})  # real over predicted
    late.kept_deadlines, late.total_usd
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.planning.exports import IDLE_MINUTES
from lightning_predict.planning.objective import tardiness_usd
from lightning_predict.planning.problem import Job, Problem, Segment, usd
from lightning_predict.units import SECONDS_PER_MINUTE


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedJob:
    """What became of a job.

    Attributes:
        job: Its name.
        end_seconds: When it ended.
        deadline_seconds: When it should have ended.
        lost_seconds: Work that it did and had to do again.
        moves: How often it stopped in one place and went on in another.
    """

    job: str
    end_seconds: float
    deadline_seconds: float
    lost_seconds: float
    moves: int

    @property
    def is_in_time(self) -> bool:
        """Whether it met its deadline."""
        return self.end_seconds <= self.deadline_seconds


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What became of a plan.

    Attributes:
        jobs: One for each job, by name.
        machine_usd: Cost of all machines.
        tardiness_usd: Cost of all tardiness.
    """

    jobs: tuple[ReplayedJob, ...]
    machine_usd: float
    tardiness_usd: float

    @property
    def total_usd(self) -> float:
        """Machines and tardiness."""
        return self.machine_usd + self.tardiness_usd

    @property
    def lost_seconds(self) -> float:
        """Work that was done and had to be done again, of all jobs."""
        return sum(job.lost_seconds for job in self.jobs)

    @property
    def kept_deadlines(self) -> float:
        """Share of the jobs that met their deadlines."""
        return sum(job.is_in_time for job in self.jobs) / len(self.jobs)


def replay(segments: Sequence[Segment], problem: Problem, factors: Mapping[str, float]) -> Replay:
    """Carry out a plan whose jobs take other times than predicted.

    Args:
        segments: What runs when; planned at the beginning, not from a situation.
        problem: What was planned.
        factors: Real over predicted time by job; one that is not named takes what was predicted.

    Raises:
        InvalidArgumentError: A factor that is not above 0, or of a job that there is none of; a plan of other jobs.
    """
    jobs = {job.name: job for job in problem.jobs}
    planned = {segment.job for segment in segments}
    if planned != jobs.keys():
        raise InvalidArgumentError(
            f"The plan has the jobs {sorted(planned)} and the file {sorted(jobs)}; replay a plan with its own file."
        )
    for name, factor in factors.items():
        if name not in jobs or not factor > 0:
            raise InvalidArgumentError(
                f"{name!r} takes {factor!r} times as long as predicted; expected one of {sorted(jobs)} and a factor "
                "above 0."
            )
    run = _Run(problem=problem, factors=factors)
    stretches: dict[str, list[Segment]] = {}
    for segment in sorted(segments, key=lambda one: (one.start_seconds, one.job)):
        stretches.setdefault(segment.job, []).append(segment)
    waiting = {name: own.copy() for name, own in stretches.items()}
    # The stretch that can start first goes first: others of its machine queue behind it, as they would there.
    while any(waiting.values()):
        name = min(
            (name for name, own in waiting.items() if own),
            key=lambda name: (run.start_of(waiting[name][0]), waiting[name][0].start_seconds, name),
        )
        segment = waiting[name].pop(0)
        following = waiting[name][0] if waiting[name] else None
        if run.carry_out(jobs[name], segment, stops_at=None if following is None else segment.end_seconds):
            waiting[name].clear()
    return run.result(jobs)


class _Run:
    """The state while a plan is carried out: when GPUs come free, and how much of each job is left."""

    def __init__(self, *, problem: Problem, factors: Mapping[str, float]) -> None:
        self.problem = problem
        self.factors = factors
        self.machines = {machine.name: machine for machine in problem.machines}
        self.left: dict[str, float] = {job.name: 1.0 for job in problem.jobs}
        self.stopped: dict[str, float] = {}  # when a job last stopped
        self.ends: dict[str, float] = {}
        self.moves: dict[str, int] = {}
        self.lost: dict[str, float] = {}
        # When each GPU of a rented machine comes free, and when the machine was used, by node and type.
        self.free: dict[tuple[int, str], list[float]] = {}
        self.used: dict[tuple[int, str], list[tuple[float, float]]] = {}

    def start_of(self, segment: Segment) -> float:
        """Return when a stretch can start: as planned, once its job has stopped and its GPUs are free."""
        count = segment.placement.configuration.num_gpus
        free = sorted(self._gpus(segment))[count - 1]
        return max(segment.start_seconds, self.stopped.get(segment.job, 0.0), free)

    def carry_out(self, job: Job, segment: Segment, *, stops_at: float | None) -> bool:
        """Run a stretch until its job ends or is told to stop, and return whether the job has ended."""
        start = self.start_of(segment)
        works = start + (self.problem.restart_seconds if job.name in self.stopped else 0.0)
        whole = job.seconds[segment.placement.configuration] * self.factors.get(job.name, 1.0)
        end = works + self.left[job.name] * whole
        # A job that has not begun when it is to be told stays, as its next stretch waits for one that has stopped.
        has_ended = stops_at is None or end <= stops_at or start >= stops_at
        until = end if has_ended or stops_at is None else stops_at
        if has_ended:
            self.ends[job.name], self.left[job.name] = end, 0.0
        else:
            done = max(0.0, until - works)
            if job.checkpoint is None:  # all that it ever did: exported plans never stop such a job
                self.lost[job.name] = self.lost.get(job.name, 0.0) + done
            else:
                self.left[job.name] -= done / whole
            self.stopped[job.name] = until
            self.moves[job.name] = self.moves.get(job.name, 0) + 1
        gpus = self._gpus(segment)
        for number in sorted(range(len(gpus)), key=gpus.__getitem__)[: segment.placement.configuration.num_gpus]:
            gpus[number] = until
        self.used.setdefault(self._key(segment), []).append((start, until))
        return has_ended

    def result(self, jobs: Mapping[str, Job]) -> Replay:
        """Price what was used."""
        return Replay(
            jobs=tuple(
                ReplayedJob(
                    job=name,
                    end_seconds=self.ends[name],
                    deadline_seconds=job.deadline_seconds,
                    lost_seconds=self.lost.get(name, 0.0),
                    moves=self.moves.get(name, 0),
                )
                for name, job in sorted(jobs.items())
            ),
            machine_usd=sum(self._rent_usd(machine, stretches) for (_, machine), stretches in self.used.items()),
            tardiness_usd=sum(tardiness_usd(job, self.ends[name]) for name, job in jobs.items()),
        )

    def _rent_usd(self, machine: str, stretches: list[tuple[float, float]]) -> float:
        """Price a machine that is given back after each pause that is longer than it waits."""
        idle = IDLE_MINUTES * SECONDS_PER_MINUTE
        seconds, since, until = 0.0, None, 0.0
        for start, end in sorted(stretches):
            if since is None or start > until + idle:
                seconds += 0.0 if since is None else until + idle - since
                since, until = start, end
            until = max(until, end)
        seconds += 0.0 if since is None else until + idle - since
        return usd(seconds=seconds, usd_per_hour=self.machines[machine].usd_per_hour)

    def _gpus(self, segment: Segment) -> list[float]:
        key = self._key(segment)
        return self.free.setdefault(key, [0.0] * self.machines[key[1]].num_gpus)

    def _key(self, segment: Segment) -> tuple[int, str]:
        return segment.placement.node, segment.placement.configuration.machine
