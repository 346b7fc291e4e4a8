"""Mean of several kinds of steps, by hand."""

from dataclasses import replace

import pytest

import lightning_predict as lp
from lightning_predict.advice.what_if import what_if
from lightning_predict.base.interval import Interval
from lightning_predict.record.trace import (
    Memory,
    Operation,
    OtherStep,
    Parameter,
    TensorInfo,
    Trace,
    anonymised,
    measured_seconds,
    weighted_kinds,
)
from lightning_predict.run.history import fingerprint_of
from lightning_predict.timeline.same_gpu_check import SameGpuCheck, kinds_note, mean_check, mean_step
from lightning_predict.timeline.step_prediction import StepPrediction
from lightning_predict.timeline.verdict import Verdict
from tests.known import known

DATA = TensorInfo((2048, 2048), "float32", id=0)
PRODUCT = Operation(name="aten::mm", phase="forward", inputs=(DATA, DATA), outputs=(DATA,), module="secret")
ONE = Trace(
    operations=(PRODUCT,),
    device="meta",
    recorder="dispatch",
    memory=Memory(parameter_bytes=2**30, gradient_bytes=0, optimizer_state_bytes=0),
    step_seconds=(1.0, 2.0, 3.0),
    parameters=(Parameter(name="secret", shape=(2048, 2048), dtype="float32"),),
)
SIX = replace(
    ONE,
    operations=(PRODUCT,) * 6,
    memory=Memory(parameter_bytes=2**30, gradient_bytes=0, optimizer_state_bytes=2**31),
    step_seconds=(12.0,),
)
MIXED = replace(ONE, other_steps=(OtherStep(share=0.2, trace=SIX),))
"""Four steps in five are one product, the fifth is six."""


def iteration(seconds: float, **values: object) -> StepPrediction:
    defaults: dict[str, object] = {
        "gpu": "T4",
        "interval": Interval(seconds / 2, seconds, seconds * 2),
        "device_seconds": seconds,
        "host_seconds": 1.0,
        "coverage": {"mlp": 1.0},
    }
    return StepPrediction(**(defaults | values))  # type: ignore[arg-type]


def test_kinds_are_weighted_by_share_and_batches() -> None:
    assert [kind.share for kind in MIXED.kinds] == [0.8, 0.2]
    assert [kind.trace for kind in MIXED.kinds] == [ONE, SIX]
    assert [kind.share for kind in ONE.kinds] == [1.0]
    assert weighted_kinds(MIXED) == ((ONE, SIX), (0.8, 0.2))
    # Three windows of one batch and one of two: 5 batches in 4 windows.
    mixed = replace(ONE, other_steps=(OtherStep(share=0.25, trace=replace(SIX, batches=2)),))
    _, weights = weighted_kinds(mixed)
    assert weights == pytest.approx((3 / 5, 1 / 5))
    # The other way about, the mean is of two batches: twice as long.
    mixed = replace(SIX, batches=2, other_steps=(OtherStep(share=0.75, trace=ONE),))
    assert weighted_kinds(mixed)[1] == pytest.approx((2 / 5, 6 / 5))


def test_prediction_is_mean_of_kinds_on_one_and_several_gpus_and_in_half_precision() -> None:
    row = lp.predict(MIXED, ["T4"], iterations=1000, usd_per_hour=0.36)["T4"]
    product = lp.predict(replace(ONE, step_seconds=()), ["T4"])["T4"]
    # 4/5 of one product and 1/5 of six: 2 products.
    assert row.iteration_seconds == pytest.approx(2 * product.iteration_seconds, rel=0.05)
    assert row.device_seconds == pytest.approx(2 * product.device_seconds)
    assert row.iteration_seconds_low < row.iteration_seconds < row.iteration_seconds_high
    assert row.total_seconds == pytest.approx(1000 * row.iteration_seconds)
    # Memory is that of the kind which needs most: the second, with 2 GiB of state.
    assert row.memory_bytes == lp.predict(SIX, ["T4"])["T4"].memory_bytes
    least = lp.predict(ONE, ["T4"])["T4"].memory_bytes
    assert known(row.memory_bytes) - known(least) == 2**31
    assert sum(row.coverage.values()) == pytest.approx(1.0)
    backward = replace(PRODUCT, phase="backward")
    one, six = (replace(trace, operations=(*trace.operations, backward)) for trace in (ONE, SIX))
    mixed = replace(one, other_steps=(OtherStep(share=0.2, trace=six),))
    mean, *kinds = (lp.predict(trace, ["4xL4"])["4xL4"] for trace in (mixed, one, six))
    expected = 0.8 * kinds[0].iteration_seconds + 0.2 * kinds[1].iteration_seconds
    assert mean.iteration_seconds == pytest.approx(expected)
    assert mean.communication_seconds == pytest.approx(kinds[0].communication_seconds)
    half, *whole = (
        what_if("bf16-mixed", trace, ["H100-SXM-80GB"])["H100-SXM-80GB"].iteration_seconds
        for trace in (replace(MIXED, step_seconds=()), ONE, SIX)
    )
    assert half == pytest.approx(0.8 * whole[0] + 0.2 * whole[1])


def test_measured_mean_note_and_fingerprint_depend_on_the_kinds() -> None:
    assert measured_seconds(MIXED) == pytest.approx(0.8 * 2.0 + 0.2 * 12.0)
    assert measured_seconds(ONE) == 2.0
    untimed = replace(ONE, other_steps=(OtherStep(share=0.2, trace=replace(SIX, step_seconds=())),))
    assert measured_seconds(untimed) is None
    sentence = "Iteration: the mean of 2 kinds of step that take turns, 80 % and 20 % of all steps."
    assert kinds_note(MIXED) == (sentence,)
    assert kinds_note(ONE) == ()
    noted = replace(MIXED, notes=("same",), other_steps=(OtherStep(share=0.2, trace=replace(SIX, notes=("same",))),))
    assert lp.predict(noted, ["T4"]).notes == ("same", sentence)
    other = replace(ONE, other_steps=(OtherStep(share=0.4, trace=SIX),))
    assert len({fingerprint_of(ONE), fingerprint_of(MIXED), fingerprint_of(other)}) == 3
    assert "secret" not in repr(anonymised(MIXED))


def test_means_of_steps_and_checks_by_hand() -> None:
    long = iteration(20.0, coverage={"roofline": 1.0}, host_seconds=6.0, notes=("a", "b"), optimizer_seconds=5.0)
    mean = mean_step([iteration(5.0, notes=("a",)), long], [0.8, 0.2])
    assert (mean.seconds, mean.low_seconds, mean.high_seconds) == (8.0, 4.0, 16.0)
    assert mean.host_seconds == pytest.approx(0.8 * 1.0 + 0.2 * 6.0)
    assert mean.optimizer_seconds == pytest.approx(1.0)
    # Half of the device's time: 0.8 x 5 s and 0.2 x 20 s.
    assert mean.coverage == {"mlp": 0.5, "roofline": 0.5}
    assert mean.notes == ("a", "b")
    step = iteration(5.0)
    assert mean_step([step], [1.0]) is step
    short = SameGpuCheck(gpu="T4", measured_seconds=5.0, predicted_seconds=4.0, bound_by="host")
    slow = SameGpuCheck(gpu="T4", measured_seconds=50.0, predicted_seconds=40.0, bound_by="device")
    check = mean_check([short, slow], [0.8, 0.2])
    assert check == SameGpuCheck(gpu="T4", measured_seconds=14.0, predicted_seconds=11.2, bound_by="device")
    assert mean_check([short, None], [0.8, 0.2]) is None


@pytest.mark.parametrize("unit", [1.0, 1e-3])
def test_verdicts_are_weighted_by_step_time(unit: float) -> None:
    def verdict(bound_by: str, **shares: float) -> Verdict:
        return Verdict(bound_by=bound_by, idle_share=0.4, gain=0.0, critical_path=shares)  # type: ignore[arg-type]

    steps = [
        iteration(5 * unit, verdict=verdict("host", head=1.0)),
        iteration(60 * unit, verdict=Verdict(bound_by="device", idle_share=0.0, gain=0.5, critical_path={"body": 1.0})),
    ]
    found = known(mean_step(steps, [0.8, 0.2]).verdict)
    # 4 units of the one, 12 of the other.
    assert found.bound_by == "device"
    assert found.idle_share == pytest.approx(0.1)
    assert found.gain == pytest.approx(0.375)
    assert list(found.critical_path) == ["body", "head"]
    assert found.critical_path == pytest.approx({"body": 0.75, "head": 0.25})
