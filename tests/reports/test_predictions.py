import json
import sys

import pytest

from lightning_predict.base.errors import MissingDependencyError, UnknownGpuError
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.table import plain_table
from lightning_predict.testing import with_values
from lightning_predict.timeline.verdict import Verdict
from tests.reports.example import BARE, FULL, H100, MINIMAL, T4


def test_predictions_are_a_mapping_in_the_order_asked_that_names_its_gpus() -> None:
    assert list(FULL) == ["H100-SXM-80GB", "T4", "K80"]
    assert len(FULL) == 3
    assert FULL["T4"] is T4
    assert dict(FULL)["H100-SXM-80GB"] is H100
    assert "T4" in FULL
    assert "T5" not in FULL
    not_a_name: object = 4
    assert not_a_name not in FULL
    assert FULL.get("T4") is T4
    assert FULL.get("T5") is None
    assert FULL.get("T5", MINIMAL) is MINIMAL
    with pytest.raises(UnknownGpuError, match=r"No prediction for 'T5' here\. Predicted: H100-SXM-80GB, T4, K80\."):
        FULL["T5"]


def test_json_has_null_for_unknown_values_and_the_verdicts_sentence() -> None:
    read = json.loads(FULL.to_json())
    assert read["used_gpu"] == "T4"
    assert read["notes"] == ["2 of 418 operations were not timed on the host."]
    assert [prediction["gpu"] for prediction in read["predictions"]] == ["H100-SXM-80GB", "T4", "K80"]
    assert read["predictions"][1]["iteration_seconds"] == 0.0480
    assert read["predictions"][1]["coverage"] == {"mlp": 0.92, "roofline": 0.08}
    assert read["predictions"][2]["cost_usd"] is None
    verdict = Verdict(bound_by="host", idle_share=0.3, gain=0.04, critical_path={"top": 1.0})
    read = json.loads(Predictions((with_values(H100, verdict=verdict), T4)).to_json())
    assert read["predictions"][0]["verdict"] == {
        "bound_by": "host",
        "idle_share": 0.3,
        "gain": 0.04,
        "critical_path": {"top": 1.0},
        "is_doubtful": False,
        "sentence": "bound by the host: a GPU twice as fast gains 4 %",
    }
    assert read["predictions"][1]["verdict"] is None


def test_str_is_the_plain_table_also_without_predictions() -> None:
    assert str(FULL) == FULL.text() == plain_table(FULL)
    assert FULL.text(verbose=True) == plain_table(FULL, verbose=True)
    assert "18.0–23.0" in BARE.text(verbose=True)  # noqa: RUF001 (an en dash is meant)
    assert "GPU" in str(Predictions(()))


def test_a_notebook_shows_the_table_with_its_notes_and_nothing_of_a_name_is_markup() -> None:
    shown = FULL._repr_html_()
    assert shown.count("<tr>") == 1 + 3
    assert '<th scope="col" style="text-align: left">GPU</th>' in shown
    assert "<li>2 of 418 operations were not timed on the host.</li>" in shown
    assert "<li>.text(verbose=True) adds the methods, the sources of prices" in shown
    assert "<p>Rent a T4 ($0.35/h, Google n1-standard-4 (2026-10-01)): cheapest" in shown
    hostile = Predictions((T4,), notes=("<script>alert(1)</script>",))._repr_html_()
    assert "<script>" not in hostile
    assert "&lt;script&gt;" in hostile


def test_data_frame_has_a_row_a_gpu_and_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = FULL.to_pandas()
    assert list(frame.index) == ["H100-SXM-80GB", "T4", "K80"]
    assert frame.loc["T4", "iteration_seconds"] == 0.0480
    assert set(frame.columns) == set(T4.as_dict()) - {"gpu"}
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"pip install pandas\. as_dict\(\) works without it"):
        FULL.to_pandas()
