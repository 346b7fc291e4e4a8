"""The loader: rows become SI units, and what breaks a rule is refused with file, row and key."""

import pickle
import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from lightning_predict.base.errors import CatalogueError
from lightning_predict.hardware import gpu
from lightning_predict.hardware.catalogue import load_catalogue
from tests.example_gpu import BIG, OLD, SMALL

GOOD_ROW = """
[gpu.X]
reported_names = ["NVIDIA X"]
compute_capability = "8.6"
launch_year = 2021
streaming_multiprocessors = 10
boost_clock_mhz = 1000
float32_tflops = 2.56
dram_gb_per_s = 100
l2_mib = 2
l2_gb_per_s = 200
memory_gib = 8
memory_kind = "GDDR6"
pcie_gb_per_s = 16
power_watts = 75
single_source = true
sources = ["sheet"]
"""
SOURCES = '[sources.sheet]\ntitle = "A data sheet"\nurl = "https://example.com/x.pdf"\ndate = "2021-05"\n'
CAPABILITIES = """
[compute_capability."8.6"]
cores_per_multiprocessor = 128
float64_lanes_per_multiprocessor = 2
max_threads_per_multiprocessor = 1536
max_blocks_per_multiprocessor = 16
registers_per_multiprocessor = 65536
shared_memory_kib_per_multiprocessor = 100
sources = ["sheet"]
"""


def write_catalogue(folder: Path, **files: str) -> Path:
    texts = {"ampere": GOOD_ROW + CAPABILITIES, "sources": SOURCES} | files
    for stem, text in texts.items():
        (folder / f"{stem}.toml").write_text(text, encoding="utf-8")
    return folder


def test_row_is_converted_to_si_units_with_its_stated_rates(tmp_path: Path) -> None:
    (row,) = load_catalogue(write_catalogue(tmp_path))
    assert row.name == "X"
    assert row.compute_capability == (8, 6)
    assert row.boost_clock_hz == 1e9
    assert row.peak_flops_per_second == {"float32": 2.56e12}  # 128 lanes x 10 x 1 GHz x 2
    assert (row.dram_bytes_per_second, row.l2_bytes) == (100e9, 2 * 1024 * 1024)
    assert row.memory_bytes == 8 * 1024**3
    assert not row.has_stacked_memory
    assert row.has_peer_access  # unless the row says otherwise
    assert row.shared_memory_bytes_per_multiprocessor == 102_400
    assert row.aliases == ()
    assert row.nvlink_bytes_per_second is None
    assert row.base_clock_hz == row.highest_clock_hz == row.boost_clock_hz
    assert row.measured_flops_per_second == {}
    assert [source.title for source in row.sources["*"]] == ["A data sheet"]
    assert row.sources["registers_per_multiprocessor"] == row.sources["*"]
    more = "highest_clock_mhz = 1250\nmeasured_tflops = { float32 = 1.5 }\npower_watts = 75"
    (row,) = load_catalogue(write_catalogue(tmp_path, ampere=GOOD_ROW.replace("power_watts = 75", more) + CAPABILITIES))
    assert (row.highest_clock_hz, row.overclock) == (1.25e9, 1.25)
    assert row.measured_flops_per_second == {"float32": 1.5e12}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "power_watts = 75",
            "power_watts = 75\nmeasured_tflops = { float16 = 3 }",
            "ampere.toml: gpu.X.measured_tflops.float16 is a dtype that the row states no peak for; state one, or",
        ),
        (
            "power_watts = 75",
            "power_watts = 75\nmeasured_tflops = { float32 = 0 }",
            "ampere.toml: gpu.X.measured_tflops.float32 is 0; expected a finite number above 0, in TFLOP/s.",
        ),
        (
            "power_watts = 75",
            "power_watts = 75\nhighest_clock_mhz = 900",
            "ampere.toml: gpu.X.highest_clock_mhz is below the boost clock; leave it out where none is known above.",
        ),
        ("power_watts = 75", "", "ampere.toml: gpu.X.power_watts is missing; expected it in every such file."),
        ("power_watts = 75", "power_watt = 75", "gpu.X has the field 'power_watt'; expected only"),
        (
            "power_watts = 75",
            "power_watts = 75\npower_kw = 1",
            "ampere.toml: gpu.X has the field 'power_kw'; expected only",
        ),
        (
            "power_watts = 75",
            "power_watts = -75",
            "ampere.toml: gpu.X.power_watts is -75; expected a finite number above 0, in the unit that the",
        ),
        (
            "power_watts = 75",
            "power_watts = inf",
            "ampere.toml: gpu.X.power_watts is inf; expected a finite number above 0, in the unit that the",
        ),
        (
            "power_watts = 75",
            "power_watts = true",
            "ampere.toml: gpu.X.power_watts is True; expected a finite number above 0, in the unit that the",
        ),
        (
            "launch_year = 2021",
            'launch_year = "2021"',
            "ampere.toml: gpu.X.launch_year is '2021'; expected an integer of at least 1.",
        ),
        (
            "multiprocessors = 10",
            "multiprocessors = 9.5",
            "ampere.toml: gpu.X.streaming_multiprocessors is 9.5; expected an integer of at least 1.",
        ),
        ('"8.6"', '"8.7"', "ampere.toml: gpu.X.compute_capability is '8.7'; expected one of 8.6. Did you mean '8.6'?"),
        (
            '["sheet"]',
            '["shet"]',
            "ampere.toml: gpu.X.sources cites 'shet', which is not in sources.toml; add it there.",
        ),
        ('["sheet"]', "[]", "ampere.toml: gpu.X.sources is []; expected at least one id of sources.toml."),
        (
            '["sheet"]',
            '["sheet", "sheet"]',
            "ampere.toml: gpu.X.sources is ['sheet', 'sheet']; expected each text once; remove the",
        ),
        (
            "single_source = true",
            "single_source = false",
            "ampere.toml: gpu.X.sources cites one source; cite a second one that agrees, or say",
        ),
        ("single_source = true", "single_source = 1", "ampere.toml: gpu.X.single_source is 1; expected true or false."),
        (
            '["NVIDIA X"]',
            "[]",
            "ampere.toml: gpu.X.reported_names is []; expected what torch.cuda.get_device_name reports.",
        ),
        (
            '["NVIDIA X"]',
            '"NVIDIA X"',
            "ampere.toml: gpu.X.reported_names is 'NVIDIA X'; expected a list of texts that are not blank.",
        ),
        (
            "[gpu.X]",
            '[gpu."X Y"]',
            "ampere.toml: gpu.X Y is named 'X Y'; expected only letters, digits, dots and hyphens.",
        ),
        ("l2_mib = 2", 'l2_mib = 2\nemulated_dtypes = ["bfloat16"]', "lists 'bfloat16', but the row states no rate"),
        (
            '"GDDR6"',
            '"GDDR"',
            "ampere.toml: gpu.X.memory_kind is 'GDDR'; expected one of GDDR5, GDDR5X, GDDR6, GDDR6X, GDDR7, DDR5,",
        ),
        (
            "power_watts = 75",
            "power_watts = 75\npeer_access = 0",
            "ampere.toml: gpu.X.peer_access is 0; expected true or false.",
        ),
        ("[gpu.X]", "[gpus.X]", "ampere.toml: the whole file has the field 'gpus'; expected only"),
        ("[gpu.X]", "gpu.Y = 3\n[gpu.X]", "ampere.toml: gpu.Y is 3; expected an object of keys and values."),
        ("[gpu.X]", "[gpu.X", "ampere.toml is not valid TOML"),
    ],
)
def test_a_bad_row_is_refused_with_file_row_and_key(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert GOOD_ROW.count(old) == 1
    folder = write_catalogue(tmp_path, ampere=GOOD_ROW.replace(old, new) + CAPABILITIES)
    with pytest.raises(CatalogueError, match=re.escape(words)):
        load_catalogue(folder)


@pytest.mark.parametrize(
    ("stem", "old", "new", "words"),
    [
        (
            "sources",
            "2021-05",
            "May 2021",
            "sources.toml: sources.sheet.date is 'May 2021'; expected a date like 2025, 2025-03 or",
        ),
        (
            "sources",
            "2021-05",
            "2021-13",
            "sources.toml: sources.sheet.date is '2021-13'; expected a date like 2025, 2025-03 or",
        ),
        (
            "sources",
            "https://",
            "ftp://",
            "sources.toml: sources.sheet.url is 'ftp://example.com/x.pdf'; expected an address that starts",
        ),
        (
            "sources",
            '"A data sheet"',
            '" "',
            "sources.toml: sources.sheet.title is ' '; expected a text that is not blank.",
        ),
        (
            "sources",
            'date = "2021-05"',
            "",
            "sources.toml: sources.sheet.date is missing; expected it in every such file.",
        ),
        (
            "ampere",
            '"8.6"',
            '"8"',
            "ampere.toml: compute_capability.8 is named '8'; expected a compute capability like 8.6.",
        ),
        (
            "ampere",
            '["sheet"]',
            '["guide"]',
            "ampere.toml: compute_capability.8.6.sources cites 'guide', which is not in sources.toml; add it there.",
        ),
        ("ampere", "sources =", "source =", "ampere.toml: compute_capability.8.6 has the field 'source'; expected"),
    ],
)
def test_bad_shared_tables_are_refused(tmp_path: Path, stem: str, old: str, new: str, words: str) -> None:
    before, text = {"sources": ("", SOURCES), "ampere": (GOOD_ROW, CAPABILITIES)}[stem]
    assert text.count(old) == 1
    with pytest.raises(CatalogueError, match=re.escape(words)):
        load_catalogue(write_catalogue(tmp_path, **{stem: before + text.replace(old, new)}))


def test_a_source_for_a_figure_that_the_row_does_not_state_is_refused(tmp_path: Path) -> None:
    folder = write_catalogue(
        tmp_path, ampere=f'{GOOD_ROW}[gpu.X.figure_sources]\nint8_tops = ["sheet"]\n{CAPABILITIES}'
    )
    with pytest.raises(
        CatalogueError,
        match=r"ampere\.toml: gpu\.X\.figure_sources\.int8_tops is not a figure of this row; cite sources only for",
    ):
        load_catalogue(folder)


def test_name_in_two_files_and_folder_without_files_are_refused(tmp_path: Path) -> None:
    folder = write_catalogue(tmp_path, turing=GOOD_ROW + CAPABILITIES)
    with pytest.raises(
        CatalogueError, match=r"turing\.toml: gpu\.X is also a row of ampere\.toml; remove one of the two\."
    ):
        load_catalogue(folder)
    with pytest.raises(CatalogueError, match=r"sources\.toml does not exist; give the path of a TOML file\."):
        load_catalogue(tmp_path / "nowhere")
    write_catalogue(tmp_path)
    (tmp_path / "ampere.toml").unlink()
    (tmp_path / "turing.toml").unlink()
    with pytest.raises(CatalogueError, match="holds no file of an architecture; give a catalogue's folder"):
        load_catalogue(tmp_path)


def test_a_vendor_is_a_file_with_sources_of_its_own_and_comes_after_nvidias_by_generation(tmp_path: Path) -> None:
    def rows(name: str, version: str) -> str:
        return (GOOD_ROW.replace("gpu.X", f"gpu.{name}") + CAPABILITIES).replace("8.6", version)

    cdna = 'vendor = "AMD"\n' + rows("C", "9.4").replace('"sheet"', '"white_paper"')
    own = SOURCES.replace("sheet]", "white_paper]").replace("A data sheet", "A white paper")
    folder = write_catalogue(tmp_path, hopper=rows("H", "9.0"), cdna3=cdna + own, volta=rows("V", "7.0"))
    loaded = load_catalogue(folder)
    assert [(row.name, row.architecture, row.vendor) for row in loaded] == [
        ("V", "volta", "NVIDIA"),
        ("X", "ampere", "NVIDIA"),
        ("H", "hopper", "NVIDIA"),
        ("C", "cdna3", "AMD"),
    ]
    assert [source.title for source in loaded[-1].sources["*"]] == ["A white paper"]


def test_peak_and_ridge_fall_back_to_float32_or_are_unknown() -> None:
    assert SMALL.peak("tf32") == 4e12
    assert OLD.peak("tf32") == OLD.peak("float32") == 1e12
    assert SMALL.peak("float8") is None
    assert SMALL.ridge_flops_per_byte("float8") is None
    assert SMALL.ridge_flops_per_byte("float32") == 1e12 / 100e9
    assert BIG.ridge_flops_per_byte("float16") == 16e12 / 300e9


def test_a_gpu_is_a_key_a_value_and_cannot_change() -> None:
    row = gpu("T4")
    assert {row: 1}[gpu("tesla t4")] == 1
    assert pickle.loads(pickle.dumps(row)) == row
    with pytest.raises(FrozenInstanceError):
        row.power_watts = 1.0  # type: ignore[misc]
