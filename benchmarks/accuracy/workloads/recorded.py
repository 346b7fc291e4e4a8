"""What the machine that records a workload must not leave in its trace."""

from __future__ import annotations

from dataclasses import replace

from lightning_predict.tracing.trace import Trace


def without_pauses(trace: Trace) -> Trace:
    """Take out pauses between operations: these workloads do no Python work of their own.

    What is found between their operations is the machine that records them, which had something else to do.

    Args:
        trace: Trace of one step.
    """
    operations = tuple(
        operation if operation.python_seconds == 0 else replace(operation, python_seconds=0.0)
        for operation in trace.operations
    )
    return replace(trace, operations=operations)
