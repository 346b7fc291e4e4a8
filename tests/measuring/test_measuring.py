from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest
import torch

from lightning_predict.errors import CaptureError, InvalidArgumentError, UnknownOperationError
from lightning_predict.kernels.operations import operation_kind, operation_names, problem_batch
from lightning_predict.measuring.benchmarks import BENCHMARKS, draw_problems
from lightning_predict.measuring.clock import time_call
from lightning_predict.measuring.run import measure

CPU = torch.device("cpu")
ATTENTION = {"batch": 1, "heads": 4, "kv_heads": 2, "seq": 8, "head_dim": 4, "causal": 1}
CHANNELS = {"batch": 2, "in_channels": 4, "out_channels": 4, "groups": 4}
SETTINGS = {"kernel": 3, "stride": 2, "padding": 1, "dilation": 1}


def settings(*sides: str) -> dict[str, int]:
    return {f"{name}_{side}": value for side in sides for name, value in SETTINGS.items()}


TINY = {
    "linear": {"m": 8, "n": 16, "k": 4},
    "bmm": {"b": 2, "m": 8, "n": 16, "k": 4},
    "attention": ATTENTION,
    "eager_attention": {**ATTENTION, "kv_heads": 4},
    "conv1d": {**CHANNELS, "length": 8, "kernel_size": 3, "stride": 2, "padding": 1, "dilation": 1},
    "conv2d": {**CHANNELS, "height": 8, "width": 8, **settings("height", "width")},
    "conv3d": {**CHANNELS, "depth": 8, "height": 8, "width": 8, **settings("depth", "height", "width")},
    "conv_transpose2d": {**CHANNELS, "height": 8, "width": 8, **settings("height", "width")},
    **{
        name: {"batch": 2, "steps": 3, "input_size": 4, "hidden": 5, "layers": 2, "directions": 2}
        for name in ("lstm", "gru", "rnn")
    },
    **{name: {"batch": 2, "n": 6} for name in ("cholesky", "eig", "eigh", "matrix_exponential")},
    **{name: {"batch": 2, "m": 8, "n": 6} for name in ("lu", "qr", "svd")},
    "triangular_solve": {"batch": 2, "n": 6, "columns": 3},
    "fft": {"batch": 2, "length": 16, "real": 1},
    "embedding_bag": {"bags": 4, "lookups": 3, "rows": 16, "dim": 8},
    **{
        name: {"batch": 1, "channels": 2, "height": 8, "width": 8, "kernel_size": 2, "stride": 2}
        for name in ("avg_pool2d", "max_pool2d")
    },
    **{name: {"parameters": 100, "fused": 1} for name in ("adam", "adamw", "sgd", "adagrad")},
    "cast": {"rows": 16, "cols": 32, "source_bytes": 4, "target_bytes": 2},
    "host_copy": {"size_bytes": 4096},
}
MATRIX = {"rows": 16, "cols": 32}


@pytest.mark.parametrize("operation", sorted(BENCHMARKS))
def test_every_operation_can_be_called_forward_and_backward(operation: str) -> None:
    calls = BENCHMARKS[operation].calls(dict(TINY.get(operation, MATRIX)), torch.float32, CPU)
    assert operation in calls
    for name, call in calls.items():
        assert call() is not None, name
        assert time_call(call, CPU, replays=2).eager_seconds > 0


def test_every_operation_has_a_benchmark_but_messages_updates_of_bags_and_what_is_known_by_its_bytes() -> None:
    timed = {
        name
        for operation, benchmark in BENCHMARKS.items()
        for name in benchmark.calls(dict(TINY.get(operation, MATRIX)), torch.float32, CPU)
    }
    others = {name for name in operation_names() if operation_kind(name).units == "fabric"}
    assert set(operation_names()) - timed == others | {
        "limited_transfer",
        "transfer",
        "untranslated",
        "sparse_product",
        "embedding_bag_backward",
        "causal_attention",  # timed as attention with a mask
        "causal_attention_backward",
    }


@pytest.mark.parametrize("operation", sorted(BENCHMARKS))
def test_drawn_shapes_are_valid_problems_and_repeat(operation: str) -> None:
    shapes = draw_problems(operation, 50, seed=1)
    assert shapes == draw_problems(operation, 50, seed=1)
    assert shapes != draw_problems(operation, 50, seed=2)
    for words in shapes:
        assert problem_batch(operation, "float32", **words).bytes_moved[0] > 0


@pytest.mark.parametrize("operation", ["conv1d", "conv2d", "conv3d", "conv_transpose2d"])
def test_drawn_convolutions_have_an_output_and_every_kind_is_among_them(operation: str) -> None:
    shapes = draw_problems(operation, 300, seed=0)
    dilations = [words.get("dilation", words.get("dilation_height")) for words in shapes]
    assert {words["groups"] > 1 for words in shapes} == {True, False}  # depthwise
    assert set(dilations) == {1, 2}
    if operation != "conv1d":
        assert {words["height"] == words["width"] for words in shapes} == {True, False}
    for words in shapes:
        for side in ("length", "depth", "height", "width"):
            if side in words:
                taps = words.get(f"kernel_{side}", words.get("kernel_size", 1))
                dilation = words.get(f"dilation_{side}", words.get("dilation", 1))
                assert words[side] >= dilation * (taps - 1) + 1


def test_a_convolutions_calls_compute_its_gradients() -> None:
    calls = BENCHMARKS["conv2d"].calls(dict(TINY["conv2d"]), torch.float32, CPU)
    output, to_input, to_weight = (calls[f"conv2d{suffix}"]() for suffix in ("", "_backward_input", "_backward_weight"))
    assert isinstance(output, torch.Tensor)
    assert output.shape == (2, 4, 4, 4)
    assert isinstance(to_input, tuple)
    assert [None if part is None else tuple(part.shape) for part in to_input] == [(2, 4, 8, 8), None, None]
    assert isinstance(to_weight, tuple)
    assert [None if part is None else tuple(part.shape) for part in to_weight] == [None, (4, 1, 3, 3), None]


@pytest.mark.parametrize(("parameters", "tensors"), [(100, 24), (5, 5)])
def test_an_update_changes_as_many_parameters_as_asked_for(parameters: int, tensors: int) -> None:
    calls = BENCHMARKS["sgd"].calls({"parameters": parameters, "fused": 0}, torch.float32, CPU)
    optimizer = calls["sgd"]()
    assert isinstance(optimizer, torch.optim.SGD)
    updated = optimizer.param_groups[0]["params"]
    assert (sum(tensor.numel() for tensor in updated), len(updated)) == (parameters, tensors)
    assert optimizer.param_groups[0]["foreach"] is True


def test_the_table_has_the_columns_of_the_public_ones_and_one_row_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lightning_predict.measuring.run.draw_problems", lambda operation, count, seed: [dict(TINY["conv2d"])]
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
        "lightning_predict.measuring.run.draw_problems",
        lambda operation, count, seed: [impossible, dict(TINY["linear"])],
    )
    done = measure(tmp_path, operations=["linear"], dtypes=["float32"], problems=2, device="cpu")
    assert done.rows == 2  # forward and backward
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
    with pytest.raises(UnknownOperationError, match=r"No benchmark for 'hough'; there are: adagrad, adam, .*softmax"):
        measure(tmp_path, operations=["hough"], device="cpu")


def test_training_reads_what_was_measured(tmp_path: Path) -> None:
    from lightning_predict.training.tables import read_tables

    measure(tmp_path, operations=["gelu"], dtypes=["float32"], problems=2, device="cpu", gpu="T4")
    group, backward = read_tables(tmp_path)
    assert (group.gpu, group.source, group.batch.operation) == ("T4", "own", "gelu")
    assert backward.batch.operation == "gelu_backward"
    assert len(group.seconds) == 2
    assert group.floor_seconds == 0


def test_a_trial_leaves_out_what_takes_a_processor_long_and_says_how_far_it_is(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    done = measure(
        tmp_path,
        operations=["linear", "gelu"],
        dtypes=["float32"],
        problems=3,
        device="cpu",
        is_trial=True,
        progress=lambda name, finished, total: seen.append((name, finished, total)),
    )
    assert seen == [("linear", 0, 2), ("gelu", 1, 2)]
    assert any(words.endswith("too large to try on a processor") for words in done.skipped)
