"""DLRM's published rows, and the table of two planners."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.accuracy import recommendation
from benchmarks.accuracy.recommendation import (
    QUESTIONS,
    DlrmResult,
    Planned,
    dlrm_table,
    plans_table,
    print_report,
    published,
    read_dlrm_cases,
)
from benchmarks.accuracy.workloads.dlrm import criteo_rows, criteo_trace
from lightning_predict.embeddings.tables import tables_of_trace

HEAD = "path,framework,heading,hardware,gpus,batch_per_gpu,precision,column,value,unit,row_json"
DLRM = "PyTorch/Recommendation/DLRM/README.md,PyTorch,DLRM"


def test_rows_of_up_to_eight_gpus_are_read(tmp_path: Path) -> None:
    rows = (
        DLRM + ',DGX A100 (8x A100 80GB),8.0,8k,AMP,T,16500000.0,,"{""Model size"": ""large""}"',
        DLRM + ',DGX-1 (8x V100 32GB),1.0,64k,FP32,T,672000.0,,"{""Model size"": ""small""}"',
        DLRM + ',DGX-2 (16x V100 32GB),16.0,4k,AMP,T,10800000.0,,"{""Model size"": ""large""}"',
        'PyTorch/Other/README.md,PyTorch,Other,DGX-1 (8x V100 32GB),1.0,64k,FP32,T,1.0,,"{}"',
    )
    path = tmp_path / "deep_learning_examples.csv"
    path.write_text("\n".join((HEAD, *rows)) + "\n")
    eight, one = read_dlrm_cases(path)
    assert (eight.layout, eight.size, eight.precision, eight.batch) == ("8xA100-SXM-80GB", "large", "AMP", 8192)
    assert (one.layout, one.size, one.batch, one.samples_per_second) == ("V100-SXM2-32GB", "small", 65536, 672_000)
    # 8 x 8,192 samples at 16.5 million a second.
    result = DlrmResult(eight, 0.004, 0.003, 0.005, 0.002)
    assert result.measured_seconds == pytest.approx(65536 / 16.5e6)
    assert result.error == pytest.approx(0.004 / (65536 / 16.5e6) - 1)
    out = io.StringIO()
    Console(file=out, width=160).print(dlrm_table([result]))
    assert "median 0.7" in out.getvalue()
    assert "1 of 1" in out.getvalue()
    (case,) = published([result])
    assert (case.model, case.kind, case.precision) == (
        "DLRM, large tables, 8,192 samples a GPU",
        "recommender",
        "16 bits",
    )
    assert case.error == pytest.approx(result.error, abs=1e-3)


def test_tables_are_as_large_as_their_readme_says() -> None:
    # 15.6 and 84.9 GiB of float32 in rows of 128.
    sizes = [round(sum(criteo_rows(size)) * 128 * 4 / 2**30, 1) for size in ("small", "large")]
    assert sizes == [15.6, 84.9]
    traced = tables_of_trace(criteo_trace("small", precision="AMP", batch=64))
    assert len(traced.tables) == 26
    assert {(table.dim, table.pooling, table.vectors) for table in traced.tables} == {(128, 1, 1)}


def test_two_planners_agree_on_the_order_of_ways() -> None:
    ours = {"table_wise": 1.0, "row_wise": 3.0, "column_wise": 2.0, "data_parallel": None, "best": 1.0}
    theirs = {"table_wise": 1.0, "row_wise": 2.0, "column_wise": 4.0, "data_parallel": None, "best": 1.0}
    planned = Planned(QUESTIONS[0], "8xL4", ours, theirs, 2.0)
    assert planned.agreement == pytest.approx(2 / 3)  # they put row-wise before column-wise
    assert Planned(QUESTIONS[0], "8xL4", ours, dict.fromkeys(theirs), None).agreement is None
    out = io.StringIO()
    Console(file=out, width=220).print(plans_table([planned]))
    assert "3000.00 / 2000.00" in out.getvalue()
    assert "67 %" in out.getvalue()


def test_without_torchrec_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none() -> None:
        raise ImportError("No module named 'torchrec'")

    monkeypatch.setattr(recommendation, "compared_plans", none)
    out = io.StringIO()
    print_report(tmp_path, Console(file=out, width=160))
    assert "No plans of TorchRec beside ours: No module named 'torchrec'" in out.getvalue()
