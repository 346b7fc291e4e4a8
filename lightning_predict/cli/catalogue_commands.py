"""Commands `gpus` (the catalogue of GPUs) and `offers` (rental prices).

Example::

    lightning-predict gpus H100
    lightning-predict offers --gpu L4 --offers our-prices.yaml
    lightning-predict offers --refresh
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lightning_predict.base.answers import CommandAnswer, aligned, json_value
from lightning_predict.base.checked import nearest
from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError, UnknownOfferError
from lightning_predict.base.units import (
    bytes_to_gibibytes,
    bytes_to_gigabytes,
    bytes_to_mebibytes,
    flops_to_teraflops,
    gibibytes_to_bytes,
    hertz_to_megahertz,
)
from lightning_predict.cost.offers import Offer, load_offers, offers_for, read_offers
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware import gpu_names
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.hardware.lookup import normalise
from lightning_predict.hardware.records import Gpu, Source


def gpus(
    search: str | None = None, /, *, architecture: str | None = None, min_memory_gib: float = 0.0
) -> CommandAnswer:
    """List GPUs, or show all data of one, with sources.

    The search text comes directly after the command: `gpus H100`.

    Args:
        search: Name of a GPU (ours, torch's or a cloud's) to show in full; or a part of names, or an architecture, to
            list.
        architecture: List only GPUs of this architecture, for example hopper.
        min_memory_gib: List only GPUs with at least this much memory.
    """
    everything = [find_gpu(name) for name in gpu_names()]
    architectures = tuple(dict.fromkeys(row.architecture for row in everything))
    if search in architectures:
        search, architecture = None, search
    if architecture is not None and architecture not in architectures:
        raise InvalidArgumentError(f"{architecture!r} is not an architecture. There are: {', '.join(architectures)}.")
    listed = [
        row
        for row in everything
        if architecture in (None, row.architecture) and row.memory_bytes >= gibibytes_to_bytes(min_memory_gib)
    ]
    if search is None:
        return _gpu_list(listed)
    related = [
        row
        for row in listed
        if any(normalise(search) in normalise(word) for word in (row.name, *row.aliases, *row.reported_names))
    ]
    try:
        gpu = find_gpu(search)
    except UnknownGpuError:
        if not related:
            raise
        return _gpu_list(related)
    others = [row.name for row in related if row != gpu]
    return CommandAnswer(
        data=lambda: json_value(gpu), show=lambda: print("\n".join([*_gpu_lines(gpu), *_others(others)]))
    )


def offers(
    *,
    gpu: str | None = None,
    provider: str | None = None,
    offers: Path | None = None,
    region: str | None = None,
    refresh: bool = False,
) -> CommandAnswer:
    """List rental prices of GPUs, with dates; the cheapest of each GPU first.

    Args:
        gpu: Show only offers of this GPU, with their sources; 8xL4: machines with at least eight of them.
        provider: Show only offers of this provider.
        offers: Your own price file instead of the prices that ship with the package: YAML, TOML, JSON or CSV.
        region: With a price file: use the prices of this region.
        refresh: Fetch the current prices of all providers, and use them in later predictions, which stay offline.
    """
    if refresh:
        if (gpu, provider, offers, region) != (None,) * 4:
            raise InvalidArgumentError("--refresh takes no other option; list the prices afterwards without it.")
        return _refresh()
    if offers is None and region is not None:
        raise InvalidArgumentError("region is for a price file of your own; give it with --offers.")
    listed = load_offers() if offers is None else read_offers(offers, region=region)
    machine = None if gpu is None else layout_of(gpu)
    if machine is not None and machine.nodes > 1:
        raise InvalidArgumentError(
            f"gpu={gpu!r} is several machines; give one: {machine.gpus_per_node}x{machine.gpu.name}."
        )
    names = gpu_names() if machine is None else (machine.gpu.name,)
    needed = 1 if machine is None else machine.gpus_per_node
    resized = [offer.with_gpus(needed) for name in names for offer in offers_for(name, listed)]
    chosen = [offer for offer in resized if offer is not None]
    if provider is not None:
        known = {offer.provider for offer in listed}
        chosen = [offer for offer in chosen if offer.provider.casefold() == provider.casefold()]
        if provider.casefold() not in {name.casefold() for name in known}:
            raise UnknownOfferError(f"No offer of {provider!r} is listed. {nearest(provider, known)}")
    if not chosen:
        raise UnknownOfferError(f"No offer of {' from '.join(filter(None, (gpu, provider)))} is listed.")
    return CommandAnswer(
        data=lambda: {"offers": json_value(chosen)},
        show=lambda: print(_offer_text(chosen, with_sources=gpu is not None)),
    )


def _refresh() -> CommandAnswer:
    from lightning_predict.cost.current_prices import refresh_prices

    prices = refresh_prices()
    providers, kinds = {offer.provider for offer in prices.offers}, {offer.gpu for offer in prices.offers}
    newest = max(offer.date for offer in prices.offers)
    lines = [
        f"{len(prices.offers):,} offers of {len(kinds)} GPUs from {len(providers)} providers, read on {newest}: "
        f"{prices.path}",
        "Predictions use them from now on, without the network.",
        *prices.notes,
    ]
    return CommandAnswer(
        data=lambda: {"written": str(prices.path), "offers": json_value(prices.offers), "notes": list(prices.notes)},
        show=lambda: print("\n".join(lines)),
    )


def _gpu_list(rows: Sequence[Gpu]) -> CommandAnswer:
    headers = ["GPU", "architecture", "year", "GiB", "GB/s", "fp32 TFLOP/s", "fp16", "bf16", "W"]
    texts = [
        [
            row.name,
            row.architecture,
            str(row.launch_year),
            f"{bytes_to_gibibytes(row.memory_bytes):g}",
            f"{bytes_to_gigabytes(row.dram_bytes_per_second):,.0f}",
            _teraflops(row, "float32"),
            _teraflops(row, "float16"),
            _teraflops(row, "bfloat16"),
            f"{row.power_watts:g}",
        ]
        for row in rows
    ]
    text = aligned(headers, texts, right={2, 3, 4, 5, 6, 7, 8})
    count = "1 GPU" if len(rows) == 1 else f"{len(rows)} GPUs"
    return CommandAnswer(
        data=lambda: json_value(rows),
        show=lambda: print(f"{text}\n\n{count}. Peaks are dense; e: emulated. All of one: gpus NAME."),
    )


def _teraflops(row: Gpu, dtype: str) -> str:
    peak = row.peak(dtype)
    if peak is None:
        return "-"
    return f"{flops_to_teraflops(peak):,.4g}{' e' if dtype in row.emulated_dtypes else '  '}"


def _gpu_lines(row: Gpu) -> Iterable[str]:
    sources = list(dict.fromkeys(source for group in row.sources.values() for source in group))
    peaks = ", ".join(f"{dtype} {_teraflops(row, dtype).strip()}" for dtype in row.peak_flops_per_second)
    nvlink = row.nvlink_bytes_per_second
    base, boost = hertz_to_megahertz(row.base_clock_hz), hertz_to_megahertz(row.boost_clock_hz)
    dram, l2 = bytes_to_gigabytes(row.dram_bytes_per_second), bytes_to_gigabytes(row.l2_bytes_per_second)
    link = "" if nvlink is None else f"NVLink {bytes_to_gigabytes(nvlink):g} GB/s, "
    figures = {
        "architecture": f"{row.architecture}, compute capability {'.'.join(map(str, row.compute_capability))}",
        "released": str(row.launch_year),
        "torch reports": ", ".join(row.reported_names) or "not known",
        "also called": ", ".join(row.aliases) or "nothing else",
        "multiprocessors": f"{row.streaming_multiprocessors} with {row.cores_per_multiprocessor} lanes each",
        "clock": f"{base:g} MHz base, {boost:g} MHz boost",
        "peak (TFLOP/s)": f"{peaks}; dense" + (", e: emulated" if row.emulated_dtypes else ""),
        "memory": f"{bytes_to_gibibytes(row.memory_bytes):g} GiB, {dram:,g} GB/s",
        "L2": f"{bytes_to_mebibytes(row.l2_bytes):g} MiB, {l2:,g} GB/s",
        "links": f"{link}PCIe {bytes_to_gigabytes(row.pcie_bytes_per_second):g} GB/s, one direction",
        "power": f"{row.power_watts:g} W",
    }
    width = max(map(len, figures)) + 2
    yield row.name
    yield from (f"  {name:<{width}}{text}" for name, text in figures.items())
    yield "  sources" + (" (one data sheet, no second that agrees)" if row.single_source else "")
    yield from (f"    {_source(source, row)}" for source in sources)


def _source(source: Source, row: Gpu) -> str:
    fields = [field for field, group in row.sources.items() if source in group]
    what = "" if "*" in fields else f" [{', '.join(fields)}]"
    return f"{source.title} ({source.date}), {source.url}{what}"


def _others(names: Sequence[str]) -> Iterable[str]:
    if names:
        yield f"  Others of this name: {', '.join(names)}."


def _offer_text(chosen: Sequence[Offer], *, with_sources: bool) -> str:
    stocked = ["when read"] if any(offer.stock for offer in chosen) else []
    headers = ["GPU", "provider", "machine", "GPUs", "$/h", "$/h a GPU", "spot $/h", "region", "date", *stocked]
    rows = [
        [
            offer.gpu,
            offer.provider,
            offer.instance + (" (spot)" if offer.spot else ""),
            str(offer.num_gpus),
            f"{offer.usd_per_hour:.2f}",
            f"{offer.usd_per_gpu_hour:.2f}",
            "" if offer.spot_usd_per_hour is None else f"{offer.spot_usd_per_hour:.2f}",
            offer.region or "",
            offer.date,
            *(offer.stock for _ in stocked),
        ]
        for offer in chosen
    ]
    number = "1 offer" if len(rows) == 1 else f"{len(rows)} offers"
    lines = [aligned(headers, rows, right={3, 4, 5, 6}), "", f"{number}, without tax or commitment."]
    if with_sources:
        lines += ["Sources:", *sorted({f"  {offer.provider} ({offer.date}): {offer.source}" for offer in chosen})]
    return "\n".join(lines)
