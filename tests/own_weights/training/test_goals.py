from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.training.scores import Score
from benchmarks.training.weights import operator_goals
from lightning_predict.weights.manifest import HeldOutError, Manifest
from tests.own_weights.training.example import manifest_of_base

LINEAR = Score(
    operation="linear",
    dtype="bfloat16",
    gpu="H100-SXM-80GB",
    own_weights=True,
    rows=100,
    mean=0.04,
    median=0.03,
    ninetieth=0.1,
    bias=0.0,
    coverage=0.9,
    called=None,
    baselines={},
)


def left_out(medians: dict[str, float]) -> Manifest:
    """A manifest whose base never saw these GPUs."""
    return manifest_of_base(
        {key: HeldOutError(rows=10, mean=0.5, median=median, coverage=0.9) for key, median in medians.items()}
    )


def test_the_worst_gpu_of_a_line_counts() -> None:
    worse = replace(LINEAR, gpu="H200-SXM-141GB", mean=0.055, rows=50)
    goal = operator_goals([LINEAR, worse], None)[0]
    assert goal.what == "linear bfloat16, mean error, H200-SXM-141GB, the worst of 2"
    assert (goal.cases, goal.reached, goal.reach, goal.is_held) == (150, 0.055, 0.05, False)


def test_gpus_with_a_line_of_their_own_are_not_in_the_other() -> None:
    granted = replace(LINEAR, gpu="L40S", mean=0.065)
    first, second, *_ = operator_goals([LINEAR, granted], None)
    assert (first.what, first.is_held) == ("linear bfloat16, mean error, H100-SXM-80GB", True)
    assert (second.what, second.reach, second.is_held) == ("linear bfloat16, mean error, L40S", 0.07, True)


def test_convolutions_are_judged_by_the_device_and_by_the_whole_call() -> None:
    convolution = replace(LINEAR, operation="conv2d", dtype="float32", gpu="T4", mean=0.12, called=0.06)
    device, call, *_ = operator_goals([convolution], None)
    assert (device.what, device.is_held) == ("conv2d float32, mean error, T4", False)
    assert (call.what, call.is_held) == ("conv2d float32, mean error of whole calls, T4", True)


def test_scores_of_the_base_do_not_count() -> None:
    assert operator_goals([replace(LINEAR, own_weights=False)], None) == ()


def test_intervals_should_hold_neither_too_few_nor_too_many() -> None:
    *_, least, most = operator_goals([LINEAR, replace(LINEAR, gpu="L40S", coverage=1.0, rows=300)], None)
    assert least.reached == most.reached == pytest.approx((0.9 * 100 + 1.0 * 300) / 400)
    assert (least.is_held, most.is_held) == (True, False)


def test_gpus_that_were_left_out_count_on_average_and_at_their_worst() -> None:
    manifest = left_out(
        {"linear/bfloat16/L40S": 0.15, "linear/bfloat16/B200-SXM-180GB": 0.11, "linear/float32/L4": 0.25}
    )
    mean, worst, single = operator_goals([], manifest)
    assert mean.what == "linear bfloat16, mean of 2 left-out GPUs' medians"
    assert mean.reached == pytest.approx(0.13)
    assert not mean.is_held
    assert (worst.what, worst.reached, worst.is_held) == ("linear bfloat16, L40S, left out, median error", 0.15, True)
    assert (single.what, single.is_held) == ("linear float32, L4, left out, median error", False)


def test_without_scores_and_manifest_there_are_no_goals() -> None:
    assert operator_goals([], None) == ()
