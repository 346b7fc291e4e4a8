from dataclasses import replace

import numpy as np

from tests.weights.example import network


def test_a_network_knows_shapes_that_agree_in_what_all_trained_ones_had_in_common() -> None:
    plain = network()
    low, high = plain.low.copy(), plain.high.copy()
    low[0] = high[0] = 3.0  # the same in all that it was trained on
    tuned = replace(plain, low=low, high=high)
    rows = np.zeros((3, len(plain.features)), np.float32)
    rows[:, 0] = [3.0, 3.0 + 1e-6, 3.5]
    rows[:, 1] = [0.0, 50.0, 0.0]  # far outside of what varied: that is clipped, not unknown
    assert tuned.matches_constant_features(rows).tolist() == [True, True, False]
    assert plain.matches_constant_features(rows).all()
