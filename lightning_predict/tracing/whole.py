"""Operations that are recorded whole, because which kernels they fall into is for the target GPU to decide.

Recurrent layers, scaled-dot-product attention and RMS normalisation are composites: the same call becomes one fused
kernel, or hundreds of small ones, by device and dtype. Every recorder leaves their parts out and names the call and its
backward pass the same way. Inputs are the call's tensors in the schema's order, lists flattened, for the backward
pass too (RMS normalisation alone begins with the gradient, as the fused operation that it is named after). Example::

    >>> backward_name("aten::lstm")
    'aten::lstm_backward'
    >>> whole_arguments("aten::scaled_dot_product_attention", ["q", "k", "v", None, 0.0, True],
    ...                 is_tensor=[True, True, True, None, False, False])
    {'dropout_p': 0.0, 'is_causal': True, 'enable_gqa': False, 'attn_mask': False}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lightning_predict.tracing.records import DTYPE_BYTES, TensorInfo
from lightning_predict.tracing.signatures import name_values, signature

ATTENTION: Final = "aten::scaled_dot_product_attention"
RMS_NORM: Final = "aten::rms_norm"
FUSED_RMS_NORM: Final = "aten::_fused_rms_norm"
RECURRENT: Final = ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu")

WHOLE_OPERATIONS: Final = frozenset({ATTENTION, RMS_NORM, *RECURRENT})
"""Names of the operations recorded whole; each has a backward pass under `backward_name`."""

_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    ATTENTION: {"dropout_p": 0.0, "is_causal": False, "enable_gqa": False},
}

_COMPUTING_PARTS: Final = (
    "aten::_scaled_dot_product",
    "aten::_cudnn_rnn",
    "aten::miopen_rnn",
    "aten::mkldnn_rnn_layer",
    "aten::_thnn_fused",
    "aten::addmm",
    "aten::mm",
    "aten::bmm",
    "aten::baddbmm",
)


def recorded_name(name: str) -> str:
    """Name under which a whole call is recorded; that of the fused operation where torch has one."""
    return FUSED_RMS_NORM if name == RMS_NORM else name


def backward_name(name: str) -> str:
    """Name of the backward pass of a whole call."""
    return f"{recorded_name(name)}_backward"


def backward_inputs(name: str, inputs: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
    """Tensors of the backward pass of a whole call with these inputs."""
    if name not in (RMS_NORM, FUSED_RMS_NORM) or not inputs:
        return inputs
    return (replace(inputs[0], id=None), *inputs)


def computes(part: str) -> bool:
    """True for a part whose first input has the dtype that the whole operation computes in.

    Under autocast the call still takes float32 and its parts take 16 bits; the arguments then bear `compute_dtype`.
    """
    return part.startswith(_COMPUTING_PARTS)


def is_cast_down(outside: str, inside: str | None) -> bool:
    """True where the parts of a whole call run in fewer bits than its tensors have: autocast casts inside the call.

    More bits are torch's own way through a call without a fused kernel (attention in 16 bits on the meta device);
    which kernel runs is for the target GPU to decide.
    """
    return inside is not None and DTYPE_BYTES.get(inside, 4) < DTYPE_BYTES.get(outside, 4)


def whole_arguments(name: str, values: Sequence[Any], *, is_tensor: Sequence[bool | None]) -> dict[str, Any]:
    """Arguments of a whole operation by name, its defaults filled in.

    Attention says with `attn_mask` whether there is a mask (then the fourth input); a recurrent layer over a packed
    sequence has `packed` (its second input has one element a time step).

    Args:
        name: One of `WHOLE_OPERATIONS`.
        values: Values by position of the schema; what stands at a tensor's position does not matter.
        is_tensor: One entry a position: a tensor or a list of them, something else, or None where nothing was given.
    """
    arguments = {**_DEFAULTS.get(name, {}), **name_values(name, values, is_tensor=is_tensor)}
    if name == ATTENTION:
        arguments["attn_mask"] = len(is_tensor) > 3 and bool(is_tensor[3])
    if "@batch_sizes" in (signature(name, is_tensor) or ()):
        arguments["packed"] = True
    return arguments
