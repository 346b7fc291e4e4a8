"""4-bit layers and 8-bit optimizers of bitsandbytes, recorded on the meta device with their storage.

`Linear4bit` and `BlockwiseAdamW` replace bitsandbytes if it is not installed. `patches_of_bitsandbytes` makes an
installed bitsandbytes work on the meta device: its layers quantize their weights when they move to a GPU, which never
happens on the meta device, and its paged states need CUDA. `kernels/families/quantized.py` predicts the times of the
operations. Example::

    with torch.device("meta"):
        model = MyModel()
    as_4bit(model, compute_dtype=torch.bfloat16)  # as load_in_4bit=True
    optimizer = BlockwiseAdamW(model.parameters(), bits=8, paged=True)   # bnb.optim.PagedAdamW8bit
    lp.capture(step)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from importlib import import_module
from math import ceil
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.absent_cuda import note_paged_states
from lightning_predict.record.patches import Patch
from lightning_predict.record.tensors import TorchFunction

LIBRARY: Final = torch.library.Library("lightning_predict", "DEF")  # Operators that exist only for the meta device

LIBRARY.define("dequantize_4bit(Tensor packed, Tensor scales, int[] shape, ScalarType dtype) -> Tensor")
LIBRARY.define("dequantize_blockwise(Tensor codes, Tensor scales) -> Tensor")
LIBRARY.define("optimizer_update_blockwise(Tensor gradient, Tensor(a!) parameter, Tensor(b!)[] states) -> ()")


def _dequantized(packed: Tensor, _scales: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return packed.new_empty(tuple(shape), dtype=dtype)


def _dequantized_scales(codes: Tensor, _scales: Tensor) -> Tensor:
    return codes.new_empty(codes.shape, dtype=torch.float32)


LIBRARY.impl("dequantize_4bit", _dequantized, "Meta")
LIBRARY.impl("dequantize_blockwise", _dequantized_scales, "Meta")
LIBRARY.impl("optimizer_update_blockwise", lambda *_tensors: None, "Meta")


class Linear4bit(nn.Linear):
    """Linear layer with a frozen weight of 4 bits per value, and a scale for each block of 64 values.

    With double quantization, a scale has 8 bits, and each block of 256 scales has another scale.

    Args:
        layer: Layer to replace, on the meta device.
        compute_dtype: dtype of the matmul.
        double: Whether to quantize the scales, too (bitsandbytes' `compress_statistics`).
        clones: Whether to copy the output, as PEFT's adapter of a 4-bit layer does.
    """

    block, second_block = 64, 256

    def __init__(self, layer: nn.Module, *, compute_dtype: torch.dtype, double: bool, clones: bool) -> None:
        nn.Module.__init__(self)
        weight: Tensor = layer.weight  # type: ignore[assignment]
        # Conv1D of transformers stores its weight transposed
        self.out_features, self.in_features = weight.shape if isinstance(layer, nn.Linear) else weight.shape[::-1]
        self.values, self.dtype, self.compute_dtype, self.clones = weight.numel(), weight.dtype, compute_dtype, clones
        blocks = ceil(self.values / self.block)
        with torch.device("meta"):
            packed = torch.empty((ceil(self.values / 2), 1), dtype=torch.uint8)
            self.weight = nn.Parameter(packed, requires_grad=False)
            self.register_buffer("scales", torch.empty(blocks, dtype=torch.uint8 if double else torch.float32))
            self.register_buffer("second_scales", torch.empty(ceil(blocks / self.second_block)) if double else None)
        self.bias = layer.bias  # type: ignore[assignment]

    def dequantized(self) -> Tensor:
        """Return the weight in its original dtype."""
        scales: Any = self.scales
        if self.second_scales is not None:
            scales = torch.ops.lightning_predict.dequantize_blockwise(scales, self.second_scales)
            scales.add_(scales.new_empty(()))
        shape = (self.out_features, self.in_features)
        weight: Tensor = torch.ops.lightning_predict.dequantize_4bit(self.weight, scales, shape, self.dtype)
        return weight.to(self.compute_dtype)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in nn.Linear
        """Multiply in the compute dtype. Return the result in the dtype of the input."""
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        product: Tensor = _Product.apply(input.to(self.compute_dtype), bias, self)  # type: ignore[no-untyped-call]
        product = product.to(input.dtype)
        return product.clone() if self.clones else product


class _Product(torch.autograd.Function):
    """Matmul with a weight that is dequantized in the forward pass, and again in the backward pass."""

    @staticmethod
    def forward(ctx: FunctionCtx, data: Tensor, bias: Tensor | None, layer: Linear4bit) -> Tensor:
        ctx.layer = layer  # type: ignore[attr-defined]
        return nn.functional.linear(data, layer.dequantized(), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (gradient,) = gradients
        of_bias = gradient.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return gradient @ ctx.layer.dequantized() if ctx.needs_input_grad[0] else None, of_bias, None


_KINDS: Final = ("Linear", "Conv1D", "NonDynamicallyQuantizableLinear")


def as_4bit(model: nn.Module, *, compute_dtype: torch.dtype, double: bool = False, clones: bool = False) -> int:
    """Replace the linear layers of a model on the meta device, and return the number of replaced layers.

    The result corresponds to transformers' `load_in_4bit=True`. The output layer is not replaced: the model's output
    embeddings, or the last linear layer outside all blocks.

    Args:
        model: Model whose layers are replaced in place.
        compute_dtype: dtype of matmuls (`bnb_4bit_compute_dtype`).
        double: Whether to quantize the scales, too (`bnb_4bit_use_double_quant`).
        clones: Whether to copy each output, as PEFT's adapters of 4-bit layers do.
    """
    layers = [(name, layer) for name, layer in model.named_modules() if type(layer).__name__ in _KINDS]
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None and layers and "." not in layers[-1][0]:
        head = layers[-1][1]
    replaced = [(name, layer) for name, layer in layers if layer is not head]
    for name, layer in replaced:
        parent, _, own = name.rpartition(".")
        new = Linear4bit(layer, compute_dtype=compute_dtype, double=double, clones=clones)
        setattr(model.get_submodule(parent), own, new)
    return len(replaced)


def others_in_float32(model: nn.Module) -> None:
    """Cast all other 16-bit parameters to float32, like PEFT's `prepare_model_for_kbit_training`."""
    for parameter in model.parameters():
        if parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.float()


def parameter_counts(model: nn.Module) -> tuple[int, int]:
    """Return the numbers of all parameters and of trained parameters. A packed byte counts as two parameters."""
    packed = sum(layer.values - layer.weight.numel() for layer in model.modules() if isinstance(layer, Linear4bit))
    parameters = list(model.parameters())
    return (
        packed + sum(parameter.numel() for parameter in parameters),
        sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
    )


# --- Optimizers


def paged_state(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an optimizer state in paged memory, which torch's allocator does not contain.

    The state has the shape of its parameter and a storage of one element: updates move the whole state, but it takes no
    memory.
    """
    return torch.zeros((), dtype=dtype, device=parameter.device).expand(parameter.shape)


class BlockwiseAdamW(torch.optim.Optimizer):
    """AdamW with states of 8 bits per value and a float32 scale per block of 256 values, or with 32-bit states.

    Args:
        params: Trained parameters, on the meta device.
        bits: Bits per value of the states. States of fewer than 4,096 values keep 32 bits.
        paged: Whether to keep states of at least 100,000 values in paged memory.
    """

    block, least_values, least_paged_values, levels = 256, 4096, 100_000, 256

    def __init__(self, params: Iterable[nn.Parameter], *, bits: Literal[8, 32] = 8, paged: bool = False) -> None:
        super().__init__(params, {})
        self.bits, self.paged = bits, paged
        self.maps: tuple[Tensor, ...] = ()

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Update each parameter in one kernel. A closure that computes the loss again is not supported."""
        if closure is not None:
            raise InvalidArgumentError("BlockwiseAdamW.step takes no closure; compute the loss before.")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                states = self.state[parameter]
                if not states:
                    states.update({f"state{number}": state for number, state in enumerate(self._states(parameter), 1)})
                listed = list(states.values())
                if listed[0].stride() != parameter.stride():
                    note_paged_states(parameter, sum(state.numel() * state.element_size() for state in listed[:2]))
                torch.ops.lightning_predict.optimizer_update_blockwise(parameter.grad, parameter, listed)

    def _states(self, parameter: nn.Parameter) -> tuple[Tensor, ...]:
        """Return two moments; with 8 bits, also their scales and the table of 256 levels, which all tensors share."""
        values = parameter.numel()
        is_small = self.bits == 8 and values < self.least_values
        dtype = torch.float32 if self.bits == 32 or is_small else torch.uint8
        is_paged = self.paged and values >= self.least_paged_values
        moments = tuple(
            paged_state(parameter, dtype) if is_paged else torch.zeros_like(parameter, dtype=dtype) for _ in range(2)
        )
        if dtype is torch.float32:
            return moments
        with parameter.device:
            self.maps = self.maps or (torch.empty(self.levels), torch.empty(self.levels))
            return *moments, torch.zeros(ceil(values / self.block)), torch.zeros(ceil(values / self.block)), *self.maps


# --- An installed bitsandbytes


def patches_of_bitsandbytes() -> Iterator[Patch]:
    """Yield the attributes of bitsandbytes to replace."""
    yield import_module("bitsandbytes.nn").Linear4bit, "forward", _quantizing
    if not torch.cuda.is_available():
        optimizer = import_module("bitsandbytes.optim.optimizer").Optimizer8bit
        yield optimizer, "get_state_buffer", _paged
        yield optimizer, "prefetch_state", _noting


def _quantizing(plain: TorchFunction) -> TorchFunction:
    @wraps(plain)
    def forward(self: Any, *args: object) -> object:
        weight = self.weight
        if weight.device.type == "meta" and getattr(weight, "quant_state", self) is None and weight.shape[-1] != 1:
            with torch.no_grad():
                weight._quantize("meta")
        return plain(self, *args)

    return forward


def _paged(plain: TorchFunction) -> TorchFunction:
    @wraps(plain)
    def buffer(self: Any, parameter: Tensor, dtype: torch.dtype = torch.float32) -> object:
        least = 1e5  # as in bitsandbytes
        if not self.is_paged or parameter.device.type != "meta" or parameter.numel() < least:
            return plain(self, parameter, dtype=dtype)
        return paged_state(parameter, dtype)

    return buffer


def _noting(plain: Callable[..., None]) -> Callable[..., None]:
    @wraps(plain)
    def prefetch(self: Any, parameter: Tensor) -> None:
        if parameter.device.type != "meta":
            plain(self, parameter)
            return
        states = [state for state in self.state[parameter].values() if isinstance(state, torch.Tensor)]
        paged = [state for state in states if state.shape == parameter.shape and state.stride() != parameter.stride()]
        note_paged_states(parameter, sum(state.numel() * state.element_size() for state in paged))

    return prefetch
