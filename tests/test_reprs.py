"""Short texts at a prompt for a Trace and a prediction, and HTML for a ranking in a notebook."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import lightning_predict as lp
from lightning_predict.reports.predictions import Predictions
from lightning_predict.tracing.trace import Trace

SHORT = 160


@pytest.fixture(scope="module")
def trace() -> Trace:
    return lp.Trace.load(str(Path(__file__).parent.parent / "examples" / "gpt2.json.gz"))


@pytest.fixture(scope="module")
def found(trace: Trace) -> Predictions:
    return lp.predict(trace, gpus=["L4", "L40S"], iterations=1000, history=False)


def test_a_trace_is_one_line(trace: Trace) -> None:
    assert repr(trace).startswith(f"Trace({len(trace.operations):,} operations, 16 samples, ")
    assert repr(trace).endswith("parameters, recorded on meta)")
    assert len(repr(trace)) < SHORT  # 1.46 million characters with all fields


def test_a_prediction_is_one_line(found: Predictions) -> None:
    text = repr(found["L4"])
    assert text.startswith("Prediction(L4, step_seconds=0.")
    assert "cost_usd=" in text
    assert len(text) < SHORT  # 5,956 characters with all parts


def test_a_notebook_shows_a_trace_as_a_small_table(trace: Trace) -> None:
    page = trace._repr_html_()
    assert "<caption>Recorded training step</caption>" in page
    assert ">the meta device</td>" in page
    assert f">{len(trace.operations):,}</td>" in page
    assert ">124,439,808 in float32</td>" in page  # 124 million: GPT-2
    assert ">not measured</td>" in page
    hostile = replace(trace, device="cuda", gpu_reported_name="<script>")._repr_html_()
    assert "<script>" not in hostile
    assert "&lt;script&gt;" in hostile


def test_a_notebook_shows_a_prediction_as_one_row(found: Predictions) -> None:
    page = found["L4"]._repr_html_()
    assert page.count("<tr>") == 2  # the header and the row
    assert page.startswith("<table>")
    assert page.endswith("</table>")  # its notes apply to a table, whose text has them
    assert ">L4 †</th>" in page
    assert "L40S" not in page


def test_a_ranking_has_a_paragraph_for_each_sentence(found: Predictions) -> None:
    page = found.ranking()._repr_html_()
    assert page.startswith("<p>The run takes ")
    assert page.count("<p>") == page.count("</p>") >= 2
