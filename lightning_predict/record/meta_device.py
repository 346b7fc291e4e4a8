"""Makes the meta device behave like a GPU in two respects: autocast (mixed precision) and channels-last convolutions.

Torch's autocast has no effect on the meta device. `AutocastOnMeta` casts the arguments of operations on meta tensors
like autocast on CUDA, and reports the copies that these casts make. Results then have the same dtype as on a GPU, so
later code and the backward pass behave like on a GPU. Functions of torch's lists are cast above autograd, as on CUDA.
The same operations inside other functions are cast below autograd. If a gradient's dtype differs from its tensor's
dtype, autograd casts the gradient, as on CUDA. A cast parameter is cached until the next backward pass, because
Lightning leaves the autocast context there and torch then clears its cache.

`precision.py` contains torch's autocast lists, expressed as the ATen operations that run below autograd. On CUDA and on
the CPU, matmuls, convolutions and attention run in 16 bits. Layer norm, group norm, softmax, `exp`, `log`, `pow` and
sums run in float32 on CUDA, but in 16 bits on the CPU. `cross_entropy` passes its input's dtype to log-softmax
explicitly, so autocast on CUDA does not cast it to float32.

On CUDA, a convolution's output is channels last if its images or its weight are channels last
(`cudnn_conv_suggest_memory_format` in `ATen/native/ConvUtils.h`; never for float64). On the meta device, convolutions
lose the memory format, unlike all other operations. Example::

    casts = AutocastOnMeta(report_copy, StorageIds())
    args, kwargs = casts.cast("aten::mm", args, kwargs, in_backward=False)     # bfloat16 under autocast

    >>> images = torch.empty(2, 8, 4, 4, device="meta").to(memory_format=torch.channels_last)
    >>> with_cuda_strides("aten::convolution", (images, torch.empty(6, 8, 1, 1, device="meta")),
    ...            torch.empty(2, 6, 4, 4, device="meta")).stride()
    (96, 1, 24, 6)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch
import torch.nn.functional as functional
from torch._prims_common import suggest_memory_format

from lightning_predict.base.errors import CaptureError
from lightning_predict.record.precision import (
    BANNED,
    FLOAT32,
    FLOAT32_BACKWARD,
    LOWER,
    LOWER_BACKWARD,
    SUMS,
    WIDEST,
    named,
)
from lightning_predict.record.signatures import RMS_NORM
from lightning_predict.record.tensors import Args, Kwargs, StorageIds, TorchFunction, is_dense, tensors_in

_FORWARD_CONVOLUTIONS: Final = frozenset({"aten::convolution", "aten::_convolution"})
_CONVOLUTION_BACKWARD: Final = "aten::convolution_backward"
CONVOLUTIONS: Final = _FORWARD_CONVOLUTIONS | {_CONVOLUTION_BACKWARD}

_CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}  # Format by number of dimensions


def with_cuda_strides(name: str, args: Args, output: Any) -> Any:
    """Return the result of an operation on meta tensors, with the strides that the operation produces on a GPU."""
    if name in _FORWARD_CONVOLUTIONS and _is_meta(output) and _uses_channels_last(args[:2]):
        return _to_channels_last(output)
    if (
        name == _CONVOLUTION_BACKWARD
        and isinstance(output, tuple)
        and _is_meta(output[0])
        and _uses_channels_last(args[1:3])
    ):
        return (_to_channels_last(output[0]), *output[1:])
    return output


def _is_meta(tensor: object) -> bool:
    """Return whether a value is an ordinary meta tensor of four or five dimensions."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "meta":
        return False
    return tensor.dim() in _CHANNELS_LAST and is_dense(tensor)


def _uses_channels_last(images_and_weight: tuple[Any, ...]) -> bool:
    """Return whether cuDNN would compute this convolution in channels last."""
    tensors = [tensor for tensor in images_and_weight if _is_meta(tensor)]
    return any(suggest_memory_format(tensor) in _CHANNELS_LAST.values() for tensor in tensors) and all(
        tensor.dtype is not torch.float64 for tensor in tensors
    )


def _to_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=_CHANNELS_LAST[tensor.dim()])


_NAMES: Final[Mapping[str, str]] = {
    "lower": "linear matmul __matmul__ __rmatmul__ einsum chain_matmul multi_dot vecdot conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d convolution conv_tbc prelu addmm addmv addr mm mv addbmm "
    "baddbmm bmm",
    "float32": "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__ __rpow__ "
    "softplus layer_norm native_layer_norm group_norm cosine_similarity poisson_nll_loss cosine_embedding_loss "
    "nll_loss hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss "
    "margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
    "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp",
    "widest": "addcdiv addcmul atan2 bilinear cross dot vdot grid_sample grid_sampler index_put scatter_add",
}
"""Functions that autocast runs in 16 bits, in float32, and in the widest dtype of their tensors (torch's lists)."""


@cache
def _rules() -> Mapping[Callable[..., Any], str]:
    """Return the rule of each function whose arguments are cast before autograd sees them, as torch's autocast does."""
    holders = (torch, torch.Tensor, functional, torch.linalg, torch.special, torch.ops.aten)
    rules: dict[Callable[..., Any], str] = {}
    for rule, names in _NAMES.items():
        for name in names.split():
            for function in (getattr(holder, name, None) for holder in holders):
                if function is not None:
                    rules[function] = rule
                    overloads = function.overloads() if isinstance(function, torch._ops.OpOverloadPacket) else ()
                    rules |= {getattr(function, overload): rule for overload in overloads}
    return rules


_INTO_FLOAT32: Final = named("_softmax _log_softmax")
"""Operations that read float16 and return float32 without a copy on CUDA if their third argument is true."""

_INPUT_DTYPE_AT: Final[Mapping[str, int]] = {"aten::_softmax_backward_data": 3, "aten::_log_softmax_backward_data": 3}
"""Position of the argument with the dtype of the forward pass's input, which must be float32 under autocast."""

_CASTABLE: Final = (torch.float32, torch.float16, torch.bfloat16)


def autocast_dtype() -> torch.dtype | None:
    """Return the dtype of the active autocast: for CUDA if active, else for the CPU; None if autocast is off."""
    if not torch._C._is_any_autocast_enabled():
        return None
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
    return None


class AutocastOnMeta:
    """Casts the arguments of operations on meta tensors like autocast on CUDA, and reports each copy to `on_copy`."""

    def __init__(self, on_copy: Callable[[torch.Tensor, torch.Tensor], None], numbers: StorageIds) -> None:
        self.dtype: torch.dtype | None = None
        self.has_cast = False
        self._on_copy = on_copy
        self._numbers = numbers
        self._cast_parameters: dict[int, torch.Tensor] = {}
        self._keeps_log_softmax = False
        self._copied: dict[tuple[int | None, torch.dtype], int | None] = {}  # ids of reported copies

    def cast(self, name: str, args: Args, kwargs: Kwargs, *, in_backward: bool) -> tuple[Args, Kwargs]:
        """Return the arguments under autocast; unchanged if autocast is off or does not apply to the operation.

        Autocast is off in the backward pass, but the forward pass may have cast saved tensors.
        """
        if in_backward:
            return (args, kwargs) if not self.has_cast else self._cast_backward(name, args, kwargs)
        lower = self.dtype
        if lower is None or lower not in _CASTABLE:
            return args, kwargs
        tensors = _castable((*args, *kwargs.values()))
        if not tensors:
            return args, kwargs
        self.has_cast = True
        if name == BANNED:
            raise CaptureError(
                "binary_cross_entropy cannot run under autocast on CUDA; use binary_cross_entropy_with_logits (or "
                "BCEWithLogitsLoss), as torch says."
            )
        if name in LOWER:
            return self._all_to(lower, args, kwargs)
        if name in _INTO_FLOAT32 and tensors[0].dtype is torch.float16 and not self._keeps_log_softmax:
            return (*args[:2], True), kwargs
        if name in FLOAT32 and not (self._keeps_log_softmax and name == "aten::_log_softmax"):
            return self._all_to(torch.float32, args, kwargs)
        if name in SUMS and kwargs.get("dtype") is None and tensors[0].dtype is not torch.float32:
            return args, {**kwargs, "dtype": torch.float32}
        if name in WIDEST and len({tensor.dtype for tensor in tensors}) > 1:
            return self._all_to(torch.float32, args, kwargs)
        return args, kwargs

    def cast_whole(self, name: str, values: Any) -> tuple[Any, torch.dtype | None]:
        """Cast the arguments of a whole call before autograd sees them. Return the arguments and the compute dtype."""
        lower = self.dtype
        if lower is None or lower not in _CASTABLE:
            return values, None
        dtype = torch.float32 if name == RMS_NORM else lower

        castable = _castable(values if isinstance(values, tuple) else tuple(values.values()))
        return self._above_autograd(values, dtype), dtype if castable else None

    @contextmanager
    def cast_call(self, func: TorchFunction, args: Args, kwargs: Kwargs) -> Iterator[tuple[Args, Kwargs]]:
        """Context manager around a function that torch decomposes before `cast` sees it; yields the cast arguments."""
        rule = None if self.dtype not in _CASTABLE else _rules().get(func)
        tensors = () if rule is None else _castable((*args, *kwargs.values()))
        if tensors and (rule != "widest" or len({tensor.dtype for tensor in tensors}) > 1):
            dtype = self.dtype if rule == "lower" and self.dtype is not None else torch.float32
            yield self._above_autograd(args, dtype), self._above_autograd(kwargs, dtype)
        elif func is functional.cross_entropy:
            self._keeps_log_softmax = True
            try:
                yield args, kwargs
            finally:
                self._keeps_log_softmax = False
        else:
            yield args, kwargs

    def _above_autograd(self, value: Any, dtype: torch.dtype) -> Any:
        """Cast all tensors in a value, recorded by autograd. A cast parameter is cached until the backward pass."""
        match value:
            case torch.Tensor() if _is_castable(value) and value.dtype is not dtype:
                self.has_cast = True
                is_parameter = value.is_leaf and value.requires_grad and not value._is_view()
                if not (is_parameter and value.dtype is torch.float32):
                    return value.to(dtype)
                known = self._cast_parameters.get(id(value))
                if known is None or known.dtype is not dtype:
                    known = self._cast_parameters[id(value)] = value.to(dtype)
                return known
            case dict():
                return {word: self._above_autograd(item, dtype) for word, item in value.items()}
            case list() | tuple() if not isinstance(value, torch.Size):
                return type(value)(self._above_autograd(item, dtype) for item in value)
            case _:
                return value

    def clear(self) -> None:
        """Free the copies of parameters, as torch does at the end of the autocast context."""
        self._cast_parameters.clear()

    def _cast_backward(self, name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        if autocast_dtype() is None:  # otherwise, a hook of a recomputation runs
            self.clear()
        dtypes = {tensor.dtype for tensor in _castable((*args, *kwargs.values()))}
        if name in LOWER_BACKWARD and len(dtypes) > 1:
            lower = next(dtype for dtype in dtypes if dtype is not torch.float32)
            return self._all_to(lower, args, kwargs, is_saved=True)
        if name in _INPUT_DTYPE_AT and dtypes == {torch.float32} and args[_INPUT_DTYPE_AT[name]] is torch.bfloat16:
            args = (*args[: _INPUT_DTYPE_AT[name]], torch.float32, *args[_INPUT_DTYPE_AT[name] + 1 :])
        elif name in FLOAT32_BACKWARD and len(dtypes) > 1:
            args, kwargs = self._all_to(torch.float32, args, kwargs, is_saved=True)
        elif name in FLOAT32 and len(dtypes) == 1:
            args, kwargs = self._all_to(torch.float32, args, kwargs, is_saved=True, only_copied=True)
        return args, kwargs

    def _all_to(
        self, dtype: torch.dtype, args: Args, kwargs: Kwargs, *, is_saved: bool = False, only_copied: bool = False
    ) -> tuple[Args, Kwargs]:
        def cast(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self._to(value, dtype, is_saved=is_saved, only_copied=only_copied)
            if isinstance(value, list | tuple) and any(isinstance(item, torch.Tensor) for item in value):
                return type(value)(map(cast, value))
            return value

        return tuple(map(cast, args)), {word: cast(value) for word, value in kwargs.items()}

    def _to(self, tensor: torch.Tensor, dtype: torch.dtype, *, is_saved: bool, only_copied: bool) -> torch.Tensor:
        """Cast a tensor. Report the copy unless an earlier operation or the forward pass already made the copy."""
        if tensor.dtype is dtype or not _is_castable(tensor):
            return tensor
        base = tensor._base if tensor._is_view() else None
        # A view of all elements: autocast casts before the view is created.
        source = tensor if base is None or base.numel() != tensor.numel() else base
        key = (self._numbers.number(source), dtype)
        if only_copied and key not in self._copied:
            return tensor
        known = self._cast_parameters.get(id(source))
        if known is not None and known.dtype is dtype:
            return known.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        copy: torch.Tensor = torch.ops.aten._to_copy.default(tensor, dtype=dtype)
        if is_saved and key in self._copied:
            self._numbers.share(copy, self._copied[key])  # on a GPU, autograd saves the copy of the forward pass
            return copy
        if source.is_leaf and source.requires_grad and source.dtype is torch.float32:
            self._cast_parameters[id(source)] = copy
        self._on_copy(source, copy)
        self._copied[key] = self._numbers.number(copy)
        return copy


def _is_castable(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "meta" and tensor.dtype in _CASTABLE


def _castable(values: Args) -> list[torch.Tensor]:
    return [tensor for tensor in tensors_in(values) if _is_castable(tensor)]
