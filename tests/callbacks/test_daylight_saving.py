"""Deadlines on the days when clocks change: the time left follows the wall clock, in true seconds."""

import os
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from lightning_predict.callbacks import CostBudget
from lightning_predict.observe import meters
from lightning_predict.observe.clock import clock_of_fits
from lightning_predict.observe.meters import Ledger, RentedMachine
from lightning_predict.testing import Clock
from tests.callbacks.small import Small


@pytest.fixture(autouse=True)
def _berlin() -> Iterator[None]:
    with mock.patch.dict(os.environ, {"TZ": "Europe/Berlin"}):
        time.tzset()
        yield
    time.tzset()


def at(moment: str) -> Any:
    """Return a patch that lets the package believe in a moment, given in UTC."""
    instant = datetime.fromisoformat(moment).replace(tzinfo=timezone.utc)

    class Frozen(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return instant.astimezone(tz) if tz is not None else instant.astimezone().replace(tzinfo=None)  # type: ignore[arg-type]

    return mock.patch.multiple(meters, datetime=Frozen)


DEADLINES = {
    # now in UTC, the deadline as written, hours left
    "autumn, across": ("2026-10-24T23:30", "2026-10-25T04:00", 3.5),  # 01:30 summer time to 04:00 winter time
    "autumn, the hour that comes twice": ("2026-10-24T23:30", "2026-10-25T02:30", 1.0),  # the first, so never late
    "autumn, before": ("2026-10-24T20:00", "2026-10-25T01:00", 3.0),
    "autumn, within the second hour": ("2026-10-25T01:10", "2026-10-25T03:00", 50 / 60),
    "spring, across": ("2026-03-29T00:30", "2026-03-29T04:00", 1.5),  # 01:30 winter time to 04:00 summer time
    "spring, the hour that is left out": ("2026-03-28T23:00", "2026-03-29T02:30", 2.5),  # read as 03:30 summer time
    "an offset of its own": ("2026-10-24T23:30", "2026-10-25T04:00+02:00", 2.5),
    "from summer to winter": ("2026-07-01T10:00", "2026-12-01T12:00", 24 * 153 + 1.0),
}


@pytest.mark.parametrize(("now", "deadline", "hours"), DEADLINES.values(), ids=DEADLINES)
def test_the_time_left_is_counted_in_true_hours(now: str, deadline: str, hours: float) -> None:
    with at(now):
        (meter,) = CostBudget(deadline=deadline).terms.start(RentedMachine("cpu"), Ledger(Clock())).meters
    assert meter.limit == pytest.approx(hours)


def test_a_deadline_says_its_zone() -> None:
    with at("2026-10-24T20:00"):
        assert CostBudget(deadline="2026-10-25T01:00").terms.description == "time until 2026-10-25 01:00 CEST"
        assert CostBudget(deadline="2026-10-25T04:00").terms.description == "time until 2026-10-25 04:00 CET"


@pytest.mark.parametrize(("deadline", "ends"), [("2026-10-25T03:00", False), ("2026-10-25T02:30", True)])
def test_a_run_across_the_change_has_its_hour_more(tmp_path: Path, deadline: str, ends: bool, said: list[str]) -> None:
    # At 00:30 UTC it is 02:30 summer time; 03:00 winter time is 1.5 h away, 72 batches take 1.2 h.
    shown, small = Clock(), Small("lightning.pytorch")
    model = small.model()
    plain = model.training_step

    def training_step(*values: object) -> object:
        shown.advance(60.0)
        return plain(*values)

    model.training_step = training_step
    moment = at("2026-10-25T00:30" if not ends else "2026-10-24T23:50")
    with clock_of_fits(shown), moment:
        watched = CostBudget(deadline=deadline)
        small.trainer(tmp_path, max_epochs=1, callbacks=[watched]).fit(model, small.loader(72))
    # 23:50 UTC is 01:50: 02:30 comes first in summer time, 40 minutes later.
    assert (watched.stopping_reason is not None) is ends
    assert model.batches_trained == 72 if not ends else model.batches_trained < 40
    said.clear()  # the warnings before
