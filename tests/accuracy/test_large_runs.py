"""Rows of large language models: what they mean, and the tables of the report (made-up times)."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.accuracy.large_runs import (
    FRAMEWORK_HOSTS,
    ROCE_1600,
    LargeRunCase,
    LargeRunResult,
    Workload,
    choices_table,
    coverage,
    evaluate_large_runs,
    large_run_tables,
    left_out_table,
    median_error,
    published_cases,
    read_megatron_cases,
    read_mpt_cases,
    read_off,
    width_of,
)
from benchmarks.accuracy.published_runs import published_runs, step_flops
from benchmarks.accuracy.workloads.large_language_models import (
    MegatronConfig,
    megatron_trace,
    mpt_trace,
)
from benchmarks.accuracy.workloads.recorded import without_pauses
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.interval import Interval
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.gradients import trainable_parameter_count
from lightning_predict.layouts.overlap import OVERLAP_COSTS
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.timeline.step_prediction import StepPrediction

MPT = """\
section,Model,SeqLen (T),# GPUs,GPU,MicroBatchSize,GradAccum,Throughput (T/s),Activation Checkpointing
A100 40GB with 1600 Gbps node-node interconnect (RoCE),125m,64,16,a100_40gb,2,3,61440,False
"""
MEGATRON = """\
# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,\
data parallelism,pipeline parallelism,iteration time (ms)
4,8,2,64,4,2,32,1,2,2,250.5
8,4,1,64,4,2,32,4,1,2,100
"""


def tables(folder: Path) -> Path:
    (folder / "mpt_fsdp.csv").write_text(MPT, encoding="utf-8")
    (folder / "megatron_single_node.csv").write_text(MEGATRON, encoding="utf-8")
    return folder


def test_what_a_row_of_mpt_means(tmp_path: Path) -> None:
    (case,) = read_mpt_cases(tables(tmp_path) / "mpt_fsdp.csv")
    assert isinstance(case.workload, Workload)
    # 16 GPUs x 3 micro-batches x 2 samples of 64 tokens at 61,440 tokens a second: a tenth of a second.
    assert case.measured_seconds == pytest.approx(0.1)
    assert case.layout.name == "2x8xA100-SXM-40GB"
    assert case.strategy == Strategy(data="fsdp", micro_batches=3)
    assert (case.workload.batch, case.micro_batch, case.interconnect) == (6, 2, ROCE_1600)
    head, row = MPT.splitlines()
    (tmp_path / "mpt_fsdp.csv").write_text(f"{head},MP Mode\n{row},DEFAULT\n", encoding="utf-8")
    (mixed,) = read_mpt_cases(tmp_path / "mpt_fsdp.csv")
    assert mixed.strategy == Strategy(data="fsdp", micro_batches=3, reduce_dtype="float32")


def test_what_a_row_of_megatron_means(tmp_path: Path) -> None:
    first, second = read_megatron_cases(tables(tmp_path) / "megatron_single_node.csv")
    assert isinstance(first.workload, Workload)
    # 8 samples over two replicas, two at a time: two micro-batches.
    assert first.strategy == Strategy(pipeline=2, micro_batches=2, overlap_grad_reduce=False)
    assert (first.layout.name, first.workload.batch, first.measured_seconds) == ("4xA100-SXM-80GB", 4, 0.2505)
    assert second.strategy == Strategy(tensor=4, pipeline=2, micro_batches=4, overlap_grad_reduce=False)


def test_rows_are_predicted_and_told_apart(tmp_path: Path) -> None:
    cache = tmp_path / "traces"
    results = evaluate_large_runs(
        tables(tmp_path), jobs=1, cache=cache, chosen=lambda case: case.workload.table == "megatron"
    )
    assert len(results) == 2
    assert {path.name for path in cache.iterdir()} == {"megatron-2x64-32-4-recompute.json.gz"}
    assert all(0 < one.step.low_seconds <= one.step.seconds <= one.step.high_seconds for one in results)
    assert 0 <= coverage(results) <= 1
    assert median_error(results) > 0
    console = Console(width=160, record=True, file=io.StringIO())
    for table in large_run_tables(results):
        console.print(table)
    text = console.export_text()
    assert "megatron: absolute error of a step on many GPUs" in text
    assert "tensor x data x pipeline 4 x 1 x 2" in text
    assert "micro-batch 1" in text


def test_published_runs_are_as_their_papers_say() -> None:
    by_name = {(run.source, run.name, run.is_selective): run for run in published_runs()}
    # 163 TFLOP/s and GPU on 3,072: 96 x 3,072 x 2,048 x 128 x 25,600^2 x (1 + 0.0133 + 0.0010) operations in a step.
    largest = by_name["narayanan", "1008B", False]
    assert largest.measured_seconds == pytest.approx(5.139e19 / (3072 * 163e12), rel=1e-3)
    assert (largest.layout.name, largest.replicas) == ("384x8xA100-SXM-80GB", 6)
    assert largest.strategy == Strategy(tensor=8, pipeline=64, micro_batches=512, overlap_grad_reduce=False)
    selective = by_name["korthikanti", "175B", True]
    assert selective.strategy.name == (
        "ddp,tensor=8,pipeline=8,micro_batches=64,virtual=3,sequence=true,recompute=selective,overlap_grad_reduce=false"
    )
    # Model FLOPs of the paper: 51.4 % of 312 TFLOP/s in 13.75 s on 64 GPUs; three quarters of a step with everything
    # computed again, so that this is 4/3 of them, less what the vocabulary does not repeat.
    flops = step_flops(batch=64, layers=96, hidden=12288)
    assert 0.75 * flops / (64 * 13.75 * 312e12) == pytest.approx(0.514, rel=0.01)
    for run, case in zip(published_runs(), published_cases(), strict=True):
        assert run.replicas * run.tensor * run.pipeline == run.gpus
        assert isinstance(case.workload, Workload)
        assert case.workload.recompute is not run.is_selective
        assert case.strategy.replicas(case.layout) == run.replicas


def _result(table: str, nodes: int, errors: tuple[float, float]) -> LargeRunResult:
    """A row that took a second: a host twice as slow, or no waiting for the slowest, err otherwise."""
    case = LargeRunCase(
        Workload(table, f"{nodes}", 2, 64, 4, 32, 4, recompute=True), Layout(gpu("T4"), 8, nodes), Strategy(), 1, 1.0
    )
    seconds = 1 + errors[0]
    interval = Interval(seconds / 1.5, seconds, seconds * 1.5)
    step = StepPrediction(gpu="T4", interval=interval, device_seconds=1.0, host_seconds=0.5, coverage={})
    studied = tuple((1 + errors[0] + 0.26 * (host - 1.55), errors[1]) for host in FRAMEWORK_HOSTS)
    return LargeRunResult(case, step, studied)


def test_constants_are_read_off_the_other_rows() -> None:
    rows = [_result("mpt", 1, (0.0, 0.1)), _result("mpt", 2, (0.0, 0.1)), _result("megatron", 1, (-0.1, 0.0))]
    # mpt suits the usual host and no waiting; megatron, 10 % too fast, a host that takes 0.065 s more.
    assert read_off(rows[:2]) == (1.55, 0.0)
    assert read_off(rows[2:])[0] == 1.8
    # Waiting that adds 0.1 s at the shipped spread of 0.04 adds 0.25 s at 0.1.
    assert OVERLAP_COSTS.straggler_spread == 0.04
    assert rows[0].seconds(1.8, 0.1) == pytest.approx(1 + 0.065 + 0.25)
    # 10 % lie log(1/0.9) / log(1.5) of the way to the end; the others in the middle.
    assert width_of(rows) == pytest.approx(math.log(1 / 0.9) / math.log(1.5))
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(left_out_table(rows))
    text = console.export_text()
    assert "source megatron" in text
    assert "machines 2" in text


def test_a_table_without_its_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mpt_fsdp.csv"
    path.write_text("Model\n125m\n", encoding="utf-8")
    with pytest.raises(MeasurementTableError, match=r"SeqLen \(T\) is not a column|'SeqLen \(T\)'|SeqLen \(T\)"):
        read_mpt_cases(path)


def test_the_models_are_as_large_as_their_names_say() -> None:
    # Published: 125m has 125,311,488 parameters (mpt_fsdp.csv); ours has biases too and 512 more places.
    small = mpt_trace("125m", length=2048, batch=1, recompute=False)
    assert trainable_parameter_count(small) == pytest.approx(125_311_488, rel=0.01)
    assert {parameter.dtype for parameter in small.parameters} == {"bfloat16"}
    again = megatron_trace(MegatronConfig(2, 64, 4, context=32, vocabulary=128), batch=2)
    plain = megatron_trace(MegatronConfig(2, 64, 4, context=32, vocabulary=128), batch=2, recompute=False)
    assert len(again.operations) > len(plain.operations)


def test_a_pause_of_the_machine_that_records_is_no_work_of_the_model() -> None:
    plain = megatron_trace(MegatronConfig(1, 64, 4, context=32, vocabulary=128), batch=2, recompute=False)
    paused = replace(plain.operations[0], python_seconds=0.03)
    again = without_pauses(replace(plain, operations=(paused, *plain.operations[1:])))
    assert again == without_pauses(plain)
    assert sum(operation.python_seconds for operation in again.operations) == 0


def test_what_is_predicted_fastest_is_held_against_what_was() -> None:
    def row(measured: float, predicted: float, model: str, micro: int = 1) -> LargeRunResult:
        found = _result("megatron", 1, (predicted - 1, 0.0))
        workload = replace(found.case.workload, model=model)  # type: ignore[type-var]
        strategy = Strategy(micro_batches=8 // micro)
        case = replace(found.case, workload=workload, strategy=strategy, measured_seconds=measured)
        return replace(found, case=replace(case, micro_batch=micro))

    # Of one step of 64 samples the second best is chosen, 10 % over the best; of another the best.
    rows = [row(1.0, 2.0, "a"), row(1.1, 1.5, "a", micro=2), row(3.0, 3.0, "a", micro=4)]
    rows += [row(2.0, 1.0, "b"), row(4.0, 2.0, "b", micro=2), row(1.0, 1.0, "alone")]
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(choices_table(rows))
    (line,) = [each for each in console.export_text().splitlines() if "megatron" in each]
    assert line.split() == ["megatron", "2", "5", "+5.0", "+5.0", "+10.0", "1"]
