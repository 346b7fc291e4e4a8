from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.gpu_pairs import (
    POWERS,
    GpuErrors,
    PairErrors,
    exponent_studies,
    measured_pairs,
    pairs_of,
    shrinkage_studies,
    shrinkage_table,
    studies_table,
)
from lightning_predict.hardware import gpu
from lightning_predict.kernels.measured_scaling import RATIO_EXPONENTS
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import Array
from tests.own_weights.training.example import write_matmul_table

LINEAR = ("linear", "float32", "synthetic", "a")


def measured(gpu: str, sizes: list[int], *, together: tuple[str, ...] = LINEAR, scale: float = 1.0) -> GpuErrors:
    """Errors that tell the size, times the scale."""
    errors = scale * np.array(sizes, dtype=np.float64)
    return GpuErrors("toy", together, gpu, tuple(sizes), errors, is_trained=True)


def pair(origin: Array, target: Array, *, gpus: tuple[str, str] = ("T4", "L4"), subject: str = "toy") -> PairErrors:
    return PairErrors(subject, "same units", *gpus, origin, target, is_trained=True)


def test_a_pair_has_the_problems_that_both_ran_in_both_directions() -> None:
    there, back = pairs_of([measured("T4", [1, 2, 3, 4, 5, 9]), measured("L4", [7, 5, 4, 3, 2, 1], scale=10)])
    assert (there.origin, there.target, back.origin, back.target) == ("T4", "L4", "L4", "T4")
    np.testing.assert_array_equal(np.sort(there.origin_errors), [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(there.target_errors, 10 * there.origin_errors)
    np.testing.assert_array_equal(back.target_errors, back.origin_errors / 10)


def test_other_builds_and_too_few_problems_make_no_pair() -> None:
    one = measured("T4", [1, 2, 3, 4, 5])
    assert pairs_of([one, measured("L4", [1, 2, 3, 4, 5], together=(*LINEAR[:3], "b"))]) == ()
    assert pairs_of([one, measured("L4", [1, 2, 3, 4, 6])]) == ()
    assert pairs_of([one, one]) == ()  # a GPU is no pair with itself


def test_pairs_are_told_apart_by_how_their_kernels_are_akin() -> None:
    half = ("linear", "float16", "synthetic", "a")
    sizes = [1, 2, 3, 4, 5]
    members = [measured(name, sizes, together=half) for name in ("P100-PCIe-16GB", "V100-SXM2-16GB", "T4")]
    kinships = {(one.origin, one.target): one.kinship for one in pairs_of(members)}
    assert kinships["V100-SXM2-16GB", "T4"] == "same units"
    assert kinships["P100-PCIe-16GB", "T4"] == "other units"  # no tensor cores


def test_the_power_is_the_part_of_the_origins_error_that_comes_back() -> None:
    origin = np.random.default_rng(0).normal(size=201)
    study = exponent_studies([pair(origin, 0.25 * origin)])["same units"]
    assert study.chosen == 0.25
    assert study.errors[POWERS.index(0.25)] == 0
    assert study.errors[-1] == pytest.approx(0.75 * np.median(np.abs(origin)))
    # In use is 3/4: half of the origin's error is too much, nine times in ten less than its 90 % quantile.
    assert RATIO_EXPONENTS["same units"] == 0.75
    assert study.half_width == pytest.approx(0.5 * np.quantile(np.abs(origin), 0.9), rel=0.02)


def test_a_gpu_is_judged_by_the_power_of_the_others() -> None:
    ones = np.ones(10)
    same = [pair(ones, ones, gpus=gpus) for gpus in (("T4", "L4"), ("L4", "T4"))]
    none = [pair(ones, 0 * ones, gpus=gpus) for gpus in (("A30", "A40"), ("A40", "A30"))]
    study = exponent_studies([*same, *none])["same units"]
    # Without the T4 only pairs that choose power 0 are left, by which its own err by 1; and the other way round.
    assert study.left_out_error == pytest.approx(1.0)


def test_subjects_count_the_same_whatever_their_pairs() -> None:
    ones = np.ones(10)
    many = [pair(ones, ones, gpus=gpus) for gpus in (("T4", "L4"), ("L4", "T4")) for _ in range(10)]
    few = [pair(ones, 0.5 * ones, gpus=gpus, subject="other") for gpus in (("T4", "L4"), ("L4", "T4"))]
    study = exponent_studies([*many, *few])["same units"]
    assert study.errors[POWERS.index(0.5)] == pytest.approx((0.5 + 0.0) / 2)


def test_rows_of_the_tables_that_were_not_fitted_make_pairs(tmp_path: Path) -> None:
    write_matmul_table(tmp_path / "matmul.csv.gz", [gpu("T4"), gpu("L4")], rows=1000)
    pairs = measured_pairs(tmp_path, kernel_models(("T4", "L4")))
    assert {(one.origin, one.target) for one in pairs} == {("T4", "L4"), ("L4", "T4")}
    rows = sum(len(one.origin_errors) for one in pairs)
    assert 0 < rows <= 2 * 0.2 * 1000  # 15 % are held out
    assert studies_table(exponent_studies(pairs)).row_count == 1


def test_the_command_prints_the_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_matmul_table(tmp_path / "matmul.csv.gz", [gpu("T4"), gpu("L4")], rows=1000)
    assert main([str(tmp_path), "--of", "pairs"]) == 0
    assert "same units" in capsys.readouterr().out
    assert main([str(tmp_path / "nowhere"), "--of", "pairs"]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_noise_that_does_not_come_back_costs_the_power_and_hardly_what_is_shrunk() -> None:
    draw = np.random.default_rng(1)
    origin, target = draw.normal(scale=0.05, size=(2, 400))
    (study,) = shrinkage_studies([pair(origin, target)]).values()
    assert study.pairs == 1
    assert study.alone < study.by_power
    assert study.shrunk == pytest.approx(study.alone, rel=0.03)
    # A clock a third as fast is far beyond the scatter, and comes back.
    slow = 1.1 + target
    (study,) = shrinkage_studies([pair(1.1 + origin, slow)]).values()
    assert study.shrunk < 0.4 * study.alone
    assert shrinkage_table(shrinkage_studies([pair(origin, target)])).row_count == 1
