"""GPUs of the user's own, from a file, and virtual ones."""

import re
from pathlib import Path

import pytest

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import layouts_of
from lightning_predict.hardware.own_rates import with_own_rates
from lightning_predict.hardware.user_gpus import add_gpus, read_gpus
from lightning_predict.testing import example_trace

FILE = """
[gpu.RTX-4090-48GB]
like = "RTX-4090"
reported_names = ["NVIDIA GeForce RTX 4090 48GB"]
memory_gib = 48
float16_tflops = 200.0
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "gpus.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_own_gpu_is_like_another_but_for_its_stated_or_derived_rates(tmp_path: Path) -> None:
    text = '[gpu.HALF]\nlike = "L4"\nstreaming_multiprocessors = 29\nboost_clock_mhz = 1020\nfloat32_tflops = 7.0\n'
    (half,) = read_gpus(written(tmp_path, text))
    whole = gpu("L4")  # 58 multiprocessors at 2040 MHz: a quarter of them and of their clock
    assert half.peak_flops_per_second["bfloat16"] == pytest.approx(whole.peak_flops_per_second["bfloat16"] / 4)
    assert half.peak_flops_per_second["float32"] == 7e12
    measured = whole.measured_flops_per_second
    assert half.measured_flops_per_second == pytest.approx({d: measured[d] / 4 for d in measured if d != "float32"})
    assert half.l2_bytes_per_second == pytest.approx(whole.l2_bytes_per_second / 4)
    assert half.dram_bytes_per_second == whole.dram_bytes_per_second
    (own,) = read_gpus(written(tmp_path, FILE))
    like = gpu("RTX-4090")
    assert own.memory_bytes == 48 * 2**30
    assert own.peak("float16") == 200e12
    assert own.peak("float32") == like.peak("float32")
    # A rate that the other card was measured to reach says nothing of another peak.
    assert "float16" not in own.measured_flops_per_second
    assert own.measured_flops_per_second["float32"] == like.measured_flops_per_second["float32"]
    assert own.dram_bytes_per_second == like.dram_bytes_per_second


def test_gpu_of_a_file_is_known_by_its_names_and_predicted(tmp_path: Path) -> None:
    with pytest.raises(UnknownGpuError):
        gpu("RTX-4090-48GB")
    assert add_gpus(written(tmp_path, FILE)) == ("RTX-4090-48GB",)
    assert gpu("nvidia geforce rtx 4090 48gb").name == "RTX-4090-48GB"
    assert "RTX-4090-48GB" in lp.gpu_names()
    add_gpus(written(tmp_path, FILE.replace("48\n", "44\n")))  # a changed file
    assert gpu("RTX-4090-48GB").memory_bytes == 44 * 2**30
    path = written(tmp_path, FILE)
    predictions = lp.predict(example_trace(), ["RTX-4090", "2xRTX-4090-48GB"], gpus_file=path, history=False)
    assert list(predictions) == ["RTX-4090", "2xRTX-4090-48GB"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[gpu.L4]\nlike = "T4"\n', "L4 is a GPU of the catalogue already|share the name"),
        ('[gpu.X]\nlike = "T4"\nmemory_gib = -1\n', "memory_gib"),
        ('[gpu.X]\nlike = "T4"\nmemory = 3\n', "memory"),
        ("[gpu.X]\nmemory_gib = 3\n", "like is missing"),
        ('[gpu."a b"]\nlike = "T4"\n', "expected only letters, digits, dots and hyphens"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        add_gpus(written(tmp_path, text))


def test_unknown_model_and_impossible_memory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownGpuError, match="'T5' is not a GPU of the catalogue"):
        add_gpus(written(tmp_path, '[gpu.X]\nlike = "T5"\n'))
    with pytest.raises(UnknownGpuError, match="T4 has 16 GiB, less than 32 GB"):
        gpu("GRID T4-32Q")
    with pytest.raises(UnknownGpuError, match="Thor shares its memory with its processor, which nothing here models"):
        gpu("NVIDIA Thor")


@pytest.mark.parametrize(
    ("reported", "name", "gib"),
    [("NVIDIA A40-48Q", "A40-48Q", 48), ("GRID T4-8C", "T4-8C", 8), ("L40S-24q", "L40S-24Q", 24)],
)
def test_a_virtual_gpu_is_the_card_with_its_part_of_the_memory(reported: str, name: str, gib: int) -> None:
    virtual, whole = gpu(reported), gpu(name.rpartition("-")[0])
    assert (virtual.name, virtual.memory_bytes) == (name, gib * 2**30)
    assert virtual.streaming_multiprocessors == whole.streaming_multiprocessors
    assert virtual.nvlink_bytes_per_second is None


PAGES = Path(__file__).parents[2] / "docs" / "howto"


@pytest.mark.parametrize("page", ["own-gpu.md", "other-makers.md"])
def test_the_files_on_the_pages_are_read(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        (own,) = read_gpus(written(tmp_path, block))
        assert own.is_described_by_user
        assert own.vendor == ("AMD" if own.name.startswith("MI") else "NVIDIA")


def test_all_layouts_of_the_gpu_get_its_rates() -> None:
    one, eight, other = with_own_rates(layouts_of(["B200", "8xB200", "L4"]), {"B200": {"bf16": 1103e12}})
    assert one.gpu == eight.gpu
    assert one.gpu.sustained_flops_per_second["bfloat16"] == one.gpu.measured_flops_per_second["bfloat16"] == 1103e12
    assert other == layouts_of(["L4"])[0]


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({"bf16": 1103e12}, r"does not name its GPU, and there are 2: B200-SXM-180GB, L4"),
        ({"bf": 1103e12}, r"measured has 'bf', which is not a dtype of these GPUs; choose of bfloat16, float16"),
        ({"B200": {"bf16": 1103.0}}, r"1103\.0 is not a rate of the B200-SXM-180GB, whose peak is 2250 TFLOP/s"),
        ({"L4": {"int4": 1e12}}, r"'int4', which L4 does not compute"),
        ({"B200": {"bf16": 3e15}}, r"is not a rate"),
    ],
)
def test_impossible_rates_are_rejected(measured: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        with_own_rates(layouts_of(["B200", "L4"]), measured)  # type: ignore[arg-type]
