"""Names lead to the GPU that bears them, and to no other."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import CatalogueError, InvalidArgumentError, UnknownGpuError
from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.hardware.catalogue import load_catalogue
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.hardware.lookup import index_by_name, normalise, other_forms, peak_flops
from tests.example_gpu import BIG, SMALL

WORDS = [(word, row) for row in load_catalogue() for word in (row.name, *row.aliases, *row.reported_names)]

NAMES_OF_THE_MEASUREMENTS = """
A100-PCIe-40GB A100-PCIe-80GB A100-SXM-40GB A100-SXM-80GB A40 B200-SXM-180GB B300-SXM-288GB GB200 GB300 GTX-1080-Ti
H100-SXM-80GB H200-SXM-141GB K80 L4 L40S M40 M60 P100-PCIe-16GB P4 RTX-PRO-6000-Server T4 TITAN-X-Maxwell
TITAN-X-Pascal TITAN-Xp V100-PCIe-32GB V100-SXM2-16GB
""".split()

OTHER_NAMES = """
P100-PCIe-12GB P100-SXM2-16GB V100-SXM2-32GB V100-PCIe-16GB V100S-PCIe-32GB RTX-2070 RTX-2080 RTX-2080-Ti
Quadro-RTX-4000 Quadro-RTX-5000 Quadro-RTX-6000 Quadro-RTX-8000 TITAN-RTX TITAN-V P40 Quadro-P600 Quadro-P4000 GTX-1080
A10 A10G A16 A30 RTX-A2000 RTX-A4000 RTX-A4500 RTX-A5000 RTX-A5500 RTX-A6000 L40 L20 H100-PCIe-80GB H100-NVL-94GB
H20-96GB H200-NVL-141GB GH200-96GB RTX-3060 RTX-3060-Ti RTX-3070 RTX-3070-Ti RTX-3080 RTX-3080-Ti RTX-3090 RTX-3090-Ti
RTX-4060 RTX-4060-Ti RTX-4070 RTX-4070-Super RTX-4070-Ti RTX-4070-Ti-Super RTX-4080 RTX-4080-Super RTX-4090 RTX-5060
RTX-5060-Ti RTX-5070 RTX-5070-Ti RTX-5080 RTX-5090 RTX-2000-Ada RTX-4000-Ada RTX-4500-Ada RTX-5000-Ada RTX-6000-Ada
RTX-PRO-6000-Workstation RTX-PRO-6000-Max-Q
""".split()


@pytest.mark.parametrize("name", NAMES_OF_THE_MEASUREMENTS + OTHER_NAMES)
def test_gpus_that_people_rent_own_or_measured_are_there(name: str) -> None:
    assert gpu(name).name == name


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA B200", "B200-SXM-180GB"),
        ("NVIDIA B300 SXM6 AC", "B300-SXM-288GB"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GB10", "GB10"),
        ("Tesla T4", "T4"),
        ("Tesla K80", "K80"),
        ("Tesla P4", "P4"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla V100-PCIE-32GB", "V100-PCIe-32GB"),
        ("Tesla P100-PCIE-16GB", "P100-PCIe-16GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("A100-SXM4-40GB", "A100-SXM-40GB"),
        # Boards that report the number of their printed circuit instead of a product.
        ("NVIDIA A100-PG509-200", "A100-SXM-40GB"),
        ("NVIDIA PG509-210", "A100-SXM-80GB"),
        ("Tesla V100-DGXS-32GB", "V100-SXM2-32GB"),
        ("Tesla V100-FHHL-16GB", "V100-FHHL-16GB"),
        ("Quadro GP100", "Quadro-GP100"),
        ("NVIDIA H800", "H800-SXM-80GB"),
        ("NVIDIA H800 PCIe", "H800-PCIe-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX-4090-Laptop"),
        ("NVIDIA GeForce RTX 5080 Laptop GPU", "RTX-5080-Laptop"),
        ("GeForce RTX 2080 Ti", "RTX-2080-Ti"),
        ("GeForce GTX TITAN X", "TITAN-X-Maxwell"),
        ("TITAN X (Pascal)", "TITAN-X-Pascal"),
        ("Quadro RTX 8000", "Quadro-RTX-8000"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-Server"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb", "RTX-PRO-6000-Server-MIG-1g.24gb"),
        ("NVIDIA GeForce RTX 5090 D", "RTX-5090"),
        ("Tesla V100-SXM3-32GB", "V100-SXM2-32GB"),
    ],
)
def test_what_torch_reports_leads_to_the_gpu(reported: str, name: str) -> None:
    assert gpu(reported).name == name


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        # SkyPilot's accelerators, each the form that its clouds rent out.
        ("V100", "V100-SXM2-16GB"),
        ("V100-32GB", "V100-SXM2-32GB"),
        ("P100", "P100-PCIe-16GB"),
        ("A100", "A100-SXM-40GB"),
        ("A100-80GB", "A100-SXM-80GB"),
        ("A100-80GB-SXM", "A100-SXM-80GB"),
        ("H100", "H100-SXM-80GB"),
        ("H100-SXM", "H100-SXM-80GB"),
        ("H100-NVL", "H100-NVL-94GB"),
        ("H100-MEGA", "H100-SXM-80GB"),
        ("H200", "H200-SXM-141GB"),
        ("B200", "B200-SXM-180GB"),
        ("GH200", "GH200-96GB"),
        ("RTX4090", "RTX-4090"),
        ("RTX6000", "Quadro-RTX-6000"),
        ("RTX6000-Ada", "RTX-6000-Ada"),
        ("RTXA6000", "RTX-A6000"),
        ("A6000", "RTX-A6000"),
        ("P4000", "Quadro-P4000"),
        # Google Cloud's.
        ("nvidia-tesla-t4", "T4"),
        ("nvidia-tesla-v100", "V100-SXM2-16GB"),
        ("nvidia-tesla-a100", "A100-SXM-40GB"),
        ("nvidia-a100-80gb", "A100-SXM-80GB"),
        ("nvidia-l4", "L4"),
        ("nvidia-h100-80gb", "H100-SXM-80GB"),
        ("nvidia-h100-mega-80gb", "H100-SXM-80GB"),
        ("nvidia-h200-141gb", "H200-SXM-141GB"),
        ("nvidia-b200", "B200-SXM-180GB"),
    ],
)
def test_what_clouds_say_leads_to_what_they_rent_out(alias: str, name: str) -> None:
    assert gpu(alias).name == name


def test_names_lead_back_to_their_rows_and_are_listed_oldest_first() -> None:
    assert len(WORDS) > 300
    for word, row in WORDS:
        assert gpu(word, memory_bytes=0.97 * row.memory_bytes) == row
    names = gpu_names()
    assert len(set(names)) == len(names)
    years = [gpu(name).launch_year for name in names]
    assert names[0] == "K80"
    assert years[0] < years[-1]
    with pytest.raises(UnknownGpuError, match=r"'' is not a GPU of the catalogue. No name is near it\."):
        gpu("")


@given(data=st.data())
def test_case_and_separators_do_not_count(data: st.DataObject) -> None:
    word, row = data.draw(st.sampled_from(WORDS))
    separators = st.text(alphabet=" -_", max_size=2)
    varied = "".join(
        data.draw(separators) + (letter.upper() if data.draw(st.booleans()) else letter.lower())
        for letter in normalise(word)
    )
    assert gpu(varied, memory_bytes=row.memory_bytes) == row


# No name ends so: an "x" alone would turn an RX 7900 XT into the XTX.
@given(st.sampled_from(WORDS), st.sampled_from(["q", "Engineering Sample", " 1g.10gb"]))
def test_nothing_is_guessed_from_a_part_of_a_name(word: tuple[str, object], more: str) -> None:
    with pytest.raises(UnknownGpuError):
        gpu(word[0] + more)


@pytest.mark.parametrize(
    ("reported", "gibibytes", "name"),
    [
        ("NVIDIA GeForce RTX 3060", 11.66, "RTX-3060"),
        ("NVIDIA GeForce RTX 3060", 8.0, "RTX-3060-8GB"),
        ("NVIDIA GeForce RTX 3080", 10.0, "RTX-3080"),
        ("NVIDIA GeForce RTX 3080", 11.76, "RTX-3080-12GB"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 8.0, "RTX-3080-Laptop-8GB"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 16.0, "RTX-3080-Laptop"),
        ("NVIDIA GeForce RTX 4060 Ti", 7.63, "RTX-4060-Ti"),
        ("NVIDIA GeForce RTX 4060 Ti", 15.6, "RTX-4060-Ti-16GB"),
        ("NVIDIA GeForce RTX 5060 Ti", 15.5, "RTX-5060-Ti-16GB"),
        ("Orin", 61.4, "Jetson-AGX-Orin-64GB"),  # 62,841 MB of a device query
        ("Orin", 15.0, "Jetson-Orin-NX-16GB"),  # 15,388 MB of another
    ],
)
def test_memory_tells_apart_cards_that_report_one_name(reported: str, gibibytes: float, name: str) -> None:
    assert gpu(reported, memory_bytes=gibibytes * 2**30).name == name


def test_memory_tells_cards_of_one_name_apart_or_is_asked_for() -> None:
    words = r"'GeForce RTX 3080' is what several cards report: RTX-3080 \(10 GiB\) or RTX-3080-12GB \(12 GiB\)"
    with pytest.raises(UnknownGpuError, match=words + r"\. Ask for one of these names, or give memory_bytes"):
        gpu("GeForce RTX 3080")
    words = r"'GeForce RTX 3080' with 20.0 GiB of memory matches no card with this name: RTX-3080 \(10"
    with pytest.raises(UnknownGpuError, match=words):
        gpu("GeForce RTX 3080", memory_bytes=20 * 2**30)
    assert gpu("RTX 4090", memory_bytes=48 * 2**30).name == "RTX-4090"  # rebuilt with twice the memory


@pytest.mark.parametrize("memory_bytes", [0, -1, float("nan"), float("inf")])
def test_memory_that_is_no_size_is_refused(memory_bytes: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"memory_bytes=.* is not a size; expected bytes above 0"):
        gpu("T4", memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("H1000", "H100-SXM-80GB"), ("A100-PCIe", "A100-PCIe-40GB"), ("RTX-4900", "RTX-4090"), ("H20-3e", "H20-96GB")],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        gpu(name)
    message = str(caught.value)
    assert message.startswith(f"{name!r} is not a GPU of the catalogue. The nearest names are ")
    assert nearest in re.split(r"[ ,.]+", message)
    assert "lightning_predict.gpu_names() lists all of them." in message
    assert "a TOML file given as gpus_file: [gpu.NAME], like = " in message


def test_two_cards_may_share_only_a_reported_name_and_only_with_different_memory() -> None:
    shared = replace(BIG, reported_names=SMALL.reported_names)
    index = index_by_name([SMALL, shared])
    assert [row.name for row in index[normalise("Test SMALL")]] == ["SMALL", "BIG"]  # 8 and 16 GB
    with pytest.raises(CatalogueError, match="SMALL and BIG share the name 'testsmall', which nothing tells apart"):
        index_by_name([SMALL, replace(shared, memory_bytes=1.1 * SMALL.memory_bytes)])
    with pytest.raises(CatalogueError, match="SMALL and BIG share the name 'small', which nothing tells apart"):
        index_by_name([SMALL, replace(BIG, aliases=("Small",))])


def test_importing_reads_no_row_and_loads_no_torch() -> None:
    code = (
        "import sys, lightning_predict.hardware as gpus; from lightning_predict.hardware import lookup;"
        "print('torch' in sys.modules, lookup._catalogue.cache_info().currsize);"
        "gpus.gpu('T4'); print(lookup._catalogue.cache_info().currsize)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "0", "1"]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("4090", "RTX-4090"),
        ("3090 ti", "RTX-3090-Ti"),
        ("1080Ti", "GTX-1080-Ti"),
        ("GeForce 4090", "RTX-4090"),
        ("a100", "A100-SXM-40GB"),
    ],
)
def test_a_geforce_card_needs_no_prefix(written: str, name: str) -> None:
    assert gpu(written).name == name


def test_cards_that_a_short_name_may_have_meant() -> None:
    assert other_forms("A100", gpu("A100")) == (
        *("A100-SXM-80GB", "A100-PCIe-40GB", "A100-PCIe-80GB", "A100-SXM-64GB"),
    )
    assert other_forms("A100-SXM-40GB", gpu("A100-SXM-40GB")) == ()
    assert other_forms("L4", gpu("L4")) == ()  # not the L40 and not the L40S
    assert layout_of("8x h100").requested_name == "h100"
    assert layout_of("T4").requested_name is None
    assert layout_of("8xH100") == layout_of("8xH100-SXM-80GB")  # the same GPUs, however they were asked for


@pytest.mark.parametrize(
    ("reported", "dtype", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),  # the data sheet's 1,979 with sparsity, halved
        ("NVIDIA A100-SXM4-40GB", "bf16", 312.0),
        ("NVIDIA A100-SXM4-40GB", "torch.float32", 19.5),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("NVIDIA L40S", "tf32", 183.0),  # 366 with sparsity
        ("NVIDIA B200", "bfloat16", 2250.0),  # HGX B200: 36 PFLOP/s of eight GPUs, with sparsity
        ("Tesla T4", "tf32", 8.1),  # no TF32 units: cuBLAS computes in float32
    ],
)
def test_peak_flops_are_dense_peaks_of_data_sheets(reported: str, dtype: str, teraflops: float) -> None:
    assert peak_flops(reported, dtype) == pytest.approx(teraflops * 1e12, rel=0.01)


def test_peak_flops_need_no_memory_size_and_name_the_dtypes_that_exist() -> None:
    shared = {word for word in {w for w, _ in WORDS} if len({row.name for w, row in WORDS if w == word}) > 1}
    equal = [w for w in shared if len({row.peak("float32") for word, row in WORDS if word == w}) == 1]
    for word in equal:
        assert peak_flops(word, "float32") > 0
    for word in shared.difference(equal):
        with pytest.raises(UnknownGpuError, match=r"is what several cards report: .* and .*\. Ask for one of these"):
            peak_flops(word, "float32")
    assert shared
    message = r"dtype='bfloat16' has no peak on the V100-SXM2-16GB; choose of float16, float32, float64"
    with pytest.raises(InvalidArgumentError, match=message):
        peak_flops("V100-SXM2-16GB", "bfloat16")
    with pytest.raises(UnknownGpuError):
        peak_flops("H100 of my dreams")
