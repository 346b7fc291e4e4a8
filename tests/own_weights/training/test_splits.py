import numpy as np

from lightning_predict.own_weights.training.tables import (
    CALIBRATION_SHARE,
    HELD_OUT_SHARE,
    shape_shares,
    split_rows,
)
from tests.own_weights.training.example import products


def test_every_row_is_on_exactly_one_side_and_the_shares_hold() -> None:
    columns = products(20_000).columns
    split = split_rows(columns, seed=0)
    assert ((split.fitted.astype(int) + split.calibration + split.held_out) == 1).all()
    # 20,000 rows: the standard deviation of a share of 15 % is sqrt(.15 x .85 / 20,000) = 0.25 %.
    assert abs(split.held_out.mean() - HELD_OUT_SHARE) < 0.01
    assert abs(split.calibration.mean() - CALIBRATION_SHARE) < 0.01


def test_split_does_not_depend_on_row_order() -> None:
    columns = products(500).columns
    backwards = {word: values[::-1] for word, values in columns.items()}
    np.testing.assert_array_equal(split_rows(columns, seed=0).held_out, split_rows(backwards, seed=0).held_out[::-1])


def test_split_is_pinned() -> None:
    columns = {"m": np.array([64.0, 128, 4096]), "n": np.array([64.0, 64, 4096]), "k": np.array([64.0, 64, 4096])}
    np.testing.assert_allclose(shape_shares(columns, seed=0), PINNED, atol=1e-12)


PINNED = [0.3256063975642717, 0.8410363911664533, 0.8025874845885105]
"""Recorded once: a change would move held-out shapes into the fit."""


def test_a_shape_parameter_that_came_later_moves_only_the_shapes_that_have_it() -> None:
    columns = dict(products(200).columns)
    zeros, ones = np.zeros(200), np.ones(200)
    before = shape_shares(columns, seed=0)
    np.testing.assert_array_equal(shape_shares({**columns, "channels_last": zeros}, seed=0), before)
    assert (shape_shares({**columns, "channels_last": ones}, seed=0) != before).all()
