"""Find where in a step gradients are ready, DDP's buckets of them, and the units that FSDP gathers.

A parameter's gradient is ready after the last backward operation of the module that owns it. DDP fills buckets in the
order in which gradients become ready (it rebuilds them after the first step), the first one small so that
communication starts early. FSDP's units are the numbered modules (`layers.0`, `layers.1`, ...); what is outside of them
(embeddings, the head) is the root unit. Example::

    >>> unit_of("model.layers.3.mlp.up"), unit_of("head")
    ('model.layers.3', '')
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final, final

from lightning_predict.extensions.parallel.experts import is_of_expert
from lightning_predict.timeline.simulation import Launching
from lightning_predict.tracing.trace import DTYPE_BYTES, Parameter, Trace
from lightning_predict.units import mebibytes_to_bytes

FIRST_BUCKET_BYTES: Final = mebibytes_to_bytes(1)
"""torch.distributed's default size of DDP's first bucket."""

ROOT: Final = ""


@final
@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are exchanged together.

    Attributes:
        size_bytes: Their size.
        after: Number of the step's operations after which the last of them is ready.
        is_expert: Gradients of experts, which fewer GPUs exchange.
    """

    size_bytes: float
    after: int
    is_expert: bool = False


@final
@dataclass(frozen=True, slots=True)
class Visit:
    """Operations of one unit without another's between them.

    Attributes:
        unit: Name of the unit.
        is_backward: In the backward phase.
        begin: First operation.
    """

    unit: str
    is_backward: bool
    begin: int


def parameter_bytes(parameter: Parameter) -> int:
    """Compute the size of a parameter, and of its gradient, which has its dtype."""
    return prod(parameter.shape) * DTYPE_BYTES.get(parameter.dtype, 4)


def trained_elements(trace: Trace) -> int:
    """Count the values of all trainable parameters."""
    return sum(prod(parameter.shape) for parameter in trace.parameters if parameter.requires_grad)


def has_backward(work: Sequence[Launching]) -> bool:
    """Return whether the step trains: whether there are gradients."""
    return any(operation.phase == "backward" for operation in work)


def ready_gradients(trace: Trace, work: Sequence[Launching]) -> list[Bucket]:
    """Return each trainable parameter's gradient, in the order in which they are ready.

    A module without a backward operation of its own (a parent that hands its weight to a function) is taken to be ready
    with the modules inside it, or with the one around it, in the end with the whole backward phase. Under gradient
    accumulation the last batch's operations count, as the ones before do not exchange anything.
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
    return sorted(gradients, key=lambda gradient: gradient.after)


def _ready(parameter: Parameter, last: Mapping[str, int]) -> int:
    module = parameter.name.rpartition(".")[0]
    while module not in last:
        module = module.rpartition(".")[0]
    return last[module]


def buckets(gradients: Sequence[Bucket], *, cap_bytes: float) -> Iterator[Bucket]:
    """Return the gradients in DDP's buckets: one is full once it holds `cap_bytes` or more.

    Args:
        gradients: In the order in which they are ready; all of experts, or none.
        cap_bytes: Size of a bucket; the first one is at most `FIRST_BUCKET_BYTES`.
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
    """Return the FSDP unit of a module: up to the first numbered part of its name; the root where there is none."""
    parts = module.split(".")
    for position, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: position + 1])
    return ROOT


def unit_bytes(trace: Trace) -> dict[str, float]:
    """Return the bytes of the parameters of each unit."""
    sizes: dict[str, float] = {}
    for parameter in trace.parameters:
        unit = unit_of(parameter.name.rpartition(".")[0])
        sizes[unit] = sizes.get(unit, 0.0) + parameter_bytes(parameter)
    return sizes


def unit_elements(parameters: Iterable[Parameter]) -> dict[str, int]:
    """Return the number of values of each unit, in the order of `unit_bytes`."""
    counts: dict[str, int] = {}
    for parameter in parameters:
        unit = unit_of(parameter.name.rpartition(".")[0])
        counts[unit] = counts.get(unit, 0) + prod(parameter.shape)
    return counts


def visits(work: Sequence[Launching], units: Mapping[str, float]) -> Iterator[Visit]:
    """List the units that a step visits, in its order; operations without a module belong to the visit before them."""
    current: tuple[str, bool] | None = None
    for index, operation in enumerate(work):
        if operation.phase not in ("forward", "backward") or operation.module is None:
            continue
        unit = unit_of(operation.module)
        visited = (unit if unit in units else ROOT, operation.phase == "backward")
        if visited != current:
            yield Visit(*visited, index)
            current = visited
