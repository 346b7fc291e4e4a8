"""A run that is resumed with another batch size or another accumulation: forecast and budget count the remainder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from lightning_predict.testing import Clock
from tests.callbacks.small import BATCH_SIZE, Rows, Small

SMALL = Small("lightning.pytorch")
BATCHES = 40  # Batches of an epoch at the batch size of the first part; each takes a second a row of four


def fit(folder: Path, time: Clock, *, batch_size: int = BATCH_SIZE, ours: tuple[Any, ...] = (), **options: Any) -> Any:
    """Fit with a batch size. A batch takes a second for every four rows."""
    model = SMALL.model()
    plain = model.training_step

    def training_step(batch: torch.Tensor, batch_idx: int) -> Any:
        time.advance(len(batch) / BATCH_SIZE)
        return plain(batch, batch_idx)

    model.training_step = training_step
    path = options.pop("ckpt_path", None)
    trainer = SMALL.trainer(folder, callbacks=list(ours), **options)
    trainer.fit(model, DataLoader(Rows(BATCHES), batch_size=batch_size), ckpt_path=path)
    return trainer


def first_part(folder: Path, time: Clock, **options: Any) -> Path:
    """Train a part of a run under a budget and return its checkpoint."""
    path = folder / "part.ckpt"
    fit(folder, time, ours=(CostBudget(hours=100),), **options).save_checkpoint(path)
    return path


WAYS = {
    "larger batches": {"batch_size": 2 * BATCH_SIZE},
    "smaller batches": {"batch_size": BATCH_SIZE // 2},
    "accumulated": {"accumulate_grad_batches": 4},
    "larger batches, accumulated": {"batch_size": 2 * BATCH_SIZE, "accumulate_grad_batches": 2},
}


@pytest.mark.parametrize("first", [{"max_epochs": 1}, {"max_steps": 25}], ids=["an epoch", "within an epoch"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_rest_is_forecast_from_the_batches_and_steps_that_are_left(
    tmp_path: Path, time: Clock, first: dict[str, Any], way: dict[str, Any]
) -> None:
    path = first_part(tmp_path, time, **first)
    used = time()
    predictor, budget = RuntimePredictor(["T4"], print_table=False, learn_from_history=False), CostBudget(hours=1)
    fit(tmp_path, time, ours=(predictor, budget), max_epochs=4, ckpt_path=path, **way)
    assert predictor.outcome is not None
    assert predictor.outcome.predicted_seconds == pytest.approx(predictor.outcome.actual_seconds, rel=0.03)
    assert budget.stopping_reason is None
    assert budget.state_dict()["seconds"] == pytest.approx(time(), rel=1e-6)
    assert time() > used + 2 * BATCHES


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_budget_counts_both_parts(tmp_path: Path, time: Clock, way: dict[str, Any], said: list[str]) -> None:
    # 40 s are used, and three more epochs of 40 s are left, for every batch size: 160 s.
    path = first_part(tmp_path, time, max_epochs=1)
    enough, short = CostBudget(hours=170 / 3600), CostBudget(hours=140 / 3600)
    fit(tmp_path, time, ours=(enough,), max_epochs=4, ckpt_path=path, **way)
    assert enough.stopping_reason is None
    fit(tmp_path, time, ours=(short,), max_epochs=4, ckpt_path=path, **way)
    assert short.stopping_reason is not None
    assert "exceeds the budget of 2 min 20 s" in short.stopping_reason
    assert short.state_dict()["seconds"] < 140
    said.clear()  # the warnings before
