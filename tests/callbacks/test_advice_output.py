"""`RuntimePredictor(advice=True)`: what to change first, below the table."""

from pathlib import Path

import pytest

from lightning_predict.advice import advice as module
from lightning_predict.base.errors import TraceError
from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.callbacks.lightning_packages import LightningPredictWarning
from tests.callbacks.small import Small, our_rows

pytestmark = pytest.mark.usefixtures("readings")


def test_advice_is_printed_in_three_lines_at_most_and_logged(
    lightning: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictor = RuntimePredictor(["T4", "L4"], advice=True)
    logger = lightning.lightning.loggers.CSVLogger(tmp_path)
    lightning.trainer(tmp_path, max_epochs=1, callbacks=predictor, logger=logger).fit(
        lightning.model(), lightning.loader(8)
    )
    advice = predictor.advice
    assert advice is not None
    assert advice.on == "T4"  # the step was recorded on the CPU
    printed = capsys.readouterr().out
    assert printed.count("Change first") + printed.count("No change has a validated gain here") == 1
    (row,) = [
        row
        for row in our_rows(logger)
        if row.get("predict/advice/bf16-mixed/gain") or row.get("predict/advice/16-mixed/gain")
    ]
    assert float(row["predict/advice/16-mixed/gain"]) == pytest.approx(advice.metrics()["predict/advice/16-mixed/gain"])


def test_without_it_nothing_is_advised(lightning: Small, tmp_path: Path) -> None:
    predictor = RuntimePredictor(["T4"])
    lightning.trainer(tmp_path, max_epochs=1, callbacks=predictor).fit(lightning.model(), lightning.loader(8))
    assert predictor.predictions is not None
    assert predictor.advice is None


def test_predictions_hold_where_advice_fails(lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise TraceError("nothing to advise on")

    monkeypatch.setattr(module, "check_predictable", fails)
    predictor = RuntimePredictor(["T4"], advice=True)
    with pytest.warns(LightningPredictWarning, match="RuntimePredictor could not advise: nothing to advise on"):
        lightning.trainer(tmp_path, max_epochs=1, callbacks=predictor).fit(lightning.model(), lightning.loader(8))
    assert predictor.predictions is not None
    assert predictor.advice is None
