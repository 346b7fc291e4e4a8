"""What recorded kernels say about a machine."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy.machine_rates import HiddenScore, hidden_score, hidden_table, other_steps_table, recorded
from benchmarks.accuracy.own_gpu import FOLDER
from benchmarks.result_files import table_of


def test_hidden_operations_of_an_own_recording_are_nearer_with_the_machines_rate() -> None:
    name, trace, gpu = next(one for one in recorded(FOLDER / "recordings") if one[0] == "resnet50_eager")
    score = hidden_score(name, trace, gpu)
    assert score is not None
    assert score.from_rates < score.from_shapes
    assert score.operations > 400


def test_the_table_has_the_mean_and_the_number_of_nearer_recordings() -> None:
    scores = [HiddenScore("a", "T4", 30, 0.2, 0.1), HiddenScore("b", "T4", 40, 0.1, 0.12)]
    rows = {row[0]: row[1:] for row in table_of(hidden_table(scores)).rows}
    assert rows["a"] == ("T4", "30", "20.0", "10.0")
    assert rows["mean"] == ("", "2", "15.0", "11.0")
    assert rows["nearer"] == ("", "2", "1", "1")


def test_a_step_takes_the_rates_of_the_other_steps() -> None:
    """Matmuls of the others take 2 and 0.5 times as long as predicted, so their rate is 1; other work takes twice."""
    steps = [
        ("own", {"tensor": (1.0, 0.8), "vector": (1.0, 1.2)}),
        ("slow", {"tensor": (2.0, 1.0), "vector": (2.0, 1.0)}),
        ("fast", {"tensor": (0.5, 1.0)}),
    ]
    rows = {row[0]: tuple(map(float, row[1:])) for row in table_of(other_steps_table(steps)).rows}
    assert rows["own"] == pytest.approx((100 * (2.0 / 2 - 1), 100 * ((0.8 + 2.4) / 2 - 1)))
    assert np.isfinite(rows["mean"]).all()
