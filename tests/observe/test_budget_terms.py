"""What a user sets as a budget becomes limits of a fit, at the price of its machine."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_predict.callbacks.budget_terms import Terms
from lightning_predict.callbacks.lightning_packages import LightningPredictWarning
from lightning_predict.cost.offers import load_offers
from lightning_predict.observe.budget import Ledger


def trainer(processes: int = 1, nodes: int = 1) -> Any:
    """The part of a Trainer that is asked."""
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    return SimpleNamespace(strategy=strategy, world_size=processes, num_nodes=nodes, progress_bar_callback=None)


def test_a_price_makes_seconds_dollars() -> None:
    ledger = Ledger(clock=lambda: 0.0)
    (limit,) = Terms.checked(usd=10.0, usd_per_hour=3.6).limits_of(trainer(), ledger)
    assert ledger.usd_per_second == pytest.approx(0.001)  # 3.6 / 3600
    assert (limit.name, limit.total) == ("usd", 10.0)
    assert limit.used(500.0) == pytest.approx(0.5)


def test_the_whole_machines_of_a_named_offer_are_paid_for() -> None:
    offer = next(one for one in load_offers() if one.num_gpus == 8)
    name = f"{offer.provider} {offer.instance}"
    newest = max((one for one in load_offers() if name == f"{one.provider} {one.instance}"), key=lambda one: one.date)
    ledger = Ledger(clock=lambda: 0.0)
    Terms.checked(usd=1.0, offer=name).limits_of(trainer(processes=newest.num_gpus + 1), ledger)
    assert ledger.usd_per_second == pytest.approx(2 * newest.usd_per_hour / 3600)


def test_dollars_without_a_price_are_no_limit_and_it_is_said() -> None:
    with pytest.warns(LightningPredictWarning, match="price of this machine is unknown, so usd has no effect"):
        limits = Terms.checked(usd=10.0, hours=2.0).limits_of(trainer(), Ledger(clock=lambda: 0.0))
    assert [(limit.name, limit.total) for limit in limits] == [("hours", 2.0)]


def test_a_deadline_is_so_many_hours_from_now() -> None:
    soon = (datetime.now() + timedelta(hours=3)).isoformat()
    (limit,) = Terms.checked(deadline=soon).limits_of(trainer(), Ledger(clock=lambda: 0.0))
    assert limit.name == "deadline"
    assert 2.9 < limit.total <= 3.0
