"""Charts, pages, exports and tables of one plan."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from lightning_predict.errors import MissingDependencyError
from lightning_predict.planning.exports import plan_json, skypilot_tasks, slurm_scripts
from lightning_predict.planning.milp import MilpPlanner
from lightning_predict.planning.pictures import (
    chart_of,
    comparison_figure,
    comparison_table,
    gantt_page,
    plan_table,
)
from lightning_predict.planning.problem import Plan, Problem, Situation
from lightning_predict.planning.simulator import simulate
from lightning_predict.planning.study import Comparison, Saving, random_problem
from tests.planning.example import HOUR, LARGE, TWO_JOBS, job, on
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


def with_command(command: str) -> Problem:
    return replace(TWO_JOBS, jobs=tuple(replace(item, command=command) for item in TWO_JOBS.jobs))


def test_a_task_rents_a_machine_and_one_starts_each_job_on_its_part_of_it() -> None:
    shared = simulate(
        replace(ONE_EVENT, jobs=tuple(job(name, hours={on("large", 2): 1.0}, deadline=9.0) for name in "ab")),
        Script(({"a": at(0, "large", 2), "b": at(0, "large", 2)},), []),
    )
    tasks = skypilot_tasks(shared, with_command("python train.py"))
    assert list(tasks) == ["node-0.yaml", "a.yaml", "b.yaml", "schedule.txt"]
    assert yaml.safe_load(tasks["node-0.yaml"]) == {
        "name": "node-0",
        "resources": {"accelerators": "A10:4"},
        "num_nodes": 1,
    }
    assert yaml.safe_load(tasks["a.yaml"]) == {
        "name": "a",
        "resources": {"accelerators": "A10:2"},
        "num_nodes": 1,
        "run": "python train.py\n",
    }
    assert tasks["schedule.txt"].splitlines() == [
        "   0.000 h  sky launch --yes --cluster node-0 node-0.yaml",
        "   0.000 h  sky exec --detach-run node-0 a.yaml",
        "   0.000 h  sky exec --detach-run node-0 b.yaml",
        "   1.000 h  sky down --yes node-0",
    ]


def test_a_task_spells_gpu_and_cloud_as_skypilot_does() -> None:
    machines = tuple(replace(one, gpu="A100-SXM-80GB", provider="Lambda") for one in TWO_JOBS.machines)
    tasks = skypilot_tasks(PLAN, replace(TWO_JOBS, machines=machines))
    assert yaml.safe_load(tasks["node-0.yaml"])["resources"] == {
        "cloud": "lambda",
        "instance_type": "large",
        "accelerators": "A100-80GB:4",
    }
    assert yaml.safe_load(tasks["a.yaml"])["resources"] == {"accelerators": "A100-80GB:4"}


def test_a_spot_machine_is_rented_as_one() -> None:
    large = replace(
        LARGE, name="cheap", instance="g5.12xlarge", gpu="A10G", provider="AWS", interruptions_per_hour=0.05
    )
    jobs = (job("a", hours={on("cheap", 4): 1.0}, deadline=2.0),)
    problem = replace(ONE_EVENT, jobs=jobs, machines=(large,), checkpoint_seconds=600.0)
    files = skypilot_tasks(simulate(problem, Script(({"a": at(0, "cheap", 4)},), [])), problem)
    assert yaml.safe_load(files["node-0.yaml"])["resources"] == {
        "cloud": "aws",
        "instance_type": "g5.12xlarge",
        "accelerators": "A10G:4",
        "use_spot": True,
    }


def test_a_job_that_moves_has_a_file_a_stay() -> None:
    assert list(skypilot_tasks(MOVED, TWO_JOBS)) == [
        *("node-0.yaml", "node-1.yaml", "node-0-2.yaml"),
        *("a.yaml", "b.yaml", "a-2.yaml", "schedule.txt"),
    ]
    assert skypilot_tasks(MOVED, TWO_JOBS)["schedule.txt"].splitlines()[4:8] == [
        "   1.000 h  # a leaves node-0: sky queue node-0, sky cancel",
        "   1.000 h  sky down --yes node-0",
        "   1.000 h  sky launch --yes --cluster node-0 node-0-2.yaml",
        "   1.000 h  sky exec --detach-run node-0 a-2.yaml",
    ]
    assert list(slurm_scripts(MOVED, TWO_JOBS)) == ["a.sh", "b.sh", "a-2.sh"]


def test_what_runs_already_is_not_started_again() -> None:
    here = at(0, "large", 4)
    since = Situation(
        now_seconds=HOUR / 2, remaining={"a": 0.5, "b": 1.0}, running={"a": here}, started={"a": here.configuration}
    )
    plan = simulate(ONE_EVENT, Script(({"a": here, "b": at(1, "small", 1)},), []), since=since)
    tasks = skypilot_tasks(plan, TWO_JOBS, since)
    assert list(tasks) == ["node-1.yaml", "b.yaml", "schedule.txt"]
    assert tasks["schedule.txt"].splitlines() == [
        "   0.000 h  sky launch --yes --cluster node-1 node-1.yaml",
        "   0.000 h  sky exec --detach-run node-1 b.yaml",
        "   0.500 h  sky down --yes node-0",
        "   2.000 h  sky down --yes node-1",
    ]
    scripts = slurm_scripts(plan, TWO_JOBS, since)
    assert list(scripts) == ["b.sh"]
    assert "#SBATCH --begin=now+0seconds\n" in scripts["b.sh"]


def test_a_node_that_becomes_another_machine_at_once_is_rented_again() -> None:
    here = at(0, "small", 1)
    since = Situation(now_seconds=0.0, remaining={"a": 0.5}, running={"a": here}, started={"a": here.configuration})
    plan = simulate(ONE_EVENT, Script(({"a": at(0, "large", 4)},), []), since=since)
    assert skypilot_tasks(plan, TWO_JOBS, since)["schedule.txt"].splitlines()[:3] == [
        "   0.000 h  sky down --yes node-0",
        "   0.000 h  sky launch --yes --cluster node-0 node-0.yaml",
        "   0.000 h  sky exec --detach-run node-0 a.yaml",
    ]


def test_a_slurm_script_has_gpus_begin_and_limit() -> None:
    script = slurm_scripts(MOVED, with_command("srun python train.py"))["a-2.sh"]
    # From 1 h to 1.75 h: three quarters of the work are left, on large a whole run takes 1 h. A tenth more is 49.5 min,
    # rounded up to a second.
    assert "#SBATCH --gres=gpu:a10:4\n" in script
    assert "#SBATCH --begin=now+3600seconds\n" in script
    assert re.search(r"#SBATCH --time=00:49:3[01]\n", script)
    assert script.startswith("#!/bin/bash\n")
    assert script.endswith("srun python train.py\n")


SBATCH = {
    "job-name": r"[A-Za-z0-9._-]+",
    "nodes": r"[1-9]\d*",
    "gres": r"gpu:[a-z0-9._-]+:[1-9]\d*",
    "time": r"\d{2,}:[0-5]\d:[0-5]\d",
    "begin": r"now\+\d+seconds",
}
"""The directives that scripts use, as the manual of sbatch documents their values; sbatch 22.05 (`--test-only`) accepts
such scripts and refuses `--time=1h`, `--begin=soonish` and `--gres=gpu:a10:four`."""


@pytest.mark.parametrize("name", ["a", "two words", "$(touch x); `id`", 'it\'s "quoted" & more', "größer\nzwei"])
@pytest.mark.parametrize("command", [None, "srun python train.py --name 'a b'"])
def test_every_slurm_script_is_one_that_bash_and_sbatch_read(name: str, command: str | None) -> None:
    first = replace(TWO_JOBS.jobs[0], name=name, command=command)
    problem = replace(ONE_EVENT, jobs=(first,), period_seconds=HOUR)
    plan = simulate(problem, Script(({name: at(0, "small", 1)}, {name: at(0, "large", 4)}), []))
    scripts = slurm_scripts(plan, problem)
    assert len(scripts) == 2
    for script in scripts.values():
        lines = script.splitlines()
        directives = [line for line in lines if line.startswith("#SBATCH")]
        assert lines[0] == "#!/bin/bash"
        assert lines[1 : 1 + len(directives)] == directives  # sbatch stops reading them at the first command
        found = (re.fullmatch(r"#SBATCH --([a-z-]+)=(\S+)", line) for line in directives)
        options = {match[1]: match[2] for match in found if match is not None}
        assert len(options) == len(directives)
        assert options.keys() == SBATCH.keys()
        assert all(re.fullmatch(SBATCH[option], value) for option, value in options.items())
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_without_a_command_the_script_says_what_is_missing_and_fails() -> None:
    last = slurm_scripts(PLAN, TWO_JOBS)["a.sh"].splitlines()[-1]
    assert shlex.split(last)[:2] == ["echo", "Put the command that starts the training of a here.;"]
    assert last.endswith("exit 1")


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=2, unique=True))
def test_file_names_are_safe_and_different_and_tasks_stay_yaml(names: list[str]) -> None:
    jobs = tuple(job(name, hours={on("small", 1): 1.0}, deadline=2.0) for name in names)
    problem = replace(ONE_EVENT, jobs=jobs)
    placements = {name: at(node, "small", 1) for node, name in enumerate(names)}
    plan = simulate(problem, Script((placements,), []))
    tasks = skypilot_tasks(plan, problem)
    del tasks["schedule.txt"]
    assert len(tasks) == 2 * len(names)
    for name, text in tasks.items():
        assert name.removesuffix(".yaml").strip("-_.").replace("-", "").replace(".", "").replace("_", "").isalnum()
        assert yaml.safe_load(text)["num_nodes"] == 1
    for text in slurm_scripts(plan, problem).values():
        assert all(line.startswith("#") for line in text.splitlines()[:-2])


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
    half = Saving(low=0.4, median=0.5, high=0.7, possible=0.8)
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
