"""Write a plan for machines to read: JSON, SkyPilot tasks and Slurm scripts.

A job that moves has a file for each of its stays: `bert.yaml`, `bert-2.yaml`, and so on; what starts it again must find
its checkpoint. Example::

    Path("plan.json").write_text(plan_json(plan))
    for name, text in skypilot_tasks(plan, problem).items():
        Path(name).write_text(text)
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from lightning_predict.planning.plan import Plan, Segment
from lightning_predict.planning.problem import Job, MachineType, Problem
from lightning_predict.reports.sky import CLOUDS, sky_accelerator, write_sky_task
from lightning_predict.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE, seconds_to_hours

_PLACEHOLDER: Final = "echo 'Put the command that starts the training of {name} here.'; exit 1"


def plan_json(plan: Plan) -> str:
    """Write everything in a plan, with its sums; the key of each number says its unit."""
    return json.dumps(
        {
            "version": 1,
            "policy": plan.policy,
            "machine_usd": plan.machine_usd,
            "tardiness_usd": plan.tardiness_usd,
            "total_usd": plan.total_usd,
            "decisions": plan.decisions,
            "largest_gap": plan.largest_gap,
            "segments": [_segment(segment) for segment in plan.segments],
            "rentals": [asdict(rental) for rental in plan.rentals],
            "jobs": [asdict(outcome) for outcome in plan.outcomes],
        },
        indent=2,
    )


def skypilot_tasks(plan: Plan, problem: Problem) -> dict[str, str]:
    """Write a SkyPilot task for each stay, by file name.

    A job that has its machine alone asks for that machine; one that shares asks for its GPUs, and its comment names
    the cluster that the jobs of the node share.
    """
    tasks = {}
    for name, segment, job, machine in _stays(plan, problem):
        gpus = segment.placement.configuration.num_gpus
        provider = machine.provider or ""
        cluster = f"node-{segment.placement.node}"
        tasks[f"{name}.yaml"] = write_sky_task(
            name=name,
            run=_command(job) + "\n",
            accelerators=f"{sky_accelerator(machine.gpu, provider)}:{gpus}",
            cloud=CLOUDS.get(provider.casefold(), provider.lower()) or None,
            instance_type=machine.name if gpus == machine.num_gpus else None,
            num_nodes=1,
            comment=(_when(segment, machine), f"Start: sky launch -c {cluster} {shlex.quote(name + '.yaml')}"),
        )
    return tasks


def slurm_scripts(plan: Plan, problem: Problem) -> dict[str, str]:
    """Write a Slurm batch script for each stay, by file name; its time limit is the planned time and a tenth."""
    scripts = {}
    for name, segment, job, machine in _stays(plan, problem):
        gpus = segment.placement.configuration.num_gpus
        limit = (segment.end_seconds - segment.start_seconds) * job.high_factor * 1.1
        lines = [
            "#!/bin/bash",
            f"#SBATCH --job-name={name}",
            "#SBATCH --nodes=1",
            f"#SBATCH --gres=gpu:{_safe(machine.gpu).lower()}:{gpus}",
            f"#SBATCH --time={_slurm_time(limit)}",
            f"#SBATCH --begin=now+{math.floor(segment.start_seconds)}seconds",
            f"# {_when(segment, machine)}",
            "",
            _command(job),
        ]
        scripts[f"{name}.sh"] = "\n".join(lines) + "\n"
    return scripts


def _stays(plan: Plan, problem: Problem) -> Iterator[tuple[str, Segment, Job, MachineType]]:
    """List every stay with the name of its file, its job and its machine type."""
    jobs = {job.name: job for job in problem.jobs}
    machines = {machine.name: machine for machine in problem.machines}
    files = _file_names(jobs)
    stays: dict[str, int] = {}
    for segment in plan.segments:
        number = stays[segment.job] = stays.get(segment.job, 0) + 1
        name = files[segment.job] if number == 1 else f"{files[segment.job]}-{number}"
        yield name, segment, jobs[segment.job], machines[segment.placement.configuration.machine]


def _file_names(jobs: Mapping[str, Job]) -> dict[str, str]:
    """Name a file for each job, safe in a file system, and shared by no two jobs."""
    names: dict[str, str] = {}
    for job in sorted(jobs):
        name = _safe(job)
        while name in names.values():
            name += "_"
        names[job] = name
    return names


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") or "job"


def _command(job: Job) -> str:
    return job.command if job.command is not None else _PLACEHOLDER.format(name=_safe(job.name))


def _when(segment: Segment, machine: MachineType) -> str:
    gpus = segment.placement.configuration.num_gpus
    start, end = seconds_to_hours(segment.start_seconds), seconds_to_hours(segment.end_seconds)
    place = f"{gpus} of {machine.num_gpus} GPUs of node {segment.placement.node}"
    return _safe_comment(f"Planned: {start:.2f} h to {end:.2f} h, on {place} ({machine.name}).")


def _safe_comment(text: str) -> str:
    return " ".join(text.split())


def _slurm_time(seconds: float) -> str:
    """Write hours, minutes and seconds, at least a minute."""
    whole = max(math.ceil(seconds), int(SECONDS_PER_MINUTE))
    hours, rest = divmod(whole, int(SECONDS_PER_HOUR))
    minutes, left = divmod(rest, int(SECONDS_PER_MINUTE))
    return f"{hours:02d}:{minutes:02d}:{left:02d}"


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "job": segment.job,
        "node": segment.placement.node,
        "machine": segment.placement.configuration.machine,
        "num_gpus": segment.placement.configuration.num_gpus,
        "start_seconds": segment.start_seconds,
        "end_seconds": segment.end_seconds,
    }
