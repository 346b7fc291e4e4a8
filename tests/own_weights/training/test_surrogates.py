"""Operations that are predicted through others, against tables written by hand; rooflines stand in for the models."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.training.surrogates import ALL_GPUS, proxy_scores, proxy_table, published_times
from lightning_predict.base.errors import MeasurementTableError, UnknownGpuError
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import problem
from lightning_predict.kernels.operator_times import operator_seconds

MODELS = kernel_models(())


def write(path: Path, heading: str, *rows: Sequence[object]) -> None:
    with gzip.open(path, "wt", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(heading.split())
        writer.writerows(rows)


RECURRENT = "gpu op dtype hidden batch steps forward_ms backward_input_ms backward_weight_ms backward_ms source"
NORMS = "gpu op dtype rows cols implementation forward_ms backward_ms source"
ATTENTIONS = (
    "gpu op dtype batch heads kv_heads seq kv_seq head_dim head_dim_v mask window implementation forward_ms "
    "backward_ms source"
)
CONVOLUTIONS = (
    "gpu op dtype batch in_channels height width out_channels kernel_height kernel_width pad_h pad_w stride_h stride_w "
    "forward_ms backward_input_ms backward_weight_ms source"
)


def test_a_recurrent_row_leaves_the_products_with_the_input_out(tmp_path: Path) -> None:
    row = ("V100", "gru", "float16 (tensor cores)", 512, 32, 10, 3.0, 2.0, 1.5, "", "deepbench")
    write(tmp_path / "recurrent.csv.gz", RECURRENT, row)
    forward, backward = published_times(tmp_path)
    words = {"batch": 32, "steps": 10, "input_size": 512, "hidden": 512}
    assert forward.problem == problem("gru", "float16", **words)
    assert forward.left_out == (
        problem("linear", "float16", m=320, n=3 * 512, k=512),
    )  # three gates, all steps at once
    assert forward.seconds == pytest.approx(3.0e-3)
    assert backward.problem == problem("gru_backward", "float16", **words)
    assert backward.left_out == (
        problem("linear", "float16", m=320, n=512, k=3 * 512),
        problem("linear", "float16", m=3 * 512, n=512, k=320),
    )
    assert backward.seconds == pytest.approx(3.5e-3)  # both gradients


def test_a_backward_time_of_unknown_parts_is_left_out(tmp_path: Path) -> None:
    row = ("P100", "lstm", "float16", 512, 32, 10, 3.0, "", "", 5.0, "deepbench")
    write(tmp_path / "recurrent.csv.gz", RECURRENT, row)
    assert [each.problem.operation for each in published_times(tmp_path)] == ["lstm"]


def test_norms_of_the_library_alone_count(tmp_path: Path) -> None:
    own = ("H200-SXM-141GB", "rms_norm", "bfloat16", 4096, 2048, "pytorch", 0.013, 0.035, "cudnn-frontend")
    other = ("H200-SXM-141GB", "rms_norm", "bfloat16", 4096, 2048, "torch_compile", 0.01, 0.03, "cudnn-frontend")
    write(tmp_path / "norm_passes.csv.gz", NORMS, own, other)
    found = list(published_times(tmp_path))
    assert [each.problem.operation for each in found] == ["rms_norm", "rms_norm_backward"]
    assert [each.seconds for each in found] == pytest.approx([13e-6, 35e-6])


def test_attention_counts_where_its_shape_can_be_said(tmp_path: Path) -> None:
    shape = ("H200-SXM-141GB", "attention", "bfloat16", 2, 8, 4, 1024, 1024)
    rest = ("cudnn", 0.1, 0.3, "cudnn-frontend")
    write(
        tmp_path / "attention_passes.csv.gz",
        ATTENTIONS,
        (*shape, 128, 128, "top_left", "", *rest),
        (*shape, 192, 128, "top_left", "", *rest),  # values of another width
        (*shape, 128, 128, "top_left", 512, *rest),  # a window
        (*shape, 128, 128, "no_mask", "", "cudnn", 0.1, "", "cudnn-frontend"),  # forward alone
    )
    (found,) = published_times(tmp_path)
    assert found.problem == problem(
        "attention_backward", "bfloat16", batch=2, heads=8, kv_heads=4, seq=1024, head_dim=128, causal=1
    )


def test_convolutions_that_are_fitted_have_no_proxy(tmp_path: Path) -> None:
    shape = (8, 16, 32, 28, 64, 3, 5, 1, 2, 2, 1)
    write(
        tmp_path / "conv2d_passes.csv.gz",
        CONVOLUTIONS,
        ("V100", "conv2d", "float32", *shape, 0.1, 0.2, 0.3, "deepbench"),
        ("V100", "conv2d", "float16 (tensor cores)", *shape, 0.1, "", 0.3, "deepbench"),
    )
    forward, weight = published_times(tmp_path)
    words = {
        "batch": 8,
        "in_channels": 16,
        "out_channels": 64,
        "height": 32,
        "width": 28,
        "kernel_height": 3,
        "kernel_width": 5,
        "padding_height": 1,
        "padding_width": 2,
        "stride_height": 2,
        "stride_width": 1,
    }
    assert forward.problem == problem("conv2d", "float16", **words)
    assert weight.problem == problem("conv2d_backward_weight", "float16", **words)


def test_errors_are_those_of_the_prediction_less_what_was_left_out(tmp_path: Path) -> None:
    whole = float(operator_seconds("lstm", "V100", dtype="float16", batch=64, steps=25, input_size=1024, hidden=1024))
    product = float(operator_seconds("linear", "V100", dtype="float16", m=1600, n=4096, k=1024))
    milliseconds = 1e3 * (whole - product)
    common = ("lstm", "float16", 1024, 64, 25)
    write(
        tmp_path / "recurrent.csv.gz",
        RECURRENT,
        ("V100", *common, milliseconds, "", "", "", "deepbench"),
        ("V100", *common, milliseconds / 1.1, "", "", "", "deepbench"),  # predicted a tenth too long
        ("T4", *common, 1e9, "", "", "", "deepbench"),  # predicted far too short
    )
    t4, v100, everywhere = proxy_scores(tmp_path, MODELS)
    assert (v100.operation, v100.dtype, v100.gpu, v100.rows) == ("lstm", "float16", "V100", 2)
    assert v100.median == v100.mean == v100.bias == pytest.approx(0.05)
    assert v100.coverage == 1
    assert (t4.gpu, t4.coverage) == ("T4", 0)
    assert t4.bias == pytest.approx(-1)
    assert (everywhere.gpu, everywhere.rows) == (ALL_GPUS, 3)
    assert everywhere.median == pytest.approx(0.1)
    assert everywhere.coverage == pytest.approx(2 / 3)
    console = Console(width=150)
    with console.capture() as captured:
        console.print(proxy_table([v100]))
    assert "lstm" in captured.get()
    assert "5.0" in captured.get()


def test_own_measurements_count_where_no_network_serves_them(tmp_path: Path) -> None:
    columns = "gpu op dtype rows cols latency_ms warm_ms source"
    seconds = float(operator_seconds("silu", "T4", dtype="float32", rows=4096, cols=1024))
    write(tmp_path / "own_silu.csv.gz", columns, ("T4", "silu", "float32", 4096, 1024, 1e3 * seconds / 1.2, "", "own"))
    write(tmp_path / "own_relu.csv.gz", columns, ("T4", "relu", "float32", 4096, 1024, 1.0, "", "own"))
    one, everywhere = proxy_scores(tmp_path, MODELS)
    assert (one.operation, one.gpu, everywhere.gpu) == ("silu", "T4", ALL_GPUS)  # relu has a network
    assert one.bias == pytest.approx(0.2)


def test_a_folder_without_such_tables_has_no_scores(tmp_path: Path) -> None:
    assert proxy_scores(tmp_path, MODELS) == ()


def test_a_table_that_cannot_be_read_is_named_with_its_row(tmp_path: Path) -> None:
    write(tmp_path / "norm_passes.csv.gz", "gpu op dtype", ("T4", "rms_norm", "bfloat16"))
    with pytest.raises(
        MeasurementTableError, match=r"norm_passes\.csv\.gz, line 2 has KeyError\('implementation'\); expected"
    ):
        tuple(published_times(tmp_path))
    row = ("T4", "rms_norm", "bfloat16", "many", 2048, "pytorch", 0.1, 0.2, "own")
    write(tmp_path / "norm_passes.csv.gz", NORMS, row)
    with pytest.raises(MeasurementTableError, match=r"line 2 has ValueError.*'many'.*expected the columns and numbers"):
        tuple(published_times(tmp_path))


def test_an_unknown_gpu_is_named(tmp_path: Path) -> None:
    row = ("NOPE-1", "rms_norm", "bfloat16", 16, 2048, "pytorch", 0.1, 0.2, "own")
    write(tmp_path / "norm_passes.csv.gz", NORMS, row)
    with pytest.raises(UnknownGpuError, match="NOPE-1"):
        proxy_scores(tmp_path, MODELS)
