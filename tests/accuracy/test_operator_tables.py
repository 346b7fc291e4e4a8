from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.operator_tables import (
    COMPILED,
    LEAST_SECONDS,
    LEAST_SECONDS_A_LAUNCH,
    OperatorResult,
    kernel_bench_results,
    least_seconds,
    liger_results,
    print_scores,
)
from benchmarks.accuracy.workloads.liger import LIGER_FAMILIES, PASSES, liger_trace
from lightning_predict.base.errors import InvalidArgumentError, MeasurementTableError
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Operation, TensorInfo, Trace

HEADER = "set,problem_version,gpu,mode,level,problem,mean_ms,std,min,trials,trace\n"
RELU = "level1,19_ReLU.py,{ms},0.01,1,100,v02/level1_19_ReLU.json.gz\n"
LIGER = """\
kernel,provider,pass,x_name,x_value,config_json,gpu,ms_median
softmax,torch,forward,N,16384,"{""M"": 2048, ""dtype"": ""torch.float32""}",NVIDIA H100 80GB HBM3,0.2
softmax,torch_compile,forward,N,16384,"{""M"": 2048, ""dtype"": ""torch.float32""}",NVIDIA H100 80GB HBM3,0.2
softmax,torch,full,N,16384,"{""M"": 2048, ""dtype"": ""torch.float32""}",NVIDIA H100 80GB HBM3,0.6
softmax,torch,forward,N,16,"{""M"": 2048, ""dtype"": ""torch.float32""}",NVIDIA H100 80GB HBM3,0.01
unheard_of,torch,forward,N,16384,"{}",NVIDIA H100 80GB HBM3,0.2
"""
"""Made-up times: one row that counts; a compiled one, one of both passes, one of launches, one without a recording."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ReLUs of 2^28 numbers in a row, eager and compiled on one machine and eager on another, and Liger's rows."""
    steps = tmp_path / "kernelbench" / "v02"
    steps.mkdir(parents=True)
    x = torch.empty(2**28, device="meta")
    session = CaptureSession(device=x.device, compiled=False)
    session.start()
    x.relu().relu()
    session.stop()
    session.trace().save(str(steps / "level1_19_ReLU.json.gz"))
    rows = [
        "a,v0.2,NVIDIA L40S,torch," + RELU.format(ms=6.0),
        "a,v0.2,NVIDIA L40S,torch," + RELU.format(ms=6.4),
        f"a,v0.2,NVIDIA L40S,{COMPILED}," + RELU.format(ms=3.1),
        "b,v0.2,Tesla T4,torch," + RELU.format(ms=17.0),
        "b,v0,Tesla T4,torch," + RELU.format(ms=17.0),
        "b,v0.2,Tesla T4,torch," + RELU.format(ms=17.0).replace("19_ReLU.json", "20_nowhere.json"),
    ]
    (tmp_path / "kernelbench" / "times.csv.gz").write_text(HEADER + "".join(rows), encoding="utf-8")
    (tmp_path / "liger_operators.csv").write_text(LIGER, encoding="utf-8")
    return tmp_path


def test_kernel_bench_rows_are_scored_beside_their_baselines(folder: Path) -> None:
    l40s, t4 = kernel_bench_results(folder / "kernelbench", version="v0.2")
    assert (l40s.gpu, l40s.name, l40s.family) == ("L40S", "19_ReLU", "element-wise")
    assert l40s.measured == pytest.approx(6.2e-3)  # the median of two runs
    # Two passes of 2^28 x 4 bytes, each read and written, over 864 GB/s.
    assert l40s.roofline == pytest.approx(2 * 2 * 2**30 / find_gpu("L40S").dram_bytes_per_second)
    assert l40s.roofline < l40s.low < l40s.predicted < l40s.high
    assert l40s.fallback == pytest.approx(l40s.roofline / 0.8 + 4e-6)
    assert l40s.speed_up is None
    assert t4.gpu == "T4"


def test_compiled_calls_are_compared_with_eager_ones_of_their_machine(folder: Path) -> None:
    (result,) = kernel_bench_results(folder / "kernelbench", mode=COMPILED)
    assert result.speed_up == pytest.approx(6.2 / 3.1)
    assert result.predicted_speed_up == pytest.approx(2, rel=0.01)  # both ReLUs in one kernel


def test_rows_that_launches_decide_do_not_count() -> None:
    x = TensorInfo((4,), "float32")
    relu = Operation(name="aten::relu", phase="forward", inputs=(x,), outputs=(x,))
    assert least_seconds(Trace(operations=(relu,), device="meta", recorder="dispatch")) == LEAST_SECONDS
    assert (
        least_seconds(Trace(operations=100 * (relu,), device="meta", recorder="dispatch"))
        == 100 * LEAST_SECONDS_A_LAUNCH
    )


def test_liger_rows_of_operators_that_can_be_recorded_count(folder: Path) -> None:
    (result,) = liger_results(folder / "liger_operators.csv")
    assert (result.gpu, result.name, result.family) == (
        "H100-SXM-80GB",
        "softmax forward N=16384",
        "softmax, forward",
    )


SIZES = (
    '{"B": 2, "T": 8, "V": 64, "D": 16, "M": 4, "N": 16, "H": 64, "BT": 8, "S": 4, "channels_per_group": 4, "C": 8, '
    '"seq_len": 8, "num_q_heads": 4, "num_kv_heads": 2, "hidden_size": 32, "intermediate_size": 64, "ffn_local": 16, '
    '"dtype": "torch.bfloat16"}'
)


@pytest.mark.parametrize("part", PASSES)
@pytest.mark.parametrize("kernel", sorted(LIGER_FAMILIES))
def test_every_operator_of_liger_is_recorded_in_both_passes(kernel: str, part: str) -> None:
    trace = liger_trace(kernel, part, word="T", value=16, config=SIZES)
    assert {one.phase for one in trace.operations} == {part}


def test_an_operator_that_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'softmax', 'full' cannot be recorded; expected one of"):
        liger_trace("softmax", "full", word="N", value=16, config="{}")


def test_scores_are_printed_by_family_and_gpu() -> None:
    one = OperatorResult(
        gpu="T4",
        name="a",
        family="pooling",
        measured=1.0,
        predicted=1.2,
        low=1.0,
        high=1.44,
        roofline=0.5,
        fallback=0.7,
    )
    other = replace(one, predicted=0.9, low=0.75, high=0.99)
    console = Console(width=180, file=io.StringIO())
    print_scores([one, other], console, title="Scores")
    line = next(line for line in console.file.getvalue().splitlines() if "pooling" in line)  # type: ignore[attr-defined]
    # Mean and median of 20 % and 10 %; their median, with sign; one of two held; sqrt(1.44 x 1.32) = 1.38.
    assert line.split() == "pooling 2 15.0 15.0 +5.0 50 x1.38 50.0 50.0 30.0 30.0".split()


def test_the_command_prints_both_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder), "--of", "operators"]) == 0
    printed = capsys.readouterr().out
    assert "KernelBench v0.2, eager, device-bound rows" in printed
    assert "Operators of Liger's benchmarks, device-bound rows" in printed
    assert main([str(folder), "--of", "compiled"]) == 0
    assert "Speed-up by compiling" in capsys.readouterr().out


def test_a_folder_without_the_tables_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--of", "operators"]) == 1
    assert "No kernelbench or liger_operators.csv in" in capsys.readouterr().err


def test_a_table_without_a_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "times.csv.gz").write_text("gpu,mode\n", encoding="utf-8")
    with pytest.raises(MeasurementTableError, match="set is not a column of this file"):
        kernel_bench_results(tmp_path)
