"""Breaks the peak GPU memory of a step down by use (parameters, activations ...) and by module.

Example::

    parts = memory_breakdown(trace, gpu("L4"))
    parts.operation                    # 'aten::_log_softmax'
    [(one.name, one.bytes) for one in parts.parts]      # [('parameters', 497759232.0), ('activations', ...), ...]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from lightning_predict.hardware.records import Gpu
from lightning_predict.memory.libraries import context_bytes, cublas_bytes
from lightning_predict.memory.simulation import (
    MemoryMoment,
    blocks_of,
    copy_bytes,
    fullest_moments,
    simulated,
)
from lightning_predict.record.torch_releases import release_of
from lightning_predict.record.trace import Trace


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Memory in bytes for one use."""

    name: str
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBreakdown:
    """Memory of a step at its peak, by use."""

    operation: str
    phase: str
    module: str | None  # Module of the operation; None if unknown
    parts: tuple[MemoryPart, ...]  # Memory by use. The parts add up to the memory of the process.
    modules: tuple[MemoryPart, ...]  # Size of the activations that each module wrote, largest first

    @property
    def total_bytes(self) -> float:
        """Sum of all parts."""
        return sum(part.bytes for part in self.parts)


def memory_breakdown(trace: Trace, gpu: Gpu, *, reserved_bytes: float | None = None) -> MemoryBreakdown | None:
    """Return the memory breakdown of a step; None if the trace has no output tensors.

    Without `reserved_bytes`, the allocator is simulated, without the trials of cuDNN.
    """
    if trace.memory.parameter_bytes is None or not any(operation.outputs for operation in trace.operations):
        return None
    blocks = blocks_of(trace)
    moment = max(fullest_moments(blocks), key=lambda group: group.total_bytes)
    handles = 2 if any(operation.phase == "backward" for operation in trace.operations) else 1
    workspaces = cublas_bytes(gpu, handles=handles)
    context = context_bytes(gpu, release_of(trace.software)).middle
    reserved = simulated(blocks).reserved_bytes if reserved_bytes is None else reserved_bytes - workspaces
    by_cause = dict.fromkeys(("activation", "backward", "update"), 0)
    for storage in moment.storages:
        by_cause[storage.cause] += storage.size_bytes
    others = copy_bytes(trace) + (trace.memory.resident_bytes or 0)
    parts = {
        "parameters and buffers": moment.persistent_bytes - others,
        "other models on the GPU": others,
        "gradients": moment.gradient_bytes,
        "optimizer state": moment.state_bytes,
        "batch": moment.batch_bytes,
        "activations": by_cause["activation"],
        "passing tensors of the backward pass": by_cause["backward"],
        "passing tensors of the optimizer": by_cause["update"] + moment.update_bytes,
        "held by variables of the loop": moment.left_bytes,
        "workspaces of cuBLAS": workspaces,
        "allocator, beyond the tensors": max(reserved - moment.total_bytes, 0),
        "context and code of libraries": context,
    }
    modules = _by_module(moment)
    operation = trace.operations[moment.index]
    return MemoryBreakdown(
        operation=operation.name,
        phase=operation.phase,
        module=operation.module,
        parts=tuple(MemoryPart(name, float(size)) for name, size in parts.items() if size),
        modules=tuple(MemoryPart(name, float(size)) for name, size in modules.items()),
    )


def _by_module(moment: MemoryMoment) -> Mapping[str, int]:
    """Return the size of the activations that each module wrote, largest first."""
    sizes: dict[str, int] = defaultdict(int)
    for storage in moment.storages:
        if storage.cause == "activation":
            sizes[storage.module or "(outside of modules)"] += storage.size_bytes
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))
