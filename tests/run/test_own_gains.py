"""Measured gains of a change, from a user's runs with and without it."""

from dataclasses import replace

import pytest

import lightning_predict as lp
from lightning_predict.advice.changes import CHANGES
from lightning_predict.base.files import history_path
from lightning_predict.base.interval import Interval
from lightning_predict.record.trace import Flags, Parameter, Trace
from lightning_predict.run.history import HistoryRecord, append_record, read_history
from lightning_predict.run.measured_gains import _CHANGES, architecture_of, measured_gains, own_gain, settings_of
from tests.advice.example_steps import GPU, REPORTED, trained
from tests.fusion.test_attention import captured as attention
from tests.known import known

FLOAT32 = replace(trained(64), gpu_reported_name=REPORTED, step_seconds=(0.02, 0.02))
MIXED = replace(FLOAT32, flags=Flags(autocast_dtype="bfloat16"))


def run_of(trace: Trace, *, seconds: float, date: str = "2026-11-20", **values: object) -> HistoryRecord:
    record = HistoryRecord(
        fingerprint="f",
        gpu=GPU,
        samples=trace.samples,
        step_seconds=seconds,
        predicted_seconds=100.0,
        actual_seconds=100.0,
        date=date,
        architecture=architecture_of(trace),
        settings=settings_of(trace),
    )
    return replace(record, **values)  # type: ignore[arg-type]


def test_changed_run_reports_measured_and_predicted_gain() -> None:
    before = run_of(FLOAT32, seconds=0.02, foretold={"bf16-mixed": (1.6, 2.1, 2.8)})
    after = run_of(MIXED, seconds=0.0125, date="2026-11-21")
    gain = known(own_gain([before], after))
    assert gain.gain == pytest.approx(0.02 / 0.0125)
    assert gain.predicted_gain == Interval(1.6, 2.1, 2.8)
    assert gain.sentence(after) == (
        f"bf16-mixed made steps 1.60 times as fast on {GPU}, compared with the run of 2026-11-20 without it "
        "(predicted 2.10 (1.60 to 2.80))"
    )
    back = own_gain([replace(after, date="2026-11-19")], before)  # the change is taken away
    assert (
        known(back)
        .sentence(before)
        .startswith(f"bf16-mixed made steps 1.60 times as fast on {GPU}, compared with the run of 2026-11-19 with it")
    )
    silent = own_gain([replace(before, foretold={})], after)
    assert known(silent).sentence(after).endswith("(no prediction, because that run asked for no advice)")


@pytest.mark.parametrize(
    ("earlier", "why"),
    [
        (run_of(FLOAT32, seconds=0.02, gpu="T4"), "another GPU"),
        (run_of(FLOAT32, seconds=0.02, num_gpus=8), "more GPUs"),
        (run_of(FLOAT32, seconds=0.02, architecture="another"), "another model"),
        (run_of(FLOAT32, seconds=0.02, architecture=None), "an unknown model"),
        (run_of(MIXED, seconds=0.02), "no change"),
        (run_of(replace(FLOAT32, flags=Flags(matmul_tf32=True)), seconds=0.02), "two changes"),
        (run_of(replace(FLOAT32, samples=48), seconds=0.02), "another batch, too"),
    ],
)
def test_runs_with_other_differences_measure_nothing(earlier: HistoryRecord, why: str) -> None:
    now = run_of(MIXED, seconds=0.0125)
    now = replace(now, architecture=None) if earlier.architecture is None else now
    assert own_gain([earlier], now) is None, why


def test_gains_are_measured_in_samples_per_second() -> None:
    """Twice the batch in 1.5 times the time is 4/3 of the throughput."""
    once, twice = FLOAT32, replace(FLOAT32, samples=128)
    gain = known(own_gain([run_of(once, seconds=0.02)], run_of(twice, seconds=0.03)))
    assert gain.change == "batch_size"
    assert gain.gain == pytest.approx(4 / 3)
    both = replace(twice, batches=2)
    summed = own_gain([run_of(once, seconds=0.02)], run_of(both, seconds=0.03))
    assert known(summed).change == "accumulation"


def test_settings_of_a_step() -> None:
    assert settings_of(FLOAT32) | {"batch": ""} == {
        "precision": "32",
        "tf32": "off",
        "compiled": "off",
        "batch": "",
        "accumulated": "1",
        "optimizer": "one by one",
        "waits": "none",
    }
    halved = replace(FLOAT32, parameters=(Parameter(name="w", shape=(2, 2), dtype="bfloat16"),))
    assert settings_of(halved)["precision"] == "bf16-true"
    assert settings_of(attention(is_fused=False, length=64))["attention"] == "written out"
    assert settings_of(attention(is_fused=True, length=64))["attention"] == "one call"
    assert set(_CHANGES.values()) <= set(CHANGES)


def test_later_advice_includes_measured_gains() -> None:
    """Compiled training has no pair of others; two own runs measure it, on their GPU alone."""
    compiled = replace(FLOAT32, compiled=True)
    for seconds, trace in ((0.020, FLOAT32), (0.016, compiled), (0.0125, MIXED)):
        append_record(run_of(trace, seconds=seconds), history_path())
    gains = measured_gains(read_history(), GPU, FLOAT32)
    assert gains["compile"] == pytest.approx((1.25,))
    assert gains["bf16-mixed"] == pytest.approx((1.6,))
    told = lp.advise(FLOAT32, ["L4"])
    assert told.on == GPU
    gain = known(told["compile"].gain)
    assert gain.middle == pytest.approx(1.25)
    assert gain.low < 1.25 < gain.high
    assert set(told["compile"].gains) == {GPU}
    assert "measured in a run of yours of this model, on this GPU" in (told["compile"].evidence or "")
    assert set(told["bf16-mixed"].gains) == {GPU, "L4"}  # elsewhere by the pairs of others
    assert known(told["bf16-mixed"].gain).middle == pytest.approx(1.6)
    assert lp.advise(FLOAT32, ["L4"], history=False)["compile"].gain is None
