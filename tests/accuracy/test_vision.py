"""Readers and scores of the published steps of timm and torchvision, on a few rows and a trace of our own."""

from __future__ import annotations

import gzip
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import lightning_predict as lp
from benchmarks.accuracy.vision import (
    VisionResult,
    evaluate_vision,
    family_of,
    layout_table,
    print_report,
    published,
    read_timm_cases,
    read_torchvision_cases,
    summary_tables,
)
from benchmarks.accuracy.workloads.vision import VisionStep, vision_trace
from benchmarks.runs import RUNS
from lightning_predict.base.errors import MeasurementTableError, MissingDependencyError
from lightning_predict.record.trace import Trace
from lightning_predict.reports.published_cases import StepDescription

TIMM = """file,mode,precision,layout,torch,cuda,gpu,compiled,model,batch,img_size,step_ms
benchmark-infer-amp-nchw-pt112-cu113-rtx3090.csv,infer,amp,nchw,1.1,113,RTX-3090,0,tiny,256,224,50
benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv,infer,amp,nchw,2.4,124,RTX-3090,0,tiny,256,224,40
benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv,infer,amp,nchw,2.4,124,RTX-3090,1,tiny,256,224,30
benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv,infer,amp,nhwc,2.4,124,RTX-3090,0,tiny,256,224,32
benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv,train,amp,nchw,1.1,113,RTX-3090,0,other,128,224,90
"""

TORCHVISION = """gpu,n_gpus,precision,mode,model,batch_per_gpu,median_ms,n
GeForce RTX 2080 Ti,1,half,infer,resnet18,12,3.5,50
GeForce RTX 2080 Ti,2,half,infer,resnet18,12,3.9,50
TITAN V,1,float,train,resnet18,12,16.5,50
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with gzip.open(tmp_path / "timm.csv.gz", "wt", encoding="utf-8") as file:
        file.write(TIMM)
    (tmp_path / "torchvision_step.csv").write_text(TORCHVISION, encoding="utf-8")
    return tmp_path


def trace_of(layout: str, *, groups: int = 1) -> Trace:
    """A forward pass of one convolution in 16 bits on the meta device."""
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    with torch.device("meta"):
        model = nn.Conv2d(64, 64, 3, padding=1, groups=groups).to(memory_format=memory_format)  # type: ignore[call-overload]
        images = torch.empty(256, 64, 56, 56).to(memory_format=memory_format)
    with torch.no_grad():
        return lp.capture(lambda: model(images), precision="16-mixed")


def test_the_newest_software_counts_and_compiled_steps_do_not(folder: Path) -> None:
    cases = read_timm_cases(folder / "timm.csv.gz")
    found = [(c.step.model, c.step.layout, c.software, c.measured_seconds, c.step.fuses_attention) for c in cases]
    assert found == [
        ("tiny", "nchw", "2.04", 0.040, True),
        ("tiny", "nhwc", "2.04", 0.032, True),
        ("other", "nchw", "1.12", 0.090, False),  # before timm fused attention
    ]
    assert [case.step.model for case in read_timm_cases(folder / "timm.csv.gz", sample=1)] == ["other"]


def test_torchvision_rows_of_one_gpu_are_read(folder: Path) -> None:
    cases = read_torchvision_cases(folder / "torchvision_step.csv")
    found = [(c.gpu, c.step.mode, c.step.precision, c.step.batch, c.measured_seconds) for c in cases]
    assert found == [("RTX-2080-Ti", "infer", "half", 12, 0.0035), ("TITAN-V", "train", "single", 12, 0.0165)]


def test_a_wrong_row_is_refused_with_its_place(folder: Path) -> None:
    path = folder / "torchvision_step.csv"
    path.write_text(TORCHVISION.replace("float,train", "quarter,train"), encoding="utf-8")
    with pytest.raises(MeasurementTableError, match="line 4: precision is 'quarter'; expected one of half, single"):
        read_torchvision_cases(path)


def test_steps_are_scored_beside_the_baselines(folder: Path) -> None:
    cases = [case for case in read_timm_cases(folder / "timm.csv.gz") if case.step.model == "tiny"]
    cache = folder / "cache"
    cache.mkdir()
    for case in cases:
        trace_of(case.step.layout).save(str(cache / case.step.file_name))
    results = evaluate_vision(cases, cache=cache, jobs=1)
    assert [result.family for result in results] == ["convolutions"] * 2
    # Nothing is faster than its roofline; a trained prediction may be on either side of the fallback.
    assert all(result.roofline_seconds < min(result.seconds, result.fallback_seconds) for result in results)
    assert all(result.low_seconds < result.seconds < result.high_seconds for result in results)
    console = Console(width=180, record=True)
    print_report(results, console)
    text = console.export_text()
    assert "convolutions, infer, nhwc, amp, RTX-3090" in text
    assert "0.80" in text  # 32 ms over 40 ms


def test_errors_coverage_and_width_are_those_of_the_rows(folder: Path) -> None:
    case = read_timm_cases(folder / "timm.csv.gz")[0]
    result = VisionResult(
        case=case,
        family="convolutions",
        description=StepDescription(kind="convolutional network", precision="16 bits"),
        seconds=0.050,  # measured: 0.040
        low_seconds=0.020,
        high_seconds=0.080,
        fallback_seconds=0.060,
        roofline_seconds=0.030,
    )
    (summary,) = published([result, result], RUNS["timm"])
    assert (summary.kind, summary.steps, summary.error, summary.inside) == ("convolutional network", 2, 0.25, 2)
    assert (summary.measured_ms, summary.predicted_ms) == (40, 50)
    assert result.error == pytest.approx(0.25)
    assert result.is_inside
    assert not replace(result, low_seconds=0.041).is_inside
    cells = [list(column.cells)[-1] for column in summary_tables([result])[0].columns]
    assert cells == ["all", "1", "25.0", "25.0", "+25.0", "100", "4.00", "50.0", "25.0"]
    assert layout_table([result]).row_count == 0  # no pair of layouts


def test_the_family_is_told_by_the_work() -> None:
    assert family_of(trace_of("nchw")) == "convolutions"
    assert family_of(trace_of("nchw", groups=64)) == "grouped convolutions"
    with torch.device("meta"):
        model, data = nn.Linear(64, 64), torch.empty(8, 64)
    assert family_of(lp.capture(lambda: model(data))) == "transformer"


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    step = VisionStep(source="timm", model="tiny", mode="infer", precision="amp", layout="nchw", batch=1, image_size=32)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingDependencyError, match="recorded from timm, which is not installed: pip install timm"):
        vision_trace(step)
