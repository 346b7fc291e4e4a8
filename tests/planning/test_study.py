import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.planning.study import (
    Instance,
    Saving,
    Study,
    StudyRun,
    compare,
    job_seconds,
    run_once,
    run_study,
    study_machines,
)
from lightning_predict.planning.objective import least_usd
from lightning_predict.planning.problem import Configuration
from tests.planning.example import HOUR, TWO_JOBS, job, on

QUICK = Study(nodes=(1,), mean_gap_seconds=(60.0,), seeds=(0, 1), policies=("fifo", "edf", "ps", "milp"))
FIRST = Instance(nodes=1, mean_gap_seconds=60.0, restart_seconds=60.0, seed=0)


def without_times(runs: tuple[StudyRun, ...]) -> list[StudyRun]:
    return [replace(run, longest_decision_seconds=0.0) for run in runs]


def test_the_number_of_workers_does_not_matter() -> None:
    told: list[StudyRun] = []
    one = run_study(QUICK, workers=1, on_run=told.append)
    two = run_study(QUICK, workers=2)
    assert without_times(one) == without_times(two)
    assert len(told) == len(one) == 8


def test_a_dask_cluster_gives_the_same_numbers() -> None:
    path = Path(__file__).parents[2] / "examples" / "study_on_dask.py"
    specification = importlib.util.spec_from_file_location("study_on_dask", path)
    assert specification is not None
    assert specification.loader is not None
    example: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    assert without_times(example.main(QUICK)) == without_times(run_study(QUICK))


def test_the_planner_saves_against_the_best_rule() -> None:
    # The fixed setting has 10 nodes and takes minutes; this one has 2.
    study = Study(nodes=(2,), mean_gap_seconds=(150.0,), seeds=(0, 1, 2), policies=("fifo", "edf", "ps", "milp"))
    runs = run_study(study)
    (planner,) = (item for item in compare(runs) if item.policy == "milp")
    assert planner.saved is not None
    assert 0.45 <= planner.saved.median < planner.saved.possible < 1
    assert planner.deviation <= 0.05
    assert all(run.least_usd < run.total_usd for run in runs)


def study_run(policy: str, seed: int, total: float, predicted: float = 10.0) -> StudyRun:
    return StudyRun(
        instance=replace(FIRST, seed=seed),
        policy=policy,
        predicted_usd=predicted,
        least_usd=2.0,
        machine_usd=total - 1,
        tardiness_usd=1.0,
        late_jobs=1,
        decisions=3,
        longest_decision_seconds=float(seed),
    )


def test_medians_and_savings_by_hand() -> None:
    runs = [study_run("fifo", seed, total) for seed, total in enumerate((10.0, 20.0, 30.0))]
    runs += [study_run("edf", seed, total) for seed, total in enumerate((12.0, 16.0, 40.0))]
    runs += [study_run("milp", seed, total) for seed, total in enumerate((5.0, 12.0, 12.0))]
    fifo, _, milp = compare(runs)
    # The best rule costs 10, 16 and 30: savings of 0.5, 0.25 and 0.6, 0.5 is the middle.
    # A plan of 2 would save 0.8, 1 − 2 / 16 and 1 − 2 / 30.
    # Of that, 0.5 / 0.8, 0.25 / 0.875 and 0.6 / 0.933 are saved: 62.5 %, 28.6 % and 64.3 %.
    assert milp.saved == Saving(low=0.25, median=0.5, high=0.6, possible=0.875, share=0.5 / 0.8)
    assert (milp.total_usd, milp.machine_usd, milp.tardiness_usd) == (12.0, 11.0, 1.0)
    assert milp.deviation == pytest.approx(0.2)  # |5 − 10| / 10, 0.2 and 0.2
    assert fifo.saved is not None
    assert (fifo.saved.low, fifo.saved.median) == (-0.25, 0.0)  # 0, 1 − 20 / 16 and 0
    assert milp.longest_decision_seconds == 2.0
    assert compare(runs[-3:])[0].saved is None


def test_times_and_bounds_of_a_study_by_hand() -> None:
    seconds = job_seconds("JJ5", study_machines())
    # ResNet-50 on one GTX 1080 Ti: 2032 steps of 64 in an epoch, 3 epochs; 64 × 6 × 4.1e9 FLOPs at 0.5 × 11.34e12.
    assert seconds[Configuration(machine="In-house server 2", num_gpus=1)] == pytest.approx(
        2032 * 3 * 64 * 6 * 4.1e9 / (0.5 * 11.34e12), rel=1e-3
    )
    # On two: half of the samples, and 2 × 1/2 × 4 × 25.6e6 bytes at 10e9 a second in each step.
    assert seconds[Configuration(machine="In-house server 2", num_gpus=2)] == pytest.approx(
        2032 * 3 * (32 * 6 * 4.1e9 / (0.5 * 11.34e12) + 4 * 25.6e6 / 10e9), rel=1e-3
    )
    hours = {job.name: dict(job.seconds) for job in TWO_JOBS.jobs}
    # b: 2 h of small, 2 $. a: 2/3 of its time on small and 2/3 h on large end at its deadline: 4/3 $ + 4 $.
    assert least_usd(TWO_JOBS, hours) == pytest.approx(2 + 4 / 3 + 4)
    # With a weight of 1 $/h, 2 h of tardiness are worth 4 h of small: 4 $ + 2 $ are no more than 16/3 $.
    patient = replace(TWO_JOBS, jobs=(replace(TWO_JOBS.jobs[0], tardiness_usd_per_hour=0.5),))
    assert least_usd(patient, hours) == pytest.approx(4.0 + 1.0)
    alone = replace(TWO_JOBS, jobs=(job("c", hours={on("large", 1): 2.0}, deadline=9.0),))
    assert least_usd(alone, {"c": {on("large", 1): 2 * HOUR}}) == pytest.approx(3.0)  # a quarter of a large machine
    assert run_once(replace(QUICK, error=0.0), FIRST, "edf").deviation == 0.0
    assert run_once(QUICK, FIRST, "edf").deviation != 0.0
