"""Predictions as one list of numbers and labels, to compare between BLAS kernels: `python -m tests.blas_kernels`.

OpenBLAS chooses its kernels by the processor, and each adds in an order of its own. `OPENBLAS_CORETYPE` chooses them
instead, before NumPy is imported. Example::

    assert moved(predicted("HASWELL"), predicted("ZEN")) == []
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import lightning_predict as lp
from lightning_predict.assumptions import Assumptions
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import operation_spec
from lightning_predict.kernels.timing import explain, predict_operation_times
from lightning_predict.layout_search.ranking import best_layouts
from lightning_predict.layouts.strategy import parse_strategy
from lightning_predict.planning.files import times_of_trace
from lightning_predict.planning.problem import Job, Limits, MachineType, PlanningProblem
from lightning_predict.planning.queues import QUEUE_RULES
from lightning_predict.planning.simulator import simulate
from lightning_predict.reports.ranking import rank
from lightning_predict.reports.table_rows import folded_gpus
from lightning_predict.run.workload import Workload
from lightning_predict.step_predictor import StepPredictor
from tests.kept import example, numbers
from tests.kernels.test_kept import GPUS, SHAPES

ROOT: Final = Path(__file__).parents[1]
KERNELS: Final = ("HASWELL", "ZEN", "SANDYBRIDGE", "PRESCOTT", "SKYLAKEX")
"""Kernels of OpenBLAS with different orders of addition; the last needs AVX-512."""

FLOOR: Final = 1e-12  # Absolute difference that never counts: 0 is 3e-16 where a difference of equal times is taken

Found = Mapping[str, list[Any]]


def supports(kernel: str) -> bool:
    """Return whether this processor runs the products of a BLAS kernel; one without AVX-512 ends SKYLAKEX's process."""
    code = "import numpy; a = numpy.ones((300, 300), numpy.float32); assert (a @ a)[0, 0] == 300"
    return _run(kernel, "-c", code).returncode == 0


def predicted(kernel: str) -> Found:
    """Predict in a process of its own, with a BLAS kernel."""
    ran = _run(kernel, "-m", "tests.blas_kernels")
    assert ran.returncode == 0, ran.stderr
    answer: Found = json.loads(ran.stdout)
    return answer


def _run(kernel: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], env=variables, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )


def moved(before: Found, after: Found, *, tolerance: float) -> list[str]:
    """Describe the values that differ: numbers by more than the tolerance, labels at all."""
    assert before.keys() == after.keys()
    pairs = [
        (name, place, *pair)
        for name in before
        for place, pair in enumerate(zip(before[name], after[name], strict=True))
    ]
    return [
        f"{name} [{place}]: {one} -> {other}" for name, place, one, other in pairs if _differs(one, other, tolerance)
    ]


def _differs(one: object, other: object, tolerance: float) -> bool:
    if isinstance(one, bool | str | None) or isinstance(other, bool | str | None):
        return one != other
    assert isinstance(one, int | float)
    assert isinstance(other, int | float)
    return not math.isclose(one, other, rel_tol=tolerance, abs_tol=FLOOR)


def predictions() -> Found:
    """Predict kernels, steps on one and several GPUs, a search, advice and a plan: every field and every note."""
    return {name: part for make in (_kernels, _steps, _layouts, _changes, _plans) for name, part in make()}


Parts = Iterator[tuple[str, list[object]]]


def _kernels() -> Parts:
    """Time every operation; tell what decided of some."""
    models = kernel_models(tuple(gpu.name for gpu in GPUS))
    shapes = [shape for shape in SHAPES if operation_spec(shape.operation).units != "fabric"]
    times = predict_operation_times(shapes, GPUS, models)
    for column, shape in enumerate(shapes):
        ends = (times.interval.low, times.interval.middle, times.interval.high)
        yield (
            f"{column} {shape}",
            numbers([array[:, column] for array in (*ends, times.extrapolated_share, *times.shares.values())]),
        )
    for shape in shapes[::7]:
        for own in GPUS[::2]:
            found = explain(shape, own, models)
            yield f"{shape} explained on {own.name}", numbers((found.source, found.network_limits, found.limits))


NAMES: Final = ("T4", "L4", "A100-SXM-80GB", "RTX 4090", "H100-SXM-80GB", "H200", "V100-SXM2-16GB")


def _steps() -> Parts:
    """Predict runs on GPUs, two of them equal where the host limits a step, and rank them."""
    for name in ("gpt2", "resnet", "tabular", "vit", "dlrm"):
        for host in (None, "slow"):
            by_gpu = lp.predict(example(name), gpus=NAMES, iterations=1000, history=False, host=host)
            for gpu_name, prediction in by_gpu.items():
                yield f"{name} on {gpu_name}, {host} host", numbers(prediction)
            chosen = rank(by_gpu, deadline_hours=2)
            names = [
                None if one is None else one.gpu for one in (chosen.cheapest, chosen.fastest, chosen.within_deadline)
            ]
            rivals = (chosen.as_fast, chosen.perhaps_cheapest, chosen.perhaps_fastest)
            yield f"rank of {name}, {host} host", numbers([*names, rivals, [choice.gpu for choice in chosen.frontier]])
            folded = [(one, other.gpu) for one, other in folded_gpus(by_gpu).items()]
            yield f"folded rows of {name}, {host} host", numbers([folded, by_gpu.notes])


def _layouts() -> Parts:
    """Share steps among GPUs, and search for a strategy."""
    cases = {"gpt2": ("fsdp", "zero1,pipeline=2,virtual=3,tensor=2"), "resnet": ("ddp",)}
    for name, strategies in cases.items():
        for layout in map(layout_of, ("8xA100-SXM-80GB", "2x8xH100-SXM-80GB")):
            step = StepPredictor(example(name), [layout.gpu], Assumptions(), Workload(training_iterations=100))
            for words in strategies:
                yield f"{name} on {layout.name}, {words}", numbers(step.predict_layout(layout, parse_strategy(words)))
    ranked = best_layouts(example("tabular"), ["2x2xL4", "4xL4"], iterations=1000, count=12)
    for place, choice in enumerate(ranked):
        values = (choice.prediction.gpu, choice.strategy.name, choice.seconds_per_batch, choice.cost_usd)
        yield f"search, place {place}", numbers((*values, choice.prediction.iteration))


def _changes() -> Parts:
    """Say what to change first."""
    advice = lp.advise(example("resnet"), gpus=["T4", "H100-SXM-80GB"], iterations=1000)
    for change in advice.changes:
        yield change.name, numbers(change)
    yield "chain of changes", numbers(None if advice.chain is None else (advice.chain.names, advice.chain.gains))


def _plans() -> Parts:
    """Plan jobs by a queue, with the times of a predicted step."""
    path = ROOT / "examples" / "tabular.json.gz"
    machines = (
        MachineType(name="box", gpu="A10", num_gpus=4, usd_per_hour=3.0),
        MachineType(name="one", gpu="T4", num_gpus=1, usd_per_hour=0.5),
    )
    times = times_of_trace(path, 10_000_000, machines)
    seconds = {configuration: interval.middle for configuration, interval in times.seconds.items()}
    longest = max(seconds.values())
    jobs = tuple(Job(name=f"job {n}", seconds=seconds, deadline_seconds=longest * n / 3) for n in range(1, 5))
    problem = PlanningProblem(jobs=jobs, machines=machines, limits=Limits(nodes=2))
    for rule in QUEUE_RULES:
        for outcome in simulate(problem, rule).outcomes:
            yield f"{outcome.job} by {rule.name}", numbers(outcome)


if __name__ == "__main__":
    json.dump(predictions(), sys.stdout)
