from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest
import torch

from lightning_predict.errors import CaptureError, InvalidArgumentError, UnknownOperationError
from lightning_predict.fitting.measuring.calls import calls_of
from lightning_predict.fitting.measuring.clock import time_call
from lightning_predict.fitting.measuring.run import measure
from lightning_predict.fitting.measuring.shapes import DRAWERS, draw_shapes
from lightning_predict.kernels.operations import problem_batch

CPU = torch.device("cpu")
TINY = {
    "linear": {"m": 8, "n": 16, "k": 4},
    "bmm": {"b": 2, "m": 8, "n": 16, "k": 4},
    "attention": {"batch": 1, "heads": 4, "kv_heads": 2, "seq": 8, "head_dim": 4, "causal": 1},
    "conv2d": {
        "batch": 2,
        "in_channels": 4,
        "out_channels": 4,
        "height": 8,
        "width": 8,
        "kernel_height": 3,
        "kernel_width": 3,
        "stride_height": 2,
        "stride_width": 2,
        "padding_height": 1,
        "padding_width": 1,
        "groups": 4,
    },
    **{
        name: {"batch": 2, "steps": 3, "input_size": 4, "hidden": 5, "layers": 2, "directions": 2}
        for name in ("lstm", "gru", "rnn")
    },
}


@pytest.mark.parametrize("operation", sorted(DRAWERS))
def test_every_operation_can_be_called_forward_and_backward(operation: str) -> None:
    words = TINY.get(operation, {"rows": 16, "cols": 32})
    calls = calls_of(operation, dict(words), torch.float32, CPU)
    assert operation in calls
    for name, call in calls.items():
        assert call() is not None, name
        assert time_call(call, CPU, replays=2).eager_seconds > 0


@pytest.mark.parametrize("operation", sorted(DRAWERS))
def test_drawn_shapes_are_valid_problems_and_repeat(operation: str) -> None:
    shapes = draw_shapes(operation, 50, seed=1)
    assert shapes == draw_shapes(operation, 50, seed=1)
    assert shapes != draw_shapes(operation, 50, seed=2)
    for words in shapes:
        assert problem_batch(operation, "float32", **words).bytes_moved[0] > 0


def test_the_table_has_the_columns_of_the_public_ones_and_one_row_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lightning_predict.fitting.measuring.run.draw_shapes", lambda operation, count, seed: [dict(TINY["conv2d"])]
    )
    done = measure(tmp_path, operations=["conv2d"], dtypes=["float32"], problems=1, device="cpu", gpu="T4")
    assert (done.rows, done.skipped) == (3, ())
    with gzip.open(done.files[0], "rt") as file:
        rows = list(csv.DictReader(file))
    assert [row["op"] for row in rows] == ["conv2d", "conv2d_backward_input", "conv2d_backward_weight"]
    assert rows[0]["gpu"] == "T4"
    assert rows[0]["kernel_height"] == "3"
    assert rows[0]["dilation_height"] == "1"
    assert float(rows[0]["latency_ms"]) > 0
    assert rows[0]["warm_ms"] == ""  # no graphs on the CPU


def test_a_problem_that_cannot_run_is_said_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impossible = {"m": 2**40, "n": 2**40, "k": 2**40}
    monkeypatch.setattr(
        "lightning_predict.fitting.measuring.run.draw_shapes",
        lambda operation, count, seed: [impossible, dict(TINY["linear"])],
    )
    done = measure(tmp_path, operations=["linear"], dtypes=["float32"], problems=2, device="cpu")
    assert done.rows == 1
    assert len(done.skipped) == 1
    assert "linear float32 {'m': 1099511627776" in done.skipped[0]


def test_tf32_switches_are_as_before(tmp_path: Path) -> None:
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    measure(tmp_path, operations=["add"], dtypes=["tf32"], problems=1, device="cpu")
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_without_cuda_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="No CUDA device here to measure on"):
        measure(tmp_path)


@pytest.mark.parametrize(("dtypes", "problems"), [(["half"], 1), (["float32"], 0)])
def test_bad_arguments_are_named(tmp_path: Path, dtypes: list[str], problems: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected dtypes out of \['float32', 'tf32'"):
        measure(tmp_path, dtypes=dtypes, problems=problems, device="cpu")


def test_an_operation_without_a_benchmark_lists_the_others(tmp_path: Path) -> None:
    with pytest.raises(UnknownOperationError, match=r"No benchmark for 'fft'; there are: add, .*softmax"):
        measure(tmp_path, operations=["fft"], device="cpu")


def test_training_reads_what_was_measured(tmp_path: Path) -> None:
    from lightning_predict.fitting.tables import read_tables

    measure(tmp_path, operations=["gelu"], dtypes=["float32"], problems=2, device="cpu", gpu="T4")
    group, backward = read_tables(tmp_path)
    assert (group.gpu, group.source, group.batch.operation) == ("T4", "own", "gelu")
    assert backward.batch.operation == "gelu_backward"
    assert len(group.seconds) == 2
    assert group.floor_seconds == 0
