"""`Iteration`: predicted seconds of one training step on one GPU, and how they come about.

The step ends when both queues are done: the host that launches and the device that computes. Example::

    >>> step = Iteration(gpu="T4", seconds=0.010, low_seconds=0.009, high_seconds=0.012, device_seconds=0.010,
    ...                  host_seconds=0.004, coverage={"mlp": 0.8, "roofline": 0.2})
    >>> step.idle_seconds
    0.0
    >>> step.bound_by
    'device'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

from lightning_predict.timeline.verdict import Verdict


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One step on one GPU.

    Attributes:
        gpu: Name of the GPU.
        seconds: Middle of the prediction.
        low_seconds: Lower end of the 90 % interval.
        high_seconds: Upper end of the 90 % interval.
        device_seconds: Time that the device computes.
        host_seconds: Time that the host needs to launch all of it, and for the Python work of the step in between.
        coverage: Share of the device time by method; sums to 1. Methods: `measured`, by a kernel recorded on this GPU;
            `wave`, wave-scaled from another; `mlp`, by a network trained on the operation in its dtype; `proxy`,
            through a related operation or dtype; `bytes`, as a copy; `roofline`, from peaks alone.
        forward_seconds: Device time of the forward phase, for estimates of validation.
        optimizer_seconds: Device time of the optimizer, which a short accumulation window takes whole.
        verdict: What bounds the step, and whose time it is; None where no timeline was simulated.
        communication_seconds: Time of all collectives of a step between GPUs; 0 on one.
        added_seconds: By how much the step is longer than on one GPU: communication that no work hides, and waiting for
            the slowest. Below 0 where a shared update saves more than that.
        notes: What was not covered, in words for the user.
        base_share: Share of the device time by networks that saw no measurement of this GPU.
    """

    gpu: str
    seconds: float
    low_seconds: float
    high_seconds: float
    device_seconds: float
    host_seconds: float
    coverage: Mapping[str, float]
    forward_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    verdict: Verdict | None = None
    communication_seconds: float = 0.0
    added_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    base_share: float = 0.0

    @property
    def idle_seconds(self) -> float:
        """Time in which the device waits for the host."""
        return max(self.seconds - self.device_seconds, 0.0)

    @property
    def bound_by(self) -> Literal["device", "host"]:
        """Which queue ends last: a faster GPU does not help a step that is bound by the host."""
        return "host" if self.host_seconds > self.device_seconds else "device"
