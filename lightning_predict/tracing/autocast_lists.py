"""What CUDA's autocast casts, by the name of the operation below autograd.

The lists are torch's (`ATen/autocast_mode.h`, release 2.13): `linear`, `matmul` and `einsum` are known by the products
inside. Operations in none of them compute in the widest dtype that they are given. Example::

    "aten::mm" in LOWER, "aten::_softmax" in FLOAT32      # True, True
"""

from __future__ import annotations

from typing import Final

from lightning_predict.tracing.signatures import ATTENTION, RECURRENT, RMS_NORM


def named(text: str) -> frozenset[str]:
    """Give the qualified names of operations in a text."""
    return frozenset(f"aten::{name}" for name in text.split())


LOWER: Final = named(
    "convolution _convolution conv_tbc _prelu_kernel addmm addmv addr mm mv addbmm baddbmm bmm linear "
    "_thnn_fused_lstm_cell _thnn_fused_gru_cell"
) | {ATTENTION, *RECURRENT}
"""Run in 16 bits."""

LOWER_BACKWARD: Final = LOWER | named("convolution_backward _prelu_kernel_backward")

FLOAT32: Final = named(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus native_layer_norm "
    "native_group_norm nll_loss_forward nll_loss2d_forward smooth_l1_loss huber_loss mse_loss soft_margin_loss "
    "multilabel_margin_loss_forward multi_margin_loss binary_cross_entropy_with_logits dist _pdist_forward "
    "_cdist_forward renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d "
    "_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
    "_upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa _softmax _log_softmax"
) | {RMS_NORM}
"""Run in float32."""

FLOAT32_BACKWARD: Final = named(
    "native_layer_norm_backward native_group_norm_backward nll_loss_backward nll_loss2d_backward mse_loss_backward "
    "smooth_l1_loss_backward huber_loss_backward soft_margin_loss_backward multilabel_margin_loss_backward "
    "multi_margin_loss_backward softplus_backward _softmax_backward_data _log_softmax_backward_data _pdist_backward "
    "_cdist_backward"
)

SUMS: Final = named("sum prod cumsum cumprod linalg_vector_norm")
"""Read 16 bits and give float32, unless they are told a dtype."""

WIDEST: Final = named(
    "addcdiv addcmul atan2 linalg_cross dot vdot grid_sampler_2d grid_sampler_3d index_put scatter_add"
)
"""Run in the widest dtype of their tensors."""

BANNED: Final = "aten::binary_cross_entropy"
