"""Argument names of operations (torch's schemas), and the composite calls that are recorded as one operation.

Profiler files list an operation's arguments by position, without names. This table has their names from torch's
schemas, and a test compares it with the installed torch. A name with `@` is a tensor or a list of tensors.

Recurrent layers, scaled-dot-product attention and RMS normalisation are composites. Depending on device and dtype, the
same call becomes one fused kernel or hundreds of small ones. All recorders skip their parts, and use the same names for
the call and its backward pass (a "whole call"). The inputs of both are the call's tensors in schema order, with lists
flattened. The exception is the backward pass of RMS normalisation, which starts with the gradient, like its fused
operation. Example::

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
from typing import Any, Final

from lightning_predict.tracing.trace import DTYPE_BYTES, Operation, TensorInfo

RECORDED_TENSORS: Final = "recorded tensors"
"""Key of `call.details` for data that a recorder in the same process adds to the profile. For each position, it lists
the tensors as rows of shape, dtype, storage id and device type."""

FUSED: Final = "triton::fused"
"""Name of a compiler's fused kernel."""

MODULE_MARK: Final = "nn.Module#"
"""Prefix of the markers that our recorder sets around a module's call. The module's name follows."""

_TABLE: Final = """
_adaptive_avg_pool2d: @self output_size
_adaptive_avg_pool3d: @self output_size
adaptive_max_pool2d: @self output_size
add: @self @other alpha
add: @self other alpha
add_: @self @other alpha
add_: @self other alpha
addbmm: @self @batch1 @batch2 beta alpha
addmm: @self @mat1 @mat2 beta alpha
addmv: @self @mat @vec beta alpha
amax: @self dim keepdim
amin: @self dim keepdim
argmax: @self dim keepdim
avg_pool2d: @self kernel_size stride padding ceil_mode count_include_pad divisor_override
avg_pool2d_backward: @grad_output @self kernel_size stride padding ceil_mode count_include_pad divisor_override
avg_pool3d: @self kernel_size stride padding ceil_mode count_include_pad divisor_override
baddbmm: @self @batch1 @batch2 beta alpha
batch_norm_backward: @grad_out @input @weight @running_mean @running_var @save_mean @save_var update eps output_mask \
    @reserve
_batch_norm_with_update: @input @weight @bias @running_mean @running_var momentum eps
bernoulli_: @self @p generator
bernoulli_: @self p generator
binary_cross_entropy: @self @target @weight reduction
binary_cross_entropy_with_logits: @self @target @weight @pos_weight reduction
cat: @tensors dim
clamp: @self min max
clamp: @self @min @max
clone: @self memory_format
constant_pad_nd: @self pad value
convolution: @input @weight @bias stride padding dilation transposed output_padding groups
convolution_backward: @grad_output @input @weight bias_sizes stride padding dilation transposed output_padding \
    groups output_mask
copy_: @self @src non_blocking
cudnn_batch_norm: @input @weight @bias @running_mean @running_var training exponential_average_factor epsilon
cudnn_batch_norm_backward: @input @grad_output @weight @running_mean @running_var @save_mean @save_var epsilon \
    @reserveSpace
cudnn_convolution: @self @weight padding stride dilation groups benchmark deterministic allow_tf32
cumsum: @self dim dtype
div: @self @other
div: @self other
div: @self @other rounding_mode
div: @self other rounding_mode
elu: @self alpha scale input_scale
embedding: @weight @indices padding_idx scale_grad_by_freq sparse
_embedding_bag: @weight @indices @offsets scale_grad_by_freq mode sparse @per_sample_weights include_last_offset \
    padding_idx
embedding_dense_backward: @grad_output @indices num_weights padding_idx scale_grad_by_freq
flip: @self dims
_foreach_add_: @self scalar
_foreach_add_: @self @other alpha
_foreach_add_: @self scalars
_foreach_mul_: @self scalar
_foreach_mul_: @self @other
_foreach_mul_: @self scalars
_foreach_norm: @self ord dtype
_fused_adam_: @self @grads @exp_avgs @exp_avg_sqs @max_exp_avg_sqs @state_steps lr beta1 beta2 weight_decay eps \
    amsgrad maximize @grad_scale @found_inf
_fused_adam_: @self @grads @exp_avgs @exp_avg_sqs @max_exp_avg_sqs @state_steps @lr beta1 beta2 weight_decay eps \
    amsgrad maximize @grad_scale @found_inf
_fused_adamw_: @self @grads @exp_avgs @exp_avg_sqs @max_exp_avg_sqs @state_steps lr beta1 beta2 weight_decay eps \
    amsgrad maximize @grad_scale @found_inf
_fused_adamw_: @self @grads @exp_avgs @exp_avg_sqs @max_exp_avg_sqs @state_steps @lr beta1 beta2 weight_decay eps \
    amsgrad maximize @grad_scale @found_inf
_fused_rms_norm: @input normalized_shape @weight eps
_fused_sgd_: @self @grads @momentum_buffer_list weight_decay momentum lr dampening nesterov maximize is_first_step \
    @grad_scale @found_inf
_fused_sgd_: @self @grads @momentum_buffer_list weight_decay momentum @lr dampening nesterov maximize is_first_step \
    @grad_scale @found_inf
gather: @self dim @index sparse_grad
gelu: @self approximate
gelu_backward: @grad_output @self approximate
glu: @self dim
gru: @input @hx @params has_biases num_layers dropout train bidirectional batch_first
gru: @data @batch_sizes @hx @params has_biases num_layers dropout train bidirectional
hardtanh: @self min_val max_val
index_add: @self dim @index @source alpha
index_select: @self dim @index
leaky_relu: @self negative_slope
linalg_vector_norm: @self ord dim keepdim dtype
_log_softmax: @self dim half_to_float
_log_softmax_backward_data: @grad_output @output dim input_dtype
lstm: @input @hx @params has_biases num_layers dropout train bidirectional batch_first
lstm: @data @batch_sizes @hx @params has_biases num_layers dropout train bidirectional
masked_fill: @self @mask value
masked_fill: @self @mask @value
max_pool2d_with_indices: @self kernel_size stride padding dilation ceil_mode
max_pool2d_with_indices_backward: @grad_output @self kernel_size stride padding dilation ceil_mode @indices
max_pool3d_with_indices: @self kernel_size stride padding dilation ceil_mode
mean: @self dtype
mean: @self dim keepdim dtype
mse_loss: @self @target reduction
mse_loss_backward: @grad_output @self @target reduction
mul: @self @other
mul: @self other
native_batch_norm: @input @weight @bias @running_mean @running_var training momentum eps
native_batch_norm_backward: @grad_out @input @weight @running_mean @running_var @save_mean @save_invstd train eps \
    output_mask
_native_batch_norm_legit: @input @weight @bias @running_mean @running_var training momentum eps
_native_batch_norm_legit: @input @weight @bias training momentum eps
native_dropout: @input p train
native_dropout_backward: @grad_output @mask scale
native_group_norm: @input @weight @bias N C HxW group eps
native_group_norm_backward: @grad_out @input @mean @rstd @weight N C HxW group output_mask
native_layer_norm: @input normalized_shape @weight @bias eps
native_layer_norm_backward: @grad_out @input normalized_shape @mean @rstd @weight @bias output_mask
nll_loss2d_forward: @self @target @weight reduction ignore_index
nll_loss_backward: @grad_output @self @target @weight reduction ignore_index @total_weight
nll_loss_forward: @self @target @weight reduction ignore_index
norm: @self p
norm: @self p dim keepdim
norm: @self p dim keepdim dtype
norm: @self p dtype
permute: @self dims
pow: @self @exponent
pow: @self exponent
pow: self @exponent
pow: a b
reflection_pad2d: @self padding
rms_norm: @input normalized_shape @weight eps
rnn_relu: @input @hx @params has_biases num_layers dropout train bidirectional batch_first
rnn_relu: @data @batch_sizes @hx @params has_biases num_layers dropout train bidirectional
rnn_tanh: @input @hx @params has_biases num_layers dropout train bidirectional batch_first
rnn_tanh: @data @batch_sizes @hx @params has_biases num_layers dropout train bidirectional
roll: @self shifts dims
rsub: @self @other alpha
rsub: @self other alpha
_safe_softmax: @self dim dtype
scaled_dot_product_attention: @query @key @value @attn_mask dropout_p is_causal scale enable_gqa
_scaled_mm: @self @mat2 @scale_a @scale_b @bias @scale_result out_dtype use_fast_accum
scatter_add: @self dim @index @src
select: @self dim index
slice: @self dim start end step
smooth_l1_loss: @self @target reduction beta
_softmax: @self dim half_to_float
_softmax_backward_data: @grad_output @output dim input_dtype
softplus: @self beta threshold
sort: @self dim descending
sort: @self stable dim descending
stack: @tensors dim
std: @self unbiased
std: @self dim unbiased keepdim
std: @self dim correction keepdim
sub: @self @other alpha
sub: @self other alpha
sum: @self dim keepdim dtype
sum: @self dtype
threshold_backward: @grad_output @self threshold
_to_copy: @self dtype layout device pin_memory non_blocking memory_format
topk: @self k dim largest sorted
transpose: @self dim0 dim1
tril: @self diagonal
_trilinear: @i1 @i2 @i3 expand1 expand2 expand3 sumdim unroll_dim
triu: @self diagonal
unsqueeze: @self dim
upsample_bicubic2d: @self output_size align_corners scales_h scales_w
upsample_bicubic2d: @input output_size align_corners scale_factors
upsample_bilinear2d: @self output_size align_corners scales_h scales_w
upsample_bilinear2d: @input output_size align_corners scale_factors
upsample_nearest2d: @self output_size scales_h scales_w
upsample_nearest2d: @input output_size scale_factors
var: @self unbiased
var: @self dim unbiased keepdim
var: @self dim correction keepdim
"""


def _parse(table: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    signatures: dict[str, list[tuple[str, ...]]] = {}
    for line in table.strip().splitlines():
        name, _, words = line.partition(": ")
        signatures.setdefault(f"aten::{name}", []).append(tuple(words.split()))
    return {name: tuple(overloads) for name, overloads in signatures.items()}


SIGNATURES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = _parse(_TABLE)
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
    """Return the overload whose arguments match these positions; None if the table has none.

    Args:
        name: Qualified name without the overload.
        is_tensor: One entry per position: True for a tensor, False for another value, None if not given. Positions at
            the end may be omitted.
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
    """Map argument names to non-tensor values, without None; empty if the table does not have `name`.

    Args:
        name: Qualified name without the overload.
        values: Values by position. Values of tensors are ignored.
        is_tensor: As for `signature`.
    """
    words = signature(name, is_tensor) or ()
    pairs = zip(words, values, strict=False)
    return {word: value for word, value in pairs if not word.startswith("@") and value is not None}


DRAWS_MASKS: Final = "aten::bernoulli_"
"""Operation that draws the mask of dropout without CUDA, in the dtype of its input. CUDA's `native_dropout` keeps one
byte per element instead."""

ATTENTION: Final = "aten::scaled_dot_product_attention"
RMS_NORM: Final = "aten::rms_norm"
FUSED_RMS_NORM: Final = "aten::_fused_rms_norm"
RECURRENT: Final = ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu")

WHOLE_OPERATIONS: Final = frozenset({ATTENTION, RMS_NORM, *RECURRENT})
"""Names of the composite calls that are recorded as one operation. `backward_name` names their backward passes."""

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
    """Return the name under which a whole call is recorded: that of torch's fused operation, if there is one."""
    return FUSED_RMS_NORM if name == RMS_NORM else name


def backward_name(name: str) -> str:
    """Return the name of the backward pass of a whole call."""
    return f"{recorded_name(name)}_backward"


def has_wider_mask(operation: Operation) -> bool:
    """Return whether a 16-bit attention has a float32 mask, as T5's position bias under autocast.

    No fused kernel takes such a mask: torch computes products and softmax in float32.
    """
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
    """Return whether the parts of a whole call use fewer bits than its tensors, because autocast casts inside the call.

    Parts with more bits come from torch's fallback if it has no fused kernel (16-bit attention on the meta device).
    This is ignored, because the target GPU determines which kernel runs.
    """
    return inside is not None and DTYPE_BYTES.get(inside, 4) < DTYPE_BYTES.get(outside, 4)


def whole_arguments(name: str, values: Sequence[Any], *, is_tensor: Sequence[bool | None]) -> dict[str, Any]:
    """Return the arguments of a whole call by name, including defaults.

    For attention, `attn_mask` states whether there is a mask (the fourth input). For a recurrent layer over a packed
    sequence, `packed` is true (its second input has one element per time step).

    Args:
        name: One of `WHOLE_OPERATIONS`.
        values: Values by position of the schema. Values of tensors are ignored.
        is_tensor: One entry per position: True for a tensor or a list of them, False for another value, None if not
            given.
    """
    arguments = {**_DEFAULTS.get(name, {}), **name_values(name, values, is_tensor=is_tensor)}
    if name == ATTENTION:
        arguments["attn_mask"] = len(is_tensor) > 3 and bool(is_tensor[3])
    if "@batch_sizes" in (signature(name, is_tensor) or ()):
        arguments["packed"] = True
    return arguments
