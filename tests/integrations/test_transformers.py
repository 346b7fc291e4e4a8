"""The callback in a real Trainer of Hugging Face: what it records and says, and that training does not notice it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from lightning_predict.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.integrations.transformers import RuntimePredictorCallback

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*pin_memory.*")

BATCH = 4
ACCUMULATED = 2
STEPS = 7


def trained(folder: Path, *callbacks: RuntimePredictorCallback, steps: int = STEPS) -> Trainer:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0)
    tokens = torch.randint(0, 50, (STEPS * BATCH * ACCUMULATED, 8))
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATED,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer


def test_the_rest_of_the_run_is_predicted_printed_and_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictor = RuntimePredictorCallback(gpus=["L4", "8xH100"], deadline_hours=1)
    trainer = trained(tmp_path, predictor)
    assert predictor.predictions is not None
    assert predictor.trace is not None
    one = predictor.predictions["L4"]
    # Three steps of warm-up and the recorded one are over when it is asked, so three are left.
    assert one.total_seconds == pytest.approx(3 * one.iteration_seconds, rel=0.01)
    assert predictor.trace.samples == BATCH * ACCUMULATED
    assert sum(operation.name == "aten::embedding" for operation in predictor.trace.operations) == 2 * ACCUMULATED
    shown = capsys.readouterr().out
    assert "8xH100-SXM-80GB" in shown
    assert "Within 1 h: " in shown
    (logged,) = [entry for entry in trainer.state.log_history if "predict/L4/iteration_ms" in entry]
    assert logged["step"] == 4
    assert logged["predict/L4/iteration_ms"] == pytest.approx(one.iteration_seconds * 1e3)


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    assert trainer.model is not None
    return dict(trainer.model.state_dict())


def test_training_is_bit_identical_with_and_without_it(tmp_path: Path) -> None:
    plain = weights_of(trained(tmp_path))
    watched = weights_of(trained(tmp_path, RuntimePredictorCallback(gpus=["T4"], print_table=False)))
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


def test_a_run_that_is_too_short_is_said_so_once(tmp_path: Path) -> None:
    predictor = RuntimePredictorCallback(gpus=["T4"])
    with pytest.warns(UserWarning, match="ended after 2 steps, before one was recorded; expected more than warmup_ste"):
        trained(tmp_path, predictor, steps=2)
    assert predictor.predictions is None


def test_what_goes_wrong_in_it_is_one_warning(tmp_path: Path) -> None:
    predictor = RuntimePredictorCallback(gpus=["T4"], usd_per_hour={"T4": -1.0})
    with pytest.warns(UserWarning, match="RuntimePredictorCallback stopped, training goes on: InvalidArgumentError"):
        trainer = trained(tmp_path, predictor)
    assert trainer.state.global_step == STEPS


def test_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(InvalidArgumentError, match="warmup_steps=0; expected at least 1, as the first step is cold"):
        RuntimePredictorCallback(warmup_steps=0)
    with pytest.raises(UnknownGpuError, match="'NOPE' is not a GPU of the catalogue"):
        RuntimePredictorCallback(gpus=["NOPE"])
