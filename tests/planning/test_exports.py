"""Files of a plan for SkyPilot and Slurm, carried out by stand-ins and read by the engines themselves.

The engines' own readers run if they are installed, SkyPilot in an environment of its own:

    apt install slurm-client slurmctld munge
    python -m venv engines && engines/bin/pip install skypilot
    LIGHTNING_PREDICT_ENGINES=engines/bin/python pytest tests/planning/test_exports.py
"""

import getpass
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import PlanningFormatError
from lightning_predict.cost.offers import load_offers
from lightning_predict.planning.exports import (
    plan_json,
    skypilot_tasks,
    slurm_scripts,
    write_plan,
)
from lightning_predict.planning.problem import Limits, MachineType, Plan, PlanningProblem, PlanState
from lightning_predict.planning.queues import SHARING_BASELINES
from lightning_predict.planning.simulator import simulate
from lightning_predict.reports.sky import machine_to_rent, sky_task
from tests.planning.example import HOUR, LARGE, MOVED, ONE_EVENT, PLAN, SMALL, TWO_JOBS, Script, at, job, on

Write = Callable[[Plan, PlanningProblem], dict[str, str]]


def with_command(command: str, checkpoint: str | None = None, problem: PlanningProblem = TWO_JOBS) -> PlanningProblem:
    return replace(problem, jobs=tuple(replace(item, command=command, checkpoint=checkpoint) for item in problem.jobs))


BUCKETS = with_command("python train.py", "s3://ours/runs")
FOLDERS = with_command("srun python train.py", "/shared/runs")

STAND_IN = """#!/bin/bash
cd $(dirname $0)/..
echo "$(basename $0) $@" >> calls
[ $(basename $0) = squeue ] && echo running
[ "$1" = status ] && [ $(grep -c 'sky status' calls) -lt 3 ] && echo "$3  1x(small)  UP"
for file in "${@: -1}"; do
  [ "$1" != launch ] && [ -f "$file" ] || continue
  begin=$(sed -n 's/^#SBATCH --begin=now+\\([0-9]*\\)seconds$/\\1/p' "$file")
  echo "$file $((CLOCK + ${begin:-0}))" >> starts
done
true
"""
"""Stands in for each engine's command: it keeps the calls, and the seconds at which each file starts."""


def carried_out(files: dict[str, str], folder: Path) -> dict[str, int]:
    """Run the schedule by a clock, and return when each file starts, in seconds."""
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "bin").mkdir()
    for command in ("sbatch", "scancel", "squeue", "sky", "sleep"):
        (folder / "bin" / command).write_text(STAND_IN)
        (folder / "bin" / command).chmod(0o755)
    for line in files["schedule.txt"].splitlines():
        hours, command = line.split(" h  ", 1)
        environment = os.environ | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "CLOCK": f"{float(hours) * 3600:.0f}",
        }
        subprocess.run(["bash", "-c", command], check=True, env=environment, cwd=folder)
    starts = (line.split() for line in (folder / "starts").read_text().splitlines())
    return {name: int(seconds) for name, seconds in starts}


IN_TURN = replace(  # Two jobs of two hours, one after the other on one machine
    ONE_EVENT,
    jobs=tuple(
        job(name, hours={on("small", 1): 2.0}, deadline=deadline) for name, deadline in (("a", 3.0), ("b", 5.0))
    ),
    limits=Limits(nodes=1),
)


@pytest.mark.parametrize(("write", "checkpoint"), [(skypilot_tasks, "s3://ours/runs"), (slurm_scripts, "/shared/runs")])
def test_jobs_start_when_the_plan_says(write: Write, checkpoint: str, tmp_path: Path) -> None:
    problem = with_command("python train.py", checkpoint, IN_TURN)
    plan = simulate(problem, Script(({"a": at(0, "small", 1)}, {"b": at(0, "small", 1)})))
    started = carried_out(write(plan, problem), tmp_path)
    planned = {segment.job: segment.start_seconds for segment in plan.segments}
    assert planned == {"a": 0.0, "b": pytest.approx(2 * HOUR)}
    assert {name.partition(".")[0]: seconds for name, seconds in started.items()} == pytest.approx(planned, abs=60)


@pytest.mark.parametrize(("write", "problem"), [(skypilot_tasks, BUCKETS), (slurm_scripts, FOLDERS)])
def test_job_that_moves_stops_before_it_starts_elsewhere(
    write: Write, problem: PlanningProblem, tmp_path: Path
) -> None:
    files = write(MOVED, problem)
    started = carried_out(files, tmp_path)
    assert {name.partition(".")[0]: seconds for name, seconds in started.items()} == {"a": 0, "b": 0, "a-2": 3600}
    # Jobs that ended by themselves were not stopped, so their next segment does not start.
    last = files["schedule.txt"].splitlines()[-1].split(" h  ")[1]
    assert last.startswith("[ -e a.stopped ] && rm a.stopped && ")


def test_node_changes_its_machine_only_after_the_old_one_is_gone(tmp_path: Path) -> None:
    carried_out(skypilot_tasks(MOVED, BUCKETS), tmp_path)
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("sky ")]
    last = [words[1] for words in calls if words[1] != "exec"][-5:]
    assert last == ["autostop", "status", "status", "status", "launch"]
    autostop = next(words for words in calls if words[1] == "autostop")
    assert (autostop[4], autostop[-1]) == ("1", "node-0-small")  # gives itself back when idle, not now
    assert calls[-2][-1] == "node-0-large.yaml"


def test_plan_json_has_all_values() -> None:
    document = json.loads(plan_json(PLAN))
    assert document["total_usd"] == pytest.approx(8.0)
    values = {"job": "a", "node": 0, "machine": "large", "num_gpus": 4, "start_seconds": 0.0}
    assert document["segments"][0] == values | {"end_seconds": pytest.approx(HOUR)}
    assert sum(rental["usd"] for rental in document["rentals"]) == pytest.approx(document["machine_usd"])
    assert [item["job"] for item in document["jobs"]] == ["a", "b"]


def test_skypilot_task_rents_a_machine_and_each_job_gets_its_gpus() -> None:
    shared = simulate(
        replace(ONE_EVENT, jobs=tuple(job(name, hours={on("large", 2): 1.0}, deadline=9.0) for name in "ab")),
        Script(({"a": at(0, "large", 2), "b": at(0, "large", 2)},)),
    )
    tasks = skypilot_tasks(shared, with_command("python train.py"))
    assert list(tasks) == ["node-0-large.yaml", "a.yaml", "b.yaml", "schedule.txt"]
    rented = {"name": "node-0-large", "resources": {"accelerators": "A10:4"}, "num_nodes": 1}
    assert yaml.safe_load(tasks["node-0-large.yaml"]) == rented
    task = yaml.safe_load(tasks["a.yaml"])
    assert "setsid bash -c 'python train.py' &" in task.pop("run")
    assert task == {"name": "a", "resources": {"accelerators": "A10:2"}, "num_nodes": 1}
    # No line ends anything: the machine gives itself back once it is idle.
    launch = "sky launch --yes --cluster node-0-large --idle-minutes-to-autostop 15 --down node-0-large.yaml"
    assert tasks["schedule.txt"].splitlines() == [
        f"   0.000 h  {launch} && sky exec --detach-run node-0-large {name}.yaml" for name in "ab"
    ]


CHEAP = replace(LARGE, name="cheap", instance="g5.12xlarge", gpu="A10G", provider="AWS", interruptions_per_hour=0.05)


@pytest.mark.parametrize(
    ("machine", "resources"),
    [
        (
            replace(LARGE, gpu="A100-SXM-80GB", provider="Lambda"),
            {"cloud": "lambda", "instance_type": "large", "accelerators": "A100-80GB:4"},
        ),
        (CHEAP, {"cloud": "aws", "instance_type": "g5.12xlarge", "accelerators": "A10G:4", "use_spot": True}),
    ],
)
def test_skypilot_task_uses_its_names_of_gpus_and_clouds(machine: MachineType, resources: dict[str, object]) -> None:
    jobs = (replace(job("a", hours={on(machine.name, 4): 1.0}, deadline=2.0), command="python train.py"),)
    problem = replace(ONE_EVENT, jobs=jobs, machines=(machine,), checkpoint_seconds=600.0)
    files = skypilot_tasks(simulate(problem, Script(({"a": at(0, machine.name, 4)},))), problem)
    assert yaml.safe_load(files[f"node-0-{machine.name}.yaml"])["resources"] == resources
    assert yaml.safe_load(files["a.yaml"])["resources"] == {"accelerators": resources["accelerators"]}


def test_both_machines_of_a_moving_job_mount_its_bucket() -> None:
    tasks = skypilot_tasks(MOVED, BUCKETS)
    for node in ("node-0-small", "node-0-large"):
        mounts = yaml.safe_load(tasks[f"{node}.yaml"])["file_mounts"]
        assert mounts["/checkpoints/a"] == {"source": "s3://ours/runs", "mode": "MOUNT"}
    assert yaml.safe_load(tasks["a-2.yaml"])["envs"] == {
        "CHECKPOINTS": "/checkpoints/a",
    }


def test_running_job_is_not_started_again_and_stops_before_it_moves() -> None:
    here = at(0, "large", 4)
    since = PlanState(
        now_seconds=HOUR / 2, remaining={"a": 0.5, "b": 1.0}, running={"a": here}, started={"a": here.configuration}
    )
    plan = simulate(ONE_EVENT, Script(({"a": here, "b": at(1, "small", 1)},)), since=since)
    tasks, scripts = skypilot_tasks(plan, BUCKETS, since), slurm_scripts(plan, FOLDERS, since)
    assert list(tasks) == ["node-1-small.yaml", "b.yaml", "schedule.txt"]
    assert tasks["schedule.txt"].endswith("sky exec --detach-run node-1-small b.yaml\n")
    assert (list(scripts), scripts["schedule.txt"]) == (["b.sh", "schedule.txt"], "   0.000 h  sbatch b.sh\n")
    here = at(0, "small", 1)
    since = PlanState(now_seconds=0.0, remaining={"a": 0.5}, running={"a": here}, started={"a": here.configuration})
    plan = simulate(ONE_EVENT, Script(({"a": at(0, "large", 4)},)), since=since)
    stop, start = skypilot_tasks(plan, BUCKETS, since)["schedule.txt"].splitlines()
    assert stop.startswith(
        "   0.000 h  sky exec node-0-small 'pid=$(cat ~/.lightning-predict-a.pid) && kill -TERM $pid"
    )
    assert start.startswith("   0.000 h  [ -e a.stopped ] && rm a.stopped && { sky autostop")
    assert start.endswith("sky exec --detach-run node-0-large a.yaml")


def test_similar_names_share_no_file_process_or_checkpoint() -> None:
    # Two names that are one in a file system, one that is another's second segment, and one that is a machine's.
    first = {"a b": at(0, "small", 1), "a-b": at(1, "small", 1), "a-b-2": at(2, "small", 1)}
    moved = first | {"a-b": at(3, "small", 1), "node-0-small": at(1, "small", 1)}
    jobs = tuple(job(name, hours={on("small", 1): 4.0}, deadline=9.0) for name in moved)
    problem = replace(ONE_EVENT, jobs=jobs, period_seconds=HOUR, limits=replace(ONE_EVENT.limits, nodes=4))
    tasks = skypilot_tasks(
        simulate(problem, Script((first, moved))), with_command("python train.py", "s3://ours/runs", problem)
    )
    started = re.findall(r"sky exec --detach-run (\S+) (\S+)\.yaml", tasks["schedule.txt"])
    assert len({name for _, name in started}) == len(started) == 5
    clusters = {cluster for cluster, _ in started}
    assert not clusters & {name for _, name in started}
    assert len(tasks) == len(clusters) + len(started) + 1
    ((_, pid_file),) = re.findall(r"sky exec (\S+) 'pid=\$\(cat (\S+)\)", tasks["schedule.txt"])
    # a-b alone moves: its two segments have its process file, and no other job has.
    assert sum(f"echo $$ > {pid_file}" in text for text in tasks.values()) == 2


@pytest.mark.parametrize(
    ("write", "problem", "message"),
    [
        (skypilot_tasks, with_command("python a.py"), r"a moves or pauses and would lose all.*Add checkpoint: s3://"),
        (skypilot_tasks, FOLDERS, "names no bucket for its checkpoint"),
        (slurm_scripts, BUCKETS, "names no folder for its checkpoint that machines share"),
    ],
)
def test_plan_that_would_lose_work_is_refused(write: Write, problem: PlanningProblem, message: str) -> None:
    with pytest.raises(PlanningFormatError, match=message):
        write(MOVED, problem)


def test_folder_has_no_tasks_of_an_earlier_plan(tmp_path: Path) -> None:
    refused = write_plan(PLAN, TWO_JOBS, tmp_path)
    assert [words.partition(": ")[2].partition(". ")[0] for words in refused] == [
        "a, b name no command that starts the training"
    ] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json"]
    assert write_plan(MOVED, BUCKETS, tmp_path) != ()  # none for Slurm
    assert (tmp_path / "sky" / "a-2.yaml").exists()
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "mine.sh").touch()
    assert write_plan(PLAN, with_command("python train.py"), tmp_path) == ()
    assert not (tmp_path / "sky" / "a-2.yaml").exists()
    assert (tmp_path / "slurm" / "mine.sh").exists()


HOSTED = replace(FOLDERS, machines=(SMALL, replace(LARGE, hosts=("dgx1",))), restart_seconds=60.0)


def test_slurm_script_has_gpus_limit_and_host_and_no_start_time() -> None:
    script = slurm_scripts(MOVED, HOSTED)["a-2.sh"]
    # From 1 h to 1.75 h: three quarters of the work are left, on large a whole run takes 1 h. A minute of restart and
    # five in which the checkpoint is written make 51 min; rounded up to a second.
    assert re.search(r"#SBATCH --time=00:51:0[01]\n", script)
    assert "--begin" not in script  # the schedule alone says when it starts
    for line in (
        "#SBATCH --gres=gpu:a10:4\n",
        "#SBATCH --nodelist=dgx1\n",
        "export CHECKPOINTS=/shared/runs\n",
    ):
        assert line in script
    wide = replace(HOSTED, jobs=tuple(replace(item, high_factor=2.0) for item in HOSTED.jobs))
    assert re.search(r"#SBATCH --time=01:36:0[01]\n", slurm_scripts(MOVED, wide)["a-2.sh"])
    unlimited = slurm_scripts(PLAN, with_command("python train.py"))["a.sh"]
    assert "--time" not in unlimited
    assert "# No time limit, as it names no checkpoint" in unlimited


SBATCH = {  # Directives of the scripts, with the values that the manual of sbatch documents
    "job-name": r"[A-Za-z0-9._-]+",
    "dependency": "singleton",
    "nodes": r"[1-9]\d*",
    "gres": r"gpu:[a-z0-9._-]+:[1-9]\d*",
    "time": r"\d{2,}:[0-5]\d:[0-5]\d",
    "signal": r"B:TERM@\d+",
    "requeue": "",
    "open-mode": "append",
}


@pytest.mark.parametrize("name", ["a", "two words", "$(touch x); `id`", 'it\'s "quoted" & more', "größer\nzwei"])
def test_bash_and_sbatch_can_read_scripts_of_any_job_name(name: str) -> None:
    first = replace(TWO_JOBS.jobs[0], name=name, command="srun a.py --name 'a b'", checkpoint="/shared/two words; id")
    problem = replace(ONE_EVENT, jobs=(first,), period_seconds=HOUR)
    plan = simulate(problem, Script(({name: at(0, "small", 1)}, {name: at(0, "large", 4)})))
    scripts = slurm_scripts(plan, problem)
    for line in scripts.pop("schedule.txt").splitlines():
        subprocess.run(["bash", "-n"], input=line.split("h  ", 1)[1], text=True, check=True)
    assert len(scripts) == 2
    for script in scripts.values():
        lines = script.splitlines()
        directives = [line for line in lines if line.startswith("#SBATCH")]
        assert lines[0] == "#!/bin/bash"
        assert lines[1 : 1 + len(directives)] == directives  # sbatch stops reading them at the first command
        matches = (re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line) for line in directives)
        options = {match[1]: match[2] or "" for match in matches if match is not None}
        assert options.keys() == SBATCH.keys()
        assert len(options) == len(directives)
        assert all(re.fullmatch(SBATCH[option], value) for option, value in options.items())
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


TRAINING = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def save(*_):
    time.sleep(0.3)  # a checkpoint takes a while
    (folder / "checkpoint").write_text("whole")
    raise SystemExit(7)
signal.signal(signal.SIGTERM, save)
(folder / "started").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["TERM", "USR1"])
def test_stopped_job_writes_its_checkpoint_before_its_script_ends(how: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    # A command of two processes: the shell dies of the signal at once, the training ends later.
    command = f"true; {shlex.quote(sys.executable)} {tmp_path / 'train.py'} {tmp_path}; true"
    script = slurm_scripts(MOVED, with_command(command, str(tmp_path)))["a.sh"]
    scontrol = tmp_path / "scontrol"  # stands for Slurm's
    scontrol.write_text(f'#!/bin/bash\necho "$@" > {tmp_path}/requeued\n')
    scontrol.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "42"}
    process = subprocess.Popen(["bash", "-c", script], env=environment)
    try:
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(getattr(signal, f"SIG{how}"))
        process.wait()
    finally:
        process.kill()
    assert (tmp_path / "checkpoint").read_text() == "whole"
    # A time limit comes with TERM: the job is queued again. A move comes with USR1: the next segment goes on.
    assert (tmp_path / "requeued").exists() == (how == "TERM")


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=2, unique=True))
def test_file_names_are_safe_and_tasks_are_valid_yaml(names: list[str]) -> None:
    jobs = tuple(job(name, hours={on("small", 1): 1.0}, deadline=2.0) for name in names)
    problem = with_command("python train.py", problem=replace(ONE_EVENT, jobs=jobs))
    plan = simulate(problem, Script(({name: at(node, "small", 1) for node, name in enumerate(names)},)))
    tasks, scripts = skypilot_tasks(plan, problem), slurm_scripts(plan, problem)
    del tasks["schedule.txt"], scripts["schedule.txt"]
    assert len(tasks) == 2 * len(names)
    for name, text in tasks.items():
        assert re.fullmatch(r"[A-Za-z0-9._-]*[A-Za-z0-9][A-Za-z0-9._-]*", name.removesuffix(".yaml"))
        assert yaml.safe_load(text)["num_nodes"] == 1
    for text in scripts.values():
        assert all(line.startswith("#") for line in text.partition("setsid")[0].splitlines() if line)


def rented() -> PlanningProblem:
    """Return a problem with a job on each of several clouds' machines, a spot machine and the user's own machine."""
    newest = {offer.instance: offer for offer in sorted(load_offers(), key=lambda offer: offer.date)}
    names = ("g5.12xlarge", "NC4as T4 v3", "gpu_1x_a100_sxm4", "a2-highgpu-1g", "1x H100 SXM")
    machines = [
        MachineType(name=name, gpu=row.gpu, num_gpus=row.num_gpus, usd_per_hour=row.usd_per_hour, provider=row.provider)
        for name, row in ((name, newest[name]) for name in names)
    ]
    machines.append(replace(machines[0], name="spot", instance=machines[0].name, interruptions_per_hour=0.05))
    machines.append(MachineType(name="box", gpu="RTX-4090", num_gpus=2, usd_per_hour=1.0))
    jobs = tuple(job(f"Run {machine.name}!", hours={on(machine.name, 1): 1.0}, deadline=9.0) for machine in machines)
    problem = replace(
        TWO_JOBS, jobs=jobs, machines=tuple(machines), limits=Limits(nodes=len(machines)), checkpoint_seconds=600.0
    )
    return with_command("python train.py --name 'a: b'", "s3://our-bucket/runs", problem)


READ = """
import sky, sys, yaml
from sky.utils import common_utils, schemas
for path in sys.argv[1:]:
    document = yaml.safe_load(open(path))
    common_utils.validate_schema(document, schemas.get_task_schema(), path)
    common_utils.validate_schema(document["resources"], schemas.get_resources_schema(), path)
    (resources,) = sky.Task.from_yaml(path).resources
    print(resources.cloud, resources.instance_type, resources.accelerators, resources.use_spot)
"""


@pytest.mark.skipif("LIGHTNING_PREDICT_ENGINES" not in os.environ, reason="needs a Python that has the engines")
def test_engines_read_every_file(tmp_path: Path) -> None:
    problem = rented()
    files = skypilot_tasks(simulate(problem, SHARING_BASELINES[0]), problem)
    files |= {"predicted.yaml": sky_task(machine_to_rent("L4"))}
    files |= {f"moved-{name}": text for name, text in skypilot_tasks(MOVED, BUCKETS).items()}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    paths = [str(tmp_path / name) for name in sorted(files) if name.endswith(".yaml")]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"HOME": str(tmp_path)}
    python = os.environ["LIGHTNING_PREDICT_ENGINES"]
    ran = subprocess.run([python, "-c", READ, *paths], capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == len(paths)
    for is_spot in (False, True):
        assert any(f"AWS g5.12xlarge {{'A10G': 4}} {is_spot}" in line for line in lines)


CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=60
MpiDefault=none
NodeName=dgx[1-3] CPUs=8 RealMemory=1000 Gres=gpu:a10:4 State=CLOUD
NodeName=small[1-3] CPUs=8 RealMemory=1000 Gres=gpu:t4:1 State=CLOUD
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""
"""Machines that a cloud would start, so that scripts can be placed on them although none is there."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Give the environment in which sbatch finds a controller."""
    if not all(map(shutil.which, ("sbatch", "slurmctld", "sinfo"))):
        pytest.skip("needs sbatch and slurmctld")
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "slurm.conf").write_text(CONFIGURATION.format(port=port, user=getpass.getuser(), folder=folder))
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    with (folder / "log").open("w") as log:
        controller = subprocess.Popen(["slurmctld", "-D"], env=environment, stdout=log, stderr=log)
    try:
        for _ in range(100):
            if subprocess.run(["sinfo"], env=environment, capture_output=True, check=False).returncode == 0:
                break
            if controller.poll() is not None:
                pytest.skip(f"slurmctld does not run here: {(folder / 'log').read_text()[-300:]}")
            time.sleep(0.1)
        yield environment
    finally:
        controller.kill()
        controller.wait()


def long_run() -> dict[str, str]:
    """Write the script of a run of many days, whose limit has hours beyond two digits."""
    first = replace(FOLDERS.jobs[0], seconds={on("large", 4): 1000 * HOUR}, high_factor=1.5)
    problem = replace(FOLDERS, jobs=(first,))
    return slurm_scripts(simulate(problem, Script(({"a": at(0, "large", 4)},))), problem)


def test_sbatch_places_scripts_and_refuses_broken_ones(slurm: dict[str, str], tmp_path: Path) -> None:
    def placed(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "a.sh").write_text(text)
        words = ["sbatch", "--test-only", "a.sh"]
        return subprocess.run(words, env=slurm, cwd=tmp_path, capture_output=True, text=True, check=False)

    unlimited = slurm_scripts(PLAN, with_command("python train.py"))
    for files in (slurm_scripts(MOVED, HOSTED), long_run(), unlimited):
        for text in (text for name, text in files.items() if name.endswith(".sh")):
            ran = placed(text)
            assert ran.returncode == 0, f"{ran.stderr}\n{text}"
            host = "dgx1 " if "--nodelist" in text else "dgx" if "gpu:a10" in text else "small"
            assert f"on nodes {host}" in ran.stderr
    text = slurm_scripts(MOVED, HOSTED)["a-2.sh"]
    for right, wrong in (("TERM@300", "TERM@soon"), ("--nodes=1", "--nodes=one"), (":a10:4", ":a10:5")):
        assert right in text
        assert placed(text.replace(right, wrong)).returncode != 0
