"""A step under autocast in bfloat16 is predicted in float16 on GPUs that emulate bfloat16."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.record.precision import emulates_bfloat16, in_float16, in_precision
from lightning_predict.testing import example_trace

TRACE = in_precision(example_trace(2048), "bfloat16")


@pytest.mark.parametrize(
    ("name", "emulates"),
    [("T4", True), ("V100-SXM2-16GB", True), ("L4", False), ("A100-SXM-80GB", False), ("RTX-3060", False)],
)
def test_gpus_before_ampere_emulate_bfloat16(name: str, emulates: bool) -> None:
    assert emulates_bfloat16(gpu(name)) == emulates


def test_row_on_old_gpu_equals_prediction_in_float16() -> None:
    found = lp.predict(TRACE, gpus=["T4", "L4"], iterations=1000, history=False)
    half = lp.predict(in_float16(TRACE), gpus=["T4"], iterations=1000, history=False)
    assert found["T4"].iteration_seconds == pytest.approx(half["T4"].iteration_seconds)
    assert (found["T4"].precision, found["L4"].precision) == ("16-mixed", None)
    assert found.as_dict()["predictions"][0]["precision"] == "16-mixed"
    text = " ".join(str(found).split())
    assert "T4 (16-mixed)" in text
    assert text.count("T4: predicted in 16-mixed, the precision to use there, because bfloat16 is emulated.") == 1
    assert "emulation is assumed" not in text
    assert ", in 16-mixed" in str(lp.predict(TRACE, gpus=["T4"], iterations=10**7, history=False).ranking()).replace(
        "(first: ", ""
    )


def test_gpt2_in_float16_is_faster_than_emulated_bfloat16_on_t4() -> None:
    trace = lp.Trace.load(str(Path(__file__).parent.parent / "examples" / "gpt2.json.gz"))
    found = lp.predict(trace, gpus=["T4", "V100-SXM2-32GB"], history=False)
    assert found["T4"].iteration_seconds < 1.5  # 6.6 s with emulated bfloat16
    assert found["V100-SXM2-32GB"].iteration_seconds < 0.6  # 2.0 s


def test_gpu_without_enough_memory_is_predicted_in_float16_too() -> None:
    """The report and JSON have rows of GPUs on which the step does not fit."""
    trace = lp.Trace.load(str(Path(__file__).parent.parent / "examples" / "gpt2.json.gz"))
    found = lp.predict(trace, history=False)
    assert found["T4"].fits is False
    emulating = [one for one in found.values() if emulates_bfloat16(one.layout.gpu)]
    assert {one.precision for one in emulating} == {"16-mixed"}


def test_the_gpu_of_the_recording_keeps_its_precision() -> None:
    measured = replace(TRACE, device="cuda:0", gpu_reported_name="Tesla T4", step_seconds=(0.1,))
    assert lp.predict(measured, gpus=["T4"], history=False)["T4"].precision is None


def test_other_steps_keep_their_precision() -> None:
    assert lp.predict(example_trace(2048), gpus=["T4"], history=False)["T4"].precision is None


def test_advice_offers_float16_with_its_gain() -> None:
    trace = lp.Trace.load(str(Path(__file__).parent.parent / "examples" / "gpt2.json.gz"))
    on_t4 = lp.advise(trace, gpus=["T4"], iterations=1000, history=False)["16-mixed"]
    assert on_t4.verdict == "faster"
    assert on_t4.gain is not None
    assert on_t4.gain.middle > 3
    on_l4 = lp.advise(trace, gpus=["L4"], iterations=1000, history=False)["16-mixed"]
    assert on_l4.why_not is not None
    assert "autocast in bfloat16 already" in on_l4.why_not
