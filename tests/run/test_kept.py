"""Totals of runs that differ in one thing."""

from dataclasses import replace
from typing import Any, Final

from lightning_predict.base.interval import Interval
from lightning_predict.run.history import HistoryRecord, correction_for
from lightning_predict.run.workload import (
    Batches,
    Checkpoints,
    Loader,
    Workload,
    predict_run,
    workload_per_replica,
    workload_with_shared_cores,
)
from lightning_predict.timeline.step_prediction import StepPrediction
from tests.kept import Kept, ends

STEP: Final = StepPrediction(
    gpu="T4",
    interval=Interval(0.41, 0.5, 0.77),
    device_seconds=0.47,
    host_seconds=0.13,
    coverage={"mlp": 1.0},
    forward_seconds=0.19,
)
WORKLOADS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "unknown": {"training_iterations": None},
    "in batches": {
        "training": Batches(optimizer_steps=1003, batches=3005, partial_batches=7, partial_share=0.3),
        "epoch": Batches(optimizer_steps=143, batches=429, partial_batches=1, partial_share=0.3),
    },
    "loader": {"loader": Loader(seconds_per_batch=0.11, spread=(0.9, 1.3))},
    "workers": {"loader": Loader(seconds_per_batch=0.31, overlaps=True, spread=(0.8, 1.4)), "loader_workers": 6},
    "checkpoints": {"checkpoints": Checkpoints(count=7, seconds=13.0, is_estimated=False)},
    "guessed checkpoints": {"checkpoints": Checkpoints(count=3, seconds=5.0)},
    "unknown checkpoints": {"checkpoints": Checkpoints(count=None)},
    "waits": {"validation_wait": Interval(0.01, 0.07, 0.2), "between": Interval(2.0, 17.0, 30.0)},
    "unknown validation": {"validation_iterations": None},
    "limit": {"time_limit_seconds": 300.0, "at_most": True},
}


def test_runs_match_kept_values(kept: Kept) -> None:
    plain = {"training_iterations": 1001, "validation_iterations": 53, "samples_per_iteration": 48}
    validation = replace(STEP, interval=Interval(0.1, 0.12, 0.2))
    by_name: dict[str, object] = {}
    for name, values in WORKLOADS.items():
        workload = Workload(**(plain | values))
        changed = {
            name: workload,
            f"{name}, shared": workload_per_replica(workload, replicas=2, recorded=8),
            f"{name}, accumulated": workload_per_replica(workload, replicas=1, accumulate=3),
            f"{name}, crowded": workload_with_shared_cores(workload, gpus_per_node=8, recorded=1, cores_per_node=20),
        }
        for word, work in changed.items():
            run = predict_run(STEP, work, validation, batches=3, replicas=4)
            by_name[word] = run.cycle_seconds if run.total is None else ends(run.total)
    kept("runs", by_name)


def record(samples: int, step: float, **values: Any) -> HistoryRecord:
    given: dict[str, Any] = {
        "fingerprint": "a",
        "gpu": "T4",
        "predicted_seconds": 90.0,
        "actual_seconds": 99.0,
        "date": "2026-01-01",
    }
    return HistoryRecord(**(given | {"samples": samples, "step_seconds": step, "model": "m"} | values))


def test_history_matches_kept_values(kept: Kept) -> None:
    records = [
        record(16, 0.30),
        record(32, 0.52, actual_seconds=120.0),
        record(64, 1.01, fingerprint="b"),
        record(64, 1.09, fingerprint="b", num_gpus=8),
        record(32, 0.50),
        record(32, 0.40),
    ]
    by_name: dict[str, object] = {}
    for fingerprint in "abc":
        correction = correction_for(records, fingerprint, STEP)
        by_name[fingerprint] = [] if correction is None else [correction.step, correction.run]
    kept("history", by_name)
