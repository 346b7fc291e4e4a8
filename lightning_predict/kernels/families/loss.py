"""Losses: cross entropy, and the look-up of the targets' probabilities.

Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> float(shape_batch("cross_entropy", "float32", rows=2, cols=3).flops[0])  # 5 an element
    30.0
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from lightning_predict.kernels.families.elementwise import VECTOR, as_transfer, by_element
from lightning_predict.kernels.memory_bound import bytes_read
from lightning_predict.kernels.operations import OperationShape, register, translates
from lightning_predict.kernels.roofline import limited_transfer
from lightning_predict.kernels.wave_scaling import WARP_THREADS
from lightning_predict.record.trace import Flags, Operation, TensorInfo

register(
    replace(by_element("cross_entropy", 1, 1, 5), estimators=(VECTOR, as_transfer()), reduces_rows=True),
    replace(by_element("cross_entropy_backward", 1, 1, 4), estimators=(VECTOR, as_transfer()), reduces_rows=True),
)


LOOK_UP_CYCLES: Final = {"forward": 1500.0, "backward": 600.0}
"""Cycles of `nll_loss` per `WARP_THREADS` rows.

`nll_loss` has one block with `WARP_THREADS` threads. Each thread loads a target and then the target's logit from
memory. The constant part of cross entropies in Liger (A100) and KernelBench (T4, H100-PCIe, L40S) is 1,450 to 1,800
cycles. The backward pass does not wait for loads and takes about 600 cycles (training data)."""


def _looked_up(operation: Operation, targets: TensorInfo, written: float, direction: str) -> tuple[OperationShape, ...]:
    """Count reading the targets and one value per target. `nll_loss2d` has many blocks."""
    alone = "2d" not in operation.name
    cycles = math.ceil(targets.elements / WARP_THREADS) * LOOK_UP_CYCLES[direction] if alone else 0.0
    return (limited_transfer(2.0 * targets.size_bytes, written, float(targets.elements), block_cycles=cycles),)


@translates("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def _nll_loss(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Count one probability per target."""
    return None if len(operation.inputs) < 2 else _looked_up(operation, operation.inputs[1], 4.0, "forward")


@translates("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def _nll_loss_backward(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Count zeroing the gradient, then writing one value per target."""
    if len(operation.inputs) < 3:
        return None
    data, targets = operation.inputs[1], operation.inputs[2]
    zeroed = OperationShape("transfer", "float32", (0.0, float(data.size_bytes), 0.0))
    written = float(targets.elements * data.size_bytes / max(data.elements, 1))
    return zeroed, *_looked_up(operation, targets, written, "backward")


@translates(
    "aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss", "aten::binary_cross_entropy", "aten::soft_margin_loss"
)
def _loss(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Count the loss of each element as written. For a mean or sum, the losses are read again."""
    data = operation.inputs[0]
    read, size, count = float(bytes_read(operation)), float(data.size_bytes), float(data.elements)
    if not count:
        return ()
    each = OperationShape("transfer", "float32", (read, size, count))
    if operation.arguments.get("reduction", 1) == 0:  # no reduction; 1 is the mean, 2 the sum
        return (each,)
    return each, OperationShape("transfer", "float32", (size, size / count, count))
