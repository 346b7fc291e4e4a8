"""Peak memory of a step: measured where the trace holds it, else derived from what lives after the forward pass.

Derived: parameters and buffers, gradients, optimizer state, and the tensors that the forward phase wrote and the
backward phase reads (saved activations), each storage once. Example::

    >>> from lightning_predict.tracing.records import Memory, Operation, TensorInfo, Trace
    >>> hidden = TensorInfo((256,), "float32", id=7)
    >>> trace = Trace(device="cpu", recorder="dispatch", memory=Memory(parameter_bytes=1000, gradient_bytes=1000),
    ...               operations=(Operation(name="aten::relu", phase="forward", outputs=(hidden,)),
    ...                           Operation(name="aten::threshold_backward", phase="backward", inputs=(hidden,))))
    >>> step_memory_bytes(trace)  # 1000 + 1000 + 256 x 4
    3024
"""

from __future__ import annotations

from typing import Final

from lightning_predict.tracing.records import Trace

USABLE_SHARE: Final = 0.94
"""Share of a GPU's memory that a training process can use: the driver, the CUDA context (some 400 MB) and the
allocator's unused remainders take the rest."""


def saved_activation_bytes(trace: Trace) -> int:
    """Bytes of the storages that the forward phase wrote and the backward phase reads."""
    written: dict[int, int] = {}
    saved: dict[int, int] = {}
    for operation in trace.operations:
        if operation.phase == "forward":
            for tensor in operation.outputs:
                if tensor.id is not None:
                    written[tensor.id] = max(written.get(tensor.id, 0), tensor.size_bytes)
        elif operation.phase == "backward":
            for tensor in operation.inputs:
                if tensor.id is not None and tensor.id in written:
                    saved[tensor.id] = written[tensor.id]
    return sum(saved.values())


def step_memory_bytes(trace: Trace) -> int | None:
    """Peak bytes of a step; None where neither a peak nor the model's parameters are known."""
    memory = trace.memory
    if memory.peak_bytes is not None:
        return memory.peak_bytes
    if memory.parameter_bytes is None:
        return None
    gradients = memory.parameter_bytes if memory.gradient_bytes is None else memory.gradient_bytes
    if not any(operation.phase == "backward" for operation in trace.operations):
        gradients = memory.gradient_bytes or 0
    state = memory.optimizer_state_bytes or 0
    return memory.parameter_bytes + gradients + state + saved_activation_bytes(trace)


def fits(needed_bytes: float | None, memory_bytes: float) -> bool | None:
    """True where the step fits on a GPU of that memory; None where the need is unknown."""
    return None if needed_bytes is None else needed_bytes <= USABLE_SHARE * memory_bytes
