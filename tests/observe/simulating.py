"""The forecasts of a scenario, from the events of a run on a virtual clock."""

from __future__ import annotations

import contextlib

from lightning_predict.observe.budget import BudgetWatch
from lightning_predict.observe.forecast import ForecastInputs, ForecastSchedule, RestOfRun
from lightning_predict.observe.meters import Ledger, RentedMachine, Terms
from lightning_predict.observe.remaining import Position, Validation
from lightning_predict.observe.run_observer import RunObserver
from tests.observe.scenarios import Scenario, Score, moments, told


def facts_of(scenario: Scenario, batches: int) -> ForecastInputs:
    """Facts of a trainer after the given number of batches."""
    epoch, done = divmod(batches, scenario.batches)
    if epoch and not done:
        epoch, done = epoch - 1, scenario.batches
    validation = len(scenario.validation(0))
    return ForecastInputs(
        position=Position(
            epoch=epoch,
            batches_done=done,
            batches_per_epoch=scenario.batches,
            max_epochs=scenario.epochs,
            accumulation={0: scenario.accumulation},
            last_batch_share=scenario.last_share,
            validation=Validation(batches=validation, every_batches=scenario.batches) if validation else None,
        ),
        workers=scenario.workers,
        has_workers=scenario.workers > 0,
        validation_has_workers=scenario.workers > 0,
        starts_workers=scenario.workers > 0,
    )


def forecasts(scenario: Scenario, at: set[int]) -> tuple[dict[int, tuple[float, RestOfRun]], float]:
    """Return the forecast after the given number of batches, with the time by then, and when the run ended."""
    now = 0.0
    clock = RunObserver(lambda: now)
    clock.buffered = scenario.buffered
    made: dict[int, tuple[float, RestOfRun]] = {}

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    def after(batch: int) -> None:
        if batch in at:
            made[batch] = (now, clock.rest(facts_of(scenario, batch)))

    told(scenario, clock, advance, after)
    return made, now


def scores(scenario: Scenario) -> list[Score]:
    """Score what is trusted at some moments."""
    names = moments(scenario)
    made, end = forecasts(scenario, set(names))
    return [
        Score(moment=names[batch], believed=rest.forecast, actual=end - now, spent=now)
        for batch, (now, rest) in made.items()
    ]


def cost(scenario: Scenario) -> float:
    """Return the seconds of a whole run."""
    return forecasts(scenario, set())[1]


def stopped(scenario: Scenario, share: float) -> tuple[float, int]:
    """Return the part of its budget that a run used, and its batches; the budget is a share of its actual cost."""

    class StopError(Exception):
        pass

    def run(budget: float) -> tuple[float, int]:
        now, batches = 0.0, 0
        clock, ledger = RunObserver(lambda: now), Ledger(lambda: now)
        ledger.open(forget=True)
        moments = ForecastSchedule(batches_per_window=scenario.accumulation, batches=scenario.steps)
        meters = Terms.checked(hours=budget / 3600).start(RentedMachine("cpu"), ledger).meters
        watch = BudgetWatch(meters, ledger, schedule=moments, warmup_steps=3)

        def advance(seconds: float) -> None:
            nonlocal now
            now += seconds

        def after(batch: int) -> None:
            nonlocal batches
            batches = batch
            question = watch.due_check(clock.batches, clock.training_seconds, elapsed=ledger.elapsed_seconds)
            if question is not None:
                rest = None if question == "use" else clock.rest(facts_of(scenario, batch))
                best = clock.at_best(scenario.accumulation)
                verdict = watch.check(rest, at_best=lambda: best.rest(facts_of(scenario, batch)))
                if verdict.action == "stop":
                    raise StopError

        with contextlib.suppress(StopError):
            told(scenario, clock, advance, after)
        return now, batches

    whole = cost(scenario)
    used, batches = run(share * whole)
    return used / (share * whole), batches
