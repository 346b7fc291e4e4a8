"""Simulated annealing over plans without moves, which finds changes of several jobs that only pay together.

A list schedule gives each waiting job a configuration, a place in the queue, and perhaps a job to wait for. A job
starts when a machine is free for it, and running jobs stay. The cost of a list schedule of five jobs, at predicted
times, takes about 50 microseconds, so thousands can be compared.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final, NamedTuple

from lightning_predict.base.units import hours_to_seconds
from lightning_predict.planning.objective import late_factors, machine_share, run_seconds, stay_seconds
from lightning_predict.planning.problem import Configuration, Job, PlanningProblem, PlanState, RunningJobs
from lightning_predict.planning.queues import serve_queue

COOLING: Final = (0.15, 0.003)  # Temperature at the start, relative to the cost, and at the end, relative to the start
CHANGES: Final = (30_000, 600_000)  # Most list schedules to compare, and most list schedules times jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedStart:
    """Start of a job: as soon as a node is free, a job has ended, and a time has passed."""

    configuration: Configuration
    after: str | None = None  # Job whose end is awaited
    earliest_seconds: float = 0.0  # Earliest start, the submission of another job


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSchedule:
    """Policy that starts waiting jobs in a given order, and never moves a running job."""

    starts: Mapping[str, ListedStart]  # By name of the job, in the order in which waiting jobs start
    shares_gpus: bool
    name: str = "simulated annealing"

    def decide(self, problem: PlanningProblem, situation: PlanState) -> RunningJobs:
        """Keep running jobs, and start waiting jobs while a node is free."""
        jobs = {job.name: job for job in problem.jobs}
        submitted = {name for name, job in jobs.items() if job.release_seconds <= situation.now_seconds}
        return serve_queue(
            [
                jobs[name]
                for name, start in self.starts.items()
                if name not in situation.running
                and start.earliest_seconds <= situation.now_seconds
                and (start.after is None or start.after in submitted - situation.remaining.keys())
            ],
            lambda job: (self.starts[job.name].configuration,),
            problem,
            situation,
            shares_gpus=self.shares_gpus,
        )


class Option(NamedTuple):
    """A configuration of a job: index of the machine type, GPUs, seconds, and seconds by which a deadline counts."""

    machine: int
    gpus: int
    seconds: float
    late_seconds: float


class Entry(NamedTuple):
    """A job in the queue: its index, its option, and the jobs whose end and whose submission it waits for, or -1."""

    job: int
    option: int
    after: int = -1
    submission: int = -1


def annealed_schedule(problem: PlanningProblem, since: PlanState | None) -> ListSchedule | None:
    """Return the cheapest list schedule that the search finds from a state; None if it finds none."""
    costs = ScheduleCosts(problem, since)
    schedule, usd = _annealed(costs)
    if math.isinf(usd):
        return None
    starts = {}
    for job, option, after, submission in schedule:
        start = ListedStart(configuration=costs.configurations[job][option])
        start = start if after < 0 else replace(start, after=problem.jobs[after].name)
        start = start if submission < 0 else replace(start, earliest_seconds=problem.jobs[submission].release_seconds)
        starts[problem.jobs[job].name] = start
    return ListSchedule(starts=starts, shares_gpus=problem.formulation.shares_gpus)


def _annealed(costs: ScheduleCosts) -> tuple[tuple[Entry, ...], float]:
    random = Random(0)
    schedule = best = costs.cheapest_alone()
    usd = best_usd = costs.usd(schedule)
    first, last = COOLING
    changes = min(CHANGES[0], CHANGES[1] // len(schedule)) if schedule else 0
    for number in range(changes):
        temperature = first * best_usd * last ** (number / changes)
        most = usd - temperature * math.log(1 - random.random())
        changed = _changed(schedule, costs.options, random)
        cost = costs.usd(changed, most)
        if cost <= most:
            schedule, usd = changed, cost
            if usd < best_usd:
                best, best_usd = schedule, usd
    return best, best_usd


def _changed(schedule: tuple[Entry, ...], options: Sequence[Sequence[Option]], random: Random) -> tuple[Entry, ...]:
    """Change the options, the place in the queue or the wait of a job, or the machine type of several jobs."""
    entries, count = list(schedule), len(schedule)
    kind, place, other = random.random(), random.randrange(count), random.randrange(count)
    entry = entries[place]
    if kind < 0.3 or count == 1:
        entries[place] = entry._replace(option=random.randrange(len(options[entry.job])))
    elif kind < 0.5:
        entries[place] = _on_machine(entry, options[entries[other].job][entries[other].option].machine, options, random)
    elif kind < 0.6:
        old, new = options[entry.job][entry.option].machine, random.choice(options[entry.job]).machine
        for index, current in enumerate(entries):
            if options[current.job][current.option].machine == old:
                entries[index] = _on_machine(current, new, options, random)
    elif kind < 0.8:
        entries.insert(other, entries.pop(place))
    else:
        waits = max(entry.after, entry.submission) < 0 and other != place
        key = random.choice(("after", "submission"))
        nothing = Entry(entry.job, entry.option)
        entries[place] = nothing._replace(**{key: entries[other].job}) if waits else nothing
    return tuple(entries)


def _on_machine(entry: Entry, machine: int, options: Sequence[Sequence[Option]], random: Random) -> Entry:
    """Return the entry with a random option on a machine type; unchanged if the job has none."""
    there = [index for index, option in enumerate(options[entry.job]) if option.machine == machine]
    return entry._replace(option=random.choice(there)) if there else entry


class ScheduleCosts:
    """Costs of the list schedules of a problem from a state on, at predicted times."""

    def __init__(self, problem: PlanningProblem, since: PlanState | None = None) -> None:
        begin = PlanState(now_seconds=0.0, remaining={}) if since is None else since
        later = {job.name: 1.0 for job in problem.jobs if since is None or job.release_seconds > since.now_seconds}
        begin = replace(begin, remaining={**later, **begin.remaining})
        self._prices = [machine.usd_per_hour / hours_to_seconds(1) for machine in problem.machines]
        self._sizes = [machine.num_gpus for machine in problem.machines]
        self._nodes = [machine.nodes for machine in problem.machines]
        self._kinds = [machine.kind for machine in problem.machines]
        self._left = problem.limits.nodes
        self._quotas = {kind: problem.limits.quotas.get(kind, problem.limits.nodes) for kind in self._kinds}
        self._releases = [job.release_seconds for job in problem.jobs]
        self._deadlines = [job.deadline_seconds for job in problem.jobs]
        self._late = [
            problem.tardiness_factor * job.tardiness_usd_per_hour / hours_to_seconds(1) for job in problem.jobs
        ]
        self._ended = frozenset(index for index, job in enumerate(problem.jobs) if job.name not in begin.remaining)
        self.configurations = [_configurations(job, problem, begin) for job in problem.jobs]
        self.options = [
            _options(job, own, problem, begin) for job, own in zip(problem.jobs, self.configurations, strict=True)
        ]
        self._begin = begin.now_seconds
        self._rented: dict[int, tuple[int, int]] = {}  # machine type and free GPUs, by number of the rental
        self._running: list[tuple[float, int, int, int]] = []  # end, job, number of the rental, GPUs
        self._total = 0.0
        for index, job in enumerate(problem.jobs):
            if job.name in begin.running:
                self._keep(index, begin.running[job.name].node, stay_seconds(job, problem, begin))

    def _keep(self, job: int, node: int, seconds: float) -> None:
        """Keep a running job on its node."""
        machine, gpus, *_ = self.options[job][0]
        number = -1 - node
        if number not in self._rented:
            self._rented[number] = machine, self._sizes[machine]
            self._left -= self._nodes[machine]
            self._quotas[self._kinds[machine]] -= self._nodes[machine]
        self._rented[number] = machine, self._rented[number][1] - gpus
        heapq.heappush(self._running, (self._begin + seconds, job, number, gpus))

    def cheapest_alone(self) -> tuple[Entry, ...]:
        """Return the waiting jobs by deadline, each on the option with the lowest price of its GPUs."""

        def usd(option: Option) -> float:
            return option.seconds * self._prices[option.machine] * option.gpus / self._sizes[option.machine]

        running = {job for _, job, *_ in self._running}
        waiting = (job for job in range(len(self.options)) if job not in self._ended | running)
        return tuple(
            Entry(job, min(range(len(own)), key=lambda configuration: usd(own[configuration])))
            for job in sorted(waiting, key=lambda job: (self._deadlines[job], job))
            for own in [self.options[job]]
        )

    def usd(self, schedule: tuple[Entry, ...], most: float = math.inf) -> float:
        """Return the cost of machines and tardiness; infinite if it exceeds `most`, or if some jobs never start."""
        rented, running, ended = dict(self._rented), list(self._running), set(self._ended)
        left, quotas, total, now, count = self._left, dict(self._quotas), 0.0, self._begin, 0
        rate = sum(self._prices[machine] for machine, _ in rented.values())
        waiting: Sequence[Entry] = schedule
        releases = self._releases
        while True:
            still = []
            for entry in waiting:
                job, choice, after, submission = entry
                release = releases[job] if submission < 0 else max(releases[job], releases[submission])
                if release > now or (after >= 0 and after not in ended):
                    still.append(entry)
                    continue
                machine, gpus, seconds, late_seconds = self.options[job][choice]
                number = 0
                room = self._sizes[machine] + 1
                for rental, (own, free) in rented.items():
                    if own == machine and gpus <= free < room:
                        number, room = rental, free
                if not number:
                    nodes, kind = self._nodes[machine], self._kinds[machine]
                    if nodes > left or nodes > quotas[kind]:
                        still.append(entry)
                        continue
                    number = count = count + 1
                    room = self._sizes[machine]
                    left, quotas[kind] = left - nodes, quotas[kind] - nodes
                    rate += self._prices[machine]
                rented[number] = machine, room - gpus
                heapq.heappush(running, (now + seconds, job, number, gpus))
                end = now + late_seconds
                if end > self._deadlines[job]:
                    total += self._late[job] * (end - self._deadlines[job])
            waiting, before = still, now
            now = running[0][0] if running else math.inf
            for entry in waiting:
                if before < releases[entry.job] < now:
                    now = releases[entry.job]
            if math.isinf(now):
                return math.inf if waiting else total
            total += rate * (now - before)
            if total > most:
                return math.inf
            while running and running[0][0] <= now:
                _, job, number, gpus = heapq.heappop(running)
                ended.add(job)
                machine, free = rented[number]
                rented[number] = machine, free + gpus
                if free + gpus == self._sizes[machine]:
                    rate -= self._prices[machine]
                    left += self._nodes[machine]
                    quotas[self._kinds[machine]] += self._nodes[machine]
                    del rented[number]


def _configurations(job: Job, problem: PlanningProblem, begin: PlanState) -> list[Configuration]:
    """Return the configurations of a job; of a running job, or of a started one that must not migrate, the last."""
    is_fixed = job.name in begin.running or (job.name in begin.started and not problem.formulation.migrates)
    return [begin.started[job.name]] if is_fixed else sorted(job.seconds)


def _options(
    job: Job, configurations: Sequence[Configuration], problem: PlanningProblem, begin: PlanState
) -> list[Option]:
    if job.name not in begin.remaining:  # it has ended
        return []
    seconds, late = run_seconds(job, problem, begin), late_factors(job, problem, begin)
    machines = {machine.name: number for number, machine in enumerate(problem.machines)}
    return [
        Option(
            machine=number,
            gpus=round(machine_share(machine, one, problem.formulation) * machine.num_gpus),
            seconds=seconds[one],
            late_seconds=seconds[one] * late[one],
        )
        for one in configurations
        for number in [machines[one.machine]]
        for machine in [problem.machines[number]]
    ]
