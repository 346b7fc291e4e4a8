"""Export of a plan: JSON, SkyPilot tasks and Slurm scripts. `plan_folder.py` writes all files to a folder.

Running a plan must not lose work, even if the predicted times are wrong. Therefore no script ends a job or a machine at
a predicted time. A job that moves has one file per segment: `bert.yaml`, `bert-2.yaml`, and so on. Before the
job moves, it gets a stop signal and writes its checkpoint to a place that the next segment can read. Example::

    files = skypilot_tasks(plan, problem)  # {"bert.yaml": ..., "schedule.txt": ...}
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from lightning_predict.base.checked import read_json
from lightning_predict.base.errors import PlanningFormatError
from lightning_predict.base.escaping import comment_line, one_line
from lightning_predict.base.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE, seconds_to_hours
from lightning_predict.planning.problem import (
    Configuration,
    Job,
    MachineType,
    Placement,
    Plan,
    PlanningProblem,
    PlanState,
    Segment,
)
from lightning_predict.reports.sky import CLOUDS, sky_accelerator, sky_instance, write_sky_task
from lightning_predict.run.progress import FILE_VARIABLE, PLACE_VARIABLE, PROGRESS_PREFIX, PlanSlot

SCHEDULE: Final = "schedule.txt"
"""Name of the file with the commands of a plan and their times."""


def plan_json(plan: Plan) -> str:
    """Return the whole plan as JSON, with total costs. Each key names its unit."""
    return json.dumps(
        {
            "version": 1,
            "policy": plan.policy,
            "machine_usd": plan.machine_usd,
            "tardiness_usd": plan.tardiness_usd,
            "total_usd": plan.total_usd,
            "outlook": None if plan.outlook is None else asdict(plan.outlook) | {"usd": plan.outlook.usd},
            "decisions": plan.decisions,
            "largest_gap": plan.largest_gap,
            "segments": [_segment(segment) for segment in plan.segments],
            "rentals": [asdict(rental) for rental in plan.rentals],
            "jobs": [asdict(outcome) for outcome in plan.outcomes],
        },
        indent=2,
    )


def read_plan(path: Path) -> tuple[Segment, ...]:
    """Read the segments of a `plan.json`.

    Args:
        path: The file, as written by `plan_json`.

    Raises:
        PlanningFormatError: The file is missing, or is not a plan.
    """
    document = read_json(path, PlanningFormatError)
    return tuple(
        Segment(
            job=row.member("job").words(),
            placement=Placement(
                node=row.member("node").integer(),
                configuration=Configuration(
                    machine=row.member("machine").words(), num_gpus=row.member("num_gpus").integer(minimum=1)
                ),
            ),
            start_seconds=float(row.member("start_seconds").any_number()),
            end_seconds=float(row.member("end_seconds").any_number()),
        )
        for row in document.member("segments").items(named=["job"])
    )


def skypilot_tasks(plan: Plan, problem: PlanningProblem, since: PlanState | None = None) -> dict[str, str]:
    """Return the SkyPilot task files that run a plan, by file name.

    One task rents each machine, and one task starts each segment of a job on its GPUs. `schedule.txt` has the commands
    and their times. No command ends running work: a machine shuts down after `IDLE_MINUTES` without work. A job waits
    in the machine's own queue until its GPUs are free. If a job moves, it gets a stop signal, writes its checkpoint and
    ends before it starts elsewhere. A node changes its machine type only after its old machine is idle, so the number
    of machines never exceeds the plan's.

    Args:
        plan: The plan.
        problem: The planned problem.
        since: State of the plan so far. Jobs that already run are not started again.

    Raises:
        PlanningFormatError: A job has no command, or a job that moves has no bucket for its checkpoint.
    """
    check_exportable(plan, problem, since, target="SkyPilot")
    begin = 0.0 if since is None else since.now_seconds
    stays, stops = tuple(segments_to_start(plan, problem, since)), tuple(segments_to_stop(plan, problem, since))
    names = file_names(plan, problem)
    machines = {machine.name: machine for machine in problem.machines}
    tasks: dict[str, str] = {}
    for _, segment, _, machine in stays:
        cluster = _cluster(segment.placement)
        if f"{cluster}.yaml" not in tasks:
            cloud = _cloud(machine)
            tasks[f"{cluster}.yaml"] = write_sky_task(
                name=cluster,
                run=None,
                accelerators=_accelerators(machine, machine.num_gpus // machine.nodes),
                cloud=cloud,
                instance_type=None if cloud is None else sky_instance(cloud, machine.instance or machine.kind),
                use_spot=True if machine.interruptions_per_hour is not None else None,
                num_nodes=machine.nodes,
                file_mounts={
                    _mounted(names[job.name]): {"source": job.checkpoint, "mode": "MOUNT"}
                    for _, other, job, _ in stays
                    if _cluster(other.placement) == cluster and _is_bucket(job.checkpoint)
                },
                comment=(_safe_comment(f"{machine.name}, ${machine.usd_per_hour:g} an hour"),),
            )
    commands: list[tuple[float, int, str]] = []
    for name, segment, job, machine in stays:
        cluster = _cluster(segment.placement)
        tasks[f"{name}.yaml"] = write_sky_task(
            name=name,
            run=_stoppable(job, pid_file=_pid_file(names[job.name])),
            accelerators=_accelerators(machine, segment.placement.configuration.num_gpus // machine.nodes),
            num_nodes=machine.nodes,
            envs=segment_environment(segment, _mounted(names[job.name]), names) if _is_bucket(job.checkpoint) else None,
            comment=(planned_time(segment, machine),),
        )
        rented = f"sky launch --yes --cluster {cluster} --idle-minutes-to-autostop {IDLE_MINUTES} --down {cluster}.yaml"
        line = f"{_once_given_back(segment, plan, since)}{rented} && sky exec --detach-run {cluster} {name}.yaml"
        commands.append((segment.start_seconds, 1, f"{_once_stopped(segment, stops, names)}{line}"))
    for at_seconds, job, placement in stops:
        pid = f"$(cat {_pid_file(names[job.name])})"
        stop = f"pid={pid} && kill -TERM $pid && while kill -0 $pid 2>/dev/null; do sleep 5; done"
        nodes = machines[placement.configuration.machine].nodes
        everywhere = f"--num-nodes {nodes} " if nodes > 1 else ""
        line = f"sky exec {everywhere}{_cluster(placement)} {shlex.quote(stop)} && touch {_marker(names[job.name])}"
        commands.append((at_seconds, 0, line))
    return {**tasks, SCHEDULE: schedule_text(commands, begin)}


def slurm_scripts(plan: Plan, problem: PlanningProblem, since: PlanState | None = None) -> dict[str, str]:
    """Return a Slurm batch script for each segment of a job, by file name, and `schedule.txt` with commands and times.

    The segments of a job share its name and run one after another (`--dependency=singleton`). Only a job with a
    checkpoint gets a time limit: the upper end of its predicted time. Before the limit, Slurm signals the job and
    requeues it.

    Args:
        plan: The plan.
        problem: The planned problem.
        since: State of the plan so far. Jobs that already run are not started again.

    Raises:
        PlanningFormatError: A job has no command, or a job that moves has no checkpoint.
    """
    check_exportable(plan, problem, since, target="Slurm")
    begin = 0.0 if since is None else since.now_seconds
    hosts = _hosts(plan, problem)
    files: dict[str, str] = {}
    commands: list[tuple[float, int, str]] = []
    names, stops = file_names(plan, problem), tuple(segments_to_stop(plan, problem, since))
    for name, segment, job, machine in segments_to_start(plan, problem, since):
        configuration = segment.placement.configuration
        late = job.time(configuration).high / job.seconds[configuration]
        limit = (segment.end_seconds - segment.start_seconds) * late + problem.restart_seconds
        host = hosts.get((segment.placement.node, configuration.machine))
        directives = [
            f"--job-name={names[job.name]}",
            "--dependency=singleton",
            f"--nodes={machine.nodes}",
            f"--gres=gpu:{_safe(machine.gpu).lower()}:{configuration.num_gpus // machine.nodes}",
            *([] if host is None else [f"--nodelist={host}"]),
            f"--begin=now+{math.floor(segment.start_seconds - begin)}seconds",
        ]
        if job.checkpoint is not None:
            told = f"--signal=B:TERM@{TOLD_SECONDS}"
            directives += [f"--time={_slurm_time(limit + TOLD_SECONDS)}", told, "--requeue", "--open-mode=append"]
        variables = {} if job.checkpoint is None else segment_environment(segment, job.checkpoint, names)
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {one_line(directive)}" for directive in directives),
            comment_line(planned_time(segment, machine)),
            *([] if job.checkpoint else ["# No time limit, as it names no checkpoint: all that it did would be lost."]),
            "",
            *(f"export {variable}={shlex.quote(value)}" for variable, value in variables.items()),
            _stoppable(job, requeues=job.checkpoint is not None),
        ]
        files[f"{name}.sh"] = "\n".join(lines)
        line = f"{_once_stopped(segment, stops, names)}sbatch {name}.sh"
        commands.append((segment.start_seconds, 1, line))
    for at_seconds, job, _ in stops:
        which = f"--user=$USER --name={names[job.name]}"
        running = f"squeue --noheader --states=RUNNING {which} | grep -q ."
        stop = f"scancel --batch --signal=USR1 --state=RUNNING {which}"
        commands.append((at_seconds, 0, f"{running} && {stop} && touch {_marker(names[job.name])}"))
    return {**files, SCHEDULE: schedule_text(commands, begin)}


IDLE_MINUTES: Final = 15
"""Idle minutes after which a rented machine shuts down. The machine keeps running if a job ends late or the next job
arrives within this time."""

TOLD_SECONDS: Final = 300
"""Seconds before its time limit at which a job gets a signal. A large checkpoint takes a minute or two to write."""


def check_exportable(plan: Plan, problem: PlanningProblem, since: PlanState | None = None, *, target: str) -> None:
    """Reject a plan that would end or lose a job's work when exported.

    Args:
        plan: The plan.
        problem: The planned problem.
        since: State of the plan so far, with the jobs that already run.
        target: `SkyPilot` or `Slurm`.

    Raises:
        PlanningFormatError: A job has no command, or a job that moves has no checkpoint (on clouds: in a bucket).
    """
    silent = sorted({job.name for _, _, job, _ in segments_to_start(plan, problem, since) if job.command is None})
    if silent:
        raise PlanningFormatError(
            f"Nothing is written for {target}: {_listed(silent)} no command that starts the training. Add "
            "command: to each in the file of jobs."
        )
    is_kept = _is_bucket if target == "SkyPilot" else _is_path
    lost = sorted({job.name for _, job, _ in segments_to_stop(plan, problem, since) if not is_kept(job.checkpoint)})
    if lost:
        what = "bucket for its checkpoint" if target == "SkyPilot" else "folder for its checkpoint that machines share"
        example = "s3://our-bucket/runs" if target == "SkyPilot" else "/shared/runs"
        raise PlanningFormatError(
            f"Nothing is written for {target}: in this plan {_listed(lost, 'moves or pauses', 'move or pause')} "
            f"and would lose all work, as the file names no {what}. Add checkpoint: {example} to each, with a command "
            "that writes it on SIGTERM and goes on from it, or plan without moves (formulation: {preempts: false, "
            "migrates: false})."
        )


def _listed(names: Sequence[str], one: str = "names", several: str = "name") -> str:
    return f"{', '.join(names)} {one if len(names) == 1 else several}"


def _is_path(checkpoint: str | None) -> bool:
    return checkpoint is not None and not _is_bucket(checkpoint)


def _is_bucket(checkpoint: str | None) -> bool:
    """Return whether a checkpoint is in a bucket, judged by its address, such as `s3://our-bucket/runs`."""
    return checkpoint is not None and re.match(r"[a-z0-9]+://", checkpoint) is not None


def _mounted(name: str) -> str:
    """Return the mount point of a job's bucket, by the job's file name."""
    return f"/checkpoints/{name}"


def segment_environment(segment: Segment, checkpoints: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a segment: checkpoint folder, progress file and placement."""
    configuration = segment.placement.configuration
    place = PlanSlot(
        job=segment.job, node=segment.placement.node, machine=configuration.machine, num_gpus=configuration.num_gpus
    )
    return {
        "CHECKPOINTS": checkpoints,
        FILE_VARIABLE: f"{checkpoints.rstrip('/')}/{PROGRESS_PREFIX}_{names[segment.job]}.json",
        PLACE_VARIABLE: json.dumps(asdict(place)),
    }


def _pid_file(name: str) -> str:
    """Return the path of the file with a job's process ID, by the job's file name."""
    return f"~/.lightning-predict-{name}.pid"


def _stoppable(job: Job, *, pid_file: str | None = None, requeues: bool = False) -> str:
    """Return bash code that runs a job's command, forwards stop signals to all its processes, and waits for them.

    The command runs in its own process group, because it may start other processes. The script waits for all of them,
    so the checkpoint is complete when the script ends.
    """
    lines = [
        *([] if pid_file is None else [f"echo $$ > {pid_file}", f"trap 'rm -f {pid_file}' EXIT"]),
        f"setsid bash -c {shlex.quote(job.command or '')} &",
        "group=$!",
        *(["again="] if requeues else []),
        f"trap '{'again=1; ' if requeues else ''}kill -TERM -- -$group' TERM",
        "trap 'kill -TERM -- -$group' USR1",
        "wait $group; status=$?",
        "while kill -0 -- -$group 2>/dev/null; do sleep 1; done",
        *(['[ -z "$again" ] || scontrol requeue $SLURM_JOB_ID'] if requeues else []),
        "exit $status",
    ]
    return "\n".join(lines) + "\n"


def schedule_text(commands: Iterable[tuple[float, int, str]], begin_seconds: float) -> str:
    """Return the commands with their times in hours from now.

    At equal times, stop commands come before start commands.
    """
    return "".join(f"{seconds_to_hours(at - begin_seconds):8.3f} h  {line}\n" for at, _, line in sorted(commands))


def _cluster(placement: Placement) -> str:
    """Return the name of a rented machine. All plans use the same name, so that a new plan finds running machines."""
    return f"node-{placement.node}-{_safe(placement.configuration.machine)}"


def _marker(name: str) -> str:
    """Return the name of the file next to the schedule that marks a job as stopped and ready to start again."""
    return f"{name}.stopped"


def _once_stopped(segment: Segment, stops: Iterable[tuple[float, Job, Placement]], names: Mapping[str, str]) -> str:
    """Return the shell condition to start a later segment: the job was stopped before its end, and is not paused."""
    stopped = any(job.name == segment.job and at_seconds <= segment.start_seconds for at_seconds, job, _ in stops)
    marker = _marker(names[segment.job])
    return f"[ -e {marker} ] && rm {marker} && " if stopped else ""


def _once_given_back(segment: Segment, plan: Plan, since: PlanState | None) -> str:
    """Return shell code that waits until the node's previous machine has finished its last work and has shut down."""
    node = segment.placement.node
    running = () if since is None else since.running.values()
    before = {_cluster(one.placement) for one in plan.segments if one.start_seconds < segment.start_seconds}
    before |= {_cluster(placement) for placement in running}
    others = sorted(name for name in before if name.startswith(f"node-{node}-") and name != _cluster(segment.placement))
    return "".join(
        f"{{ sky autostop --yes --idle-minutes 1 --down {name}; "
        f"while sky status --refresh {name} | grep -qwE 'UP|INIT'; do sleep 60; done; }} && "
        for name in others
    )


def _hosts(plan: Plan, problem: PlanningProblem) -> dict[tuple[int, str], str]:
    """Map the nodes of a plan to the user's own machines, by node and type; empty if the problem names too few."""
    found: dict[tuple[int, str], str] = {}
    for machine in problem.machines:
        nodes = sorted({rental.node for rental in plan.rentals if rental.machine == machine.name})
        if len(nodes) <= len(machine.hosts):
            found |= {(node, machine.name): host for node, host in zip(nodes, machine.hosts, strict=False)}
    return found


def _cloud(machine: MachineType) -> str | None:
    """Return SkyPilot's name for the cloud of a machine; None if the machine has no cloud."""
    return None if machine.provider is None else CLOUDS.get(machine.provider.casefold())


def _accelerators(machine: MachineType, num_gpus: int) -> str:
    return f"{sky_accelerator(machine.gpu, machine.provider or '')}:{num_gpus}"


def segments_to_start(
    plan: Plan, problem: PlanningProblem, since: PlanState | None
) -> Iterator[tuple[str, Segment, Job, MachineType]]:
    """Yield every segment to start, with its file name, job and machine type."""
    jobs = {job.name: job for job in problem.jobs}
    machines = {machine.name: machine for machine in problem.machines}
    files = file_names(plan, problem)
    taken = {*files.values(), *map(_cluster, {segment.placement for segment in plan.segments})}
    stays: dict[str, int] = {}
    running = {} if since is None else since.running
    for segment in plan.segments:
        begins = since is not None and segment.start_seconds == since.now_seconds
        if begins and running.get(segment.job) == segment.placement:
            continue  # the job already runs there
        number = stays[segment.job] = stays.get(segment.job, 0) + 1
        name = files[segment.job] if number == 1 else _unused(f"{files[segment.job]}-{number}", taken)
        taken.add(name)
        yield name, segment, jobs[segment.job], machines[segment.placement.configuration.machine]


def segments_to_stop(
    plan: Plan, problem: PlanningProblem, since: PlanState | None
) -> Iterator[tuple[float, Job, Placement]]:
    """Yield each segment that stops before the end of its job, because the job moves or waits: time, job, placement."""
    jobs = {job.name: job for job in problem.jobs}
    ends = {outcome.job: outcome.end_seconds for outcome in plan.outcomes}
    for segment in plan.segments:
        if segment.end_seconds < ends[segment.job]:
            yield segment.end_seconds, jobs[segment.job], segment.placement
    if since is not None:
        stays = {(one.job, one.placement) for one in plan.segments if one.start_seconds == since.now_seconds}
        for name, placement in sorted(since.running.items()):
            if (name, placement) not in stays:
                yield since.now_seconds, jobs[name], placement


def file_names(plan: Plan, problem: PlanningProblem) -> dict[str, str]:
    """Return a unique name of each job, safe as a file name and different from the names of machines."""
    names: dict[str, str] = {}
    machines = set(map(_cluster, {segment.placement for segment in plan.segments}))
    for job in sorted(job.name for job in problem.jobs):
        names[job] = _unused(_safe(job), {*machines, *names.values()})
    return names


def _unused(name: str, taken: Collection[str]) -> str:
    """Append underscores to a name until it is unique."""
    while name in taken:
        name += "_"
    return name


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") or "job"


def planned_time(segment: Segment, machine: MachineType) -> str:
    """Return a comment with the planned time and place of a segment, on one line."""
    gpus = segment.placement.configuration.num_gpus
    start, end = seconds_to_hours(segment.start_seconds), seconds_to_hours(segment.end_seconds)
    place = f"{gpus} of {machine.num_gpus} GPUs of node {segment.placement.node}"
    return _safe_comment(f"Planned: {start:.2f} h to {end:.2f} h, on {place} ({machine.name}).")


def _safe_comment(text: str) -> str:
    return " ".join(text.split())


def _slurm_time(seconds: float) -> str:
    """Format as hours, minutes and seconds, at least one minute."""
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
