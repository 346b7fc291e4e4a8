"""Export of a plan to dstack and to Kueue, which have their own queues: one file per job, and the schedule.

dstack rents machines. Kueue admits jobs to an existing Kubernetes cluster. Neither dstack nor Kueue can move a job, so
a plan that moves a job is refused. Example::

    files = dstack_tasks(plan, problem)      # {"bert.dstack.yml": ..., "schedule.txt": ...}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from lightning_predict.base.errors import PlanningFormatError, UnknownGpuError
from lightning_predict.base.escaping import comment_line, one_line
from lightning_predict.base.units import bytes_to_gibibytes
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.planning.exports import (
    SCHEDULE,
    check_exportable,
    file_names,
    planned_time,
    schedule_text,
    segment_environment,
    segments_to_start,
    segments_to_stop,
)
from lightning_predict.planning.problem import Job, MachineType, Plan, PlanningProblem, PlanState, Segment

DSTACK_BACKENDS: Final[Mapping[str, str]] = {
    "aws": "aws",
    "azure": "azure",
    "crusoe": "crusoe",
    "gcp": "gcp",
    "lambda": "lambda",
    "nebius": "nebius",
    "oracle cloud": "oci",
    "runpod": "runpod",
    "vast": "vastai",
    "verda": "verda",
    "vultr": "vultr",
}
"""dstack's backend (dstack 0.22) by provider name in lower case."""

INSTANCE_LABEL: Final = "node.kubernetes.io/instance-type"
"""Well-known Kubernetes label with the instance type of a cloud's machine."""

QUEUE: Final = "lightning-predict"
"""Kueue LocalQueue that the jobs are submitted to."""

_NAME_LENGTH: Final = 40
"""Maximum length of a dstack run name; Kubernetes allows 63 characters for a job."""


def dstack_tasks(plan: Plan, problem: PlanningProblem, since: PlanState | None = None) -> dict[str, str]:
    """Return a dstack task for each job to start, by file name, and `schedule.txt` with commands and times.

    Args:
        plan: The plan.
        problem: The planned problem.
        since: State of the plan so far. Jobs that already run are not started again.

    Raises:
        PlanningFormatError: A job has no command, or a job moves.
    """
    _check_no_moves(plan, problem, since, target="dstack")
    files, commands = {}, []
    names = _engine_names(plan, problem)
    for _, segment, job, machine in segments_to_start(plan, problem, since):
        name = names[job.name]
        backend = DSTACK_BACKENDS.get((machine.provider or "").casefold())
        gpus = segment.placement.configuration.num_gpus // machine.nodes
        task: dict[str, Any] = {
            "type": "task",
            "name": name,
            **({"nodes": machine.nodes} if machine.nodes > 1 else {}),
            **({"image": job.image} if job.image else {}),
            "commands": [job.command],
            **({"env": _environment(segment, job, names)} if job.checkpoint else {}),
            "resources": {"gpu": {**_dstack_gpu(machine), "count": gpus}},
            **({"backends": [backend], "instance_types": [machine.instance or machine.kind]} if backend else {}),
            "spot_policy": "on-demand" if machine.interruptions_per_hour is None else "spot",
            **({"retry": {"on_events": ["no-capacity", "interruption"]}} if job.checkpoint else {}),
        }
        files[f"{name}.dstack.yml"] = _document(task, segment, machine)
        commands.append((segment.start_seconds, 1, f"dstack apply --yes --detach --file {name}.dstack.yml"))
    return {**files, SCHEDULE: schedule_text(commands, 0.0 if since is None else since.now_seconds)}


def kueue_jobs(plan: Plan, problem: PlanningProblem, since: PlanState | None = None) -> dict[str, str]:
    """Return a suspended Kubernetes job for each job to start, by file name, and `schedule.txt` with commands.

    Kueue starts a suspended job when its local queue has the GPUs. On a cloud's machine, the job selects the instance
    type of the plan.

    Args:
        plan: The plan.
        problem: The planned problem.
        since: State of the plan so far. Jobs that already run are not started again.

    Raises:
        PlanningFormatError: A job has no command or image, moves, or needs several machines.
    """
    _check_no_moves(plan, problem, since, target="Kueue")
    starts = list(segments_to_start(plan, problem, since))
    without = sorted({job.name for _, _, job, _ in starts if job.image is None})
    if without:
        raise PlanningFormatError(
            f"Nothing is written for Kueue: no container image for {', '.join(without)}. Add image: to each in the "
            "file of jobs, such as image: pytorch/pytorch."
        )
    several = sorted({job.name for _, _, job, machine in starts if machine.nodes > 1})
    if several:
        raise PlanningFormatError(
            f"Nothing is written for Kueue: {', '.join(several)} would need several machines in one job. Write a "
            "PyTorchJob for it, or plan it on one machine."
        )
    files, commands = {}, []
    names = _engine_names(plan, problem)
    for _, segment, job, machine in starts:
        name = names[job.name]
        files[f"{name}.kueue.yml"] = _document(_kueue_job(name, segment, job, machine, names), segment, machine)
        commands.append((segment.start_seconds, 1, f"kubectl create --filename {name}.kueue.yml"))
    return {**files, SCHEDULE: schedule_text(commands, 0.0 if since is None else since.now_seconds)}


def _kueue_job(name: str, segment: Segment, job: Job, machine: MachineType, names: Mapping[str, str]) -> dict[str, Any]:
    gpus = {"nvidia.com/gpu": segment.placement.configuration.num_gpus}
    variables = _environment(segment, job, names) if job.checkpoint else {}
    selector = {} if machine.provider is None else {INSTANCE_LABEL: machine.instance or machine.kind}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": QUEUE}},
        "spec": {
            "suspend": True,
            "backoffLimit": 6 if job.checkpoint else 0,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    **({"nodeSelector": selector} if selector else {}),
                    "containers": [
                        {
                            "name": "training",
                            "image": job.image,
                            "command": ["bash", "-c", job.command],
                            "env": [{"name": key, "value": value} for key, value in variables.items()],
                            "resources": {"requests": gpus, "limits": gpus},
                        }
                    ],
                }
            },
        },
    }


def _check_no_moves(plan: Plan, problem: PlanningProblem, since: PlanState | None, *, target: str) -> None:
    moving = sorted({job.name for _, job, _ in segments_to_stop(plan, problem, since)})
    if moving:
        raise PlanningFormatError(
            f"Nothing is written for {target}: it starts a job once, and in this plan {', '.join(moving)} would move. "
            "Plan without moves (formulation: {preempts: false, migrates: false})."
        )
    check_exportable(plan, problem, since, target=target)


def _engine_names(plan: Plan, problem: PlanningProblem) -> dict[str, str]:
    """Return a unique name of each job: lower-case letters, digits and hyphens, starting with a letter."""
    names: dict[str, str] = {}
    for job, file in file_names(plan, problem).items():
        plain = re.sub(r"[^a-z0-9]+", "-", file.lower()).strip("-")
        plain = plain if plain[:1].isalpha() else f"job-{plain}"
        name, number = plain[:_NAME_LENGTH].rstrip("-"), 2
        while name in names.values():
            ending = f"-{number}"
            name, number = plain[: _NAME_LENGTH - len(ending)] + ending, number + 1
        names[job] = name
    return names


def _environment(segment: Segment, job: Job, names: Mapping[str, str]) -> dict[str, str]:
    return segment_environment(segment, job.checkpoint or "", names)


def _dstack_gpu(machine: MachineType) -> dict[str, Any]:
    """Return dstack's name and minimum memory of a GPU: `A100`, `72GB..`. Form factors share a name in dstack."""
    try:
        known = find_gpu(machine.gpu)
    except UnknownGpuError:  # the GPU is defined in the user's `gpus_file`
        return {"name": machine.gpu}
    name = re.split(r"-(?:SXM\d?|PCIe|NVL)\b|-\d+GB", known.name)[0].replace("-", "").replace("Quadro", "")
    return {"name": name, "memory": f"{round(0.9 * bytes_to_gibibytes(known.memory_bytes))}GB.."}


def _document(content: Mapping[str, Any], segment: Segment, machine: MachineType) -> str:
    text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=1000)
    return f"{comment_line(one_line(planned_time(segment, machine)))}\n{text}"
