"""The callback in a real Trainer of Hugging Face: its records and messages, and unchanged training."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.integrations.transformers import RuntimePredictorCallback, TransformersLoop
from lightning_predict.observe.watched_loop import WatchedRun, watch
from lightning_predict.record.session import recordings_on
from lightning_predict.testing import Clock
from tests.callbacks.small import Small
from tests.known import known
from tests.observe.test_watched_loop import Loop

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*pin_memory.*")

BATCH = 4
ACCUMULATED = 2
STEPS = 7


def trained(folder: Path, *callbacks: Any, steps: int = STEPS, time: Clock | None = None, **options: Any) -> Trainer:
    """Train; every batch takes half a second of `time`, one of evaluation a quarter."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0)
    tokens = torch.randint(0, 50, (STEPS * BATCH * ACCUMULATED, 8))
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATED,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
        **({"save_strategy": "no"} | options),
    )
    model = GPT2LMHeadModel(config)
    if time is not None:
        model.register_forward_hook(lambda *_: time.advance(0.5 if model.training else 0.25))
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        eval_dataset=[{"input_ids": row, "labels": row} for row in tokens[:32]],
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer


def test_the_rest_of_the_run_is_predicted_printed_and_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictor = RuntimePredictorCallback(gpus=["L4", "8xH100"], deadline_hours=1)
    trainer = trained(tmp_path, predictor)
    assert predictor.trace is not None
    prediction = known(predictor.predictions)["L4"]
    # Three steps of warm-up and the recorded one are over when it is asked, so three are left.
    assert prediction.remaining_seconds == pytest.approx(3 * prediction.cycle_seconds, rel=0.01)
    assert predictor.trace.samples == BATCH * ACCUMULATED
    assert sum(operation.name == "aten::embedding" for operation in predictor.trace.operations) == 2 * ACCUMULATED
    shown = capsys.readouterr().out
    assert "8xH100-SXM-80GB" in shown
    assert "Within 1 h: " in shown
    (logged,) = [entry for entry in trainer.state.log_history if "predict/L4/iteration_ms" in entry]
    assert logged["step"] == 4
    assert logged["predict/L4/iteration_ms"] == pytest.approx(prediction.iteration_seconds * 1e3)


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return dict(known(trainer.model).state_dict())


def test_training_is_bit_identical_with_and_without_it(tmp_path: Path) -> None:
    plain = weights_of(trained(tmp_path))
    watched = weights_of(trained(tmp_path, RuntimePredictorCallback(gpus=["T4"], print_table=False)))
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


def test_a_run_that_is_too_short_is_said_so_once(tmp_path: Path) -> None:
    predictor = RuntimePredictorCallback(gpus=["T4"])
    with pytest.warns(UserWarning, match="ended after 1 steps, before one was recorded; expected more than warmup_ste"):
        trained(tmp_path, predictor, steps=1)
    assert predictor.predictions is None


def test_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(InvalidArgumentError, match="warmup_steps=0; expected at least 1, as the first step is cold"):
        RuntimePredictorCallback(warmup_steps=0)
    with pytest.raises(UnknownGpuError, match="'NOPE' is not a GPU of the catalogue"):
        RuntimePredictorCallback(gpus=["NOPE"])
    with pytest.raises(InvalidArgumentError, match=r"usd_per_hour=-1\.0 is not a price"):
        RuntimePredictorCallback(usd_per_hour={"T4": -1.0})


def test_all_trainers_give_the_same_totals_and_outcomes(tmp_path: Path, time: Clock) -> None:
    # 60 steps of a second, believed after 16.
    hugging_face = RuntimePredictorCallback(gpus=["T4"], print_table=False)
    trained(tmp_path, hugging_face, steps=60, time=time)

    lightning, small = RuntimePredictor(["T4"], print_table=False, learn_from_history=False), Small("lightning.pytorch")
    model = small.model()
    step = model.training_step

    def training_step(batch: torch.Tensor, batch_idx: int) -> Any:
        time.advance(1.0)
        return step(batch, batch_idx)

    model.training_step = training_step
    small.trainer(tmp_path, max_epochs=1, callbacks=lightning).fit(model, small.loader(60))

    loop = Loop(time).watched(60, print_table=False)
    for run in (hugging_face, lightning, loop):
        assert run.outcome is not None
        assert (run.outcome.batches, run.outcome.actual_seconds) == (44, pytest.approx(44.0))
        assert run.outcome.predicted_seconds == pytest.approx(44.0)
        assert run.outcome.predicted == run.outcome.predicted.scaled(1.0)
    low = {round(run.outcome.predicted.low, 6) for run in (hugging_face, lightning, loop) if run.outcome is not None}
    assert max(low) - min(low) < 0.05 * 44


def test_remaining_evaluations_are_in_the_total(tmp_path: Path, time: Clock) -> None:
    # 40 steps of a second; 4 batches of a quarter of a second after every tenth: 3 come after step 16.
    predictor = RuntimePredictorCallback(gpus=["T4"], print_table=False)
    trained(
        tmp_path, predictor, steps=40, time=time, eval_strategy="steps", eval_steps=10, per_device_eval_batch_size=8
    )
    assert predictor.outcome is not None
    assert predictor.outcome.actual_seconds == pytest.approx(24.0 + 3 * 4 * 0.25)
    assert predictor.outcome.predicted_seconds == pytest.approx(24.0 + 3 * 4 * 0.25, rel=0.02)


def test_evaluations_of_unknown_length_are_left_out_with_a_note(
    tmp_path: Path, time: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first comes after eight steps; the prediction after four steps knows none, and after 16 steps one.
    predictor = RuntimePredictorCallback(["T4"], print_table=False)
    texts: list[str] = []
    monkeypatch.setattr(TransformersLoop, "publish", lambda self, predictions, ranking: texts.append(str(predictions)))
    trained(tmp_path, predictor, time=time, steps=40, eval_strategy="steps", eval_steps=0.2)
    assert "evaluations are left out until the first was timed" in " ".join(texts[0].split())
    assert "evaluations" not in texts[-1]


def test_a_part_of_the_run_is_taken_for_the_steps_that_it_is(tmp_path: Path, time: Clock) -> None:
    # Evaluations after each quarter of 40 steps of a second, of 4 batches of 0.25 s: after 30 steps one remains.
    predictor = RuntimePredictorCallback(["T4"], print_table=False)
    left: list[float] = []

    class Ask(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 32 and predictor.remaining is not None:
                left.append(predictor.remaining.middle)

    trained(tmp_path, predictor, Ask(), time=time, steps=40, eval_strategy="steps", eval_steps=0.25)
    assert left == [pytest.approx(8 * 1.0 + 4 * 0.25, rel=0.1)]


def test_a_budget_stops_the_trainer(tmp_path: Path, time: Clock) -> None:
    predictor = RuntimePredictorCallback(gpus=["T4"], print_table=False, usd=35.0, run_usd_per_hour=3600.0)
    trainer = trained(tmp_path, predictor, steps=400, time=time)
    assert trainer.state.global_step == 28  # 79 % of 35 s are 27.65
    assert "exceeds the budget of $35.00 (usd; " in known(predictor.stopping_reason)


def test_an_evaluation_that_may_not_fit_is_said_while_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    predictor = RuntimePredictorCallback(gpus=["T4"], print_table=False)
    with recordings_on("T4"):
        trained(tmp_path, predictor, eval_strategy="steps", eval_steps=6, per_device_eval_batch_size=2**28)
    # 8 tokens of 50 logits, 4 bytes each, are 1,600 bytes a sample: 400 GiB.
    (worry,) = predictor.memory_risks
    assert (worry.kind, worry.gpu) == ("validation", "T4")
    assert "RuntimePredictor, memory: A validation batch of 268,435,456 samples (4 in training) needs" in caplog.text
    silent = RuntimePredictorCallback(gpus=["T4"], print_table=False)
    with recordings_on("T4"):
        trained(tmp_path, silent)
    assert silent.memory_risks == ()


FUNCTIONS_OF_OURS = (  # Functions that the hooks call, by their place in the package
    "integrations.transformers.WatchedRun.__init__",
    "integrations.transformers.TransformersLoop.inputs",
    "integrations.transformers.TransformersLoop.notes",
    "integrations.transformers.metrics",
    "observe.watched_loop.WatchedRun.__enter__",
    "observe.watched_loop.WatchedRun.__exit__",
    "observe.watched_loop.WatchedRun._count_step",
    "observe.watched_loop.WatchedRun._check_budget",
    "observe.watched_loop.WatchedRun.stop",
    "observe.watched_loop.StepRecorder.on_batch_start",
    "observe.watched_loop.StepRecorder.on_batch_end",
    "prediction.predict_workload",
    "observe.run_observer.forecast_rest",
    "observe.run_session.read_history",
    "observe.run_session.print_text",
    "observe.run_observer.RunObserver.on_batch_start",
    "observe.run_observer.RunObserver.on_batch_end",
    "observe.run_observer.RunObserver.on_validation_start",
    "observe.run_observer.RunObserver.on_validation_end",
    "observe.run_observer.RunObserver.exclude_interruption",
    "record.session.CaptureSession.start",
)


@pytest.mark.parametrize("function", FUNCTIONS_OF_OURS)
def test_an_error_of_ours_in_any_hook_leaves_training_as_it_is(
    tmp_path: Path, function: str, recwarn: pytest.WarningsRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"steps": 24, "eval_strategy": "steps", "eval_steps": 5}
    options |= {"save_strategy": "steps", "save_steps": 7}
    plain = trained(tmp_path / "plain", **options)
    predictor = RuntimePredictorCallback(gpus=["T4"], hours=1000)
    with mock.patch(f"lightning_predict.{function}", side_effect=OSError(28, "No space left on device")) as patched:
        watched = trained(tmp_path / "watched", predictor, **options)
    assert patched.called
    assert watched.state.global_step == plain.state.global_step == 24
    before, after = weights_of(plain), weights_of(watched)
    assert all(torch.equal(before[name], after[name]) for name in before)
    said = [warning for warning in recwarn if "RuntimePredictorCallback" in str(warning.message)]
    assert len(said) <= 2  # the prediction and the budget each end with one warning


def test_a_stall_ends_no_run_within_its_budget(tmp_path: Path, time: Clock) -> None:
    # 100 steps of a second and a stall of 100 s in the sixth; 210 s are allowed.
    class Stall(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            time.advance(100.0 if state.global_step == 5 else 0.0)

    predictor = RuntimePredictorCallback(gpus=["T4"], print_table=False, hours=210 / 3600)
    assert trained(tmp_path, Stall(), predictor, steps=100, time=time).state.global_step == 100
    assert predictor.stopping_reason is None


def test_a_loop_of_accelerate_trains_as_without_a_watch(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")

    def loop(run: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        rows: Any = torch.randn(160, 8)
        loader: Any = torch.utils.data.DataLoader(rows, batch_size=4)
        model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
        for batch in loader if run is None else run.batches(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            if run is not None and accelerator.sync_gradients:
                run.step()
        return dict(model.state_dict())

    plain = loop(None)
    for fault in ("", "_count_step", "_check_budget"):
        breaks = mock.patch.object(WatchedRun, fault, side_effect=OSError("patched")) if fault else nullcontext()
        with breaks, watch(total_steps=20, hours=1000, gpus=["T4"], print_table=False) as run:
            weights = loop(run)
        assert all(torch.equal(plain[name], weights[name]) for name in plain)
        assert (run.predictions is not None) == (not fault)  # after an error, nothing more is predicted
