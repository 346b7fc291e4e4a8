"""Operations that are predicted through others, against tables written by hand; rooflines stand in for the models."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.training.surrogates import ALL_GPUS, proxy_scores, proxy_table, published_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import operation_shape
from lightning_predict.kernels.operator_times import operator_seconds

MODELS = kernel_models(())


def write(path: Path, heading: str, *rows: Sequence[object]) -> None:
    with gzip.open(path, "wt", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(heading.split())
        writer.writerows(rows)


RECURRENT = "gpu op dtype hidden batch steps forward_ms backward_input_ms backward_weight_ms backward_ms source"


def test_a_recurrent_row_leaves_the_products_with_the_input_out(tmp_path: Path) -> None:
    row = ("V100", "gru", "float16 (tensor cores)", 512, 32, 10, 3.0, 2.0, 1.5, "", "deepbench")
    write(tmp_path / "recurrent.csv.gz", RECURRENT, row)
    forward, backward = published_times(tmp_path)
    words = {"batch": 32, "steps": 10, "input_size": 512, "hidden": 512}
    assert forward.shape == operation_shape("gru", "float16", **words)
    assert forward.left_out == (
        operation_shape("linear", "float16", m=320, n=3 * 512, k=512),
    )  # three gates, all steps at once
    assert forward.seconds == pytest.approx(3.0e-3)
    assert backward.shape == operation_shape("gru_backward", "float16", **words)
    assert backward.left_out == (
        operation_shape("linear", "float16", m=320, n=512, k=3 * 512),
        operation_shape("linear", "float16", m=3 * 512, n=512, k=320),
    )
    assert backward.seconds == pytest.approx(3.5e-3)  # both gradients


def test_error_excludes_the_left_out_products(tmp_path: Path) -> None:
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
