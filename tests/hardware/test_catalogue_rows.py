"""Every row of the catalogue: plausible ranges, physical order, and figures derived by hand or measured by people."""

import re
from dataclasses import fields
from itertools import combinations

import pytest

from lightning_predict.hardware import Gpu, gpu
from lightning_predict.hardware.catalogue import CATALOGUE_FOLDER, load_catalogue
from lightning_predict.hardware.records import NVIDIA
from lightning_predict.kernels.operations import operation_shape
from lightning_predict.kernels.timing import predict_operation_times

CATALOGUE = load_catalogue()

every_gpu = pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.name)

NVIDIAS = [row for row in CATALOGUE if row.vendor == NVIDIA]

each_of_nvidias = pytest.mark.parametrize("row", NVIDIAS, ids=lambda row: row.name)

FULL_RATE = {(7, 0): 1024, (7, 5): 1024, (8, 0): 2048, (8, 6): 1024, (8, 7): 2048, (8, 9): 1024}
FULL_RATE |= {(9, 0): 4096, (10, 0): 8192, (10, 3): 8192, (12, 0): 1024, (12, 1): 1024}
"""Dense float16 FLOP per clock and SM with float32 accumulation, from NVIDIA's architecture whitepapers.

Volta, Turing: 8 tensor cores x 64 multiply-adds x 2. GA100, Orin: 4 x 256 x 2. GA10x, Ada, RTX Blackwell: 4 x 128 x 2.
Hopper: 4 x 512 x 2. B200: 4 x 1024 x 2.
"""

HALF_RATE_OTHERWISE = {"A10G", "L40", "L20", "GB10"}
"""Not GeForce, but half the rate with float32 accumulation: as data sheets state, or as was measured (GB10)."""

THROTTLED = {"H20-96GB"}  # Cut below what its SMs could do, for export: 148 TFLOP/s
WITHOUT_FLOAT64 = {*THROTTLED, "H800-SXM-80GB", "H800-PCIe-80GB"}  # float64 is cut to 1 TFLOP/s, for export


WITHOUT_TENSOR_CORES = {"GTX-1660-Ti"}
"""Turing without them: it runs their instructions elsewhere, in float16 at a ninth of float32's rate."""


def is_half_rate(row: Gpu) -> bool:
    return any("GeForce" in name for name in row.reported_names) or row.name in HALF_RATE_OTHERWISE


def test_catalogue_has_a_file_of_each_architecture_and_over_100_gpus() -> None:
    assert len(CATALOGUE) > 100
    architectures = list(dict.fromkeys(row.architecture for row in CATALOGUE))
    nvidias = "kepler maxwell pascal volta turing ampere ada hopper blackwell".split()  # oldest first
    assert architectures == [*nvidias, *"cdna2 cdna3 cdna4 rdna rdna2 rdna3".split()]  # other makers' after them
    assert {path.stem for path in CATALOGUE_FOLDER.iterdir()} == {*architectures, "sources", "machines", "mig"}


@every_gpu
def test_peaks_are_in_physical_order_below_lanes_times_clock_times_two(row: Gpu) -> None:
    lanes = row.cores_per_multiprocessor * row.streaming_multiprocessors
    assert row.peak_flops_per_second["float32"] == pytest.approx(2 * lanes * row.boost_clock_hz, rel=0.05)
    for dtype in row.emulated_dtypes:
        assert row.peak_flops_per_second[dtype] <= row.peak_flops_per_second["float32"]
    peak = row.peak_flops_per_second
    assert peak["float64"] <= peak["float32"]
    assert peak["float16"] >= 0.99 * peak["float32"] or row.name in WITHOUT_TENSOR_CORES
    if "tf32" in peak:
        assert 0.99 * peak["float32"] <= peak["tf32"] <= peak["float16"]
        assert peak["bfloat16"] == peak["float16"]
    if "float8" in peak:
        assert peak["float8"] >= 1.99 * peak["float16"]
    if "int8" in peak:
        assert peak["int8"] >= peak["float32"]


@each_of_nvidias
def test_float64_and_dtypes_follow_from_the_architecture(row: Gpu) -> None:
    stated, lanes = row.peak_flops_per_second["float64"], row.lanes_peak("float64")
    has_tensor_cores = row.compute_capability in {(8, 0), (9, 0)} and row.name not in WITHOUT_FLOAT64
    assert stated / lanes == pytest.approx(2 if has_tensor_cores else 1, rel=0.06)  # some sheets round to two digits
    assert row.lanes_peak("bfloat16") == row.lanes_peak("float32") == row.peak_flops_per_second["float32"]
    capability, dtypes = row.compute_capability, row.peak_flops_per_second.keys()
    assert ("tf32" in dtypes) == (capability >= (8, 0))
    assert ("float8" in dtypes) == (capability >= (8, 9))
    assert ("bfloat16" in dtypes) == (capability >= (5, 2))
    assert ("int8" in dtypes) == (capability >= (6, 1))
    expected = set()
    if (capability < (7, 0) and capability != (6, 0)) or row.name in WITHOUT_TENSOR_CORES:
        expected.add("float16")
    if (5, 2) <= capability < (8, 0):
        expected.add("bfloat16")
    assert row.emulated_dtypes == expected
    assert 2012 <= row.launch_year <= 2026
    assert 3 <= row.streaming_multiprocessors <= 192
    assert row.cores_per_multiprocessor in {64, 128, 192}
    assert 0.5e9 <= row.base_clock_hz <= row.boost_clock_hz <= 2.7e9
    assert 1e12 <= row.peak_flops_per_second["float32"] <= 150e12
    assert max(row.peak_flops_per_second.values()) <= 10e15
    assert 50e9 <= row.dram_bytes_per_second <= 8e12
    assert 2**20 <= row.l2_bytes <= 130 * 2**20
    assert 100e9 <= row.l2_bytes_per_second <= 20e12
    assert 2 * 2**30 <= row.memory_bytes <= 288 * 2**30
    assert row.max_threads_per_multiprocessor in {1024, 1536, 2048}
    assert row.max_blocks_per_multiprocessor in {16, 24, 32}
    assert row.registers_per_multiprocessor in {65536, 131072}
    assert 64 * 1024 <= row.shared_memory_bytes_per_multiprocessor <= 228 * 1024
    assert row.nvlink_bytes_per_second is None or 80e9 <= row.nvlink_bytes_per_second <= 900e9
    assert 16e9 <= row.pcie_bytes_per_second <= 450e9
    assert 25 <= row.power_watts <= 1400


@pytest.mark.parametrize(
    "row",
    [row for row in NVIDIAS if row.compute_capability >= (7, 0) and row.name not in THROTTLED | WITHOUT_TENSOR_CORES],
    ids=lambda row: row.name,
)
def test_tensor_peaks_are_dense_and_accumulate_in_float32(row: Gpu) -> None:
    rate = FULL_RATE[row.compute_capability] / (2 if is_half_rate(row) else 1)
    stated = row.peak_flops_per_second["float16"] / (row.streaming_multiprocessors * row.boost_clock_hz)
    # Some data sheets state tensor peaks at a clock up to 14 % below the boost clock; a sparse peak would be 2 x.
    assert 0.86 <= stated / rate <= 1.05


@pytest.mark.parametrize(
    ("name", "tflops"), [("P100-PCIe-16GB", 18.7), ("P100-PCIe-12GB", 18.7), ("P100-SXM2-16GB", 21.2)]
)
def test_the_p100_has_float16_at_twice_float32(name: str, tflops: float) -> None:
    (row,) = [row for row in CATALOGUE if row.name == name]
    assert row.peak("float16") == tflops * 1e12  # the maker's data sheets
    assert row.peak_flops_per_second["float16"] / row.peak_flops_per_second["float32"] == pytest.approx(2, rel=2e-3)


@every_gpu
def test_memory_slows_outwards_and_the_highest_clock_is_near_the_boost_clock(row: Gpu) -> None:
    assert row.l2_bytes_per_second > row.dram_bytes_per_second > row.pcie_bytes_per_second
    assert row.l2_bytes < row.memory_bytes
    # The port of an SM takes 64 bytes a clock, so no L2 feeds them faster.
    assert row.l2_bytes_per_second <= 64 * row.streaming_multiprocessors * row.boost_clock_hz
    assert row.ridge_flops_per_byte("float32") == row.peak_flops_per_second["float32"] / row.dram_bytes_per_second
    assert row.boost_clock_hz <= row.highest_clock_hz <= 3.2e9
    assert 1.0 <= row.overclock <= 1.8  # the RTX A2000's boost clock of 1200 MHz is the lowest, of 2100


@every_gpu
def test_sources_are_titled_dated_and_two_unless_marked_and_names_are_plain(row: Gpu) -> None:
    for sources in row.sources.values():
        assert sources
        for source in sources:
            assert source.title
            assert source.url.startswith("https://")
            assert re.match(r"20\d\d", source.date)
    assert len({source.url for source in row.sources["*"]}) >= (1 if row.single_source else 2)
    assert re.fullmatch(r"[A-Za-z0-9.-]+", row.name)


@pytest.mark.parametrize(
    ("name", "bus_bits", "gigabits_per_pin"),
    [
        ("T4", 256, 10.0),
        ("P4", 256, 6.0),
        ("V100-SXM2-16GB", 4096, 1.75),
        ("A100-SXM-40GB", 5120, 2.43),
        ("RTX-3090", 384, 19.5),
        ("L4", 192, 12.5),
        ("L40S", 384, 18.0),
        ("RTX-4090", 384, 21.0),
        ("RTX-5090", 512, 28.0),
        ("H100-SXM-80GB", 5120, 5.23),
    ],
)
def test_memory_bandwidth_is_bus_width_times_pin_rate(name: str, bus_bits: int, gigabits_per_pin: float) -> None:
    assert gpu(name).dram_bytes_per_second == pytest.approx(bus_bits * gigabits_per_pin * 1e9 / 8, rel=0.01)


@pytest.mark.parametrize(
    ("name", "multiprocessors"),
    # What torch.cuda.get_device_properties reports; several published tables have the full die's number instead.
    [
        ("P4", 20),
        ("T4", 40),
        ("L4", 58),
        ("A10", 72),
        ("A10G", 80),
        ("L40S", 142),
        ("A100-SXM-80GB", 108),
        ("A100-SXM-64GB", 124),  # TOP500 counts 1,824,768 cores in 3,456 nodes: (528 - 32 of the processor) / 4 GPUs
        ("A800-PCIe-80GB", 108),
        ("Quadro-GV100", 80),
        ("H100-PCIe-80GB", 114),
        ("H100-SXM-80GB", 132),
        ("H200-SXM-141GB", 132),
        ("H20-96GB", 78),
        ("B200-SXM-180GB", 148),
        ("B300-SXM-288GB", 148),
        ("GB200", 152),
        ("GB300", 152),
        ("RTX-PRO-6000-Server", 188),
    ],
)
def test_multiprocessors_are_those_enabled(name: str, multiprocessors: int) -> None:
    assert gpu(name).streaming_multiprocessors == multiprocessors


def test_a800_and_64_gb_a100_differ_from_the_a100_in_name_and_parts_only() -> None:
    row, sold = gpu("NVIDIA A100-SXM-64GB"), gpu("A100-SXM-80GB")  # five stacks of 16 GB
    for dtype, rate in sold.peak_flops_per_second.items():
        assert row.peak(dtype) == pytest.approx(rate * 124 / 108, rel=2e-3), dtype
    assert row.memory_bytes / sold.memory_bytes == row.l2_bytes / sold.l2_bytes == 4 / 5
    assert row.dram_bytes_per_second == pytest.approx(4 / 5 * sold.dram_bytes_per_second, rel=1e-3)
    row, sold = gpu("NVIDIA A800 80GB PCIe"), gpu("NVIDIA A100 80GB PCIe")
    own = {"name", "reported_names", "aliases", "launch_year", "single_source", "sources"}
    differing = {each.name for each in fields(row) if getattr(row, each.name) != getattr(sold, each.name)}
    assert differing == own - {"single_source"}


def test_quadro_gv100_turing_without_tensor_cores_and_cards_with_several_dies_by_hand() -> None:
    row = gpu("Quadro GV100")  # 1,024 FLOP per clock and SM in float16, 2 x 64 in float32
    assert row.peak("float16") == pytest.approx(1024 * 80 * row.boost_clock_hz, rel=1e-3)
    assert row.peak("float32") == pytest.approx(2 * 64 * 80 * row.boost_clock_hz, rel=2e-3)
    assert row.dram_bytes_per_second == pytest.approx(4096 * 1.7e9 / 8, rel=1e-3)
    row = gpu("NVIDIA GeForce GTX 1660 Ti")
    assert row.dram_bytes_per_second == pytest.approx(192 * 12e9 / 8)
    large = [operation_shape("linear", dtype, m=8192, n=8192, k=8192) for dtype in ("float32", "float16")]
    float32, float16 = predict_operation_times(large, [row], models=None).seconds[0]
    assert float16 == pytest.approx(2 * 8192**3 / 0.61e12)  # the measured rate; in float32 5.24e12
    assert float16 > 4 * float32
    # The K80's card has 24 GB and 4992 lanes, the M60's 16 GB and 4096, the A16's 64 GB and 5120.
    for name, gibibytes, lanes in [("K80", 24 / 2, 4992 / 2), ("M60", 16 / 2, 4096 / 2), ("A16", 64 / 4, 5120 / 4)]:
        row = gpu(name)
        assert row.memory_bytes == gibibytes * 2**30
        assert row.streaming_multiprocessors * row.cores_per_multiprocessor == lanes


@each_of_nvidias
def test_measured_products_lie_below_the_peak_and_l2_names_its_measurement(row: Gpu) -> None:
    for dtype, rate in row.measured_flops_per_second.items():
        assert 0.35 <= rate / (row.peak_flops_per_second[dtype] * row.overclock) <= 1.0, dtype
        assert dtype not in row.emulated_dtypes
    (source,) = row.sources["l2_bytes_per_second"]
    assert "measured" in source.title


def test_boards_that_people_own_were_measured() -> None:
    rates = {
        ("T4", "float16"): 41.93,
        ("RTX-3090", "bfloat16"): 76.58,
        ("RTX-A6000", "float32"): 23.92,
        ("RTX-4090", "float16"): 167.27,
        ("H100-PCIe-80GB", "tf32"): 240.43,
        ("RTX-5090", "bfloat16"): 240.05,
    }
    for (name, dtype), teraflops in rates.items():
        assert gpu(name).measured_flops_per_second[dtype] == pytest.approx(teraflops * 1e12)


def test_gddr_boards_for_data_centres_have_inline_ecc_with_its_own_source() -> None:
    rows = {row.name: row for row in CATALOGUE if row.has_inline_ecc}  # not what another test registered
    assert {"P4", "T4", "A10", "A40", "L4", "L40S"} <= set(rows)
    assert not {"RTX-4090", "RTX-A6000", "RTX-6000-Ada"} & set(rows)  # there, ECC is off or not there
    assert {row.memory_kind for row in rows.values()} == {"GDDR5", "GDDR6"}  # GDDR7 has room of its own for codes
    assert all(row.sources["has_inline_ecc"] != row.sources["*"] for row in rows.values())
    row = gpu("RTX-PRO-6000-Server")
    assert row.dram_bytes_per_second == 1597e9
    assert row.sources["dram_bytes_per_second"] != row.sources["*"]
    assert "bfloat16" in gpu("T4").sources


def test_boards_of_one_chip_keep_up_the_same_rates() -> None:
    def chip(row: Gpu) -> tuple[object, ...]:
        clocks = (row.base_clock_hz, row.boost_clock_hz)
        return row.vendor, row.architecture, row.streaming_multiprocessors, clocks, row.power_watts

    pairs = [(one, other) for one, other in combinations(CATALOGUE, 2) if chip(one) == chip(other)]
    assert len(pairs) >= 10
    for one, other in pairs:
        rates = (one.measured_flops_per_second, other.measured_flops_per_second)
        assert rates[0].keys() == rates[1].keys(), (one.name, other.name)
        # Some were measured twice, by different people.
        assert dict(rates[0]) == pytest.approx(dict(rates[1]), rel=0.06), (one.name, other.name)
