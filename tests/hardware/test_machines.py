"""Machines by their clouds' names: that every row names GPUs of the catalogue, and what their layouts are."""

import pytest

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.cost.offers import load_offers
from lightning_predict.hardware.layouts import find_machine, is_same_machine, layout_of


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("p4d.24xlarge", "8xA100-SXM-40GB"),
        ("g5.xlarge", "A10G"),
        ("a2-highgpu-1g", "A100-SXM-40GB"),
        ("Standard_ND96isr_H100_v5", "8xH100-SXM-80GB"),
        ("ND96isr H100 v5", "8xH100-SXM-80GB"),
        ("2xp4d.24xlarge", "2x8xA100-SXM-40GB"),
        ("3 x g6.12xlarge", "3x4xL4"),
    ],
)
def test_a_machine_is_a_layout(name: str, layout: str) -> None:
    assert layout_of(name).name == layout
    assert layout_of(name).machine is not None


def test_offers_and_machines_agree_on_the_gpus_of_a_machine() -> None:
    compared = 0
    for offer in load_offers():
        found = find_machine(offer.instance)
        if found is not None and found.provider == offer.provider:
            layout = layout_of(found.name)
            assert (layout.gpu.name, layout.gpus_per_node) == (offer.gpu, offer.num_gpus), offer.instance
            compared += 1
    assert compared >= 30


def test_azures_prefix_and_separators_do_not_count() -> None:
    assert is_same_machine("Standard_NC4as_T4_v3", "NC4as T4 v3")
    assert not is_same_machine("g5.xlarge", "g6.xlarge")


def test_numbers_of_machines_that_disagree_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'2xg5.xlarge' asks for 2 machine\(s\), but num_nodes=3"):
        layout_of("2xg5.xlarge", num_nodes=3)
