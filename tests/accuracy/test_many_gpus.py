"""Scaling efficiencies: which rows count, how overlap costs are chosen, and the printed report (made-up rows)."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.accuracy.many_gpus import (
    BUS_BANDWIDTHS,
    SLOWDOWNS,
    ScalingCase,
    ScalingReport,
    ScalingResult,
    Study,
    best_overlap_costs,
    evaluate_scaling,
    read_example_cases,
    read_scaling_cases,
    scaling_tables,
    uniform_step,
)
from benchmarks.accuracy.reported_gpus import reported_gpu
from lightning_predict.base.errors import MeasurementTableError, UnknownGpuError
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import Interconnect
from lightning_predict.layouts.overlap import OVERLAP_COSTS, OverlapCosts, slowest_of
from lightning_predict.layouts.strategy import Strategy

HEADER = "gpu_reported,n_gpus,model,precision_label,batch,pytorch,unit,throughput\n"
ROWS = """\
NVIDIA GeForce RTX 3090,1,ncf,FP32,1000,1.13,samples/s,100
NVIDIA GeForce RTX 3090,2,ncf,FP32,1000,1.13,samples/s,180
NVIDIA GeForce RTX 3090,4,ncf,FP32,4000,1.13,samples/s,300
NVIDIA GeForce RTX 3090,2,ncf,FP32,3000,1.13,samples/s,180
NVIDIA GeForce RTX 3090,2,ncf,FP32,1000,1.4,samples/s,180
NVIDIA GeForce RTX 3090,8,ncf,FP32,1000,1.13,samples/s,900
NVIDIA GeForce RTX 3090,1,bert_tiny,FP32,8,1.13,img/s,10
NVIDIA GeForce RTX 3090,2,bert_tiny,FP32,8,1.13,img/s,19
NVIDIA GeForce RTX 3090,2,ncf,FP32,10/8,1.13,samples/s,19
"""


def table(tmp_path: Path, rows: str = ROWS) -> Path:
    path = tmp_path / "training_throughput.csv"
    path.write_text(HEADER + rows, encoding="utf-8")
    return path


def result(name: str, efficiency: float, measured: float, *, walked: float = 1.0, hidden: float = 0.0) -> ScalingResult:
    case = ScalingCase(
        gpu=name,
        system=f"{name}, torch 1",
        count=2,
        model="ncf",
        precision="FP32",
        batch=1,
        single_per_second=1.0,
        efficiency=measured,
    )
    study = Study(tuple((walked * slowdown, hidden * slowdown) for slowdown in SLOWDOWNS), (0.5,) * len(BUS_BANDWIDTHS))
    return ScalingResult(case, study, efficiency, 0.4, 0.6, left_out=efficiency)


def test_rows_of_several_gpus_stand_beside_that_of_one_or_are_left_out_with_a_reason(tmp_path: Path) -> None:
    cases, left_out = read_scaling_cases(table(tmp_path))
    # 180 / (2 x 100), with the batch of one GPU; 300 / (4 x 100), with four times it.
    assert [(case.count, case.efficiency, case.batch) for case in cases] == [(2, 0.9, 1000), (4, 0.75, 1000)]
    assert {reason: len(rows) for reason, rows in left_out.items()} == {
        "its batch is neither that of one GPU nor so many times it": 2,  # 3,000; another container
        "its efficiency is above 1.05": 1,
        "no model of this benchmark is written here": 1,
        "the batch is not stated as one number": 1,
    }


def test_published_examples_stand_beside_one_gpu_of_the_same_machine_or_are_left_out_with_a_reason(
    tmp_path: Path,
) -> None:
    columns = ("path", "heading", "hardware", "gpus", "batch_per_gpu", "precision", "value", "row_json")
    bart, v100 = "PyTorch/LanguageModeling/BART/README.md", "DGX-1 (8x V100 32GB)"
    rows = [
        (bart, "training", v100, "1.0", "24, 40", "AMP", "50", "{}"),
        (bart, "training", v100, "8.0", "24, 40", "AMP", "320", "{}"),  # of 8 x 50: 0.8, with the batch of 16 bits
        (bart, "training", v100, "1.0", "10240/5120", "FP32", "10", "{}"),
        (bart, "training", v100, "4.0", "10240/5120", "FP32", "36", "{}"),  # 0.9, with the batch of float32
        (bart, "training", v100, "8.0", "24, 40", "FP32", "320", "{}"),
        (bart, "training", "DGX-2 (16x V100 32GB)", "16.0", "24, 40", "AMP", "320", "{}"),
        (bart, "training", v100, "2.0", "24, 40", "AMP", "120", "{}"),  # 1.2
        (bart, "training", v100, "4.0", "24, 40", "AMP", "160", '{"Grad accumulation": "2"}'),
        ("PyTorch/Classification/NoSuch/README.md", "training", v100, "8.0", "24", "AMP", "320", "{}"),
    ]
    path = tmp_path / "deep_learning_examples.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    cases, excluded = read_example_cases(path)
    assert [(case.gpu, case.count, case.precision, case.batch, case.efficiency) for case in cases] == [
        ("V100-SXM2-32GB", 8, "AMP", 40, 0.8),
        ("V100-SXM2-32GB", 4, "FP32", 5120, 0.9),
    ]
    assert {reason: len(left_out) for reason, left_out in excluded.items()} == {
        "no row of one GPU with the same batch on each": 1,
        "no machine of at most 8 GPUs whose links are known": 1,
        "its efficiency is above 1.05": 1,
        "gradients accumulate over as many batches as keep the sum over all GPUs the same": 1,
        "no parameters of this benchmark are written here": 1,
    }


def test_a_table_without_its_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "training_throughput.csv"
    path.write_text("gpu_reported,n_gpus\nT4,1\n", encoding="utf-8")
    with pytest.raises(MeasurementTableError, match="line 1: model is not a column"):
        read_scaling_cases(path)


def test_each_row_is_predicted_from_the_measured_step_of_one_gpu(tmp_path: Path) -> None:
    report = evaluate_scaling(table(tmp_path, "".join(ROWS.splitlines(keepends=True)[:3])), jobs=1)
    two, four = report.results
    assert 0 < four.efficiency < two.efficiency < 1
    assert two.low <= two.efficiency <= two.high
    assert list(two.study.by_bandwidth) == sorted(two.study.by_bandwidth)  # faster links, better scaling
    assert set(report.overlap_costs_without) == {"RTX-3090"}
    assert two.calibrated is None  # no other benchmark ran on the machine


def test_efficiency_under_other_overlap_costs_by_hand() -> None:
    # At slowdown 2 the step is 1.2 and 0.1 is hidden: 1.2 + 0.5 x 0.1 + the wait for the slowest of two, whose
    # pace over a step of one second differs by 0.03 x sqrt(2 x 0.2 x (1 - 0.2 (1 - exp(-5)))) from the mean.
    study = Study(tuple((0.6 * slowdown, 0.05 * slowdown) for slowdown in SLOWDOWNS), ())
    overlap_costs = OverlapCosts(slowdown=2.0, contention=0.5, straggler_spread=0.03)
    spread = 0.03 * math.sqrt(2 * 0.2 * (1 - 0.2 * (1 - math.exp(-5))))
    assert study.efficiency(overlap_costs, 2) == pytest.approx(1 / (1.2 + 0.05 + spread * slowest_of(2)))


def test_overlap_costs_suits_the_other_gpus() -> None:
    # A's rows want a slowdown of 1 (efficiency near 1), B's of 3 (near 1/3): each GPU's own do not count.
    rows = [result("A", 0.9, 0.97, walked=1.0), result("B", 0.9, 0.32, walked=1.0)]
    assert best_overlap_costs(rows, without="B").slowdown == 1.0
    assert best_overlap_costs(rows, without="A").slowdown == 3.0


def test_the_report_prints_errors_by_link_and_machines() -> None:
    rows = (result("RTX-3090", 0.45, 0.5), result("A100-SXM-40GB", 0.9, 0.95))
    report = ScalingReport(rows, {}, {"its efficiency is above 1.05": ["x"]})
    console = Console(width=200, record=True, file=io.StringIO())
    for one in scaling_tables(report):
        console.print(one)
    text = console.export_text()
    assert "PCIe" in text
    assert "RTX-3090, torch 1" in text
    assert "its efficiency is above 1.05" in text
    assert "5.0" in text  # |0.45 - 0.5| in points


def test_a_benchmark_of_known_size_exchanges_its_parameters_evenly() -> None:
    # 87.9 million gradients of 4 bytes, on two GPUs once over a bus of 1 GB/s.
    t4 = gpu("T4")
    step = uniform_step("waveglow", precision="FP32", gpus=[t4])
    links = Interconnect(intra_node_bytes_per_second=1e9)
    single = step.singles[0]
    assert single.seconds == pytest.approx(1.0, rel=1e-3)
    found = step.shared.on_layout(Layout(t4, 2), single, 0, Strategy(), links)
    assert found.communication_seconds == pytest.approx(OVERLAP_COSTS.pcie_slowdown * 87.9e6 * 4 / 1e9, rel=1e-3)
    # The first bucket is ready after a third and a twentieth of the backward pass: most of it hides behind the rest.
    assert 0.05 < found.added_seconds < 0.7
    half = uniform_step("waveglow", precision="FP16", gpus=[t4]).shared.on_layout(
        Layout(t4, 2), single, 0, Strategy(), links
    )
    assert half.communication_seconds == pytest.approx(found.communication_seconds / 2, rel=1e-3)


def test_a_row_of_a_benchmark_without_a_model_is_predicted_from_its_size(tmp_path: Path) -> None:
    rows = "Tesla T4,1,SSD,FP32,8,1.7,img/s,10\nTesla T4,2,SSD,FP32,8,1.7,img/s,19\n"
    report = evaluate_scaling(table(tmp_path, rows), jobs=1)
    assert 0.8 < report.results[0].efficiency < 1


def test_a_name_that_several_cards_report_is_the_one_sold_under_it() -> None:
    assert reported_gpu("GeForce RTX 3080").name == "RTX-3080"
    assert reported_gpu("Tesla V100-SXM2-16GB").name == "V100-SXM2-16GB"
    with pytest.raises(UnknownGpuError):
        reported_gpu("NVIDIA GeForce RTX 9999")
