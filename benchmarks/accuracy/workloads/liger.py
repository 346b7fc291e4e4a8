"""Operators that Liger's benchmarks time as torch or Hugging Face write them, recorded on the meta device.

A forward pass is timed with the graph kept for a backward one; a backward pass from a given gradient, with no gradient
to add to. Example::

    trace = liger_trace("softmax", "forward", word="N", value=4096, config='{"M": 2048, "dtype": "torch.bfloat16"}')
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from benchmarks.accuracy.workloads.recorded import without_pauses
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Trace

Sizes = Mapping[str, Any]


def _input(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=True)


def _cross_entropy(sizes: Sizes, _dtype: torch.dtype) -> Callable[[], Tensor]:
    """Logits in float32, for every dtype of the model."""
    rows = sizes["B"] * sizes["T"]
    logits = _input(rows, sizes["V"], dtype=torch.float32)
    target = torch.zeros(rows, dtype=torch.int64, device="meta")
    return lambda: functional.cross_entropy(logits, target)


def _layer_norm(sizes: Sizes, dtype: torch.dtype) -> Callable[[], Tensor]:
    x, layer = _input(sizes["M"], sizes["N"], dtype=dtype), nn.LayerNorm(sizes["N"], dtype=dtype, device="meta")
    return lambda: layer(x)


def _group_norm(sizes: Sizes, dtype: torch.dtype) -> Callable[[], Tensor]:
    channels = sizes["C"]
    layer = nn.GroupNorm(channels // sizes["channels_per_group"], channels, dtype=dtype, device="meta")
    x = _input(sizes["M"], channels, sizes["H"], dtype=dtype)
    return lambda: layer(x)


class _LlamaNorm(nn.Module):
    """RMS norm as Hugging Face writes it: statistics in float32, weights too."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + 1e-6)
        return self.weight * hidden.to(x.dtype)


def _rms_norm(sizes: Sizes, dtype: torch.dtype) -> Callable[[], Tensor]:
    x, layer = _input(sizes["M"], sizes["H"], dtype=dtype), _LlamaNorm(sizes["H"])
    return lambda: layer(x)


def _add_rms_norm(sizes: Sizes, dtype: torch.dtype) -> Callable[[], Tensor]:
    x, residual = (_input(sizes["M"], sizes["H"], dtype=dtype) for _ in range(2))
    layer = _LlamaNorm(sizes["H"])
    return lambda: layer(x + residual)


def _fused_rms_norm(sizes: Sizes, dtype: torch.dtype) -> Callable[[], Tensor]:
    x = _input(sizes["S"] * sizes["B"], sizes["H"], dtype=dtype)
    weight = _input(sizes["H"], dtype=dtype)
    return lambda: functional.rms_norm(x, (sizes["H"],), weight)


def _softmax(sizes: Sizes, dtype: torch.dtype) -> Callable[[], Tensor]:
    x = _input(sizes["M"], sizes["N"], dtype=dtype)
    return lambda: functional.softmax(x, dim=-1)


def _relu_squared(sizes: Sizes, dtype: torch.dtype) -> Callable[[], Tensor]:
    x = _input(sizes["M"], sizes["N"], dtype=dtype)
    return lambda: functional.relu(x).pow(2)


def _embedding(sizes: Sizes, dtype: torch.dtype) -> Callable[[], Tensor]:
    layer = nn.Embedding(sizes["V"], sizes["D"], dtype=dtype, device="meta")
    tokens = torch.zeros(sizes["B"], sizes["T"], dtype=torch.int64, device="meta")
    return lambda: layer(tokens)


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cosine + turned * sine


def _rope(sizes: Sizes, dtype: torch.dtype) -> Callable[[], tuple[Tensor, ...]]:
    hidden = sizes["hidden_size" if "hidden_size" in sizes else "H"]
    length = sizes["seq_len" if "seq_len" in sizes else "T"]
    width = hidden // sizes["num_q_heads"]
    queries, keys = (_input(1, length, sizes[f"num_{kind}_heads"], width, dtype=dtype) for kind in ("q", "kv"))
    cosine, sine = (torch.empty(1, 1, length, width, dtype=dtype, device="meta") for _ in range(2))
    return lambda: tuple(_rotated(x.transpose(1, 2), cosine, sine) for x in (queries, keys))


def _gated(activation: Callable[[Tensor], Tensor], sizes: Sizes, dtype: torch.dtype) -> Callable[[], Tensor]:
    hidden, inside = sizes["hidden_size"], sizes["intermediate_size"]
    gate, up = (nn.Linear(hidden, inside, bias=False, dtype=dtype, device="meta") for _ in range(2))
    down = nn.Linear(inside, hidden, bias=False, dtype=dtype, device="meta")
    x = _input(sizes.get("B", sizes.get("bsz")), sizes["T"], hidden, dtype=dtype)
    return lambda: down(activation(gate(x)) * up(x))


def _swiglu(sizes: Sizes, dtype: torch.dtype) -> Callable[[], Tensor]:
    return _gated(functional.silu, sizes, dtype)


def _geglu(sizes: Sizes, dtype: torch.dtype) -> Callable[[], Tensor]:
    return _gated(lambda x: functional.gelu(x, approximate="tanh"), sizes, dtype)


def _megatron_swiglu(sizes: Sizes, dtype: torch.dtype) -> Callable[[], Tensor]:
    """Both halves of one product's result."""
    x = _input(sizes["S"], sizes["B"], 2 * sizes["ffn_local"], dtype=dtype)

    def forward() -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up

    return forward


def _linear_cross_entropy(sizes: Sizes, dtype: torch.dtype) -> Callable[[], Tensor]:
    head = nn.Linear(sizes["H"], sizes["V"], bias=False, dtype=dtype, device="meta")
    x = _input(sizes["BT"], sizes["H"], dtype=dtype)
    target = torch.zeros(sizes["BT"], dtype=torch.int64, device="meta")
    return lambda: functional.cross_entropy(head(x), target)


_OPERATORS: Final[Mapping[str, tuple[str, Callable[[Sizes, torch.dtype], Callable[[], Any]]]]] = {
    "cross_entropy": ("losses", _cross_entropy),
    "embedding": ("embeddings", _embedding),
    "fused_add_rms_norm": ("norms", _add_rms_norm),
    "fused_linear_cross_entropy": ("products", _linear_cross_entropy),
    "geglu": ("products", _geglu),
    "group_norm": ("norms", _group_norm),
    "layer_norm": ("norms", _layer_norm),
    "megatron_rms_norm": ("norms", _fused_rms_norm),
    "megatron_swiglu": ("element-wise", _megatron_swiglu),
    "relu_squared": ("element-wise", _relu_squared),
    "rms_norm": ("norms", _rms_norm),
    "rope": ("element-wise", _rope),
    "softmax": ("softmax", _softmax),
    "swiglu": ("products", _swiglu),
}

LIGER_FAMILIES: Final[Mapping[str, str]] = {name: family for name, (family, _) in _OPERATORS.items()}
"""Families of the operators that can be recorded, by the table's name."""

PASSES: Final = ("forward", "backward")
"""Passes that can be recorded; whether a full one adds to gradients that are there, the table does not say."""


def liger_trace(kernel: str, part: str, *, word: str, value: float, config: str) -> Trace:
    """Record one call of an operator as Liger's benchmark times it.

    Args:
        kernel: The table's name of the operator, a key of `LIGER_FAMILIES`.
        part: One of `PASSES`.
        word: Name of the size that is swept.
        value: Its value.
        config: The other sizes and the dtype, as JSON.

    Raises:
        InvalidArgumentError: An operator or pass that cannot be recorded.
    """
    if kernel not in _OPERATORS or part not in PASSES:
        raise InvalidArgumentError(
            f"{kernel!r}, {part!r} cannot be recorded; expected one of {', '.join(_OPERATORS)}, {' or '.join(PASSES)}."
        )
    sizes = {**json.loads(config), word: int(value)}
    dtype = getattr(torch, str(sizes.get("dtype", "torch.bfloat16")).removeprefix("torch."))
    forward = _OPERATORS[kernel][1](sizes, dtype)
    forward()  # the first call imports, which would count as Python work of the step
    session = CaptureSession(device=torch.device("meta"), compiled=False)
    session.start()
    results = forward()
    if part == "backward":
        outputs: Sequence[Tensor] = results if isinstance(results, tuple) else (results,)
        torch.autograd.backward(outputs, [torch.empty_like(one) for one in outputs])
    session.stop()
    trace = without_pauses(session.trace())
    return replace(trace, operations=tuple(one for one in trace.operations if one.phase == part))
