from __future__ import annotations

from dataclasses import replace

from lightning_predict.scaling.records import Workload
from lightning_predict.scaling.totals import run_of
from lightning_predict.timeline.records import Iteration

STEP = Iteration(
    gpu="T4",
    seconds=0.5,
    low_seconds=0.4,
    high_seconds=0.75,
    device_seconds=0.5,
    host_seconds=0.1,
    coverage={"mlp": 1.0},
    forward_seconds=0.2,
)
VALIDATION = replace(STEP, seconds=0.1)


def test_training_and_captured_validation_add_up() -> None:
    run = run_of(STEP, Workload(training_iterations=100, validation_iterations=20), VALIDATION)
    assert (run.training_seconds, run.validation_seconds, run.total_seconds) == (50.0, 2.0, 52.0)
    assert (run.total_low_seconds, run.total_high_seconds) == (52 * 0.4 / 0.5, 52 * 0.75 / 0.5)
    assert not run.validation_is_estimated


def test_validation_without_a_capture_is_the_forward_share_of_one_batch() -> None:
    run = run_of(STEP, Workload(training_iterations=100, validation_iterations=20), batches=4)
    assert run.validation_seconds == 20 * 0.2 / 4
    assert run.validation_is_estimated


def test_no_validation_is_not_an_estimate() -> None:
    run = run_of(STEP, Workload(training_iterations=1, validation_iterations=0))
    assert run.validation_seconds == 0
    assert not run.validation_is_estimated


def test_an_unknown_length_has_no_total() -> None:
    run = run_of(STEP, Workload(training_iterations=None))
    assert run.total_seconds is None
    assert run.total_low_seconds is None
    assert run.training_seconds is None


def test_an_unknown_number_of_validation_batches_leaves_the_known_part() -> None:
    run = run_of(STEP, Workload(training_iterations=10, validation_iterations=None, at_most=True))
    assert run.validation_seconds is None
    assert run.total_seconds == 5.0
    assert run.at_most
