"""A stand-in for trained models: half of the roofline's speed, with an interval of 10 %."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_predict.base.interval import Interval
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.operations import ShapeBatch
from lightning_predict.kernels.roofline import roofline_seconds
from lightning_predict.kernels.timing import Estimate, TimedBy


@dataclass(frozen=True)
class HalfSpeed:
    """Knows the (operation, dtype) pairs it is given, at a utilisation of one half."""

    known: frozenset[tuple[str, str]]
    served_as: TimedBy = "mlp"

    def for_gpu(self, gpu_name: str) -> HalfSpeed:
        return self

    def supports(self, operation: str, dtype: str) -> bool:
        return (operation, dtype) in self.known

    def timed_by(self, operation: str, dtype: str) -> TimedBy:
        return self.served_as

    def measured_factor(self, gpu_name: str, operation: str, dtype: str) -> None:
        return None

    def estimate(self, batch: ShapeBatch, gpus: Sequence[Gpu]) -> Estimate:
        assert self.supports(batch.operation, batch.dtype)
        seconds = 2 * roofline_seconds(batch, gpus)
        return Estimate(Interval.from_factor(seconds, 1.1))


def half_speed(*known: str) -> HalfSpeed:
    """`half_speed("linear/float32")`."""
    return HalfSpeed(frozenset((pair.split("/")[0], pair.split("/")[1]) for pair in known))
