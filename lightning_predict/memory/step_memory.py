"""Derive the GPU memory that a step needs, and decide whether the step fits.

There are three amounts, each with an interval. *Allocated* is torch's peak of allocated memory. *Reserved* is the
memory that the caching allocator holds at that peak (`memory/simulation.py`). *Process* is the amount that nvidia-smi
shows: reserved memory, the CUDA context and loaded library code. Measured peaks in the trace take precedence.

A step can fit although its reserved memory exceeds the GPU: before an out-of-memory error, torch frees unused segments,
and cuDNN skips algorithms whose workspace does not fit. Example::

    >>> from lightning_predict.record.trace import Memory, Operation, TensorInfo, Trace
    >>> hidden = TensorInfo((256,), "float32", id=7)
    >>> trace = Trace(device="cpu", recorder="dispatch", memory=Memory(parameter_bytes=1000, gradient_bytes=1000),
    ...               operations=(Operation(name="aten::relu", phase="forward", outputs=(hidden,)),
    ...                           Operation(name="aten::threshold_backward", phase="backward", inputs=(hidden,))))
    >>> need = step_memory(trace)
    >>> need.persistent_bytes, need.temporary_bytes  # 1000 + 1000, and 256 x 4
    (2000, 1024)
    >>> from lightning_predict.hardware import gpu
    >>> usable = usable_bytes(gpu("T4"))  # 16 GiB, less ECC, the driver and the CUDA context
    >>> round(usable / 2**30, 2)
    14.37
    >>> from lightning_predict.hardware.layouts import layout_of
    >>> [memory_need(layout_of("T4"), gibibytes * 2**30).memory_fit for gibibytes in (12, 13.5, 15)]
    ['fits', 'tight', 'exceeds']
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from lightning_predict.base.fields import Deferred, defer
from lightning_predict.base.interval import CONFIDENCE, Interval
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.memory_bound import COMPILED_CALL
from lightning_predict.memory.libraries import context_bytes, convolved_share, cublas_bytes
from lightning_predict.memory.simulation import Blocks, blocks_of, fullest_moments, least_reserved_bytes, simulated
from lightning_predict.record.trace import Trace

MemoryFit = Literal["fits", "tight", "exceeds"]
"""`fits`: the step fits with a probability of at least 90 %. `tight`: with 50 to 90 %. `exceeds`: below 50 %."""

ECC_SHARE: Final = 0.0625  # Share of memory that stores the bits of inline ECC
DRIVER_SHARE: Final = 0.013  # Share of the memory without ECC bits that the driver reserves


def total_bytes(gpu: Gpu, reported_bytes: float | None = None) -> float:
    """Estimate the memory of a GPU that all processes together can use.

    Args:
        gpu: The GPU.
        reported_bytes: `total_memory` as reported by torch; None derives the value from the nominal memory size.
    """
    if reported_bytes is not None:
        return reported_bytes
    ecc = ECC_SHARE if gpu.has_inline_ecc else 0.0
    return gpu.memory_bytes * (1 - ecc) * (1 - DRIVER_SHARE)


def usable_bytes(gpu: Gpu, reported_bytes: float | None = None) -> float:
    """Estimate the GPU memory available to the tensors of one process; same arguments as `total_bytes`."""
    return max(0.0, total_bytes(gpu, reported_bytes) - context_bytes(gpu).middle)


AS_RECORDED: Final = Interval(0.94, 1.0, 1.15)
"""Ratio of measured to simulated memory, allocated or reserved, for runs of a source that nothing was chosen on (90 %
interval), where one GPU runs what was recorded: Student's t distribution of its logarithm with 3 degrees of freedom,
each source with the same weight. `python -m benchmarks.accuracy.fit_verdicts` fits it again with each source left out.
Most sources measured more than the simulation says: long runs with varying shapes fragment memory, libraries keep
workspaces of their first call, and a published recipe leaves tensors out."""

DERIVED: Final = Interval(0.89, 1.0, 1.20)
"""As `AS_RECORDED`, for steps whose tensors are derived in part: on several GPUs, compiled, or with weights in 4 bits,
whose communication, fused kernels and dequantized weights no recording shows."""

TRIALS_SHARE: Final = 0.14
"""Additional reserved memory due to cuDNN's trials (`torch.backends.cudnn.benchmark`), relative to simulated memory, if
convolutions write all bytes of the forward pass. It is proportional to their share of these bytes."""

SURE: Final = 0.01  # Difference of probabilities that needs no simulation of a full GPU
MEASURED_PEAK: Final = Interval(0.99, 1.0, 1.02)  # Interval around a measured peak of allocated memory, as factors

MEASURED_RESERVED: Final = Interval(0.98, 1.0, 1.03)
"""Interval around reserved memory that the trace measured, as factors. Later steps may fragment memory differently."""

MEASURED_ALLOCATED: Final = Interval(1.0, 1.03, 1.15)
"""Ratio of reserved to allocated memory, for steps in which only the allocated memory was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed(Deferred):
    """Memory need of a step on each GPU. Unknown values are None."""

    memory_bytes: float | None = None  # Memory that torch's allocator reserves for a step
    memory_fit: MemoryFit | None = None  # `fits`, `tight` or `exceeds`
    # Usable memory minus the amount that is needed with an even chance; negative if the step does not fit
    memory_free_bytes: float | None = None
    releasable_bytes: float = 0.0  # Part of `memory_bytes` that the allocator releases if the GPU runs out of memory
    allocated: Interval[float] | None = None  # Peak of tensors and workspaces (`torch.cuda.max_memory_allocated`)
    # Peak of memory that torch's allocator holds (`torch.cuda.max_memory_reserved`). If the step fits, at most what the
    # GPU has; otherwise, on a larger GPU.
    reserved: Interval[float] | None = None
    process: Interval[float] | None = None  # Memory of the process, as nvidia-smi shows, on the same GPU as `reserved`
    fit_probability: float | None = None
    least_filled_bytes: float | None = None  # As `memory_bytes`, on the GPU that needs the least; None if all are equal
    usable_bytes: float | None = None  # GPU memory available to tensors of the process

    @property
    def fits(self) -> bool | None:
        """Whether the step is at least as likely to fit as not (`fits` or `tight`); None if unknown."""
        return None if self.memory_fit is None else self.memory_fit != "exceeds"

    @property
    def capacity_bytes(self) -> float | None:
        """GPU memory that a process can fill; None if unknown."""
        usable, process, reserved = self.usable_bytes, self.process, self.memory_bytes
        if usable is None or process is None or reserved is None:
            return None
        return usable + process.middle - reserved

    @property
    def required_bytes(self) -> float:
        """Reserved memory that is needed with an even chance, without what a full GPU releases; 0 if unknown."""
        return (self.usable_bytes or 0.0) - (self.memory_free_bytes or 0.0)


def memory_need(
    layout: Layout,
    needed_bytes: float | None,
    *,
    relative: Interval[float] = AS_RECORDED,
    allocated_bytes: float | None = None,
    relative_allocated: Interval[float] = AS_RECORDED,
    releasable_bytes: float | Callable[[], float] = 0.0,
    most_releasable_bytes: float | None = None,
    context: Interval[float] | None = None,
    reported_bytes: float | None = None,
    least_filled_bytes: float | None = None,
) -> MemoryNeed:
    """Decide whether a step fits on each GPU of a layout.

    Args:
        layout: The GPUs that share the step.
        needed_bytes: Memory that the allocator reserves for a step on each GPU; None if unknown.
        relative: Interval of `needed_bytes`, as factors.
        allocated_bytes: Peak of allocated memory; None if unknown.
        relative_allocated: Interval of `allocated_bytes`, as factors.
        releasable_bytes: Part of the reserved memory that the allocator releases if the GPU runs out of memory. A
            function is only called if the step may not fit without this part, or if a value that depends on it is read.
        most_releasable_bytes: Upper limit of what a function for `releasable_bytes` returns; None if unknown.
        context: Memory of the process outside the allocator; None uses the CUDA context of the current torch version.
        reported_bytes: `total_memory` as reported by torch; None derives the value from the nominal memory size.
        least_filled_bytes: As `needed_bytes`, on the GPU that needs the least; None if all GPUs hold the same.
    """
    if needed_bytes is None:
        return MemoryNeed()
    context = context_bytes(layout.gpu) if context is None else context
    total = total_bytes(layout.gpu, reported_bytes)
    usable, reserved = max(total - context.middle, 0.0), relative.scaled(needed_bytes)

    def need(spare: float) -> MemoryNeed:
        must = relative.scaled(max(needed_bytes - spare, 0.0))
        free = total - context.middle - _even(must)
        limit = usable if free >= 0 else math.inf  # the allocator fills the GPU, then releases spare memory
        held = replace(reserved, low=min(must.low, limit) if limit < needed_bytes else reserved.low).clamp_max(limit)
        chance = fit_probability(must, context, total)
        return MemoryNeed(
            memory_bytes=needed_bytes if held.middle == needed_bytes else held.middle,
            memory_fit="fits" if chance >= CONFIDENCE else "tight" if free >= 0 else "exceeds",
            memory_free_bytes=free,
            releasable_bytes=max(spare - (reserved.middle - held.middle), 0.0),
            allocated=None if allocated_bytes is None else relative_allocated.scaled(allocated_bytes).map(min, held),
            reserved=held,
            process=held.added(context).clamp_max(total if free >= 0 else math.inf),
            fit_probability=chance,
            least_filled_bytes=None if least_filled_bytes is None else min(least_filled_bytes, limit),
            usable_bytes=usable,
        )

    if not callable(releasable_bytes):
        return need(releasable_bytes)
    whole, most = need(0.0), None if most_releasable_bytes is None else need(most_releasable_bytes)
    if whole.memory_fit != "fits" and (most is None or most.memory_fit != "exceeds"):
        return need(releasable_bytes())
    chances = whole.fit_probability or 0.0, 1.0 if most is None else most.fit_probability or 0.0
    if chances[1] - chances[0] >= SURE:
        return defer(
            whole, lambda: need(releasable_bytes()), "memory_free_bytes", "releasable_bytes", "fit_probability"
        )
    return defer(
        whole,
        lambda: replace(need(releasable_bytes()), fit_probability=chances[0]),
        "memory_free_bytes",
        "releasable_bytes",
    )


STUDENT_95: Final = 2.353  # Scale from the middle to an end of Student's t distribution with 3 degrees of freedom


def fit_probability(reserved: Interval[float], context: Interval[float], total: float) -> float:
    """Return the probability that the reserved memory and the CUDA context fit into the GPU.

    Their sum has Student's t distribution with 3 degrees of freedom around `_even`, which is above the prediction,
    because a recorded step lacks memory that a run has (`AS_RECORDED`).

    Args:
        reserved: Reserved memory in bytes.
        context: Memory of the process outside the allocator, in bytes.
        total: Memory of the GPU in bytes.
    """
    spare = total - _even(reserved) - context.middle
    scale = math.hypot(*((part.high - part.low) / 2 for part in (reserved, context))) / STUDENT_95
    if scale == 0:
        return float(spare >= 0)
    ratio = spare / scale / math.sqrt(3)
    return 0.5 + (math.atan(ratio) + ratio / (1 + ratio**2)) / math.pi


def _even(reserved: Interval[float]) -> float:
    """Return the amount that a run exceeds in half of the cases: the middle of its logarithm's distribution."""
    return math.sqrt(reserved.low * reserved.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory(Deferred):
    """Memory need of a step, by cause, in bytes."""

    persistent_bytes: int  # Memory allocated throughout the step; if the peak was measured, all of it with workspaces
    temporary_bytes: int = 0  # Additional memory at the peak of the forward and backward passes
    update_bytes: int = 0  # Additional memory at the peak of the optimizer step
    slack_bytes: int = 0  # Excess of reserved memory over the tensors, simulated or measured
    workspace_bytes: int = 0  # Simulated excess of allocated memory over tensors: library workspaces, block rounding
    releasable_bytes: int = 0  # Part of `slack_bytes` that the allocator releases if the GPU runs out of memory
    cublas_handles: int = 0  # cuBLAS handles whose workspaces the other fields do not include; 0 if measured
    relative: Interval[float] = AS_RECORDED  # Interval of the reserved memory, as factors
    relative_allocated: Interval[float] = AS_RECORDED

    @property
    def tensor_bytes(self) -> int:
        """Peak of the tensors."""
        return self.persistent_bytes + max(self.temporary_bytes, self.update_bytes)

    def bytes_on(self, gpu: Gpu) -> int:
        """Return the peak of reserved memory on one GPU."""
        return self.tensor_bytes + self.slack_bytes + cublas_bytes(gpu, handles=self.cublas_handles)

    def allocated_on(self, gpu: Gpu) -> int:
        """Return the peak of allocated memory on one GPU: tensors and workspaces, without free blocks."""
        return self.bytes_on(gpu) - self.slack_bytes + self.workspace_bytes


def step_memory(trace: Trace) -> StepMemory | None:
    """Derive the memory need of a trace's step.

    Args:
        trace: The recorded step. Without a measured peak, its operations must have output tensors.

    Returns:
        The memory need; None if the trace has neither a measured peak nor output tensors.
    """
    memory = trace.memory
    if memory.reserved_bytes is not None:
        peak = min(memory.peak_bytes or memory.reserved_bytes, memory.reserved_bytes)
        return StepMemory(
            persistent_bytes=peak,
            slack_bytes=memory.reserved_bytes - peak,
            releasable_bytes=max(memory.reserved_bytes - round(MEASURED_ALLOCATED.middle * peak), 0),
            relative=MEASURED_RESERVED,
            relative_allocated=MEASURED_PEAK,
        )
    if memory.peak_bytes is not None:
        return StepMemory(
            persistent_bytes=memory.peak_bytes, relative=MEASURED_ALLOCATED, relative_allocated=MEASURED_PEAK
        )
    if memory.parameter_bytes is None or not any(operation.outputs for operation in trace.operations):
        return None
    blocks = blocks_of(trace)
    return derived_memory(trace, blocks)


def derived_memory(trace: Trace, blocks: Blocks) -> StepMemory:
    """Simulate the memory need of a step."""
    lasting = blocks.lasting_bytes
    passes, update = (moment.total_bytes for moment in fullest_moments(blocks))
    tensors = max(passes, update, lasting)
    step = simulated(blocks)
    reserved = step.reserved_bytes
    if blocks.trials:
        reserved += round(TRIALS_SHARE * convolved_share(trace) * reserved)
    is_compiled = trace.compiled or any(operation.name == COMPILED_CALL for operation in trace.operations)
    spread = DERIVED if is_compiled or has_packed_weights(trace) else AS_RECORDED
    need = StepMemory(
        persistent_bytes=lasting,
        temporary_bytes=max(passes - lasting, 0),
        update_bytes=max(update - lasting, 0),
        slack_bytes=max(reserved - tensors, 0),
        workspace_bytes=max(step.allocated_bytes - tensors, 0),
        cublas_handles=_cublas_handles(trace),
        relative=spread,
        relative_allocated=spread,
    )

    def on_full_gpu() -> StepMemory:
        return replace(need, releasable_bytes=max(reserved - max(least_reserved_bytes(blocks, step), tensors), 0))

    return defer(need, on_full_gpu, "releasable_bytes")


def has_packed_weights(trace: Trace) -> bool:
    """Return whether weights are integers, or operations unpack them from any dtype (bitsandbytes' `quant_storage`)."""
    unpacks = re.compile("4bit|int4|int8pack|::dequantize$").search  # of bitsandbytes, torch and torchao
    return any(map(unpacks, {operation.name for operation in trace.operations})) or any(
        "int" in parameter.dtype for parameter in trace.parameters
    )


def _cublas_handles(trace: Trace) -> int:
    """Return the number of threads that multiply matrices, each with a handle: the program's and autograd's."""
    names = ("mm", "::linear", "::matmul", COMPILED_CALL)  # mm, addmm, bmm, baddbmm, _scaled_mm, ...
    return len({operation.phase == "backward" for operation in trace.operations if operation.name.endswith(names)})
