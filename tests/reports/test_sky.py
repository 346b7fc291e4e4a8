"""SkyPilot: a task that rents the machine of an offer."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from lightning_predict.base.errors import UnknownGpuError, UnknownOfferError
from lightning_predict.cost.offers import Offer, load_offers
from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.reports.sky import CLOUDS, machine_to_rent, sky_accelerator, sky_task
from lightning_predict.testing import with_values
from tests.reports.example import T4


def offer(**changes: Any) -> Offer:
    plain = Offer(
        provider="AWS",
        instance="g5.xlarge",
        gpu="A10G",
        num_gpus=1,
        usd_per_hour=1.006,
        date="2026-09-17",
        source="https://aws.amazon.com/ec2/pricing/",
        region="us-east-1",
    )
    return replace(plain, **changes)


def resources(text: str) -> dict[str, Any]:
    document: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return document["resources"]


def test_task_rents_the_whole_machine_of_its_offer() -> None:
    text = sky_task(offer(), run="python train.py --epochs 3", name="digits", prediction=T4)
    assert yaml.safe_load(text) == {
        "name": "digits",
        "resources": {
            "cloud": "aws",
            "region": "us-east-1",
            "instance_type": "g5.xlarge",
            "accelerators": "A10G:1",
            "use_spot": False,
        },
        "run": "python train.py --epochs 3",
    }
    assert text.startswith("# AWS g5.xlarge (2026-09-17): $1.01/h for 1 x A10G.\n# Predicted on one A10G: 3 h 12 min")
    text = sky_task(offer(provider="Lambda", instance="gpu_8x_v100", gpu="V100-SXM2-16GB", num_gpus=8, region=None))
    assert resources(text) == {
        "cloud": "lambda",
        "instance_type": "gpu_8x_v100",
        "accelerators": "V100:8",
        "use_spot": False,
    }
    assert "# The machine has 8 GPUs, and all are paid for." in text


def test_spot_offers_and_user_text_are_written_as_skypilot_reads_them() -> None:
    assert resources(sky_task(offer(spot=True)))["use_spot"] is True
    text = sky_task(offer(), run="echo '#: {'\nset -e", name="- [x]: #")
    document = yaml.safe_load(text)
    assert (document["run"], document["name"]) == ("echo '#: {'\nset -e", "- [x]: #")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Azure's machines and regions have other names in its interfaces than in its price list.
        (
            {"provider": "Azure", "instance": "NC4as T4 v3", "gpu": "T4", "region": "East US"},
            {"cloud": "azure", "region": "eastus", "instance_type": "Standard_NC4as_T4_v3", "accelerators": "T4:1"},
        ),
        # A price list with names of its own: SkyPilot finds the machine by its GPU, which RunPod spells with its form.
        (
            {"provider": "RunPod", "instance": "1x A100 SXM", "gpu": "A100-SXM-80GB", "region": None},
            {"cloud": "runpod", "accelerators": "A100-80GB-SXM:1"},
        ),
        # A machine with a card attached has no name of its own.
        (
            {"provider": "GCP", "instance": "n1-highmem-8 + 1x V100", "gpu": "V100-SXM2-16GB", "region": "us-west1"},
            {"cloud": "gcp", "region": "us-west1", "accelerators": "V100:1"},
        ),
        ({"provider": "Us", "instance": "desk", "gpu": "RTX-4090", "region": None}, {"accelerators": "RTX4090:1"}),
    ],
)
def test_names_are_spelled_as_skypilot_spells_them(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    text = sky_task(offer(**changes))
    assert resources(text) == expected | {"use_spot": False}
    assert ("# SkyPilot has no cloud named Us" in text) == (changes["provider"] == "Us")


def test_every_shipped_offer_makes_a_task() -> None:
    for shipped in load_offers():
        rented = resources(sky_task(shipped))
        assert rented["accelerators"].endswith(f":{shipped.num_gpus}")
        assert " " not in rented.get("instance_type", "")
        assert rented.get("cloud") == CLOUDS.get(shipped.provider.casefold())


COMMON = "T4 V100-SXM2-16GB L4 A10G L40S A100-SXM-40GB A100-SXM-80GB H100-SXM-80GB H200-SXM-141GB".split()


@pytest.mark.parametrize("name", gpu_names())
def test_skypilot_name_finds_gpu_or_another_form(name: str) -> None:
    if name in COMMON:
        assert gpu(sky_accelerator(name)).name == name
    assert "_" not in sky_accelerator(name)
    assert gpu(sky_accelerator(name)).architecture == gpu(name).architecture


def test_machine_to_rent_costs_the_least_and_prices_the_prediction() -> None:
    eight = offer(instance="big", num_gpus=8, usd_per_hour=4.0)  # $0.50 a GPU, but $4 to pay
    small = offer(instance="small", usd_per_hour=0.9)
    stale = offer(instance="old", usd_per_hour=0.1, date="2024-01-01")
    assert machine_to_rent("a10g", [eight, small, stale]).instance == "small"
    with pytest.raises(UnknownOfferError, match="No current offer of A10G; give a price file that has one"):
        machine_to_rent("A10G", [replace(eight, gpu="T4")])
    with pytest.raises(UnknownGpuError):
        machine_to_rent("A10GG")
    with pytest.raises(UnknownOfferError):
        machine_to_rent("A10G", [])
    # AWS's p4de.24xlarge is dearer than others' A100s of 80 GB; who asked for it rents it.
    named = with_values(T4, layout="2xp4de.24xlarge")
    task = yaml.safe_load(sky_task(machine_to_rent(named.layout), prediction=named))
    assert (task["resources"]["cloud"], task["resources"]["instance_type"]) == ("aws", "p4de.24xlarge")
    assert task["num_nodes"] == 2
    assert machine_to_rent("8xA100-SXM-80GB").instance != "p4de.24xlarge"
    # A rack is rented by its trays of four.
    rack = with_values(T4, layout="64xGB200")
    assert yaml.safe_load(sky_task(machine_to_rent(rack.layout), prediction=rack))["num_nodes"] == 16


def test_a_layout_rents_machines_with_as_many_gpus() -> None:
    two = offer(gpu="T4", instance="two", num_gpus=2, usd_per_hour=1.0)
    eight = offer(gpu="T4", instance="eight", num_gpus=8, usd_per_hour=4.0)
    assert machine_to_rent("4xT4", [two, eight]) == eight
    with pytest.raises(UnknownOfferError, match="No current offer of 16xT4"):
        machine_to_rent("16xT4", [two, eight])
    task = sky_task(eight, prediction=with_values(T4, layout="2x8xT4"))
    assert yaml.safe_load(task)["num_nodes"] == 2
    assert "Predicted on 2x8xT4: 3 h 12 min, $1.12." in task
    assert "all of which are paid for" not in task
