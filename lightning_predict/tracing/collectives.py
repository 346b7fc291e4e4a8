"""A recorded step without what it exchanged with other processes, so that it is the step of a single GPU.

Example::

    >>> from lightning_predict.tracing.records import Operation, Trace
    >>> reduce = Operation(name="c10d::allreduce_", phase="backward")
    >>> two = Trace(operations=(reduce,), device="cpu", recorder="dispatch", world_size=2)
    >>> without_collectives(two).operations
    ()
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lightning_predict.tracing.records import Operation, Trace

_OPERATIONS: Final = ("c10d::", "c10d_functional::", "_c10d_functional::", "nccl:", "gloo:", "record_param_comms")
_KERNELS: Final = ("nccl",)


def without_collectives(trace: Trace) -> Trace:
    """The trace without collectives, and without its measured steps, which held them; itself from a single process."""
    if trace.world_size == 1:
        return trace
    operations = (_computing(operation) for operation in trace.operations if not operation.name.startswith(_OPERATIONS))
    return replace(trace, operations=tuple(operations), step_seconds=(), profiled_seconds=None)


def _computing(operation: Operation) -> Operation:
    kernels = tuple(kernel for kernel in operation.kernels if not kernel.name.lower().startswith(_KERNELS))
    return operation if len(kernels) == len(operation.kernels) else replace(operation, kernels=kernels)
