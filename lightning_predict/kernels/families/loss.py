"""Losses: cross entropy, and what picks the targets' probabilities.

Example::

    >>> from lightning_predict.kernels.operations import problem_batch
    >>> float(problem_batch("cross_entropy", "float32", rows=2, cols=3).flops[0])  # 5 an element
    30.0
"""

from __future__ import annotations

from dataclasses import replace

from lightning_predict.kernels.families.elementwise import VECTOR, by_element
from lightning_predict.kernels.operations import Problem, register, translates
from lightning_predict.tracing.trace import Flags, Operation

register(
    replace(by_element("cross_entropy", 1, 1, 5), families=(VECTOR,), reduces_rows=True),
    replace(by_element("cross_entropy_backward", 1, 1, 4), families=(VECTOR,), reduces_rows=True),
)


@translates("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def _nll_loss(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    """One probability a target is read, not all of them."""
    if len(operation.inputs) < 2:
        return None
    target = operation.inputs[1]
    read = float(2 * target.size_bytes)
    return (Problem("transfer", "float32", (read, 4.0, float(target.elements))),)


@translates("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def _nll_loss_backward(operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    """The gradient is zeroed, and one value a target written."""
    if len(operation.inputs) < 3:
        return None
    data, target = operation.inputs[1], operation.inputs[2]
    read = float(2 * target.size_bytes)
    return (Problem("transfer", "float32", (read, float(data.size_bytes), float(target.elements))),)
