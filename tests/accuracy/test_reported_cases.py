"""What a script of a reported case hands over, and how its figure is classed."""

from __future__ import annotations

from pathlib import Path

import pytest

import lightning_predict as lp
from benchmarks.accuracy.reported_cases import Reported, ReportedVerdict, common_module, run_script, verdict_table
from benchmarks.result_files import table_of
from lightning_predict.base.units import GIBIBYTE
from lightning_predict.testing import example_trace


@pytest.mark.parametrize(
    ("note", "kind"),
    [
        ("", "step"),
        ("tokens/s of an epoch, loader in", "step and more"),
        ("if checkpointed", "step, setting guessed"),
        ("the page says A6000: if an RTX 6000 Ada is meant", "step, setting guessed"),
        ("a step; different from others", "step"),  # "if" inside a word
    ],
)
def test_a_note_tells_what_a_time_has(note: str, kind: str) -> None:
    found: list[Reported] = []
    common_module(found, []).case(
        "one", "source", "L4", "model", 8, "float32", "torch", 2.0, example_trace(), note=note
    )
    (row,) = found
    assert (row.gpu, row.kind, row.measured) == ("L4", kind, 2.0)
    assert row.predicted.low < row.predicted.middle < row.predicted.high


def test_memory_of_several_gpus_is_predicted_for_all(tmp_path: Path) -> None:
    recorded = Path(__file__).parents[2] / "examples" / "gpt2.json.gz"
    trace = lp.Trace.load(str(recorded))
    script = tmp_path / "one.py"
    script.write_text(
        f"from common import *\ntrace = lp.Trace.load({str(recorded)!r})\n"
        "row('one', trace, 'L4', measured=1.0, n_gpus=8)\n"
        "row('two', trace, '8xL4', measured=1.0, n_gpus=8)\n"
        "row('three', trace, 'L4', measured=1.0, note='explanation: as others tell')\n"
        "row('four', trace, 'GTX-1080-Ti', fits=False)\n"  # of 11 GiB, where GPT-2 needs 17
        "row('five', trace, 'GTX-1080-Ti', fits=True)\n"
        "row('six', trace, 'L4', fits=True, note='explanation: as others tell')\n"
        "trace.save('build/kept.json.gz')\n",
        encoding="utf-8",
    )
    found: list[Reported] = []
    verdicts: list[ReportedVerdict] = []
    assert run_script(script, found, verdicts) is None
    assert [(one.name, one.fits, one.is_right) for one in verdicts] == [("four", False, True), ("five", True, False)]
    table = {row[0]: row[1:] for row in table_of(verdict_table(verdicts)).rows}
    assert table == {"fitted": ("1", "0"), "did not fit": ("1", "1")}
    assert [one.gpu for one in found] == ["8xL4", "8xL4", "L4"]
    assert [one.kind for one in found] == ["allocated", "allocated", "allocated, setting guessed"]
    several, as_named, alone = (one.predicted.middle for one in found)
    assert several == as_named > alone  # DDP's buckets hold the gradients a second time
    size = lp.predict(trace, ["8xL4"], history=False)["8xL4"].memory.allocated
    assert size is not None
    assert several * GIBIBYTE == pytest.approx(size.middle)


def test_a_script_that_fails_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "one.py"
    script.write_text("raise ValueError('no model')", encoding="utf-8")
    assert run_script(script, [], []) == "ValueError: no model"
    assert "Traceback" in capsys.readouterr().err
