"""Derive what a step holds of a GPU's memory, and judge whether it fits.

Three amounts, each an interval: what torch has *allocated* at the fullest moment, what its allocator has *reserved*
for it (`memory/simulation.py`), and what the whole *process* takes, which is what fills a card and what nvidia-smi
shows: the reserved memory, the context, and the code that libraries load. Where the trace holds measured peaks, they
come first. What must fit is less than what is reserved where there is room: before torch gives up, it frees the
segments that are not in use, and cuDNN tries no algorithm whose workspace does not fit. Example::

    >>> from lightning_predict.tracing.trace import Memory, Operation, TensorInfo, Trace
    >>> hidden = TensorInfo((256,), "float32", id=7)
    >>> trace = Trace(device="cpu", recorder="dispatch", memory=Memory(parameter_bytes=1000, gradient_bytes=1000),
    ...               operations=(Operation(name="aten::relu", phase="forward", outputs=(hidden,)),
    ...                           Operation(name="aten::threshold_backward", phase="backward", inputs=(hidden,))))
    >>> need = step_memory(trace)
    >>> need.lasting_bytes, need.passing_bytes  # 1000 + 1000, and 256 x 4
    (2000, 1024)
    >>> from lightning_predict.gpus import gpu
    >>> usable = usable_bytes(gpu("T4"))  # 16 GiB, less ECC, the driver and the CUDA context
    >>> round(usable / 2**30, 2)
    14.13
    >>> from lightning_predict.gpus.layouts import layout_of
    >>> [memory_need(layout_of("T4"), gibibytes * 2**30).memory_fit for gibibytes in (12, 13.5, 15)]
    ['fits', 'tight', 'exceeds']

Left out, as nobody can know it beforehand, is what cuDNN asks for where it does not try algorithms: the workspaces of
convolutions, for which the interval is wider.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal, final

from lightning_predict.gpus.layouts import Layout
from lightning_predict.gpus.records import Gpu
from lightning_predict.interval import Interval
from lightning_predict.memory.libraries import context_bytes, convolved_share, cublas_bytes
from lightning_predict.memory.simulation import (
    blocks_of,
    fullest_moments,
    gradient_bytes,
    least_reserved_bytes,
    simulated,
)
from lightning_predict.tracing.trace import Trace

MemoryFit = Literal["fits", "tight", "exceeds"]
"""`fits`: with a chance of 97 %. `tight`: as predicted, but not as surely. `exceeds`: not even as predicted."""

FITS_FROM: Final = 0.97
"""Chance from which a step is said to fit: three of a hundred such words may be wrong."""

ECC_SHARE: Final = 1 / 16
"""What ECC takes where its bits are stored in the memory itself: a T4 of 16,384 MiB shows 15,360 in nvidia-smi
(github.com/robbyant-research/MagicQuill/issues/57)."""

DRIVER_SHARE: Final = 0.03
"""What the driver keeps of the rest; torch reports 14.56 of 15 GiB on a T4 (2.9 %), 44.53 of 45 on an L40S (1.0 %),
23.68 of 24 on an RTX 4090 (1.3 %) and 79.1 of 80 on an H100 (1.1 %); the most counts."""


def total_bytes(gpu: Gpu, reported_bytes: float | None = None) -> float:
    """Estimate what all processes together can take of a GPU.

    Args:
        gpu: The GPU.
        reported_bytes: What torch reports as its `total_memory`; None derives it from the size as sold.
    """
    if reported_bytes is not None:
        return reported_bytes
    ecc = ECC_SHARE if gpu.has_inline_ecc else 0.0
    return gpu.memory_bytes * (1 - ecc) * (1 - DRIVER_SHARE)


def usable_bytes(gpu: Gpu, reported_bytes: float | None = None) -> float:
    """Estimate what the tensors of a process can take on a GPU; arguments as for `total_bytes`."""
    return max(0.0, total_bytes(gpu, reported_bytes) - context_bytes(gpu).middle)


DERIVED: Final = Interval(0.94, 1.0, 1.08)
"""Measured over simulated memory, ends of nine in ten steps without convolutions that cuDNN computes."""

DERIVED_WITH_CONVOLUTIONS: Final = Interval(0.91, 1.0, 1.14)
"""The same of networks of convolutions, for which cuDNN takes workspaces of its own; ends of nine in ten runs of ten
families of timm (`CHOSEN_ON` in `benchmarks/accuracy/memory.py`)."""

CONVOLVED: Final = 0.25
"""Share of the forward pass's bytes that convolutions write in such a network, the median of the same runs; with less
of them a step is nearer to one without."""

TRIALS_SHARE: Final = 0.14
"""What cuDNN's trials (`torch.backends.cudnn.benchmark`) leave reserved beyond the simulation, over it and over the
share that convolutions write: the same runs, all of which had them, are met at the median."""

MEASURED_RESERVED: Final = Interval(0.98, 1.0, 1.03)
"""Of steps whose reserved memory was measured: later steps may leave other fragments."""

MEASURED_ALLOCATED: Final = Interval(1.0, 1.03, 1.15)
"""Of steps of which only the allocated memory was measured: reserved over allocated."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """State how much memory a step needs on each GPU; None for what is unknown.

    Attributes:
        memory_bytes: What torch's allocator reserves for a step.
        memory_fit: `fits`, `tight` or `exceeds`.
        memory_free_bytes: What a step that keeps no more than it must leaves free of what a process can use, below 0 if
            it does not fit.
        spare_bytes: Part of `memory_bytes` that the allocator gives back where the GPU has no room for it.
        allocated: Tensors and workspaces at the fullest moment (`torch.cuda.max_memory_allocated`).
        reserved: What the allocator takes for them (`torch.cuda.max_memory_reserved`).
        process: What the process takes (nvidia-smi).
        fit_probability: Chance that the process fits.
    """

    memory_bytes: float | None = None
    memory_fit: MemoryFit | None = None
    memory_free_bytes: float | None = None
    spare_bytes: float = 0.0
    allocated: Interval[float] | None = None
    reserved: Interval[float] | None = None
    process: Interval[float] | None = None
    fit_probability: float | None = None

    @property
    def fits(self) -> bool | None:
        """Whether it fits, perhaps narrowly; None if the need is unknown."""
        return None if self.memory_fit is None else self.memory_fit != "exceeds"

    @property
    def usable_bytes(self) -> float | None:
        """What a process can use of the GPU; None if the need is unknown."""
        if self.memory_bytes is None or self.memory_free_bytes is None:
            return None
        return self.memory_bytes - self.spare_bytes + self.memory_free_bytes


def memory_need(
    layout: Layout,
    needed_bytes: float | None,
    *,
    relative: Interval[float] = DERIVED_WITH_CONVOLUTIONS,
    allocated_bytes: float | None = None,
    spare_bytes: float = 0.0,
    context: Interval[float] | None = None,
    reported_bytes: float | None = None,
) -> MemoryNeed:
    """Judge whether a step fits on each GPU of a layout.

    Args:
        layout: The GPUs.
        needed_bytes: What the allocator reserves for a step on each; None if unknown.
        relative: The interval of that, over the value itself.
        allocated_bytes: What is allocated at the fullest moment; None if unknown.
        spare_bytes: Part of the reserved memory that the allocator gives back where the GPU has no room for it.
        context: What the process takes beside the allocator; None for the context of today's torch alone.
        reported_bytes: Memory that the GPU itself reports; None if it is not at hand.
    """
    if needed_bytes is None:
        return MemoryNeed()
    reserved = relative.scaled(needed_bytes)
    context = context_bytes(layout.gpu) if context is None else context
    total = total_bytes(layout.gpu, reported_bytes)
    must = relative.scaled(max(needed_bytes - spare_bytes, 0.0))
    chance = fit_probability(must, context, total)
    free = total - must.middle - context.middle
    # What is derived of tensors alone is surer than what an allocator makes of them.
    sure = Interval(0.97, 1.0, 1.03)
    return MemoryNeed(
        memory_bytes=needed_bytes,
        memory_fit="fits" if chance >= FITS_FROM else "tight" if free >= 0 else "exceeds",
        memory_free_bytes=free,
        spare_bytes=spare_bytes,
        allocated=None if allocated_bytes is None else sure.scaled(allocated_bytes).at_most(reserved.high),
        reserved=reserved,
        process=reserved.added(context),
        fit_probability=chance,
    )


def safe_bytes(gpu: Gpu, relative: Interval[float] = DERIVED_WITH_CONVOLUTIONS) -> float:
    """Find the most that a step may reserve and still fit with a chance of 97 %; arguments as for `memory_need`."""
    low, high = 0.0, usable_bytes(gpu)
    for _ in range(60):
        middle = (low + high) / 2
        fits = fit_probability(relative.scaled(middle), context_bytes(gpu), total_bytes(gpu)) >= FITS_FROM
        low, high = (middle, high) if fits else (low, middle)
    return low


_ENDS: Final = NormalDist().inv_cdf(0.95)
"""Standard deviations between the middle and either end of an interval that holds nine in ten."""


def fit_probability(reserved: Interval[float], context: Interval[float], total: float) -> float:
    """Compute the chance that the reserved memory and the context fit.

    On either side of the middle both are taken as normal and independent, as wide as their intervals say.
    """
    spare = total - reserved.middle - context.middle
    ends = [one.high - one.middle if spare > 0 else one.middle - one.low for one in (reserved, context)]
    deviation = sum(end**2 for end in ends) ** 0.5 / _ENDS
    if deviation == 0:
        return float(spare >= 0)
    return NormalDist().cdf(spare / deviation)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """The memory that a step needs.

    Attributes:
        lasting_bytes: What lives all the time; where measured, the peak with its workspaces.
        passing_bytes: What else lives at the fullest moment of the forward and the backward pass.
        update_bytes: What else lives at the fullest moment of the optimizer's update.
        slack_bytes: What the allocator reserves beyond that, as simulated; 0 where measured.
        spare_bytes: Part of that slack that it gives back where the GPU has no room for it.
        cublas_handles: Handles whose workspaces are not counted yet: 0 where measured.
        relative: Interval of all of it over the sum.
    """

    lasting_bytes: int
    passing_bytes: int = 0
    update_bytes: int = 0
    slack_bytes: int = 0
    spare_bytes: int = 0
    cublas_handles: int = 0
    relative: Interval[float] = DERIVED_WITH_CONVOLUTIONS

    def bytes_on(self, gpu: Gpu) -> int:
        """Sum all of it on one GPU."""
        return max(self.moments_on(gpu))

    def allocated_on(self, gpu: Gpu) -> int:
        """Sum it on one GPU without what the allocator reserves beyond the tensors."""
        return self.bytes_on(gpu) - self.slack_bytes

    def moments_on(self, gpu: Gpu) -> tuple[int, int]:
        """Sum all of it in the passes, which grows with the batch, and in the update, which hardly does."""
        always = self.lasting_bytes + self.slack_bytes + cublas_bytes(gpu, handles=self.cublas_handles)
        return always + self.passing_bytes, always + self.update_bytes


def step_memory(trace: Trace) -> StepMemory | None:
    """Derive what the step of a trace needs; None if neither a peak nor what could tell it was recorded.

    Args:
        trace: Without a measured peak, recorded where the tensors that operations write are seen.
    """
    memory = trace.memory
    if memory.reserved_bytes is not None:
        least = round(MEASURED_ALLOCATED.middle * (memory.peak_bytes or memory.reserved_bytes))
        return StepMemory(
            lasting_bytes=memory.reserved_bytes,
            spare_bytes=max(memory.reserved_bytes - least, 0),
            relative=MEASURED_RESERVED,
        )
    if memory.peak_bytes is not None:
        return StepMemory(lasting_bytes=memory.peak_bytes, relative=MEASURED_ALLOCATED)
    if memory.parameter_bytes is None or not any(operation.outputs for operation in trace.operations):
        return None
    blocks = blocks_of(trace)
    passes, update = (moment.total_bytes for moment in fullest_moments(blocks))
    lasting = memory.parameter_bytes + gradient_bytes(trace) + (memory.optimizer_state_bytes or 0) + sum(blocks.batch)
    tensors = max(passes, update, lasting)
    reserved, share = simulated(blocks).reserved_bytes, convolved_share(trace)
    if blocks.trials:
        reserved += round(TRIALS_SHARE * share * reserved)
    return StepMemory(
        lasting_bytes=lasting,
        passing_bytes=max(passes - lasting, 0),
        update_bytes=max(update - lasting, 0),
        slack_bytes=max(reserved - tensors, 0),
        spare_bytes=max(reserved - max(least_reserved_bytes(blocks), tensors), 0),
        cublas_handles=2 if _has_phase(trace, "backward") else 1,  # autograd's thread has one of its own
        relative=_derived(share),
    )


def _derived(share: float) -> Interval[float]:
    """Return the interval of a step whose convolutions write such a share of its forward pass."""
    part, (without, of_them) = min(share / CONVOLVED, 1.0), (DERIVED, DERIVED_WITH_CONVOLUTIONS)
    return Interval(
        without.low + part * (of_them.low - without.low), 1.0, without.high + part * (of_them.high - without.high)
    )


def _has_phase(trace: Trace, phase: str) -> bool:
    return any(operation.phase == phase for operation in trace.operations)
