"""Price of a run, and the `Prediction` that users get: layout, step, run, price and memory.

The user's own price takes precedence over the cheapest listed offer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from lightning_predict.base.checked import plain_number, positive_number, shown
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.fields import Field, fields_of
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import minutes_to_seconds, seconds_to_hours
from lightning_predict.cost.energy import Energy, energy
from lightning_predict.cost.offers import OWN_PRICE_MACHINE, USER, Offer, cheapest_offer, day_of, machine_offer
from lightning_predict.hardware.layouts import Layout, find_machine, in_trays
from lightning_predict.memory.step_memory import MemoryFit, MemoryNeed
from lightning_predict.run.workload import Run

if TYPE_CHECKING:
    from lightning_predict.timeline.step_prediction import StepPrediction
    from lightning_predict.timeline.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of a run."""

    usd_per_hour: float | None = None  # Price of all machines of the layout; None if there is no offer
    cost_usd: float | None = None  # Cost of the whole run; None if the length of the run or the price is unknown
    offer: str | None = None  # Source and date of the price; None if there is no offer
    priced_on: str | None = None  # Date of the price, as listed (a day or a month); None if there is no offer
    provider: str | None = None  # Name of the provider; None if there is no offer
    fresh_days: int | None = None  # Age in days up to which the price is fresh; None if there is no offer
    machine_gpus: int | None = None  # Number of GPUs of each machine, which are all paid for; None without an offer

    def stale_days(self, today: str | None) -> int | None:
        """Return the age of the price in days on an ISO day; None if the price is still fresh."""
        if today is None or self.priced_on is None or self.fresh_days is None:
            return None
        days = (date.fromisoformat(today) - day_of(self.priced_on)).days
        return days if days > self.fresh_days else None


def _samples_per_second(prediction: PredictionFields) -> float | None:
    samples = prediction.run.samples_per_iteration
    return None if samples is None else samples / prediction.step_seconds


def _tokens_per_second(prediction: PredictionFields) -> float | None:
    tokens = prediction.run.tokens_per_iteration
    return None if tokens is None else tokens / prediction.step_seconds


def _mfu(prediction: PredictionFields) -> float | None:
    layout, flops, dtype = prediction.layout, prediction.run.flops, prediction.run.flops_dtype
    peak = None if layout is None or dtype is None else layout.gpu.peak(dtype)
    if layout is None or not flops or not peak:
        return None
    return flops / prediction.step_seconds / (peak * layout.count)


def _energy(prediction: PredictionFields) -> Energy | None:
    """Estimate the energy of a run; None if its length or the GPU is unknown."""
    layout = prediction.layout
    if prediction.remaining_seconds is None or layout is None:
        return None
    estimate = energy(
        prediction.remaining_seconds,
        layout.gpu,
        num_gpus=layout.count,
        busy_share=min(prediction.device_seconds / prediction.iteration_seconds, 1.0),
        grid_grams_per_kwh=prediction.supply.grams_per_kwh,
        overhead=prediction.supply.overhead,
    )
    return replace(estimate, gpu=layout.name)


class PredictionFields:
    """All fields of a prediction: values of a GPU or layout, or of the machine in use.

    Attributes, JSON, pandas, table columns, loggers and the model card derive from these fields, in this order.
    """

    __slots__ = ()

    layout: Layout | None
    step: StepPrediction
    run: Run
    price: Price
    memory: MemoryNeed
    supply: PowerSupply

    gpu = Field[str]("layout.name", "Catalogue name of the GPU or layout.", title="GPU", on_machine=True)
    step_seconds = Field[float](
        lambda prediction: (
            prediction.iteration_seconds if prediction.measured_seconds is None else prediction.measured_seconds
        ),
        "Seconds of a step, as measured if it was.",
        "s",
        title="step",
        on_machine=True,
    )
    iteration_seconds = Field[float]("step.seconds", "Seconds of one training step.", "s", log="iteration_ms")
    iteration_seconds_low = Field[float](
        "step.low_seconds", "Lower end of the 90 % interval of a training step.", "s", log="iteration_ms_low"
    )
    iteration_seconds_high = Field[float](
        "step.high_seconds", "Upper end of the 90 % interval of a training step.", "s", log="iteration_ms_high"
    )
    iteration = Field[Interval[float]](
        "step.interval",
        "Seconds of one training step, with a 90 % interval.",
        "s",
        title="90 % of steps\n(ms)",
        shown="verbose",
        gives_way=1,
        in_json=False,
    )
    device_seconds = Field[float]("step.device_seconds", "GPU compute time of a step.", "s")
    host_seconds = Field[float]("step.host_seconds", "Host time to launch a step.", "s")
    num_gpus = Field[int]("layout.count", "Number of GPUs of the layout.")
    communication_seconds = Field[float](
        "step.communication_seconds",
        "Time of a step's collectives between GPUs, including overlapped ones; 0 on one GPU.",
        "s",
    )
    added_seconds = Field[float](
        "step.added_seconds",
        "Extra time of a step beyond one GPU's own work: exposed communication, and waits for other GPUs.",
        "s",
    )
    measured_seconds = Field[float | None](
        "step.measured_seconds", "Measured seconds of a step; None except on the GPU in use.", "s"
    )
    unmeasured_seconds = Field[float | None](
        "step.unmeasured_seconds",
        "Seconds of a step as predicted without measurements; None except on the GPU in use.",
        "s",
    )
    precision = Field[str | None](
        "step.precision", "Precision of the step, if the GPU emulates the recorded one; None otherwise."
    )
    iterations = Field[int | None]("run.iterations", "Remaining training steps.")
    cycle_seconds = Field[float](
        "run.cycle_seconds",
        "Seconds of a step and its wait for the loader.",
        "s",
        title="with loader",
        on_machine=True,
        gives_way=5,
    )
    remaining_seconds = Field[float | None](
        "run.total.middle",
        "Seconds of the rest of the run, including validation; the whole run before it has begun.",
        "s",
        title="total",
        on_machine=True,
        log="remaining_hours",
    )
    remaining_seconds_low = Field[float | None](
        "run.total.low", "Lower end of the 90 % interval of the rest of the run.", "s", on_machine=True
    )
    remaining_seconds_high = Field[float | None](
        "run.total.high", "Upper end of the 90 % interval of the rest of the run.", "s", on_machine=True
    )
    total_seconds = Field[float | None](
        "run.whole.middle",
        "Seconds of the whole run: the rest, and the finished steps at the pace of the rest.",
        "s",
        on_machine=True,
        log="total_hours",
    )
    total = Field[Interval[float] | None](
        "run.whole", "Seconds of the whole run, with a 90 % interval.", "s", in_json=False
    )
    total_seconds_low = Field[float | None](
        "run.whole.low", "Lower end of the 90 % interval of the whole run.", "s", on_machine=True
    )
    total_seconds_high = Field[float | None](
        "run.whole.high", "Upper end of the 90 % interval of the whole run.", "s", on_machine=True
    )
    remaining = Field[Interval[float] | None](
        "run.total",
        "Seconds of the rest of the run, including validation, with a 90 % interval.",
        "s",
        title="(90 %)",
        is_left=True,
        on_machine=True,
        in_json=False,
    )
    validation_seconds = Field[float | None]("run.validation_seconds", "Validation's part of `remaining_seconds`.", "s")
    validation_is_estimated = Field[bool](
        "run.validation_is_estimated",
        "Whether the validation time is estimated from the forward share of a training step.",
    )
    cycle = Field[Interval[float]](
        lambda prediction: prediction.iteration.added(prediction.cycle_seconds - prediction.iteration_seconds),
        "Seconds of a step and its wait for the loader, with a 90 % interval.",
        "s",
        in_json=False,
    )
    epoch_seconds = Field[float | None]("run.epoch_seconds", "Training time of one epoch.", "s")
    loader_seconds = Field[float](
        "run.loader_seconds",
        "Loader time for the batches of a step; it bounds the step if it is longer than the step.",
        "s",
    )
    loader_share = Field[float](
        lambda prediction: (
            1 - prediction.iteration_seconds / prediction.cycle_seconds if prediction.cycle_seconds > 0 else 0.0
        ),
        "Share of the time spent waiting for the loader.",
        "share",
    )
    checkpoint_seconds = Field[float | None](
        "run.checkpoint_seconds", "Part of `remaining_seconds` spent on writing checkpoints.", "s"
    )
    checkpoint_is_estimated = Field[bool](
        "run.checkpoint_is_estimated",
        "Whether the checkpoint time is estimated from the size of the state because none was measured.",
    )
    at_most = Field[bool]("run.at_most", "Whether the run may end earlier.", on_machine=True)
    is_cut_off = Field[bool](
        "run.is_cut_off",
        "Whether the Trainer's time limit ends the run; the totals then stop at the limit.",
        on_machine=True,
    )
    samples_per_second = Field[float | None](
        _samples_per_second,
        "Throughput of all GPUs.",
        "samples/s",
        title="samples/s",
        shown="asked",
        on_machine=True,
        log="samples_per_second",
    )
    tokens_per_second = Field[float | None](
        _tokens_per_second,
        "Tokens of all GPUs, if the step looks up sequences of tokens in an embedding.",
        "tokens/s",
        title="tokens/s",
        shown="asked",
        on_machine=True,
        log="tokens_per_second",
    )
    model_flops = Field[float | None](
        "run.flops", "FLOPs of a training step on all GPUs: products, convolutions and attention.", "FLOP"
    )
    mfu = Field[float | None](
        _mfu,
        "Model FLOP utilisation: FLOPs per second over the dense peak of the GPUs for the dtype of most of them. "
        "Causal attention counts by the half that its mask keeps; PaLM and many scripts count all.",
        "share",
        title="MFU",
        shown="asked",
        on_machine=True,
        log="mfu",
    )
    cost_usd = Field[float | None](
        "price.cost_usd", "Cost of the rest of the run.", "$", title="cost", on_machine=True, log="cost_usd"
    )
    usd_per_hour = Field[float | None](
        "price.usd_per_hour",
        "Price of all machines rented for the layout.",
        "$/h",
        title="$/h",
        gives_way=2,
        on_machine=True,
    )
    offer = Field[str | None]("price.offer", "Source and date of the price.")
    priced_on = Field[str | None](
        "price.priced_on", "Day or month of the price, as listed.", title="price of", shown="asked"
    )
    memory_bytes = Field[float | None](
        "memory.memory_bytes",
        "Peak memory of a step on each GPU.",
        "bytes",
        title="memory (GiB)",
        is_left=True,
        on_machine=True,
        log="memory_gib",
    )
    memory_least_filled_bytes = Field[float | None](
        "memory.least_filled_bytes", "Peak memory of a step on the GPU that needs the least, if GPUs differ.", "bytes"
    )
    fits = Field[bool | None]("memory.fits", "Whether a step fits in the GPU's memory with a chance of at least 50 %.")
    memory_fit = Field[MemoryFit | None](
        "memory.memory_fit", "Memory verdict: `fits` from 90 % on, `tight` from 50 %, or `exceeds`."
    )
    fit_probability = Field[float | None](
        "memory.fit_probability", "Probability that a step fits.", "share", title="fits", on_machine=True
    )
    process = Field[Interval[float] | None](
        "memory.process",
        "Memory of the process, as nvidia-smi shows, with its 90 % interval.",
        title="process\n(GiB, 90 %)",
        shown="verbose",
        gives_way=1,
        in_json=False,
        on_machine=True,
    )
    memory_free_bytes = Field[float | None](
        "memory.memory_free_bytes",
        "Usable memory left by a step with an even chance; negative if it does not fit.",
        "bytes",
        log="memory_free_gib",
    )
    memory_releasable_bytes = Field[float](
        "memory.releasable_bytes", "Part of `memory_bytes` that torch's allocator releases on a full GPU.", "bytes"
    )
    verdict: Field[Verdict | None] = Field(
        "step.verdict",
        "What bounds the step, the gain from a faster GPU, and the critical path by module.",
        title="bound by",
        gives_way=3,
    )
    coverage = Field[Mapping[str, float]](
        "step.coverage",
        "Share of the GPU time by prediction method; the shares add up to 1. See `StepPrediction`.",
        title="covered by",
        shown="verbose",
        gives_way=4,
        breaks=True,
    )
    base_share = Field[float](
        "step.extrapolated_share", "Share of the GPU time predicted by networks without any measurement of this GPU."
    )
    energy: Field[Energy | None] = Field(
        _energy, "Energy of the run (upper estimate); None if its length is unknown.", in_json=False
    )
    kilowatt_hours = Field[float | None](
        "energy.kilowatt_hours", "Energy of all GPUs over the whole run.", "kWh", title="energy\n(kWh)", shown="asked"
    )
    co2_kilograms = Field[float | None](
        "energy.co2_kilograms", "CO2-equivalent on the grid, if one is given.", "kg", title="CO2\n(kg)", shown="asked"
    )
    notes = Field[tuple[str, ...]]("step.notes", "Notes on gaps of the prediction.")


FIELDS: Final = fields_of(PredictionFields)  # All fields of a prediction, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSupply:
    """Power supply of the machines."""

    grams_per_kwh: float | None = None  # Carbon intensity, in grams of CO2-equivalent per kWh; None if unknown
    overhead: float = 1.0  # Total power per watt of the GPU, including cooling (PUE); 1 counts the GPU alone


@dataclass(frozen=True, slots=True)
class Prediction(PredictionFields):
    """Prediction for one GPU or layout. Unknown values are None.

    Each value also has a flat name, defined in `PredictionFields`: `prediction.cost_usd` is
    `prediction.price.cost_usd`.

    Attributes:
        layout: The GPUs.
        step: One training step.
        run: The rest of the run.
        price: Price of the run.
        memory: Memory of a step, and whether the step fits.
        supply: Power supply, for energy and CO2 emissions.
    """

    layout: Layout
    step: StepPrediction
    run: Run
    price: Price
    memory: MemoryNeed
    supply: PowerSupply = field(default_factory=PowerSupply)

    def __repr__(self) -> str:
        total = "" if self.total_seconds is None else f", total_seconds={self.total_seconds:.4g}"
        cost = "" if self.cost_usd is None else f", cost_usd={self.cost_usd:.4g}"
        return f"Prediction({self.gpu}, step_seconds={self.step_seconds:.4g}{total}{cost}, fits={self.fits})"

    def as_dict(self) -> dict[str, Any]:
        """Return all values by flat name, JSON-serializable."""
        values = {row.name: row.value(self) for row in FIELDS if row.in_json}
        for name in ("allocated", "reserved", "process"):
            size = getattr(self.memory, name)
            ends = (None, None, None) if size is None else (size.middle, size.low, size.high)
            values |= zip((f"{name}_bytes", f"{name}_bytes_low", f"{name}_bytes_high"), ends, strict=True)
        values |= {"coverage": dict(self.coverage), "notes": list(self.notes)}
        if self.verdict is not None:
            values["verdict"] = asdict(self.verdict) | {"sentence": self.verdict.sentence}
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInUse(PredictionFields):
    """The machine that recorded the step, with measured times: a CPU, or a GPU without a prediction."""

    name: str  # Catalogue name of the GPU, the name that the GPU reports, or `CPU`
    step: StepPrediction
    run: Run
    layout: Layout | None = None  # The GPUs; None for a CPU, or a GPU that the catalogue lacks
    price: Price = field(default_factory=Price)
    memory: MemoryNeed = field(default_factory=MemoryNeed)  # Memory of the GPU; empty for a CPU
    supply: PowerSupply = field(default_factory=PowerSupply)  # Power supply, for energy and CO2 emissions

    def as_dict(self) -> dict[str, Any]:
        """Return the known values by flat name, JSON-serializable."""
        values = {row.name: row.value(self) for row in FIELDS if row.in_json and row.on_machine and row.name != "gpu"}
        return {"name": self.name, **values}


class AbstractPredictions(Mapping[str, Prediction]):
    """Mapping from GPU names to predictions, with information that applies to all predictions."""

    used_gpu: str | None  # Name of the GPU that recorded the trace, if it is in the catalogue
    notes: tuple[str, ...]
    machine: MachineInUse | None  # Machine in use, if the mapping has no prediction for it; None if no step was timed
    heading: str | None  # Title of the table: number and size of the steps, and where a step was recorded
    is_running: bool  # Whether the predictions are for a run in progress on this machine
    made_on: str | None  # Day of the prediction (ISO 8601), used for the age of prices; None omits the age
    group: str | None  # Requested group of GPUs (`all`): tables show only the best. None if the user named GPUs.
    left_out: int  # Number of GPUs of the group that are not in the mapping

    def shown(self) -> AbstractPredictions:
        """Return the predictions that a table shows: all named GPUs, or the best GPUs of a group."""
        return self


UserPrice = float | Decimal | Fraction | Mapping[str, float | Decimal | Fraction] | None
"""Dollars per hour of one GPU, for all GPUs or by name; under a layout's name, of the whole layout."""


def check_price(usd_per_hour: UserPrice) -> None:
    """Validate that prices are positive numbers."""
    prices = usd_per_hour.values() if isinstance(usd_per_hour, Mapping) else [usd_per_hour]
    for price in prices:
        if price is not None and positive_number(price) is None:
            raise InvalidArgumentError(
                f"usd_per_hour={shown(price)} is not a price; expected US dollars per hour above 0."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """Costs of a rented machine in addition to training time."""

    setup_minutes: float = 0.0  # Paid time from the start of the machine until training starts: boot, environment, data
    minimum_minutes: float = 0.0  # Minimum billed time of a machine
    storage_usd: float = 0.0  # Dollars for storage and data transfer

    def __post_init__(self) -> None:
        for name, amount in asdict(self).items():
            number = plain_number(amount)
            if number is None or number < 0:
                raise InvalidArgumentError(f"{name}={shown(amount)} is out of range; expected a number of at least 0.")
            object.__setattr__(self, name, number)

    def cost_usd(self, seconds: float, usd_per_hour: float) -> float:
        """Return the cost of a run of `seconds` on machines that cost `usd_per_hour` together."""
        billed = max(seconds + minutes_to_seconds(self.setup_minutes), minutes_to_seconds(self.minimum_minutes))
        return seconds_to_hours(billed) * usd_per_hour + self.storage_usd

    @property
    def sentence(self) -> str | None:
        """Text that lists the additional costs; None without additional costs."""
        parts = (
            f"{self.setup_minutes:g} min of setup" if self.setup_minutes else "",
            f"${self.storage_usd:,.2f} for storage and transfer" if self.storage_usd else "",
            f"at least {self.minimum_minutes:g} min of each machine" if self.minimum_minutes else "",
        )
        known = [part for part in parts if part]
        if not known:
            return None
        listed = " and ".join(filter(None, (", ".join(known[:-1]), known[-1])))
        return f"Costs of other GPUs include {listed}."


def offer_for(layout: Layout, *, offers: Sequence[Offer] | None = None, usd_per_hour: UserPrice = None) -> Offer | None:
    """Return the offer that prices one machine of a layout; None if there is no offer.

    The user's own price comes first, then the offer of the machine that the layout names, then the cheapest offer.
    """
    own = _own_price(layout, usd_per_hour)
    layout = in_trays(layout)
    if own is not None:
        return Offer(
            provider=USER,
            instance=OWN_PRICE_MACHINE,
            gpu=layout.gpu.name,
            num_gpus=layout.gpus_per_node,
            usd_per_hour=own / layout.nodes,
            date=date.today().isoformat(),
            source=USER,
        )
    named = None if layout.machine is None else machine_offer(layout.machine, layout.gpu.name, offers)
    return named or cheapest_offer(layout.gpu.name, offers, num_gpus=layout.gpus_per_node)


def on_offered_network(
    layout: Layout, *, offers: Sequence[Offer] | None = None, usd_per_hour: UserPrice = None
) -> Layout:
    """Return the layout with the network of the cloud machine that prices it, if the provider states a network.

    A layout on a single machine, with a named machine, or with the user's own price is returned unchanged.
    """
    if layout.nodes == 1 or layout.network is not None:
        return layout
    offer = offer_for(layout, offers=offers, usd_per_hour=usd_per_hour)
    machine = None if offer is None or layout.machine is not None else find_machine(offer.instance)
    network = None if machine is None else machine.network
    return layout if network is None or network.gpus < layout.gpus_per_node else replace(layout, network=network)


def _own_price(layout: Layout, usd_per_hour: UserPrice) -> float | None:
    """Return the user's price of the whole layout; None if the user gave no price for this layout or GPU."""
    if isinstance(usd_per_hour, Mapping):
        if layout.name in usd_per_hour:
            return float(usd_per_hour[layout.name])
        usd_per_hour = usd_per_hour.get(layout.gpu.name)
    return None if usd_per_hour is None else float(usd_per_hour) * layout.count


def price_of(
    run: Run,
    layout: Layout,
    *,
    offers: Sequence[Offer] | None = None,
    usd_per_hour: UserPrice = None,
    charges: Charges | None = None,
) -> Price:
    """Return the price of a run on a layout. Whole machines count, even if the layout uses only some of their GPUs.

    Without `offers`, the package's count; the user's own `usd_per_hour` takes precedence.
    """
    offer = offer_for(layout, offers=offers, usd_per_hour=usd_per_hour)
    if offer is None:
        return Price()
    charges = Charges() if charges is None else charges
    price, seconds = offer.usd_per_hour * in_trays(layout).nodes, run.total_seconds
    return Price(
        usd_per_hour=price,
        cost_usd=None if seconds is None else charges.cost_usd(seconds, price),
        offer=offer.label,
        priced_on=offer.date,
        provider=offer.provider,
        fresh_days=offer.fresh_days,
        machine_gpus=offer.num_gpus,
    )
