"""Export of a plan to a folder: JSON, and files for SkyPilot and Slurm.

`schedule.txt` of each engine lists commands with their times. It is the only file that states when a job starts.

Running a plan must not lose work, even if the predicted times are wrong. Therefore no script ends a job or a machine at
a predicted time. A job that moves has one file per segment: `bert.yaml`, `bert-2.yaml`, and so on. Before the
job moves, it gets a stop signal and writes its checkpoint to a place that the next segment can read.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from lightning_predict.base.errors import PlanningFormatError
from lightning_predict.base.escaping import comment_line, one_line
from lightning_predict.base.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE, seconds_to_hours
from lightning_predict.planning.problem import (
    Job,
    MachineType,
    Placement,
    Plan,
    PlanningProblem,
    PlanState,
    Segment,
)
from lightning_predict.reports.sky import CLOUDS, sky_accelerator, sky_instance, write_sky_task

SCHEDULE: Final = "schedule.txt"  # Name of the file with the commands of a plan and their times

IDLE_MINUTES: Final = 15
"""Idle minutes after which a rented machine shuts down. The machine keeps running if a job ends late or the next job
arrives within this time."""

SIGNAL_SECONDS: Final = 300
"""Seconds before its time limit at which a job gets a signal. A large checkpoint takes a minute or two to write."""

Files = dict[str, str]  # Contents by file name


def write_plan(plan: Plan, problem: PlanningProblem, folder: Path, since: PlanState | None = None) -> tuple[str, ...]:
    """Write a plan's files; return messages about others. Jobs that run in the state `since` are not started."""
    files = {"plan.json": plan_json(plan) + "\n"}
    refused: list[str] = []
    for engine, write in (("sky", skypilot_tasks), ("slurm", slurm_scripts)):
        if (folder / engine / SCHEDULE).is_file():  # tasks of an earlier plan must not be mistaken for the new ones
            for pattern in ("*.yaml", "*.yml", "*.sh", SCHEDULE):
                for path in (folder / engine).glob(pattern):
                    path.unlink()
        try:
            files |= {f"{engine}/{name}": text for name, text in write(plan, problem, since).items()}
        except PlanningFormatError as error:
            refused.append(str(error))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return tuple(refused)


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
            "segments": [
                {
                    "job": segment.job,
                    "node": segment.placement.node,
                    "machine": segment.placement.configuration.machine,
                    "num_gpus": segment.placement.configuration.num_gpus,
                    "start_seconds": segment.start_seconds,
                    "end_seconds": segment.end_seconds,
                }
                for segment in plan.segments
            ],
            "rentals": [asdict(rental) for rental in plan.rentals],
            "jobs": [asdict(outcome) for outcome in plan.outcomes],
        },
        indent=2,
    )


class _Start(NamedTuple):
    """A segment to start; `name` is the name of its file."""

    name: str
    segment: Segment
    job: Job
    machine: MachineType

    @property
    def gpus_per_machine(self) -> int:
        return self.segment.placement.configuration.num_gpus // self.machine.nodes


class _Stop(NamedTuple):
    """A segment that stops before the end of its job, because the job moves or waits."""

    at_seconds: float
    job: Job
    placement: Placement


class _Engine(NamedTuple):
    """An engine, and the place where it needs the checkpoint of a job that moves."""

    name: str
    checkpoint: str
    example: str
    in_bucket: bool


_SKYPILOT: Final = _Engine("SkyPilot", "bucket for its checkpoint", "s3://our-bucket/runs", in_bucket=True)
_SLURM: Final = _Engine("Slurm", "folder for its checkpoint that machines share", "/shared/runs", in_bucket=False)


class _Export:
    """Segments of a plan to start and to stop, file names, and the commands with their times."""

    def __init__(self, plan: Plan, problem: PlanningProblem, since: PlanState | None, engine: _Engine) -> None:
        self.plan, self.since = plan, since
        self.jobs = {job.name: job for job in problem.jobs}
        self.machines = {machine.name: machine for machine in problem.machines}
        self.files: Files = {}
        clusters = {_cluster(segment.placement) for segment in plan.segments}
        self.names: dict[str, str] = {}  # of jobs, as safe file names that differ from those of machines
        for name in sorted(self.jobs):
            self.names[name] = _unused(_safe(name), {*clusters, *self.names.values()})
        self.starts = tuple(self._starts(clusters))
        self.stops = tuple(self._stops())
        self._commands: list[tuple[float, bool, str]] = []
        self._check(engine)

    def _starts(self, clusters: Collection[str]) -> Iterator[_Start]:
        taken = {*self.names.values(), *clusters}
        count: dict[str, int] = {}
        for segment in self.plan.segments:
            if self._runs_on(segment):
                continue
            number = count[segment.job] = count.get(segment.job, 0) + 1
            name = self.names[segment.job]
            name = name if number == 1 else _unused(f"{name}-{number}", taken)
            taken.add(name)
            machine = self.machines[segment.placement.configuration.machine]
            yield _Start(name, segment, self.jobs[segment.job], machine)

    def _runs_on(self, segment: Segment) -> bool:
        """Return whether the job of a segment already runs there."""
        since = self.since
        return (
            since is not None
            and segment.start_seconds == since.now_seconds
            and since.running.get(segment.job) == segment.placement
        )

    def _stops(self) -> Iterator[_Stop]:
        ends = {outcome.job: outcome.end_seconds for outcome in self.plan.outcomes}
        for segment in self.plan.segments:
            if segment.end_seconds < ends[segment.job]:
                yield _Stop(segment.end_seconds, self.jobs[segment.job], segment.placement)
        if self.since is not None:
            kept = {segment.job for segment in self.plan.segments if self._runs_on(segment)}
            for name, placement in sorted(self.since.running.items()):
                if name not in kept:
                    yield _Stop(self.since.now_seconds, self.jobs[name], placement)

    def _check(self, engine: _Engine) -> None:
        def is_kept(checkpoint: str | None) -> bool:
            return checkpoint is not None and _is_bucket(checkpoint) == engine.in_bucket

        moving = sorted({job.name for _, job, _ in self.stops if not is_kept(job.checkpoint)})
        reason = f"Nothing is written for {engine.name}: "
        silent = sorted({start.job.name for start in self.starts if start.job.command is None})
        if silent:
            verb = "names" if len(silent) == 1 else "name"
            raise PlanningFormatError(
                f"{reason}{', '.join(silent)} {verb} no command that starts the training. Add command: to each in the "
                "file of jobs."
            )
        if moving:
            verbs = "moves or pauses" if len(moving) == 1 else "move or pause"
            raise PlanningFormatError(
                f"{reason}in this plan {', '.join(moving)} {verbs} and would lose all work, as the file names no "
                f"{engine.checkpoint}. Add checkpoint: {engine.example} to each, with a command that writes it on "
                "SIGTERM and goes on from it, or plan without moves (formulation: {preempts: false, migrates: false})."
            )

    def start(self, start: _Start, command: str) -> None:
        """Add a start to the schedule. A later segment starts only if its job was stopped, and has not ended."""
        segment = start.segment
        if any(stop.job is start.job and stop.at_seconds <= segment.start_seconds for stop in self.stops):
            marker = _marker(self.names[segment.job])
            command = f"[ -e {marker} ] && rm {marker} && {command}"
        self._commands.append((segment.start_seconds, True, command))

    def stop(self, stop: _Stop, command: str) -> None:
        """Add a stop, and the file that marks the job as stopped and ready to start again."""
        self._commands.append((stop.at_seconds, False, f"{command} && touch {_marker(self.names[stop.job.name])}"))

    def all_files(self) -> Files:
        """Return the files and the schedule, with times in hours from now. Stops come before starts."""
        begin = 0.0 if self.since is None else self.since.now_seconds
        lines = (f"{seconds_to_hours(at - begin):8.3f} h  {command}\n" for at, _, command in sorted(self._commands))
        return {**self.files, SCHEDULE: "".join(lines)}


def skypilot_tasks(plan: Plan, problem: PlanningProblem, since: PlanState | None = None) -> Files:
    """Return the SkyPilot task files that run a plan, by file name.

    One task rents each machine, and one task starts each segment of a job on its GPUs. No command ends running work: a
    machine shuts down after `IDLE_MINUTES` without work. A job waits in the machine's own queue until its GPUs are
    free. If a job moves, it gets a stop signal, writes its checkpoint and ends before it starts elsewhere. A node
    changes its machine type only after its old machine is idle, so the number of machines never exceeds the plan's.
    """
    export = _Export(plan, problem, since, _SKYPILOT)
    for start in export.starts:
        cluster, machine = _cluster(start.segment.placement), start.machine
        if f"{cluster}.yaml" not in export.files:
            cloud = None if machine.provider is None else CLOUDS.get(machine.provider.casefold())
            export.files[f"{cluster}.yaml"] = write_sky_task(
                name=cluster,
                run=None,
                accelerators=_accelerators(machine, machine.num_gpus // machine.nodes),
                cloud=cloud,
                instance_type=None if cloud is None else sky_instance(cloud, machine.instance or machine.kind),
                use_spot=True if machine.interruptions_per_hour is not None else None,
                num_nodes=machine.nodes,
                file_mounts={
                    _mounted(export.names[job.name]): {"source": job.checkpoint, "mode": "MOUNT"}
                    for _, segment, job, _ in export.starts
                    if _cluster(segment.placement) == cluster and _is_bucket(job.checkpoint)
                },
                comment=(" ".join(f"{machine.name}, ${machine.usd_per_hour:g} an hour".split()),),
            )
    for start in export.starts:
        name, segment, job, machine = start
        cluster, mounted = _cluster(segment.placement), _mounted(export.names[job.name])
        export.files[f"{name}.yaml"] = write_sky_task(
            name=name,
            run=_stoppable(job, pid_file=_pid_file(export.names[job.name])),
            accelerators=_accelerators(machine, start.gpus_per_machine),
            num_nodes=machine.nodes,
            envs={"CHECKPOINTS": mounted} if _is_bucket(job.checkpoint) else None,
            comment=(_planned_time(start),),
        )
        rent = f"sky launch --yes --cluster {cluster} --idle-minutes-to-autostop {IDLE_MINUTES} --down {cluster}.yaml"
        wait = _wait_for_other_machines(segment, plan, since)
        export.start(start, f"{wait}{rent} && sky exec --detach-run {cluster} {name}.yaml")
    for stop in export.stops:
        pid = f"$(cat {_pid_file(export.names[stop.job.name])})"
        kill = f"pid={pid} && kill -TERM $pid && while kill -0 $pid 2>/dev/null; do sleep 5; done"
        nodes = export.machines[stop.placement.configuration.machine].nodes
        everywhere = f"--num-nodes {nodes} " if nodes > 1 else ""
        export.stop(stop, f"sky exec {everywhere}{_cluster(stop.placement)} {shlex.quote(kill)}")
    return export.all_files()


def slurm_scripts(plan: Plan, problem: PlanningProblem, since: PlanState | None = None) -> Files:
    """Return a Slurm batch script for each segment of a job, by file name, and `schedule.txt`.

    The segments of a job share its name and run one after another (`--dependency=singleton`). Only a job with a
    checkpoint gets a time limit: the upper end of its predicted time. Before the limit, Slurm signals the job and
    requeues it.
    """
    export = _Export(plan, problem, since, _SLURM)
    hosts = _hosts(plan, problem)
    for start in export.starts:
        name, segment, job, machine = start
        configuration = segment.placement.configuration
        late = job.time(configuration).high / job.seconds[configuration]
        limit = (segment.end_seconds - segment.start_seconds) * late + problem.restart_seconds + SIGNAL_SECONDS
        host = hosts.get((segment.placement.node, configuration.machine))
        directives = [
            f"--job-name={export.names[job.name]}",
            "--dependency=singleton",
            f"--nodes={machine.nodes}",
            f"--gres=gpu:{_safe(machine.gpu).lower()}:{start.gpus_per_machine}",
            *([] if host is None else [f"--nodelist={host}"]),
        ]
        if job.checkpoint is not None:
            signal = f"--signal=B:TERM@{SIGNAL_SECONDS}"
            directives += [f"--time={_slurm_time(limit)}", signal, "--requeue", "--open-mode=append"]
        variables = {} if job.checkpoint is None else {"CHECKPOINTS": job.checkpoint}
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {one_line(directive)}" for directive in directives),
            comment_line(_planned_time(start)),
            *([] if job.checkpoint else ["# No time limit, as it names no checkpoint: all that it did would be lost."]),
            "",
            *(f"export {variable}={shlex.quote(value)}" for variable, value in variables.items()),
            _stoppable(job, requeues=job.checkpoint is not None),
        ]
        export.files[f"{name}.sh"] = "\n".join(lines)
        export.start(start, f"sbatch {name}.sh")
    for stop in export.stops:
        which = f"--user=$USER --name={export.names[stop.job.name]}"
        running = f"squeue --noheader --states=RUNNING {which} | grep -q ."
        export.stop(stop, f"{running} && scancel --batch --signal=USR1 --state=RUNNING {which}")
    return export.all_files()


def _is_bucket(checkpoint: str | None) -> bool:
    """Return whether a checkpoint is in a bucket, judged by its address, such as `s3://our-bucket/runs`."""
    return checkpoint is not None and re.match(r"[a-z0-9]+://", checkpoint) is not None


def _mounted(name: str) -> str:
    """Return the mount point of a job's bucket, by the job's file name."""
    return f"/checkpoints/{name}"


def _pid_file(name: str) -> str:
    """Return the path of the file with a job's process ID, by the job's file name."""
    return f"~/.lightning-predict-{name}.pid"


def _marker(name: str) -> str:
    """Return the name of the file next to the schedule that marks a job as stopped and ready to start again."""
    return f"{name}.stopped"


def _cluster(placement: Placement) -> str:
    """Return the name of a rented machine. All plans use the same name, so that a new plan finds running machines."""
    return f"node-{placement.node}-{_safe(placement.configuration.machine)}"


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


def _wait_for_other_machines(segment: Segment, plan: Plan, since: PlanState | None) -> str:
    """Return shell code that waits until the node's previous machine has finished its last work and has shut down."""
    before = {_cluster(other.placement) for other in plan.segments if other.start_seconds < segment.start_seconds}
    before |= {_cluster(placement) for placement in (() if since is None else since.running.values())}
    own, prefix = _cluster(segment.placement), f"node-{segment.placement.node}-"
    return "".join(
        f"{{ sky autostop --yes --idle-minutes 1 --down {name}; "
        f"while sky status --refresh {name} | grep -qwE 'UP|INIT'; do sleep 60; done; }} && "
        for name in sorted(before - {own})
        if name.startswith(prefix)
    )


def _hosts(plan: Plan, problem: PlanningProblem) -> dict[tuple[int, str], str]:
    """Map the nodes of a plan to the user's own machines, by node and type; empty if the problem names too few."""
    hosts: dict[tuple[int, str], str] = {}
    for machine in problem.machines:
        nodes = sorted({rental.node for rental in plan.rentals if rental.machine == machine.name})
        if len(nodes) <= len(machine.hosts):
            hosts |= {(node, machine.name): host for node, host in zip(nodes, machine.hosts, strict=False)}
    return hosts


def _accelerators(machine: MachineType, num_gpus: int) -> str:
    return f"{sky_accelerator(machine.gpu, machine.provider or '')}:{num_gpus}"


def _unused(name: str, taken: Collection[str]) -> str:
    """Append underscores to a name until it is unique."""
    while name in taken:
        name += "_"
    return name


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") or "job"


def _planned_time(start: _Start) -> str:
    """Return a comment with the planned time and place of a segment, on one line."""
    segment, machine = start.segment, start.machine
    begin, end = seconds_to_hours(segment.start_seconds), seconds_to_hours(segment.end_seconds)
    place = f"{segment.placement.configuration.num_gpus} of {machine.num_gpus} GPUs of node {segment.placement.node}"
    return " ".join(f"Planned: {begin:.2f} h to {end:.2f} h, on {place} ({machine.name}).".split())


def _slurm_time(seconds: float) -> str:
    """Format as hours, minutes and seconds, at least one minute."""
    minutes, left = divmod(max(math.ceil(seconds), int(SECONDS_PER_MINUTE)), int(SECONDS_PER_MINUTE))
    hours, minutes = divmod(minutes, int(SECONDS_PER_HOUR / SECONDS_PER_MINUTE))
    return f"{hours:02d}:{minutes:02d}:{left:02d}"
