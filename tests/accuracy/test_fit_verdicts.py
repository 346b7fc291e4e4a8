"""The check of the probability that a step fits."""

import math
from pathlib import Path

import pytest
from scipy.stats import t as student

from benchmarks.accuracy.fit_verdicts import CARDS, brier, fitted, judged, kind_of, ratios_of, reliability_rows
from benchmarks.result_files import FOLDER, Result, ResultTable, write_result
from lightning_predict.base.interval import Interval
from lightning_predict.memory.step_memory import AS_RECORDED, DERIVED, fit_probability

RATIOS = [math.exp(0.03 + 0.05 * student.ppf((rank + 0.5) / 200, 3)) for rank in range(200)]
"""Measured over predicted memory with the quantiles of Student's t distribution with 3 degrees of freedom."""


def test_interval_is_that_of_the_ratios_however_many_a_source_has() -> None:
    half = 0.1177 * math.sqrt(21 / 19)  # of a source beside 20 others
    expected = math.exp(0.03 - half), math.exp(0.03 + half)
    assert fitted([RATIOS, *[RATIOS[::2] * 3] * 19]) == pytest.approx(expected, rel=0.01)


def test_probability_of_ratios_that_follow_it_is_the_share_that_fits() -> None:
    found = judged(fitted([RATIOS] * 99), RATIOS)
    for _, count, predicted, fits in reliability_rows({("recorded", "one"): found}):
        assert int(count) >= len(RATIOS)
        assert float(predicted) == pytest.approx(float(fits), abs=3)
    assert brier(found) < brier([(0.5, fits) for _, fits in found]) == 0.25
    assert brier([(1.0, True), (0.0, False)]) == 0.0


def test_probability_is_that_of_a_prediction_with_the_same_interval() -> None:
    for card, (chance, _) in zip(CARDS, judged((0.91, 1.2), [1.0]), strict=True):
        expected = fit_probability(Interval(0.91, 1.0, 1.2), Interval(0.0, 0.0, 0.0), card)
        assert chance == pytest.approx(expected, abs=1e-4)


def test_processes_that_are_mostly_context_say_nothing_of_tensors(tmp_path: Path) -> None:
    columns = ("model", "GPU", "setting", "error %", "width")
    rows = (("small", "T4", "", "-50.0", "1.90"), ("large", "T4", "", "+25.0", "1.30"))
    tables = [
        ResultTable(title=f"some: {quantity}, each", columns=columns, names=1, rows=rows)
        for quantity in ("memory of the process", "reserved memory", "time")
    ]
    result = Result(name="some", command="", date="", commit="", split="held out", tables=tuple(tables))
    write_result(result, tmp_path)
    assert ratios_of(tmp_path) == {("recorded", "some"): [0.8, 2.0, 0.8]}


@pytest.mark.parametrize(
    ("model", "gpu", "setting", "kind"),
    [
        ("GPT-2", "T4", "ddp,recompute=full", "recorded"),
        ("GPT-2", "4x8xL4", "", "derived"),
        ("GPT-2", "T4", "ran compile-blocks", "derived"),
        ("Qwen2.5-1.5B, nf4, eager", "T4", "", "derived"),
    ],
)
def test_several_gpus_compiled_code_and_4_bits_are_derived(model: str, gpu: str, setting: str, kind: str) -> None:
    assert kind_of("some", {"model": model, "GPU": gpu, "setting": setting}) == kind


def test_intervals_of_predictions_are_those_that_the_command_fits_to_the_published_results() -> None:
    sources = ratios_of(FOLDER)
    for kind, interval in (("recorded", AS_RECORDED), ("derived", DERIVED)):
        ends = fitted([ratios for (own, _), ratios in sources.items() if own == kind])
        assert (interval.low, interval.high) == pytest.approx(ends, abs=0.015)
