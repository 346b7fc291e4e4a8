import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.training.scores import HEADINGS, score_cells, score_groups
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


def test_scores_use_held_out_rows() -> None:
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
