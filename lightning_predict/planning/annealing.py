"""Simulated annealing over plans without moves, which finds changes of several jobs that only pay together.

A list schedule gives each job a configuration, a place in the queue, and perhaps a job to wait for. A job starts when
a machine is free for it, as in `FixedSchedule`. The cost of a list schedule of five jobs, at predicted times, takes
about 50 microseconds, so thousands can be compared.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final, NamedTuple

from lightning_predict.base.units import hours_to_seconds
from lightning_predict.planning.local_search import JobStage, JobStages
from lightning_predict.planning.objective import expected_seconds, late_factors, machine_share
from lightning_predict.planning.problem import Configuration, PlanningProblem, PlanState

MOST_JOBS: Final = 40  # Maximum number of jobs to anneal. Time grows with the square of the number of jobs.
COOLING: Final = (0.15, 0.003)  # Temperature at the start, relative to the cost, and at the end, relative to the start
CHANGES: Final = (30_000, 200_000)  # Most list schedules to compare, and most list schedules times jobs


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


def annealed_stages(problem: PlanningProblem) -> JobStages | None:
    """Return the cheapest list schedule that the search finds, as stages; None if it finds no plan."""
    schedules = ListSchedules(problem)
    schedule, usd = _annealed(schedules)
    if math.isinf(usd):
        return None
    stages: dict[str, tuple[JobStage, ...]] = {}
    for job, option, after, submission in schedule:
        stage = JobStage(configuration=schedules.configurations[job][option])
        stage = stage if after < 0 else replace(stage, after=problem.jobs[after].name)
        stage = stage if submission < 0 else replace(stage, earliest_seconds=problem.jobs[submission].release_seconds)
        stages[problem.jobs[job].name] = (stage,)
    return stages


def _annealed(schedules: ListSchedules) -> tuple[tuple[Entry, ...], float]:
    random = Random(0)
    schedule = best = schedules.cheapest_alone()
    usd = best_usd = schedules.usd(schedule)
    first, last = COOLING
    changes = min(CHANGES[0], CHANGES[1] // len(schedule))
    for number in range(changes):
        temperature = first * best_usd * last ** (number / changes)
        most = usd - temperature * math.log(1 - random.random())
        changed = _changed(schedule, schedules.options, random)
        cost = schedules.usd(changed, most)
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


class ListSchedules:
    """Costs of the list schedules of a problem, at predicted times."""

    def __init__(self, problem: PlanningProblem) -> None:
        self._prices = [machine.usd_per_hour / hours_to_seconds(1) for machine in problem.machines]
        self._sizes = [machine.num_gpus for machine in problem.machines]
        self._nodes = [machine.nodes for machine in problem.machines]
        self._kinds = [machine.kind for machine in problem.machines]
        self._quotas = {kind: problem.limits.quotas.get(kind, problem.limits.nodes) for kind in self._kinds}
        self._limit = problem.limits.nodes
        self._releases = [job.release_seconds for job in problem.jobs]
        self._deadlines = [job.deadline_seconds for job in problem.jobs]
        self._late = [
            problem.tardiness_factor * job.tardiness_usd_per_hour / hours_to_seconds(1) for job in problem.jobs
        ]
        self.configurations: list[list[Configuration]] = [sorted(job.seconds) for job in problem.jobs]
        self.options = [_options(problem, index, own) for index, own in enumerate(self.configurations)]

    def cheapest_alone(self) -> tuple[Entry, ...]:
        """Return the jobs by deadline, each on the option with the lowest price of its GPUs."""

        def usd(option: Option) -> float:
            return option.seconds * self._prices[option.machine] * option.gpus / self._sizes[option.machine]

        jobs = sorted(range(len(self.options)), key=lambda job: (self._deadlines[job], job))
        return tuple(
            Entry(job, min(range(len(own)), key=lambda configuration: usd(own[configuration])))
            for job in jobs
            for own in [self.options[job]]
        )

    def usd(self, schedule: tuple[Entry, ...], most: float = math.inf) -> float:
        """Return the cost of machines and tardiness; infinite if it exceeds `most`, or if some jobs never start."""
        rented: dict[int, tuple[int, int]] = {}  # machine type and free GPUs, by number of the rental
        running: list[tuple[float, int, int, int]] = []
        ended: set[int] = set()
        left, quotas, total, rate, now, count = self._limit, dict(self._quotas), 0.0, 0.0, 0.0, 0
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
                number = -1
                room = self._sizes[machine] + 1
                for rental, (own, free) in rented.items():
                    if own == machine and gpus <= free < room:
                        number, room = rental, free
                if number < 0:
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


def _options(problem: PlanningProblem, index: int, configurations: list[Configuration]) -> list[Option]:
    job = problem.jobs[index]
    begin = PlanState(now_seconds=0.0, remaining={job.name: 1.0})
    seconds, late = expected_seconds(job, problem, begin), late_factors(job, problem, begin)
    machines = {machine.name: number for number, machine in enumerate(problem.machines)}
    options = []
    for configuration in configurations:
        machine = problem.machines[machines[configuration.machine]]
        gpus = round(machine_share(machine, configuration, problem.formulation) * machine.num_gpus)
        options.append(
            Option(
                machines[configuration.machine],
                gpus,
                seconds[configuration],
                seconds[configuration] * late[configuration],
            )
        )
    return options
