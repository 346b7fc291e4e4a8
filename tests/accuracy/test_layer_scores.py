"""Per-layer scores on a table whose times are made from known coefficients, and on a recorded network."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest

import lightning_predict as lp
from benchmarks.accuracy.regressions import (
    COLUMNS,
    METHODS,
    SWEPT_MODELS,
    NetworkScore,
    convolution_scores,
    network_scores,
    recorded_step,
    simulated_layers,
)
from lightning_predict.errors import MeasurementTableError


def write(path: Path, rows: list[list[object]]) -> Path:
    lines = [",".join(COLUMNS), *(",".join(map(str, row)) for row in rows)]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path


def step(draw: random.Random, gpu: str, optimizer: str, *, by_size: bool = False) -> list[object]:
    """A row whose time is 0.1 ms and 1 ns for a million multiply-adds, or 10 ns for an element of the images."""
    batch, inputs, outputs = draw.randint(1, 64), draw.randint(1, 64), draw.randint(1, 64)
    taps, size, stride, same = draw.randint(1, 7), draw.randint(8, 64), draw.randint(1, 4), draw.randint(0, 1)
    side = -(-size // stride) if same else (size - taps) // stride + 1
    work = batch * inputs * outputs * taps**2 * side**2
    milliseconds = 0.1 + (1e-5 * batch * inputs * size**2 if by_size else 1e-9 * work)
    return [gpu, batch, inputs, outputs, taps, size, stride, same, optimizer, milliseconds]


def test_a_line_is_found_where_there_is_one(tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = [step(draw, "T4", optimizer) for optimizer in ("0", "3", "") for _ in range(200)]
    scores = convolution_scores(write(tmp_path / "steps.csv.gz", rows))
    assert [(score.gpu, score.steps) for score in scores] == [
        ("T4", "forward"),
        ("T4", "not stated"),
        ("T4", "training"),
    ]
    for score in scores:
        assert 15 <= score.rows <= 50  # 15 % of 200, as drawn by a hash
        for method in METHODS[:3]:
            assert score.errors[method] == pytest.approx(0, abs=1e-6)
            assert score.medians[method] == pytest.approx(0, abs=1e-6)
        assert score.errors[METHODS[3]] > 0  # the T4's own times are other ones


def test_a_line_misses_what_the_tensors_decide(tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = [step(draw, "a card of mine", "0", by_size=True) for _ in range(300)]
    (score,) = convolution_scores(write(tmp_path / "steps.csv.gz", rows))
    assert score.errors["with tensor sizes"] == pytest.approx(0, abs=1e-6)
    assert score.errors["line, as published"] > 0.1
    assert METHODS[3] not in score.errors  # the catalogue does not hold that card


@pytest.mark.parametrize(
    ("cell", "words"),
    [("fast", "line 2: latency_ms is 'fast'; expected a finite number above 0."), (0, "line 2: latency_ms is 0;")],
)
def test_wrong_cells_are_named(tmp_path: Path, cell: object, words: str) -> None:
    row = [*step(random.Random(0), "T4", "0")[:-1], cell]
    with pytest.raises(MeasurementTableError, match=re.escape(words)):
        convolution_scores(write(tmp_path / "steps.csv.gz", [row]))


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv.gz"
    path.write_bytes(gzip.compress(b"gpu,batch\n"))
    with pytest.raises(MeasurementTableError, match="line 1: in_channels is not a column"):
        convolution_scores(path)


def test_simulated_layers_add_up_to_the_device_time() -> None:
    trace = recorded_step(SWEPT_MODELS["AlexNet"], 8)
    seconds = sum(one.seconds for one in simulated_layers(trace, "T4"))
    # The iteration merges the update's small operations and takes dropout as one kernel, as a GPU does.
    assert lp.predict(trace, ["T4"], history=False)["T4"].device_seconds == pytest.approx(seconds, rel=0.25)


def test_a_network_is_predicted_from_layers_of_its_own_and_of_another() -> None:
    own, other = network_scores(["T4"], fitted_sizes=(8, 32), predicted_sizes=(16,))
    assert (own.fitted, other.fitted, own.predicted, other.predicted) == ("AlexNet", "GoogLeNet", "AlexNet", "AlexNet")
    # Layers of the network itself at a batch size in between: the line is off by less than a fifth.
    assert own.mean_error < 0.2
    assert own.mean_error < other.mean_error
    assert NetworkScore("T4", "a", "b", (0.1, -0.3)).mean_error == pytest.approx(0.2)
