"""`Offer`, `Quote` and `Prediction`: prices, a run at a price, and the flat record that users get.

Example::

    >>> offer = Offer(provider="Lambda", instance="gpu_1x_a10", gpu="A10", num_gpus=1, usd_per_hour=0.75,
    ...               date="2025-03-01", source="https://lambda.ai/pricing")
    >>> offer.usd_per_gpu_hour
    0.75
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

from lightning_predict.cost.memory_fit import MemoryFit
from lightning_predict.timeline.verdict import Verdict


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A machine that can be rented.

    Attributes:
        provider: Who rents it out; `user` for the user's own price.
        instance: The provider's name for the machine.
        gpu: Our name of its GPU.
        num_gpus: GPUs of one machine.
        usd_per_hour: On-demand price of the whole machine (interruptible where `spot`).
        spot_usd_per_hour: Interruptible price of the whole machine; None where not offered or not known.
        spot: `usd_per_hour` is itself the price of an interruptible machine.
        region: Region that the price holds in; None where it holds in all, or was not stated.
        date: ISO date (or month) of the price.
        source: Where it was read.
    """

    provider: str
    instance: str
    gpu: str
    num_gpus: int
    usd_per_hour: float
    date: str
    source: str
    spot_usd_per_hour: float | None = None
    spot: bool = False
    region: str | None = None

    @property
    def usd_per_gpu_hour(self) -> float:
        """Price of one of its GPUs."""
        return self.usd_per_hour / self.num_gpus

    @property
    def label(self) -> str:
        """Provider, instance and date: what every printed cost names."""
        kind = " spot" if self.spot else ""
        return f"{self.provider} {self.instance}{kind} ({self.date})".replace("  ", " ")


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
        memory_fit: Whether it fits with a margin (`cost/memory_fit.py`).
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
    """All that is predicted for one GPU. What is not known is None.

    Attributes:
        gpu: Name of the GPU or layout as asked for, in our spelling.
        num_gpus: GPUs of the layout.
        iteration_seconds: One training step.
        iteration_seconds_low: Lower end of the 90 % interval.
        iteration_seconds_high: Upper end of the 90 % interval.
        device_seconds: Time of a step in which the device computes.
        host_seconds: Time that the host needs to launch a step.
        measured_seconds: The step as measured, where this is the GPU in use.
        unmeasured_seconds: The step as it would be predicted without any measurement, where this is the GPU in use.
        iterations: Training steps still to come.
        total_seconds: The run still to come, validation included.
        total_seconds_low: Lower end of its 90 % interval.
        total_seconds_high: Upper end of its 90 % interval.
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
    iteration_seconds: float
    iteration_seconds_low: float
    iteration_seconds_high: float
    device_seconds: float
    host_seconds: float
    num_gpus: int = 1
    communication_seconds: float = 0.0
    added_seconds: float = 0.0
    measured_seconds: float | None = None
    unmeasured_seconds: float | None = None
    iterations: int | None = None
    total_seconds: float | None = None
    total_seconds_low: float | None = None
    total_seconds_high: float | None = None
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

    def as_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        values = asdict(self) | {"coverage": dict(self.coverage), "notes": list(self.notes)}
        if self.verdict is not None:
            values["verdict"]["sentence"] = self.verdict.sentence
        return values
