"""CostBudget in real fits: when it ends them, its files, and its messages."""

import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_predict.base.errors import BudgetExceededError, InvalidArgumentError, UnknownOfferError
from lightning_predict.callbacks import CostBudget, RuntimePredictor, budget_fit
from lightning_predict.callbacks.cost_budget import CHECKPOINT_NAME
from lightning_predict.callbacks.lightning_packages import LightningPredictWarning
from lightning_predict.observe.ledger_file import LEDGER_NAME
from lightning_predict.observe.meters import Ledger
from lightning_predict.testing import Clock
from tests.callbacks.small import BATCH_SIZE, Rows, Small, our_rows


def timed_model(small: Small, time: Clock, seconds: list[float] | float = 1.0, **options: Any) -> Any:
    """A model each of whose training batches takes these seconds of `time`; the last of them goes on forever."""
    model = small.model(**options)
    step = model.training_step
    given = [seconds] if isinstance(seconds, float) else seconds

    def training_step(batch: torch.Tensor, batch_idx: int) -> Any:
        time.advance(given[min(model.batches_trained, len(given) - 1)])
        return step(batch, batch_idx)

    model.training_step = training_step
    return model


def fit(small: Small, folder: Path, budget: Any, *, model: Any = None, batches: int = 10, **options: Any) -> Any:
    """A fit of one epoch with the budget; returns the model."""
    model = model or small.model()
    trainer = small.trainer(folder, **({"max_epochs": 1, "callbacks": budget} | options))
    trainer.fit(model, small.loader(batches))
    return model


def test_run_whose_last_batch_uses_up_the_budget_is_not_stopped(lightning: Small, tmp_path: Path, time: Clock) -> None:
    budget = hours_of(9.5, warmup_steps=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LightningPredictWarning)  # that 80 % are used
        assert fit(lightning, tmp_path, budget, model=timed_model(lightning, time)).batches_trained == 10
    assert budget.stopping_reason is None
    assert not (tmp_path / CHECKPOINT_NAME).exists()


@pytest.mark.parametrize(("epochs", "options"), [(1, {}), (1, {"accumulate_grad_batches": 2}), (25, {})])
def test_run_whose_forecast_exceeds_the_budget_ends_before_it_is_used(
    small: Small, tmp_path: Path, time: Clock, epochs: int, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Batches of a second, 400 in all: more than 38 s, of which 79 % are 30.02 s.
    budget = CostBudget(usd=38, usd_per_hour=3600)
    with caplog.at_level(logging.INFO), warnings.catch_warnings():
        warnings.simplefilter("ignore", LightningPredictWarning)  # of the first forecast
        options |= {"max_epochs": epochs}
        model = fit(small, tmp_path, budget, model=timed_model(small, time), batches=400 // epochs, **options)
    assert model.batches_trained == 31
    assert budget.stopping_reason is not None
    assert "exceeds the budget of $38.00 (usd; " in budget.stopping_reason
    assert re.search(r" used, \d+ steps measured, .* left\)$", budget.stopping_reason)
    assert f"CostBudget ends this run: {budget.stopping_reason}." in caplog.text
    checkpoint = torch.load(tmp_path / CHECKPOINT_NAME, weights_only=True)
    assert checkpoint["callbacks"]["lightning_predict.CostBudget"]["usd"] == 31.0


def test_used_up_budget_ends_the_run_after_that_batch(small: Small, tmp_path: Path) -> None:
    assert fit(small, tmp_path, CostBudget(usd=1e-9, usd_per_hour=1)).batches_trained == 1
    assert fit(small, tmp_path, CostBudget(usd=1e-9, usd_per_hour=1), model=small.gan()).batches_trained == 1


def test_a_limit_in_co2_is_used_up_by_the_power_of_the_machines(
    lightning: Small, tmp_path: Path, time: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    # 3 kW x 1.2 at 1000 g/kWh are 1 g a second: batches of a second use up 5.5 g after the sixth.
    budget = CostBudget(kg_co2=0.0055, grid=1000, watts=3000, pue=1.2, on_exceed="stop", warmup_steps=100)
    with caplog.at_level(logging.INFO), warnings.catch_warnings():
        warnings.simplefilter("ignore", LightningPredictWarning)  # that 80 % are used
        model = fit(lightning, tmp_path, budget, model=timed_model(lightning, time))
    assert model.batches_trained == 6
    assert budget.stopping_reason == "0.00600 kg CO2 of 0.00550 kg CO2 (kg_co2) are used"
    assert "; it counts 3,000 W, times 1.2 for the data centre at 1000 g/kWh." in caplog.text
    with pytest.warns(LightningPredictWarning, match="the power of this machine is unknown, so kg_co2 has no effect"):
        assert fit(lightning, tmp_path, CostBudget(kg_co2=1e-9, grid="Paris")).batches_trained == 10


def test_setup_and_storage_costs_count_as_used(lightning: Small, tmp_path: Path, time: Clock) -> None:
    # $1 a second: of $100, $60 went for the minute before training and $35 for storage, so that $5 are left.
    budget = CostBudget(usd=100, usd_per_hour=3600, setup_minutes=1, storage_usd=35, warmup_steps=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LightningPredictWarning)  # that 80 % are used
        assert fit(lightning, tmp_path, budget, model=timed_model(lightning, time)).batches_trained == 5


def test_stop_within_a_window_names_the_lost_gradients(
    small: Small, tmp_path: Path, time: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    # Batches of a second, an update after each third, and a budget of the given number of seconds.
    for batches, lost in ((1, "the last batch"), (2, "the last 2 batches"), (3, None)):
        caplog.clear()
        budget = hours_of(batches - 0.1)
        with caplog.at_level(logging.INFO):
            model = fit(small, tmp_path, budget, model=timed_model(small, time), accumulate_grad_batches=3)
        assert model.batches_trained == batches
        words = f"Gradients of {lost} without an optimizer step are lost. Its checkpoint is "
        assert (words in caplog.text) == (lost is not None)
        assert ("are lost" in caplog.text) == (lost is not None)


def test_a_run_within_its_budget_is_left_alone(small: Small, tmp_path: Path) -> None:
    budget = CostBudget(usd=1000, hours=1000, usd_per_hour=1, deadline="2999-01-01")
    assert fit(small, tmp_path, budget).batches_trained == 10
    assert budget.stopping_reason is None
    assert list(tmp_path.iterdir()) == []


def test_the_middle_over_the_budget_warns_and_the_low_end_stops(lightning: Small, tmp_path: Path, time: Clock) -> None:
    # After 16 steps of a second, 84 remain, 74 at the least; after 32, 68.
    with pytest.warns(LightningPredictWarning) as warned:
        model = fit(lightning, tmp_path, hours_of(98.0), model=timed_model(lightning, time), batches=100)
    said = [str(warning.message) for warning in warned if warning.category is LightningPredictWarning]
    assert re.search(r"forecast 1 min 40 s \(1 min 3\d s to .*\) exceeds .*; 16.0 s used", said[0])
    assert model.batches_trained == 84  # 86 %; until 81 s, the rest would fit if it were 10 % faster
    with pytest.warns(LightningPredictWarning, match="The run goes on while it may get faster"):
        model = fit(lightning, tmp_path, hours_of(75.0), model=timed_model(lightning, time), batches=100)
    assert model.batches_trained == 60  # 79 % of 75 s are 59.25


def hours_of(seconds: float, **options: Any) -> CostBudget:
    return CostBudget(hours=seconds / 3600, **options)


def test_measured_validation_counts(lightning: Small, tmp_path: Path, time: Clock) -> None:
    # 100 s of training in two epochs, and after each 20 batches of validation of 10 s.
    def run(seconds: float) -> int:
        model = slow_validation(lightning, time, 10.0)
        trainer = lightning.trainer(tmp_path, max_epochs=2, callbacks=hours_of(seconds), num_sanity_val_steps=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LightningPredictWarning)
            trainer.fit(model, lightning.loader(50), lightning.loader(20))
        return int(model.batches_trained)

    assert run(2 * (50 + 200) + 25.0) == 100
    assert run(430.0) == 51  # after 250 s it is known that another validation would take 200 s more


def test_actual_use_warns_at_80_percent_and_ends_at_100(small: Small, tmp_path: Path, time: Clock) -> None:
    # The forecast from the first three batches, 10 s, fits; but from the fourth on batches take 3 s.
    budget, logger = hours_of(20.0, warmup_steps=100), small.lightning.loggers.CSVLogger(tmp_path)  # no forecast
    model = timed_model(small, time, [1.0, 1.0, 1.0, 3.0])
    with pytest.warns(LightningPredictWarning, match=r"18.0 s of 20.0 s \(hours\) are used") as warned:
        fit(small, tmp_path, budget, model=model, logger=logger)
    # 3 s + 5 x 3 s = 18 s after the eighth batch, over 16 s; 21 s after the ninth.
    assert [row["step"] for row in our_rows(logger) if row["run_budget/warned"]] == ["7"]
    assert len([warning for warning in warned if warning.category is LightningPredictWarning]) == 1
    assert model.batches_trained == 9
    assert budget.stopping_reason == "21.0 s of 20.0 s (hours) are used"
    assert (tmp_path / CHECKPOINT_NAME).exists()


def test_exceeded_budget_can_warn_once_or_raise(small: Small, tmp_path: Path) -> None:
    budget = CostBudget(usd=1e-9, usd_per_hour=1, on_exceed="warn")
    with pytest.warns(LightningPredictWarning, match=r"CostBudget: .* are used\.") as warned:
        model = fit(small, tmp_path, budget)
    assert len([warning for warning in warned if warning.category is LightningPredictWarning]) == 1
    assert model.batches_trained == 10
    assert budget.stopping_reason is None
    assert not (tmp_path / CHECKPOINT_NAME).exists()
    budget = CostBudget(usd=1e-9, usd_per_hour=1, on_exceed="raise")
    model = small.model()
    with pytest.raises(BudgetExceededError, match=r"CostBudget: .* are used\. Its checkpoint is"):
        fit(small, tmp_path, budget, model=model)
    assert model.batches_trained == 1
    assert (tmp_path / CHECKPOINT_NAME).exists()


def test_used_allowed_and_forecast_amounts_are_logged(small: Small, tmp_path: Path, time: Clock) -> None:
    logger = small.lightning.loggers.CSVLogger(tmp_path)
    budget = CostBudget(usd=100, hours=1, usd_per_hour=3600)  # a dollar a second
    fit(small, tmp_path, budget, model=timed_model(small, time), logger=logger)
    row, _ = [row for row in our_rows(logger) if row["run_budget/usd_used"]]
    values = {key: float(value) for key, value in row.items() if key.startswith("run_budget/")}
    assert row["step"] == "4"  # from 0: half of the run
    assert values["run_budget/usd_used"] == 5.0
    assert (values["run_budget/usd_limit"], values["run_budget/usd_left"]) == (100.0, 95.0)
    assert values["run_budget/usd_forecast"] == 10.0
    assert values["run_budget/hours_forecast_low"] < 10 / 3600 < values["run_budget/hours_forecast_high"]
    assert values["run_budget/exceeded"] == 0.0


def test_minimums_that_override_a_stop_are_said_at_once(small: Small, tmp_path: Path) -> None:
    budget = CostBudget(hours=1e-9)
    with pytest.warns(LightningPredictWarning, match="cannot stop this run before min_epochs=2 and min_steps=15"):
        model = fit(small, tmp_path, budget, batches=4, max_epochs=5, min_epochs=2, min_steps=15)
    assert model.batches_trained == 15  # Lightning stops as soon as both are met.
    assert budget.stopping_reason is not None


def test_early_stopping_may_end_it_before(lightning: Small, tmp_path: Path, time: Clock) -> None:
    model = timed_model(lightning, time, validates=True)
    stopping = lightning.lightning.callbacks.EarlyStopping("val_loss", patience=100)
    trainer = lightning.trainer(tmp_path, max_epochs=10**6, callbacks=[hours_of(1000.0), stopping])

    class Stop(lightning.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.should_stop = True

    trainer.callbacks.append(Stop())
    with pytest.warns(LightningPredictWarning, match="Early stopping may end the run sooner"):
        trainer.fit(model, lightning.loader(20), lightning.loader(2))
    assert model.batches_trained == 20


def test_a_time_limit_cuts_the_forecast_off(lightning: Small, tmp_path: Path) -> None:
    # A million epochs would take hours, but the Trainer stops after a tenth of a second.
    budget = CostBudget(hours=1)
    model = fit(lightning, tmp_path, budget, max_epochs=10**6, max_time=timedelta(seconds=0.1))
    assert model.batches_trained > 3
    assert budget.stopping_reason is None


def test_a_run_of_unknown_length_is_tracked(lightning: Small, tmp_path: Path, time: Clock, caplog: Any) -> None:
    model = timed_model(lightning, time)
    trainer = lightning.trainer(tmp_path, max_epochs=1, callbacks=hours_of(5.5))
    with caplog.at_level(logging.INFO), pytest.warns(LightningPredictWarning, match="5.00 s of 5.50 s"):
        trainer.fit(model, lightning.stream(20))
    assert model.batches_trained == 6
    trainer = lightning.trainer(tmp_path, max_epochs=1, callbacks=hours_of(1000.0))
    with caplog.at_level(logging.INFO):
        trainer.fit(timed_model(lightning, time), lightning.stream(20))
    # Steps of a second, without a wait: 3,600 an hour.
    assert "unknown; it ends once the budget is used up. 1,000 steps take 16 min 40 s (" in caplog.text
    assert "on this machine (3,600 steps per hour)." in caplog.text


@pytest.mark.parametrize(
    ("options", "on_exceed", "said"),
    [
        ({}, "warn", "unknown; a warning follows once the budget is used up."),
        ({"max_time": timedelta(hours=1)}, "stop", None),
    ],
)
def test_unknown_length_is_reported_with_the_action_at_the_limit(
    lightning: Small,
    tmp_path: Path,
    time: Clock,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    on_exceed: Any,
    said: str | None,
) -> None:
    budget = CostBudget(hours=2, on_exceed=on_exceed)
    with caplog.at_level(logging.INFO):
        trainer = lightning.trainer(tmp_path, max_epochs=1, callbacks=budget, **options)
        trainer.fit(timed_model(lightning, time), lightning.stream(20))
    assert ("the length of this run is unknown" in caplog.text) == (said is not None)
    assert said is None or said in caplog.text


def test_the_forecast_is_made_again_from_how_training_went(small: Small, tmp_path: Path, time: Clock) -> None:
    # 20 batches of a second, then of 3 s: believed after 16 to take 60 s of 85, after 32 some 100.
    logger = small.lightning.loggers.CSVLogger(tmp_path)
    budget = hours_of(85.0)
    model = timed_model(small, time, [1.0] * 20 + [3.0])
    with pytest.warns(LightningPredictWarning) as warned:
        fit(small, tmp_path, budget, model=model, batches=60, logger=logger)
    said = [str(warning.message) for warning in warned if warning.category is LightningPredictWarning]
    (forecast,) = said
    assert " exceeds the budget of " in forecast
    # 20 + 16 x 3 s are 68 s, 80 %: the other 24 batches would exceed it even at 0.9 s each.
    assert model.batches_trained == 20 + 16
    assert " exceeds the budget of 1 min 25 s (hours; 1 min 8 s used, " in str(budget.stopping_reason)
    rows = our_rows(logger)
    forecasts = [float(row["run_budget/hours_forecast"]) * 3600 for row in rows if row["run_budget/hours_forecast"]]
    assert forecasts[0] == pytest.approx(60.0)
    assert forecasts[-1] > 85.0
    assert float(rows[-1]["run_budget/exceeded"]) == 1.0


def test_a_jump_of_the_wall_clock_changes_nothing(
    lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline is a time by the wall clock when training starts; from then on the monotonic clock counts."""
    import time as clocks

    budget = CostBudget(hours=1, deadline=(datetime.now() + timedelta(hours=1)).isoformat())
    model = lightning.model()
    step = model.training_step

    def jumping(batch: torch.Tensor, batch_idx: int) -> Any:
        if batch_idx == 2:
            monkeypatch.setattr(clocks, "time", lambda: 4e9)  # the year 2096
            monkeypatch.setattr("lightning_predict.observe.meters.datetime", None)
        return step(batch, batch_idx)

    model.training_step = jumping
    assert fit(lightning, tmp_path, budget, model=model).batches_trained == 10
    assert budget.stopping_reason is None


def test_without_a_price_dollars_have_no_effect(small: Small, tmp_path: Path) -> None:
    with pytest.warns(LightningPredictWarning, match="price of this machine is unknown, so usd has no") as warned:
        model = fit(small, tmp_path, CostBudget(usd=1e-9))
    assert len([warning for warning in warned if warning.category is LightningPredictWarning]) == 1
    assert model.batches_trained == 10


def test_a_named_offer_is_a_price(lightning: Small, tmp_path: Path, caplog: Any) -> None:
    with caplog.at_level(logging.INFO):
        assert fit(lightning, tmp_path, CostBudget(usd=1e-9, offer="AWS g5.xlarge")).batches_trained == 1
    said = r"CostBudget allows \$.*; it counts \$\d\.\d\d/h \(AWS g5\.xlarge \(\d{4}-\d\d(-\d\d)?\)\)\."
    assert re.search(said, caplog.text)


def test_a_deadline(lightning: Small, tmp_path: Path, time: Clock) -> None:
    soon = (datetime.now() + timedelta(seconds=30)).isoformat()
    model = timed_model(lightning, time, 10.0)  # 100 s by the budget's clock
    budget = CostBudget(deadline=soon)
    assert fit(lightning, tmp_path, budget, model=model).batches_trained == 3
    assert budget.stopping_reason is not None
    assert "(deadline) are used" in budget.stopping_reason


def test_fast_dev_run_is_left_alone(lightning: Small, tmp_path: Path) -> None:
    with pytest.warns(LightningPredictWarning, match="CostBudget does nothing under Trainer"):
        fit(lightning, tmp_path, CostBudget(hours=1e-9), fast_dev_run=5)


@pytest.mark.parametrize("budget_first", [True, False])
def test_predictions_come_before_it_ends_the_run(small: Small, tmp_path: Path, time: Clock, budget_first: bool) -> None:
    callbacks: list[Any] = [hours_of(35.0), RuntimePredictor(["T4"])]
    model = timed_model(small, time)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LightningPredictWarning)  # of the first forecast
        fit(small, tmp_path, callbacks if budget_first else callbacks[::-1], model=model, batches=100)
    assert model.batches_trained == 28  # 79 % of 35 s are 27.65
    assert callbacks[1].predictions is not None


@pytest.fixture
def _quiet_resume() -> Iterator[None]:
    """Lightning warns that the data order begins anew when a run is resumed within an epoch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*dataloader is not resumable", UserWarning)
        yield


@pytest.mark.usefixtures("_quiet_resume")
def test_earlier_use_counts_after_a_resume(small: Small, tmp_path: Path, time: Clock) -> None:
    fit(small, tmp_path, hours_of(2.9), model=timed_model(small, time))
    checkpoint = str(tmp_path / CHECKPOINT_NAME)

    def resumed(budget: CostBudget) -> int:
        model = timed_model(small, time)
        trainer = small.trainer(tmp_path, max_epochs=1, callbacks=budget)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LightningPredictWarning)  # that 80 % are used
            trainer.fit(model, small.loader(10), ckpt_path=checkpoint)
        return int(model.batches_trained)

    assert resumed(hours_of(2.0)) == 0  # 3 s are used already
    assert resumed(hours_of(5.9)) == 3  # 3 s before, 3 s now
    [left] = set(tmp_path.glob("*.ckpt")) - {Path(checkpoint)}  # the first one stays as it is
    checkpoint = str(left)
    assert resumed(hours_of(100.0)) == 4  # from the checkpoint that the last one left


class Resumable:
    """A loader that knows where it stands."""

    def __init__(self, batches: int) -> None:
        self.batches = Rows(batches).data.split(BATCH_SIZE)
        self.position = 0
        self.start = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[torch.Tensor]:
        start, self.start = self.start, 0
        for index in range(start, len(self.batches)):
            self.position = index + 1
            yield self.batches[index]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position % len(self.batches)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["position"]


def without_dropout(small: Small) -> Any:
    """Random numbers are no part of a checkpoint."""
    model = small.model()
    model.network[1] = torch.nn.Identity()
    return model


def ended_and_resumed(small: Small, folder: Path, loader: Callable[[], Any], caplog: Any) -> tuple[Any, Any]:
    """A fit that a budget ends in its first epoch and another goes on with; and one that was never ended."""
    with caplog.at_level(logging.INFO):
        ended = without_dropout(small)
        small.trainer(folder, max_epochs=2, callbacks=CostBudget(hours=1e-9)).fit(ended, loader())
    assert ended.batches_trained == 1
    resumed = without_dropout(small)
    trainer = small.trainer(folder, max_epochs=2, callbacks=CostBudget(hours=1000))
    trainer.fit(resumed, loader(), ckpt_path=str(folder / CHECKPOINT_NAME))
    assert resumed.batches_trained == 2 * 8 - 1
    whole = without_dropout(small)
    small.trainer(folder, max_epochs=2).fit(whole, loader())
    return resumed, whole


def weights_of(model: Any) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters())


def test_a_loader_with_a_state_resumes_to_the_weights_of_a_run_that_was_never_ended(
    small: Small, tmp_path: Path, caplog: Any
) -> None:
    resumed, whole = ended_and_resumed(small, tmp_path, lambda: Resumable(8), caplog)
    assert torch.equal(weights_of(resumed), weights_of(whole))
    assert "The loader has no state_dict" not in caplog.text


@pytest.mark.usefixtures("_quiet_resume")
def test_the_data_order_begins_again_with_any_other_loader_and_it_is_said(
    small: Small, tmp_path: Path, caplog: Any
) -> None:
    resumed, whole = ended_and_resumed(small, tmp_path, lambda: small.loader(8), caplog)
    assert not torch.equal(weights_of(resumed), weights_of(whole))
    assert (
        "The loader has no state_dict: a resume trains the remaining number of batches of this epoch, but"
        in caplog.text
    )


def test_at_the_end_of_an_epoch_the_data_order_does_not_matter(lightning: Small, tmp_path: Path, caplog: Any) -> None:
    with caplog.at_level(logging.INFO):
        fit(lightning, tmp_path, CostBudget(hours=1e-9), batches=1, max_epochs=2)
    assert "Its checkpoint is" in caplog.text
    assert "The loader has no state_dict" not in caplog.text


def test_the_reason_is_in_the_checkpoint_and_said_at_the_end(small: Small, tmp_path: Path, caplog: Any) -> None:
    budget = CostBudget(hours=1e-9)
    with caplog.at_level(logging.INFO):
        fit(small, tmp_path, budget)
    state = torch.load(tmp_path / CHECKPOINT_NAME, weights_only=True)["callbacks"][budget.state_key]
    assert state["stopping_reason"] == budget.stopping_reason
    assert (state["device"], state["world_size"]) == ("cpu", 1)
    assert caplog.messages[-1] == f"CostBudget ended this fit: {budget.stopping_reason}."


@pytest.mark.usefixtures("_quiet_resume")
@pytest.mark.parametrize("change", [{"world_size": 4}, {"device": "T4"}])
def test_going_on_on_another_machine_is_said_and_nothing_is_lost(
    small: Small, tmp_path: Path, time: Clock, change: dict[str, Any]
) -> None:
    fit(small, tmp_path, hours_of(2.9), model=timed_model(small, time))
    path = tmp_path / CHECKPOINT_NAME
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["callbacks"]["lightning_predict.CostBudget.hours"] |= change
    torch.save(checkpoint, path)
    before = f"{change.get('world_size', 1)} x {change.get('device', 'cpu')}"

    model = timed_model(small, time)
    trainer = small.trainer(tmp_path, max_epochs=1, callbacks=hours_of(5.9))
    with pytest.warns(LightningPredictWarning, match=f"this run moved from {before} to 1 x cpu|are used"):
        trainer.fit(model, small.loader(10), ckpt_path=str(path))
    assert model.batches_trained == 3  # the 3 s of before count, as in the test above


@pytest.mark.usefixtures("_quiet_resume")
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_checkpoint_of_an_earlier_version_that_names_no_machine_resumes(
    lightning: Small, tmp_path: Path, time: Clock
) -> None:
    fit(lightning, tmp_path, hours_of(2.9), model=timed_model(lightning, time))
    path = tmp_path / CHECKPOINT_NAME
    checkpoint = torch.load(path, weights_only=True)
    state = checkpoint["callbacks"].pop("lightning_predict.CostBudget.hours")
    checkpoint["callbacks"]["lightning_predict.CostBudget"] = {"seconds": state["seconds"], "usd": state["usd"]}
    torch.save(checkpoint, path)
    model = timed_model(lightning, time)
    trainer = lightning.trainer(tmp_path, max_epochs=1, callbacks=hours_of(100.0))
    trainer.fit(model, lightning.loader(10), ckpt_path=str(path))
    assert model.batches_trained == 7


@pytest.mark.usefixtures("_quiet_resume")
def test_each_run_alone(lightning: Small, tmp_path: Path, time: Clock) -> None:
    fit(lightning, tmp_path, hours_of(2.9, scope="run"), model=timed_model(lightning, time))
    model = timed_model(lightning, time)
    # 7 batches are left, 7 s; with the 3 s before it would be too much.
    trainer = lightning.trainer(tmp_path, max_epochs=1, callbacks=hours_of(8.9, scope="run"))
    trainer.fit(model, lightning.loader(10), ckpt_path=str(tmp_path / CHECKPOINT_NAME))
    assert model.batches_trained == 7


def test_a_second_fit_goes_on_from_the_first(lightning: Small, tmp_path: Path, time: Clock) -> None:
    budget = hours_of(13.0)
    fit(lightning, tmp_path, budget, model=timed_model(lightning, time))
    reasons = [budget.stopping_reason]
    with pytest.warns(LightningPredictWarning, match="11.0 s of 13.0 s"):
        model = fit(lightning, tmp_path, budget, model=timed_model(lightning, time))
    reasons.append(budget.stopping_reason)
    assert model.batches_trained == 3
    assert [reason is None for reason in reasons] == [True, False]
    assert fit(lightning, tmp_path, hours_of(13.0), model=timed_model(lightning, time)).batches_trained == 10


def slow_validation(small: Small, time: Clock, seconds: float, **options: Any) -> Any:
    """A model whose training batches take a second, and its validation batches these."""
    model = timed_model(small, time, validates=True)
    step = model.validation_step

    def validation_step(batch: torch.Tensor, batch_idx: int) -> None:
        model.validated += 1
        time.advance(seconds)
        step(batch, batch_idx)

    model.validated, model.validation_step = 0, validation_step
    return model


def validated_fit(small: Small, folder: Path, budget: CostBudget, model: Any, **options: Any) -> Any:
    """Epochs of 10 training batches and 20 validation batches."""
    trainer = small.trainer(folder, callbacks=budget, num_sanity_val_steps=0, **options)
    trainer.fit(model, small.loader(10), small.loader(20))
    return trainer


@pytest.mark.parametrize("on_exceed", ["stop", "raise"])
def test_a_validation_that_would_exceed_the_budget_by_far_ends_the_run(
    small: Small, tmp_path: Path, time: Clock, on_exceed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model, budget = slow_validation(small, time, 60.0), CostBudget(hours=610.0 / 3600, on_exceed=on_exceed)
    # The time of a validation is unknown: the low end of the forecast, 10 s of training, is within the budget. After
    # 10 s of training, ten batches of validation of a minute each use up the 610 s; another exceeds it by 10 %.
    with caplog.at_level(logging.INFO):
        if on_exceed == "raise":
            with pytest.raises(BudgetExceededError) as raised:
                validated_fit(small, tmp_path, budget, model, max_epochs=3)
        else:
            trainer = validated_fit(small, tmp_path, budget, model, max_epochs=3)
            assert trainer.state.status == "finished"
            assert model.training  # the next fit of this module trains, too
    assert (model.batches_trained, model.validated) == (10, 11)
    assert budget.stopping_reason == "11 min 10 s of 10 min 10 s (hours) are used"
    path = tmp_path / CHECKPOINT_NAME
    assert (str(raised.value) if on_exceed == "raise" else caplog.messages[-1]) == (
        "CostBudget: 11 min 10 s of 10 min 10 s (hours) are used. Validation stopped after 11 of 20 batches (the "
        f"rest would take too long); its metrics are dropped. Its checkpoint is {path}. A resume continues "
        "after this validation."
    )
    assert torch.load(path, weights_only=False)["callbacks"][budget.state_key]["seconds"] == 670.0


def test_a_known_rest_that_exceeds_the_budget_by_far_is_not_begun(
    lightning: Small, tmp_path: Path, time: Clock
) -> None:
    # The first validation tells that a batch takes 2 s. Of 75 s, 60 are used when the second begins; after 8 batches
    # of it all are, and the other 12 would take it to 100: the run ends at once, not 5 % later.
    model, budget = slow_validation(lightning, time, 2.0), hours_of(75.0)
    stopping = lightning.lightning.callbacks.EarlyStopping("val_loss", patience=10**6)  # A forecast alone stops none.
    trainer = lightning.trainer(
        tmp_path, callbacks=[budget, stopping], num_sanity_val_steps=0, max_epochs=2, min_epochs=0
    )
    budget.warmup_steps = 11  # asleep until the second epoch
    trainer.fit(model, lightning.loader(10), lightning.loader(20))
    assert 20 < model.validated < 40
    assert budget._account.ledger.use.seconds == 75.0


@pytest.mark.parametrize("options", [{"min_epochs": 2}, {}])
def test_a_validation_of_a_run_that_goes_on_is_not_cut_off(
    lightning: Small, tmp_path: Path, time: Clock, options: dict[str, Any]
) -> None:
    on_exceed: Any = "stop" if options else "warn"
    model, budget = slow_validation(lightning, time, 60.0), CostBudget(hours=610.0 / 3600, on_exceed=on_exceed)
    with pytest.warns(LightningPredictWarning):
        validated_fit(lightning, tmp_path, budget, model, max_epochs=2, **options)
    assert (model.batches_trained, model.validated) == (20, 40)


def test_the_run_ends_before_the_validation_that_ends_it_is_over_the_budget(
    small: Small, tmp_path: Path, time: Clock
) -> None:
    # Two epochs of 10 s and a validation of 20 x 2 s take 100 s, and so does a run that early stopping may end before,
    # which a forecast alone does not stop. Of 75 s, 25 s are left after the first epoch, less than a validation takes:
    # which the batch after shows.
    model, budget = slow_validation(small, time, 2.0), hours_of(75.0)
    stopping = small.lightning.callbacks.EarlyStopping("val_loss", patience=10**6)
    trainer = small.trainer(tmp_path, callbacks=[budget, stopping], num_sanity_val_steps=0, max_epochs=2)
    trainer.fit(model, small.loader(10), small.loader(20))
    assert model.batches_trained == 10 + 1
    assert budget.stopping_reason == ("51.0 s of 1 min 15 s (hours) are used, and the final validation takes 40.0 s")
    state = torch.load(tmp_path / CHECKPOINT_NAME, weights_only=False)["callbacks"][budget.state_key]
    assert state["seconds"] == 51.0 + 40.0  # that validation came after its checkpoint
    assert model.validated == 20 + 12  # 75 s are used up 24 s later


def test_a_state_that_cannot_be_written_does_not_reach_the_checkpoint(
    lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = CostBudget(hours=1)
    monkeypatch.setattr(Ledger, "elapsed_seconds", property(lambda self: 1 / 0))
    with pytest.warns(LightningPredictWarning, match="lacks the used amounts: ZeroDivisionError"):
        assert budget.state_dict() == {}


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"seconds": "3", "usd": 0.0},
        {"seconds": -1.0, "usd": 0.0},
        {"seconds": float("nan"), "usd": 0},
        {"usd": True},
    ],
)
def test_a_state_that_cannot_be_read_counts_nothing(state: dict[str, Any]) -> None:
    budget = CostBudget(hours=1)
    with pytest.warns(LightningPredictWarning, match="cannot read the used amounts from the checkpoint"):
        budget.load_state_dict(state)
    assert budget.state_dict()["seconds"] == 0.0


@pytest.mark.parametrize("run", ["/../../z", "..", "a/b", "\x1b[31m", "", 7, "x" * 65])
def test_run_of_a_checkpoint_that_is_no_file_name_is_ignored(run: object) -> None:
    budget = CostBudget(hours=1)
    own = budget.state_dict()["run"]
    budget.load_state_dict({"seconds": 3.0, "usd": 0.0, "run": run, "device": "T4\x1b[31m", "world_size": 1})
    assert budget.state_dict()["run"] == own
    assert "device" not in budget.state_dict()
    assert budget.state_dict()["seconds"] == 3.0


def test_warnings_as_errors_do_not_reach_the_training(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    budget = CostBudget(hours=1e-9, on_exceed="warn")
    with warnings.catch_warnings():
        warnings.simplefilter("error", LightningPredictWarning)
        assert fit(small, tmp_path, budget).batches_trained == 10
        monkeypatch.setattr(budget_fit, "check_use", lambda *_: 1 / 0)
        assert fit(small, tmp_path, budget).batches_trained == 10
    assert [words.split(":")[0] for words in said] == [
        "CostBudget",
        "CostBudget is off, and training continues without a budget",
    ]
    said.clear()


@pytest.mark.parametrize(
    ("arguments", "hours", "usd"),
    [
        ({"hours": timedelta(minutes=90)}, 1.5, None),
        ({"hours": Decimal("0.25"), "usd": Fraction(3, 2), "usd_per_hour": Decimal(2)}, 0.25, 1.5),
        ({"hours": np.float32(0.5), "usd": np.int64(3)}, 0.5, 3.0),
    ],
)
def test_exact_numbers_count(arguments: dict[str, Any], hours: float, usd: float | None) -> None:
    terms = CostBudget(**arguments).terms
    assert (terms.limits["hours"], terms.limits.get("usd")) == (hours, usd)
    assert {type(limit) for limit in terms.limits.values()} == {float}


def test_check_that_fails_is_warned_of_once(lightning: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("lightning_predict.observe.budget.check_forecast", fails)
    monkeypatch.setattr("lightning_predict.observe.budget.check_use", fails)
    with pytest.warns(LightningPredictWarning) as warned:
        assert fit(lightning, tmp_path, CostBudget(hours=1e-9)).batches_trained == 10
    said = [str(warning.message) for warning in warned if warning.category is LightningPredictWarning]
    assert [words.partition(",")[0] for words in said] == ["CostBudget cannot forecast this run", "CostBudget is off"]
    assert all(words.endswith("ZeroDivisionError: by zero") for words in said)


def test_a_checkpoint_that_cannot_be_written_does_not_keep_it_going(lightning: Small, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(LightningPredictWarning, match="CostBudget could not write"):
        assert fit(lightning, tmp_path / "file", CostBudget(hours=1e-9)).batches_trained == 1


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, InvalidArgumentError, "CostBudget got no limit; give at least one of usd, hours, kg_co2 and deadline"),
        ({"usd": 0}, InvalidArgumentError, "usd=0 is not a limit; expected a number above 0"),
        ({"usd": -5.0}, InvalidArgumentError, "usd=-5.0 is not a limit"),
        ({"hours": float("nan")}, InvalidArgumentError, "hours=nan is not a limit"),
        ({"hours": float("inf")}, InvalidArgumentError, "hours=inf is not a limit"),
        ({"usd": True}, InvalidArgumentError, "usd=True is not a limit"),
        *(
            ({"usd": amount}, InvalidArgumentError, "is not a limit")
            for amount in ("5", torch.tensor([5.0]), torch.tensor(True), torch.tensor(5.0, device="meta"))
        ),
        ({"usd": 10**400}, InvalidArgumentError, "usd=10.* is not a limit"),
        ({"usd": Decimal("NaN")}, InvalidArgumentError, r"usd=Decimal\('NaN'\) is not a limit"),
        ({"usd": Decimal("sNaN")}, InvalidArgumentError, r"usd=Decimal\('sNaN'\) is not a limit"),
        ({"hours": timedelta(0)}, InvalidArgumentError, "hours=datetime.timedelta.* is not a limit"),
        ({"hours": date(2030, 1, 1)}, InvalidArgumentError, "hours=datetime.date.* is not a limit"),
        ({"deadline": date(2030, 1, 1)}, InvalidArgumentError, "deadline=datetime.date.* is not a time"),
        ({"deadline": 5}, InvalidArgumentError, "deadline=5 is not a time"),
        ({"deadline": "9999-12-31T23:59-23:59"}, InvalidArgumentError, "is not a time"),
        ({"usd": 1, "usd_per_hour": True}, InvalidArgumentError, "usd_per_hour=True is not a price"),
        ({"usd": 1, "usd_per_hour": "1"}, InvalidArgumentError, "usd_per_hour='1' is not a price"),
        ({"usd": 1, "usd_per_hour": 10**400}, InvalidArgumentError, "is not a price"),
        ({"usd": 1, "offer": 5}, InvalidArgumentError, "offer=5 is not a name; expected a string, for example 'AWS"),
        ({"usd": 1, "scope": ["run"]}, InvalidArgumentError, "is not known; expected one of 'cumulative'"),
        ({"usd": 1, "usd_per_hour": -1}, InvalidArgumentError, "usd_per_hour=-1 is not a price"),
        ({"usd": 1, "scope": "all"}, InvalidArgumentError, "scope='all' is not known; expected one of 'cumulative'"),
        ({"usd": 1, "on_exceed": "cry"}, InvalidArgumentError, "on_exceed='cry' is not known"),
        *(
            ({"usd": 1, "warmup_steps": steps}, InvalidArgumentError, "is not a number of steps; expected a whole numb")
            for steps in (0, -1, True, 1.0, "3")
        ),
        ({"deadline": "tomorrow"}, InvalidArgumentError, "deadline='tomorrow' is not a time; expected ISO format"),
        ({"deadline": "2020-01-01"}, InvalidArgumentError, "deadline='2020-01-01' has passed"),
        ({"kg_co2": 1}, InvalidArgumentError, "kg_co2=1 depends on the location of the machines; give grid, a place"),
        ({"kg_co2": 0, "grid": 400}, InvalidArgumentError, "kg_co2=0 is not a limit; expected a number above 0"),
        ({"kg_co2": 1, "grid": "Atlantis"}, InvalidArgumentError, "grid='Atlantis' is not a known region, place or co"),
        ({"kg_co2": 1, "grid": 400, "pue": 0.9}, InvalidArgumentError, "pue=0.9 is out of range; expected a number"),
        ({"kg_co2": 1, "grid": 400, "pue": "1.2"}, InvalidArgumentError, "pue='1.2' is out of range; expected a num"),
        ({"kg_co2": 1, "grid": [400]}, InvalidArgumentError, r"grid=\[400\] is not a known region"),
        ({"kg_co2": 1, "grid": True}, InvalidArgumentError, "grid=True is out of range; expected grams of CO2"),
        ({"usd": 1, "grid": 400}, InvalidArgumentError, "grid, watts and pue are for a limit in CO2; give it with kg"),
        ({"usd": 1, "setup_minutes": -1}, InvalidArgumentError, "setup_minutes=-1 is out of range; expected a number"),
        ({"usd": 1, "offer": "g5.xlarg"}, UnknownOfferError, "offer='g5.xlarg' is not listed. Nearest: g5.xlarge"),
    ],
)
def test_what_can_be_put_right_is_refused_at_once(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        CostBudget(**arguments)


@pytest.mark.parametrize(
    "variables", [{}, {"TORCHELASTIC_RUN_ID": "none"}, {"JOB_COMPLETION_INDEX": "0"}, {"SLURM_JOB_ID": "123"}]
)
def test_unrelated_runs_in_one_folder_and_one_job_train_all_their_batches(
    lightning: Small, tmp_path: Path, time: Clock, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    # Three runs of 600 s, each within its 1,000 s: the second trained 6 of its batches, and the third none.
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    trained = []
    for _ in range(3):
        model = timed_model(lightning, time, 60.0)
        fit(lightning, tmp_path, hours_of(1000.0), model=model, batches=10)
        trained.append(model.batches_trained)
    assert trained == [10, 10, 10]


def test_a_job_that_is_killed_and_restarted_counts_its_use(
    lightning: Small, tmp_path: Path, time: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kill(lightning.lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, *args: Any) -> None:
            raise SystemExit

    monkeypatch.setenv("SLURM_JOB_ID", "17")
    killed = lightning.trainer(tmp_path, max_epochs=1, callbacks=[hours_of(100_000.0), Kill()])
    with pytest.raises(SystemExit):
        killed.fit(timed_model(lightning, time, 200.0), lightning.loader(4))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    budget = hours_of(100_000.0)
    fit(lightning, tmp_path, budget, model=timed_model(lightning, time, 50.0), batches=4)
    assert budget.state_dict()["seconds"] == 200.0 + 200.0


def test_two_runs_in_one_folder_keep_their_checkpoints(lightning: Small, tmp_path: Path, time: Clock) -> None:
    for _ in range(2):
        fit(lightning, tmp_path, hours_of(300.0), model=timed_model(lightning, time, 100.0), batches=10)
    own, other = sorted(tmp_path.glob("*.ckpt"))
    assert other.name == CHECKPOINT_NAME
    runs = [torch.load(path, weights_only=False)["callbacks"][hours_of(1.0).state_key]["run"] for path in (own, other)]
    assert runs[0] != runs[1]
    assert re.fullmatch(f"{other.stem}-[0-9a-f]{{16}}", own.stem)


def test_a_ledger_that_cannot_be_written_or_read_is_said_once(lightning: Small, tmp_path: Path, time: Clock) -> None:
    (tmp_path / LEDGER_NAME).mkdir()
    with pytest.warns(LightningPredictWarning) as warned:
        fit(lightning, tmp_path, hours_of(10_000.0), model=timed_model(lightning, time, 100.0), batches=5)
    said = [str(warning.message) for warning in warned if warning.category is LightningPredictWarning]
    assert [words.split(f" {tmp_path}")[0] for words in said] == ["CostBudget cannot read the ledger"]
    assert len(list(tmp_path.glob("lightning_predict_budget-*.json"))) == 1  # one of its own


def test_a_process_without_further_threads_keeps_its_budget(
    lightning: Small, tmp_path: Path, time: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The ledger could not be written for lack of a thread, and the budget was off: 1.67 h of an allowed 0.4 h.
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    logger = lightning.lightning.loggers.CSVLogger(tmp_path)  # logs in a thread, too
    budget = hours_of(1440.0, warmup_steps=400)  # no forecast
    model = timed_model(lightning, time, 20.0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fit(lightning, tmp_path, budget, model=model, batches=300, logger=logger)
    assert any("could not write" in str(warning.message) for warning in warned)
    assert model.batches_trained == 72


@pytest.mark.usefixtures("_quiet_resume")
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_trainer_takes_a_budget_that_stops_and_one_that_warns(lightning: Small, tmp_path: Path, time: Clock) -> None:
    def budgets(stop: float, warning: float) -> list[CostBudget]:
        price = 3600.0  # a dollar a second
        return [CostBudget(usd=stop, usd_per_hour=price), CostBudget(hours=warning / 3600, on_exceed="warn")]

    stopping, warning = budgets(5.0, 3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LightningPredictWarning)
        model = fit(lightning, tmp_path, [stopping, warning], model=timed_model(lightning, time))
    assert (model.batches_trained, warning.stopping_reason) == (5, None)
    # A budget that warns continues the use that one that stopped has stored, and the other way round.
    only = hours_of(1000.0, on_exceed="raise")
    trainer = lightning.trainer(tmp_path, max_epochs=1, callbacks=only)
    trainer.fit(timed_model(lightning, time), lightning.loader(10), ckpt_path=str(tmp_path / CHECKPOINT_NAME))
    assert only.state_dict()["seconds"] == 10.0


@pytest.mark.usefixtures("_quiet_resume")
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize(
    "other",
    [{"deadline": "2999-01-01"}, {"hours": 1, "kg_co2": 9.0, "grid": 100, "watts": 1}, {"hours": 1, "scope": "run"}],
)
@pytest.mark.parametrize("is_earlier", [False, True])
def test_trainer_takes_budgets_of_other_limits_or_scope_and_both_resume(
    small: Small, tmp_path: Path, time: Clock, other: dict[str, Any], is_earlier: bool
) -> None:
    # A Trainer refused two budgets: their states had one key, which checkpoints of earlier versions have.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LightningPredictWarning)
        fit(small, tmp_path, [CostBudget(**other), hours_of(2.9)], model=timed_model(small, time))
    path = tmp_path / "resumed.ckpt"
    (saved,) = tmp_path.glob("*.ckpt")
    checkpoint = torch.load(saved, weights_only=True)
    states = checkpoint["callbacks"]
    assert {state["seconds"] for state in states.values()} == {3.0}
    if is_earlier:
        checkpoint["callbacks"] = {"lightning_predict.CostBudget": states["lightning_predict.CostBudget.hours"]}
    torch.save(checkpoint, path)
    budgets = [CostBudget(**other), hours_of(1000.0)]
    trainer = small.trainer(tmp_path, max_epochs=1, callbacks=budgets)
    trainer.fit(timed_model(small, time), small.loader(10), ckpt_path=str(path))
    assert [budget.state_dict()["seconds"] for budget in budgets] == [7.0 if other.get("scope") else 10.0, 10.0]


@pytest.mark.parametrize("amount", [torch.tensor(5.0), torch.tensor(5), np.array(5.0), np.float32(5), Decimal(5)])
def test_amount_may_be_a_scalar_of_torch_or_numpy(amount: Any) -> None:
    budget = CostBudget(usd=amount, usd_per_hour=amount, setup_minutes=amount, storage_usd=amount)
    assert budget.terms.limits == {"usd": 5.0}
    assert repr(budget.terms.charges) == "Charges(setup_minutes=5.0, minimum_minutes=0.0, storage_usd=5.0)"
