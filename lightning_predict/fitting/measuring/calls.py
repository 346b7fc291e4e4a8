"""A problem as calls of torch: the forward pass, and each part of the backward pass that has a name of its own.

Every call works on tensors made once, so that timing it times the operation alone. Example::

    calls = calls_of("conv2d", words, torch.bfloat16, torch.device("cuda"))
    calls["conv2d"]()                  # the forward pass
    calls["conv2d_backward_weight"]()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_predict.fitting.measuring.shapes import VECTOR_OPERATIONS, Words
from lightning_predict.kernels.operations import operation_names

Call = Callable[[], object]
Calls = dict[str, Call]


def calls_of(operation: str, words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    """Calls by the name of the operation that they time.

    Args:
        operation: A key of `shapes.DRAWERS`.
        words: Its shape.
        dtype: Dtype of its tensors.
        device: Where they live.
    """
    return _MAKERS[operation](operation, words, dtype, device)


def _made(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, device=device, dtype=torch.float32).to(dtype)


def _products(operation: str, words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    if operation == "linear":
        data, weight = _made(device, dtype, words["m"], words["k"]), _made(device, dtype, words["n"], words["k"])
        return {"linear": lambda: functional.linear(data, weight)}
    left = _made(device, dtype, words["b"], words["m"], words["k"])
    right = _made(device, dtype, words["b"], words["k"], words["n"])
    return {"bmm": lambda: torch.bmm(left, right)}


def _convolution(_operation: str, words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    w = words
    data = _made(device, dtype, w["batch"], w["in_channels"], w["height"], w["width"])
    taps = (w["kernel_height"], w["kernel_width"])
    weight = _made(device, dtype, w["out_channels"], w["in_channels"] // w["groups"], *taps)
    stride, padding = [w["stride_height"], w["stride_width"]], [w["padding_height"], w["padding_width"]]
    output = functional.conv2d(data, weight, None, stride, padding, 1, w["groups"])
    gradient = torch.ones_like(output)

    def backward(mask: list[bool]) -> object:
        rest = (None, stride, padding, [1, 1], False, [0, 0], w["groups"], mask)
        return torch.ops.aten.convolution_backward(gradient, data, weight, *rest)

    return {
        "conv2d": lambda: functional.conv2d(data, weight, None, stride, padding, 1, w["groups"]),
        "conv2d_backward_input": lambda: backward([True, False, False]),
        "conv2d_backward_weight": lambda: backward([False, True, False]),
    }


def _attention(_operation: str, words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    w = words
    query = _made(device, dtype, w["batch"], w["heads"], w["seq"], w["head_dim"]).requires_grad_()
    key, value = (
        _made(device, dtype, w["batch"], w["kv_heads"], w["seq"], w["head_dim"]).requires_grad_() for _ in range(2)
    )
    options: dict[str, Any] = {"is_causal": bool(w["causal"]), "enable_gqa": w["heads"] != w["kv_heads"]}

    def forward() -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, **options)

    return _both("attention", forward, [query, key, value])


def _recurrent(operation: str, words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    kinds: dict[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
    layer = kinds[operation](
        words["input_size"], words["hidden"], words["layers"], bidirectional=words["directions"] == 2
    ).to(device, dtype)
    data = _made(device, dtype, words["steps"], words["batch"], words["input_size"]).requires_grad_()
    return _both(operation, lambda: layer(data)[0], [data, *layer.parameters()])


def _vector(operation: str, words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    rows, cols = words["rows"], words["cols"]
    data = _made(device, dtype, rows, cols).requires_grad_()
    other = _made(device, dtype, rows, cols).abs() + 1
    scale = _made(device, dtype, cols).requires_grad_()
    table = _made(device, dtype, rows, cols).requires_grad_()
    indices = torch.randint(rows, (rows,), device=device)
    # A matrix is a batch of `rows` images of one channel group here, so that rows and columns mean what they say.
    channels = data.view(1, rows, cols)
    group = 8 if rows % 8 == 0 else 1
    forward: Mapping[str, tuple[Callable[[], Tensor], list[Tensor]]] = {
        "add": (lambda: data + other, [data]),
        "add_scalar": (lambda: data + 1.5, [data]),
        "mul": (lambda: data * other, [data]),
        "mul_scalar": (lambda: data * 1.5, [data]),
        "div": (lambda: data / other, [data]),
        "div_scalar": (lambda: data / 1.5, [data]),
        "pow": (lambda: torch.pow(other, other), [other.requires_grad_()]),
        "pow_scalar": (lambda: torch.pow(data, 2.0), [data]),
        "relu": (lambda: torch.relu(data), [data]),
        "gelu": (lambda: functional.gelu(data), [data]),
        "tanh": (lambda: torch.tanh(data), [data]),
        "softmax": (lambda: torch.softmax(data, -1), [data]),
        "layer_norm": (lambda: functional.layer_norm(data, (cols,), scale, scale), [data, scale]),
        "rms_norm": (lambda: functional.rms_norm(data, (cols,), scale), [data, scale]),
        "batch_norm": (lambda: functional.batch_norm(channels, None, None, training=True), [data]),
        "group_norm": (lambda: functional.group_norm(channels, group), [data]),
        "dropout": (lambda: functional.dropout(data, 0.1), [data]),
        "embedding": (lambda: functional.embedding(indices, table), [table]),
        "cross_entropy": (lambda: functional.cross_entropy(data, indices % cols), [data]),
    }
    return _both(operation, *forward[operation])


def _both(operation: str, forward: Callable[[], Tensor], inputs: list[Tensor]) -> Calls:
    """The forward pass without autograd's records, and the backward pass over one kept graph where it has a name."""
    output = forward()
    gradient = torch.ones_like(output)

    def without_records() -> object:
        with torch.no_grad():
            return forward()

    calls: Calls = {operation: without_records}
    if f"{operation}_backward" in operation_names():
        calls[f"{operation}_backward"] = lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)
    return calls


_MAKERS: Final[Mapping[str, Callable[[str, Words, torch.dtype, torch.device], Calls]]] = {
    **dict.fromkeys(("linear", "bmm"), _products),
    "conv2d": _convolution,
    "attention": _attention,
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent),
    **dict.fromkeys(VECTOR_OPERATIONS, _vector),
}
