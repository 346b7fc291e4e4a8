"""Plans replayed with the times that published steps really took: is work lost, and are promised deadlines kept.

    python -m benchmarks.accuracy FOLDER --of plans --cache recorded-steps

A job is a benchmark of `training_throughput.csv`, a machine a GPU that one container was timed on and that is for rent
today. Times are predicted from shapes, with the interval of a spread that saw no row of that table
(`whole_steps.LEFT_OUT`), and deadlines are asked to be kept with 90 %. Then the plan is carried out, and planned again
twice on the way: once with the measured times themselves, and once for each of the 5th, 50th and 95th percentile of
measured over predicted times of these rows, by which all jobs are off together. In half of the
teams deadlines bind: each is the time that a random GPU, which no other beats in both price and time, keeps with 90 %,
and there are machines for all jobs at once; in the others deadlines are drawn as in the planning study, and half as
many machines are rented. Being an hour late is dear, so that it pays to keep them. The planner plans once, without the
trials of `cheapest_plan`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.step_calibration import StepCase, spread_left_out
from benchmarks.accuracy.whole_steps import LEFT_OUT
from benchmarks.planning.deadlines import SLACK
from benchmarks.training.report import report_table
from lightning_predict.base.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from lightning_predict.cost.offers import offers_for
from lightning_predict.planning.objective import late_factor
from lightning_predict.planning.policies import policy
from lightning_predict.planning.problem import (
    Configuration,
    Job,
    Limits,
    MachineType,
    Plan,
    PlanningProblem,
    PlanState,
)
from lightning_predict.planning.replay import PlanReplay, evenly, replay, slowed
from lightning_predict.planning.simulator import ActualSeconds, simulate

PROBABILITY: Final = 0.9
PERCENTILES: Final = (0.05, 0.5, 0.95)
AGAIN: Final = 2
"""So often it is planned again."""

TEAMS: Final = 12
JOBS: Final = 6
FEWEST_GPUS: Final = 3
HOURS: Final = (1.0, 6.0)
"""Of a job on its fastest GPU, drawn evenly."""

GAP_SECONDS: Final = 1800.0
PERIOD_SECONDS: Final = 1800.0
LATE_USD_PER_HOUR: Final = 50.0


@final
@dataclass(frozen=True, slots=True)
class Team:
    """Jobs to plan, and what they really take.

    Attributes:
        problem: Jobs with predicted times.
        measured_seconds: Real ones.
        binds: Deadlines are those that a configuration just keeps.
    """

    problem: PlanningProblem
    measured_seconds: ActualSeconds
    binds: bool


@final
@dataclass(frozen=True, slots=True)
class TeamReplay:
    """A team's plan, carried out.

    Attributes:
        team: Its number.
        binds: See `Team`.
        times: Source of the real times.
        replay: Outcome of the plan.
    """

    team: int
    binds: bool
    times: str
    replay: PlanReplay


def teams(cases: Sequence[StepCase], number: int) -> Iterator[Team]:
    """Draw teams from the benchmarks of each container that was timed on enough GPUs that are for rent.

    Args:
        cases: Steps with intervals, and their samples.
        number: Teams, every second team has deadlines that bind.
    """
    sources: dict[str, list[StepCase]] = defaultdict(list)
    for case in cases:
        if case.samples is not None and offers_for(case.gpu):
            sources[case.source].append(case)
    usable = [own for _, own in sorted(sources.items()) if len({case.gpu for case in own}) >= FEWEST_GPUS]
    for seed in range(number if usable else 0):
        yield _team(usable[seed // 2 % len(usable)], seed)


def _team(cases: Sequence[StepCase], seed: int) -> Team:
    random = np.random.default_rng([seed, 4])
    rows: dict[str, dict[Configuration, StepCase]] = defaultdict(dict)
    for case in cases:
        rows[case.model][Configuration(case.gpu, 1)] = case
    models = sorted(model for model, own in rows.items() if len(own) > 1)
    releases = np.cumsum(random.exponential(GAP_SECONDS, size=JOBS))
    binds = seed % 2 == 0
    jobs, measured = [], {}
    for index in range(JOBS):
        model = models[random.integers(len(models))]
        own = rows[model]
        fastest = min(_per_sample(case.predicted.middle, case) for case in own.values())
        samples = random.uniform(*HOURS) * SECONDS_PER_HOUR / fastest
        seconds = {place: samples * _per_sample(case.predicted.middle, case) for place, case in own.items()}
        high = max(case.predicted.high / case.predicted.middle for case in own.values())
        job = Job(
            name=f"{index}-{model}",
            seconds=seconds,
            deadline_seconds=float(releases[index]) + random.uniform(*SLACK) * min(seconds.values()),
            tardiness_usd_per_hour=LATE_USD_PER_HOUR,
            release_seconds=float(releases[index]),
            low_factor=min(case.predicted.low / case.predicted.middle for case in own.values()),
            high_factor=high,
            checkpoint="/shared",
        )
        if binds:
            places = _unbeaten(seconds)
            kept = seconds[places[random.integers(len(places))]] * late_factor(job.high_factor, PROBABILITY)
            job = replace(job, deadline_seconds=job.release_seconds + kept)
        jobs.append(job)
        measured[job.name] = {place: samples * _per_sample(case.measured_seconds, case) for place, case in own.items()}
    gpus = sorted({place.machine for job in jobs for place in job.seconds})
    machines = tuple(MachineType(name=gpu, gpu=gpu, num_gpus=1, usd_per_hour=_usd_per_hour(gpu)) for gpu in gpus)
    limits = Limits(nodes=JOBS if binds else JOBS // 2)
    problem = PlanningProblem(
        jobs=tuple(jobs), machines=machines, limits=limits, probability=PROBABILITY, period_seconds=PERIOD_SECONDS
    )
    return Team(problem, measured, binds)


def _per_sample(seconds: float, case: StepCase) -> float:
    return seconds / (case.samples or 1)


def _usd_per_hour(gpu: str) -> float:
    return offers_for(gpu)[0].usd_per_gpu_hour


def _unbeaten(seconds: Mapping[Configuration, float]) -> list[Configuration]:
    """List the GPUs that no other GPU beats in both time and price of the run."""
    found: list[Configuration] = []
    for place in sorted(seconds, key=seconds.__getitem__):
        cost = seconds[place] * _usd_per_hour(place.machine)
        if all(cost < seconds[other] * _usd_per_hour(other.machine) for other in found):
            found.append(place)
    return found


def measured_over_predicted(cases: Iterable[StepCase]) -> tuple[float, ...]:
    """Give the percentiles of measured over predicted times."""
    found = np.quantile([case.measured_seconds / case.predicted.middle for case in cases], PERCENTILES)
    return tuple(map(float, found))


def replays(cases: Sequence[StepCase], number: int) -> Iterator[TeamReplay]:
    """Plan for each team, and carry the plan out with each of the real times.

    Args:
        cases: Steps with intervals that saw none of them.
        number: Teams.
    """
    factors = dict(zip(PERCENTILES, measured_over_predicted(cases), strict=True))
    for index, team in enumerate(teams(cases, number)):
        plan = _planned(team.problem)
        again = dict.fromkeys(evenly(plan.segments, AGAIN), _planned)
        times = {"as measured": team.measured_seconds} | {
            f"all off by {factor:.2f} ({100 * percentile:.0f} %)": slowed(
                team.problem, {job.name: factor for job in team.problem.jobs}
            )
            for percentile, factor in factors.items()
        }
        for name, seconds in times.items():
            found = replay(plan.segments, team.problem, seconds, again=again)
            yield TeamReplay(index, team.binds, name, found)


def _planned(problem: PlanningProblem, *, since: PlanState | None = None) -> Plan:
    return simulate(problem, policy("milp"), since=since)


def replays_table(found: Sequence[TeamReplay]) -> Table:
    """Deadlines kept and work lost, by the source of the real times."""
    table = report_table(
        f"Plans carried out, planned again {AGAIN} times; deadlines asked at {100 * PROBABILITY:.0f} %",
        ("deadlines", "real times"),
        ("plans", "jobs", "moves", "hours of work lost", "deadlines kept %", "late by, median min"),
    )
    for binds in (True, False):
        own = [one for one in found if one.binds == binds]
        for times in dict.fromkeys(one.times for one in own):
            table.add_row("bind" if binds else "as in the study", times, *_cells([o for o in own if o.times == times]))
        table.add_section()
    return table


def _cells(found: Sequence[TeamReplay]) -> Iterator[str]:
    jobs = [job for one in found for job in one.replay.jobs]
    late = [(job.end_seconds - job.deadline_seconds) / SECONDS_PER_MINUTE for job in jobs if not job.is_in_time]
    yield str(len(found))
    yield str(len(jobs))
    yield str(sum(job.moves for job in jobs))
    yield f"{sum(job.lost_seconds for job in jobs) / SECONDS_PER_HOUR:.2f}"
    yield f"{100 * statistics.fmean(job.is_in_time for job in jobs):.0f}"
    yield f"{statistics.median(late):.0f}" if late else "-"


def print_report(cases: Sequence[StepCase], console: Console, *, number: int) -> None:
    """Print how the rows were off, how their left-out intervals held them, and the replays.

    Args:
        cases: Steps of all tables, with the operations' own intervals.
        console: Where to.
        number: Teams.
    """
    left_out = spread_left_out(cases, LEFT_OUT["tables"])
    rows = [case for case in left_out if case.samples is not None]
    console.print(
        f"{len(rows)} rows of {len({case.gpu for case in rows})} GPUs, left out of the spread of "
        f"{len(cases) - len(rows)} others: measured over predicted at "
        + ", ".join(
            f"{100 * percentile:.0f} %: {factor:.2f}"
            for percentile, factor in zip(PERCENTILES, measured_over_predicted(rows), strict=True)
        )
        + f"; {100 * statistics.fmean(case.is_inside for case in rows):.0f} % inside their 90 % intervals, "
        f"{100 * statistics.fmean(case.measured_seconds <= case.predicted.high for case in rows):.0f} % below the "
        "upper end."
    )
    console.print(replays_table(list(replays(rows, number))))
