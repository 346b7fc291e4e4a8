"""Operations that are timed as a copy of their tensors though they may compute far more.

An operation without a translator is timed by the bytes that it touches. That is right for element-wise work, reductions
and whatever moves data, which are named here; of any other, such as an operator of one's own, nothing is known but its
tensors, so its interval reaches far up and it is named with its share of the time. Example::

    >>> from lightning_predict.tracing.trace import Operation
    >>> is_known(Operation(name="aten::mul_", phase="forward")), is_known(Operation(name="mine::scan", phase="forward"))
    (True, False)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lightning_predict.kernels.free_operations import is_free
from lightning_predict.kernels.operations import Array, translator_of
from lightning_predict.kernels.traffic import (
    FUSED_OPTIMIZERS,
    LOOK_UPS,
    REDUCTIONS,
    TENSOR_LISTS,
    WRITE_ONLY,
)
from lightning_predict.kernels.translation import WorkItem
from lightning_predict.tracing.trace import Operation, Trace

UNKNOWN_SPREAD: Final = 10.0
"""Extra factor upwards around an operation of which only the bytes are known. An assumption: a factorisation of a large
matrix (`linalg.solve`, 4096 x 4096, float32) takes at least 20 times as long as its copy on an H100."""

SHARE_TO_NAME: Final = 0.01
"""Share of the time from which an operation is worth a line."""

MOST_NAMES: Final = 5

POINTWISE: Final = frozenset(
    # Those with torch's own tag `pointwise`, less the special functions, which compute for long.
    "__ilshift_ __ixor_ __lshift_ __rshift_ __xor_ _conj_physical abs acos acosh add addcdiv addcmul angle asin asinh "
    "atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu "
    "clamp clamp_max clamp_min clip clone conj_physical copysign cos cosh deg2rad div elu eq equal erf erfc erfinv exp "
    "exp2 expm1 float_power floor fmax fmin fmod frac frexp ge gelu gelu_backward gt hardshrink hardsigmoid hardtanh "
    "heaviside hypot isfinite isinf isnan isneginf isposinf ldexp le leaky_relu lerp log log10 log1p log2 logaddexp "
    "logaddexp2 logical_and logical_not logical_or logical_xor logit logit_backward lt masked_fill max maximum min "
    "minimum mish mul nan_to_num native_dropout_backward ne neg nextafter positive pow rad2deg reciprocal relu relu6 "
    "remainder round rrelu rsqrt rsub selu sgn sigmoid sigmoid_backward sign signbit silu silu_backward sin sinc sinh "
    "softplus softshrink sqrt square sub tan tanh tanh_backward threshold threshold_backward true_divide trunc where "
    "xlogy "
    # And those that lack it.
    "_fused_dropout _prelu_kernel _prelu_kernel_backward binary_cross_entropy binary_cross_entropy_backward "
    "binary_cross_entropy_with_logits dropout elu_backward floor_divide glu glu_backward hardshrink_backward "
    "hardsigmoid_backward hardswish hardswish_backward hardtanh_backward huber_loss huber_loss_backward kl_div l1_loss "
    "leaky_relu_backward log_sigmoid log_sigmoid_backward log_sigmoid_forward mish_backward mse_loss "
    "mse_loss_backward native_dropout prelu rrelu_with_noise rrelu_with_noise_backward smooth_l1_loss "
    "smooth_l1_loss_backward soft_margin_loss softplus_backward softshrink_backward".split()
)

MOVING: Final = frozenset(
    "_copy_from _index_put_impl_ _local_scalar_dense _pin_memory _to_copy _unsafe_index _unsafe_index_put "
    "_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward block_diag broadcast_tensors "
    "bucketize cat channel_shuffle clone col2im constant_pad_nd contiguous copy cumprod cumsum diag diag_embed "
    "diagonal_backward fill flip im2col index_add index_copy index_fill index_put index_put_impl lift lift_fresh_copy "
    "masked_scatter masked_select meshgrid new_copy nonzero one_hot pad pixel_shuffle pixel_unshuffle "
    "reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d "
    "reflection_pad3d_backward repeat repeat_interleave replication_pad1d replication_pad1d_backward "
    "replication_pad2d replication_pad2d_backward replication_pad3d replication_pad3d_backward roll rot90 scatter "
    "scatter_add scatter_reduce select_backward select_scatter slice_backward slice_scatter split_copy stack tile to "
    "trace tril tril_indices triu triu_indices unfold_backward upsample_bicubic2d upsample_bicubic2d_backward "
    "upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_nearest1d "
    "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward "
    "upsample_trilinear3d upsample_trilinear3d_backward view_copy".split()
)

REDUCING: Final = frozenset(
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d adaptive_max_pool2d_backward avg_pool1d avg_pool2d "
    "avg_pool2d_backward avg_pool3d avg_pool3d_backward max_pool2d max_pool2d_with_indices "
    "max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward "
    "_native_batch_norm_legit_no_training native_norm cudnn_batch_norm count_nonzero aminmax cummax cummin dist "
    "std_mean nanmean _weight_norm_interface _weight_norm_interface_backward _amp_foreach_non_finite_check_and_unscale "
    "_amp_update_scale _is_all_true _is_any_true".split()
)

_KNOWN: Final = (
    POINTWISE
    | MOVING
    | REDUCING
    | {
        name.removeprefix("aten::")
        for names in (WRITE_ONLY, REDUCTIONS, LOOK_UPS, TENSOR_LISTS, FUSED_OPTIMIZERS)
        for name in names
    }
)
_FUSED_BY_COMPILER: Final = ("triton", "inductor")


def is_known(operation: Operation) -> bool:
    """True where the operation's work is known, or takes about as long as its bytes."""
    if translator_of(operation.name) is not None or is_free(operation):
        return True
    namespace, _, name = operation.name.rpartition("::")
    if namespace.startswith(_FUSED_BY_COMPILER):
        return True
    if namespace != "aten":
        return False
    spellings = (name, name.removesuffix("_"), name.removeprefix("_foreach_").removesuffix("_"))
    return any(spelling in _KNOWN for spelling in spellings)


def unknown_operations(trace: Trace, item: WorkItem) -> tuple[str, ...]:
    """Names of the item's operations that are timed by their bytes for want of anything better."""
    if not item.problems:
        return ()
    names = (trace.operations[index] for index in item.operations)
    return tuple(operation.name for operation in names if not is_known(operation))


def unknown_operation_notes(
    trace: Trace, items: Sequence[WorkItem], seconds: Array, unmeasured: Array
) -> tuple[str, ...]:
    """Name the unknown operations that take a share of the time worth a line.

    Args:
        trace: The trace that was timed.
        items: Its work.
        seconds: Device seconds, shape (gpus, items).
        unmeasured: Share of each item's time that no measured kernel gave, shape (gpus, items).

    Returns:
        One sentence, with shares over all GPUs; none where every operation is known.
    """
    total = seconds.sum(axis=1)
    spent: dict[str, Array] = {}
    for column, item in enumerate(items):
        for name in dict.fromkeys(unknown_operations(trace, item)):
            spent[name] = spent.get(name, np.zeros(len(seconds))) + seconds[:, column] * unmeasured[:, column]
    shares = {name: own / np.where(total > 0, total, 1.0) for name, own in spent.items()}
    named = sorted(
        (name for name, share in shares.items() if share.max(initial=0.0) >= SHARE_TO_NAME),
        key=lambda name: (-float(shares[name].max()), name),
    )
    if not named:
        return ()
    texts = [f"{name} ({_range(shares[name])} of the time)" for name in named[:MOST_NAMES]]
    others = f" and {len(named) - MOST_NAMES} more" if len(named) > MOST_NAMES else ""
    if len(named) == 1:
        return (f"{texts[0]} is not known; it is timed as a copy of its tensors and may take far longer.",)
    listed = ", ".join(texts) + others
    return (f"{listed} are not known; they are timed as copies of their tensors and may take far longer.",)


def _range(shares: Array) -> str:
    least, most = round(100 * float(shares.min())), round(100 * float(shares.max()))
    return f"{most} %" if least == most else f"{least}–{most} %"  # noqa: RUF001 (an en dash is meant)
