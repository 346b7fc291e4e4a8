"""Short texts at a prompt for a Trace and a prediction, and HTML for a ranking in a notebook."""

from pathlib import Path

import pytest

import lightning_predict as lp
from lightning_predict.record.trace import Trace
from lightning_predict.reports.predictions import Predictions

SHORT = 160


@pytest.fixture(scope="module")
def trace() -> Trace:
    return lp.Trace.load(str(Path(__file__).parent.parent / "examples" / "gpt2.json.gz"))


@pytest.fixture(scope="module")
def found(trace: Trace) -> Predictions:
    return lp.predict(trace, gpus=["L4", "L40S"], iterations=1000, history=False)


def test_trace_and_prediction_are_one_line_and_a_ranking_has_paragraphs(trace: Trace, found: Predictions) -> None:
    assert repr(trace).startswith(f"Trace({len(trace.operations):,} operations, 16 samples, ")
    assert repr(trace).endswith("parameters, recorded on meta)")
    assert len(repr(trace)) < SHORT  # 1.46 million characters with all fields
    text = repr(found["L4"])
    assert text.startswith("Prediction(L4, step_seconds=0.")
    assert "cost_usd=" in text
    assert len(text) < SHORT  # 5,956 characters with all parts
    page = found.ranking()._repr_html_()
    assert page.startswith("<p>The run takes ")
    assert page.count("<p>") == page.count("</p>") >= 2
