"""Bytes that an operation reads and writes, for the many that are bound by memory.

The rule: inputs are read, outputs are written; where the recorder did not see outputs (the profiler does not), the
output is as large as the largest input, or as the tensor that is changed in place. Tables hold the exceptions.
Example::

    >>> from lightning_predict.tracing.trace import Operation, TensorInfo
    >>> x = TensorInfo((1024,), "float32")
    >>> transfer_of(Operation(name="aten::sigmoid", phase="forward", inputs=(x,), outputs=(x,)))[0].dims
    (4096.0, 4096.0, 1024.0)
"""

from __future__ import annotations

from typing import Final

from lightning_predict.kernels.operations import Problem
from lightning_predict.tracing.trace import Operation, TensorInfo

WRITE_ONLY: Final = frozenset(
    f"aten::{name}"
    for name in (
        "arange bernoulli bernoulli_ exponential_ eye fill_ full full_like linspace new_full new_ones new_zeros "
        "normal_ ones ones_like rand rand_like randint randn randn_like random_ randperm scalar_tensor uniform_ "
        "zero_ zeros zeros_like _foreach_zero_"
    ).split()
)
"""Fills and random draws: nothing is read."""

REDUCTIONS: Final = frozenset(
    f"aten::{name}"
    for name in (
        "all amax amin any argmax argmin linalg_vector_norm logsumexp max mean min norm nansum prod std sum var "
        "_foreach_norm var_mean"
    ).split()
)
"""The output is small against the input."""

LOOK_UPS: Final = frozenset(
    f"aten::{name}" for name in "gather index index_select take take_along_dim embedding upsample_nearest2d".split()
)
"""Of the table only the rows asked for are read."""

TENSOR_LISTS: Final = {
    "aten::_foreach_add_": 1,
    "aten::_foreach_mul_": 1,
    "aten::_foreach_div_": 1,
    "aten::_foreach_sqrt": 1,
    "aten::_foreach_sqrt_": 1,
    "aten::_foreach_neg": 1,
    "aten::_foreach_addcmul_": 3,
    "aten::_foreach_addcdiv_": 3,
    "aten::_foreach_lerp_": 2,
    "aten::_foreach_copy_": 2,
}
"""Lists of tensors that a multi-tensor operation takes, the changed one among them, where no scalar list decides it."""

# Lists read and lists written: (parameters, gradients, two moments) and the same less the gradients.
FUSED_OPTIMIZERS: Final = {
    "aten::_fused_adam_": (4, 3),
    "aten::_fused_adamw_": (4, 3),
    "aten::_fused_adagrad_": (3, 2),
    "aten::_fused_sgd_": (3, 2),
}


UNTRANSLATED: Final = "untranslated"
"""Kind of an operation whose translator failed (`families/copies.py`)."""


def untranslated(operation: Operation) -> tuple[Problem, ...]:
    """The operation's bytes, as the least that it does: what it computes is not known."""
    return tuple(Problem(UNTRANSLATED, one.dtype, one.dims) for one in transfer_of(operation))


def transfer_of(operation: Operation) -> tuple[Problem, ...]:
    """The operation as bytes read, bytes written and one floating-point operation an element; empty for no bytes."""
    read, written = bytes_read(operation), bytes_written(operation)
    if read + written == 0:
        return ()
    tensors = operation.outputs or operation.inputs
    elements = max((tensor.elements for tensor in tensors), default=0)
    if crosses_host_link(operation):
        return (Problem("host_copy", "uint8", (float(max(written, 1)),)),)
    return (Problem("transfer", "float32", (float(read), float(written), float(elements))),)


def crosses_host_link(operation: Operation) -> bool:
    """True for a copy between the host's memory and the GPU's."""
    if operation.name not in ("aten::copy_", "aten::_to_copy"):
        return False
    if any("Memcpy HtoD" in kernel.name or "Memcpy DtoH" in kernel.name for kernel in operation.kernels):
        return True
    return len({tensor.device for tensor in (*operation.inputs, *operation.outputs)} & {"cpu", "cuda"}) == 2


def bytes_read(operation: Operation) -> int:
    """Bytes that the operation reads at least once."""
    name = operation.name
    if name in WRITE_ONLY:
        return 0
    if name in LOOK_UPS and operation.outputs:
        indices = min((tensor.size_bytes for tensor in operation.inputs), default=0)
        return _sum_bytes(operation.outputs) + indices
    if name == "aten::copy_" and len(operation.inputs) == 2:
        return operation.inputs[1].size_bytes  # The destination, listed first, is not read.
    return _sum_bytes(operation.inputs)


def bytes_written(operation: Operation) -> int:
    """Bytes that the operation writes at least once."""
    name, inputs = operation.name, operation.inputs
    if name in FUSED_OPTIMIZERS:
        lists_read, lists_written = FUSED_OPTIMIZERS[name]
        return _sum_bytes(inputs) * lists_written // lists_read
    if name.startswith("aten::_foreach_"):
        if name in WRITE_ONLY:
            return _sum_bytes(inputs)
        if name in REDUCTIONS:
            return 0
        return _sum_bytes(operation.outputs) or _sum_bytes(inputs) // _tensor_lists(operation)
    if operation.outputs:
        return _sum_bytes(operation.outputs)
    if name in REDUCTIONS:
        return 0
    if name.endswith("_") and inputs:
        return inputs[0].size_bytes
    return max((tensor.size_bytes for tensor in inputs), default=0)


def _tensor_lists(operation: Operation) -> int:
    """Lists of a multi-tensor operation. `add`, `mul` and `div` take one list and a scalar, or two lists."""
    listed = TENSOR_LISTS.get(operation.name, 1)
    if listed > 1 or "scalar" in operation.arguments or "scalars" in operation.arguments:
        return listed
    shapes = [tensor.shape for tensor in operation.inputs]
    half = len(shapes) // 2
    return 2 if half and shapes[:half] == shapes[half:] else 1


def _sum_bytes(tensors: tuple[TensorInfo, ...]) -> int:
    return sum(tensor.size_bytes for tensor in tensors)
