"""A loop of Fabric that is watched, against Lightning's Trainer on the same steps."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

from lightning_predict.base.errors import CaptureError, InvalidArgumentError
from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.integrations.fabric import FabricPredictor
from lightning_predict.testing import Clock
from tests.callbacks.small import Small
from tests.callbacks.test_cost_budget import timed_model


def trained(time: Clock | None, predictor: FabricPredictor | None, batches: int, *, accumulates: int = 1) -> list[Any]:
    """Weights and random numbers after batches of a second, in two epochs; with the number of batches."""
    torch.manual_seed(7)
    fabric = Fabric(accelerator="cpu", callbacks=[] if predictor is None else [predictor])
    first = torch.nn.Linear(8, 4)
    network = torch.nn.Sequential(first, torch.nn.Dropout(0.5))
    model, optimizer = fabric.setup(network, torch.optim.Adam(network.parameters(), lr=0.1))
    seen = 0

    def epoch(loader: Any) -> None:
        nonlocal seen
        for number in loader:
            fabric.backward(model(torch.ones(2, 8)).square().mean())
            if time is not None:
                time.advance(1.0)
            if (number + 1) % accumulates == 0:
                optimizer.step()
                optimizer.zero_grad()
            seen += 1

    if predictor is None:
        epoch(range(batches))
    else:
        with predictor:
            epoch(predictor.batches(range(batches)))
    return [first.weight.detach().clone(), torch.get_rng_state(), seen]


def test_fabric_and_the_trainer_give_the_same_totals(tmp_path: Path, time: Clock) -> None:
    # 60 steps of a second, believed after 16.
    predictor = FabricPredictor(total_steps=60, gpus=["T4"], print_table=False)
    trained(time, predictor, 60)
    small, lightning = Small("lightning.pytorch"), RuntimePredictor(["T4"], print_table=False, learn_from_history=False)
    trainer = small.trainer(tmp_path, max_epochs=1, callbacks=lightning)
    trainer.fit(timed_model(small, time), small.loader(60))
    assert predictor.run is not None
    for watched in (predictor.run, lightning):
        assert watched.outcome is not None
        assert watched.outcome.batches == 44
        assert watched.outcome.actual_seconds == pytest.approx(44.0)
        assert watched.outcome.predicted_seconds == pytest.approx(44.0)
    lows = [watched.outcome.predicted.low for watched in (predictor.run, lightning) if watched.outcome is not None]
    assert lows[0] == pytest.approx(lows[1], rel=0.05)


def test_a_step_goes_from_update_to_update(time: Clock) -> None:
    predictor = FabricPredictor(total_steps=30, gpus=["T4"], print_table=False)
    trained(time, predictor, 120, accumulates=4)
    assert predictor.run is not None
    assert predictor.run.trace is not None
    assert predictor.run.trace.step_seconds == (4.0, 4.0)  # of three, the first is cold
    assert predictor.run.trace.memory.optimizer_state_bytes == 2 * 4 * (8 * 4 + 4) + 2 * 4  # Adam's, told by Fabric
    assert predictor.run.outcome is not None
    assert predictor.run.outcome.actual_seconds == pytest.approx(4.0 * predictor.run.outcome.batches)


def test_a_budget_ends_the_loop_and_later_epochs(time: Clock) -> None:
    predictor = FabricPredictor(total_steps=400, gpus=["T4"], hours=4.5 / 3600, print_table=False)
    assert trained(time, predictor, 400)[-1] == 5
    assert predictor.run is not None
    assert "5.00 s of 4.50 s" in str(predictor.run.stopping_reason)
    assert list(predictor.batches(range(3))) == []


def test_training_is_bit_identical_with_and_without_it() -> None:
    with_it = trained(None, FabricPredictor(total_steps=12, gpus=["T4"], print_table=False), 12)
    for first, other in zip(with_it[:2], trained(None, None, 12)[:2], strict=True):
        assert torch.equal(first, other)


@pytest.mark.parametrize("place", ["setup", "step"])
def test_nothing_of_ours_that_fails_reaches_the_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    predictor = FabricPredictor(total_steps=12, gpus=["T4"], hours=1.0, print_table=False)
    if place == "setup":
        monkeypatch.setattr("lightning_predict.integrations.fabric.watch", lambda **options: 1 / 0)
    else:
        monkeypatch.setattr("lightning_predict.observe.run_observer.RunObserver.on_batch_end", lambda *args: 1 / 0)
    with_it = trained(None, predictor, 12)
    for first, other in zip(with_it[:2], trained(None, None, 12)[:2], strict=True):
        assert torch.equal(first, other)
    assert with_it[2] == 12
    assert caplog.text.count("the loop continues: ZeroDivisionError") == 1


def test_updates_that_cannot_be_noted_and_other_ranks_only_train() -> None:
    predictor, errors = FabricPredictor(gpus=["T4"]), list[Exception]()
    damaged: Any = SimpleNamespace(add_optimizer=None, give_up=errors.append)
    predictor.run = damaged
    predictor.on_after_optimizer_step(None, object())
    assert [type(error) for error in errors] == [TypeError]
    predictor = FabricPredictor(gpus=["T4"])
    other: Any = SimpleNamespace(world_size=2, is_global_zero=False)
    predictor.on_after_setup(other, None)
    with predictor:
        assert list(predictor.batches(range(3))) == [0, 1, 2]
    assert predictor.run is None


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="total_steps=0"):
        FabricPredictor(total_steps=0)
    with pytest.raises(CaptureError, match=r"expected Fabric\(callbacks=\[predictor\]\)"), FabricPredictor():
        pass
    processes: Any = SimpleNamespace(world_size=2, is_global_zero=False)
    with pytest.raises(InvalidArgumentError, match=r"hours=\.\.\.\) got 2 processes, but only the first would stop"):
        FabricPredictor(hours=1).on_after_setup(processes, None)
