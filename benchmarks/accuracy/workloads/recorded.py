"""Properties of the recording machine that must not enter a workload's trace."""

from __future__ import annotations

from dataclasses import replace

from lightning_predict.record.trace import Trace


def without_pauses(trace: Trace) -> Trace:
    """Take out pauses between operations: these workloads do no Python work of their own.

    Time between their operations belongs to the recording machine, which did other work.

    Args:
        trace: Trace of one step.
    """
    operations = tuple(
        operation if operation.python_seconds == 0 else replace(operation, python_seconds=0.0)
        for operation in trace.operations
    )
    return replace(trace, operations=operations)
