"""Advice as a user reads it: ranked, gated by evidence, chained, and priced."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
import torch

import lightning_predict as lp
from lightning_predict.advice.changes import CHANGES
from lightning_predict.advice.gain_accuracy import GAIN_CALIBRATION, MIN_PAIRS, MeasuredPairs, calibration_for
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.trace import Flags
from tests.advice.example_steps import GPU, profiled, trained
from tests.known import known

GPUS = ["L4", "A100-SXM-80GB"]


@pytest.fixture(scope="module")
def advice() -> lp.Advice:
    return lp.advise(trained(4096), GPUS, iterations=10_000)


def test_advice_contains_every_change_once_and_rejects_unknown_effects(advice: lp.Advice) -> None:
    assert set(advice) == set(CHANGES)
    assert advice["bf16-mixed"].words == 'Trainer(precision="bf16-mixed")'
    with pytest.raises(InvalidArgumentError, match="change='bf32' is not known"):
        advice["bf32"]
    with pytest.raises(InvalidArgumentError, match="allow='maths' is not known; choose among numerics, digits"):
        lp.advise(trained(8), ["L4"], allow=["maths"])
    assert advice.chain is not None
    assert sum(CHANGES[name].slot == "precision" for name in advice.chain.names) == 1
    assert not any("digits" in CHANGES[name].side_effects for name in advice.chain.names)
    careful = lp.advise(trained(4096), ["L4"], allow=["memory"])
    assert careful.chain is None or careful.chain.names == ("compile",)
    assert careful["bf16-mixed"].verdict == "faster"  # the change is listed, and its gain left out


def test_gain_is_shown_only_with_evidence(advice: lp.Advice) -> None:
    for name, advised in advice.items():
        rows = [row for key, row in GAIN_CALIBRATION.items() if key.split(" ")[0] == CHANGES[name].kind]
        proven = any(row.is_enough for row in rows)
        if advised.verdict in ("faster", "slower", "noise"):
            assert proven
            assert advised.gain is not None
        else:
            assert advised.gain is None
            assert advised.why_not is not None
    assert "2 % off in the median (a constant 10 %): 10 pairs" in (advice["compile"].evidence or "")
    assert advice["tf32"].verdict == "untested"
    assert advice["tf32"].simulated_gain is not None


def test_gains_and_savings_are_for_the_first_gpu(advice: lp.Advice) -> None:
    assert advice.on == "L4"
    half = advice["bf16-mixed"]
    assert half.gain is not None
    assert half.gain == half.gains["L4"]
    assert half.gain.low < half.gain.middle < half.gain.high
    before = advice.before["L4"]
    assert half.seconds == pytest.approx(before.cycle_seconds / half.gain.middle)
    assert half.seconds_saved == pytest.approx(known(before.total_seconds) * (1 - 1 / half.gain.middle))


def test_text_json_and_loggers_have_the_same_gains(advice: lp.Advice) -> None:
    half = known(advice["bf16-mixed"].gain)
    assert advice.metrics()["predict/advice/bf16-mixed/gain"] == half.middle
    read = json.loads(advice.to_json())
    assert {change["name"]: change for change in read["changes"]}["bf16-mixed"]["gain"]["middle"] == half.middle
    text = str(advice)
    assert 'Trainer(precision="bf16-mixed")' in text
    assert "Worth testing (simulated; under ten pairs)" in text
    assert "Rent without changes:" in text
    assert "Where it goes" in text
    assert advice.to_html().count("<table>") == 2


def test_no_gpu_is_recommended_for_a_very_short_run() -> None:
    """As `predict` says it: what to rent of ten hours, and of a second that it is too little."""
    step = trained(4096)
    long = str(lp.advise(step, ["L4"], iterations=1_000_000))
    assert "Rent without changes: an L4" in long
    assert "too little" not in long
    short = str(lp.advise(step, ["L4"], iterations=10))
    assert "on an L4: too short to rent a machine." in short
    assert "For a longer run: cheapest and fastest L4." in short
    assert "Rent:" not in short


def test_advice_for_a_profile_is_for_its_own_gpu() -> None:
    told = lp.advise(profiled(kernel_seconds=4e-6, every=100e-6, rows=64), ["L4"])
    assert told.on == GPU  # the one in use, though it was not asked for
    assert told["compile"].verdict == "no"
    assert "capture the same step on the meta device" in (told["compile"].why_not or "")


PROVEN = MeasuredPairs(
    pairs=MIN_PAIRS,
    families=3,
    source="pairs",
    median_error=0.05,
    constant_error=0.06,
    coverage=0.9,
    power=0.5,
    base_half_width=0.1,
    half_width_slope=0.2,
)


def test_calibrated_gain_is_a_power_up_to_the_largest_validated_gain() -> None:
    told = PROVEN.calibrated_gain(4.0)
    assert told.middle == pytest.approx(2.0)
    assert math.log(told.high / told.middle) == pytest.approx(0.1 + 0.2 * math.log(2.0))
    assert PROVEN.calibrated_gain(1.0).middle == 1.0
    assert replace(PROVEN, shift=math.log(1.1)).calibrated_gain(4.0).middle == pytest.approx(2.2)
    # A power of a half up to 2, and the remainder of 4 unchanged: sqrt(2) x 2.
    far = replace(PROVEN, max_validated_gain=2.0)
    assert far.calibrated_gain(4.0).middle == pytest.approx(2 * math.sqrt(2))
    assert far.calibrated_gain(1.5) == PROVEN.calibrated_gain(1.5)


def test_refuted_simulations_show_no_gain_and_must_beat_a_constant(advice: lp.Advice) -> None:
    """On families that were kept apart, a constant gain was nearer than the simulated gain of `model.half()`."""
    for name in ("half", "bf16-true"):
        half = advice[name]
        assert (half.verdict, half.gain, half.simulated_gain, half.simulated_gains) == ("untested", None, None, {})
        assert half.why_not == "try it: on measured pairs, a constant gain was nearer than the simulated one"
        assert name not in advice.metrics()
    assert not re.search(r"(half|bf16-true) \(?\d", advice.text())
    assert "half (try it: on measured pairs, a constant gain was nearer" in " ".join(advice.text(verbose=True).split())
    assert PROVEN.is_enough
    assert not PROVEN.is_refuted
    constant = replace(PROVEN, median_error=0.07)
    assert not constant.is_enough
    assert constant.is_refuted
    assert replace(constant, is_own=True).is_enough  # the waits of the step itself
    few = replace(constant, pairs=MIN_PAIRS - 1)
    assert not few.is_enough
    assert not few.is_refuted
    assert PROVEN.words == "simulated, 5 % off in the median (a constant 6 %): 10 pairs, pairs"


def test_evidence_depends_on_the_release_autocast_and_number_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = replace(
        trained(8), operations=tuple(operation for operation in trained(8).operations if operation.phase == "forward")
    )
    change = CHANGES["channels_last"]
    for release, row in (("1.12.1", " before torch 2.1"), ("2.0", " before torch 2.1"), ("2.10.0+cu130", "")):
        assert (
            calibration_for(change, replace(forward, software={"torch": release}))
            is GAIN_CALIBRATION[f"channels_last infer{row}"]
        )
    assert calibration_for(change, replace(forward, software={})) is GAIN_CALIBRATION["channels_last infer"]
    plain, mixed = (replace(forward, flags=Flags(autocast_dtype=dtype)) for dtype in (None, "float16"))
    assert calibration_for(CHANGES["compile"], plain) is GAIN_CALIBRATION["compile infer"]
    assert calibration_for(CHANGES["compile"], mixed) is GAIN_CALIBRATION["compile infer mixed"]
    few = replace(GAIN_CALIBRATION["amp train"], pairs=MIN_PAIRS - 1)
    monkeypatch.setitem(GAIN_CALIBRATION, "amp train", few)
    assert calibration_for(CHANGES["bf16-mixed"], trained(8)) is None


def test_slow_loader_is_recommended_first_and_waits_with_each_batch() -> None:
    # A step of some milliseconds behind a wait of a quarter of a second; twice the batch waits twice as long.
    told = lp.advise(replace(trained(64), loader_seconds=(0.25,)), ["L4"])
    assert known(told.chain).names[0] == "loader"
    before = told.before["L4"]
    assert known(told["loader"].gain).middle == pytest.approx(before.cycle_seconds / before.iteration_seconds)
    assert 1.0 <= known(told["batch_size"].simulated_gain) < 1.05
    # The update is all that two batches save: the wait of 0.25 s comes with either.
    told = lp.advise(replace(trained(256), loader_seconds=(0.25,)), ["L4"])
    assert 1.0 < known(told["accumulation"].simulated_gain) < 1.02


@pytest.mark.parametrize(
    ("low", "middle", "high", "verdict"),
    [
        (0.9, 1.2, 1.6, "faster"),
        (0.9, 1.05, 1.2, "noise"),
        (0.99, 1.01, 1.03, "noise"),
        (0.9, 0.97, 1.05, "noise"),
        (0.4, 0.5, 0.7, "slower"),
        (0.7, 0.85, 1.05, "slower"),
    ],
)
def test_verdict_follows_from_the_interval(low: float, middle: float, high: float, verdict: str) -> None:
    from lightning_predict.advice.advice import _verdict
    from lightning_predict.base.interval import Interval

    assert _verdict(Interval(low, middle, high)) == verdict


def test_disallowed_changes_are_last_and_inapplicable_ones_folded() -> None:
    from lightning_predict.advice.advice_text import numbered

    step = trained(4096)
    plain, every = (lp.advise(step, ["L4"], allow=words) for words in (["numerics"], ["numerics", "digits"]))
    assert [CHANGES[change.name].kind for change in numbered(plain)].index("amp") == 0
    gains = [one.gain.middle for one in numbered(every) if one.gain is not None and CHANGES[one.name].kind != "batch"]
    assert gains == sorted(gains, reverse=True)
    advised = lp.advise(lp.Trace.load("examples/gpt2.json.gz"), ["L40S"])
    shown, fold = advised.to_html().split("<details>", 1)
    assert "Not applicable" not in shown
    assert "Not applicable" in fold.split("</details>")[0]
    assert "Where it goes" in fold.split("</details>")[1]


def test_heading_states_that_the_step_does_not_fit() -> None:
    with_teacher = replace(trained(64), memory=replace(trained(64).memory, resident_bytes=30 * 2**30))
    told = lp.advise(with_teacher, ["L4"])
    words = (
        "It does not fit in the memory of one L4. `lightning-predict trace memory` shows what saves memory, and sets"
    )
    assert words in " ".join(str(told).split())
    waiting = lp.advise(replace(trained(64), loader_seconds=(0.25,)), ["L4"], allow=[])
    assert known(waiting.chain).names == ("loader",)
    assert re.search(r"Where it goes +L4\n", str(waiting))  # the step itself is not changed


def test_heading_names_changes_that_make_the_step_fit() -> None:
    # Of each of 24 blocks the backward pass reads some 14 tensors of 64 x 512 x 1,024 float32; checkpointed, one.
    with torch.device("meta"):
        block = (torch.nn.TransformerEncoderLayer(1024, 16, batch_first=True) for _ in range(24))
        model, data = torch.nn.Sequential(*block), torch.empty(64, 512, 1024)
    advice = lp.advise(lp.capture(lambda: model(data).sum().backward()), ["L4"])
    told = " ".join(str(advice).split())
    fitting = [change.name for change in advice.changes if change.fits]
    assert "checkpointing" in fitting
    assert "It does not fit in the memory of one L4; it would with" in told
    assert all(f"{name} (" in told.partition(" GiB).")[0] for name in fitting)


def test_no_larger_batch_is_advised_for_a_step_that_does_not_fit() -> None:
    trace = lp.Trace.load("examples/gpt2.json.gz")
    small, large = (lp.advise(trace, [name]) for name in ("T4", "H100-SXM-80GB"))
    assert (small.before["T4"].fits, large.before["H100-SXM-80GB"].fits) == (False, True)
    assert small["batch_size"].verdict == "no"
    assert small["batch_size"].why_not == "the step does not fit as it is, and this needs more memory"
    assert small.chain is None or "batch_size" not in small.chain.names
    assert large["batch_size"].verdict != "no"


def test_compiled_step_needs_no_memory_for_masks_and_views() -> None:
    # Dropout's masks stay bytes, and views inside a kernel have no owner: they were counted as part of the batch.
    with torch.device("meta"):
        block = (torch.nn.TransformerEncoderLayer(256, 4, batch_first=True) for _ in range(2))
        model, data = torch.nn.Sequential(*block), torch.empty(64, 512, 256)
    advice = lp.advise(lp.capture(lambda: model(data).sum().backward()), ["L4"])
    assert known(advice["compile"].memory) <= 1.02 * (advice.before["L4"].memory_bytes or 0.0)
