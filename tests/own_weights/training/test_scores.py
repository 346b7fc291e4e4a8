from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from benchmarks.training.scores import HEADINGS, score_cells, score_groups, score_markdown, score_table
from lightning_predict.kernels.features import reference_seconds
from lightning_predict.kernels.models import UtilisationModels
from lightning_predict.kernels.roofline import roofline_seconds, with_sustained_peaks
from lightning_predict.own_weights.training.tables import Group, split_rows
from tests.example_gpu import SMALL
from tests.kernels.example_networks import constant_weights
from tests.own_weights.training.example import GPUS, products


def quarter_utilisation_group() -> Group:
    """Half of the kernels reach a quarter of the reference at the rate that the GPU sustains, half an eighth."""
    batch = products(2000)
    utilisation = np.where(np.arange(2000) % 2, 0.25, 0.125)
    return Group(
        "SMALL", "synthetic", batch, reference_seconds(batch, [with_sustained_peaks(SMALL)])[0] / utilisation, 0.0
    )


def test_scores_are_those_of_the_held_out_rows() -> None:
    group = quarter_utilisation_group()
    models = UtilisationModels(constant_weights("matmul_single", utilisation=0.25, interval=math.log(1.5)))
    (score,) = score_groups(models, [group], GPUS, seed=0)
    held_out = split_rows(group.batch.columns, seed=0).held_out
    slow = float((np.arange(2000)[held_out] % 2 == 0).mean())
    assert (score.operation, score.dtype, score.gpu, score.own_weights) == ("linear", "float32", "SMALL", False)
    assert score.rows == held_out.sum()
    # Right on the fast half, half of the time on the slow half, which a factor of 1.5 does not reach.
    assert score.mean == pytest.approx(0.5 * slow, rel=1e-3)
    assert score.bias == pytest.approx(-0.5 * slow, rel=1e-3)
    assert score.coverage == pytest.approx(1 - slow)
    assert score.ninetieth == pytest.approx(0.5, rel=1e-3)
    roofline = roofline_seconds(group.batch, [SMALL])[0] / group.seconds - 1
    assert score.baselines["roofline"].mean == pytest.approx(np.abs(roofline[held_out]).mean())
    assert set(score.baselines) == {"roofline"}  # no other GPU measured it, and no network was trained


def test_rows_that_show_the_launch_are_not_scored() -> None:
    group = quarter_utilisation_group()
    timed = Group("SMALL", "neusight", group.batch, group.seconds, 50e-6)
    models = UtilisationModels(constant_weights("matmul_single", utilisation=0.25, interval=0.1))
    (all_rows,) = score_groups(models, [group], GPUS, seed=0)
    (long_rows,) = score_groups(models, [timed], GPUS, seed=0)
    held_out = split_rows(group.batch.columns, seed=0).held_out
    assert long_rows.rows == (held_out & (group.seconds >= 2e-4)).sum() < all_rows.rows


def test_calls_are_scored_with_the_launch_that_was_taken_off() -> None:
    plain = quarter_utilisation_group()
    launch = plain.seconds  # as long as the work itself: half of each call
    group = replace(plain, taken_off_seconds=launch)
    models = UtilisationModels(constant_weights("matmul_single", utilisation=0.25, interval=0.1))
    (score,) = score_groups(models, [group], GPUS, seed=0)
    (without,) = score_groups(models, [plain], GPUS, seed=0)
    # The error is of the work, and the work is half of the call.
    assert score.called == pytest.approx(score.mean / 2)
    assert score.mean == without.mean
    assert without.called is None
    cells = dict(zip(HEADINGS, score_cells(score), strict=True))
    assert cells["calls: mean %"] == f"{50 * score.mean:.1f}"


def test_what_no_model_or_no_catalogue_row_serves_is_not_scored() -> None:
    models = UtilisationModels(constant_weights("matmul_single", utilisation=0.25, interval=0.1))
    group = quarter_utilisation_group()
    stranger = Group("no-such-GPU", "synthetic", group.batch, group.seconds, 0.0)
    half = Group("SMALL", "synthetic", products(500, dtype="bfloat16"), group.seconds[:500], 0.0)
    assert score_groups(models, [stranger, half], GPUS, seed=0) == ()


def test_what_another_gpu_measured_is_scaled_to_each_and_no_raw_network_is_made_up() -> None:
    mine = quarter_utilisation_group()
    twin = Group("BIG", "synthetic", mine.batch, mine.seconds / 2, 0.0)
    models = UtilisationModels(constant_weights("matmul_single", utilisation=0.25, interval=0.1))
    on_big, on_small = score_groups(models, [mine, twin], GPUS, seed=0)
    # BIG has twice the peak and takes half the time: the ratio is right both ways.
    assert on_small.baselines["peak ratio"].mean == pytest.approx(0, abs=1e-9)
    assert on_big.baselines["peak ratio"].predictions == on_small.rows
    cells = dict(zip(HEADINGS, score_cells(on_small), strict=True))
    assert cells["peak ratio"] == "0.0 / 0.0"
    # Three times the bandwidth: half the time, times three, is 50 % too long.
    assert cells["bandwidth ratio"] == "50.0 / 50.0"
    assert cells["raw network"] == ""


def test_both_tables_hold_the_same_cells() -> None:
    models = UtilisationModels(constant_weights("matmul_single", utilisation=0.25, interval=0.1))
    scores = score_groups(models, [quarter_utilisation_group()], GPUS, seed=0)
    cells = score_cells(scores[0])
    assert len(cells) == len(HEADINGS)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(score_table(scores))
    for cell in (*cells, *HEADINGS):
        assert cell in captured.get()
        assert f"| {cell} |" in score_markdown(scores)
