from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from lightning_predict.base.errors import UnknownOfferError
from lightning_predict.cost.offers import Offer, offers_for
from lightning_predict.hardware import gpu
from lightning_predict.observe.budget import RunPrice, gpu_name_in_use, named_offer, price_of_run


def price(
    *,
    usd_per_hour: float | None = None,
    offer: Offer | None = None,
    gpu: str | None = None,
    world_size: int = 1,
    num_nodes: int = 1,
    offers: Sequence[Offer] | None = None,
) -> RunPrice:
    return price_of_run(
        usd_per_hour=usd_per_hour, offer=offer, gpu=gpu, world_size=world_size, num_nodes=num_nodes, offers=offers
    )


EIGHT = Offer(provider="A", instance="big", gpu="T4", num_gpus=8, usd_per_hour=16.0, date="2026-01-01", source="here")


def test_the_users_price_comes_first_and_is_for_all() -> None:
    assert price(usd_per_hour=3.0, offer=EIGHT, gpu="T4", world_size=16) == RunPrice(3.0, source="your own price")


@pytest.mark.parametrize(
    ("world_size", "num_nodes", "machines"), [(1, 1, 1), (8, 1, 1), (9, 1, 2), (16, 2, 2), (2, 2, 2)]
)
def test_of_a_named_offer_whole_machines_are_paid(world_size: int, num_nodes: int, machines: int) -> None:
    found = price(offer=EIGHT, world_size=world_size, num_nodes=num_nodes)
    assert found == RunPrice(16.0 * machines, source="A big (2026-01-01)")


def test_of_several_prices_the_highest_counts_and_is_named() -> None:
    offers = offers_for("T4")
    highest = max(offer.usd_per_gpu_hour for offer in offers)
    assert highest > min(offer.usd_per_gpu_hour for offer in offers)
    found = price(gpu="T4", world_size=2)
    assert found.usd_per_hour == 2 * highest
    assert found.warning is not None
    assert found.warning.startswith("T4 prices range from $")
    assert "choose another with offer=... or usd_per_hour" in found.warning


def test_a_single_price_is_no_reason_to_warn() -> None:
    assert price(gpu="T4", world_size=3, offers=[EIGHT]) == RunPrice(3 * 2.0, source="A big (2026-01-01)")


def test_a_gpu_that_nobody_rents_out_has_no_price() -> None:
    assert price(gpu="P600", offers=[EIGHT]) == RunPrice(
        None, "no price of P600 is listed, so usd has no effect; give usd_per_hour"
    )


def test_without_a_gpu_there_is_no_price() -> None:
    found = price()
    assert found.usd_per_hour is None
    assert found.warning == (
        "the price of this machine is unknown, so usd has no effect; give usd_per_hour or an offer"
    )


def test_an_offer_by_its_name_with_and_without_the_provider() -> None:
    assert named_offer("g5.xlarge").gpu == "A10G"
    assert named_offer("AWS g5.xlarge") == named_offer("g5.xlarge")


def test_an_offer_that_is_not_listed() -> None:
    with pytest.raises(UnknownOfferError, match=r"offer='g5.xlarg' is not listed. Nearest: g5.xlarge.*usd_per_hour"):
        named_offer("g5.xlarg")


def test_an_offer_that_two_providers_list() -> None:
    twice = (EIGHT, Offer(**{**{name: getattr(EIGHT, name) for name in EIGHT.__slots__}, "provider": "B"}))
    with pytest.raises(UnknownOfferError, match="offer='big' is listed by A and B; say 'A big' or 'B big'"):
        named_offer("big", twice)


def test_of_an_offer_the_newest_price_counts() -> None:
    newer = Offer(**{**{name: getattr(EIGHT, name) for name in EIGHT.__slots__}, "date": "2026-02-01"})
    assert named_offer("big", [newer, EIGHT]) is newer


def test_the_gpu_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_name_in_use(torch.device("cpu")) is None

    def properties(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(name="Tesla T4", total_memory=gpu("T4").memory_bytes)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    assert gpu_name_in_use(torch.device("cuda", 0)) == "T4"
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="Voodoo 2", total_memory=8)
    )
    assert gpu_name_in_use(torch.device("cuda", 0)) is None
