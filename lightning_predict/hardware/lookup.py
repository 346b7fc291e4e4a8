"""Finds a GPU by its catalogue name, an alias, or the name that `torch.cuda.get_device_name` reports.

Matching ignores case, spaces, hyphens and underscores. Substrings never match, so `L40S` does not match `L4`. Example::

    >>> gpu("NVIDIA H100 80GB HBM3").name
    'H100-SXM-80GB'
    >>> gpu("nvidia geforce rtx 3080", memory_bytes=12.6e9).name  # two cards report this name
    'RTX-3080-12GB'
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Final

from lightning_predict.base.answers import NAMES_SHOWN
from lightning_predict.base.checked import shown
from lightning_predict.base.errors import CatalogueError, InvalidArgumentError, UnknownGpuError
from lightning_predict.base.ties import NOTICEABLE
from lightning_predict.base.units import bytes_to_gibibytes, gibibytes_to_bytes
from lightning_predict.hardware.catalogue import load_catalogue
from lightning_predict.hardware.records import DTYPE_WORDS, Gpu

SEPARATORS: Final = re.compile(r"[\s_-]+")

_SERIES: Final = re.compile(r"(?:[RG]TX|RX)[\s_-]+(?=\d)", re.IGNORECASE)
"""Series prefix that users may omit: `4090` means RTX-4090, `7900 XTX` means RX-7900-XTX."""

_SLICE: Final = re.compile(
    r"\s*(?P<gpu>.*?\S)[\s_-]+MIG[\s_-]+(?P<profile>(?:\d+c\.)?\d+g\.\d+gb)(?:\+\S+)?\s*", re.IGNORECASE
)
"""Pattern of the names that CUDA reports for MIG slices. A suffix such as `+me` only adds media engines."""

_VIRTUAL: Final = re.compile(
    r"(?i)((NVIDIA|GRID)\s+)*(?P<gpu>[A-Z]\S*?)(-(?P<slices>\d))?-(?P<gib>\d+)(?P<kind>[QCAB])"
)
"""Pattern of the names that CUDA reports for virtual GPUs, such as `NVIDIA A40-48Q` or, on a MIG slice, `H100XM-3-40C`:
board, slices, memory in GB and licence series (NVIDIA, Virtual GPU Software User Guide)."""

_VIRTUAL_BOARDS: Final = {
    "A100X": "A100-SXM-40GB",
    "A100D": "A100-PCIe-80GB",
    "A100DX": "A100-SXM-80GB",
    "H100L": "H100-NVL-94GB",
    "H100XM": "H100-SXM-80GB",
    "H800XM": "H800-SXM-80GB",
    "H200X": "H200-SXM-141GB",
}
"""Catalogue names of boards by their name in virtual GPUs (NVIDIA, Virtual GPU Software User Guide)."""

_OTHER_MAKERS: Final = {  # Patterns of words in the names of accelerators of vendors other than NVIDIA
    "AMD": re.compile(r"amd|instinct|radeon|rx|mi\d{2,3}[axp]?", re.IGNORECASE),
    "Intel": re.compile(r"intel(?:\(r\))?|gaudi\w*|hpu|arc", re.IGNORECASE),
    "Google": re.compile(r"tpu\w*", re.IGNORECASE),
    "AWS": re.compile(r"trainium\d?|trn\d|inferentia\d?|inf\d", re.IGNORECASE),
    "Apple": re.compile(r"apple", re.IGNORECASE),
    "Huawei": re.compile(r"ascend", re.IGNORECASE),
}


def other_vendor(name: str) -> str | None:
    """Return the vendor of an accelerator from its name; None for NVIDIA.

    >>> other_vendor("AMD Instinct MI300X"), other_vendor("NVIDIA L4")
    ('AMD', None)
    """
    words = re.split(r"[\s_-]+", name)
    return next((maker for maker, known in _OTHER_MAKERS.items() if any(map(known.fullmatch, words))), None)


_WITHOUT_ROW: Final = {"thor": "Thor shares its memory with its processor, which nothing here models yet."}
"""Explanations for known GPUs that are not supported, by the end of the normalised name."""

SMALLEST_REPORTED_SHARE: Final = 0.85
"""Minimum ratio of reported to nominal memory. ECC takes 6 %, and the driver takes up to 0.6 GiB on small cards."""

LISTING: Final = "lightning_predict.gpu_names()"
"""Python code that lists all names, for error messages. The command line replaces this text with a command."""


def gpu(name: str, *, memory_bytes: float | None = None) -> Gpu:
    """Return the GPU with this name.

    Args:
        name: Catalogue name, an alias, or the name that `torch.cuda.get_device_name` reports. Case and separators are
            ignored.
        memory_bytes: Memory that the device reports (`total_memory`), which distinguishes cards with the same reported
            name.

    Raises:
        UnknownGpuError: No GPU matches, or several GPUs match. The message lists the nearest names.
        InvalidArgumentError: `memory_bytes` is not a valid size.
    """
    if memory_bytes is not None and not (math.isfinite(memory_bytes) and memory_bytes > 0):
        raise InvalidArgumentError(f"memory_bytes={memory_bytes!r} is not a size; expected bytes above 0.")
    candidates = _candidates(name)
    return candidates[0] if len(candidates) == 1 else _by_memory(name, candidates, memory_bytes)


def peak_flops(name: str, dtype: str = "bfloat16") -> float:
    """Return the dense matmul peak of a GPU in FLOP/s, the denominator of MFU (model FLOPs utilisation).

    The peak is that of the vendor's data sheet at the boost clock, without structured sparsity; `gpu(name).sources` has
    its page. Example::

        >>> peak_flops("NVIDIA H100 80GB HBM3", "bfloat16") / 1e12
        989.4

    Args:
        name: Catalogue name, an alias, or the name that `torch.cuda.get_device_name` reports.
        dtype: dtype of the inputs: `bfloat16`, `fp16`, `tf32`, `float32`, `float8` or `torch.half`.

    Raises:
        UnknownGpuError: No GPU matches, or cards with different peaks report this name.
        InvalidArgumentError: The GPU's matmuls do not take this dtype.
    """
    word = str(dtype).removeprefix("torch.")
    column = DTYPE_WORDS.get(word, word)
    candidates = _candidates(name)
    peaks = {card.name: None if column in card.emulated_dtypes else card.peak(column) for card in candidates}
    if len(set(peaks.values())) > 1:
        raise UnknownGpuError(
            f"{name!r} is what several cards report: {' and '.join(peaks)}. Ask for one of these names."
        )
    card = candidates[0]
    peak = peaks[card.name]
    if peak is None:
        known = ", ".join(sorted(card.peak_flops_per_second.keys() - card.emulated_dtypes))
        raise InvalidArgumentError(f"dtype={word!r} has no peak on the {card.name}; choose of {known}.")
    return peak


def _candidates(name: str) -> tuple[Gpu, ...]:
    """Return the GPUs that have or report a name: several if only their memory sizes differ."""
    candidates = _catalogue_index().get(normalise(_text(name)))
    if candidates is None and (parts := _SLICE.fullmatch(name)) is not None:
        from lightning_predict.hardware.slices import slice_of

        return (slice_of(gpu(parts["gpu"]), parts["profile"]),)
    if candidates is None and (parts := _VIRTUAL.fullmatch(name)) is not None:
        board = _VIRTUAL_BOARDS.get(parts["gpu"].upper(), parts["gpu"])
        if parts["slices"] is not None:
            return _candidates(f"{board} MIG {parts['slices']}g.{parts['gib']}gb")
        return (_virtual(gpu(board), int(parts["gib"]), parts["kind"]),)
    if candidates is None:
        raise UnknownGpuError(_unknown_message(name))
    return candidates


def _text(name: object) -> str:
    if isinstance(name, str):
        return name
    raise UnknownGpuError(f"{shown(name)} is not the name of a GPU; give a text, for example 'L4'.")


def other_forms(name: str, gpu: Gpu) -> tuple[str, ...]:
    """Return the other cards that a name could mean: `A100` has 40 or 80 GB, as SXM module or PCIe card."""
    if normalise(name) == normalise(gpu.name):
        return ()
    words = _words(name)
    return tuple(form for form in gpu_names() if form != gpu.name and _words(form)[: len(words)] == words)


def _words(name: str) -> list[str]:
    return SEPARATORS.split(name.strip().casefold())


@cache
def gpu_names() -> tuple[str, ...]:
    """Return the names of all GPUs, oldest architecture first."""
    return tuple(row.name for row in _known())


def normalise(name: str) -> str:
    """Remove spaces, hyphens and underscores from a name, and ignore case."""
    return SEPARATORS.sub("", name).casefold()


def index_by_name(gpus: Iterable[Gpu]) -> dict[str, tuple[Gpu, ...]]:
    """Return GPUs by normalised name. Several GPUs may report the same name if their memory sizes differ clearly."""
    index: dict[str, dict[str, Gpu]] = {}
    own_words: set[str] = set()
    for row in gpus:
        own_words |= {normalise(word) for word in (row.name, *row.aliases)}
        for word in (row.name, *row.aliases, *row.reported_names):
            for written in (word, _SERIES.sub("", word, count=1)):
                index.setdefault(normalise(written), {})[row.name] = row
    for word, owners in index.items():
        sizes = sorted(row.memory_bytes for row in owners.values())
        distinct = all(small < SMALLEST_REPORTED_SHARE * large for small, large in pairwise(sizes))
        if len(owners) > 1 and (word in own_words or not distinct):
            raise CatalogueError(
                f"{' and '.join(owners)} share the name {word!r}, which nothing tells apart; drop it from one of them. "
                "Only names that devices report may be shared, by cards of different memory."
            )
    return {word: tuple(owners.values()) for word, owners in index.items()}


_OWN: Final[dict[str, Gpu]] = {}  # GPUs added by the user, by name


def add_to_catalogue(gpus: Iterable[Gpu]) -> None:
    """Add the user's own GPUs. A GPU replaces an added GPU with the same name."""
    added = {row.name: row for row in gpus}
    try:
        index_by_name((*_catalogue(), *(_OWN | added).values()))
    except CatalogueError as error:
        raise InvalidArgumentError(f"{error} Or give your own GPU another name.") from None
    taken = sorted({row.name for row in _catalogue()} & added.keys())
    if taken:
        raise InvalidArgumentError(f"{taken[0]} is a GPU of the catalogue already; give your own another name.")
    _OWN.update(added)
    for known in (_catalogue_index, gpu_names):
        known.cache_clear()


_MEASURED: Final[dict[str, Gpu]] = {}  # GPUs with rates that the user measured, by name


def set_measured(gpus: Iterable[Gpu]) -> None:
    """Replace GPUs in this process by copies with the user's own rates."""
    _MEASURED.update({row.name: row for row in gpus})
    _catalogue_index.cache_clear()


@cache
def _catalogue() -> tuple[Gpu, ...]:
    return load_catalogue()


def _known() -> tuple[Gpu, ...]:
    return tuple(_MEASURED.get(row.name, row) for row in (*_catalogue(), *_OWN.values()))


@cache
def _catalogue_index() -> Mapping[str, tuple[Gpu, ...]]:
    return index_by_name(_known())


def _virtual(whole: Gpu, gib: int, kind: str) -> Gpu:
    """Return a virtual GPU: the whole card's compute and the profile's memory. Other users are assumed to be idle."""
    memory = gibibytes_to_bytes(gib)
    if memory > whole.memory_bytes:
        raise UnknownGpuError(f"{whole.name} has {bytes_to_gibibytes(whole.memory_bytes):g} GiB, less than {gib} GB.")
    name = f"{whole.name}-{gib}{kind.upper()}"
    return replace(whole, name=name, reported_names=(), aliases=(), memory_bytes=memory, nvlink_bytes_per_second=None)


def _by_memory(name: str, candidates: tuple[Gpu, ...], memory_bytes: float | None) -> Gpu:
    """Return the candidate whose nominal memory is nearest to the reported memory."""
    listed = " or ".join(f"{row.name} ({bytes_to_gibibytes(row.memory_bytes):g} GiB)" for row in candidates)
    if memory_bytes is None:
        raise UnknownGpuError(
            f"{name!r} is what several cards report: {listed}. Ask for one of these names, or give memory_bytes."
        )
    nearest = min(candidates, key=lambda row: abs(math.log(memory_bytes / row.memory_bytes)))
    if not SMALLEST_REPORTED_SHARE <= memory_bytes / nearest.memory_bytes <= 1 + NOTICEABLE:
        raise UnknownGpuError(
            f"{name!r} with {bytes_to_gibibytes(memory_bytes):.1f} GiB of memory matches no card with this name: "
            f"{listed}. Use one of these names instead."
        )
    return nearest


def _unknown_message(name: str) -> str:
    """Return the error message for an unknown name, with the nearest names."""
    index = _catalogue_index()
    maker = other_vendor(name)
    words = difflib.get_close_matches(normalise(name), index, n=4 * NAMES_SHOWN, cutoff=0.5)
    rows = {row.name: row for word in words for row in index[word]}
    names = [row.name for row in rows.values() if maker in (None, row.vendor)][:NAMES_SHOWN]
    nearest = f"The nearest names are {', '.join(names)}." if names else "No name is near it."
    if maker is not None:
        return (
            f"{name!r} is not made by NVIDIA; the catalogue holds NVIDIA's GPUs and some of AMD's. For an order of "
            'size, describe it in a TOML file given as gpus_file: [gpu.NAME], like = "one of NVIDIA\'s", and its own '
            f"figures.{f' {nearest}' * bool(names)}"
        )
    own = next((f" {words}" for end, words in _WITHOUT_ROW.items() if normalise(name).endswith(end)), "")
    return (
        f"{name!r} is not a GPU of the catalogue.{own} {nearest} {LISTING} lists all of them. Yours can be added by a "
        'TOML file given as gpus_file: [gpu.NAME], like = "the nearest one", and the figures that differ.'
    )
