from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from benchmarks.accuracy.studies import (
    best_exponent,
    corrected_error,
    correction_study,
    correction_table,
)
from benchmarks.accuracy.throughput import (
    RatioResult,
    ThroughputCase,
    ThroughputResult,
    ratios_of,
)


def result(gpu: str, model: str, measured: float, predicted: float) -> ThroughputResult:
    case = ThroughputCase(
        gpu=gpu, model=model, precision="FP32", batch=8, software="1.13", measured_per_second=measured
    )
    return ThroughputResult(case, predicted, predicted / 2, predicted * 2)


def pairs(model: str, own: tuple[float, float], other: tuple[float, float]) -> list[RatioResult]:
    """Both ordered pairs of two GPUs with (measured, predicted) throughputs."""
    return list(ratios_of([result("T4", model, *own), result("L4", model, *other)]))


SHARED = pairs("ncf", (100, 200), (300, 600))
"""Both twice too fast: the error of one is the error of the other."""

OWN = pairs("gnmt", (100, 200), (300, 300))
"""One twice too fast, the other right: the errors have nothing to do with each other."""


def test_an_error_is_corrected_by_a_power_of_the_other_gpus() -> None:
    pair = SHARED[0]
    assert corrected_error(pair, 0) == pytest.approx(1.0)
    assert corrected_error(pair, 1) == pytest.approx(0.0)
    assert corrected_error(pair, 0.5) == pytest.approx(2 * 0.5**0.5 - 1)
    assert corrected_error(pair, 1) == pytest.approx(pair.error)  # from row to row is the full correction


def test_the_power_is_the_one_with_the_least_median_error() -> None:
    assert best_exponent(SHARED) == 1
    # From T4 to L4 the correction makes 300 of a right 600·(1/2); the way back it leaves the error of 100 %. The
    # median of two is their mean: (1 - 2^-p) + 1 grows with p.
    assert best_exponent(OWN) == 0
    assert best_exponent([]) == 0


def test_each_family_is_judged_by_the_others_choice() -> None:
    study = correction_study([*SHARED, *OWN])
    gnmt, ncf = study.families
    assert (gnmt.family, gnmt.exponent, ncf.family, ncf.exponent) == ("gnmt", 1, "ncf", 0)
    assert ncf.errors == ncf.uncorrected == pytest.approx((1.0, 1.0))
    assert ncf.fully_corrected == pytest.approx((0.0, 0.0))
    # L4 from T4: 300 x 1/2 of 300; T4 from L4: 200 of 100.
    assert gnmt.errors == pytest.approx((-0.5, 1.0))
    assert study.held_out_error == pytest.approx(1.0)  # of 1, 1, 0.5 and 1
    assert study.fully_corrected_error == pytest.approx(0.25)  # of 0, 0, 0.5 and 1


def test_two_sizes_of_one_model_are_left_out_together() -> None:
    study = correction_study([*pairs("bert_base_squad", (1, 2), (1, 2)), *pairs("bert_large_squad", (1, 2), (1, 2))])
    (bert,) = study.families
    assert (bert.family, bert.exponent, len(bert.errors)) == ("BERT", 0, 4)


def test_the_study_is_printed_by_family() -> None:
    out = io.StringIO()
    Console(file=out, width=170).print(correction_table(correction_study([*SHARED, *OWN])))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["ncf", "2", "0.00", "100.0", "100.0", "0.0"] in lines
    assert ["all", "4", "100.0", "100.0", "25.0"] in lines


def test_without_pairs_there_is_nothing_to_say() -> None:
    study = correction_study([])
    assert study.families == ()
    assert math.isnan(study.held_out_error)
