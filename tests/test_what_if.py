from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.advice.batch_size import with_samples
from lightning_predict.advice.what_if import what_if
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.precision import in_precision
from lightning_predict.record.trace import Flags, Memory, Trace

WIDTH = 4096


def step_of(batch_size: int, kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> Callable[[], None]:
    """A training step of two wide layers on the meta device."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        rows = torch.randn(batch_size, WIDTH)
        optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]

    def step() -> None:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()

    return step


@pytest.fixture(scope="module")
def traces() -> dict[int, Trace]:
    return {size: lp.capture(step_of(size), samples_per_step=size) for size in (1024, 2048, 4096)}


def test_a_larger_batch_needs_more_memory(traces: dict[int, Trace]) -> None:
    """Rows, two layers of activations and their gradients: 16 KiB each a sample, over weights and their gradients."""
    needs = [lp.predict(trace, ["T4"], history=False)["T4"].memory_bytes for trace in traces.values()]
    assert None not in needs
    assert needs == sorted(need for need in needs if need is not None)
    for size, need in zip(traces, needs, strict=True):
        assert need is not None
        assert need > 2 * WIDTH * WIDTH * 4 + 3 * size * WIDTH * 4


def test_half_precision_adds_the_casts_of_autocast(traces: dict[int, Trace]) -> None:
    half = in_precision(traces[1024], "bfloat16")
    dtypes = {
        operation.name: {tensor.dtype for tensor in operation.inputs}
        for operation in half.operations
        if operation.phase != "optimizer"
    }
    assert dtypes["aten::addmm"] == dtypes["aten::mm"] == {"bfloat16"}
    assert dtypes["aten::pow"] == {"float32"}  # which autocast leaves to float32
    assert half.flags == replace(traces[1024].flags, autocast_dtype="bfloat16")
    optimizer = [operation for operation in half.operations if operation.phase == "optimizer"]
    assert {tensor.dtype for operation in optimizer for tensor in operation.inputs} == {"float32"}
    casts = [one for one in half.operations if one.name == "aten::_to_copy" and one.phase != "optimizer"]
    # Two weights, two biases and the rows down, the result up, its gradient down, four gradients of parameters up.
    assert sorted(cast.outputs[0].dtype for cast in casts) == 6 * ["bfloat16"] + 5 * ["float32"]
    assert "with the casts that follow from its lists" in half.notes[-1]


class Residual(nn.Module):
    """Two convolutions with their norms with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(64, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(x) + x)


def step_of_images() -> None:
    with torch.device("meta"):
        layers = [nn.Conv2d(3, 64, 7, stride=2), Residual(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        model, images = nn.Sequential(*layers, nn.Linear(64, 1000)), torch.empty(64, 3, 224, 224)
        labels = torch.zeros(64, dtype=torch.int64)
    nn.functional.cross_entropy(model(images), labels).backward()


def step_of_tokens() -> None:
    with torch.device("meta"):
        layers = [nn.LayerNorm(1024), nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024), nn.Softmax(-1)]
        model = nn.Sequential(*layers)
        rows = torch.empty(8192, 1024)
    (rows + model(rows)).square().mean().backward()


def step_of_sequences(samples: int) -> Callable[[], None]:
    """Attention that has the samples in the second dimension, and its rows as (tokens, samples)."""
    with torch.device("meta"):
        model = nn.MultiheadAttention(96, 4, batch_first=True)
        rows = torch.empty(samples, 50, 96)
    return lambda: model(rows, rows, rows, need_weights=False)[0].square().mean().backward()


def test_a_batch_in_the_second_dimension_is_scaled() -> None:
    """Attention kept its size, because the view had no sample dimension."""
    small, large = (lp.capture(step_of_sequences(size), warmup_steps=0, samples_per_step=size) for size in (6, 12))
    scaled = with_samples(small, 12)
    for got, wanted in zip(scaled.operations, large.operations, strict=True):
        assert [tensor.shape for tensor in got.inputs] == [tensor.shape for tensor in wanted.inputs], got.name
        assert [tensor.shape for tensor in got.outputs] == [tensor.shape for tensor in wanted.outputs], got.name


def step_of_words() -> None:
    """The loss of a language model: its log-softmax keeps 16 bits, in both passes, and an odd vocabulary is slow."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 50257, bias=False))
        rows, labels = torch.empty(2048, 1024), torch.zeros(2048, dtype=torch.int64)
    nn.functional.cross_entropy(model(rows), labels).backward()


def step_of_encoder() -> Callable[[], None]:
    """Blocks of torch, whose projections are inside a function, and whose norms give float32 to four layers each."""
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        model = nn.Sequential(nn.Embedding(32000, 512), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
        words = torch.zeros(64, 256, dtype=torch.int64)
    return lambda: model(words).square().mean().backward()


def step_of_denoising() -> Callable[[], None]:
    """Group norms: each convolution casts their result down, and its gradient up again."""
    with torch.device("meta"):
        layers = [part for _ in range(3) for part in (nn.Conv2d(64, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.SiLU())]
        model, images = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *layers), torch.empty(32, 3, 128, 128)
    return lambda: model(images).square().mean().backward()


def step_of_recurrence() -> Callable[[], None]:
    """A linear layer after a transposed result, which torch decomposes into a product and an addition."""
    with torch.device("meta"):
        recurrent, head = nn.LSTM(650, 650, 2, batch_first=True), nn.Linear(650, 10000)
        rows, words = torch.empty(128, 64, 650), torch.zeros(128 * 64, dtype=torch.int64)
    return lambda: nn.functional.cross_entropy(head(recurrent(rows)[0]).flatten(0, 1), words).backward()


def step_of_dropout() -> Callable[[], None]:
    """Branches in 16 bits, which a sum with float32 rows ends: autograd casts the gradients of their results."""
    with torch.device("meta"):
        layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(768), nn.Linear(768, 768)) for _ in range(4))
        drop, rows = nn.Dropout(0.1), torch.empty(8192, 768)

    def step() -> None:
        data = rows
        for layer in layers:
            data = data + drop(torch.sigmoid(layer(data)))
        data.square().mean().backward()

    return step


def step_of_ratings() -> Callable[[], None]:
    with torch.device("meta"):
        table, layer = nn.EmbeddingBag(100000, 64), nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1))
        words = torch.zeros(65536, 1, dtype=torch.int64)
    return lambda: layer(table(words)).square().mean().backward()


def step_of_biased_attention() -> Callable[[], None]:
    """Attention with a learned bias in float32, which no fused kernel takes, and with zeros in the query's dtype."""
    with torch.device("meta"):
        query, bias = nn.Linear(64, 64), nn.Embedding(512 * 512, 8)
        rows, places = torch.empty(16, 8, 512, 64), torch.arange(512 * 512).view(512, 512)

    def step() -> None:
        heads, attend = query(rows), nn.functional.scaled_dot_product_attention
        learned = attend(heads, heads, heads, attn_mask=bias(places).permute(2, 0, 1)[None])
        zeros = torch.zeros(1, 8, 512, 512, device="meta", dtype=heads.dtype)
        attend(learned, heads, heads, attn_mask=zeros).square().mean().backward()

    return step


def step_of_eager_attention() -> Callable[[], None]:
    """A block of GPT-2 in plain operations: its softmax reads 16 bits, and GELU's formula has branches in float32."""
    with torch.device("meta"):
        norm, inner, outer = nn.LayerNorm(256), nn.Linear(256, 1024), nn.Linear(1024, 256)
        query, drop, rows = nn.Linear(256, 256), nn.Dropout(0.1), torch.empty(16, 512, 256)

    def step() -> None:
        heads = query(norm(rows))
        scores = drop(torch.softmax(heads @ heads.transpose(1, 2) / 16.0, dim=-1))
        data = rows + drop(scores @ heads)
        wide = inner(norm(data))
        wide = 0.5 * wide * (1.0 + torch.tanh(0.8 * (wide + 0.045 * torch.pow(wide, 3.0))))
        (data + drop(outer(wide))).square().mean().backward()

    return step


def step_of_square_rows() -> Callable[[], None]:
    """Gradients of activations have the shape of the weights, whose gradients alone are cast to float32."""
    with torch.device("meta"):
        layers = [part for _ in range(4) for part in (nn.Linear(512, 512), nn.ReLU())]
        model, rows = nn.Sequential(*layers), torch.empty(512, 512)
    return lambda: model(rows).square().mean().backward()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", [step_of_eager_attention, step_of_encoder, step_of_square_rows])
def test_casts_of_biases_and_branches_equal_a_step_under_autocast(
    kind: Callable[[], Callable[[], None]], dtype: str
) -> None:
    name, precision = "A100-SXM-80GB", {"float16": "16-mixed", "bfloat16": "bf16-mixed"}[dtype]
    recorded = lp.capture(kind(), warmup_steps=0, precision=precision)
    converted = in_precision(lp.capture(kind(), warmup_steps=0), dtype)
    wanted, got = (lp.predict(trace, [name], history=False)[name].device_seconds for trace in (recorded, converted))
    # The conversion keeps two gradients of the eager block in float32, which autograd casts down before they are
    # computed: 0.5 times one of 8192 x 1024 values (35.4 instead of 8.9 us), and in bfloat16 the division of one of
    # 16 x 512 x 512 (8.9 instead of 5.4 us). These are 30 of 1,908 us.
    tolerance = (26.5 + 3.5) / 1908 + 0.001
    assert got == pytest.approx(wanted, rel=tolerance)
    copies = [sum(one.name == "aten::_to_copy" for one in step.operations) for step in (converted, recorded)]
    assert copies[0] == pytest.approx(copies[1], rel=0.05)


@pytest.mark.parametrize("step", [step_of_images, step_of_tokens, step_of_words])
@pytest.mark.parametrize("name", ["A100-SXM-80GB", "RTX-3090"])
def test_half_precision_dtypes_match_autocast(step: Callable[[], None], name: str) -> None:
    compare_with_autocast(lambda: step, name)


@pytest.mark.parametrize(
    "kind",
    [
        step_of_encoder,
        step_of_denoising,
        step_of_dropout,
        step_of_recurrence,
        step_of_ratings,
        step_of_biased_attention,
    ],
)
def test_gradients_biases_and_masks_have_the_dtypes_of_autocast(kind: Callable[[], Callable[[], None]]) -> None:
    compare_with_autocast(kind, "A100-SXM-80GB")


def compare_with_autocast(kind: Callable[[], Callable[[], None]], name: str) -> None:
    """What if in 16 bits, from float32, against the same step recorded under autocast."""
    recorded = lp.capture(kind(), warmup_steps=0, precision="bf16-mixed")
    converted = in_precision(lp.capture(kind(), warmup_steps=0), "bfloat16")
    wanted, got = (lp.predict(trace, [name], history=False)[name].device_seconds for trace in (recorded, converted))
    assert got == pytest.approx(wanted, rel=0.02)


def test_batch_norm_activations_and_pooling_use_16_bits() -> None:
    half = in_precision(lp.capture(step_of_images, warmup_steps=0), "float16")
    by_name = {operation.name: operation for operation in half.operations if operation.phase == "forward"}
    for name in ("aten::native_batch_norm", "aten::relu", "aten::add", "aten::max_pool2d_with_indices"):
        assert (by_name[name].inputs[0].dtype, by_name[name].outputs[0].dtype) == ("float16", "float16"), name
    statistics = by_name["aten::native_batch_norm"]
    assert {one.dtype for one in statistics.inputs[1:]} == {one.dtype for one in statistics.outputs[1:]} == {"float32"}


def test_large_product_is_faster_on_tensor_cores_or_compiled(traces: dict[int, Trace]) -> None:
    full = lp.predict(traces[4096], ["A100-SXM-80GB"], history=False)["A100-SXM-80GB"]
    half = what_if("bf16-mixed", traces[4096], ["A100-SXM-80GB"])["A100-SXM-80GB"]
    # 312 TFLOP/s in place of 19.5: 16 times at best, and the optimizer stays as it is.
    assert full.iteration_seconds / 16 < half.iteration_seconds < full.iteration_seconds / 2
    assert half.memory_bytes is not None
    assert full.memory_bytes is not None
    assert half.memory_bytes <= full.memory_bytes + 2 * 2 * WIDTH * WIDTH  # autocast keeps a copy of both weights
    trace, name = traces[4096], "A100-SXM-80GB"
    eager, compiled = lp.predict(trace, [name])[name], what_if("compile", trace, [name])[name]
    # Two products forward and three backward at 19.5 TFLOP/s stay; the loss and its gradient are chains.
    products = 5 * 2 * 4096 * WIDTH**2 / 19.5e12
    assert products < compiled.iteration_seconds < eager.iteration_seconds
    assert any("fused kernels" in note for note in what_if("compile", trace, [name]).notes)


def test_another_precision_drops_measurements_and_is_refused_under_autocast(traces: dict[int, Trace]) -> None:
    measured = replace(
        traces[1024], device="cuda", gpu_reported_name="Tesla T4", step_seconds=(9.0,), memory=Memory(peak_bytes=8)
    )
    half = in_precision(measured, "float16")
    assert half.step_seconds == ()
    assert half.gpu_reported_name is None
    assert half.memory.peak_bytes is None
    with pytest.raises(InvalidArgumentError, match="dtype='float8' is not an autocast precision; expected bfloat16 or"):
        in_precision(traces[1024], "float8")
    with pytest.raises(InvalidArgumentError, match="recorded under autocast in float16; record it in float32 first"):
        in_precision(replace(traces[1024], flags=Flags(autocast_dtype="float16")), "bfloat16")
