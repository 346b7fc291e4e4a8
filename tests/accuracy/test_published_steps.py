"""Readers and scores of milabench, Lin et al., Gavel, Sia and single products, on a few rows and a step of our own."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import lightning_predict as lp
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.product_tables import float8_scores, tf32_scores
from benchmarks.accuracy.published_steps import (
    at_clock,
    gavel_steps,
    lin_errors,
    lin_steps,
    milabench_steps,
    sia_steps,
)
from benchmarks.accuracy.source_scores import (
    ScoredStep,
    absolute_scores,
    print_scores,
    ratio_scores,
    sample_scores,
)
from benchmarks.accuracy.whole_steps import published_steps
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.interval import Interval
from lightning_predict.hardware import gpu
from lightning_predict.kernels.operations import problem
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.reports.published_cases import StepDescription

MILABENCH = """gpu,n_gpus,bench,model,precision,batch_size,cpus,samples_per_second,step_ms,memory_mib,bound_by,unix_time
L40S,1,net-tf32,net,tf32,8,,,10.0,,device,
L40S,1,net-tf32,net,tf32,8,,,12.0,,device,
L40S,1,net-tf32,net,tf32,16,,,19.0,,device,
L40S,4,net-tf32,net,tf32,8,,,9.0,,device,
L40S,1,net-fp16,net,fp16-amp,8,,,5.0,,device,
L40S,1,net-tf32-fp16,net,fp16-amp,8,,,7.0,,device,
H100-SXM-80GB,1,net-fp16,net,fp16-amp,8,,,4.0,,host?,
H100-SXM-80GB,1,other,,,8,,,4.0,,device,
MI325X,1,net-fp16,net,fp16-amp,8,,,4.0,,device,
"""

LIN = """gpu,gpu_as_named,model,image,batch_size,step_ms,lin_error_pct,habitat_error_pct,mlpredict_error_pct
V100-SXM2-16GB,V100,net,224,8,66.5,5.0,8.0,21.2
TITAN-Xp,TITAN-Xp,net,224,8,125.0,15.0,34.9,12.9
"""

GAVEL = """source,gpu,gpu_as_named,consolidated,n_gpus,model,batch_size,steps_per_second,step_ms
physical,K80,k80,1,1,ResNet-18,16,4.9,203.8
physical,K80,k80,0,1,ResNet-18,16,4.9,203.8
physical,K80,k80,1,2,ResNet-18,16,4.9,203.8
simulation,K80,k80,1,1,ResNet-18,16,4.9,203.8
physical,K80,k80,1,1,A3C,,3.5,282.8
"""

SIA = """app,cluster,gpu,kind,n_nodes,n_gpus,gpus_by_node,local_batch,step_seconds,sync_seconds
cifar10,aws,T4,placements,1,1,1,32,0.043,0.004
cifar10,aws,T4,scalability,1,1,1,32,0.043,0.004
cifar10,azure,,placements,1,1,1,32,0.043,0.004
imagenet,aws,T4,placements,1,1,1,8,0.9,0.004
imagenet,aws,T4,placements,1,1,1,16,1.7,0.004
imagenet,aws,T4,placements,1,1,1,17,1.7,0.004
"""

STEP = StepDescription(kind="convolutional network", precision="float32")


def save_step(folder: Path, file: str, samples: int) -> None:
    """Keep a forward pass of two linear layers on the given number of rows of 4096 as a recorded step."""
    with torch.device("meta"):
        model, data = nn.Linear(4096, 4096), torch.empty(samples * 512, 4096)
    with torch.no_grad():
        trace = lp.capture(lambda: model(data), warmup_steps=0, samples_per_step=samples)
    (folder / "traces_new" / file).parent.mkdir(parents=True, exist_ok=True)
    trace.save(str(folder / "traces_new" / file))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tables = {"milabench.csv": MILABENCH, "lin_2024.csv": LIN, "gavel.csv": GAVEL, "sia.csv": SIA}
    for name, text in tables.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for file in ("net-tf32", "net-fp16"):
        for samples in (8, 16):
            save_step(tmp_path, f"milabench/{file}-{samples}.json.gz", samples)
    save_step(tmp_path, "lin_2024/net-8.json.gz", 8)
    save_step(tmp_path, "sia/imagenet-8.json.gz", 8)
    save_step(tmp_path, "sia/imagenet-16.json.gz", 16)
    return tmp_path


def test_repeated_rows_become_their_median_and_fp16_ignores_the_switch_of_tf32(folder: Path) -> None:
    found = {(row.gpu, row.model, row.samples): row.measured_seconds for row in milabench_steps(folder)}
    assert found == {
        ("L40S", "net-tf32", 8): pytest.approx(0.011),  # the median of 10 and 12; the row of four GPUs is another step
        ("L40S", "net-tf32", 16): pytest.approx(0.019),
        ("L40S", "net-fp16", 8): pytest.approx(0.006),  # 5 and, as net-tf32-fp16, 7
        ("H100-SXM-80GB", "net-fp16 (waits for its input)", 8): pytest.approx(0.004),
    }


def test_a_step_is_predicted_under_the_switches_and_the_release_that_it_ran(folder: Path) -> None:
    by_model = {row.model: row.recorded(folder) for row in milabench_steps(folder)}
    tf32, half = by_model["net-tf32"], by_model["net-fp16"]
    assert tf32 is not None
    assert half is not None
    assert tf32.flags.matmul_tf32
    assert not half.flags.matmul_tf32  # torch's own default, as recorded
    assert tf32.software["torch"] == half.software["torch"] == "2.6"


def test_steps_that_wait_for_their_input_teach_calibration_nothing(folder: Path) -> None:
    rows = list(published_steps(folder, folder))
    assert {row.table for row in rows} == {"milabench", "Lin et al."}
    assert not any(row.waits_for_input for row in rows)


def test_the_steps_of_gavel_and_sia_are_those_alone_on_one_named_gpu(folder: Path) -> None:
    assert [(row.gpu, row.samples, row.release) for row in gavel_steps(folder)] == [("K80", 16, "1.4")]
    found = [(row.gpu, row.model, row.samples) for row in sia_steps(folder)]
    assert found == [("T4", "ResNet-18 for CIFAR", 32), ("T4", "imagenet", 8), ("T4", "imagenet", 16)]  # 17: no step


def test_resnet18_for_cifar_is_recorded_once_and_kept(folder: Path) -> None:
    row = next(gavel_steps(folder))
    cache = folder / "cache"
    cache.mkdir()
    trace = row.recorded(cache)
    assert trace is not None
    assert trace.samples == 16
    # 20 convolutions: the stem, 4 stages x 2 blocks x 2, and three shortcuts where the channels change.
    assert sum(one.name == "aten::convolution" for one in trace.operations) == 20
    # 11.17 million parameters, as its authors count for CIFAR.
    assert trace.memory.parameter_bytes == pytest.approx(4 * 11.17e6, rel=0.01)
    assert (cache / row.file).is_file()
    assert replace(row, record=lambda: None).recorded(cache) is not None


def test_what_one_more_sample_adds_leaves_out_what_a_step_takes_anyway(folder: Path) -> None:
    steps = list(milabench_steps(folder))
    by_size = {row.samples: row for row in steps if row.model == "net-tf32"}
    scored = [
        # 5 ms a step and 1 ms a sample predicted; 3 ms and 1 ms measured (11 and 19 ms).
        ScoredStep(
            row=by_size[size],
            predicted=Interval(0.0, 0.005 + 0.001 * size, 1.0),
            untrained=0.002 * size,
            roofline=0.0005 * size,
            is_host_bound=False,
            step=STEP,
        )
        for size in (8, 16)
    ]
    (score,) = sample_scores(scored)
    assert [score.measured, score.predicted] == pytest.approx([0.001, 0.001])
    assert [score.untrained, score.roofline] == pytest.approx([0.002, 0.0005])
    assert not list(sample_scores([replace(one, is_host_bound=True) for one in scored]))
    close = replace(scored[1], row=replace(by_size[16], samples=10))  # 1.25 times the samples tell nothing
    assert not list(sample_scores([scored[0], close]))


def test_a_ratio_of_gpus_forgives_what_is_wrong_on_both(folder: Path) -> None:
    on_v100, on_titan = lin_steps(folder)
    scored = [
        ScoredStep(
            row=row,
            predicted=Interval(0.0, half, 1.0),
            untrained=1.0,
            roofline=1.0,
            is_host_bound=False,
            step=STEP,
        )
        for row, half in ((on_v100, 0.06650 / 2), (on_titan, 0.125 / 2))
    ]
    first, second = ratio_scores(scored)
    assert first.predicted == pytest.approx(first.measured) == pytest.approx(125 / 66.5)
    assert second.predicted == pytest.approx(second.measured) == pytest.approx(66.5 / 125)
    assert [score.predicted / score.measured for score in absolute_scores(scored)] == pytest.approx([0.5, 0.5])


def test_each_part_prints_its_scores(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("milabench", "lin", "sia"):
        assert main([str(folder), "--of", part, "--cache", str(folder / "cache")]) == 0
    printed = capsys.readouterr().out
    assert "milabench.csv: what one more sample adds" in printed
    assert "Lin et al., as published: mean 10.0 % over 2 steps" in printed  # of 5.0 and 15.0
    assert "sia.csv: steps" in printed


def test_published_errors_are_shares(folder: Path) -> None:
    assert lin_errors(folder / "lin_2024.csv")["Lin et al."] == pytest.approx([0.05, 0.15])


def test_products_are_apart_by_what_the_roofline_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "matmul_tf32.csv").write_text(
        "gpu,gpu_as_named,op,dtype,b,m,n,k,latency_ms,tflops\n"
        "H100-SXM-80GB,sm_90,linear,tf32,1,4096,4096,4096,0.4,1\n"
        "H100-SXM-80GB,sm_90,linear,bfloat16,1,256,256,256,0.005,1\n"
        ",gfx942,linear,tf32,1,256,256,256,0.005,1\n",
        encoding="utf-8",
    )
    with gzip.open(tmp_path / "matmul_fp8.csv.gz", "wt", encoding="utf-8") as file:
        file.write("gpu,dtype,m,n,k,latency_ms,kernel,software\nL40S,fp8,4096,4096,4096,0.2,x,y\n")
    long, short = tf32_scores(tmp_path / "matmul_tf32.csv")
    # 2 x 4096^3 over the H100's 495 TFLOP/s in TF32 are 0.278 ms; 2 x 256^3 over 989 are 34 ns.
    assert long.roofline == pytest.approx(2 * 4096**3 / 494.7e12, rel=0.01)
    assert long.group == "tf32 linear, over 20 us"
    assert short.group == "bfloat16 linear, under 20 us"
    (float8,) = float8_scores(tmp_path / "matmul_fp8.csv.gz")
    assert float8.group == "fp8 linear, over 20 us"
    assert float8.roofline < float8.predicted
    assert main([str(tmp_path), "--of", "products"]) == 0
    assert "matmul_fp8.csv.gz" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty"), "--of", "products"]) == 1
    assert "Expected matmul_tf32.csv or matmul_fp8.csv.gz" in capsys.readouterr().err


def test_a_wrong_value_is_refused_with_its_place(folder: Path) -> None:
    (folder / "lin_2024.csv").write_text(LIN.replace("66.5", "fast"), encoding="utf-8")
    with pytest.raises(MeasurementTableError, match="step_ms"):
        list(lin_steps(folder))


def test_nothing_is_printed_without_scores() -> None:
    console = Console(record=True)
    print_scores((), console, title="empty")
    assert console.export_text() == ""


def test_a_locked_clock_slows_what_computes_and_not_what_streams() -> None:
    v100 = gpu("V100-SXM2-16GB")
    half = at_clock(v100, v100.boost_clock_hz / 2)
    product, copy = (
        problem("linear", "float32", m=4096, n=4096, k=4096),
        problem("add", "float32", rows=2**14, cols=2**14),
    )
    seconds = predict_operation_times([product, copy], [v100, half], models=None).seconds
    assert seconds[1] / seconds[0] == pytest.approx([2.0, 1.0], rel=0.01)  # but for the launch
    assert not half.measured_flops_per_second  # said of the free clock


def test_steps_of_lin_ran_at_locked_clocks(folder: Path) -> None:
    on_v100, on_titan = lin_steps(folder)
    assert on_v100.on.boost_clock_hz == 1297e6
    assert on_titan.on.highest_clock_hz == 1404e6
    assert on_v100.on.dram_bytes_per_second == gpu("V100-SXM2-16GB").dram_bytes_per_second
    assert next(milabench_steps(folder)).on == gpu("L40S")
