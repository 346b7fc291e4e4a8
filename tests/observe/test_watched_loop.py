"""A user's own training loop that is watched: the events of a run on a virtual clock, with a real step recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import lightning_predict as lp
from lightning_predict.base.errors import BudgetExceededError, InvalidArgumentError
from lightning_predict.observe import watched_loop
from lightning_predict.record.session import recordings_on
from lightning_predict.testing import Clock


@pytest.fixture(autouse=True)
def _without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_predict.step_predictor.kernel_models", lambda names, weights: None)


class Loop:
    """Steps of a second, with waits for the loader between them."""

    def __init__(self, time: Clock, *, seconds: float = 1.0, wait: float = 0.0) -> None:
        self.time, self.seconds, self.wait = time, seconds, wait
        self.model = torch.nn.Linear(8, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.steps = 0

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 8)).sum().backward()
        self.optimizer.step()
        self.time.advance(self.seconds)
        self.steps += 1

    def loader(self, batches: int) -> Iterator[int]:
        for number in range(batches):
            self.time.advance(self.wait)
            yield number

    def watched(self, steps: int, **options: Any) -> Any:
        given: dict[str, Any] = {"gpus": ["T4"], "model": self.model, "optimizers": [self.optimizer]}
        with lp.watch(total_steps=steps, **(given | options)) as run:
            for _ in run.batches(self.loader(steps)):
                self.train()
                run.step()
                if run.should_stop:
                    break
        return run


def test_the_table_the_advice_and_the_outcome(time: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    run = Loop(time, wait=0.5).watched(400)
    assert run.predictions is not None
    assert run.trace.step_seconds == (1.0, 1.0)  # of three, the first is cold
    assert (run.outcome.batches, run.outcome.actual_seconds) == (400 - 16, pytest.approx(384 * 1.5))
    assert run.outcome.predicted.contains(384 * 1.5)
    printed = capsys.readouterr().out
    assert printed.startswith("Rest of this run: 396 steps")
    assert "watch, after 16 steps: " in " ".join(printed.split())
    assert "Rent a T4" in printed
    assert "than the predicted" in printed.splitlines()[-1]


def test_last_step_prints_no_forecast(time: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    Loop(time).watched(32)  # the number of measured steps has doubled after 16 steps, and again after the last
    printed = capsys.readouterr().out
    assert "watch, after 16 steps: " in printed
    assert "after 32 steps" not in printed


def test_of_a_run_without_an_end_what_has_not_changed_is_said_once(
    time: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(time)
    with lp.watch(gpus=["T4"], model=loop.model) as run:
        for _ in range(200):  # the first begins unseen: what was seen has doubled after 17, 33, 65 and 129
            loop.seconds = 1.0 if loop.steps < 100 else 3.0
            loop.train()
            run.step()
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("watch, after ")]
    assert [line.partition(":")[0] for line in said] == ["watch, after 17 steps", "watch, after 129 steps"]


def test_without_the_loader_its_waits_are_part_of_the_steps(time: Clock) -> None:
    loop = Loop(time)
    with lp.watch(total_steps=40, gpus=["T4"], model=loop.model, print_table=False) as run:
        for _ in range(40):
            time.advance(0.5)
            loop.train()
            run.step()
    assert run.outcome is not None
    assert run.outcome.actual_seconds == pytest.approx(run.outcome.batches * 1.5)
    assert run.outcome.predicted_seconds == pytest.approx(run.outcome.batches * 1.5)


@pytest.mark.parametrize(
    ("in_use", "usd_per_hour", "wanted"),
    [
        ("T4", 2.0, {"T4": 2.0}),
        (None, 2.0, None),  # the priced machine is unknown
        ("T4", None, None),
    ],
)
def test_price_of_a_budget_is_the_price_of_the_gpu_in_use(
    monkeypatch: pytest.MonkeyPatch, in_use: str | None, usd_per_hour: float | None, wanted: Any
) -> None:
    monkeypatch.setattr(watched_loop, "gpu_name_in_use", lambda _: in_use)
    run = lp.watch(gpus=["T4"], total_steps=4, usd_per_hour=usd_per_hour)
    assert run.session.request.assumptions.usd_per_hour == wanted


def test_a_budget_stops_the_loop_or_raises(time: Clock, caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(time)
    run = loop.watched(400, usd=35.0, usd_per_hour=3600.0, print_table=False)
    assert loop.steps == 28  # 79 % of 35 s
    assert "exceeds the budget of $35.00 (usd; " in run.stopping_reason
    loop = Loop(time)
    with pytest.raises(BudgetExceededError, match=r"watch: 5\.00 s of 4\.50 s"):
        loop.watched(10, hours=4.5 / 3600, on_exceed="raise", print_table=False)
    assert loop.steps == 5


def test_weights_and_random_numbers_equal_an_unwatched_loop(time: Clock) -> None:
    def trained(*, is_watched: bool) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(3)
        loop = Loop(time)
        if is_watched:
            loop.watched(20, print_table=False)
        else:
            for _ in range(20):
                loop.train()
        return loop.model.weight.detach().clone(), torch.get_rng_state()

    for first, other in zip(trained(is_watched=True), trained(is_watched=False), strict=True):
        assert torch.equal(first, other)


@pytest.mark.parametrize("error", [RuntimeError("x"), StopIteration(), GeneratorExit()])
@pytest.mark.parametrize(
    "place",
    [
        "lightning_predict.observe.watched_loop.Ledger.open",
        "lightning_predict.observe.watched_loop.RunObserver.on_batch_start",
        "lightning_predict.observe.watched_loop.RunObserver.on_batch_end",
        "lightning_predict.observe.watched_loop.BudgetWatch.due_check",
        "lightning_predict.observe.watched_loop.StepRecorder.stop",
        "lightning_predict.observe.watched_loop.Ledger.close",
        "lightning_predict.observe.run_session.OutcomeTimer.compare",
    ],
)
def test_nothing_of_ours_that_fails_reaches_the_loop(
    time: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str, error: BaseException
) -> None:
    def fails(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(place, fails)
    loop = Loop(time)
    run = loop.watched(20, usd=1e6, usd_per_hour=1.0, print_table=False)
    assert loop.steps == 20
    assert not run.should_stop
    assert _get_current_dispatch_mode_stack() == []
    if not place.endswith("StepRecorder.stop"):  # which is not called again once the step was recorded
        assert caplog.text.count("watch stopped predicting; the loop continues: ") == 1
        assert type(error).__name__ in caplog.text
        assert caplog.text.count("watch failed: the budget is no longer enforced") == 1
        assert run.outcome is None


def test_remaining_time_is_none_after_an_error(
    time: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Loop(time).watched(20, print_table=False)
    assert run.remaining is not None
    monkeypatch.setattr("lightning_predict.observe.forecast.TimedForecast.left", lambda *args: 1 / 0)
    assert run.remaining is None
    assert "the loop continues: ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("given", [{"usd": 0}, {"hours": -1.0}, {"total_steps": 0}, {"on_exceed": "cry"}])
def test_what_can_be_put_right_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(given))):
        lp.watch(**given)


def test_an_error_of_the_loop_passes_and_leaves_nothing_recording(time: Clock) -> None:
    loop = Loop(time)

    def train() -> None:
        if loop.steps == 3:  # the one that is recorded
            raise KeyError
        Loop.train(loop)

    loop.train = train  # type: ignore[method-assign]
    with pytest.raises(KeyError):
        loop.watched(9, print_table=False)
    assert _get_current_dispatch_mode_stack() == []


class Sentences(list[torch.Tensor]):
    """A loader of short sentences, of a corpus whose longest is a thousand times as long."""

    lengths = (6, 6_000_000)

    @property
    def dataset(self) -> Sentences:
        return self


def test_what_may_not_fit_is_said_before_training_goes_on(time: Clock, caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(8, 64), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    later = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1).expand(2**31))])
    with (
        recordings_on("T4"),
        lp.watch(total_steps=20, gpus=["T4"], model=model, optimizers=[optimizer, later], print_table=False) as run,
    ):
        for batch in run.batches(Sentences([torch.zeros(2, 6, dtype=torch.int64)] * 20)):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            time.advance(1.0)
            run.step()
    # Two states of 4 bytes for each of 2^31 values: 16 GiB of the T4's 14.5; and the length, a million times.
    assert [(risk.kind, risk.gpu) for risk in run.memory_risks] == [("optimizer", "T4"), ("sequence", "T4")]
    assert "watch, memory: The first optimizer update (16.0 GiB of new state)" in caplog.text
    assert "watch, memory: A batch with the longest sequence (6,000,000, recorded: 6) needs" in caplog.text


def test_watch_names_the_arguments_that_lack_a_name() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"2 values without names; expected names, such as watch\(total_steps"
    ):
        lp.watch(1000, 50)
