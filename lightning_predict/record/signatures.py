"""Argument names of operations (torch's schemas), and the composite calls that are recorded as one operation.

Profiler files list an operation's arguments by position, without names. `argument_names.txt` contains the names from
torch's schemas, and a test compares the file with the installed torch. A name with `@` is a tensor or a list of
tensors.

Recurrent layers, scaled-dot-product attention and RMS normalisation are composites. Depending on device and dtype, such
a call becomes one fused kernel or hundreds of small kernels. All recorders skip the parts, and record the call (a
"whole call") and its backward pass under fixed names. The inputs of the call and of its backward pass are the call's
tensors in schema order, with lists flattened. Only the inputs of RMS normalisation's backward pass start with the
gradient, like those of its fused operation. Example::

    >>> name_values("aten::_softmax", ["tensor", -1, False], is_tensor=[True, False, False])
    {'dim': -1, 'half_to_float': False}
    >>> backward_name("aten::lstm")
    'aten::lstm_backward'
    >>> whole_arguments("aten::scaled_dot_product_attention", ["q", "k", "v", None, 0.0, True],
    ...                 is_tensor=[True, True, True, None, False, False])
    {'dropout_p': 0.0, 'is_causal': True, 'enable_gqa': False, 'attn_mask': False}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lightning_predict.record.trace import DTYPE_BYTES, Operation, TensorInfo

RECORDED_TENSORS: Final = "recorded tensors"
"""Key of `call.details` for tensors that a recorder in the same process adds to the profile.

For each position, the value lists the tensors as rows of shape, dtype, storage id and device type."""

FUSED: Final = "triton::fused"  # Name of a compiler's fused kernel
MODULE_MARK: Final = "nn.Module#"  # Prefix of the profiler recorder's markers of a module call; its name follows


def _parse(table: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    signatures: dict[str, list[tuple[str, ...]]] = {}
    for line in table.strip().splitlines():
        name, _, words = line.partition(": ")
        signatures.setdefault(f"aten::{name}", []).append(tuple(words.split()))
    return {name: tuple(overloads) for name, overloads in signatures.items()}


SIGNATURES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = _parse(
    Path(__file__).with_name("argument_names.txt").read_text(encoding="utf-8")
)
"""Overloads of each listed operation, as argument names in schema order."""

_EXTENSIONS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    name: (tuple(words.split()),)
    for name, words in {
        "flash_attn::_flash_attn_forward": "@q @k @v dropout_p softmax_scale causal window_size_left window_size_right "
        "softcap @alibi_slopes return_softmax",
        "flash_attn::_flash_attn_varlen_forward": "@q @k @v @cu_seqlens_q @cu_seqlens_k max_seqlen_q max_seqlen_k "
        "dropout_p softmax_scale causal",
        "flash_attn::_flash_attn_backward": "@dout @q @k @v @out @softmax_lse @dq @dk @dv dropout_p "
        "softmax_scale causal",
        "flash_attn::_flash_attn_varlen_backward": "@dout @q @k @v @out @softmax_lse @dq @dk @dv @cu_seqlens_q "
        "@cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p softmax_scale causal",
        **dict.fromkeys(
            ("flash_attn_3::_flash_attn_forward", "flash_attn_3::fwd"),
            "@q @k @v @k_new @v_new @qv @out @cu_seqlens_q @cu_seqlens_k @cu_seqlens_k_new @seqused_q @seqused_k "
            "max_seqlen_q max_seqlen_k @page_table @kv_batch_idx @leftpad_k @rotary_cos @rotary_sin @seqlens_rotary "
            "@q_descale @k_descale @v_descale softmax_scale causal",
        ),
        "flash_attn_3::bwd": "@dout @q @k @v @out @softmax_lse @dq @dk @dv @cu_seqlens_q @cu_seqlens_k @seqused_q "
        "@seqused_k max_seqlen_q max_seqlen_k softmax_scale causal",
    }.items()
}
"""Argument names of FlashAttention 2 and 3, up to the causal mask. Further positions are not compared."""


def signature(name: str, is_tensor: Sequence[bool | None]) -> tuple[str, ...] | None:
    """Return the overload whose arguments match these positions; None if the table has no such overload.

    Args:
        name: Qualified name without the overload.
        is_tensor: For each position: True for a tensor, False for another value, None if not given. Positions at the
            end may be omitted.
    """
    for words in _EXTENSIONS.get(name, ()):
        if all(kind is None or kind == word.startswith("@") for word, kind in zip(words, is_tensor, strict=False)):
            return words
    for words in SIGNATURES.get(name, ()):
        given = zip(words, is_tensor, strict=False)
        if len(is_tensor) <= len(words) and all(kind is None or kind == word.startswith("@") for word, kind in given):
            return words
    return None


def name_values(name: str, values: Sequence[Any], *, is_tensor: Sequence[bool | None]) -> dict[str, Any]:
    """Map argument names to non-tensor values, without None; empty if the table lacks `name`.

    Args:
        name: Qualified name without the overload.
        values: Values by position. Values of tensors are ignored.
        is_tensor: As for `signature`.
    """
    words = signature(name, is_tensor) or ()
    pairs = zip(words, values, strict=False)
    return {word: value for word, value in pairs if not word.startswith("@") and value is not None}


DRAWS_MASKS: Final = "aten::bernoulli_"
"""Operation that draws the mask of dropout without CUDA, in the dtype of its input.

CUDA's `native_dropout` keeps one byte per element."""

ATTENTION: Final = "aten::scaled_dot_product_attention"

ATTENTION_KERNEL: Final = "attention_kernel"  # Argument of an attention call with its kernel's name, if not the default
WRITTEN_OUT: Final = "written_out"  # Name for attention as two matmuls and a softmax, as before torch 2.0

RMS_NORM: Final = "aten::rms_norm"
FUSED_RMS_NORM: Final = "aten::_fused_rms_norm"
RECURRENT: Final = ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu")

WHOLE_OPERATIONS: Final = frozenset({ATTENTION, RMS_NORM, *RECURRENT})
"""Names of the composite calls that are recorded as one operation. `backward_name` names their backward passes."""

_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    ATTENTION: {"dropout_p": 0.0, "is_causal": False, "enable_gqa": False}
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
    """Return the name under which a whole call is recorded: the name of torch's fused operation, if there is one."""
    return FUSED_RMS_NORM if name == RMS_NORM else name


def backward_name(name: str) -> str:
    """Return the name of the backward pass of a whole call."""
    return f"{recorded_name(name)}_backward"


MASK_STRIDE: Final = "mask_stride"  # Argument of an attention call: stride of its mask's last dimension, in elements


def is_taken_apart(operation: Operation) -> bool:
    """Return whether no fused kernel takes an attention call: torch computes matmuls and softmax in float32.

    Fused kernels require that the numbers of a row of the mask lie side by side (torch's `sdp_utils`), which those of
    T5's position bias, permuted from a table, do not. Without the stride, as in earlier recordings, a float32 mask of
    16-bit attention stands for it.
    """
    stride = operation.arguments.get(MASK_STRIDE)
    if stride is not None:
        return bool(stride != 1)
    heads, masks = operation.inputs[:3], operation.inputs[3:]
    return any(
        heads[0].dtype in ("float16", "bfloat16") and one.dtype == "float32" and one.shape[-1:] == heads[1].shape[-2:-1]
        for one in masks
    )


def backward_inputs(name: str, inputs: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
    """Return the input tensors of the backward pass of a whole call."""
    if name not in (RMS_NORM, FUSED_RMS_NORM) or not inputs:
        return inputs
    return (replace(inputs[0], id=None), *inputs)


def computes(part: str) -> bool:
    """Return whether the first input of a part has the dtype in which the whole operation computes.

    Under autocast, the call's tensors are float32, but its parts use 16 bits. The arguments then include
    `compute_dtype`.
    """
    return part.startswith(_COMPUTING_PARTS)


def is_cast_down(outside: str, inside: str | None) -> bool:
    """Return whether the parts of a whole call use fewer bits than its tensors, because of autocast inside the call.

    Parts with more bits come from torch's fallback without a fused kernel (16-bit attention on the meta device). These
    parts are ignored, because the target GPU determines which kernel runs.
    """
    return inside is not None and DTYPE_BYTES.get(inside, 4) < DTYPE_BYTES.get(outside, 4)


def whole_arguments(name: str, values: Sequence[Any], *, is_tensor: Sequence[bool | None]) -> dict[str, Any]:
    """Return the arguments of a whole call by name, including defaults.

    For attention, `attn_mask` states whether there is a mask (the fourth input). For a recurrent layer over a packed
    sequence, `packed` is true (its second input has one element per time step).

    Args:
        name: Operation from `WHOLE_OPERATIONS`.
        values: Values by position of the schema. Values of tensors are ignored.
        is_tensor: For each position: True for a tensor or a list of tensors, False for another value, None if not
            given.
    """
    arguments = {**_DEFAULTS.get(name, {}), **name_values(name, values, is_tensor=is_tensor)}
    if name == ATTENTION:
        arguments["attn_mask"] = len(is_tensor) > 3 and bool(is_tensor[3])
    if "@batch_sizes" in (signature(name, is_tensor) or ()):
        arguments["packed"] = True
    return arguments
