"""`MachineProfile`: the machines, links, prices and other assumptions of a prediction, from one TOML file.

Commands read it with `--profile machine.toml`. `docs/howto/arguments.md` lists the keys. Paths are relative to the
file. Tables `[gpu.NAME]` and `[measured.NAME]` describe GPUs (see `hardware/user_gpus.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lightning_predict.assumptions import Assumptions, Skew
from lightning_predict.base.checked import Checked, read_toml
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.cost.energy import PowerGrid, grid_of
from lightning_predict.cost.offers import Offer, from_providers, load_offers, read_offers
from lightning_predict.cost.prediction import Charges, UserPrice, offer_for
from lightning_predict.cost.price_files import outdated, with_listed, with_spot_prices
from lightning_predict.cost.priced_gpus import PricedGpus
from lightning_predict.hardware.layouts import Layout, layout_of
from lightning_predict.hardware.user_gpus import TABLES as GPU_TABLES
from lightning_predict.hardware.user_gpus import add_described_gpus
from lightning_predict.kernels.interconnect import PCIE_MACHINES, Interconnect, interconnect_of
from lightning_predict.reports.table_columns import column_names
from lightning_predict.weights.source import WeightsSource, weights_source

if TYPE_CHECKING:
    from lightning_predict.layouts.strategy import Strategy
    from lightning_predict.run.history import HistoryRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """Contents of a profile.

    Attributes:
        host: CPU class of the machines, or a factor on the recorded CPU time; see `Assumptions`.
        release: PyTorch version of the run.
        skew: Skew of the lookups in embedding tables: the exponent of Zipf's law.
        interconnect: Bandwidths of the links; None for those of the catalogue.
        usd_per_hour: The user's own price of one GPU, for all GPUs or by name.
        price_file: The user's own price file.
        region: Region whose prices of the price file are used.
        providers: Providers, or kinds of providers, whose prices are used; empty for all.
        spot: Whether to use spot prices where they are lower.
        charges: Costs of a rented machine other than training.
        pue: Total power of the data centre per watt of its machines.
        loader_seconds: Seconds in which the data loader of one process loads a batch.
        loader_samples_per_second: Speed of the data loader of one process, instead.
        evaluation_seconds: Seconds of the run outside training steps.
        model: Further options of a model by name: `image_size`, `frames`, `lora_targets`, `holds_output`.
    """

    host: str | float | None = None
    release: str | None = None
    cores_per_node: int | None = None
    weights: WeightsSource = field(default_factory=WeightsSource)
    skew: float | None = None
    interconnect: Interconnect | None = None
    usd_per_hour: UserPrice = None
    price_file: Path | None = None
    region: str | None = None
    providers: tuple[str, ...] = ()
    spot: bool = False
    charges: Charges | None = None
    grid: PowerGrid | None = None
    pue: float = 1.0
    loader_seconds: float | None = None
    loader_samples_per_second: float | None = None
    evaluation_seconds: float = 0.0
    columns: tuple[str, ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)

    def prices(self, usd_per_hour: UserPrice = None, *, spot: bool = False) -> Prices:
        """Return the prices. Those of the command line take precedence."""
        own = self.usd_per_hour if usd_per_hour is None else usd_per_hour
        if own is not None and self.price_file is not None:
            raise InvalidArgumentError("Give one of usd_per_hour and a price file (prices.file in the profile).")
        offers, notes = load_offers(), tuple[str, ...]()
        if self.price_file is not None:
            table = read_offers(self.price_file, region=self.region)
            offers, notes = with_listed(table), outdated(table)
        if self.providers:
            offers = from_providers(self.providers, offers)
        is_spot = spot or self.spot
        return Prices(with_spot_prices(offers) if is_spot else offers, own, is_spot, notes)

    def assumptions(
        self,
        prices: Prices,
        *,
        strategy: Strategy,
        kernels: Sequence[str] = (),
        history: Sequence[HistoryRecord] = (),
        zipf_alpha: Skew | None = None,
    ) -> Assumptions:
        """Return the assumptions of a prediction, with these prices, strategy and kernels, and earlier runs."""
        return Assumptions(
            strategy=strategy,
            kernels=kernels,
            weights=self.weights,
            offers=prices.offers,
            usd_per_hour=prices.usd_per_hour,
            history=history,
            interconnect=self.interconnect,
            release=self.release,
            host=self.host,
            zipf_alpha=zipf_alpha,
            cores_per_node=self.cores_per_node,
            charges=self.charges,
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of the machines."""

    offers: tuple[Offer, ...]
    usd_per_hour: UserPrice  # The user's own price, which takes precedence
    spot: bool  # Whether spot prices are used where they are lower
    notes: tuple[str, ...]  # Notes about the user's offers

    def notes_for(self, layouts: Sequence[Layout]) -> tuple[str, ...]:
        """Return the notes, and notes about spot prices: their limits, and the layouts that use on-demand prices."""
        if not self.spot or self.usd_per_hour is not None:
            return self.notes
        chosen = {layout.name: offer_for(layout, offers=self.offers) for layout in layouts}
        names = ", ".join(name for name, offer in chosen.items() if offer is not None and not offer.spot)
        interrupted = (
            "Spot machines may be interrupted; lost work is not included here. "
            "`lightning-predict parallel --spot --mtbf-hours` includes it."
        )
        if isinstance(layouts, PricedGpus):
            names = ""  # for a group, the price of each chosen GPU is labelled
        return (
            *self.notes,
            *([interrupted] if any(offer is not None and offer.spot for offer in chosen.values()) else []),
            *([f"On-demand price, because no listed spot price is lower: {names}."] if names else []),
        )


def read_machine_profile(path: Path | None) -> MachineProfile:
    """Read a profile, and add the GPUs that it describes to the catalogue of this process.

    Args:
        path: The file; None for an empty profile.
    """
    if path is None:
        return MachineProfile()
    document = read_toml(path, InvalidArgumentError)
    document.check_keys((), {*TOP_KEYS, *TABLE_KEYS, *GPU_TABLES})
    add_described_gpus(document, path)
    links, prices, charges, energy, run, model = (_table(document, name) for name in TABLE_KEYS)
    price_file = prices.optional("file", Checked.words, None)
    if prices.has("region") and price_file is None:
        raise prices.member("region").error("is for a price file of your own; give prices.file, too.")
    if energy.has("pue") and not energy.has("grid"):
        raise energy.member("pue").error("is for the energy of the run; give energy.grid, too.")
    weights = document.optional("weights", Checked.words, None)
    if weights is not None and "://" not in weights:
        weights = str(path.parent / weights)
    return MachineProfile(
        host=document.optional("host", _text_or_number, None),
        release=document.optional("release", Checked.words, None),
        cores_per_node=document.optional("cores_per_node", _count, None),
        weights=replace(weights_source(weights), offline=document.optional("offline", Checked.flag, False)),
        skew=document.optional("skew", Checked.number, None),
        interconnect=interconnect_of(
            network_gbps=links.optional("network_gbps", Checked.positive, None),
            busbw=links.optional("busbw", Checked.positive, None),
            pcie=links.optional("pcie", lambda value: value.choice(tuple(PCIE_MACHINES)), None),
        ),
        usd_per_hour=prices.optional("usd_per_hour", _own_price, None),
        price_file=None if price_file is None else path.parent / price_file,
        region=prices.optional("region", Checked.words, None),
        providers=prices.optional("providers", Checked.texts, ()),
        spot=prices.optional("spot", Checked.flag, False),
        charges=Charges(**{name: amount.number() for name, amount in charges.members().items()}),
        grid=grid_of(energy.member("grid").value) if energy.has("grid") else None,
        pue=energy.optional("pue", Checked.positive, 1.0),
        loader_seconds=run.optional("loader_seconds", Checked.number, None),
        loader_samples_per_second=run.optional("loader_samples_per_second", Checked.positive, None),
        evaluation_seconds=run.optional("evaluation_seconds", Checked.number, 0.0),
        columns=column_names(document.optional("columns", Checked.texts, ())),
        model={
            "image_size": model.optional("image_size", _count, None),
            "frames": model.optional("frames", _count, None),
            "lora_targets": model.optional("lora_targets", _words_or_list, None),
            "holds_output": model.optional("holds_output", Checked.flag, False),
        },
    )


TOP_KEYS: Final = frozenset("host release cores_per_node weights offline skew columns".split())
"""Keys before the first table."""

TABLE_KEYS: Final[Mapping[str, frozenset[str]]] = {  # Keys of each table
    "links": frozenset({"network_gbps", "busbw", "pcie"}),
    "prices": frozenset({"usd_per_hour", "file", "region", "providers", "spot"}),
    "charges": frozenset({"setup_minutes", "minimum_minutes", "storage_usd"}),
    "energy": frozenset({"grid", "pue"}),
    "run": frozenset({"loader_seconds", "loader_samples_per_second", "evaluation_seconds"}),
    "model": frozenset({"image_size", "frames", "lora_targets", "holds_output"}),
}


def _table(document: Checked, name: str) -> Checked:
    """Return a table of known keys; an empty one if the file lacks it."""
    table = document.member(name) if document.has(name) else replace(document, value={}, place=name)
    table.check_keys((), TABLE_KEYS[name])
    return table


def _count(value: Checked) -> int:
    return value.integer(minimum=1)


def _text_or_number(value: Checked) -> str | float:
    return value.words() if isinstance(value.value, str) else value.number()


def _words_or_list(value: Checked) -> str | tuple[str, ...]:
    return value.words() if isinstance(value.value, str) else value.texts()


def _own_price(value: Checked) -> float | dict[str, float]:
    if not isinstance(value.value, dict):
        return value.positive("in US dollars per hour of one GPU")
    return {
        layout_of(str(name)).name: price.positive("in US dollars per hour") for name, price in value.members().items()
    }


def parse_prices(text: str | None) -> UserPrice:
    """Parse one price of a GPU (`0.5`), or prices by GPU or layout (`L4=0.5,H100=2`); None for None."""
    if text is None:
        return None
    prices = {}
    for word in text.split(","):
        name, _, price = word.rpartition("=")
        try:
            prices[layout_of(name.strip()).name if name else ""] = float(price)
        except ValueError:
            raise InvalidArgumentError(
                f"usd_per_hour={text!r} has {price!r}; expected a price, or prices like L4=0.5,H100=2."
            ) from None
    if "" in prices and len(prices) > 1:
        raise InvalidArgumentError(f"usd_per_hour={text!r} has a price without a GPU; expected L4=0.5,H100=2.")
    return prices.get("", prices)
