"""GPUs that the user describes in a TOML file, each by its differences from a GPU in the catalogue.

Keys are named as in the catalogue (`memory_gib`, `dram_gb_per_s`, `power_watts`, `bfloat16_tflops`, ...; see
`catalogue.py`). `measured_tflops` has measured rates of large matmuls, by dtype. `reported_names` has the name that
`torch.cuda.get_device_name` reports, so that the GPU is recognised at run time. A table `[measured.<name>]` has rates
that `lightning-predict measure --quick` measured, and corrects this GPU. Examples are in `docs/howto/own-gpu.md`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

from lightning_predict.base.checked import Checked, read_toml
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.units import bytes_to_gigabytes, gigabytes_to_bytes, teraflops_to_flops
from lightning_predict.hardware.catalogue import COUNTS, FIGURES, MEASURED, NAME_PATTERN, OPTIONAL_FIGURES, PEAKS
from lightning_predict.hardware.lookup import add_to_catalogue, gpu, other_vendor, set_measured
from lightning_predict.hardware.records import Gpu, Source

LIKE: Final = "like"
RATES: Final = "measured"  # Key of the tables of measured rates
ATTENTION_SHARE: Final = "attention_share"  # Key of a table of measured rates: of fused attention, over a burst's

VENDOR: Final = "vendor"
TABLES: Final = ("gpu", RATES)  # Tables of the file

_NAMES: Final = frozenset({"aliases", "reported_names"})


def add_gpus(path: str | PathLike[str]) -> tuple[str, ...]:
    """Add the GPUs of a file to the catalogue, for this process.

    Returns:
        Names of the added GPUs, and of GPUs with measured rates.
    """
    return add_described_gpus(_read(path), path)


def add_described_gpus(document: Checked, path: str | PathLike[str]) -> tuple[str, ...]:
    """Add the GPUs of a document that has such tables, perhaps among others; see `add_gpus`."""
    rows = _gpus(document, Path(path))
    add_to_catalogue(rows)
    measured = _rates(document)
    set_measured(measured)
    return tuple(row.name for row in (*rows, *measured))


def read_gpus(path: str | PathLike[str]) -> tuple[Gpu, ...]:
    """Read the GPUs of a file."""
    return _gpus(_read(path), Path(path))


def _gpus(document: Checked, path: Path) -> tuple[Gpu, ...]:
    rows = document.member("gpu").members() if document.has("gpu") else {}
    return tuple(_own(name, row, path) for name, row in rows.items())


def read_measured(path: str | PathLike[str]) -> tuple[Gpu, ...]:
    """Return the GPUs with measured rates in a file."""
    return _rates(_read(path))


def _rates(document: Checked) -> tuple[Gpu, ...]:
    if not document.has(RATES):
        return ()
    from lightning_predict.hardware.own_rates import gpu_with_attention, gpu_with_rates

    gpus = []
    for name, row in document.member(RATES).members().items():
        row.check_keys({"tflops"}, {"dram_gb_per_s", ATTENTION_SHARE})
        whole = gpu(name)
        rates = {dtype: teraflops_to_flops(value.positive()) for dtype, value in row.member("tflops").members().items()}
        memory = row.optional("dram_gb_per_s", Checked.positive, bytes_to_gigabytes(whole.dram_bytes_per_second))
        own = gpu_with_rates(whole, rates)
        if row.has(ATTENTION_SHARE):
            own = gpu_with_attention(own, row.member(ATTENTION_SHARE).positive())
        gpus.append(replace(own, dram_bytes_per_second=gigabytes_to_bytes(memory)))
    return tuple(gpus)


def _read(path: str | PathLike[str]) -> Checked:
    document = read_toml(Path(path), InvalidArgumentError)
    document.check_keys((), TABLES)
    if not document.has("gpu") and not document.has(RATES):
        document.member("gpu")  # raises
    return document


def _own(name: str, row: Checked, path: Path) -> Gpu:
    row.check_keys({LIKE}, {*_NAMES, VENDOR, MEASURED, *FIGURES, *OPTIONAL_FIGURES, *PEAKS, *COUNTS})
    if not NAME_PATTERN.fullmatch(name):
        raise row.error(f"is named {name!r}; expected only letters, digits, dots and hyphens.")
    whole = gpu(row.member(LIKE).words())
    figures: dict[str, Any] = {
        field: convert(row.member(key).positive("in the unit that the key names"))
        for key, (field, convert) in (FIGURES | OPTIONAL_FIGURES).items()
        if row.has(key)
    }
    figures |= {key: row.member(key).integer(minimum=1) for key in COUNTS if row.has(key)}
    peaks = {
        dtype: teraflops_to_flops(row.member(key).positive("in TFLOP/s"))
        for key, dtype in PEAKS.items()
        if row.has(key)
    }
    measured = _measured(row, {*whole.peak_flops_per_second, *peaks})
    boost = figures.get("boost_clock_hz", whole.boost_clock_hz)
    multiprocessors = figures.get("streaming_multiprocessors", whole.streaming_multiprocessors)
    # Figures that the file omits scale with SMs x clock, because lanes, tensor cores and L2 ports belong to the SMs.
    share = multiprocessors * boost / (whole.streaming_multiprocessors * whole.boost_clock_hz)
    figures.setdefault("l2_bytes_per_second", share * whole.l2_bytes_per_second)
    figures["highest_clock_hz"] = max(boost, figures.get("highest_clock_hz", whole.highest_clock_hz))
    return replace(
        whole,
        name=name,
        vendor=row.optional(VENDOR, Checked.words, other_vendor(name) or whole.vendor),
        aliases=row.optional("aliases", Checked.texts, ()),
        reported_names=row.optional("reported_names", Checked.texts, ()),
        peak_flops_per_second={d: share * peak for d, peak in whole.peak_flops_per_second.items()} | peaks,
        # The measured rate of the similar card does not apply to a dtype for which the file states a new peak.
        measured_flops_per_second={
            dtype: share * rate for dtype, rate in whole.measured_flops_per_second.items() if dtype not in peaks
        }
        | measured,
        sustained_flops_per_second={
            dtype: share * rate
            for dtype, rate in whole.sustained_flops_per_second.items()
            if dtype not in {*peaks, *measured}
        },
        single_source=True,
        sources={"*": (Source(title=f"{path.name}, like {whole.name}", url="", date=""),)},
        **figures,
    )


def _measured(row: Checked, peaks: Collection[str]) -> dict[str, float]:
    """Parse measured matmul rates by dtype. The GPU must have a peak for each of these dtypes."""
    measured = row.member(MEASURED).members() if row.has(MEASURED) else {}
    for dtype, value in measured.items():
        if dtype not in peaks:
            raise value.error(f"is a dtype that there is no peak of; expected one of {', '.join(sorted(peaks))}.")
    return {dtype: teraflops_to_flops(value.positive("in TFLOP/s")) for dtype, value in measured.items()}
