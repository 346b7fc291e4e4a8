from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.report import (
    Report,
    case_table,
    evaluate_published,
    evaluation_figure,
    percent,
    print_report,
    summary_table,
    unsigned_percent,
)
from benchmarks.accuracy.throughput import (
    ThroughputCase,
    ThroughputReport,
    ThroughputResult,
    evaluate_throughput,
    ratios_of,
    read_throughput_cases,
)
from benchmarks.accuracy.transformers import (
    TransformerCase,
    TransformerResult,
    mean_error,
    read_transformer_cases,
)
from lightning_predict.base.errors import MeasurementTableError

TRANSFORMERS = """\
gpu,model,mode,seq,batch,variant,iteration_ms,forward_ms,backward_ms,neusight_predicted_ms,habitat_predicted_ms,\
roofline_predicted_ms
V100-PCIe-32GB,BERT-Large,inference,512,8,,257.422,257.422,0,271.402,249.925,221.571
A100-PCIe-40GB,BERT-Large,inference,512,8,fusion,174.758,174.758,0,204.843,,
A100-PCIe-40GB,BERT-Large,inference,512,8,,205.506,205.506,0,216.652,183.113,155.168
V100-PCIe-32GB,BERT-Large,training,512,2,,234.258,82.9589,151.299,266.135,226.464,182.59
"""
"""Four cases of the NeuSight artifact (MIT licence)."""

# Made-up values: the published ones have no licence.
THROUGHPUT = """\
gpu_reported,n_gpus,model,precision_label,batch,pytorch,unit,throughput
Tesla V100-SXM2-16GB,1,ncf,FP32,100000.0,1.13,samples/s,9000000
NVIDIA GeForce RTX 3090,1,ncf,FP32,100000,1.13,samples/s,10000000
NVIDIA GeForce RTX 3090,2,ncf,FP32,100000,1.13,samples/s,20000000
NVIDIA GeForce RTX 3090,1,maskrcnn,FP32,8,1.13,img/s,10
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "transformers_fp32.csv").write_text(TRANSFORMERS, encoding="utf-8")
    (tmp_path / "training_throughput.csv").write_text(THROUGHPUT, encoding="utf-8")
    return tmp_path


def case(**changes: object) -> TransformerCase:
    values = {"gpu": "T4", "model": "BERT-Large", "mode": "inference", "length": 512, "batch": 8, "variant": ""}
    return TransformerCase(**{**values, "measured_seconds": 0.5, "peers": {"NeuSight": 0.6}, **changes})  # type: ignore[arg-type]


def throughput(gpu: str, measured: float, predicted: float, software: str = "1.13") -> ThroughputResult:
    row = ThroughputCase(
        gpu=gpu, model="ncf", precision="FP32", batch=8, software=software, measured_per_second=measured
    )
    return ThroughputResult(row, predicted, predicted / 2, predicted * 2)


def test_rows_become_cases_in_seconds(folder: Path) -> None:
    first, fused, *_ = read_transformer_cases(folder / "transformers_fp32.csv")
    assert (first.gpu, first.length, first.batch) == ("V100-PCIe-32GB", 512, 8)
    assert first.measured_seconds == pytest.approx(0.257422)
    assert first.peers == pytest.approx({"NeuSight": 0.271402, "Habitat-style": 0.249925, "roofline": 0.221571})
    assert fused.peers == pytest.approx({"NeuSight": 0.204843})


def test_what_is_shown_apart() -> None:
    assert case().is_scored
    assert not case(variant="fusion").is_scored
    assert not case(gpu="P4").is_scored
    assert not case(model="SwitchTransformer-XL-4").is_scored


def test_errors_are_relative_to_the_measurement() -> None:
    result = TransformerResult(case(), 0.4, 0.3, 0.49)
    assert result.error == pytest.approx(-0.2)
    assert not result.is_inside
    assert replace(result, high_seconds=0.5).is_inside
    assert result.peer_error("NeuSight") == pytest.approx(0.2)
    assert result.peer_error("roofline") is None
    assert mean_error([result, replace(result, predicted_seconds=0.7)]) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "neusight_predicted_ms",
            "neusight",
            "line 1: neusight_predicted_ms is not a column of this file",
        ),
        (",257.422,257", ",fast,257", "line 2: iteration_ms is 'fast'; expected a finite number above 0"),
        ("inference,512,8,,2", "inference,512,-8,,2", "line 2: batch is -8; expected a finite number above 0"),
        ("32GB,BERT-Large,i", "32GB,BERT-Huge,i", "line 2: model is 'BERT-Huge'; expected one of BERT-Large"),
        ("BERT-Large,training", "BERT-Large,tuning", "line 5: mode is 'tuning'; expected one of inference, training"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(folder: Path, old: str, new: str, message: str) -> None:
    path = folder / "transformers_fp32.csv"
    path.write_text(TRANSFORMERS.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(MeasurementTableError, match=message):
        read_transformer_cases(path)


def test_a_folder_without_a_table_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MeasurementTableError, match=r"Expected transformers_fp32.csv or training_throughput.csv"):
        evaluate_published(tmp_path)
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("error: No table of published iterations")


def test_only_rows_of_one_gpu_and_of_a_known_benchmark_are_read(folder: Path) -> None:
    cases = read_throughput_cases(folder / "training_throughput.csv")
    assert [(row.gpu, row.batch) for row in cases] == [("V100-SXM2-16GB", 100000), ("RTX-3090", 100000)]


def test_a_throughput_table_without_its_columns_is_refused(folder: Path) -> None:
    path = folder / "training_throughput.csv"
    path.write_text(THROUGHPUT.replace("pytorch", "torch"), encoding="utf-8")
    with pytest.raises(MeasurementTableError, match="line 1: pytorch is not a column"):
        read_throughput_cases(path)


def test_throughput_is_units_over_seconds_and_its_interval_is_turned_round(folder: Path) -> None:
    report = evaluate_throughput(folder / "training_throughput.csv", jobs=1)
    assert len(report.absolute) == 2
    for result in report.absolute:
        assert result.low_per_second <= result.predicted_per_second <= result.high_per_second
        assert 2e6 < result.predicted_per_second < 5e7
    assert len(report.ratios) == 2


def test_a_ratio_carries_one_measurement_over() -> None:
    slow, fast = throughput("T4", 100, 120), throughput("L4", 330, 300)
    report = ThroughputReport((slow, fast), tuple(ratios_of((slow, fast))))
    there, back = report.ratios
    # 100 measured x 300 / 120 predicted = 250, where 330 were measured.
    assert there.predicted_per_second == pytest.approx(250)
    assert there.error == pytest.approx(250 / 330 - 1)
    assert back.error == pytest.approx(330 * 120 / 300 / 100 - 1)
    assert report.median_absolute_error == pytest.approx((0.2 + 30 / 330) / 2)
    assert report.median_ratio_error == pytest.approx((80 / 330 + 0.32) / 2)


def test_ratios_stay_within_one_container_and_between_different_gpus() -> None:
    rows = (throughput("T4", 1, 1), throughput("T4", 1, 1), throughput("L4", 1, 1, software="1.4"))
    assert list(ratios_of(rows)) == []


def test_percentages() -> None:
    assert (percent(-0.0714), percent(None)) == ("-7.1", "-")
    assert unsigned_percent([-0.1, 0.3, None], lambda values: sum(values) / len(values)) == "20.0"
    assert unsigned_percent([None], max) == "-"


def test_the_tables_hold_every_case_and_say_what_is_apart() -> None:
    results = (
        TransformerResult(case(), 0.4, 0.3, 0.6),
        TransformerResult(case(gpu="P4"), 0.25, 0.2, 0.3),
    )
    console = Console(width=200, file=io.StringIO())
    console.print(case_table(results))
    console.print(summary_table(results))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "-20.0" in text
    assert "apart: eager, P4, BERT-Large" in text
    lines = [line.split() for line in text.splitlines()]
    everything = next(cells for cells in lines if cells[:2] == ["all", "1"])
    assert everything[2:5] == ["20.0", "20.0", "-20.0"]  # the P4 is not in it


def test_the_command_prints_both_tables_and_draws_the_figure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "transformers_fp32.csv").write_text("".join(TRANSFORMERS.splitlines(keepends=True)[:2]), encoding="utf-8")
    path = folder / "figure.png"
    assert main([str(folder), "--figure", str(path)]) == 0
    text = capsys.readouterr().out
    assert "Transformers in float32" in text
    assert "Training benchmarks on one GPU" in text
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_figure_has_a_panel_for_each_table_and_logarithmic_axes() -> None:
    results = (TransformerResult(case(), 0.4, 0.3, 0.6), TransformerResult(case(gpu="P4"), 0.25, 0.2, 0.3))
    report = ThroughputReport((throughput("T4", 100, 120),), ())
    figure = evaluation_figure(results, report)
    assert len(figure.axes) == 2
    assert {axes.get_xscale() for axes in figure.axes} == {"log"}
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]  # type: ignore[union-attr]
    assert labels == ["T4", "shown apart"]
    points = figure.axes[0].lines[0].get_xydata()
    assert points.tolist() == [[500.0, 400.0]]  # type: ignore[union-attr]


def test_a_report_without_throughput_prints_one_table() -> None:
    console = Console(width=200, file=io.StringIO())
    print_report(Report((TransformerResult(case(), 0.4, 0.3, 0.6),), None), console)
    assert "Training benchmarks" not in console.file.getvalue()  # type: ignore[attr-defined]
