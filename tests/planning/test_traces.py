from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import lightning_predict as lp
from lightning_predict.planning.files import read_problem, times_of_trace
from lightning_predict.planning.problem import Configuration, MachineType
from lightning_predict.record.trace import Operation, Parameter, TensorInfo, Trace

MACHINES = (
    MachineType(name="one", gpu="T4", num_gpus=1, usd_per_hour=0.5),
    MachineType(name="four", gpu="T4", num_gpus=4, usd_per_hour=2.0),
    MachineType(name="box", gpu="A10", num_gpus=2, usd_per_hour=3.0),
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    matrix = TensorInfo((1024, 1024), "float32")
    product = Operation(name="aten::mm", phase="forward", inputs=(matrix, matrix))
    path = tmp_path / "run.json"
    Trace(operations=(product,), device="cpu", recorder="dispatch").save(str(path))
    return path


def test_a_trace_without_parameters_has_times_on_one_gpu_of_each_machine(trace: Path) -> None:
    times = times_of_trace(trace, 1000, MACHINES).seconds
    predicted = lp.predict(Trace.load(str(trace)), gpus=["T4", "A10"])
    assert {item: time.middle for item, time in times.items()} == {
        Configuration(machine="one", num_gpus=1): pytest.approx(1000 * predicted["T4"].iteration_seconds),
        Configuration(machine="four", num_gpus=1): pytest.approx(1000 * predicted["T4"].iteration_seconds),
        Configuration(machine="box", num_gpus=1): pytest.approx(1000 * predicted["A10"].iteration_seconds),
    }


def test_several_gpus_of_a_machine_do_the_same_samples_in_fewer_steps(trace: Path, tmp_path: Path) -> None:
    whole = replace(Trace.load(str(trace)), parameters=(Parameter(name="weight", shape=(1024, 1024), dtype="float32"),))
    path = tmp_path / "whole.json"
    whole.save(str(path))
    times = times_of_trace(path, 1000, MACHINES).seconds
    assert sorted((time.machine, time.num_gpus) for time in times) == [
        ("box", 1),
        ("box", 2),
        ("four", 1),
        ("four", 2),
        ("four", 4),
        ("one", 1),
    ]
    four = lp.predict(whole, gpus=["4xT4"], iterations=1000)["4xT4"]
    assert four.iterations == 250
    assert times[Configuration(machine="four", num_gpus=4)] == four.total


def test_a_file_of_jobs_can_name_traces(trace: Path, tmp_path: Path) -> None:
    document = {
        "nodes": 1,
        "machines": [{"name": "one", "gpu": "T4", "num_gpus": 1, "usd_per_hour": 0.5}],
        "jobs": [{"name": "a", "trace": trace.name, "iterations": 1000, "deadline_hours": 1}],
    }
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    problem = read_problem(path)
    (job,) = problem.jobs
    ((place, time),) = times_of_trace(trace, 1000, MACHINES[:1]).seconds.items()
    assert job.seconds == {place: time.middle}
    # How far the prediction may be off is the time's interval, and deadlines are to be kept within it.
    assert job.time(place).low == pytest.approx(time.low)
    assert job.time(place).high == pytest.approx(time.high)
    assert time.high > time.middle
    assert problem.probability == 0.9
