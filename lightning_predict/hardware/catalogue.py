"""Loads the GPU catalogue from TOML files. Rows in common units become `Gpu` values in SI units.

The folder `catalogue/` has one file per architecture, `<architecture>.toml`:

* `vendor`: omitted for NVIDIA.
* `[compute_capability.<version>]`: figures that all GPUs of a compute capability share (lanes, threads, registers,
  shared memory). For other vendors, the version is the version that torch reports.
* `[gpu.<name>]`: one table per GPU, with the unit in each key (`boost_clock_mhz`, `l2_mib`).
* `[sources.<id>]`: title, URL and date of a source that only this file cites. Rows cite the ids.

`sources.toml` in the same folder has sources that several files cite. To add a vendor, add a TOML file to `catalogue/`,
and add the vendor's GPU generations to `records.py`. A row cites at least two sources that agree (`single_source =
false`), or states `single_source = true`. `figure_sources` maps the key of a figure to the ids of the sources of only
that figure. Error messages name the row. Example::

    >>> [gpu.memory_bytes / 2**30 for gpu in load_catalogue() if gpu.name == "T4"]
    [16.0]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from lightning_predict.base.checked import Checked, read_toml
from lightning_predict.base.errors import CatalogueError
from lightning_predict.base.units import (
    gibibytes_to_bytes,
    gigabytes_to_bytes,
    kibibytes_to_bytes,
    mebibytes_to_bytes,
    megahertz_to_hertz,
    teraflops_to_flops,
)
from lightning_predict.hardware.records import NVIDIA, Gpu, Source

CATALOGUE_FOLDER: Final = Path(__file__).with_name("catalogue")
SOURCES_FILE: Final = "sources.toml"
OTHER_TABLES: Final = frozenset({"machines.toml", "mig.toml"})  # Files in the catalogue folder that other modules read

NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")

FIGURES: Final[dict[str, tuple[str, Callable[[float], float]]]] = {
    "boost_clock_mhz": ("boost_clock_hz", megahertz_to_hertz),
    "dram_gb_per_s": ("dram_bytes_per_second", gigabytes_to_bytes),
    "l2_mib": ("l2_bytes", mebibytes_to_bytes),
    "l2_gb_per_s": ("l2_bytes_per_second", gigabytes_to_bytes),
    "memory_gib": ("memory_bytes", gibibytes_to_bytes),
    "pcie_gb_per_s": ("pcie_bytes_per_second", gigabytes_to_bytes),
    "power_watts": ("power_watts", float),
}
"""Required figures by key of the row: field of `Gpu` and unit conversion."""

OPTIONAL_FIGURES: Final[dict[str, tuple[str, Callable[[float], float]]]] = {
    "base_clock_mhz": ("base_clock_hz", megahertz_to_hertz),
    "highest_clock_mhz": ("highest_clock_hz", megahertz_to_hertz),
    "nvlink_gb_per_s": ("nvlink_bytes_per_second", gigabytes_to_bytes),
    "sustained_attention_share": ("sustained_attention_share", float),
}
"""Optional figures. Some GPUs have no published base clock, most GPUs have no NVLink, and data-centre boards do not
exceed the boost clock."""

MEMORY_KINDS: Final = (  # Allowed kinds of device memory
    *("GDDR5", "GDDR5X", "GDDR6", "GDDR6X", "GDDR7", "DDR5", "LPDDR5", "LPDDR5X", "HBM2", "HBM2e", "HBM3", "HBM3e"),
)

PEER_ACCESS: Final = "peer_access"
"""Key whose value is false if the driver blocks peer access between two such cards in one machine; true by default."""

INLINE_ECC: Final = "inline_ecc"
"""Key for boards that ship with inline ECC enabled: data-centre boards with GDDR memory before GDDR7. Inline ECC
stores its codes in the GDDR memory, so less memory is left. GeForce boards have no ECC, and workstation boards ship
with ECC disabled. With GDDR7, ECC takes no memory: nvidia-smi shows 97,887 MiB on an RTX PRO 6000 Server Edition
(ECC on) and on a Workstation Edition (ECC off)."""

COUNTS: Final = {key: key for key in ("launch_year", "streaming_multiprocessors")}

PEAKS: Final[dict[str, str]] = {  # dtype of each peak, by key of the row. Only the float32 peak is required.
    "float64_tflops": "float64",
    "float32_tflops": "float32",
    "tf32_tflops": "tf32",
    "float16_tflops": "float16",
    "bfloat16_tflops": "bfloat16",
    "float8_tflops": "float8",
    "int8_tops": "int8",
}

MEASURED: Final = "measured_tflops"  # Key of the table of measured rates of large square matmuls, by dtype

SUSTAINED: Final = "sustained_tflops"
"""Key of the table of sustained rates by dtype: large matmuls that ran back to back for seconds."""

CITABLE: Final[Mapping[str, str]] = (
    {key: field for key, (field, _) in (FIGURES | OPTIONAL_FIGURES).items()}
    | COUNTS
    | PEAKS
    | {"memory_kind": "memory_kind", PEER_ACCESS: "has_peer_access", INLINE_ECC: "has_inline_ecc"}
    | {MEASURED: "measured_flops_per_second", SUSTAINED: "sustained_flops_per_second"}
)
"""TOML keys whose figure may have its own sources, mapped to the key of these sources in `Gpu.sources`."""

REQUIRED_KEYS: Final = frozenset(
    {*FIGURES, *COUNTS, "compute_capability", "float32_tflops", "memory_kind", "reported_names", "single_source"}
    | {"sources"}
)
OPTIONAL_KEYS: Final = frozenset(
    {
        *PEAKS,
        *OPTIONAL_FIGURES,
        PEER_ACCESS,
        INLINE_ECC,
        MEASURED,
        SUSTAINED,
        "aliases",
        "emulated_dtypes",
        "figure_sources",
    }
)

CAPABILITY_KEYS: Final[Mapping[str, str]] = {
    "cores_per_multiprocessor": "cores_per_multiprocessor",
    "float64_lanes_per_multiprocessor": "float64_lanes_per_multiprocessor",
    "max_threads_per_multiprocessor": "max_threads_per_multiprocessor",
    "max_blocks_per_multiprocessor": "max_blocks_per_multiprocessor",
    "registers_per_multiprocessor": "registers_per_multiprocessor",
    "shared_memory_kib_per_multiprocessor": "shared_memory_bytes_per_multiprocessor",
}


def load_catalogue(folder: Path = CATALOGUE_FOLDER) -> tuple[Gpu, ...]:
    """Load all GPUs of a catalogue folder, oldest architecture first, in file order within an architecture."""
    common = read_toml(folder / SOURCES_FILE, CatalogueError)
    common.check_keys({"sources"})
    shared = _load_sources(common)
    files = sorted(path for path in folder.glob("*.toml") if path.name not in {SOURCES_FILE, *OTHER_TABLES})
    found = [_load_architecture(path, shared) for path in files]
    homes: dict[str, str] = {}
    for gpu, row in (pair for pairs in found for pair in pairs):
        if gpu.name in homes:
            raise row.error(f"is also a row of {homes[gpu.name]}.toml; remove one of the two.")
        homes[gpu.name] = gpu.architecture
    if not homes:
        raise CatalogueError(f"{folder} holds no file of an architecture; give a catalogue's folder.")
    found.sort(key=lambda pairs: min((gpu.vendor != NVIDIA, gpu.vendor, gpu.compute_capability) for gpu, _ in pairs))
    return tuple(gpu for pairs in found for gpu, _ in pairs)


def _load_architecture(path: Path, shared: Mapping[str, Source]) -> list[tuple[Gpu, Checked]]:
    """Return the GPUs of one architecture file, each with its row."""
    document = read_toml(path, CatalogueError)
    document.check_keys({"compute_capability", "gpu"}, {"sources", "vendor"})
    sources = {**shared, **(_load_sources(document) if document.has("sources") else {})}
    capabilities = _load_capabilities(document, sources)
    vendor = document.optional("vendor", Checked.words, NVIDIA)
    rows = _rows(document, "gpu")
    return [(_parse_gpu(name, row, vendor, capabilities, sources), row) for name, row in rows.items()]


def _rows(document: Checked, heading: str) -> dict[str, Checked]:
    """Return the tables `[<heading>.<name>]` of a file, by name."""
    tables = document.member(heading).members()
    for row in tables.values():
        row.mapping()
    return tables


def _load_sources(document: Checked) -> dict[str, Source]:
    sources = {}
    for identifier, row in _rows(document, "sources").items():
        row.check_keys(frozenset({"title", "url", "date"}))
        title, url, date = (row.member(key) for key in ("title", "url", "date"))
        sources[identifier] = Source(title=title.words(), url=url.url(), date=date.date())
    return sources


def _load_capabilities(document: Checked, sources: Mapping[str, Source]) -> dict[str, Checked]:
    capabilities = _rows(document, "compute_capability")
    for version, row in capabilities.items():
        row.check_keys(frozenset({*CAPABILITY_KEYS, "sources"}))
        if not re.fullmatch(r"\d+\.\d", version):
            raise row.error(f"is named {version!r}; expected a compute capability like 8.6.")
        _cited(row, "sources", sources)
    return capabilities


def _cited(row: Checked, key: str, sources: Mapping[str, Source]) -> tuple[Source, ...]:
    """Return the sources whose ids are listed under a key."""
    cited = row.member(key)
    identifiers = cited.texts()
    if not identifiers:
        raise cited.unexpected(f"at least one id of {SOURCES_FILE}")
    for identifier in identifiers:
        if identifier not in sources:
            raise cited.error(f"cites {identifier!r}, which is not in {SOURCES_FILE}; add it there.")
    return tuple(sources[identifier] for identifier in identifiers)


def _parse_gpu(
    name: str, row: Checked, vendor: str, capabilities: Mapping[str, Checked], sources: Mapping[str, Source]
) -> Gpu:
    row.check_keys(REQUIRED_KEYS, OPTIONAL_KEYS)
    if not NAME_PATTERN.fullmatch(name):
        raise row.error(f"is named {name!r}; expected only letters, digits, dots and hyphens.")
    reported_names = row.member("reported_names")
    if not reported_names.texts():
        raise reported_names.unexpected("what torch.cuda.get_device_name reports")
    version = row.member("compute_capability").choice(tuple(capabilities))
    shared = capabilities[version]
    fields: dict[str, Any] = {field: convert(_figure(row, key)) for key, (field, convert) in FIGURES.items()}
    boost = fields["boost_clock_hz"]
    fields |= {"base_clock_hz": boost, "highest_clock_hz": boost, "nvlink_bytes_per_second": None}
    fields |= {field: convert(_figure(row, key)) for key, (field, convert) in OPTIONAL_FIGURES.items() if row.has(key)}
    if fields["highest_clock_hz"] < boost:
        raise row.member("highest_clock_mhz").error("is below the boost clock; leave it out where none is known above.")
    fields |= {key: row.member(key).integer(minimum=1) for key in COUNTS}
    for key, field in CAPABILITY_KEYS.items():
        number = shared.member(key).integer(minimum=1)
        fields[field] = int(kibibytes_to_bytes(number)) if "_kib_" in key else number
    major, minor = version.split(".")
    return Gpu(
        name=name,
        reported_names=reported_names.texts(),
        aliases=row.optional("aliases", Checked.texts, ()),
        architecture=row.file.name.removesuffix(".toml"),
        vendor=vendor,
        library_vendor=vendor,
        compute_capability=(int(major), int(minor)),
        peak_flops_per_second={d: teraflops_to_flops(_figure(row, key)) for key, d in PEAKS.items() if row.has(key)},
        emulated_dtypes=_parse_emulated(row),
        memory_kind=row.member("memory_kind").choice(MEMORY_KINDS),
        has_peer_access=row.optional(PEER_ACCESS, Checked.flag, default=True),
        has_inline_ecc=row.optional(INLINE_ECC, Checked.flag, default=False),
        measured_flops_per_second=_parse_measured(row, MEASURED),
        sustained_flops_per_second=_parse_measured(row, SUSTAINED),
        single_source=row.member("single_source").flag(),
        sources=_parse_sources(row, shared, sources),
        **fields,
    )


def _figure(row: Checked, key: str) -> float:
    return row.member(key).positive("in the unit that the key names")


def _parse_emulated(row: Checked) -> frozenset[str]:
    emulated = row.optional("emulated_dtypes", Checked.texts, ())
    stated = {dtype for key, dtype in PEAKS.items() if row.has(key)}
    for dtype in emulated:
        if dtype not in stated:
            raise row.member("emulated_dtypes").error(f"lists {dtype!r}, but the row states no rate for it.")
    return frozenset(emulated)


def _parse_measured(row: Checked, key: str) -> dict[str, float]:
    """Parse measured rates by dtype. The row must have a peak for each of these dtypes."""
    if not row.has(key):
        return {}
    table = row.member(key)
    stated = {dtype for key, dtype in PEAKS.items() if row.has(key)}
    measured = {}
    for dtype, value in table.members().items():
        if dtype not in stated:
            raise value.error("is a dtype that the row states no peak for; state one, or remove the rate.")
        measured[dtype] = teraflops_to_flops(value.positive("in TFLOP/s"))
    return measured


def _parse_sources(row: Checked, shared: Checked, sources: Mapping[str, Source]) -> dict[str, tuple[Source, ...]]:
    """Return sources by field of `Gpu` (by dtype for peaks). `"*"` applies to all figures without their own sources."""
    cited = {"*": _cited(row, "sources", sources)}
    if len(cited["*"]) < 2 and not row.member("single_source").flag():
        raise row.member("sources").error(
            "cites one source; cite a second one that agrees, or say single_source = true."
        )
    cited |= {field: _cited(shared, "sources", sources) for field in CAPABILITY_KEYS.values()}
    if not row.has("figure_sources"):
        return cited
    overrides = row.member("figure_sources")
    for key, override in overrides.members().items():
        if key not in CITABLE or not row.has(key):
            raise override.error("is not a figure of this row; cite sources only for figures that it states.")
        cited[CITABLE[key]] = _cited(overrides, key, sources)
    return cited
