"""`PastRun`: a run that has ended, as the regressions see it: its setting in numbers, and its time.

The numbers are those of Gianniti, Zhang and Ardagna (CLOSER 2019): iterations, batch size, computing power, number of
GPUs, threads and the delay of the disk; and the inner modules, which say how deep a network of a family is. Example::

    >>> setting = RunSetting(iterations=1000, batch_size=64, gpu="T4")
    >>> setting.value("flops_per_second") / 1e12  # of the catalogue, in float32
    8.141
    >>> PastRun(model="ResNet-50", setting=setting, seconds=210.0).seconds_per_iteration
    0.21
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, final

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.layouts import layout_of

Variable = Literal[
    "iterations", "batch_size", "flops_per_second", "num_gpus", "threads", "disk_seconds", "inner_modules"
]

VARIABLES: Final[tuple[Variable, ...]] = (
    "iterations",
    "batch_size",
    "flops_per_second",
    "num_gpus",
    "threads",
    "disk_seconds",
    "inner_modules",
)
"""What a run's time may depend on, in the order in which it is told."""

WORDS: Final[dict[Variable, str]] = {
    "iterations": "iterations",
    "batch_size": "batch size",
    "flops_per_second": "FLOP/s",
    "num_gpus": "number of GPUs",
    "threads": "threads",
    "disk_seconds": "disk delay",
    "inner_modules": "inner modules",
}
"""The variables in words."""

POWER_DTYPE: Final = "float32"
"""The dtype of the peak that stands for a GPU's computing power."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetting:
    """The settings of a run.

    Attributes:
        iterations: Training iterations.
        batch_size: Samples of one iteration on one GPU.
        gpu: Name of the GPU, or of several (`8xL4`); our name of one once made. None if only its computing power is
            known.
        flops_per_second: Computing power of one GPU; where None, the catalogue's float32 peak of `gpu`.
        num_gpus: GPUs of the run, those that `gpu` names included.
        threads: Processor threads (of the loaders); None if unknown.
        disk_seconds: Delay of the disk; None if unknown.
        inner_modules: Repeated modules that the network has, for families of networks of several depths; None for one
            network.

    Raises:
        InvalidArgumentError: A value outside its range, neither `gpu` nor `flops_per_second`, or two numbers of GPUs.
        UnknownGpuError: The catalogue does not hold the GPU, and no computing power is given.
    """

    iterations: int
    batch_size: int
    gpu: str | None = None
    flops_per_second: float | None = None
    num_gpus: int = 1
    threads: int | None = None
    disk_seconds: float | None = None
    inner_modules: int | None = None

    def __post_init__(self) -> None:
        for name in ("iterations", "batch_size", "num_gpus", "threads", "inner_modules"):
            count = getattr(self, name)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise InvalidArgumentError(f"{name}={count!r}; expected a whole number of at least 1.")
        _check("flops_per_second", self.flops_per_second, above=True)
        _check("disk_seconds", self.disk_seconds, above=False)
        if self.flops_per_second is None:
            if self.gpu is None:
                raise InvalidArgumentError("A run needs its GPU's name or its computing power (flops_per_second).")
            layout = layout_of(self.gpu)
            if layout.count > 1 and self.num_gpus not in (1, layout.count):
                raise InvalidArgumentError(
                    f"gpu={self.gpu!r} is {layout.count} GPUs and num_gpus={self.num_gpus}; leave one of them out."
                )
            object.__setattr__(self, "gpu", layout.gpu.name)
            object.__setattr__(self, "num_gpus", max(self.num_gpus, layout.count))
            object.__setattr__(self, "flops_per_second", layout.gpu.peak_flops_per_second[POWER_DTYPE])

    def value(self, variable: Variable) -> float | None:
        """Return a variable as a number; None if unknown."""
        value = getattr(self, variable)
        return None if value is None else float(value)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """A run that has ended.

    Attributes:
        model: Name of what was trained: a network, or a family of networks that `inner_modules` tells apart.
        setting: How it was run.
        seconds: Time that it took.

    Raises:
        InvalidArgumentError: A time that is not above 0.
    """

    model: str
    setting: RunSetting
    seconds: float

    def __post_init__(self) -> None:
        _check("seconds", self.seconds, above=True)

    @property
    def seconds_per_iteration(self) -> float:
        """Mean time of an iteration."""
        return self.seconds / self.setting.iterations


def _check(name: str, value: float | None, *, above: bool) -> None:
    if value is None:
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < 0 or (above and value == 0):
        expected = "a number above 0" if above else "a number of at least 0"
        raise InvalidArgumentError(f"{name}={value!r}; expected {expected}.")
