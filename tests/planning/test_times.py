"""Where a job's times come from, and what several machines together are to a plan."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import lightning_predict as lp
from lightning_predict.base.errors import InfeasiblePlanError, InvalidArgumentError, PlanningFormatError
from lightning_predict.hardware.layouts import Layout
from lightning_predict.planning.exports import skypilot_tasks, slurm_scripts
from lightning_predict.planning.files import read_problem, read_situation
from lightning_predict.planning.milp import MilpPlanner
from lightning_predict.planning.objective import working_seconds
from lightning_predict.planning.policies import cheapest_plan
from lightning_predict.planning.problem import Job, PlanningProblem, PlanState
from lightning_predict.planning.queues import EARLIEST_DEADLINE_FIRST, SHARING_BASELINES
from lightning_predict.planning.simulator import simulate
from lightning_predict.record.trace import Trace
from lightning_predict.run.history import HistoryRecord, append_record, fingerprint_of
from tests.planning.example import HOUR, assert_allowed, at_start, job, on

BATCH = 16
BOX = {"name": "box", "gpu": "A10", "num_gpus": 4, "usd_per_hour": 3.0}
JOB = {"name": "a", "trace": "step.json", "iterations": 1000, "deadline_hours": 9}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a step of 16 samples whose tensors were followed, in a folder for files of jobs."""
    with torch.device("meta"):
        model, data = nn.Linear(2048, 2048), torch.empty(BATCH, 2048)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    path = tmp_path_factory.mktemp("jobs") / "step.json"
    lp.capture(step, samples_per_step=BATCH).save(str(path))
    return path


@pytest.fixture(autouse=True)
def no_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_PREDICT_HISTORY", str(tmp_path / "none.jsonl"))


def problem_of(trace: Path, *machines: object, job: Mapping[str, object] = JOB, **top: object) -> PlanningProblem:
    path = trace.with_name("jobs.yaml")
    path.write_text(yaml.safe_dump({"nodes": 4, "machines": list(machines) or [BOX], "jobs": [job], **top}))
    return read_problem(path)


def the_job(trace: Path, *machines: object, job: Mapping[str, object] = JOB, **top: object) -> Job:
    return problem_of(trace, *machines, job=job, **top).jobs[0]


def predicted(trace: Path, layout: str | Layout, iterations: int = 1000, **options: Any) -> float:
    predictions = lp.predict(Trace.load(str(trace)), [layout], iterations=iterations, history=False, **options)
    seconds = predictions.items_in_order[0].total_seconds
    assert seconds is not None
    return seconds


def test_a_strategy_of_the_file_or_of_a_job_is_how_its_gpus_share_the_work(trace: Path) -> None:
    plain, sharded = (predicted(trace, "4xA10", strategy=name) for name in ("ddp", "fsdp"))
    assert plain != pytest.approx(sharded, rel=1e-3)
    assert the_job(trace).seconds[on("box", 4)] == pytest.approx(plain)
    assert the_job(trace, strategy="fsdp").seconds[on("box", 4)] == pytest.approx(sharded)
    assert the_job(trace, job=JOB | {"strategy": "fsdp"}).seconds[on("box", 4)] == pytest.approx(sharded)
    # Parts of four divide no box of two, and a single GPU needs no strategy.
    two = BOX | {"num_gpus": 2}
    assert set(the_job(trace, two, job=JOB | {"strategy": "tensor=4"}).seconds) == {on("box", 1)}


def test_host_weights_and_gpus_of_the_file_are_taken(trace: Path) -> None:
    assert the_job(trace, host="slow").seconds[on("box", 1)] == pytest.approx(predicted(trace, "A10", host="slow"))
    assert the_job(trace, host="slow").seconds[on("box", 1)] > the_job(trace, host="fast").seconds[on("box", 1)]
    with pytest.raises(lp.LightningPredictError, match="nowhere"):
        problem_of(trace, weights="nowhere/at-all")
    trace.with_name("gpus.toml").write_text('[gpu.A10-slow]\nlike = "A10"\ndram_gb_per_s = 100\n')
    slow = BOX | {"name": "slow", "gpu": "A10-slow"}
    seconds = the_job(trace, BOX, slow, gpus_file="gpus.toml").seconds
    assert seconds[on("slow", 1)] > seconds[on("box", 1)]


def test_earlier_runs_correct_the_times_unless_the_file_says_no(trace: Path, tmp_path: Path) -> None:
    step = Trace.load(str(trace))
    seconds = 3 * predicted(trace, "A10", 1)
    append_record(
        HistoryRecord(
            fingerprint=fingerprint_of(step),
            gpu="A10",
            samples=BATCH,
            step_seconds=seconds,
            predicted_seconds=1.0,
            actual_seconds=1.0,
            date="2026-01-01",
        ),
        trace.with_name("ours.jsonl"),
    )
    assert the_job(trace, history="ours.jsonl").seconds[on("box", 1)] == pytest.approx(1000 * seconds)
    assert the_job(trace, history=False).seconds[on("box", 1)] == pytest.approx(1000 * seconds / 3)


def test_keep_batch_shares_the_samples_of_a_step(trace: Path) -> None:
    (said,) = the_job(trace).notes
    assert said.startswith("a: 1,000 steps of 16 samples on one GPU are 250 of 4 x 16 = 64 samples on 4 GPUs")
    kept = the_job(trace, job=JOB | {"keep_batch": True})
    assert kept.notes == ()
    with torch.device("meta"):
        model, data = nn.Linear(2048, 2048), torch.empty(BATCH // 4, 2048)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def quarter() -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    # 1,000 steps of 16 samples on four GPUs, each with 4: as a step of 4 samples on each that is there 4,000 times.
    alone = lp.predict(lp.capture(quarter, samples_per_step=4), ["4xA10"], iterations=4000, history=False)
    assert kept.seconds[on("box", 4)] == pytest.approx(alone["4xA10"].total_seconds, rel=1e-6)
    # Three GPUs cannot share 16 samples.
    three = BOX | {"name": "three", "num_gpus": 3}
    (gone,) = the_job(trace, three, job=JOB | {"keep_batch": True}).notes
    assert gone == "a: Left out: 3 GPUs of three; their number does not divide 16 samples, or the step does not fit."


def test_batches_and_runs_of_other_gpus_that_cannot_be_scaled_are_refused(trace: Path) -> None:
    replace(Trace.load(str(trace)), samples=None).save(str(trace.with_name("unknown.json")))
    with pytest.raises(PlanningFormatError, match=r"unknown.json cannot keep its batch .* how many samples"):
        problem_of(trace, job=JOB | {"trace": "unknown.json", "keep_batch": True})
    rows = [line for line in RUNS.splitlines() if "T4" not in line and ",A10,2," not in line and ",A10,4," not in line]
    trace.with_name("runs.csv").write_text("\n".join(rows))
    h100 = {"name": "h100", "gpu": "H100-SXM-80GB", "num_gpus": 1, "usd_per_hour": 3.0}
    assert set(the_job(trace, BOX, h100, job=OF_RUNS).seconds) == {on("box", 1)}
    with pytest.raises(InvalidArgumentError, match="a regression needs at least 3"):
        problem_of(trace, job=OF_RUNS | {"model": "other"})


def test_machines_together_serve_one_job(trace: Path) -> None:
    both = {"machine": "box", "together": 2}
    problem = problem_of(trace, BOX, both)
    two = problem.machines[1]
    assert (two.name, two.nodes, two.num_gpus, two.usd_per_hour) == ("2 of box", 2, 8, 6.0)
    assert problem.jobs[0].seconds[on("2 of box", 8)] == pytest.approx(predicted(trace, "2x4xA10"))
    # A cloud's stated network applies to an offer's machines.
    offered = the_job(trace, {"machine": "g5.12xlarge", "together": 2}).seconds[on("2 of g5.12xlarge", 8)]
    assert offered == pytest.approx(predicted(trace, "2xg5.12xlarge"))
    with pytest.raises(PlanningFormatError, match="together"):
        problem_of(trace, BOX, {"machine": "box", "together": 1})


RUNS = "model,gpu,num_gpus,batch_size,iterations,seconds\n" + "".join(
    f"net,{gpu},{count},{batch},100,{100 * (0.01 + batch * work + 0.002 * (count - 1) / count)}\n"
    for gpu, work in (("T4", 0.008), ("A10", 0.003))
    for count in (1, 2, 4)
    for batch in (8, 16, 32, 64)
)
"""Seconds that grow with the batch, by a rate of the GPU, and with what GPUs exchange."""

OF_RUNS = {"name": "a", "runs": "runs.csv", "batch_size": 16, "iterations": 1000, "deadline_hours": 9}


def test_past_runs_are_times_with_their_interval(trace: Path) -> None:
    trace.with_name("runs.csv").write_text(RUNS)
    found = the_job(trace, job=OF_RUNS)
    one, four = on("box", 1), on("box", 4)
    assert found.seconds[one] == pytest.approx(1000 * (0.01 + 16 * 0.003), rel=0.05)
    # Four GPUs of 16 samples do the same in a quarter of the steps, and it is said; sharing them, in as many.
    assert found.seconds[four] == pytest.approx(250 * (0.01 + 16 * 0.003 + 0.0015), rel=0.1)
    assert "250 of 4 x 16 = 64 samples on 4 GPUs" in found.notes[-1]
    kept = the_job(trace, job=OF_RUNS | {"keep_batch": True, "batch_size": 32})
    assert kept.seconds[four] == pytest.approx(1000 * (0.01 + 8 * 0.003 + 0.0015), rel=0.1)
    time = found.time(one)
    assert time.low < time.middle < time.high
    # Beyond the runs the interval is wider, and that they are beyond is said.
    both = the_job(trace, BOX, {"machine": "box", "together": 2}, job=OF_RUNS)
    eight = both.time(on("2 of box", 8))
    assert eight.high / eight.middle > time.high / time.middle
    assert any("number of GPUs 8 is 2 times the largest" in note for note in both.notes)
    assert any("several are taken as one" in note for note in both.notes)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (JOB | {"hours": {"box": {1: 1.0}}}, "must state either hours"),
        (JOB | {"batch_size": 4}, "has batch_size, which says nothing of times from trace"),
        (OF_RUNS | {"strategy": "fsdp"}, "has strategy, which says nothing of times from runs"),
    ],
)
def test_what_says_nothing_of_a_jobs_times_is_refused(trace: Path, broken: Mapping[str, object], words: str) -> None:
    with pytest.raises(PlanningFormatError, match=words):
        problem_of(trace, job=broken)


SPANS = """
nodes: 3
quotas: {box: 2}
machines:
  - {name: box, gpu: A10, num_gpus: 4, usd_per_hour: 3.0}
  - {machine: box, together: 2}
  - {name: one, gpu: T4, num_gpus: 1, usd_per_hour: 0.5}
jobs:
  - {name: a, hours: {2 of box: {8: 1.0}, one: {1: 30.0}}, deadline_hours: 2, tardiness_usd_per_hour: 50,
     command: srun python train.py, checkpoint: CHECKPOINT}
  - {name: b, hours: {box: {4: 1.0}, one: {1: 3.0}}, deadline_hours: 4, tardiness_usd_per_hour: 1,
     command: srun python train.py, checkpoint: CHECKPOINT}
"""


def spans(tmp_path: Path, checkpoint: str = "/shared") -> PlanningProblem:
    path = tmp_path / "jobs.yaml"
    path.write_text(SPANS.replace("CHECKPOINT", checkpoint))
    return read_problem(path)


@pytest.mark.parametrize("policy", [MilpPlanner(), EARLIEST_DEADLINE_FIRST, *SHARING_BASELINES])
def test_machines_rented_together_count_separately_in_limits(policy: Any, tmp_path: Path) -> None:
    problem = spans(tmp_path)
    placements = policy.decide(problem, at_start(problem)).placements
    assert_allowed(problem, placements)
    # a has both boxes of the quota, so that b has the one machine that is left.
    assert placements["a"].configuration == on("2 of box", 8)
    assert placements["b"].configuration == on("one", 1)
    assert cheapest_plan(problem).machine_usd == pytest.approx(6.0 + 3 * 0.5)
    few = replace(problem, limits=replace(problem.limits, nodes=1), jobs=problem.jobs[1:])
    assert simulate(few, policy).outcomes
    alone = replace(problem.jobs[0], seconds={on("2 of box", 8): HOUR}, spreads={})
    with pytest.raises(InfeasiblePlanError, match="more than the quotas or nodes=1 allow"):
        simulate(replace(few, jobs=(alone,)), policy)


def test_a_job_on_machines_together_is_started_and_stopped_on_all_of_them(tmp_path: Path) -> None:
    slurm, sky = spans(tmp_path), spans(tmp_path, "s3://ours/runs")
    plan = cheapest_plan(slurm)
    script = slurm_scripts(plan, slurm)["a.sh"]
    assert "#SBATCH --nodes=2\n" in script
    assert "#SBATCH --gres=gpu:a10:4\n" in script
    since = PlanState(
        now_seconds=0.0,
        remaining={"a": 0.5},
        running={"a": next(segment.placement for segment in plan.segments if segment.job == "a")},
        started={"a": on("2 of box", 8)},
    )
    tasks = skypilot_tasks(plan, sky)
    cluster = next(name for name in tasks if "2-of-box" in name)
    for name in (cluster, "a.yaml"):
        task = yaml.safe_load(tasks[name])
        assert (task["num_nodes"], task["resources"]["accelerators"]) == (2, "A10:4")
    elsewhere = replace(sky, jobs=(replace(sky.jobs[0], seconds={**sky.jobs[0].seconds, on("one", 1): 60.0}),))
    moved = skypilot_tasks(simulate(elsewhere, MilpPlanner(), since=since), elsewhere, since)
    assert f"sky exec --num-nodes 2 {cluster.removesuffix('.yaml')} 'pid=" in moved["schedule.txt"]


@pytest.mark.parametrize("hours", [2.2, 0.1, 49.0, 1 / 3])
def test_a_stated_time_is_exact(hours: float, tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    entry = {"name": "a", "hours": {"box": {1: hours}}, "deadline_hours": 99}
    path.write_text(yaml.safe_dump({"nodes": 1, "machines": [BOX], "jobs": [entry]}))
    (found,) = read_problem(path).jobs
    spread = found.spreads[on("box", 1)]
    assert (spread.low, spread.middle, spread.high) == (1.0, 1.0, 1.0)


def test_each_time_has_its_own_interval(tmp_path: Path) -> None:
    problem = spans(tmp_path)
    assert problem.jobs[0].time(on("one", 1)).high == pytest.approx(30 * HOUR)  # stated: in no doubt
    said = replace(problem.jobs[0], low_factor=0.5, high_factor=2.0, spreads={})
    assert said.time(on("one", 1)).low == pytest.approx(15 * HOUR)
    assert said.time(on("one", 1)).high == pytest.approx(60 * HOUR)


def test_measured_time_corrects_other_gpus_in_part(tmp_path: Path) -> None:
    problem = PlanningProblem(
        jobs=(job("a", hours={on("box", 4): 2.0, on("one", 1): 10.0}, deadline=9.0),),
        machines=spans(tmp_path).machines,
        limits=spans(tmp_path).limits,
    )
    (a,) = problem.jobs
    path = tmp_path / "state.yaml"
    path.write_text("now_hours: 1\njobs: {a: {done: 0.5, machine: box, num_gpus: 4, measured_hours: 3.0}}")
    seconds = working_seconds(a, problem, read_situation(path, problem))
    assert seconds[on("box", 4)] == pytest.approx(3 * HOUR)
    assert seconds[on("one", 1)] == pytest.approx(10 * HOUR * 1.5**0.24)  # half as long again on the box
