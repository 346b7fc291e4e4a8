"""A published stream of jobs as the workload of a study."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.planning.streams import read_stream, stream_machines
from benchmarks.planning.study import read_study, run_study
from lightning_predict.base.errors import PlanningFormatError
from tests.planning.example import HOUR, on

HEAD = "source,gpu,gpu_as_named,consolidated,n_gpus,model,batch_size,steps_per_second,step_ms"
RATES = {("V100-SXM2-16GB", 1): 8.0, ("V100-SXM2-16GB", 2): 12.0, ("P100-PCIe-16GB", 1): 4.0, ("K80", 1): 1.0}
JOBS = (
    ("ResNet-18 (batch size 64)", 28800, 1, 0),
    ("ResNet-18 (batch size 64)", 14400, 2, 600),
    ("CycleGAN", 100, 1, 700),
    ("ResNet-18 (batch size 64)", 7200, 1, 1200),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a table whose real rates are half as high again as the predicted ones, and a stream of four jobs."""
    rows = [
        f"{source},{gpu},x,{together},{count},ResNet-18,64,{rate * factor},1"
        for source, factor in (("simulation", 1.0), ("physical", 1.5))
        for (gpu, count), rate in RATES.items()
        for together in (0, 1)
    ]
    (tmp_path / "gavel.csv").write_text("\n".join([HEAD, *rows]))
    (tmp_path / "gavel_jobs").mkdir()
    lines = [
        "\t".join(map(str, (name, "python", "a", "-n", 1, steps, count, 1, -1.0, at)))
        for name, steps, count, at in JOBS
    ]
    (tmp_path / "gavel_jobs" / "week.trace").write_text("\n".join(lines))
    return tmp_path


def test_jobs_come_when_and_as_large_as_they_did(folder: Path) -> None:
    stream = read_stream(folder, "week")
    assert [(one.steps, one.num_gpus, one.release_seconds) for one in stream.jobs] == [
        (28800, 1, 0.0),
        (14400, 2, 600.0),
        (7200, 1, 1200.0),
    ]
    assert (stream.left_out, stream.mean_gap_seconds) == (1, 600.0)
    problem, actual = stream.instance(nodes=3, seed=2, restart_seconds=60.0)
    first, second, _ = problem.jobs
    # 28,800 steps at 8 a second are an hour; really at 12 a second.
    assert first.seconds[on("p3.2xlarge", 1)] == pytest.approx(HOUR)
    assert actual[first.name][on("p3.2xlarge", 1)] == pytest.approx(HOUR / 1.5)
    assert first.seconds[on("NC6", 1)] == pytest.approx(8 * HOUR)
    # Two GPUs have no row but on the V100, whose machine of one is too small.
    assert set(second.seconds) == {on("p3.8xlarge", 2)}
    assert 1.5 * HOUR <= first.deadline_seconds <= 4 * HOUR
    assert {machine.num_gpus for machine in stream_machines()} == {1, 2, 4}


def test_a_study_plays_a_stream(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("{setting: stream, stream: week, nodes: [2], seeds: [2, 3], policies: [edf, milp]}")
    study = read_study(path, streams=folder)
    assert study.mean_gap_seconds == (600.0,)
    runs = run_study(study)
    assert len(runs) == 4
    assert all(0 < run.least_usd <= run.total_usd for run in runs)
    # Half as fast again as predicted: cheaper than planned.
    assert all(run.deviation < 0 for run in runs)


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("week", "ResNet-18\t1\t2", "week.trace, line 1 has 3 cells; expected the 10 of such a file"),
        ("week", "CycleGAN\t\t\t\t\t1\t1\t\t\t0", "has no row of a job of week.trace"),
        ("month", "", r"Streams there: \['week'\]"),
    ],
)
def test_what_is_no_stream_is_refused(folder: Path, name: str, line: str, words: str) -> None:
    (folder / "gavel_jobs" / "week.trace").write_text(line)
    with pytest.raises(PlanningFormatError, match=words):
        read_stream(folder, name)


def test_a_stream_needs_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("{setting: stream, stream: week}")
    with pytest.raises(PlanningFormatError, match="--streams FOLDER"):
        read_study(path)
