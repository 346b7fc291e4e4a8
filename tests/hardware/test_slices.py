"""Slices of a GPU (MIG): what they have, how they are named, and the messages of rejected inputs."""

import pytest

from lightning_predict.base.errors import UnknownGpuError
from lightning_predict.hardware import gpu
from lightning_predict.hardware.slices import slice_of


def test_slices_have_their_multiprocessors_and_unknown_ones_list_the_others() -> None:
    whole, half = gpu("A100-SXM-40GB"), gpu("NVIDIA A100-SXM4-40GB MIG 3g.20gb")
    assert half.name == "A100-SXM-40GB-MIG-3g.20gb"
    assert half.streaming_multiprocessors == 42  # three sevenths of the 98 that slices share
    assert half.memory_bytes == whole.memory_bytes / 2
    assert half.dram_bytes_per_second == whole.dram_bytes_per_second / 2
    assert half.l2_bytes == whole.l2_bytes / 2
    assert half.l2_bytes_per_second == whole.l2_bytes_per_second / 2
    # 312 TFLOP/s on 108 multiprocessors are 121.3 on 42.
    assert half.peak_flops_per_second["bfloat16"] == pytest.approx(312e12 * 42 / 108)
    assert half.nvlink_bytes_per_second is None
    assert half.ridge_flops_per_byte("bfloat16") == pytest.approx(121.33e12 / 777.5e9, rel=1e-3)
    with pytest.raises(
        UnknownGpuError, match=r"A30 has no slice '3g\.20gb' in the catalogue; it has 1g\.6gb, 2g\.12gb,"
    ):
        gpu("A30 MIG 3g.20gb")
    with pytest.raises(
        UnknownGpuError, match=r"T4 has no slice '1g\.5gb' in the catalogue; slices are known of A100-SXM"
    ):
        gpu("T4 MIG 1g.5gb")
    assert gpu("NVIDIA H100XM-3-40C") == gpu("NVIDIA H100 80GB HBM3 MIG 3g.40gb")
    with pytest.raises(UnknownGpuError, match=r"has no slice '3g\.41gb'"):
        gpu("NVIDIA H100XM-3-41C")


@pytest.mark.parametrize("name", ["A100-SXM-40GB-MIG-1g.5gb", "a100 sxm4 40gb mig 1G.5GB", "A100-40GB MIG 1g.5gb"])
def test_a_slice_is_found_by_each_name_of_its_gpu(name: str) -> None:
    assert gpu(name).name == "A100-SXM-40GB-MIG-1g.5gb"


def test_slices_are_never_more_than_their_gpu_whatever_their_engines() -> None:
    whole = gpu("H100-SXM-80GB")
    smallest = slice_of(whole, "1g.10gb")
    assert 7 * smallest.streaming_multiprocessors <= whole.streaming_multiprocessors
    assert 7 * smallest.memory_bytes <= whole.memory_bytes
    plain, media = gpu("A100-SXM-40GB MIG 1g.5gb"), gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me")
    assert media == plain
    whole, part = gpu("A100-SXM-40GB MIG 3g.20gb"), gpu("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb")
    assert part.name == "A100-SXM-40GB-MIG-1c.3g.20gb"
    assert part.streaming_multiprocessors == 14  # a third of 42
    assert part.memory_bytes == whole.memory_bytes
    assert part.peak_flops_per_second["bfloat16"] == pytest.approx(whole.peak_flops_per_second["bfloat16"] / 3)


@pytest.mark.parametrize("name", ["MI100", "Radeon RX 9070 XT", "TPU v4", "Gaudi2", "trn1"])
def test_accelerators_of_other_makers_are_refused_as_such(name: str) -> None:
    with pytest.raises(
        UnknownGpuError,
        match=rf"'{name}' is not made by NVIDIA; the catalogue holds NVIDIA's GPUs and some of AMD's. For an order of",
    ):
        gpu(name)


@pytest.mark.parametrize("profile", ["3c.3g.20gb", "0c.3g.20gb", "1c.9g.20gb"])
def test_a_compute_instance_has_fewer_slices_than_its_gpu_instance(profile: str) -> None:
    with pytest.raises(UnknownGpuError, match="has no slice"):
        gpu(f"A100-SXM-40GB MIG {profile}")


@pytest.mark.parametrize(
    ("name", "board", "gib"),
    [
        ("NVIDIA H100XM-80C", "H100-SXM-80GB", 80),
        ("NVIDIA H100L-94C", "H100-NVL-94GB", 94),
        ("GRID A100DX-40C", "A100-SXM-80GB", 40),
    ],
)
def test_a_virtual_gpu_is_found_by_the_name_of_its_board(name: str, board: str, gib: int) -> None:
    virtual = gpu(name)
    assert virtual.name == f"{board}-{gib}C"
    assert virtual.memory_bytes == gib * 2**30
    assert virtual.streaming_multiprocessors == gpu(board).streaming_multiprocessors
