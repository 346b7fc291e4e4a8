"""The studies of published tables, on four rows of one and four of another: in one module, so that all record once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.studies import CORRELATIONS, held_cases
from benchmarks.accuracy.transformers import evaluate_transformers, mean_error
from benchmarks.accuracy.whole_steps import whole_steps
from lightning_predict.uncertainty import read_spread
from tests.accuracy.test_report import THROUGHPUT, TRANSFORMERS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "transformers_fp32.csv").write_text(TRANSFORMERS, encoding="utf-8")
    (tmp_path / "training_throughput.csv").write_text(THROUGHPUT, encoding="utf-8")
    return tmp_path


def test_published_transformers_are_predicted_better_than_by_their_peers(folder: Path) -> None:
    results = evaluate_transformers(folder / "transformers_fp32.csv", jobs=1)
    assert [result.case.variant for result in results] == ["", "fusion", "", ""]
    scored = [result for result in results if result.case.is_scored]
    assert len(scored) == 3
    assert mean_error(scored) < 0.07  # NeuSight's: 8.1 %
    compiled, eager = results[1], results[2]
    assert compiled.case.measured_seconds < compiled.predicted_seconds < eager.predicted_seconds


def test_every_case_that_is_not_apart_is_predicted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = held_cases(folder, jobs=1)
    # Three eager cases of BERT-Large and two rows of NCF on one GPU; a wider interval never holds less.
    assert sorted(case.family for case in cases) == ["BERT", "BERT", "BERT", "ncf", "ncf"]
    for case in cases:
        flags = [case.is_inside[value] for value in CORRELATIONS]
        assert flags == sorted(flags)
    (folder / "training_throughput.csv").unlink()
    assert len(held_cases(folder, jobs=1)) == 3
    (folder / "transformers_fp32.csv").write_text("gpu\n", encoding="utf-8")
    assert main([str(folder), "--of", "correlations"]) == 1
    assert "model is not a column" in capsys.readouterr().err


def test_every_table_becomes_cases_and_the_spread_is_written_with_its_provenance(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, output = folder / "steps", folder / "whole_steps.json"
    cases = whole_steps(folder, cache=cache, jobs=1)
    # Three eager cases of BERT-Large; NCF's step of 100,000 samples is mostly the update of its tables.
    assert [case.table for case in cases] == ["transformers"] * 3 + ["benchmarks"] * 2
    assert all(sum(case.shares.values()) == pytest.approx(1) for case in cases)
    assert max(cases[0].shares, key=lambda kind: cases[0].shares[kind]) == "products/float32/HBM"
    # Nothing is faster than its roofline, and every prediction is above it.
    assert all(0 < case.baselines["roofline"] < case.predicted.middle for case in cases)
    # 100,000 samples a step at 9 million a second.
    assert cases[3].measured_seconds == pytest.approx(100_000 / 9e6)
    assert len(list(cache.iterdir())) == 3
    assert main([str(folder), "--of", "steps", "--cache", str(cache), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    for words in (
        "roofline median",
        "untrained",
        "own intervals",
        "GPUs left out in turn",
        "sources left out in turn",
        "width",
        "mean of the tables",
    ):
        assert words in printed
    written = json.loads(output.read_text())
    assert written["provenance"]["cases"] == {"transformers": 3, "benchmarks": 2}
    assert written["provenance"]["gpus"] == ["A100-PCIe-40GB", "RTX-3090", "V100-PCIe-32GB", "V100-SXM2-16GB"]
    assert read_spread(output).operations_factor == written["spread"]["kept"]
