"""SkyPilot itself reads the written files, in an environment of its own.

python -m venv sky && sky/bin/pip install skypilot
LIGHTNING_PREDICT_SKYPILOT=sky/bin/python pytest tests/planning/test_skypilot.py
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_predict.planning.exports import skypilot_tasks
from lightning_predict.planning.problem import Limits, Placement
from lightning_predict.planning.queues import SHARING_BASELINES
from lightning_predict.planning.simulator import simulate
from lightning_predict.reports.sky import machine_to_rent, sky_task
from tests.planning.example import HOUR, TWO_JOBS, cloud_machines, job, on, read_by
from tests.planning.test_simulator import Script

LOAD = """
import sys
import sky
import yaml
from sky.utils import common_utils, schemas
for path in sys.argv[1:]:
    document = yaml.safe_load(open(path))
    common_utils.validate_schema(document, schemas.get_task_schema(), path)
    common_utils.validate_schema(document["resources"], schemas.get_resources_schema(), path)
    (resources,) = sky.Task.from_yaml(path).resources
    print(resources.cloud, resources.instance_type, resources.accelerators, resources.use_spot)
"""


@pytest.mark.skipif("LIGHTNING_PREDICT_SKYPILOT" not in os.environ, reason="needs a Python that has SkyPilot")
def test_skypilot_reads_every_task(tmp_path: Path) -> None:
    machines = cloud_machines()
    jobs = tuple(job(machine.name, hours={on(machine.name, 1): 1.0}, deadline=9.0) for machine in machines)
    jobs = tuple(replace(one, command="python train.py", checkpoint="s3://our-bucket/runs") for one in jobs)
    problem = replace(TWO_JOBS, jobs=jobs, machines=machines, limits=Limits(nodes=len(machines)))
    problem = replace(problem, checkpoint_seconds=600.0)
    files = skypilot_tasks(simulate(problem, SHARING_BASELINES[0]), problem)
    files |= {"predicted.yaml": sky_task(machine_to_rent("L4"))}
    # A job that moves after half an hour: two stretches, and its bucket on both machines.
    first, second = (on(machine.name, 1) for machine in machines[:2])
    moved = replace(jobs[0], name="moved", seconds={first: HOUR, second: HOUR})
    other = replace(problem, jobs=(moved,), period_seconds=HOUR / 2)
    moves = [{"moved": Placement(node=number, configuration=place)} for number, place in enumerate((first, second))]
    files |= {
        f"moved-{name}": text for name, text in skypilot_tasks(simulate(other, Script(tuple(moves), [])), other).items()
    }
    assert sum("file_mounts" in text for text in files.values()) >= len(machines) + 2
    lines = read_by(os.environ["LIGHTNING_PREDICT_SKYPILOT"], LOAD, files, tmp_path)
    assert len(lines) == 2 * len(machines) + 1 + 4
    for is_spot in (False, True):
        assert any(f"AWS g5.12xlarge {{'A10G': 4}} {is_spot}" in line for line in lines)
