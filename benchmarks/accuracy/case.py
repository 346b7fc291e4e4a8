"""A published figure, and how a user would have it predicted: the one format of all accuracy tables.

A case names the recording of a step (plain model code, or a trace file), the documented arguments that whoever ran the
step could give, and what was measured. Knowledge without a public argument has no place here. Example::

    Case(
        source="Lambda, V100",
        model="BERT-large",
        gpu="V100-SXM2-16GB",
        step=Step(name="bert-large-8", record=lambda: lp.capture(step)),
        measured=0.25,
        release="1.10",
    )
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

import lightning_predict as lp

Quantity = Literal["time", "allocated", "reserved", "process", "gain", "fits"]

TITLES: Final[dict[Quantity, str]] = {
    "time": "time",
    "allocated": "allocated memory",
    "reserved": "reserved memory",
    "process": "memory of the process",
    "gain": "gain",
    "fits": "does it fit",
}
"""Words for a quantity in the titles of tables. A gain is a throughput over another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step, and how it is recorded."""

    name: str  # Identifies the recording; the name of its file in a cache
    record: Callable[[], lp.Trace] = field(compare=False, repr=False)  # Records it


def step_of_file(path: Path) -> Step:
    """Return the step of a published trace file."""
    return Step(name=str(path), record=partial(lp.Trace.load, str(path)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A measured figure."""

    source: str  # Machine and software that measured it; a row of the summary
    model: str  # Model, mode and precision
    gpu: str  # GPU or layout, as a user names it
    step: Step  # The step
    measured: float  # The figure: seconds, bytes, a ratio, or whether the step fitted (1 or 0)
    quantity: Quantity = "time"  # What was measured
    count: float = 1  # Number of steps in the figure
    further: tuple[tuple[Step, float], ...] = ()  # Further steps in the figure, with their numbers
    # GPU with other values than the catalogue's, such as a locked clock; None for the catalogue's
    card: lp.Gpu | None = None
    release: str | None = None  # Release of torch that ran; None for the release of the recording
    strategy: str = "ddp"  # How several GPUs share the step
    network_gbps: float | None = None  # Network of a machine in Gbit/s; None for the usual one
    # Kernels that the source says ran, such as `compile` or `transformer_engine`. A step with kernels that `lp.predict`
    # has no word for is predicted as recorded.
    kernels: tuple[str, ...] = ()
    # FLOP/s by dtype that the machine sustains in large products, if its owners measured it
    rates: tuple[tuple[str, float], ...] = ()
    change: str | None = None  # Name of the change whose gain was measured, as `lp.advise` names it
    includes: str = ""  # What the figure holds beyond the step, such as a data loader; empty if nothing
    # What other tools said of the figure, by their name, as published beside it
    said: Mapping[str, float] = field(default_factory=dict)
    # Whether a constant of the package was chosen on this case, in a source that is held out otherwise
    chosen_on: bool = False

    @property
    def setting(self) -> str:
        """What distinguishes the case besides its model and GPU, in words."""
        ran = (f"ran {name}" for name in self.kernels)
        words = (self.strategy if self.strategy != "ddp" else "", *ran, self.change, self.includes)
        return ", ".join(word for word in words if word)


def strategy_text(data: str = "ddp", **options: int | str | bool | None) -> str:
    """Write a strategy as a user does.

    Args:
        data: What data-parallel groups shard.
        **options: Options by name. None, False and degrees of 1 are left out.
    """
    degrees = ("tensor", "pipeline", "context", "virtual", "expert", "accumulate")
    kept = {
        name: str(value).lower()
        for name, value in options.items()
        if value is not None and value is not False and not (name in degrees and value == 1)
    }
    return ",".join([data, *(f"{name}={value}" for name, value in kept.items())])


def machines(gpu: str, count: int, per_machine: int = 8) -> str:
    """Name a layout: GPUs in machines as large as they come in.

    Args:
        gpu: Name of a GPU.
        count: Number of GPUs.
        per_machine: GPUs of a machine.
    """
    each = min(count, 4 if gpu.startswith("GB") else per_machine)
    nodes = count // each
    return gpu if count == 1 else f"{each}x{gpu}" if nodes == 1 else f"{nodes}x{each}x{gpu}"


Reader = Callable[[Path], Iterable[Case]]  # Reads a table's cases from a folder of data
