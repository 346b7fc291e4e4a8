"""Predicted against actual: the arithmetic, and in real fits."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.base.files import history_path
from lightning_predict.base.interval import Interval
from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.callbacks.lightning_packages import LightningPredictWarning
from lightning_predict.observe.predicted_vs_actual import MIN_BATCHES, Expected, OutcomeTimer
from lightning_predict.record.session import recordings_on
from lightning_predict.run.history import append_record, fingerprint_of, read_history
from tests.callbacks.conftest import Call
from tests.callbacks.small import Small, our_rows
from tests.callbacks.test_remaining_in_fits import stopping_after
from tests.known import known

EXPECTED = Expected(  # 100 batches of half a second and 10 s of validation, at a tenth of a cent a second
    gpu="T4",
    fingerprint="f",
    samples=8,
    step_seconds=0.4,
    batch_seconds=0.5,
    batches=100,
    total_seconds=60.0,
    shown=Interval(48.0, 60.0, 72.0),
    usd_per_hour=3.6,
    offer="AWS g4dn.xlarge (2026-09-17)",
)


def outcome(expected: Expected, *, seconds: float, batches: int) -> Any:
    times = iter([100.0, 100.0 + seconds])
    return OutcomeTimer(expected, clock=lambda: next(times), batches_seen=4).compare(batches_seen=4 + batches)


def test_a_run_that_went_to_its_end() -> None:
    ended = outcome(EXPECTED, seconds=66.0, batches=100)
    assert ended.sentence == (
        "the rest of this run took 1 min 6 s on T4, 10 % more than the predicted 1 min (48.0 s to 1 min 12 s). "
        "It cost $0.07, predicted $0.06 (price: AWS g4dn.xlarge (2026-09-17))"
    )
    assert ended.metrics() == {
        "actual_hours": pytest.approx(66 / 3600),
        "actual_predicted_hours": pytest.approx(60 / 3600),
        "actual_over_predicted": pytest.approx(1.1),
        "actual_batch_ms": pytest.approx(660.0),
        "actual_cost_usd": pytest.approx(0.066),
        "actual_predicted_cost_usd": pytest.approx(0.060),
    }


def test_outcomes_are_compared_for_the_trained_batches_and_the_shown_time() -> None:
    ended = outcome(EXPECTED, seconds=15.0, batches=50)
    assert ended.predicted_seconds == 30.0
    assert "for the 50 of 100 trained batches" in ended.sentence
    assert "50 % less than" in ended.sentence
    unknown = replace(EXPECTED, batches=None, total_seconds=None, shown=None, usd_per_hour=None, gpu=None)
    ended = outcome(unknown, seconds=10.0, batches=20)
    assert ended.predicted_seconds == 20 * 0.5
    assert ended.sentence == "the rest of this run took 10.0 s, 0 % more than the predicted 10.0 s"
    assert ended.record() is None
    ended = outcome(replace(EXPECTED, shown=Interval(72.0, 72.0, 72.0)), seconds=72.0, batches=100)
    assert (ended.predicted_seconds, ended.measured_seconds) == (72.0, 60.0)
    record = known(ended.record())
    assert (record.predicted_seconds, record.actual_seconds, record.step_seconds) == (60.0, 72.0, 0.4)
    assert outcome(EXPECTED, seconds=1.0, batches=0) is None
    few, enough = (outcome(EXPECTED, seconds=1.0, batches=count) for count in (MIN_BATCHES - 1, MIN_BATCHES))
    assert few.record() is None
    assert few.metrics() == {}
    assert enough.record() is not None
    assert enough.metrics()
    assert MIN_BATCHES > 16


def fit(small: Small, folder: Path, predictor: RuntimePredictor, *, batches: int = 40, **options: Any) -> None:
    trainer = small.trainer(folder, **({"max_epochs": 1, "callbacks": predictor} | options))
    trainer.fit(small.model(), small.loader(batches))


@pytest.mark.usefixtures("readings")
def test_one_line_and_the_loggers_say_it(small: Small, tmp_path: Path, caplog: Any) -> None:
    logger = small.lightning.loggers.CSVLogger(tmp_path)
    predictor = RuntimePredictor(["T4"])
    with caplog.at_level(logging.INFO):
        fit(small, tmp_path, predictor, logger=logger)
    lines = [message for message in caplog.messages if "the rest of this run took" in message]
    assert len(lines) == 1
    assert predictor.outcome is not None
    assert predictor.outcome.batches == 40 - 4
    assert predictor.outcome.is_whole
    (row,) = [row for row in our_rows(logger) if row["predict/actual_hours"]]
    assert row["step"] == "40"
    assert float(row["predict/actual_hours"]) == pytest.approx(predictor.outcome.actual_seconds / 3600)
    assert float(row["predict/actual_predicted_hours"]) > 0


def test_off_a_known_gpu_nothing_is_remembered(lightning: Small, tmp_path: Path) -> None:
    fit(lightning, tmp_path, RuntimePredictor(["T4"]))
    assert not history_path().exists()


@pytest.mark.usefixtures("readings")
def test_a_run_that_is_stopped_is_compared_for_its_part(small: Small, tmp_path: Path) -> None:
    predictor = RuntimePredictor(["T4"])
    fit(small, tmp_path, [predictor, stopping_after(small, 10)])  # type: ignore[arg-type]
    assert predictor.outcome is not None
    assert (predictor.outcome.batches, predictor.outcome.is_whole) == (10 - 4, False)


@pytest.mark.usefixtures("readings")
def test_an_unknown_length_has_an_outcome_too(lightning: Small, tmp_path: Path) -> None:
    predictor = RuntimePredictor(["T4"])
    trainer = lightning.trainer(tmp_path, max_epochs=1, callbacks=predictor)
    trainer.fit(lightning.model(), lightning.stream(12))
    assert known(predictor.outcome).batches == 12 - 4


@pytest.fixture
def _on_a_t4() -> Iterator[None]:
    """Traces say that they were recorded on a T4, as they would there."""
    with recordings_on("T4"):
        yield


@pytest.mark.usefixtures("_on_a_t4", "readings")
def test_a_later_run_of_the_same_model_learns(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    first = RuntimePredictor(["T4", "L4"])
    fit(small, tmp_path, first)
    (record,) = read_history()
    assert (record.gpu, record.fingerprint, record.step_seconds) == ("T4", fingerprint_of(calls[0].trace), 1.0)
    assert record.predicted_seconds == pytest.approx(known(first.outcome).predicted_seconds)
    # As if the run had taken half as long again as it was measured to: a single run counts half, so the root of 1.5.
    factor = 1.5**0.5
    history_path().unlink()
    append_record(replace(record, predicted_seconds=100.0, actual_seconds=150.0))

    second = RuntimePredictor(["T4", "L4"])
    fit(small, tmp_path, second)
    assert first.predictions is not None
    assert second.predictions is not None
    before, after = first.predictions["T4"], second.predictions["T4"]
    assert after.total_seconds == pytest.approx(factor * (before.total_seconds or 0.0))
    assert after.iteration_seconds == before.iteration_seconds == 1.0  # measured in this run
    note = "The total of every GPU is corrected by a factor of 1.22, from 1 earlier run of this model on T4."
    assert note in second.predictions.notes
    # The extension of the run applies to every GPU: the comparison stays what it was.
    other = first.predictions["L4"].total_seconds
    assert second.predictions["L4"].total_seconds == pytest.approx(factor * known(other))
    # The learnt error is the error of the measured part, so that a correction is not learnt again.
    assert read_history()[-1].predicted_seconds == pytest.approx(record.predicted_seconds)


@pytest.mark.usefixtures("_on_a_t4", "readings")
@pytest.mark.parametrize(("stopped_after", "records"), [(30, 0), (40, 1)])
def test_a_run_that_was_stopped_within_an_epoch_is_not_learnt_from(
    small: Small, tmp_path: Path, stopped_after: int, records: int
) -> None:
    # Two epochs of 40 batches: what stops within the first one ends with a validation of its own.
    fit(small, tmp_path, [RuntimePredictor(["T4"]), stopping_after(small, stopped_after)], max_epochs=2)  # type: ignore[arg-type]
    assert len(read_history()) == records


@pytest.mark.usefixtures("_on_a_t4", "readings")
def test_learning_can_be_switched_off(lightning: Small, tmp_path: Path) -> None:
    predictor = RuntimePredictor(["T4"], learn_from_history=False)
    fit(lightning, tmp_path, predictor)
    assert not history_path().exists()
    assert predictor.outcome is not None


@pytest.mark.usefixtures("_on_a_t4", "readings")
def test_a_history_that_cannot_be_written_is_a_warning(
    lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("LIGHTNING_PREDICT_HISTORY", str(tmp_path / "file" / "history.jsonl"))
    predictor = RuntimePredictor(["T4"])
    with pytest.warns(LightningPredictWarning, match="could not remember this run|without earlier runs") as warned:
        fit(lightning, tmp_path, predictor)
    assert any("could not remember this run: " in str(warning.message) for warning in warned)
    assert predictor.outcome is not None
