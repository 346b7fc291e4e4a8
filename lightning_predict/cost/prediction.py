"""Price of a run, and the `Prediction` that users get: layout, step, run, price and memory.

The user's own price takes precedence over the cheapest listed offer. Example::

    layout = layout_of("T4")
    price = price_of(run, layout, usd_per_hour=0.50)
    price.cost_usd  # hours x 0.50
    Prediction(layout, step, run, price, memory_need(layout, 3e9)).cost_usd
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, final

from lightning_predict.checked import positive_number, shown
from lightning_predict.cost.memory import MemoryFit, MemoryNeed
from lightning_predict.cost.offers import OWN_PRICE, USER, Offer, cheapest_offer, machine_offer
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.layouts import Layout, find_machine, in_trays
from lightning_predict.interval import Interval
from lightning_predict.run.workload import Run
from lightning_predict.units import minutes_to_seconds, seconds_to_hours

if TYPE_CHECKING:
    from lightning_predict.timeline.step_prediction import StepPrediction
    from lightning_predict.timeline.verdict import Verdict


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of a run.

    Attributes:
        usd_per_hour: Price of all machines of the layout; None if there is no offer.
        cost_usd: Cost of the whole run; None if its length or its price is unknown.
        offer: Source and date of the price; None if there is no offer.
        priced_on: Date of the price, as listed (a day or a month); None if there is no offer.
        provider: Who rents out the machines; None if there is no offer.
    """

    usd_per_hour: float | None = None
    cost_usd: float | None = None
    offer: str | None = None
    priced_on: str | None = None
    provider: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Prediction:
    """Everything predicted for one GPU or layout; unknown values have the value None.

    The five parts hold the values; each value also has a flat name.

    Attributes:
        layout: The GPUs.
        step: One training step.
        run: The rest of the run.
        price: Price of the run.
        memory: Memory of a step, and whether it fits.
    """

    layout: Layout
    step: StepPrediction
    run: Run
    price: Price
    memory: MemoryNeed

    @property
    def gpu(self) -> str:
        """Catalogue name of the GPU or layout."""
        return self.layout.name

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of the layout."""
        return self.layout.count

    @property
    def iteration(self) -> Interval[float]:
        """Seconds of one training step, with a 90 % interval."""
        return self.step.interval

    @property
    def iteration_seconds(self) -> float:
        """Seconds of one training step."""
        return self.step.seconds

    @property
    def iteration_seconds_low(self) -> float:
        """Lower end of the 90 % interval of a training step."""
        return self.step.low_seconds

    @property
    def iteration_seconds_high(self) -> float:
        """Upper end of the 90 % interval of a training step."""
        return self.step.high_seconds

    @property
    def device_seconds(self) -> float:
        """GPU compute time of a step, in seconds."""
        return self.step.device_seconds

    @property
    def host_seconds(self) -> float:
        """Host time to launch a step, in seconds."""
        return self.step.host_seconds

    @property
    def communication_seconds(self) -> float:
        """Time of a step's collectives between GPUs, including overlapped ones, in seconds; 0 on one GPU."""
        return self.step.communication_seconds

    @property
    def added_seconds(self) -> float:
        """Extra seconds of a step beyond one GPU's own work: exposed communication, and waits for other GPUs."""
        return self.step.added_seconds

    @property
    def measured_seconds(self) -> float | None:
        """Measured seconds of a step; None except on the GPU in use."""
        return self.step.measured_seconds

    @property
    def unmeasured_seconds(self) -> float | None:
        """Seconds of a step as predicted without measurements; None except on the GPU in use."""
        return self.step.unmeasured_seconds

    @property
    def iterations(self) -> int | None:
        """Remaining training steps."""
        return self.run.iterations

    @property
    def total(self) -> Interval[float] | None:
        """Seconds of the rest of the run, including validation, with a 90 % interval."""
        return self.run.total

    @property
    def total_seconds(self) -> float | None:
        """Seconds of the rest of the run, including validation."""
        return self.run.total_seconds

    @property
    def total_seconds_low(self) -> float | None:
        """Lower end of the 90 % interval of the run."""
        return None if self.run.total is None else self.run.total.low

    @property
    def total_seconds_high(self) -> float | None:
        """Upper end of the 90 % interval of the run."""
        return None if self.run.total is None else self.run.total.high

    @property
    def validation_seconds(self) -> float | None:
        """Validation's part of `total_seconds`."""
        return self.run.validation_seconds

    @property
    def validation_is_estimated(self) -> bool:
        """Whether the validation time is estimated from the forward share of a training step."""
        return self.run.validation_is_estimated

    @property
    def cycle_seconds(self) -> float:
        """Seconds of a step and its wait for the loader."""
        return self.run.cycle_seconds

    @property
    def cycle(self) -> Interval[float]:
        """Seconds of a step and its wait for the loader, with a 90 % interval."""
        return self.iteration.added(self.cycle_seconds - self.iteration_seconds)

    @property
    def epoch_seconds(self) -> float | None:
        """Training time of one epoch, in seconds."""
        return self.run.epoch_seconds

    @property
    def loader_seconds(self) -> float:
        """Loader time for the batches of a step, in seconds; it bounds the step if it is longer than the step."""
        return self.run.loader_seconds

    @property
    def checkpoint_seconds(self) -> float | None:
        """Part of `total_seconds` spent on writing checkpoints."""
        return self.run.checkpoint_seconds

    @property
    def checkpoint_is_estimated(self) -> bool:
        """Whether the checkpoint time is estimated from the size of the state because none was measured."""
        return self.run.checkpoint_is_estimated

    @property
    def at_most(self) -> bool:
        """Whether the run may end earlier."""
        return self.run.at_most

    @property
    def is_cut_off(self) -> bool:
        """Whether the Trainer's time limit ends the run; the totals then stop at the limit."""
        return self.run.is_cut_off

    @property
    def samples_per_second(self) -> float | None:
        """Throughput of all GPUs."""
        samples = self.run.samples_per_iteration
        return None if samples is None else samples / self.step.seconds

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all machines rented for the layout."""
        return self.price.usd_per_hour

    @property
    def cost_usd(self) -> float | None:
        """Cost of the rest of the run."""
        return self.price.cost_usd

    @property
    def offer(self) -> str | None:
        """Source and date of the price."""
        return self.price.offer

    @property
    def memory_bytes(self) -> float | None:
        """Peak memory of a step on each GPU."""
        return self.memory.memory_bytes

    @property
    def fits(self) -> bool | None:
        """Whether a step fits in the GPU's memory, perhaps tightly."""
        return self.memory.fits

    @property
    def memory_fit(self) -> MemoryFit | None:
        """Memory verdict: `fits` with a margin, `tight` without, or `exceeds`."""
        return self.memory.memory_fit

    @property
    def memory_free_bytes(self) -> float | None:
        """Usable memory left by a step; negative if it does not fit."""
        return self.memory.memory_free_bytes

    @property
    def coverage(self) -> Mapping[str, float]:
        """Share of the GPU time by prediction method; the shares add up to 1. See `StepPrediction`."""
        return self.step.coverage

    @property
    def base_share(self) -> float:
        """Share of the GPU time predicted by networks without any measurement of this GPU."""
        return self.step.extrapolated_share

    @property
    def verdict(self) -> Verdict | None:
        """What bounds the step, the gain from a faster GPU, and the critical path by module."""
        return self.step.verdict

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on gaps of the prediction."""
        return self.step.notes

    def as_dict(self) -> dict[str, Any]:
        """Return all values by their flat names, JSON-serializable."""
        values = {name: getattr(self, name) for name in FLAT_NAMES}
        values |= {"coverage": dict(self.coverage), "notes": list(self.notes)}
        if self.verdict is not None:
            values["verdict"] = asdict(self.verdict) | {"sentence": self.verdict.sentence}
        return values


FLAT_NAMES: Final = tuple(
    "gpu iteration_seconds iteration_seconds_low iteration_seconds_high device_seconds host_seconds num_gpus "
    "communication_seconds added_seconds measured_seconds unmeasured_seconds iterations total_seconds "
    "total_seconds_low total_seconds_high validation_seconds validation_is_estimated cycle_seconds epoch_seconds "
    "loader_seconds checkpoint_seconds checkpoint_is_estimated at_most is_cut_off samples_per_second usd_per_hour "
    "cost_usd offer memory_bytes fits memory_fit memory_free_bytes coverage base_share verdict notes".split()
)
"""Flat names of a prediction's values in JSON, in order."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInUse:
    """The machine that recorded the step, timed by its own steps: a CPU, or a GPU without a prediction.

    Attributes:
        name: Name of its GPU in the catalogue, or as it reports itself, or `CPU`.
        step_seconds: Measured time of a step.
        cycle_seconds: Time of a step and its wait for the loader; None if not measured.
        total: Seconds of the rest of the run; None if its length is unknown.
        at_most: Whether the run may end earlier.
        is_cut_off: Whether a time limit ends the run; the total then stops at the limit.
        price: Price of the run there.
        memory: Memory of its GPU; empty for a CPU.
    """

    name: str
    step_seconds: float
    cycle_seconds: float | None = None
    total: Interval[float] | None = None
    at_most: bool = False
    is_cut_off: bool = False
    price: Price = field(default_factory=Price)
    memory: MemoryNeed = field(default_factory=MemoryNeed)

    @property
    def cycle(self) -> Interval[float]:
        """Measured seconds of a step and its wait for the loader."""
        seconds = self.step_seconds if self.cycle_seconds is None else self.cycle_seconds
        return Interval(seconds, seconds, seconds)


class AbstractPredictions(Mapping[str, Prediction]):
    """Mapping from GPU names to predictions, with the information that a table shows for all of them.

    Attributes:
        used_gpu: Name of the GPU that recorded the trace, if it is in the catalogue.
        notes: Notes on all predictions.
        machine: The machine in use, if there is no prediction for it; None if it was not timed.
        heading: Title of the predictions: number and size of the steps, and where one was recorded.
        is_running: Whether the run is still in progress, so that the machine in use is this one.
        made_on: Day of the prediction (ISO 8601), used for the age of prices; None leaves the age out.
    """

    used_gpu: str | None
    notes: tuple[str, ...]
    machine: MachineInUse | None
    heading: str | None
    is_running: bool
    made_on: str | None


UserPrice = float | Decimal | Fraction | Mapping[str, float | Decimal | Fraction] | None
"""Price of one GPU: a single price, or prices by catalogue name; under the name of a layout, the price of the whole
layout. Other GPUs use the listed offers."""


def check_price(usd_per_hour: UserPrice) -> None:
    """Validate that prices are positive numbers.

    Raises:
        InvalidArgumentError: A price is zero, negative, infinite or not a number.
    """
    prices = usd_per_hour.values() if isinstance(usd_per_hour, Mapping) else [usd_per_hour]
    for price in prices:
        if price is not None and positive_number(price) is None:
            raise InvalidArgumentError(
                f"usd_per_hour={shown(price)} is not a price; expected US dollars per hour above 0."
            )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """Costs of a rented machine besides its training time.

    Attributes:
        setup_minutes: Time from the start of the machine until training starts: boot, environment, data.
        minimum_minutes: Minimum billed time of a machine.
        storage_usd: Dollars for storage and transfer, on any machine.

    Raises:
        InvalidArgumentError: A value is negative or not a number.
    """

    setup_minutes: float = 0.0
    minimum_minutes: float = 0.0
    storage_usd: float = 0.0

    def __post_init__(self) -> None:
        for name, amount in asdict(self).items():
            is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
            if not (is_number and 0 <= amount < math.inf):
                raise InvalidArgumentError(f"{name}={shown(amount)} is out of range; expected a number of at least 0.")

    def cost_usd(self, seconds: float, usd_per_hour: float) -> float:
        """Return the cost of a run of this length on machines of this price."""
        billed = max(seconds + minutes_to_seconds(self.setup_minutes), minutes_to_seconds(self.minimum_minutes))
        return seconds_to_hours(billed) * usd_per_hour + self.storage_usd

    @property
    def sentence(self) -> str | None:
        """Costs that are included besides training, in words; None without such costs."""
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
    """Choose the offer that prices one machine; None without any.

    The order is: the user's own price, the offer of the machine that the layout names, the cheapest offer.
    """
    own = _own_price(layout, usd_per_hour)
    layout = in_trays(layout)
    gpu = layout.gpu
    if own is not None:
        return Offer(
            provider=USER,
            instance=OWN_PRICE,
            gpu=gpu.name,
            num_gpus=layout.gpus_per_node,
            usd_per_hour=own / layout.nodes,
            date=date.today().isoformat(),
            source=USER,
        )
    named = None if layout.machine is None else machine_offer(layout.machine, gpu.name, offers)
    return named or cheapest_offer(gpu.name, offers, num_gpus=layout.gpus_per_node)


def on_offered_network(
    layout: Layout, *, offers: Sequence[Offer] | None = None, usd_per_hour: UserPrice = None
) -> Layout:
    """Return the layout with the network of the cloud machine that prices it, if its provider states one.

    This makes the predicted machine the one that would be rented. A layout with a named machine, on a single machine,
    or with the user's own price is unchanged.
    """
    if layout.nodes == 1 or layout.network is not None:
        return layout
    offer = offer_for(layout, offers=offers, usd_per_hour=usd_per_hour)
    machine = None if offer is None or layout.machine is not None else find_machine(offer.instance)
    network = None if machine is None else machine.network
    return layout if network is None or network.gpus < layout.gpus_per_node else replace(layout, network=network)


def _own_price(layout: Layout, usd_per_hour: UserPrice) -> float | None:
    """Return the user's price of the whole layout: its own entry, else the price of one GPU times their number."""
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
    """Price a run on a layout. Whole machines are paid for, even if only some of their GPUs are used.

    Args:
        run: The rest of the run.
        layout: The GPUs that it runs on.
        offers: Offers to choose from; None uses the offers of the package.
        usd_per_hour: The user's own price, which takes precedence.
        charges: Additional costs; None for no additional costs, as on the machine in use.
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
    )
