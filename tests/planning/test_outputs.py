"""Charts, pages, exports and tables of one plan."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.planning.pictures import comparison_figure, comparison_table
from benchmarks.planning.study import Comparison, Saving, random_problem
from lightning_predict.base.errors import MissingDependencyError, PlanningFormatError
from lightning_predict.planning.exports import plan_json, skypilot_tasks, slurm_scripts
from lightning_predict.planning.gantt_chart import (
    chart_of,
    gantt_page,
    plan_table,
)
from lightning_predict.planning.milp import MilpPlanner
from lightning_predict.planning.plan_folder import write_plan
from lightning_predict.planning.problem import Plan, PlanningProblem, PlanState
from lightning_predict.planning.simulator import simulate
from tests.planning.example import HOUR, LARGE, SMALL, TWO_JOBS, job, on
from tests.planning.test_simulator import ONE_EVENT, Script, at

PLAN = simulate(ONE_EVENT, Script(({"a": at(0, "large", 4), "b": at(1, "small", 1)},), []))
MOVED = simulate(
    replace(ONE_EVENT, period_seconds=HOUR),
    Script(({"a": at(0, "small", 1), "b": at(1, "small", 1)}, {"a": at(0, "large", 4), "b": at(1, "small", 1)}), []),
)
"""a goes from small to large after an hour."""


def test_the_chart_has_a_row_a_gpu_and_a_bar_a_stay() -> None:
    chart = chart_of(PLAN, TWO_JOBS.machines)
    assert [(lane.label, lane.first_row, lane.rows) for lane in chart.lanes] == [
        ("node 0: large", 0, 4),
        ("node 1: small", 4, 1),
    ]
    assert [(bar.segment.job, bar.first_row, bar.rows) for bar in chart.bars] == [("a", 0, 4), ("b", 4, 1)]
    assert len({bar.color for bar in chart.bars}) == 2
    assert chart.rows == 5
    assert chart.end_seconds == pytest.approx(2 * HOUR)


def test_a_node_that_was_of_two_types_says_both() -> None:
    assert chart_of(MOVED, TWO_JOBS.machines).lanes[0].label == "node 0: small, large"


def test_gpus_that_are_no_neighbours_give_two_bars() -> None:
    jobs = tuple(
        job(name, hours={on("large", gpus): hours}, deadline=9.0)
        for name, gpus, hours in (("x", 1, 1.0), ("y", 2, 3.0), ("z", 1, 1.0))
    )
    last = job("w", hours={on("large", 2): 1.0}, deadline=9.0, release=1.0)
    problem = replace(ONE_EVENT, jobs=(*jobs, last))
    first = {"x": at(0, "large", 1), "y": at(0, "large", 2), "z": at(0, "large", 1)}
    plan = simulate(problem, Script((first, {"y": at(0, "large", 2), "w": at(0, "large", 2)}), []))
    bars = chart_of(plan, (LARGE,)).bars
    assert [(bar.first_row, bar.rows) for bar in bars if bar.segment.job == "w"] == [(0, 1), (3, 1)]


@given(st.integers(0, 50))
@settings(max_examples=8, deadline=None)
def test_bars_never_overlap_and_show_every_gpu(seed: int) -> None:
    problem = random_problem(nodes=1, mean_gap_seconds=60.0, seed=seed)
    problem = replace(problem, limits=replace(problem.limits, nodes=2))
    plan = simulate(problem, MilpPlanner())
    chart = chart_of(plan, problem.machines)
    cells = [
        (bar.first_row + row, bar.segment.start_seconds, bar.segment.end_seconds)
        for bar in chart.bars
        for row in range(bar.rows)
    ]
    for number, (row, start, end) in enumerate(cells):
        for other_row, other_start, other_end in cells[:number]:
            assert row != other_row or start >= other_end or end <= other_start
    drawn = sum((end - start) for _, start, end in cells)
    ran = sum((item.end_seconds - item.start_seconds) * item.placement.configuration.num_gpus for item in plan.segments)
    assert drawn == pytest.approx(ran)


class _Closed(HTMLParser):
    """Every element that is opened is closed, and nothing is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.shapes = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "link", "img", "iframe"}
        assert not {name for name, _ in attrs} & {"src", "href"}
        if tag != "meta":
            self.open.append(tag)
        self.shapes += tag == "rect"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else_and_shows_every_stay() -> None:
    parser = _Closed()
    page = gantt_page(MOVED, TWO_JOBS.machines)
    parser.feed(page.replace("/>", "></line>"))
    assert parser.open == []
    assert parser.shapes == len(MOVED.segments) == 3
    assert f"${MOVED.total_usd:,.2f}" in page


def test_names_cannot_break_the_page() -> None:
    evil = "<b>&\"a'"
    problem = replace(ONE_EVENT, jobs=(replace(TWO_JOBS.jobs[0], name=evil),))
    page = gantt_page(simulate(problem, Script(({evil: at(0, "large", 4)},), [])), problem.machines)
    assert evil not in page
    assert "&lt;b&gt;" in page


def test_json_has_everything_and_its_sums() -> None:
    document = json.loads(plan_json(PLAN))
    assert document["total_usd"] == pytest.approx(8.0)
    assert document["segments"][0] == {
        "job": "a",
        "node": 0,
        "machine": "large",
        "num_gpus": 4,
        "start_seconds": 0.0,
        "end_seconds": pytest.approx(HOUR),
    }
    assert sum(rental["usd"] for rental in document["rentals"]) == pytest.approx(document["machine_usd"])
    assert [item["job"] for item in document["jobs"]] == ["a", "b"]


def with_command(command: str, checkpoint: str | None = None, problem: PlanningProblem = TWO_JOBS) -> PlanningProblem:
    jobs = tuple(replace(item, command=command, checkpoint=checkpoint) for item in problem.jobs)
    return replace(problem, jobs=jobs)


BUCKETS = with_command("python train.py", "s3://ours/runs")
FOLDERS = with_command("srun python train.py", "/shared/runs")


def launch(cluster: str) -> str:
    return f"sky launch --yes --cluster {cluster} --idle-minutes-to-autostop 15 --down {cluster}.yaml"


def stop(name: str) -> str:
    pid = f"~/.lightning-predict-{name}.pid"
    return f"'pid=$(cat {pid}) && kill -TERM $pid && while kill -0 $pid 2>/dev/null; do sleep 5; done'"


ONCE_STOPPED = "[ -e a.stopped ] && rm a.stopped && "
"""A job that has ended by itself, or has not begun, was not stopped: its next stretch is not started."""

ONCE_GIVEN_BACK = (
    "{ sky autostop --yes --idle-minutes 1 --down node-0-small; "
    "while sky status --refresh node-0-small | grep -qwE 'UP|INIT'; do sleep 60; done; } && "
)
"""Node 0 becomes another machine once nothing runs on the one that it was."""


def test_a_task_rents_a_machine_and_one_starts_each_job_on_its_part_of_it() -> None:
    shared = simulate(
        replace(ONE_EVENT, jobs=tuple(job(name, hours={on("large", 2): 1.0}, deadline=9.0) for name in "ab")),
        Script(({"a": at(0, "large", 2), "b": at(0, "large", 2)},), []),
    )
    tasks = skypilot_tasks(shared, with_command("python train.py"))
    assert list(tasks) == ["node-0-large.yaml", "a.yaml", "b.yaml", "schedule.txt"]
    assert yaml.safe_load(tasks["node-0-large.yaml"]) == {
        "name": "node-0-large",
        "resources": {"accelerators": "A10:4"},
        "num_nodes": 1,
    }
    task = yaml.safe_load(tasks["a.yaml"])
    assert "setsid bash -c 'python train.py' &" in task.pop("run")
    assert task == {"name": "a", "resources": {"accelerators": "A10:2"}, "num_nodes": 1}
    # With any predicted times, no line ends anything: the machine gives itself back once it is idle.
    assert tasks["schedule.txt"].splitlines() == [
        f"   0.000 h  {launch('node-0-large')} && sky exec --detach-run node-0-large a.yaml",
        f"   0.000 h  {launch('node-0-large')} && sky exec --detach-run node-0-large b.yaml",
    ]


def test_a_task_spells_gpu_and_cloud_as_skypilot_does() -> None:
    machines = tuple(replace(one, gpu="A100-SXM-80GB", provider="Lambda") for one in TWO_JOBS.machines)
    tasks = skypilot_tasks(PLAN, replace(BUCKETS, machines=machines))
    assert yaml.safe_load(tasks["node-0-large.yaml"])["resources"] == {
        "cloud": "lambda",
        "instance_type": "large",
        "accelerators": "A100-80GB:4",
    }
    assert yaml.safe_load(tasks["a.yaml"])["resources"] == {"accelerators": "A100-80GB:4"}


def test_a_spot_machine_is_rented_as_one() -> None:
    large = replace(
        LARGE, name="cheap", instance="g5.12xlarge", gpu="A10G", provider="AWS", interruptions_per_hour=0.05
    )
    jobs = (replace(job("a", hours={on("cheap", 4): 1.0}, deadline=2.0), command="python train.py"),)
    problem = replace(ONE_EVENT, jobs=jobs, machines=(large,), checkpoint_seconds=600.0)
    files = skypilot_tasks(simulate(problem, Script(({"a": at(0, "cheap", 4)},), [])), problem)
    assert yaml.safe_load(files["node-0-cheap.yaml"])["resources"] == {
        "cloud": "aws",
        "instance_type": "g5.12xlarge",
        "accelerators": "A10G:4",
        "use_spot": True,
    }


def test_a_job_that_moves_has_stopped_with_its_checkpoint_before_it_starts_elsewhere() -> None:
    tasks = skypilot_tasks(MOVED, BUCKETS)
    assert list(tasks) == [
        *("node-0-small.yaml", "node-1-small.yaml", "node-0-large.yaml"),
        *("a.yaml", "b.yaml", "a-2.yaml", "schedule.txt"),
    ]
    assert tasks["schedule.txt"].splitlines()[2:] == [
        f"   1.000 h  sky exec node-0-small {stop('a')} && touch a.stopped",
        f"   1.000 h  {ONCE_STOPPED}{ONCE_GIVEN_BACK}{launch('node-0-large')} && "
        "sky exec --detach-run node-0-large a-2.yaml",
    ]
    # Both machines see the bucket that the checkpoint is in; a task that is executed cannot mount it itself.
    for node in ("node-0-small", "node-0-large"):
        mounts = yaml.safe_load(tasks[f"{node}.yaml"])["file_mounts"]
        assert mounts["/checkpoints/a"] == {"source": "s3://ours/runs", "mode": "MOUNT"}
    assert yaml.safe_load(tasks["a-2.yaml"])["envs"] == {
        "CHECKPOINTS": "/checkpoints/a",
        "LIGHTNING_PREDICT_PROGRESS": "/checkpoints/a/lightning_predict_progress_a.json",
        "LIGHTNING_PREDICT_PLACE": '{"job": "a", "node": 0, "machine": "large", "num_gpus": 4}',
    }
    assert list(slurm_scripts(MOVED, FOLDERS)) == ["a.sh", "b.sh", "a-2.sh", "schedule.txt"]
    assert slurm_scripts(MOVED, FOLDERS)["schedule.txt"].splitlines()[2:] == [
        "   1.000 h  squeue --noheader --states=RUNNING --user=$USER --name=a | grep -q . && "
        "scancel --batch --signal=USR1 --state=RUNNING --user=$USER --name=a && touch a.stopped",
        f"   1.000 h  {ONCE_STOPPED}sbatch a-2.sh",
    ]


def test_what_runs_already_is_not_started_again_and_its_machine_is_left_alone() -> None:
    here = at(0, "large", 4)
    since = PlanState(
        now_seconds=HOUR / 2, remaining={"a": 0.5, "b": 1.0}, running={"a": here}, started={"a": here.configuration}
    )
    plan = simulate(ONE_EVENT, Script(({"a": here, "b": at(1, "small", 1)},), []), since=since)
    tasks = skypilot_tasks(plan, BUCKETS, since)
    assert list(tasks) == ["node-1-small.yaml", "b.yaml", "schedule.txt"]
    assert tasks["schedule.txt"].splitlines() == [
        f"   0.000 h  {launch('node-1-small')} && sky exec --detach-run node-1-small b.yaml",
    ]
    scripts = slurm_scripts(plan, FOLDERS, since)
    assert list(scripts) == ["b.sh", "schedule.txt"]
    assert "#SBATCH --begin=now+0seconds\n" in scripts["b.sh"]


def test_a_job_that_runs_and_is_planned_elsewhere_stops_where_it_runs_first() -> None:
    here = at(0, "small", 1)
    since = PlanState(now_seconds=0.0, remaining={"a": 0.5}, running={"a": here}, started={"a": here.configuration})
    plan = simulate(ONE_EVENT, Script(({"a": at(0, "large", 4)},), []), since=since)
    assert skypilot_tasks(plan, BUCKETS, since)["schedule.txt"].splitlines() == [
        f"   0.000 h  sky exec node-0-small {stop('a')} && touch a.stopped",
        f"   0.000 h  {ONCE_STOPPED}{ONCE_GIVEN_BACK}{launch('node-0-large')} && "
        "sky exec --detach-run node-0-large a.yaml",
    ]


SKY = """#!/bin/bash
cd $(dirname $0)
echo "$@" >> told
if [ $1 = status ]; then
  [ $(grep -c status told) -lt 3 ] && echo "$3  1x(small)  UP" || echo "Cluster(s) not found: $3"
fi
"""


def test_a_node_becomes_another_machine_only_once_the_first_is_gone(tmp_path: Path) -> None:
    for name, text in (("sky", SKY), ("sleep", "#!/bin/bash\n")):  # stand for SkyPilot's and for a minute
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    line = skypilot_tasks(MOVED, BUCKETS)["schedule.txt"].splitlines()[-1].split("h  ", 1)[1]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    (tmp_path / "a.stopped").touch()
    subprocess.run(["bash", "-c", line], check=True, env=environment, cwd=tmp_path)
    told = [words.split() for words in (tmp_path / "told").read_text().splitlines()]
    assert [words[0] for words in told] == ["autostop", "status", "status", "status", "launch", "exec"]
    assert told[0][-1] == "node-0-small"  # gives itself back when idle, not now
    assert told[4][-1] == "node-0-large.yaml"


def test_jobs_whose_names_look_alike_share_neither_file_nor_process_nor_checkpoint() -> None:
    # Two names that are one in a file system, one that is another's second stretch, and one that is a machine's.
    first = {"a b": at(0, "small", 1), "a-b": at(1, "small", 1), "a-b-2": at(2, "small", 1)}
    moved = first | {"a-b": at(3, "small", 1), "node-0-small": at(1, "small", 1)}
    jobs = tuple(job(name, hours={on("small", 1): 4.0}, deadline=9.0) for name in moved)
    problem = replace(ONE_EVENT, jobs=jobs, period_seconds=HOUR, limits=replace(ONE_EVENT.limits, nodes=4))
    plan = simulate(problem, Script((first, moved), []))
    tasks = skypilot_tasks(plan, with_command("python train.py", "s3://ours/runs", problem))
    started = re.findall(r"sky exec --detach-run (\S+) (\S+)\.yaml", tasks["schedule.txt"])
    assert len({name for _, name in started}) == len(started) == 5
    clusters = {cluster for cluster, _ in started}
    assert not clusters & {name for _, name in started}
    assert len(tasks) == len(clusters) + len(started) + 1
    stopped = re.findall(r"sky exec (\S+) 'pid=\$\(cat (\S+)\)", tasks["schedule.txt"])
    assert len(stopped) == 1  # a-b alone moves, and only its own process gets the signal to stop
    holders = [name for name, text in tasks.items() if f"echo $$ > {stopped[0][1]}" in text]
    assert len(holders) == 2  # its two stretches, and no job that looks like it


def test_a_plan_that_would_lose_work_is_not_exported_and_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PlanningFormatError, match=r"a moves or pauses and would lose all work.*Add checkpoint: s3://"):
        skypilot_tasks(MOVED, with_command("python train.py"))
    # Machines of a cloud do not share a folder, and a cluster does not mount a bucket.
    with pytest.raises(PlanningFormatError, match="names no bucket for its checkpoint"):
        skypilot_tasks(MOVED, FOLDERS)
    with pytest.raises(PlanningFormatError, match="names no folder for its checkpoint that machines share"):
        slurm_scripts(MOVED, BUCKETS)
    refused = write_plan(PLAN, TWO_JOBS, tmp_path)
    assert [words.partition(":")[2].partition(".")[0].strip() for words in refused] == [
        "a, b name no command that starts the training"
    ] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gantt.html", "plan.json"]


def test_an_earlier_plan_is_not_carried_out_with_a_later_one(tmp_path: Path) -> None:
    assert write_plan(MOVED, with_command("python train.py", "s3://ours/runs"), tmp_path) != ()  # none for Slurm
    assert (tmp_path / "sky" / "a-2.yaml").exists()
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "mine.sh").touch()
    assert write_plan(PLAN, with_command("python train.py"), tmp_path) == ()
    assert not (tmp_path / "sky" / "a-2.yaml").exists()
    assert (tmp_path / "slurm" / "mine.sh").exists()


def test_a_slurm_script_has_gpus_begin_limit_and_host() -> None:
    hosted = replace(FOLDERS, machines=(SMALL, replace(LARGE, hosts=("dgx1",))), restart_seconds=60.0)
    script = slurm_scripts(MOVED, hosted)["a-2.sh"]
    # From 1 h to 1.75 h: three quarters of the work are left, on large a whole run takes 1 h. A minute of restart and
    # five in which the checkpoint is written make 51 min; rounded up to a second.
    assert "#SBATCH --gres=gpu:a10:4\n" in script
    assert "#SBATCH --begin=now+3600seconds\n" in script
    assert re.search(r"#SBATCH --time=00:51:0[01]\n", script)
    assert "#SBATCH --nodelist=dgx1\n" in script
    assert "export CHECKPOINTS=/shared/runs\n" in script
    assert "export LIGHTNING_PREDICT_PROGRESS=/shared/runs/lightning_predict_progress_" in script
    wide = replace(hosted, jobs=tuple(replace(item, high_factor=2.0) for item in hosted.jobs))
    assert re.search(r"#SBATCH --time=01:36:0[01]\n", slurm_scripts(MOVED, wide)["a-2.sh"])
    # Without a checkpoint a limit would lose all; and two hosts cannot stand for more nodes than there are.
    unlimited = slurm_scripts(PLAN, with_command("python train.py"))["a.sh"]
    assert "--time" not in unlimited
    assert "# No time limit, as it names no checkpoint" in unlimited


SBATCH = {
    "job-name": r"[A-Za-z0-9._-]+",
    "dependency": "singleton",
    "nodes": r"[1-9]\d*",
    "gres": r"gpu:[a-z0-9._-]+:[1-9]\d*",
    "time": r"\d{2,}:[0-5]\d:[0-5]\d",
    "begin": r"now\+\d+seconds",
    "signal": r"B:TERM@\d+",
    "requeue": "",
    "open-mode": "append",
}
"""The directives that scripts use, as the manual of sbatch documents their values; sbatch 22.05 (`--test-only`) accepts
such scripts and refuses `--time=1h`, `--begin=soonish` and `--gres=gpu:a10:four`; `test_slurm.py` asks it."""


@pytest.mark.parametrize("name", ["a", "two words", "$(touch x); `id`", 'it\'s "quoted" & more', "größer\nzwei"])
@pytest.mark.parametrize("checkpoint", ["/shared/runs", "/shared/two words; id"])
def test_every_slurm_script_is_one_that_bash_and_sbatch_read(name: str, checkpoint: str) -> None:
    first = replace(TWO_JOBS.jobs[0], name=name, command="srun python train.py --name 'a b'", checkpoint=checkpoint)
    problem = replace(ONE_EVENT, jobs=(first,), period_seconds=HOUR)
    plan = simulate(problem, Script(({name: at(0, "small", 1)}, {name: at(0, "large", 4)}), []))
    scripts = slurm_scripts(plan, problem)
    for line in scripts.pop("schedule.txt").splitlines():
        subprocess.run(["bash", "-n"], input=line.split("h  ", 1)[1], text=True, check=True)
    assert len(scripts) == 2
    for script in scripts.values():
        lines = script.splitlines()
        directives = [line for line in lines if line.startswith("#SBATCH")]
        assert lines[0] == "#!/bin/bash"
        assert lines[1 : 1 + len(directives)] == directives  # sbatch stops reading them at the first command
        found = (re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line) for line in directives)
        options = {match[1]: match[2] or "" for match in found if match is not None}
        assert len(options) == len(directives)
        assert options.keys() == SBATCH.keys()
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
def test_a_job_that_is_told_to_stop_writes_its_checkpoint_before_its_script_ends(how: str, tmp_path: Path) -> None:
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
    # A time limit comes with TERM: the job is queued again. A move comes with USR1: the next stretch goes on.
    assert (tmp_path / "requeued").exists() == (how == "TERM")


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=2, unique=True))
def test_file_names_are_safe_and_different_and_tasks_stay_yaml(names: list[str]) -> None:
    jobs = tuple(job(name, hours={on("small", 1): 1.0}, deadline=2.0) for name in names)
    problem = with_command("python train.py", problem=replace(ONE_EVENT, jobs=jobs))
    placements = {name: at(node, "small", 1) for node, name in enumerate(names)}
    plan = simulate(problem, Script((placements,), []))
    tasks = skypilot_tasks(plan, problem)
    del tasks["schedule.txt"]
    assert len(tasks) == 2 * len(names)
    for name, text in tasks.items():
        assert name.removesuffix(".yaml").strip("-_.").replace("-", "").replace(".", "").replace("_", "").isalnum()
        assert yaml.safe_load(text)["num_nodes"] == 1
    scripts = slurm_scripts(plan, problem)
    del scripts["schedule.txt"]
    for text in scripts.values():
        assert all(line.startswith("#") for line in text.partition("setsid")[0].splitlines() if line)


def rendered(plan: Plan) -> str:
    console = Console(file=StringIO(), width=160)
    console.print(plan_table(plan))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_table_has_a_row_a_job_and_the_sums() -> None:
    text = rendered(PLAN)
    assert "node 0: 4 GPUs of large" in text
    assert "node 1: 1 GPUs of small" in text
    (footer,) = (line for line in text.splitlines() if "│ all " in line)
    assert footer.split() == ["│", "all", "│", "│", "│", "2.00", "│", "│", "│", "8.00", "│", "0.00", "│"]


def comparison(policy: str, restart: float, saved: Saving | None) -> Comparison:
    return Comparison(
        nodes=10,
        mean_gap_seconds=30.0,
        restart_seconds=restart,
        policy=policy,
        machine_usd=8.0,
        tardiness_usd=2.0,
        total_usd=10.0,
        saved=saved,
        deviation=0.021,
        longest_decision_seconds=0.5,
    )


def test_the_comparison_is_shown_by_what_a_move_costs() -> None:
    half = Saving(low=0.4, median=0.5, high=0.7, possible=0.8, share=0.6)
    rows = [comparison(name, restart, half) for restart in (0.0, 60.0) for name in ("edf", "milp")]
    (axes,) = comparison_figure(rows).axes
    assert axes.get_title() == "10 nodes, a job every 30 s"
    assert [container.get_label() for container in axes.containers] == ["edf", "milp"]
    (line, _, (bars,)) = axes.containers[1]
    assert line.get_xydata().tolist() == [[0.0, 50.0], [60.0, 50.0]]
    assert [segment.tolist() for segment in bars.get_segments()] == [
        [[0.0, 40.0], [0.0, 70.0]],
        [[60.0, 40.0], [60.0, 70.0]],
    ]
    console = Console(file=StringIO(), width=120)
    console.print(comparison_table([*rows, comparison("milp", 90.0, None)]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("50 (40 to 70)") == 4
    assert max(map(len, text.splitlines())) <= 120


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install lightning-predict\[planning\]"):
        comparison_figure([])
