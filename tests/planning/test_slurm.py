"""Slurm itself reads every script that is written for it: Debian's sbatch, with the test's own controller.

apt install slurm-client slurmctld munge
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_predict.planning.exports import slurm_scripts
from lightning_predict.planning.problem import Limits
from lightning_predict.planning.queues import SHARING_BASELINES
from lightning_predict.planning.simulator import simulate
from tests.planning.example import HOUR, LARGE, SMALL, job, on
from tests.planning.test_outputs import FOLDERS, MOVED, PLAN, with_command
from tests.planning.test_simulator import ONE_EVENT, Script, at

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
"""Machines that a cloud would start, so that scripts can be placed on them though none is there."""


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
    text = CONFIGURATION.format(port=port, user=getpass.getuser(), folder=folder)
    (folder / "slurm.conf").write_text(text)
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


def sbatch(path: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sbatch", "--test-only", path.name],
        env=environment,
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )


def three_sharing() -> dict[str, str]:
    """Jobs that share machines, with names that a shell would read otherwise."""
    names = ("one", "two words", "$(touch x); `id`")
    jobs = tuple(job(name, hours={on("large", 2): 1.0, on("small", 1): 3.0}, deadline=2.0) for name in names)
    problem = replace(ONE_EVENT, jobs=jobs, machines=(SMALL, LARGE), limits=Limits(nodes=2))
    problem = with_command("srun python train.py --name 'a b'", "/shared/two words", problem)
    return slurm_scripts(simulate(problem, SHARING_BASELINES[1]), problem)


def hosted() -> dict[str, str]:
    problem = replace(FOLDERS, machines=(SMALL, replace(LARGE, hosts=("dgx1",))), restart_seconds=60.0)
    return slurm_scripts(MOVED, problem)


def long_run() -> dict[str, str]:
    """Give one of many days, whose limit has hours beyond two digits."""
    first = replace(FOLDERS.jobs[0], seconds={on("large", 4): 1000 * HOUR}, high_factor=1.5)
    problem = replace(FOLDERS, jobs=(first,))
    return slurm_scripts(simulate(problem, Script(({"a": at(0, "large", 4)},), [])), problem)


def test_sbatch_places_every_script_that_is_exported(slurm: dict[str, str], tmp_path: Path) -> None:
    unlimited = slurm_scripts(PLAN, with_command("python train.py"))
    for number, files in enumerate((three_sharing(), hosted(), long_run(), unlimited)):
        folder = tmp_path / str(number)
        folder.mkdir()
        scripts = {name: text for name, text in files.items() if name.endswith(".sh")}
        assert scripts
        for name, text in scripts.items():
            (folder / name).write_text(text)
            ran = sbatch(folder / name, slurm)
            assert ran.returncode == 0, f"{ran.stderr}\n{text}"
            assert "to start at" in ran.stderr
            if "--nodelist=dgx1" in text:
                assert "on nodes dgx1 " in ran.stderr
            if f"gpu:{LARGE.gpu.lower()}" in text:
                assert "on nodes dgx" in ran.stderr


@pytest.mark.parametrize(
    ("directive", "broken"),
    [("--signal=B:TERM@300", "--signal=B:TERM@soon"), ("--nodes=1", "--nodes=one"), (":a10:4", ":a10:5")],
)
def test_sbatch_refuses_what_is_wrong_in_such_a_script(
    slurm: dict[str, str], tmp_path: Path, directive: str, broken: str
) -> None:
    text = hosted()["a-2.sh"]
    assert directive in text
    (tmp_path / "a.sh").write_text(text.replace(directive, broken))
    assert sbatch(tmp_path / "a.sh", slurm).returncode != 0
