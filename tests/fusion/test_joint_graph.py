"""What a compiled step keeps, compared with the values that torch's own partitioner keeps for the same models."""

import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.functional import (
    cross_entropy,
    gelu,
    leaky_relu,
    mish,
    relu,
    rms_norm,
    scaled_dot_product_attention,
    silu,
)

import lightning_predict as lp
from lightning_predict.fusion.kernels import fused
from lightning_predict.kernels.memory_bound import is_free

WIDTH: Final = 128
VIEWS: Final = {"view", "permute", "t", "reshape", "transpose", "unsqueeze", "expand"}


class Perceptron(nn.Module):
    """Two layers with an activation."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.outer, self.activation = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), activation

    def forward(self, rows: Tensor) -> Tensor:
        loss: Tensor = self.outer(self.activation(self.inner(rows))).square().mean()
        return loss


class Pooled(nn.Module):
    """Max pooling between two activations."""

    def __init__(self, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(kernel_size, stride)

    def forward(self, images: Tensor) -> Tensor:
        loss: Tensor = gelu(self.pool(gelu(images))).square().mean()
        return loss


class Gated(nn.Module):
    """SwiGLU behind a norm, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, rows: Tensor) -> Tensor:
        data = rms_norm(rows, (WIDTH,))
        loss: Tensor = (rows + self.down(silu(self.gate(data)) * self.up(data))).square().mean()
        return loss


class Halves(nn.Module):
    """GEGLU, whose two factors are halves of one result."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        data, gate = self.inner(rows).chunk(2, -1)
        loss: Tensor = self.outer(data * gelu(gate)).square().mean()
        return loss


class Adapted(nn.Module):
    """Frozen layers, the first with an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.requires_grad_(False)
        self.inward, self.outward = nn.Linear(WIDTH, 8, bias=False), nn.Linear(8, 4 * WIDTH, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        inner = silu(self.inner(rows) + 2 * self.outward(self.inward(rows)))
        loss: Tensor = (rows + self.outer(inner)).square().mean()
        return loss


class Scaled(nn.Module):
    """Layer norm and a perceptron whose residual is scaled by channel."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(WIDTH), nn.Parameter(torch.full((WIDTH,), 0.01))
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        loss: Tensor = (rows + self.scale * self.outer(gelu(self.inner(self.norm(rows))))).square().mean()
        return loss


class WrittenAttention(nn.Module):
    """Attention as matmuls and a softmax, of one projection."""

    def __init__(self) -> None:
        super().__init__()
        self.projection, self.mixing = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        batch, length, _ = rows.shape
        parts = self.projection(rows).chunk(3, -1)
        query, key, value = (part.view(batch, length, 2, WIDTH // 2).transpose(1, 2) for part in parts)
        weights = torch.softmax(query @ key.transpose(-1, -2) * 0.125, -1)
        loss: Tensor = self.mixing((weights @ value).transpose(1, 2).flatten(2)).square().mean()
        return loss


class Transformer(nn.Module):
    """Blocks with attention, norms and a loss over classes."""

    def __init__(self, norm: Callable[[int], nn.Module], blocks: int = 2) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm(WIDTH) for _ in range(2 * blocks))
        self.projections = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(blocks))
        self.mixing = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(blocks))
        self.inner = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(blocks))
        self.outer = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(blocks))
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, data: Tensor, targets: Tensor) -> Tensor:
        batch, length, _ = data.shape
        for number, projection in enumerate(self.projections):
            parts = projection(self.norms[2 * number](data)).chunk(3, -1)
            query, key, value = (part.view(batch, length, 2, WIDTH // 2).transpose(1, 2) for part in parts)
            attended = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
            data = data + self.mixing[number](attended)
            data = data + self.outer[number](gelu(self.inner[number](self.norms[2 * number + 1](data))))
        return cross_entropy(self.head(data).flatten(0, 1), targets.flatten())


class Convolutions(nn.Module):
    """Convolutions with a norm, an activation and a residual."""

    def __init__(self, norm: Callable[[], nn.Module], activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(3))
        self.norms, self.activation = nn.ModuleList(norm() for _ in range(3)), activation

    def forward(self, images: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            images = images + self.activation(norm(layer(images)))
        return images.square().mean()


def loss_of_words(data: Tensor, weight: Tensor, targets: Tensor, *, caps: bool) -> Tensor:
    """Head of a language model in bfloat16, with a soft cap of the logits."""
    logits = nn.functional.linear(data, weight.bfloat16()).float()
    if caps:
        logits = 15 * logits * (logits.square() + 225).rsqrt()
    return cross_entropy(logits, targets, reduction="sum")


def in_bfloat16(model: nn.Module) -> Callable[..., Tensor]:
    def run(*arguments: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss: Tensor = model(*arguments)
            return loss

    return run


ROWS: Final = torch.randn(8, 64, WIDTH, requires_grad=True)
WORDS: Final = torch.randint(0, 1000, (8, 64))
IMAGES: Final = torch.randn(4, 32, 16, 16, requires_grad=True)
HEAD: Final = (torch.randn(256, 64).bfloat16().requires_grad_(), torch.randn(5000, 64, requires_grad=True))
MODELS: Final[dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]] = {
    "GELU": (Perceptron(gelu), (ROWS,)),
    "tanh GELU": (Perceptron(partial(gelu, approximate="tanh")), (ROWS,)),
    "squared ReLU": (Perceptron(lambda data: relu(data).square()), (ROWS,)),
    "ReLU": (Perceptron(relu), (ROWS,)),
    "ReLU in bfloat16": (in_bfloat16(Perceptron(relu)), (ROWS,)),
    "leaky ReLU": (Perceptron(leaky_relu), (ROWS,)),
    "mish": (Perceptron(mish), (ROWS,)),
    "GEGLU": (Halves(), (ROWS,)),
    "GEGLU in bfloat16": (in_bfloat16(Halves()), (ROWS,)),
    "adapters": (Adapted(), (ROWS,)),
    "adapters in bfloat16": (in_bfloat16(Adapted()), (ROWS,)),
    "scaled residual": (Scaled(), (ROWS,)),
    "written attention": (WrittenAttention(), (ROWS,)),
    "written attention in bfloat16": (in_bfloat16(WrittenAttention()), (ROWS,)),
    "four blocks in bfloat16": (in_bfloat16(Transformer(nn.RMSNorm, 4)), (ROWS, WORDS)),
    "SwiGLU": (Gated(), (ROWS,)),
    "SwiGLU in bfloat16": (in_bfloat16(Gated()), (ROWS,)),
    "layer norms": (Transformer(nn.LayerNorm), (ROWS, WORDS)),
    "RMS norms": (Transformer(nn.RMSNorm), (ROWS, WORDS)),
    "layer norms in bfloat16": (in_bfloat16(Transformer(nn.LayerNorm)), (ROWS, WORDS)),
    "pooling": (Pooled(2, 2), (IMAGES,)),
    "pooling of overlapping windows": (Pooled(3, 2), (IMAGES,)),
    "batch norms": (Convolutions(lambda: nn.BatchNorm2d(32), silu), (IMAGES,)),
    "group norms": (Convolutions(lambda: nn.GroupNorm(8, 32), silu), (IMAGES,)),
    "words": (partial(loss_of_words, caps=False), (*HEAD, torch.randint(0, 5000, (256,)))),
    "words with a soft cap": (partial(loss_of_words, caps=True), (*HEAD, torch.randint(0, 5000, (256,)))),
}


def kept_by_torch(model: Callable[..., Tensor], arguments: tuple[Tensor, ...]) -> int:
    """Return the bytes that AOTAutograd's minimum cut keeps, without parameters and inputs."""
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    sizes: dict[str, int] = {}  # by the value that views show

    def forward(graph: fx.GraphModule, _: Any) -> Any:
        *_, output = graph.graph.nodes
        for node in output.args[0][1:]:  # the first is the loss
            source = node
            while source.op == "call_function" and source.target.__name__.partition(".")[0] in VIEWS:
                source = source.args[0]
            if source.op != "placeholder":
                sizes[source.name] = node.meta["val"].numel() * node.meta["val"].element_size()
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    torch._dynamo.reset()
    torch.compile(model, backend=backend, dynamic=False)(*arguments).backward()
    return sum(sizes.values())


def kept_by_us(model: Callable[..., Tensor], arguments: tuple[Tensor, ...]) -> int:
    """Return the bytes that the forward pass of the fused step makes and its backward pass reads."""
    step = fused(lp.capture(lambda: model(*arguments).backward(), warmup_steps=0))
    made: dict[int | None, int] = {}
    read: set[int | None] = set()
    for operation in step.operations:
        for tensor in operation.outputs if operation.phase == "forward" and not is_free(operation) else ():
            made[tensor.id] = max(made.get(tensor.id, 0), tensor.size_bytes)
        read |= {tensor.id for tensor in operation.inputs if operation.phase == "backward"}
    return sum(size for number, size in made.items() if number in read and number is not None)


def test_compiled_steps_keep_what_torch_keeps() -> None:
    """Of a layer norm, torch keeps the normalised values, where we keep its input: 5 % of two narrow blocks."""
    errors = {name: kept_by_us(*row) / kept_by_torch(*row) - 1 for name, row in MODELS.items()}
    assert max(map(abs, errors.values())) < 0.06, errors
    assert statistics.median(map(abs, errors.values())) < 0.02, errors


@pytest.mark.parametrize("length", [1, 8])
def test_chain_of_activations_keeps_its_input_alone(length: int) -> None:
    data = torch.randn(256, 256).bfloat16().requires_grad_()

    def chain(data: Tensor) -> Tensor:
        wide = data.float()
        for _ in range(length):
            wide = torch.sigmoid(wide * wide)
        return wide.sum()

    assert kept_by_torch(chain, (data,)) == 0
    assert kept_by_us(chain, (data,)) == 4  # the gradient of the sum, which is 1


def test_long_chains_are_written_in_parts_and_soft_caps_cost_nothing() -> None:
    # Inductor writes a result after 100 operations; 3,000 of them in one kernel ended in a RecursionError.
    with torch.device("meta"):
        data = torch.empty(64, 64, requires_grad=True)

    def step() -> None:
        wide = data
        for _ in range(3000):
            wide = torch.sigmoid(wide)
        wide.sum().backward()

    forward = [one for one in fused(lp.capture(step, warmup_steps=0)).operations if one.phase == "forward"]
    written = {tensor.id for operation in forward for tensor in operation.outputs if tensor.elements == 64 * 64}
    assert len(written) == pytest.approx(3000 / 101, abs=1)
    # The cap is point-wise work inside kernels that read the 16-bit logits in any case.
    with torch.device("meta"):
        data, weight = torch.empty(8192, 64).bfloat16().requires_grad_(), torch.empty(50304, 64, requires_grad=True)
        targets = torch.zeros(8192, dtype=torch.int64)
    plain, capped = (
        lp.predict(fused(lp.capture(step, warmup_steps=0)), ["L4"], history=False)["L4"]
        for step in (
            lambda: loss_of_words(data, weight, targets, caps=False).backward(),
            lambda: loss_of_words(data, weight, targets, caps=True).backward(),
        )
    )
    assert math.isclose(plain.device_seconds, capped.device_seconds, rel_tol=5e-3)  # a longer kernel has the same bytes
    assert plain.memory_bytes == pytest.approx(capped.memory_bytes, rel=0.02)
