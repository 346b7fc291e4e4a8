"""dstack and Kueue: the engines' own schemas read what is written for them.

python -m venv engines && engines/bin/pip install dstack kubernetes-validate
LIGHTNING_PREDICT_ENGINES=engines/bin/python pytest tests/planning/test_cluster_exports.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from lightning_predict.base.errors import PlanningFormatError
from lightning_predict.planning.cluster_exports import dstack_tasks, kueue_jobs
from lightning_predict.planning.plan_folder import write_plan
from lightning_predict.planning.problem import Limits, MachineType, PlanningProblem
from lightning_predict.planning.queues import SHARING_BASELINES
from lightning_predict.planning.simulator import simulate
from tests.planning.example import TWO_JOBS, cloud_machines, job, on, read_by
from tests.planning.test_outputs import MOVED, PLAN, with_command

LOAD = """
import sys
import yaml
import kubernetes_validate
from dstack._internal.core.models.configurations import parse_run_configuration
for path in sys.argv[1:]:
    document = yaml.safe_load(open(path))
    if path.endswith(".kueue.yml"):
        kubernetes_validate.validate(document, "1.30", strict=True)
        print(document["metadata"]["name"])
    else:
        task = parse_run_configuration(document)
        print(task.name, task.resources.gpu.name, task.resources.gpu.count.min)
"""


def rented() -> PlanningProblem:
    machines = (*cloud_machines(), MachineType(name="box", gpu="RTX-4090", num_gpus=2, usd_per_hour=1.0))
    jobs = tuple(job(f"Run {one.name}!", hours={on(one.name, 1): 1.0}, deadline=9.0) for one in machines)
    command = "python train.py --name 'a: b'"
    jobs = tuple(
        replace(one, command=command, checkpoint="s3://our-bucket/runs", image="pytorch/pytorch") for one in jobs
    )
    problem = replace(TWO_JOBS, jobs=jobs, machines=machines, limits=Limits(nodes=len(machines)))
    return replace(problem, checkpoint_seconds=600.0)


@pytest.mark.skipif("LIGHTNING_PREDICT_ENGINES" not in os.environ, reason="needs a Python that has dstack")
def test_the_engines_read_every_file(tmp_path: Path) -> None:
    problem = rented()
    plan = simulate(problem, SHARING_BASELINES[0])
    files = dstack_tasks(plan, problem) | kueue_jobs(plan, problem)
    lines = read_by(os.environ["LIGHTNING_PREDICT_ENGINES"], LOAD, files, tmp_path)
    assert len(lines) == 2 * len(problem.jobs)
    assert "run-gpu-1x-a100-sxm4 ['A100'] 1" in lines


def test_a_task_asks_for_the_gpus_and_the_price_of_its_machine() -> None:
    problem = rented()
    files = dstack_tasks(simulate(problem, SHARING_BASELINES[0]), problem)
    spot = yaml.safe_load(files["run-spot.dstack.yml"])
    assert spot["spot_policy"] == "spot"
    assert spot["retry"] == {"on_events": ["no-capacity", "interruption"]}
    assert (spot["backends"], spot["instance_types"]) == (["aws"], ["g5.12xlarge"])
    assert spot["env"]["CHECKPOINTS"] == "s3://our-bucket/runs"
    assert spot["commands"] == ["python train.py --name 'a: b'"]
    a100 = yaml.safe_load(files["run-gpu-1x-a100-sxm4.dstack.yml"])
    assert a100["resources"]["gpu"] == {"name": "A100", "memory": "36GB..", "count": 1}  # 0.9 x 40 GiB
    box = yaml.safe_load(files["run-box.dstack.yml"])  # the user's own machine has no backend
    assert "backends" not in box
    assert box["resources"]["gpu"]["name"] == "RTX4090"
    assert "dstack apply --yes --detach --file run-spot.dstack.yml" in files["schedule.txt"]


def test_kueue_admits_a_suspended_job() -> None:
    problem = rented()
    files = kueue_jobs(simulate(problem, SHARING_BASELINES[0]), problem)
    job = yaml.safe_load(files["run-g5-12xlarge.kueue.yml"])
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "lightning-predict"}
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "g5.12xlarge"}
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert pod["containers"][0]["image"] == "pytorch/pytorch"


@pytest.mark.parametrize(("write", "target"), [(dstack_tasks, "dstack"), (kueue_jobs, "Kueue")])
def test_a_plan_that_moves_a_job_is_refused(write: Callable[..., object], target: str) -> None:
    words = rf"Nothing is written for {target}: .* a would move\. Plan without"
    with pytest.raises(PlanningFormatError, match=words):
        write(MOVED, with_command("python train.py", "s3://ours/runs"))


def test_kueue_needs_an_image_and_one_machine() -> None:
    problem = rented()
    plan = simulate(problem, SHARING_BASELINES[0])
    with pytest.raises(PlanningFormatError, match=r"no container image for .*Add image: to each"):
        kueue_jobs(plan, replace(problem, jobs=tuple(replace(one, image=None) for one in problem.jobs)))
    machines = tuple(replace(one, nodes=2, num_gpus=2 * one.num_gpus) for one in problem.machines)
    with pytest.raises(PlanningFormatError, match="would need several machines in one job"):
        kueue_jobs(plan, replace(problem, machines=machines))


def test_hostile_text_stays_a_value(tmp_path: Path) -> None:
    """Newlines in a name, a command or an image add no keys to a file and no lines to the schedule."""
    evil = "x\nsetup: rm -rf /\n# "
    jobs = tuple(
        replace(one, command=f"echo 1\n{evil}", image=evil, checkpoint=f"s3://b/{evil}") for one in TWO_JOBS.jobs
    )
    machines = tuple(replace(one, provider=evil, instance=evil) for one in TWO_JOBS.machines)
    problem = replace(TWO_JOBS, jobs=jobs, machines=machines)
    write_plan(PLAN, problem, tmp_path)
    for path in (*(tmp_path / "dstack").glob("*.yml"), *(tmp_path / "kueue").glob("*.yml")):
        assert "setup" not in yaml.safe_load(path.read_text("utf-8"))
    for engine in ("dstack", "kueue"):
        lines = (tmp_path / engine / "schedule.txt").read_text("utf-8").splitlines()
        assert len(lines) == len(PLAN.segments)
