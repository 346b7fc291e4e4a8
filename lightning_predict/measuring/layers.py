"""Benchmarks of layers: products, attention, recurrent layers, embedding bags.

Example::

    >>> import random
    >>> sorted(LAYERS["bmm"].draw(random.Random(0)))
    ['b', 'k', 'm', 'n']
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_predict.measuring.problems import Benchmark, Calls, Words, both, made, size


def _draw_linear(draw: random.Random) -> Words:
    return {"m": size(draw, 1, 16384), "n": size(draw, 16, 16384), "k": size(draw, 16, 16384)}


def _linear(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    data = made(device, dtype, words["m"], words["k"]).requires_grad_()
    weight = made(device, dtype, words["n"], words["k"]).requires_grad_()
    return both("linear", lambda: functional.linear(data, weight), [data, weight])


def _draw_bmm(draw: random.Random) -> Words:
    return {"b": size(draw, 1, 512), **{word: size(draw, 16, 2048) for word in ("m", "n", "k")}}


def _bmm(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    left = made(device, dtype, words["b"], words["m"], words["k"]).requires_grad_()
    right = made(device, dtype, words["b"], words["k"], words["n"]).requires_grad_()
    return both("bmm", lambda: torch.bmm(left, right), [left, right])


def _draw_attention(draw: random.Random) -> Words:
    heads = draw.choice([4, 8, 12, 16, 20, 32])
    return {
        "batch": size(draw, 1, 64),
        "heads": heads,
        "kv_heads": draw.choice([heads, heads, max(heads // 4, 1)]),
        "seq": size(draw, 64, 8192),
        "head_dim": draw.choice([32, 64, 64, 96, 128, 128]),
        "causal": draw.choice([0, 1]),
    }


def _attention(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    query, key, value = _heads(words, dtype, device)
    options: dict[str, Any] = {
        "is_causal": bool(words["causal"]),
        "enable_gqa": words["heads"] != words["kv_heads"],
    }
    return both(
        "attention",
        lambda: functional.scaled_dot_product_attention(query, key, value, **options),
        [query, key, value],
    )


def _heads(words: Words, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Query, key and value."""
    counts = (words["heads"], words["kv_heads"], words["kv_heads"])
    return [
        made(device, dtype, words["batch"], heads, words["seq"], words["head_dim"]).requires_grad_() for heads in counts
    ]


def _draw_eager_attention(draw: random.Random) -> Words:
    heads = draw.choice([4, 8, 12, 16])
    return {
        "batch": size(draw, 1, 16),
        "heads": heads,
        "kv_heads": heads,
        "seq": size(draw, 32, 1024),
        "head_dim": draw.choice([32, 64, 64, 128]),
        "causal": draw.choice([0, 1]),
    }


def _eager_attention(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    """Scores, their scaling, a mask that is added, softmax, and the product with the values."""
    query, key, value = _heads(words, dtype, device)
    future = torch.triu(torch.full((words["seq"], words["seq"]), float("-inf"), device=device, dtype=dtype), 1)

    def forward() -> Tensor:
        scores = (query @ key.transpose(-1, -2)) * words["head_dim"] ** -0.5
        return torch.softmax(scores + future if words["causal"] else scores, -1) @ value

    return both("eager_attention", forward, [query, key, value])


def _draw_recurrent(draw: random.Random) -> Words:
    return {
        "batch": size(draw, 1, 256),
        "steps": size(draw, 1, 256),
        "input_size": size(draw, 16, 2048),
        "hidden": size(draw, 16, 2048),
        "layers": draw.choice([1, 1, 2, 4]),
        "directions": draw.choice([1, 1, 2]),
    }


def _recurrent(name: str, words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    kinds: dict[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
    layer = kinds[name](
        words["input_size"], words["hidden"], words["layers"], bidirectional=words["directions"] == 2
    ).to(device, dtype)
    data = made(device, dtype, words["steps"], words["batch"], words["input_size"]).requires_grad_()
    return both(name, lambda: layer(data)[0], [data, *layer.parameters()])


def _draw_embedding_bag(draw: random.Random) -> Words:
    return {
        "bags": size(draw, 64, 16384),
        "lookups": size(draw, 1, 128),
        "rows": size(draw, 1024, 4 * 2**20),
        "dim": draw.choice([16, 32, 64, 128, 256]),
    }


def _embedding_bag(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    """Forward alone: autograd's gradient is as large as the table, or sparse, and neither is what updates a row."""
    table = made(device, dtype, words["rows"], words["dim"])
    rows = torch.randint(words["rows"], (words["bags"], words["lookups"]), device=device)
    return {"embedding_bag": lambda: functional.embedding_bag(rows, table, mode="sum")}


LAYERS: Final[Mapping[str, Benchmark]] = {
    "linear": Benchmark(_draw_linear, _linear),
    "bmm": Benchmark(_draw_bmm, _bmm),
    "attention": Benchmark(_draw_attention, _attention),
    "eager_attention": Benchmark(_draw_eager_attention, _eager_attention),
    **{name: Benchmark(_draw_recurrent, partial(_recurrent, name)) for name in ("lstm", "gru", "rnn")},
    "embedding_bag": Benchmark(_draw_embedding_bag, _embedding_bag),
}
"""Benchmarks by operation."""
