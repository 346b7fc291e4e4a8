"""Times and machines of the comparison with first principles: arithmetic over `job_times.toml`.

Example::

    >>> job_seconds("JJ5", MACHINES[0])  # ResNet-50, three epochs
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.gpus.rows import Row, read_document
from lightning_predict.planning.records import Configuration, MachineType

JOB_TIMES_FILE: Final = Path(__file__).with_name("job_times.toml")

_BYTES_PER_PARAMETER: Final = 4
_FLOPS_PER_MULTIPLY_ADD: Final = 2
_PASSES: Final = 3
"""A training step costs three forward passes: one forward, and twice as much backward."""


@cache
def study_machines() -> tuple[MachineType, ...]:
    """The nine machine types of the comparison.

    Raises:
        CatalogueError: The table breaks a rule.
    """
    table = read_document(JOB_TIMES_FILE).child("machine", "machine")
    return tuple(_machine(name, table.child(name, f"machine.{name}")) for name in table.table)


@cache
def study_job_kinds() -> tuple[str, ...]:
    """JJ1 to JJ6."""
    return tuple(read_document(JOB_TIMES_FILE).child("job", "job").table)


@cache
def job_seconds(kind: str, machines: tuple[MachineType, ...]) -> Mapping[Configuration, float]:
    """Time of a whole run of one of the six jobs on 1, 2, ... GPUs of each machine type that can run it.

    More GPUs than samples in a batch are not offered, and neither are counts that are slower than a smaller one.

    Args:
        kind: `JJ1` to `JJ6`.
        machines: Machine types, each with a GPU of the catalogue.
    """
    document = read_document(JOB_TIMES_FILE)
    job = document.child("job", "job").child(kind, f"job.{kind}")
    network = document.child("network", "network").child(job.text("network"), f"network.{job.text('network')}")
    seconds: dict[Configuration, float] = {}
    for machine in machines:
        if machine.gpu in network.texts("excluded_gpus"):
            continue
        fastest = math.inf
        for num_gpus in range(1, min(machine.num_gpus, job.count("batch")) + 1):
            time = _steps(job) * _step_seconds(document, job, network, machine.gpu, num_gpus)
            if time < fastest:
                seconds[Configuration(machine=machine.name, num_gpus=num_gpus)] = fastest = time
    return seconds


def _machine(name: str, row: Row) -> MachineType:
    row.check_keys(frozenset({"gpu", "num_gpus", "usd_per_hour"}))
    return MachineType(
        name=name,
        gpu=find_gpu(row.text("gpu")).name,
        num_gpus=row.count("num_gpus"),
        usd_per_hour=row.number("usd_per_hour"),
    )


def _steps(job: Row) -> int:
    return math.ceil(job.count("inputs") / job.count("batch")) * job.count("epochs")


def _step_seconds(document: Row, job: Row, network: Row, gpu: str, num_gpus: int) -> float:
    """One step: the share of the batch of one GPU, and the exchange of gradients with the others."""
    peak = find_gpu(gpu).peak_flops_per_second["float32"]
    flops = _PASSES * _FLOPS_PER_MULTIPLY_ADD * network.number("forward_multiply_adds")
    samples = math.ceil(job.count("batch") / num_gpus)
    computing = samples * flops / (peak * document.number("utilisation"))
    gradient_bytes = _BYTES_PER_PARAMETER * network.number("parameters")
    exchanging = 2 * (num_gpus - 1) / num_gpus * gradient_bytes / document.number("link_bytes_per_second")
    return computing + exchanging
