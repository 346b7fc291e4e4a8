"""A published stream of jobs as a workload: real arrivals, lengths and numbers of GPUs.

A folder holds `gavel.csv`, steps per second of training jobs on 1 to 8 GPUs of three kinds (Gavel, OSDI 2020),
and `gavel_jobs/<name>.trace`, who trained which of them when and for how many steps. The table has two measurements of
each: one stands for the prediction, the other is what is real. Streams state no deadlines; these are drawn as in the
planning study. Machines are what clouds rent out with these GPUs. Example::

    stream = read_stream(Path("validation"), "max_min_fairness")
    problem, actual_seconds = stream.instance(nodes=10, seed=2, restart_seconds=60.0)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.planning.deadlines import SLACK, WEIGHTS, due_job
from lightning_predict.base.checked import Checked, read_csv
from lightning_predict.base.errors import PlanningFormatError
from lightning_predict.cost.offers import load_offers
from lightning_predict.planning.problem import Configuration, Limits, MachineType, PlanningProblem
from lightning_predict.planning.simulator import ActualSeconds

TABLE: Final = "gavel.csv"
STREAMS: Final = "gavel_jobs"

INSTANCES: Final[Mapping[str, str]] = {
    "p3.2xlarge": "V100-SXM2-16GB",
    "p3.8xlarge": "V100-SXM2-16GB",
    "NC6s v2": "P100-PCIe-16GB",
    "NC12s v2": "P100-PCIe-16GB",
    "NC24s v2": "P100-PCIe-16GB",
    "NC6": "K80",
    "NC12": "K80",
    "NC24": "K80",
}
"""Machines of the offers that ship with the package, with the GPU whose rows of the table are theirs."""

PREDICTED: Final = "simulation"
REAL: Final = "physical"

_JOB: Final = re.compile(r"(?P<model>.+?)(?: \(batch size (?P<batch>\d+)\))?")

COLUMNS: Final = ("job", "command", "folder", "argument", "flag", "steps", "num_gpus", "priority", "slo", "release")
"""What lines of a stream hold, with tabs between them."""

Rates = Mapping[tuple[str, str, str, int], float]  # Steps per second by model, batch size, GPU and number of GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedJob:
    """A line of a stream."""

    name: str  # Its number and what it trains
    model: str  # Workload
    batch: str  # Samples of a step, as the table writes them
    steps: int  # How many
    num_gpus: int  # On how many GPUs
    release_seconds: float  # When it was submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Jobs that came one after another, and how fast they are."""

    jobs: tuple[StreamedJob, ...]  # Those whose model the table has
    left_out: int  # Number of jobs whose model the table lacks
    predicted: Rates  # Predicted times
    real: Rates  # Actual times

    @property
    def mean_gap_seconds(self) -> float:
        """Mean time between two arrivals."""
        return self.jobs[-1].release_seconds / max(len(self.jobs) - 1, 1)

    def instance(self, *, nodes: int, seed: int, restart_seconds: float) -> tuple[PlanningProblem, ActualSeconds]:
        """Return the problem with deadlines drawn, and the real times.

        Args:
            nodes: Machines at one time.
            seed: Of the random numbers.
            restart_seconds: Time that a job loses when it moves.
        """
        random = np.random.default_rng([seed, 5])
        machines = stream_machines()
        jobs, actual = [], {}
        for job in self.jobs:
            seconds, actual[job.name] = (_seconds(job, machines, rates) for rates in (self.predicted, self.real))
            slack, weight = float(random.uniform(*SLACK)), float(random.uniform(*WEIGHTS))
            jobs.append(due_job(job.name, seconds, release_seconds=job.release_seconds, slack=slack, weight=weight))
        limits = Limits(nodes=nodes)
        return PlanningProblem(
            jobs=tuple(jobs), machines=machines, limits=limits, restart_seconds=restart_seconds
        ), actual


def stream_machines() -> tuple[MachineType, ...]:
    """List the machines with the newest of their prices."""
    newest = {
        offer.instance: offer for offer in sorted(load_offers(), key=lambda offer: (offer.date, offer.usd_per_hour))
    }
    return tuple(
        MachineType(name=name, gpu=gpu, num_gpus=newest[name].num_gpus, usd_per_hour=newest[name].usd_per_hour)
        for name, gpu in INSTANCES.items()
    )


def read_stream(folder: Path, name: str) -> Stream:
    """Read a stream and the table of its jobs.

    Args:
        folder: Holds both.
        name: Of the stream: the name of its file, without `.trace`.

    Raises:
        PlanningFormatError: A file that is missing or malformed, or a stream without any job of the table.
    """
    columns = ("source", "gpu", "consolidated", "n_gpus", "model", "batch_size", "steps_per_second")
    rates: dict[str, dict[tuple[str, str, str, int], float]] = {PREDICTED: {}, REAL: {}}
    try:
        for row in read_csv(folder / TABLE, PlanningFormatError, columns=columns):
            if row.value["consolidated"] == "1" and row.value["source"] in rates:
                count = row.member("n_gpus").parsed().integer(minimum=1)
                key = (row.value["model"], row.value["batch_size"], row.value["gpu"], count)
                rates[row.value["source"]][key] = row.member("steps_per_second").parsed().positive()
        path = folder / STREAMS / f"{name}.trace"
        lines = list(read_csv(path, PlanningFormatError, name=path.name, header=COLUMNS, delimiter="\t"))
    except OSError as error:
        known = sorted(path.stem for path in (folder / STREAMS).glob("*.trace"))
        raise PlanningFormatError(
            f"{error}; expected a folder with {TABLE} and {STREAMS}/{name}.trace. Streams there: {known or 'none'}."
        ) from error
    jobs = sorted(
        (_job(number, line) for number, line in enumerate(lines, start=1)),
        key=lambda job: (job.release_seconds, job.name),
    )
    machines = stream_machines()
    known_jobs = tuple(job for job in jobs if all(_seconds(job, machines, own) for own in rates.values()))
    if not known_jobs:
        raise PlanningFormatError(f"{TABLE} has no row of a job of {name}.trace.")
    return Stream(jobs=known_jobs, left_out=len(jobs) - len(known_jobs), predicted=rates[PREDICTED], real=rates[REAL])


def _job(number: int, row: Checked) -> StreamedJob:
    matched = _JOB.fullmatch(row.member("job").text())
    model, batch = ("", "") if matched is None else (matched["model"], matched["batch"] or "")
    return StreamedJob(
        name=f"{number:03d} {model} {batch}".strip(),
        model=model,
        batch=batch,
        steps=row.member("steps").parsed().integer(minimum=1),
        num_gpus=row.member("num_gpus").parsed().integer(minimum=1),
        release_seconds=row.member("release").parsed().number(),
    )


def _seconds(job: StreamedJob, machines: tuple[MachineType, ...], rates: Rates) -> dict[Configuration, float]:
    """Return the time of a job on each machine that has as many GPUs as it asks for."""
    return {
        Configuration(machine.name, job.num_gpus): job.steps / rate
        for machine in machines
        if machine.num_gpus >= job.num_gpus
        if (rate := rates.get((job.model, job.batch, machine.gpu, job.num_gpus))) is not None
    }
