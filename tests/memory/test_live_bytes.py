"""Peak of live bytes, counted by weak references while a step runs, against the simulated peak of its recording."""

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import lightning_predict as lp
from lightning_predict.memory.simulation import blocks_of, tensor_levels

Checkpoint = Callable[..., torch.Tensor] | None


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that are alive after each operation."""

    def __init__(self, given: Iterator[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._known = set[int]()
        for tensor in given:
            self._add(tensor)

    def _add(self, tensor: object) -> None:
        if isinstance(tensor, torch.Tensor) and (key := tensor.untyped_storage()._cdata) not in self._known:
            storage = tensor.untyped_storage()
            self._known.add(key)
            self.now += storage.nbytes()
            weakref.finalize(storage, self._drop, key, storage.nbytes())

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in _pytree.tree_leaves(output):
            self._add(tensor)
        self.peak = max(self.peak, self.now)
        return output


class Layered(nn.Module):
    """A network of layers that may be checkpointed."""

    def __init__(self, first: nn.Module, layers: list[nn.Module], last: nn.Module, *, residual: bool = False) -> None:
        super().__init__()
        self.first, self.layers, self.last, self.residual = first, nn.ModuleList(layers), last, residual

    def forward(self, data: torch.Tensor, run: Checkpoint = None) -> torch.Tensor:
        data = self.first(data)
        for layer in self.layers:
            result = layer(data) if run is None else run(layer, data)
            data = data + result if self.residual else result
        output: torch.Tensor = self.last(data)
        return output


class Attention(nn.Module):
    """Attention written out, with a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        batch, length, width = data.shape
        qkv = self.qkv(self.norm(data)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        shares = (query @ key.transpose(-1, -2) / 4).softmax(-1)
        output: torch.Tensor = self.out((shares @ value).transpose(1, 2).reshape(batch, length, width))
        return output


class Recurrent(nn.Module):
    """A recurrent cell, unrolled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.hidden = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(data[:, 0])
        for column in data.unbind(1):
            state = torch.tanh(self.into(column) + self.hidden(state))
        return data + state[:, None]


def perceptron(
    width: int, act: Callable[[], nn.Module], *norm: nn.Module, residual: bool = False, depth: int = 3
) -> Layered:
    layers = [
        nn.Sequential(*norm, nn.Linear(width, 2 * width), act(), nn.Linear(2 * width, width)) for _ in range(depth)
    ]
    return Layered(nn.Linear(width, width), [*layers], nn.Linear(width, 10), residual=residual)


def convolutional(*rest: Callable[[], nn.Module], groups: int = 1, channels: int = 8) -> Layered:
    def layer() -> nn.Module:
        first = nn.Conv2d(channels, channels, 3, padding=1, groups=groups)
        return nn.Sequential(first, *(make() for make in rest))

    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    return Layered(nn.Conv2d(3, channels, 3, padding=1), [layer() for _ in range(3)], last)


def transformer(width: int = 32, *, tokens: int = 50, residual: bool = True) -> Layered:
    def layer() -> nn.Module:
        return nn.Sequential(Attention(width, 4), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, tokens, bias=False))
    return Layered(nn.Embedding(tokens, width), [layer() for _ in range(2)], last, residual=residual)


ROWS: Final = partial(torch.randn, 256, 64)
IMAGES: Final = partial(torch.randn, 8, 3, 16, 16)
TOKENS: Final = partial(torch.randint, 0, 50, (4, 16))
SERIES: Final = partial(torch.randn, 16, 6, 64)
MODELS: Final[dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]]] = {
    "gelu": (lambda: perceptron(64, nn.GELU), ROWS),
    "relu": (lambda: perceptron(64, nn.ReLU), ROWS),
    "silu": (lambda: perceptron(64, nn.SiLU), ROWS),
    "tanh, deep": (lambda: perceptron(64, nn.Tanh, depth=8), ROWS),
    "softplus": (lambda: perceptron(64, nn.Softplus), ROWS),
    "hardswish": (lambda: perceptron(64, nn.Hardswish), ROWS),
    "leaky relu": (lambda: perceptron(64, nn.LeakyReLU), ROWS),
    "layer norm": (lambda: perceptron(64, nn.GELU, nn.LayerNorm(64)), ROWS),
    "layer norm, residual": (lambda: perceptron(64, nn.GELU, nn.LayerNorm(64), residual=True), ROWS),
    "residual": (lambda: perceptron(64, nn.ReLU, residual=True), ROWS),
    "batch norm of rows": (lambda: perceptron(64, nn.ReLU, nn.BatchNorm1d(64)), ROWS),
    "elu, in place": (lambda: perceptron(64, partial(nn.ELU, inplace=True)), ROWS),
    "wide, few rows": (lambda: perceptron(256, nn.GELU), partial(torch.randn, 4, 256)),
    "narrow, many rows": (lambda: perceptron(16, nn.GELU), partial(torch.randn, 2048, 16)),
    "weights only": (lambda: perceptron(384, nn.ReLU, depth=5), partial(torch.randn, 1, 384)),
    "convolutions": (lambda: convolutional(), IMAGES),
    "convolutions, relu": (lambda: convolutional(nn.ReLU), IMAGES),
    "batch norm": (lambda: convolutional(partial(nn.BatchNorm2d, 8), nn.ReLU), IMAGES),
    "batch norm, in place": (lambda: convolutional(partial(nn.BatchNorm2d, 8), partial(nn.ReLU, inplace=True)), IMAGES),
    "group norm": (lambda: convolutional(partial(nn.GroupNorm, 2, 8), nn.SiLU), IMAGES),
    "depthwise": (lambda: convolutional(nn.ReLU, groups=8), IMAGES),
    "many channels": (lambda: convolutional(nn.ReLU, channels=48), partial(torch.randn, 2, 3, 8, 8)),
    "instance norm": (lambda: convolutional(partial(nn.InstanceNorm2d, 8), nn.ReLU), IMAGES),
    "transformer": (transformer, TOKENS),
    "transformer, narrow": (lambda: transformer(16), TOKENS),
    "transformer, no residual": (lambda: transformer(residual=False), TOKENS),
    "transformer, wide": (lambda: transformer(128), TOKENS),
    "transformer, vocabulary": (lambda: transformer(16, tokens=2000), TOKENS),
    "recurrent": (lambda: Layered(nn.Linear(64, 32), [Recurrent(32), Recurrent(32)], nn.Linear(32, 10)), SERIES),
    "recurrent, wide": (lambda: Layered(nn.Linear(64, 64), [Recurrent(64)], nn.Linear(64, 10)), SERIES),
}
VARIANTS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"cast": True},
    {"dtype": torch.bfloat16},
    {"dtype": torch.float16, "checkpointing": True},
    {"checkpointing": True},
    {"checkpointing": False},  # reentrant
    {"checkpointing": True, "cast": True},
    {"checkpointing": False, "cast": True, "update": "optimizer of a layer"},
    {"update": "optimizer of a layer"},
    {"update": "no optimizer"},
    {"update": "no optimizer", "checkpointing": True, "cast": True},
    {"batches": 3},
    {"batches": 2, "checkpointing": False, "cast": True},
    {"set_to_none": False},
    {"set_to_none": False, "batches": 2, "cast": True},
    {"foreach": True},
    {"foreach": True, "dtype": torch.bfloat16, "checkpointing": True},
    {"zero_first": True, "cast": True},
    {"zero_first": True, "checkpointing": True},
    {"update": "masters", "dtype": torch.bfloat16},
    {"update": "masters", "dtype": torch.float16, "checkpointing": True},
)


class Training:
    """A training of a small model; None as checkpointing is without, False is reentrant."""

    def __init__(
        self,
        name: str,
        *,
        device: str = "cpu",
        cast: bool = False,
        dtype: torch.dtype = torch.float32,
        checkpointing: bool | None = None,
        update: str = "after",
        batches: int = 1,
        set_to_none: bool = True,
        foreach: bool = False,
        zero_first: bool = False,
    ) -> None:
        torch.manual_seed(0)
        model, data = MODELS[name]
        self.model, self.data = model().to(device, dtype), data().to(device)
        self.autocast = "cpu" if device == "cpu" else "cuda"
        self.data = self.data.to(dtype) if self.data.is_floating_point() else self.data
        self.labels = torch.zeros(self.data.shape[:1], dtype=torch.long, device=device)
        self.run = None if checkpointing is None else partial(checkpoint, use_reentrant=not checkpointing)
        self.cast, self.batches, self.set_to_none, self.zero_first = cast, batches, set_to_none, zero_first
        self.optimizers: list[torch.optim.Optimizer] = []
        self.masters = [nn.Parameter(one.detach().float()) for one in self.model.parameters()] * (update == "masters")
        if update == "masters":
            self.optimizers = [torch.optim.AdamW(self.masters, foreach=foreach)]
            return
        if update == "after":
            self.optimizers = [torch.optim.AdamW(self.model.parameters(), foreach=foreach)]
            return
        for parameter in self.model.parameters():
            if update == "no optimizer":
                parameter.register_post_accumulate_grad_hook(self._descend)
            else:
                self.optimizers.append(torch.optim.AdamW([parameter], foreach=foreach))
                parameter.register_post_accumulate_grad_hook(partial(self._update, self.optimizers[-1]))
        self.zero_first, self.is_updated = False, True

    is_updated = False

    @staticmethod
    def _descend(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None

    @staticmethod
    def _update(optimizer: torch.optim.Optimizer, _: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    def _update_masters(self) -> None:
        for master, parameter in zip(self.masters, self.model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.float(), None
        self.optimizers[0].step()
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.model.parameters(), strict=True):
                parameter.copy_(master)

    def __call__(self) -> None:
        if self.zero_first:
            self.optimizers[0].zero_grad(set_to_none=self.set_to_none)
        for _ in range(self.batches):
            self._loss().backward()
        if self.masters:
            self._update_masters()
        elif not self.is_updated:
            self.optimizers[0].step()
            if not self.zero_first:
                self.optimizers[0].zero_grad(set_to_none=self.set_to_none)

    def _loss(self) -> torch.Tensor:
        with torch.autocast(self.autocast, dtype=torch.bfloat16, enabled=self.cast):
            result = self.model(self.data, self.run)
        labels = self.labels if result.dim() == 2 else self.labels[:, None].expand(result.shape[:-1])
        return functional.cross_entropy(result.flatten(0, -2).float(), labels.flatten()) / self.batches

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that exist before a step."""
        for parameter in (*self.model.parameters(), *self.masters):
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
        yield from (*self.model.buffers(), self.data, self.labels)
        for optimizer in self.optimizers:
            for state in optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def live_peak(training: Training) -> int:
    for _ in range(2):
        training()
    gc.collect()
    live = LiveBytes(training.tensors())
    with live:
        training()
    return live.peak


CASES: Final = [  # Each model with two variants, each variant with at least three models
    pytest.param(name, VARIANTS[(5 * at + 9 * number) % len(VARIANTS)], id=f"{name}-{number}")
    for at, name in enumerate(MODELS)
    for number in range(2)
]


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_simulated_peak_equals_peak_of_live_bytes(name: str, variant: dict[str, Any]) -> None:
    recorded = lp.capture(Training(name, **variant), warmup_steps=2)
    assert max(tensor_levels(blocks_of(recorded))) == pytest.approx(live_peak(Training(name, **variant)), rel=0.01)


AGREED: Final = ("gelu", "silu", "residual", "wide, few rows", "convolutions, relu", "depthwise", "recurrent")
"""Models of operations that autocast runs in the same dtype on the CPU and on CUDA."""


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (name, number)
        for number, variant in enumerate(VARIANTS)
        for at, name in enumerate(AGREED)
        if "cast" in variant and (number + at) % 2
    ],
)
def test_peak_under_autocast_on_meta_equals_peak_of_live_bytes_on_the_cpu(name: str, number: int) -> None:
    recorded = lp.capture(Training(name, device="meta", **VARIANTS[number]), warmup_steps=2)
    peak = live_peak(Training(name, **VARIANTS[number]))
    assert max(tensor_levels(blocks_of(recorded))) == pytest.approx(peak, rel=0.01)
