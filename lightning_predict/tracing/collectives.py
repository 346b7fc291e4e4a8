"""A recorded step without what it exchanged with other processes, so that it is the step of a single GPU.

Example::

    >>> from lightning_predict.tracing.trace import Operation, Trace
    >>> reduce = Operation(name="c10d::allreduce_", phase="backward")
    >>> two = Trace(operations=(reduce,), device="cpu", recorder="dispatch", world_size=2)
    >>> without_collectives(two).operations
    ()
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from lightning_predict.tracing.trace import Operation, Trace

_OPERATIONS: Final = (
    "c10d::",
    "c10d_functional::",
    "_c10d_functional::",
    "nccl:",
    "gloo:",
    "record_param_comms",
    "vllm::all_reduce",
    "vllm::all_gather",
    "vllm::reduce_scatter",
)
_KERNELS: Final = ("nccl",)


def without_collectives(trace: Trace) -> Trace:
    """Take collectives out, and the measured steps, which held them; a single process keeps its trace as it is."""
    return trace if trace.world_size == 1 else _alone(trace)


def left_out_collectives(trace: Trace) -> Trace:
    """Leave collectives out of a recording that does not say how many processes took part, and note it.

    Nothing can be scaled without that number: what they take depends on the other GPUs and the links between them.
    Collectives without kernels (a single process has nobody to exchange with) stay.
    """
    alone = _alone(trace)
    lost = len(trace.kernels) - len(alone.kernels)
    if trace.world_size > 1 or not lost:
        return trace
    total = math.fsum(kernel.seconds for kernel in trace.kernels)
    share = 1 - math.fsum(kernel.seconds for kernel in alone.kernels) / total if total > 0 else 0.0
    note = (
        f"The step exchanged data with other GPUs: {lost:,} kernels, {share:.1%} of the device time. The file does not "
        "say with how many, so that is left out, and the step's own time with it: predictions are for a single GPU."
    )
    return replace(alone, notes=(*trace.notes, note))


def _alone(trace: Trace) -> Trace:
    operations = (_computing(operation) for operation in trace.operations if not operation.name.startswith(_OPERATIONS))
    return replace(trace.untimed(), operations=tuple(operations))


def _computing(operation: Operation) -> Operation:
    kernels = tuple(kernel for kernel in operation.kernels if not kernel.name.lower().startswith(_KERNELS))
    return operation if len(kernels) == len(operation.kernels) else replace(operation, kernels=kernels)
