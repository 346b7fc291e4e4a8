"""Price a run, and flatten all that is known of one GPU or layout into the `Prediction` that users get.

The user's own price comes first, then the cheapest offer that is listed. Example::

    quote = quote_of(run, layout_of("T4"), memory_bytes=3e9, usd_per_hour=0.50)
    quote.cost_usd  # hours x 0.50
    prediction_of(step, run, quote, workload=workload, layout=layout_of("T4")).cost_usd
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any, Final, final

from lightning_predict.cost.memory import MemoryFit, memory_fit, usable_bytes
from lightning_predict.cost.offers import Offer, cheapest_offer
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.layouts import Layout
from lightning_predict.interval import Interval
from lightning_predict.run.workload import Run, Workload
from lightning_predict.timeline.iteration import Iteration
from lightning_predict.timeline.same_gpu import SameGpuCheck
from lightning_predict.timeline.verdict import Verdict
from lightning_predict.units import seconds_to_hours


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A run at a price.

    Attributes:
        gpu: Name of the GPU.
        usd_per_hour: Price; None where no offer is known.
        offer: Where the price comes from; None where no offer is known.
        cost_usd: Of the whole run; None where its length or its price is unknown.
        memory_bytes: Needed on one GPU; None where unknown.
        fits: It fits in the GPU's memory, perhaps narrowly; None where `memory_bytes` is unknown.
        memory_fit: Whether it fits with a margin (`cost/memory.py`).
        memory_free_bytes: What it leaves free, below 0 where it does not fit.
    """

    gpu: str
    usd_per_hour: float | None
    offer: Offer | None
    cost_usd: float | None
    memory_bytes: float | None
    fits: bool | None
    memory_fit: MemoryFit | None = None
    memory_free_bytes: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """All that is predicted for one GPU or layout; what is not known is None.

    Attributes:
        gpu: Name of the GPU or layout as asked for, in our spelling.
        num_gpus: GPUs of the layout.
        iteration: Seconds of one training step, by parts as `iteration_seconds`, `..._low` and `..._high`.
        device_seconds: Time of a step in which the device computes.
        host_seconds: Time that the host needs to launch a step.
        measured_seconds: The step as measured, where this is the GPU in use.
        unmeasured_seconds: The step as it would be predicted without any measurement, where this is the GPU in use.
        iterations: Training steps still to come.
        total: Seconds of the run still to come, validation included, by parts as `total_seconds` and so on.
        validation_seconds: Validation's part of `total_seconds`.
        validation_is_estimated: Validation's time is the forward share of a training step.
        cycle_seconds: A step with its wait for the loader.
        epoch_seconds: Training of one epoch.
        loader_seconds: What the loader takes for the batches of a step; where it is the longer, it bounds the step.
        checkpoint_seconds: The part of `total_seconds` in which checkpoints are written.
        checkpoint_is_estimated: That part follows from the size of the state, and was not timed.
        at_most: The run may end earlier.
        is_cut_off: The Trainer's time limit ends the run; the totals are what is left until then.
        communication_seconds: Time of a step's collectives between GPUs, hidden or not; 0 on one.
        added_seconds: By how much a step is longer than on one GPU: communication that no work hides, and the wait for
            the slowest.
        samples_per_second: Throughput of all GPUs.
        usd_per_hour: Price of the whole machine that is rented for it.
        cost_usd: Of the run still to come.
        offer: Where the price comes from, with its date.
        memory_bytes: Peak memory of a step on each GPU.
        fits: It fits in the GPU's memory, perhaps narrowly.
        memory_fit: `fits` with a margin, `tight` without, or `exceeds`.
        memory_free_bytes: What the step leaves free of what a process can use; below 0 where it does not fit.
        coverage: Share of the device time by method; sums to 1. See `timeline.records.Iteration`.
        base_share: Share of the device time by networks that saw no measurement of this GPU.
        verdict: What bounds the step, what a faster GPU gains, and the critical path by module.
        notes: What was not covered, in words.
    """

    gpu: str
    iteration: Interval
    device_seconds: float
    host_seconds: float
    num_gpus: int = 1
    communication_seconds: float = 0.0
    added_seconds: float = 0.0
    measured_seconds: float | None = None
    unmeasured_seconds: float | None = None
    iterations: int | None = None
    total: Interval | None = None
    validation_seconds: float | None = None
    validation_is_estimated: bool = False
    cycle_seconds: float | None = None
    epoch_seconds: float | None = None
    loader_seconds: float | None = None
    checkpoint_seconds: float | None = None
    checkpoint_is_estimated: bool = False
    at_most: bool = False
    is_cut_off: bool = False
    samples_per_second: float | None = None
    usd_per_hour: float | None = None
    cost_usd: float | None = None
    offer: str | None = None
    memory_bytes: float | None = None
    fits: bool | None = None
    memory_fit: MemoryFit | None = None
    memory_free_bytes: float | None = None
    coverage: Mapping[str, float] = field(default_factory=dict)
    base_share: float = 0.0
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()

    @property
    def iteration_seconds(self) -> float:
        """Time of one training step."""
        return self.iteration.middle

    @property
    def iteration_seconds_low(self) -> float:
        """Lower end of the 90 % interval of a training step."""
        return self.iteration.low

    @property
    def iteration_seconds_high(self) -> float:
        """Upper end of the 90 % interval of a training step."""
        return self.iteration.high

    @property
    def total_seconds(self) -> float | None:
        """Time of the run still to come, validation included; None where its length is unknown."""
        return None if self.total is None else self.total.middle

    @property
    def total_seconds_low(self) -> float | None:
        """Lower end of the 90 % interval of the run; None where its length is unknown."""
        return None if self.total is None else self.total.low

    @property
    def total_seconds_high(self) -> float | None:
        """Upper end of the 90 % interval of the run; None where its length is unknown."""
        return None if self.total is None else self.total.high

    def as_dict(self) -> dict[str, Any]:
        """Give all fields as JSON values, intervals by their flat names."""
        fields = asdict(self) | {"coverage": dict(self.coverage), "notes": list(self.notes)}
        values: dict[str, Any] = {}
        for name, value in fields.items():
            if name in ("iteration", "total"):
                ends = value or {}
                values[f"{name}_seconds"] = ends.get("middle")
                values |= {f"{name}_seconds_{end}": ends.get(end) for end in ("low", "high")}
            else:
                values[name] = value
        if self.verdict is not None:
            values["verdict"]["sentence"] = self.verdict.sentence
        return values


UserPrice = float | Mapping[str, float] | None
"""Price of one GPU, the same for all or by our name of the GPU; by the name of a layout, the price of all of it. What
it does not name takes the listed offers."""

USER: Final = "user"


def check_price(usd_per_hour: UserPrice) -> None:
    """Refuse prices that are not positive numbers.

    Raises:
        InvalidArgumentError: A price that is zero, negative, infinite or not a number.
    """
    prices = usd_per_hour.values() if isinstance(usd_per_hour, Mapping) else [usd_per_hour]
    for price in prices:
        if price is not None and not (math.isfinite(price) and price > 0):
            raise InvalidArgumentError(f"usd_per_hour={price!r} is not a price; expected US dollars per hour above 0.")


def offer_for(layout: Layout, *, offers: Sequence[Offer] | None = None, usd_per_hour: UserPrice = None) -> Offer | None:
    """Choose the price of one machine: the user's own, else the cheapest offer; None where there is none."""
    own = _own_price(layout, usd_per_hour)
    gpu = layout.gpu
    if own is not None:
        return Offer(
            provider=USER,
            instance="own price",
            gpu=gpu.name,
            num_gpus=layout.gpus_per_node,
            usd_per_hour=own / layout.nodes,
            date=date.today().isoformat(),
            source=USER,
        )
    return cheapest_offer(gpu.name, offers, num_gpus=layout.gpus_per_node)


def _own_price(layout: Layout, usd_per_hour: UserPrice) -> float | None:
    """Take the price of the whole layout: as named for it, else that of one of its GPUs times their number."""
    if isinstance(usd_per_hour, Mapping):
        if layout.name in usd_per_hour:
            return usd_per_hour[layout.name]
        usd_per_hour = usd_per_hour.get(layout.gpu.name)
    return None if usd_per_hour is None else usd_per_hour * layout.count


def quote_of(
    run: Run,
    layout: Layout,
    *,
    memory_bytes: float | None,
    reported_bytes: float | None = None,
    offers: Sequence[Offer] | None = None,
    usd_per_hour: UserPrice = None,
) -> Quote:
    """Price the run on a layout, and judge whether it fits.

    Args:
        run: What is still to come.
        layout: The GPUs it runs on.
        memory_bytes: Peak memory of a step on each of them; None where unknown.
        reported_bytes: Memory that the GPU itself reports; None where it is not at hand.
        offers: Offers to choose from; None takes those that ship with the package.
        usd_per_hour: The user's own price, which comes first.
    """
    offer = offer_for(layout, offers=offers, usd_per_hour=usd_per_hour)
    # Whole machines are paid, however many of their GPUs are used.
    price = None if offer is None else offer.usd_per_hour * layout.nodes
    known = price is not None and run.total_seconds is not None
    usable = usable_bytes(layout.gpu, reported_bytes)
    fit = memory_fit(memory_bytes, usable)
    return Quote(
        gpu=layout.name,
        usd_per_hour=price,
        offer=offer,
        cost_usd=seconds_to_hours(run.total_seconds or 0.0) * (price or 0.0) if known else None,
        memory_bytes=memory_bytes,
        fits=None if fit is None else fit != "exceeds",
        memory_fit=fit,
        memory_free_bytes=None if memory_bytes is None else usable - memory_bytes,
    )


def prediction_of(
    step: Iteration,
    run: Run,
    quote: Quote,
    *,
    workload: Workload,
    layout: Layout,
    replicas: int = 1,
    measured_seconds: float | None = None,
    same_gpu: SameGpuCheck | None = None,
) -> Prediction:
    """Flatten all that is known of a layout into the record that users get.

    Args:
        step: Its step.
        run: The rest of the run on it.
        quote: The run at a price.
        workload: What one replica has still to do.
        layout: The GPUs.
        replicas: Groups of them that work through samples of their own.
        measured_seconds: The step as measured, where this is what is in use.
        same_gpu: How the step would have been predicted without that; likewise.
    """
    samples = workload.samples_per_iteration
    return Prediction(
        gpu=step.gpu,
        num_gpus=layout.count,
        iteration=Interval(step.low_seconds, step.seconds, step.high_seconds),
        device_seconds=step.device_seconds,
        host_seconds=step.host_seconds,
        communication_seconds=step.communication_seconds,
        added_seconds=step.added_seconds,
        measured_seconds=measured_seconds,
        unmeasured_seconds=None if same_gpu is None else same_gpu.predicted_seconds,
        iterations=workload.training_iterations,
        total=run.total,
        validation_seconds=run.validation_seconds,
        validation_is_estimated=run.validation_is_estimated,
        cycle_seconds=run.cycle_seconds,
        epoch_seconds=run.epoch_seconds,
        loader_seconds=run.loader_seconds,
        checkpoint_seconds=run.checkpoint_seconds,
        checkpoint_is_estimated=run.checkpoint_is_estimated,
        at_most=run.at_most,
        is_cut_off=run.is_cut_off,
        samples_per_second=None if samples is None else replicas * samples / step.seconds,
        usd_per_hour=quote.usd_per_hour,
        cost_usd=quote.cost_usd,
        offer=None if quote.offer is None else quote.offer.label,
        memory_bytes=quote.memory_bytes,
        fits=quote.fits,
        memory_fit=quote.memory_fit,
        memory_free_bytes=quote.memory_free_bytes,
        coverage=dict(step.coverage),
        base_share=step.base_share,
        verdict=step.verdict,
        notes=step.notes,
    )
