"""The grammar of layouts, the messages of rejected inputs, and machines by the names of their clouds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.cost.offers import load_offers
from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.hardware.layouts import MAX_GPUS, Layout, find_machine, in_trays, is_same_machine, layout_of


@pytest.mark.parametrize(
    ("name", "gpu_name", "per_node", "nodes", "canonical"),
    [
        ("T4", "T4", 1, 1, "T4"),
        ("Tesla T4", "T4", 1, 1, "T4"),
        ("1xT4", "T4", 1, 1, "T4"),
        ("1x1xT4", "T4", 1, 1, "T4"),
        ("8xL4", "L4", 8, 1, "8xL4"),
        ("1x8xL4", "L4", 8, 1, "8xL4"),
        (" 8 x NVIDIA L4 ", "L4", 8, 1, "8xL4"),
        ("4*A100-SXM4-40GB", "A100-SXM-40GB", 4, 1, "4xA100-SXM-40GB"),
        ("2x8xH100-SXM-80GB", "H100-SXM-80GB", 8, 2, "2x8xH100-SXM-80GB"),
        ("2x1xT4", "T4", 1, 2, "2x1xT4"),
        ("L4:8", "L4", 8, 1, "8xL4"),
        (" H100 : 8 ", "H100-SXM-80GB", 8, 1, "8xH100-SXM-80GB"),
    ],
)
def test_each_form_of_the_grammar(name: str, gpu_name: str, per_node: int, nodes: int, canonical: str) -> None:
    layout = layout_of(name)
    assert layout == Layout(gpu(gpu_name), per_node, nodes)
    assert (layout.name, layout.count) == (canonical, per_node * nodes)


def test_a_gpu_and_a_layout_stand_for_themselves() -> None:
    own = replace(gpu("L4"), name="my-L4", dram_bytes_per_second=400e9)
    assert layout_of(own) == Layout(own)
    assert layout_of(own).gpu.dram_bytes_per_second == 400e9
    assert layout_of(Layout(own, 4)).count == 4
    with pytest.raises(
        InvalidArgumentError, match="5 is not a layout; expected a name such as 'T4' or '8xL4', a Gpu or a"
    ):
        layout_of(5)  # type: ignore[arg-type]


def test_number_of_machines_may_come_with_the_name_and_must_agree() -> None:
    assert layout_of("8xL4", num_nodes=2).name == "2x8xL4"
    assert layout_of("T4", num_nodes=4).name == "4x1xT4"
    assert layout_of("2x8xL4", num_nodes=2).name == "2x8xL4"
    with pytest.raises(InvalidArgumentError, match=r"'2x8xL4' has 2 machine\(s\), but num_nodes=4"):
        layout_of("2x8xL4", num_nodes=4)
    with pytest.raises(InvalidArgumentError, match="num_nodes=0; a layout has at least one"):
        layout_of("L4", num_nodes=0)
    with pytest.raises(InvalidArgumentError, match=r"'2xg5.xlarge' asks for 2 machine\(s\), but num_nodes=3"):
        layout_of("2xg5.xlarge", num_nodes=3)


@pytest.mark.parametrize("name", ["0xT4", "0x8xT4", "8x0xT4", "70000xT4", "300x300xT4"])
def test_numbers_beyond_reason_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"layout '{name}' has .* between 1 and 65,536 GPUs, for .*8xT4"):
        layout_of(name)


def test_an_unknown_gpu_in_a_layout_names_the_layout() -> None:
    with pytest.raises(UnknownGpuError, match=r"In the layout '3xNOPE': 'NOPE' is not a GPU .*<GPUs>x<GPU>"):
        layout_of("3xNOPE")


@given(st.sampled_from(gpu_names()), st.integers(1, 64), st.integers(1, 64))
def test_a_name_reads_back_as_the_layout_that_wrote_it(name: str, per_node: int, nodes: int) -> None:
    layout = Layout(gpu(name), per_node, nodes)
    assert layout.count <= MAX_GPUS
    assert layout_of(layout.name) == layout


@pytest.mark.parametrize("name", gpu_names())
def test_no_gpu_of_the_catalogue_is_taken_for_a_layout(name: str) -> None:
    assert layout_of(name) == Layout(gpu(name))


def test_racks_are_rented_by_trays_and_spellings_of_machines_are_equal() -> None:
    assert in_trays(layout_of("64xGB200")) == layout_of("16x4xGB200")
    assert in_trays(layout_of("2x72xGB200")).name == "36x4xGB200"
    for name in ("4xGB200", "6xGB200", "2xGB200", "8xH100", "16x4xGB200"):
        assert in_trays(layout_of(name)) == layout_of(name)
    assert is_same_machine("Standard_NC4as_T4_v3", "NC4as T4 v3")
    assert not is_same_machine("g5.xlarge", "g6.xlarge")


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
        machine = find_machine(offer.instance)
        if machine is not None and machine.provider == offer.provider:
            layout = layout_of(machine.name)
            assert (layout.gpu.name, layout.gpus_per_node) == (offer.gpu, offer.num_gpus), offer.instance
            compared += 1
    assert compared >= 30
