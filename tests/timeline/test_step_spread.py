from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.errors import WeightsFormatError
from lightning_predict.timeline.iteration import UNCALIBRATED, StepSpread, bundled_spread, read_spread


def test_the_squares_of_both_parts_add() -> None:
    # ln 0.8 = -0.2231, half of it and 0.3: sqrt(0.1116² + 0.3²) = 0.3201; ln 2 = 0.6931: sqrt(0.3466² + 0.3²) = 0.4584
    low, high = StepSpread(kept=0.5, log_half_width=0.3).applied(0.8, 2.0)
    assert (low, high) == pytest.approx((math.exp(-0.3201), math.exp(0.4584)), rel=1e-4)
    assert UNCALIBRATED.applied(0.8, 2.0) == pytest.approx((0.8, 2.0))


@given(low=st.floats(0.1, 1.0), high=st.floats(1.0, 10.0), wider=st.floats(1.01, 3.0))
def test_what_was_wider_stays_wider(low: float, high: float, wider: float) -> None:
    spread = bundled_spread()
    below, above = spread.applied(np.array([low, low / wider]), np.array([high, high]))
    assert below[1] < below[0] <= 1 <= above[0] == above[1]


def test_the_bundled_spread_has_both_parts() -> None:
    spread = bundled_spread()
    assert 0.25 <= spread.kept < 3
    assert 0.02 <= spread.log_half_width < 0.5


def test_a_file_without_a_spread_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "whole_steps.json"
    file.write_text(json.dumps({"spread": {"kept": "much"}}))
    with pytest.raises(WeightsFormatError, match=r"spread\.kept"):
        read_spread(file)
