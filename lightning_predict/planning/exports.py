"""Write a plan to a folder: JSON, a chart, SkyPilot tasks and Slurm scripts.

A job that moves has one file per stretch: `bert.yaml`, `bert-2.yaml`, and so on; what starts it again must find
its checkpoint. Example::

    write_plan(plan, problem, Path("plan"))  # plan/plan.json, gantt.html, sky/, slurm/
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from lightning_predict.planning.pictures import gantt_page
from lightning_predict.planning.problem import Job, MachineType, Plan, Problem, Segment, Situation
from lightning_predict.reports.sky import CLOUDS, sky_accelerator, sky_instance, write_sky_task
from lightning_predict.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE, seconds_to_hours

_PLACEHOLDER: Final = "echo 'Put the command that starts the training of {name} here.'; exit 1"


def write_plan(plan: Plan, problem: Problem, folder: Path, since: Situation | None = None) -> None:
    """Write all files of a plan.

    Args:
        plan: What runs when.
        problem: What was planned.
        folder: Where to write; it is made.
        since: What was running already when the plan was made, and is not started again.
    """
    files = {"plan.json": plan_json(plan) + "\n", "gantt.html": gantt_page(plan, problem.machines)}
    files |= {f"sky/{name}": text for name, text in skypilot_tasks(plan, problem, since).items()}
    files |= {f"slurm/{name}": text for name, text in slurm_scripts(plan, problem, since).items()}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


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


def skypilot_tasks(plan: Plan, problem: Problem, since: Situation | None = None) -> dict[str, str]:
    """Write what SkyPilot needs to carry a plan out, by file name.

    A task rents each machine, one starts each stretch of a job on its GPUs of that machine, and
    `schedule.txt` says which command comes when.

    Args:
        plan: What runs when.
        problem: What was planned.
        since: What was running already when the plan was made, and is not started again.
    """
    begin = 0.0 if since is None else since.now_seconds
    machines = {machine.name: machine for machine in problem.machines}
    running = {} if since is None else since.running
    there = {(placement.node, placement.configuration.machine) for placement in running.values()}
    tasks: dict[str, str] = {}
    commands: list[tuple[float, int, str]] = []
    for rental in plan.rentals:
        machine, cluster = machines[rental.machine], f"node-{rental.node}"
        if not ((rental.node, rental.machine) in there and rental.start_seconds == begin):
            file = _unused(f"{cluster}.yaml", tasks)
            cloud = _cloud(machine)
            tasks[file] = write_sky_task(
                name=cluster,
                run=None,
                accelerators=_accelerators(machine, machine.num_gpus),
                cloud=cloud,
                instance_type=None if cloud is None else sky_instance(cloud, machine.instance or machine.name),
                use_spot=True if machine.interruptions_per_hour is not None else None,
                num_nodes=1,
                comment=(_safe_comment(f"{machine.name}, ${machine.usd_per_hour:g} an hour"),),
            )
            commands.append((rental.start_seconds, 2, f"sky launch --yes --cluster {cluster} {file}"))
        commands.append((rental.end_seconds, 1, f"sky down --yes {cluster}"))
    for name, segment, job, machine in _stays(plan, problem, since):
        file = _unused(f"{name}.yaml", tasks)
        tasks[file] = write_sky_task(
            name=name,
            run=_command(job) + "\n",
            accelerators=_accelerators(machine, segment.placement.configuration.num_gpus),
            num_nodes=1,
            comment=(_when(segment, machine),),
        )
        command = f"sky exec --detach-run node-{segment.placement.node} {file}"
        commands.append((segment.start_seconds, 3, command))
    ends = {outcome.job: outcome.end_seconds for outcome in plan.outcomes}
    for segment in plan.segments:
        if segment.end_seconds < ends[segment.job]:
            cluster = f"node-{segment.placement.node}"
            job_name = _safe_comment(segment.job)
            commands.append((segment.end_seconds, 0, f"# {job_name} leaves {cluster}: sky queue {cluster}, sky cancel"))
    lines = [f"{seconds_to_hours(at - begin):8.3f} h  {command}\n" for at, _, command in sorted(commands)]
    return {**tasks, "schedule.txt": "".join(lines)}


def _cloud(machine: MachineType) -> str | None:
    """Return SkyPilot's name of the cloud that a machine is of; None if it has none."""
    return None if machine.provider is None else CLOUDS.get(machine.provider.casefold())


def _accelerators(machine: MachineType, num_gpus: int) -> str:
    return f"{sky_accelerator(machine.gpu, machine.provider or '')}:{num_gpus}"


def _unused(file: str, files: Mapping[str, str]) -> str:
    """Give a file a name that is not taken."""
    stem, number = file.removesuffix(".yaml"), 1
    while file in files:
        number += 1
        file = f"{stem}-{number}.yaml"
    return file


def slurm_scripts(plan: Plan, problem: Problem, since: Situation | None = None) -> dict[str, str]:
    """Write a Slurm batch script for each stretch, by file name; its time limit is the planned time and a tenth.

    Args:
        plan: What runs when.
        problem: What was planned.
        since: What was running already when the plan was made, and is not started again.
    """
    begin = 0.0 if since is None else since.now_seconds
    scripts = {}
    for name, segment, job, machine in _stays(plan, problem, since):
        gpus = segment.placement.configuration.num_gpus
        limit = (segment.end_seconds - segment.start_seconds) * job.high_factor * 1.1
        lines = [
            "#!/bin/bash",
            f"#SBATCH --job-name={name}",
            "#SBATCH --nodes=1",
            f"#SBATCH --gres=gpu:{_safe(machine.gpu).lower()}:{gpus}",
            f"#SBATCH --time={_slurm_time(limit)}",
            f"#SBATCH --begin=now+{math.floor(segment.start_seconds - begin)}seconds",
            f"# {_when(segment, machine)}",
            "",
            _command(job),
        ]
        scripts[f"{name}.sh"] = "\n".join(lines) + "\n"
    return scripts


def _stays(plan: Plan, problem: Problem, since: Situation | None) -> Iterator[tuple[str, Segment, Job, MachineType]]:
    """List every stretch of a job that has to be started, with the name of its file, its job and its machine type."""
    jobs = {job.name: job for job in problem.jobs}
    machines = {machine.name: machine for machine in problem.machines}
    files = _file_names(jobs)
    stays: dict[str, int] = {}
    running = {} if since is None else since.running
    for segment in plan.segments:
        begins = since is not None and segment.start_seconds == since.now_seconds
        if begins and running.get(segment.job) == segment.placement:
            continue  # it goes on where it runs
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
