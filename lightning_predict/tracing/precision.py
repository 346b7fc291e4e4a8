"""Words for precision, and what if a model were trained in half precision.

`precision_of` reads Lightning's words. `in_precision` gives a Trace the dtypes that autocast would give it: matrix
products, convolutions, attention and recurrent layers, with their backward passes, take and give 16-bit tensors; all
else stays as it was, as autocast leaves it. Autocast's own casts are not added; `capture(step, precision=...)` on the
meta device has them. Example::

    half = in_precision(trace, "bfloat16")
    lp.predict(half, ["L4"])["L4"].iteration_seconds
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, final

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.tracing.trace import Operation, TensorInfo, Trace

PRECISIONS: Final = ("bfloat16", "float16")


@final
@dataclass(frozen=True, slots=True)
class Precision:
    """The meaning of a name for a precision.

    Attributes:
        word: Lightning's word.
        dtype: dtype of the parameters.
        autocast: dtype that autocast runs products in; None without autocast.
    """

    word: str
    dtype: str
    autocast: str | None = None


_WORDS_OF_PRECISION: Final = (
    Precision("bf16-mixed", "float32", "bfloat16"),
    Precision("16-mixed", "float32", "float16"),
    Precision("32-true", "float32"),
    Precision("bf16-true", "bfloat16"),
    Precision("16-true", "float16"),
    Precision("64-true", "float64"),
)

_SHORT_WORDS: Final = {"32": "32-true", "64": "64-true", "16": "16-mixed", "bf16": "bf16-mixed"}
"""Lightning reads these older words in this way."""


def precision_of(word: str | int) -> Precision:
    """Find what a word for precision means, as Lightning's Trainer reads it.

    Args:
        word: For example `bf16-mixed`, `16-mixed`, `32-true` or `bf16-true`.

    Raises:
        InvalidArgumentError: Another word.
    """
    name = _SHORT_WORDS.get(str(word), str(word))
    for precision in _WORDS_OF_PRECISION:
        if precision.word == name:
            return precision
    known = ", ".join(precision.word for precision in _WORDS_OF_PRECISION)
    raise InvalidArgumentError(f"precision={word!r} is not known; expected one of {known}, as in Lightning's Trainer.")


_NAMES: Final = frozenset(
    f"aten::{name}"
    for name in "mm addmm bmm baddbmm addbmm mv addmv matmul linear linear_backward chain_matmul".split()
)
"""Matrix products, which autocast runs in 16 bits."""

_WORDS: Final = ("convolution", "attention", "lstm", "gru", "rnn")
"""Parts of the names of the other operations that it does."""


def is_cast_by_autocast(operation: Operation) -> bool:
    """Tell whether autocast runs this operation, forward or backward, in 16 bits."""
    if operation.phase == "optimizer":
        return False
    return operation.name in _NAMES or any(word in operation.name for word in _WORDS)


def in_precision(trace: Trace, dtype: str) -> Trace:
    """Return the trace as it would be under autocast.

    What was measured (kernels, times, the GPU, the peak of memory) holds for the old precision only and is left out, so
    that everything is predicted anew.

    Args:
        trace: A trace in float32.
        dtype: `bfloat16` or `float16`.

    Raises:
        InvalidArgumentError: Another dtype, or a trace that runs in 16 bits already.
    """
    if dtype not in PRECISIONS:
        raise InvalidArgumentError(f"dtype={dtype!r} is no precision of autocast; expected {' or '.join(PRECISIONS)}.")
    if trace.flags.autocast_dtype is not None:
        raise InvalidArgumentError(
            f"The trace was recorded under autocast in {trace.flags.autocast_dtype}; record it in float32 first."
        )
    made_half = {
        tensor.id
        for operation in trace.operations
        if is_cast_by_autocast(operation)
        for tensor in operation.outputs
        if tensor.id is not None
    }

    def cast(operation: Operation) -> Operation:
        operation = replace(operation, kernels=(), host_start_seconds=None, host_seconds=None)
        if is_cast_by_autocast(operation):
            inputs, outputs = (
                tuple(_half(tensor, dtype) for tensor in tensors) for tensors in (operation.inputs, operation.outputs)
            )
            return replace(operation, inputs=inputs, outputs=outputs)
        if operation.phase == "optimizer":
            return operation  # Gradients are cast back for it.
        # What reads such a result directly reads half the bytes; what it writes keeps its dtype.
        inputs = tuple(_half(tensor, dtype) if tensor.id in made_half else tensor for tensor in operation.inputs)
        return replace(operation, inputs=inputs)

    return replace(
        trace,
        operations=tuple(cast(operation) for operation in trace.operations),
        gpu_reported_name=None,
        gpu_memory_bytes=None,
        step_seconds=(),
        profiled_seconds=None,
        memory=replace(trace.memory, peak_bytes=None),
        flags=replace(trace.flags, autocast_dtype=dtype),
        notes=(*trace.notes, f"What if in {dtype}: as under autocast, whose own casts are not counted."),
    )


def _half(tensor: TensorInfo, dtype: str) -> TensorInfo:
    return replace(tensor, dtype=dtype) if tensor.dtype == "float32" else tensor
