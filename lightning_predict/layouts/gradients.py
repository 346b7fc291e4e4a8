"""Finds when the gradients of a step are ready, DDP's gradient buckets, and the units that FSDP gathers.

A parameter's gradient is ready after the last backward operation of the module that owns the parameter. DDP fills
buckets in the order in which gradients become ready. The first bucket is small so that communication starts early. An
FSDP unit is a numbered module (`layers.0`, `layers.1`, ...). All other parameters (embeddings, the head) belong to the
root unit. Example::

    >>> unit_of("model.layers.3.mlp.up"), unit_of("head")
    ('model.layers.3', '')
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from lightning_predict.base.units import mebibytes_to_bytes
from lightning_predict.record.trace import DTYPE_BYTES, Operation, Parameter, Trace
from lightning_predict.timeline.simulation import HostOperation

FIRST_BUCKET_BYTES: Final = mebibytes_to_bytes(1)  # Default size of DDP's first bucket in torch.distributed

ROOT: Final = ""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A gradient, or several gradients that are communicated together."""

    size_bytes: float
    ready_after: int  # Number of operations of the step that must finish before all gradients of the bucket are ready
    is_expert: bool = False  # Whether the gradients belong to MoE experts: fewer GPUs all-reduce them


@dataclass(frozen=True, slots=True)
class UnitSegment:
    """Consecutive operations of one FSDP unit in one phase."""

    unit: str
    is_backward: bool
    first_operation: int


def parameter_bytes(parameter: Parameter, dtype: str | None = None) -> int:
    """Return the size of a parameter or its gradient in bytes; None for the parameter's own dtype."""
    return prod(parameter.shape) * DTYPE_BYTES.get(dtype or parameter.dtype, 4)


def trainable_parameter_count(trace: Trace) -> int:
    """Return the number of elements of all trainable parameters."""
    return sum(prod(parameter.shape) for parameter in trace.parameters if parameter.requires_grad)


def experts_module(name: str | None) -> str | None:
    """Return the module of the expert that a module or parameter belongs to; None outside experts.

    The name of an expert contains "expert". Shared experts process every token, so they do not count as experts.
    """
    parts = (name or "").split(".")
    for position, part in enumerate(parts):
        if "expert" in part.lower() and "shared" not in part.lower():
            return ".".join(parts[: position + 1])
    return None


def is_of_expert(parameter: Parameter) -> bool:
    """Return whether a parameter belongs to an expert (not to a router or shared expert)."""
    return experts_module(parameter.name) is not None


def has_backward(operations: Sequence[HostOperation] | Sequence[Operation]) -> bool:
    """Return whether the step has a backward pass."""
    return any(operation.phase == "backward" for operation in operations)


def ready_gradients(trace: Trace, work: Sequence[HostOperation]) -> list[Bucket]:
    """Return the gradient of each trainable parameter, in the order in which gradients become ready.

    Some modules have no backward operation, for example because they pass a weight to a function. The gradients of such
    a module are ready when its submodules finish; without submodules, when the enclosing module finishes; otherwise at
    the end of the backward pass. With gradient accumulation, only the last micro-batch communicates gradients.
    """
    last: dict[str, int] = {}
    for index, operation in enumerate(work):
        if operation.phase == "backward":
            end = index + 1
            last[ROOT] = end
            parts = (operation.module or ROOT).split(".")
            for depth in range(1, len(parts) + 1):
                last[".".join(parts[:depth])] = end
    gradients = [
        Bucket(parameter_bytes(parameter), _ready(parameter, last), is_of_expert(parameter))
        for parameter in reversed(trace.parameters)
        if parameter.requires_grad and last
    ]
    return sorted(gradients, key=lambda gradient: gradient.ready_after)


def _ready(parameter: Parameter, last: Mapping[str, int]) -> int:
    module = parameter.name.rpartition(".")[0]
    while module not in last:
        module = module.rpartition(".")[0]
    return last[module]


def buckets(gradients: Sequence[Bucket], *, cap_bytes: float) -> Iterator[Bucket]:
    """Group gradients into DDP's buckets. A bucket is complete when its size reaches `cap_bytes`.

    Args:
        gradients: Gradients in the order in which they become ready. Expert gradients and other gradients need separate
            calls.
        cap_bytes: Size at which a bucket is complete. The first bucket is complete at `FIRST_BUCKET_BYTES`, if smaller.
    """
    cap, size, last = min(FIRST_BUCKET_BYTES, cap_bytes), 0.0, None
    for gradient in gradients:
        size, last = size + gradient.size_bytes, gradient
        if size >= cap:
            yield replace(gradient, size_bytes=size)
            cap, size = cap_bytes, 0.0
    if size and last is not None:
        yield replace(last, size_bytes=size)


def unit_of(module: str) -> str:
    """Return the FSDP unit of a module: the module's name up to the first number, or the root unit without a number."""
    parts = module.split(".")
    for position, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: position + 1])
    return ROOT


def unit_bytes(parameters: Iterable[Parameter], dtype: str | None = None) -> dict[str, int]:
    """Return the parameter bytes of each FSDP unit; None for the parameters' own dtypes."""
    sizes: dict[str, int] = {}
    for parameter in parameters:
        unit = unit_of(parameter.name.rpartition(".")[0])
        sizes[unit] = sizes.get(unit, 0) + parameter_bytes(parameter, dtype)
    return sizes


def unit_segments(work: Sequence[HostOperation], units: Mapping[str, int]) -> Iterator[UnitSegment]:
    """Yield the FSDP units as a step uses them. An operation without a module belongs to the unit before it."""
    current: tuple[str, bool] | None = None
    for index, operation in enumerate(work):
        if operation.phase not in ("forward", "backward") or operation.module is None:
            continue
        unit = unit_of(operation.module)
        visited = (unit if unit in units else ROOT, operation.phase == "backward")
        if visited != current:
            yield UnitSegment(*visited, index)
            current = visited
