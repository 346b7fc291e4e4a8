"""What RuntimePredictor records, predicts and says, in real fits."""

import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError, WeightsNotFoundError
from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.callbacks.lightning_packages import LightningPredictWarning
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.prediction import predict_workload
from lightning_predict.record.trace import Trace
from tests.callbacks.conftest import Call
from tests.callbacks.small import BATCH_SIZE, Small, our_rows
from tests.known import known

GPUS = ["T4", "L4"]

pytestmark = pytest.mark.usefixtures("readings")


def fit(
    small: Small, folder: Path, predictor: RuntimePredictor, *, model: Any = None, batches: int = 8, **options: Any
) -> Any:
    """A fit of one epoch with the predictor; returns the Trainer."""
    trainer = small.trainer(folder, **({"max_epochs": 1, "callbacks": predictor} | options))
    trainer.fit(model or small.model(), small.loader(batches))
    return trainer


def test_it_predicts_after_the_warmup_and_the_capture(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    predictor = RuntimePredictor(GPUS)
    model = small.model()
    batches_trained = []
    model.on_train_batch_end = lambda *args: batches_trained.append((model.batches_trained, predictor.predictions))
    fit(small, tmp_path, predictor, model=model)

    assert list(known(predictor.predictions)) == ["T4", "L4"]
    # None after three batches; there after the fourth, before the fifth begins.
    assert [trained for trained, predictions in batches_trained if predictions is None] == [1, 2, 3]
    (call,) = calls
    assert (call.trace.batches, call.trace.samples) == (1, BATCH_SIZE)
    assert call.trace.optimizer_steps == 1
    assert call.trace.step_seconds == (1.0, 1.0)  # of three, the first is cold
    assert call.trace.loader_seconds == (1.0, 1.0)  # before the second and the third batch
    assert {operation.phase for operation in call.trace.operations} >= {"forward", "backward", "optimizer"}
    assert call.workload.training_iterations == 8 - 4
    assert call.workload.samples_per_iteration == BATCH_SIZE
    assert call.validation is None


def test_whole_accumulation_windows_are_recorded(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    fit(small, tmp_path, RuntimePredictor(GPUS), batches=12, accumulate_grad_batches=2)
    (call,) = calls
    assert (call.trace.batches, call.trace.samples) == (2, 2 * BATCH_SIZE)
    assert call.workload.training_iterations == 12 // 2 - 4
    # Two batches go forward (two linear layers each), one update follows.
    forward = [operation.name for operation in call.trace.operations if operation.phase == "forward"]
    assert forward.count("aten::addmm") == 2 * 2


def test_the_short_window_at_the_end_of_an_epoch_is_passed_over(
    small: Small, tmp_path: Path, calls: list[Call]
) -> None:
    # Epochs of 3 + 1 batches: windows 1, 3 and 5 are timed, 7 is recorded; 2, 4, 6 and 8 are short.
    fit(small, tmp_path, RuntimePredictor(GPUS), batches=4, max_epochs=4, accumulate_grad_batches=3)
    (call,) = calls
    assert (call.trace.batches, call.workload.training_iterations) == (3, 1)


def test_the_step_of_the_recording_is_counted_as_the_rest_is(
    lightning: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(lightning, tmp_path, RuntimePredictor(GPUS), model=lightning.gan(), max_epochs=-1, max_steps=16)
    printed = " ".join(capsys.readouterr().out.split())
    assert "Rest of this run: 4 steps" in printed
    assert "at step 4" in printed  # of 8; Lightning counts 8 then, two optimizers a batch


def test_accumulation_in_manual_optimization(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    fit(small, tmp_path, RuntimePredictor(GPUS), model=small.gan(accumulates=2), batches=12)
    (call,) = calls
    assert (call.trace.batches, call.trace.optimizer_steps) == (2, 2)
    assert call.workload.training_iterations == 12 // 2 - 4


def test_metrics_go_to_every_logger_at_the_step_of_the_capture(small: Small, tmp_path: Path) -> None:
    loggers = small.lightning.loggers
    written = [loggers.CSVLogger(tmp_path / "one"), loggers.CSVLogger(tmp_path / "two")]
    fit(small, tmp_path, RuntimePredictor(GPUS), logger=written)
    for logger in written:
        (row,) = [row for row in our_rows(logger) if row["predict/T4/iteration_ms"]]
        assert row["step"] == "3"  # of the Trainer's own row of this batch, the fourth
        assert "predict/L4/iteration_ms_low" not in row
        assert float(row["predict/T4/total_hours"]) > 0


def test_all_quantities_are_logged_where_they_are_asked_for(lightning: Small, tmp_path: Path) -> None:
    logger = lightning.lightning.loggers.CSVLogger(tmp_path)
    fit(lightning, tmp_path, RuntimePredictor(GPUS, verbose=True), logger=logger)
    (row,) = [row for row in our_rows(logger) if row["predict/T4/iteration_ms"]]
    assert float(row["predict/L4/iteration_ms_low"]) <= float(row["predict/L4/iteration_ms"])


def test_the_predictions_go_to_a_file_that_was_asked_for(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictor = RuntimePredictor(GPUS, json_file=tmp_path / "new" / "found.json")
    fit(small, tmp_path, predictor)
    written = json.loads((tmp_path / "new" / "found.json").read_text())
    assert written == json.loads(known(predictor.predictions).to_json())
    assert written["heading"].startswith("Rest of this run: 4 steps")
    assert written["machine_in_use"]["name"] == "CPU"
    printed = capsys.readouterr().out
    assert "T4" in printed
    assert "L4" in printed


def test_a_logger_that_fails_becomes_a_warning(
    lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(lightning.lightning.loggers.TensorBoardLogger):  # type: ignore[misc,name-defined]
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            if "predict/T4/iteration_ms" in metrics:
                raise ConnectionError("the server is gone")

    predictor = RuntimePredictor(GPUS)
    with pytest.warns(LightningPredictWarning, match="Broken could not log the metrics.*the server is gone"):
        fit(lightning, tmp_path, predictor, logger=Broken(tmp_path))
    assert predictor.predictions is not None


def test_validation_comes_from_the_second_batch_of_the_sanity_check(
    small: Small, tmp_path: Path, calls: list[Call]
) -> None:
    trainer = small.trainer(tmp_path, max_epochs=2, callbacks=RuntimePredictor(GPUS))
    trainer.fit(small.model(validates=True), small.loader(8), small.loader(3))
    (call,) = calls
    assert call.validation is not None
    assert {operation.phase for operation in call.validation.operations} <= {"forward", "other"}
    assert (call.validation.samples, call.workload.validation_iterations) == (BATCH_SIZE, 2 * 3)


def test_without_a_sanity_check_it_predicts_again_after_the_first_validation(
    small: Small, tmp_path: Path, calls: list[Call]
) -> None:
    logger = small.lightning.loggers.CSVLogger(tmp_path)
    predictor = RuntimePredictor(GPUS)
    trainer = small.trainer(tmp_path, max_epochs=2, num_sanity_val_steps=0, logger=logger, callbacks=predictor)
    trainer.fit(small.model(validates=True), small.loader(8), small.loader(3))

    estimated, measured = calls
    assert estimated.validation is None
    assert (estimated.workload.training_iterations, estimated.workload.validation_iterations) == (16 - 4, 2 * 3)
    assert (measured.workload.training_iterations, measured.workload.validation_iterations) == (8, 3)
    assert known(measured.validation).step_seconds  # the third batch was timed without a recorder
    assert measured.trace.operations is estimated.trace.operations
    rows = [row for row in our_rows(logger) if row["predict/T4/iteration_ms"]]
    assert [row["step"] for row in rows] == ["3", "7"]


def test_validation_within_a_window_is_no_part_of_the_step(lightning: Small, tmp_path: Path, calls: list[Call]) -> None:
    trainer = lightning.trainer(
        tmp_path,
        max_epochs=1,
        accumulate_grad_batches=2,
        val_check_interval=1,
        num_sanity_val_steps=0,
        callbacks=RuntimePredictor(GPUS),
    )
    trainer.fit(lightning.model(validates=True), lightning.loader(12), lightning.loader(2))
    forward = [operation.name for operation in calls[0].trace.operations if operation.phase == "forward"]
    assert forward.count("aten::addmm") == 2 * 2  # as in training alone
    assert calls[0].trace.loader_seconds == ()  # validation came before every batch


def test_a_second_fit_begins_anew(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    predictor = RuntimePredictor(GPUS)
    trainer = fit(small, tmp_path, predictor)
    first = predictor.predictions
    trainer.fit_loop.max_epochs = 2
    trainer.fit(small.model(), small.loader(8))
    assert len(calls) == 2
    assert predictor.predictions is not first


def test_a_run_shorter_than_the_warmup_is_recorded_in_its_last_step(
    small: Small, tmp_path: Path, calls: list[Call]
) -> None:
    fit(small, tmp_path, RuntimePredictor(GPUS), batches=2)
    (call,) = calls
    assert call.workload.training_iterations == 0
    assert len(call.trace.step_seconds) == 1


def test_a_run_of_one_batch_is_too_short(small: Small, tmp_path: Path) -> None:
    predictor = RuntimePredictor(GPUS)
    with pytest.warns(
        LightningPredictWarning,
        match=r"recorded nothing: training ended after 1 batches \(1 steps\)\. warmup_steps=3 needs 4 uninterrupted",
    ):
        fit(small, tmp_path, predictor, batches=1)
    assert predictor.predictions is None


@pytest.mark.parametrize("mode", [{"fast_dev_run": 5}, {"barebones": True, "enable_progress_bar": False}])
def test_modes_without_extras_are_left_alone(
    small: Small, tmp_path: Path, calls: list[Call], mode: dict[str, Any]
) -> None:
    name = next(iter(mode))
    options: dict[str, Any] = {"log_every_n_steps": None, "logger": None} if name == "barebones" else {}
    model = small.model()
    trainer = small.trainer(tmp_path, max_steps=5, callbacks=RuntimePredictor(GPUS), **options | mode)
    with pytest.warns(LightningPredictWarning, match=rf"does nothing under Trainer\({name}="):
        trainer.fit(model, small.loader(8))
    assert model.batches_trained == 5
    assert calls == []


def test_a_second_profiler_keeps_its_trace_and_ours_warns(small: Small, tmp_path: Path) -> None:
    profiler = small.lightning.profilers.PyTorchProfiler(dirpath=tmp_path, filename="theirs")
    predictor = RuntimePredictor(GPUS)
    model = small.model()
    with pytest.warns(LightningPredictWarning, match="off, and training goes on: CaptureError: .*profiler"):
        fit(small, tmp_path, predictor, model=model, profiler=profiler)
    assert predictor.predictions is None
    assert model.batches_trained == 8


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"gpus": []}, InvalidArgumentError, "gpus is empty"),
        ({"gpus": ["T5"]}, UnknownGpuError, "'T5' is not a GPU of the catalogue"),
        ({"warmup_steps": 0}, InvalidArgumentError, "warmup_steps=0 is not a number of steps; expected a whole number"),
        ({"assumptions": "fast"}, InvalidArgumentError, "assumptions='fast' is not an Assumptions"),
        (
            {"assumptions": Assumptions(weights="nowhere/at/all")},
            WeightsNotFoundError,
            "weights='nowhere/at/all' does not exist",
        ),
        (
            {"assumptions": Assumptions(strategy=Strategy(data="fsdp"))},
            InvalidArgumentError,
            "ignores strategy and history of its assumptions; give strategy=",
        ),
        ({"usd_per_hour": 0.0}, InvalidArgumentError, "usd_per_hour=0.0 is not a price"),
        ({"usd_per_hour": {"T5": 1.0}}, UnknownGpuError, "'T5' is not a GPU"),
        ({"save_trace": "step.txt"}, InvalidArgumentError, r"save_trace='step.txt' does not end in .json or .json.gz"),
        ({"save_trace": 3}, InvalidArgumentError, "save_trace=3 is not a path; expected a file, for example 'step."),
        ({"save_trace": f"{__file__}/step.json"}, InvalidArgumentError, "which is a file, not a folder"),
        ({"batches_per_epoch": 0}, InvalidArgumentError, "batches_per_epoch=0 is not a length; expected a whole numb"),
        ({"batches_per_epoch": 1.5}, InvalidArgumentError, "batches_per_epoch=1.5 is not a length"),
        ({"deadline_hours": -1.0}, InvalidArgumentError, "deadline_hours=-1.0 is not a limit"),
        ({"gpus": ["0xT4"]}, InvalidArgumentError, "The layout '0xT4' has"),
        ({"strategy": "gossip"}, InvalidArgumentError, "strategy='gossip' is not known"),
        ({"assumptions": Assumptions(cores_per_node=0)}, InvalidArgumentError, "cores_per_node=0 is not a number of c"),
    ],
)
def test_what_can_be_put_right_is_refused_at_once(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        RuntimePredictor(**arguments)


def test_prices_by_any_name_of_a_gpu() -> None:
    assert RuntimePredictor(["T4"], usd_per_hour={"Tesla T4": 0.5}).usd_per_hour == {"T4": 0.5}


def test_the_device_is_not_waited_for_after_the_capture(
    lightning: Small, tmp_path: Path, readings: list[float]
) -> None:
    fit(lightning, tmp_path, RuntimePredictor(GPUS), batches=4)
    until_the_capture = len(readings)
    readings.clear()
    fit(lightning, tmp_path, RuntimePredictor(GPUS), batches=40)
    assert until_the_capture == 4 * 2 + 1  # each batch's start and end, and the recorder's start
    assert len(readings) == until_the_capture


def test_the_tuner_is_not_predicted(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    model = small.model()
    model.lr = 0.01
    trainer = small.trainer(tmp_path, max_epochs=1, callbacks=RuntimePredictor(GPUS))
    tuner = import_module(f"{small.lightning.__name__}.tuner").Tuner(trainer)
    tuner.lr_find(model, small.loader(8), num_training=6)
    assert calls == []
    trainer.fit(model, small.loader(8))
    assert calls[0].workload.training_iterations == 8 - 4


def test_of_two_the_first_predicts(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    # One in the code, and one that the environment asked for.
    first, second = RuntimePredictor(GPUS), RuntimePredictor(GPUS)
    fit(small, tmp_path, [first, second])  # type: ignore[arg-type]
    assert first.predictions is not None
    assert second.predictions is None
    assert len(calls) == 1


def test_the_recorded_step_is_given_away(small: Small, tmp_path: Path, calls: list[Call]) -> None:
    assert RuntimePredictor(GPUS).trace is None
    predictor = RuntimePredictor(GPUS, save_trace=tmp_path / "new" / "step.json.gz")
    trainer = fit(small, tmp_path, predictor)
    (call,) = calls
    assert predictor.trace == call.trace
    assert Trace.load(str(tmp_path / "new" / "step.json.gz")) == call.trace
    predictor.setup(trainer, small.model(), "fit")  # another fit begins
    assert predictor.trace is None


def test_it_takes_at_most_sixteen_arguments_and_other_assumptions_reach_the_prediction(
    lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(inspect.signature(RuntimePredictor).parameters) <= 16
    with pytest.raises(TypeError, match="capture_steps"):
        RuntimePredictor(GPUS, capture_steps=2)  # type: ignore[call-arg]
    seen: list[Assumptions] = []

    def noting(trace: Any, layouts: Any, workload: Any, assumptions: Assumptions, **options: Any) -> Any:
        seen.append(assumptions)
        return predict_workload(trace, layouts, workload, assumptions, **options)

    monkeypatch.setattr("lightning_predict.prediction.predict_workload", noting)
    given = Assumptions(host="slow", cores_per_node=8, usd_per_hour={"T4": 0.5})
    fit(lightning, tmp_path, RuntimePredictor(["T4"], assumptions=given, learn_from_history=False))
    assert [(one.host, one.cores_per_node, one.usd_per_hour) for one in seen[:1]] == [("slow", 8, {"T4": 0.5})]
