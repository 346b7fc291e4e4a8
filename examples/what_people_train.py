"""Predict what people train: LoRA, QLoRA, texts of many lengths, pictures, diffusion, detection, a graph, a table.

    python examples/what_people_train.py                     # all of them
    python examples/what_people_train.py lora qlora
    python examples/what_people_train.py --save lora resnet  # write the steps for the command line, lora.json.gz, too

Nothing is trained and nothing is downloaded: each step is recorded on PyTorch's meta device, in seconds. The models are
written out in plain torch; with PEFT, diffusers or torchvision, pass a step of theirs to `lp.capture` just so.
"""

import math
import random
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import lightning_predict as lp

GPUS = ["RTX-4090", "L4", "A100-SXM-80GB", "H100-SXM-80GB"]


@torch.library.custom_op("example::dequantize_4bit", mutates_args=())
def dequantize_4bit(packed: Tensor, scales: Tensor) -> Tensor:
    """What bitsandbytes does before each product: read half a byte a weight, and write two."""
    raise NotImplementedError("this example records shapes alone")


@dequantize_4bit.register_fake
def _(packed: Tensor, scales: Tensor) -> Tensor:  # noqa: ARG001
    return packed.new_empty(2 * packed.numel(), dtype=torch.bfloat16)


class Adapted(nn.Module):
    """A frozen linear layer, in 16 or in 4 bits, with a small trainable layer."""

    def __init__(self, inputs: int, outputs: int, *, rank: int, in_4_bits: bool) -> None:
        super().__init__()
        self.shape, self.in_4_bits = (outputs, inputs), in_4_bits
        if in_4_bits:
            self.register_buffer("packed", torch.empty(inputs * outputs // 2, dtype=torch.uint8))
            self.register_buffer("scales", torch.empty(inputs * outputs // 64, dtype=torch.uint8))
        else:
            self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=torch.bfloat16), requires_grad=False)
        self.down = nn.Linear(inputs, rank, bias=False) if rank else None
        self.up = nn.Linear(rank, outputs, bias=False) if rank else None

    def forward(self, data: Tensor) -> Tensor:
        weight = dequantize_4bit(self.packed, self.scales).view(self.shape) if self.in_4_bits else self.weight
        frozen = functional.linear(data, weight)
        if self.down is None or self.up is None:
            return frozen
        trained: Tensor = self.up(self.down(data.to(self.down.weight.dtype)))
        return frozen + trained.to(frozen.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, hidden: int, inner: int, heads: int, **how: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(hidden, dtype=torch.bfloat16) for _ in range(2)).requires_grad_(False)
        self.query, self.key, self.value, self.output = (
            Adapted(hidden, hidden, rank=16, in_4_bits=how["in_4_bits"]) for _ in range(4)
        )
        self.gate, self.rise = (Adapted(hidden, inner, rank=0, in_4_bits=how["in_4_bits"]) for _ in range(2))
        self.fall = Adapted(inner, hidden, rank=0, in_4_bits=how["in_4_bits"])

    def forward(self, data: Tensor) -> Tensor:
        batch, length, hidden = data.shape
        normed = self.norms[0](data)
        parts = (part(normed).view(batch, length, self.heads, -1) for part in (self.query, self.key, self.value))
        query, key, value = (part.transpose(1, 2) for part in parts)
        joined = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        data = data + self.output(joined.transpose(1, 2).reshape(batch, length, hidden))
        normed = self.norms[1](data)
        result: Tensor = data + self.fall(functional.silu(self.gate(normed)) * self.rise(normed))
        return result


def fine_tuning(*, in_4_bits: bool) -> lp.Trace:
    """A step of a 7-billion-parameter model, blocks checkpointed, four texts of 1,024 tokens."""
    batch, length, hidden, vocabulary = 4, 1024, 4096, 32_000
    with torch.device("meta"):
        embedding = nn.Embedding(vocabulary, hidden, dtype=torch.bfloat16).requires_grad_(False)
        head = nn.Linear(hidden, vocabulary, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        blocks = nn.ModuleList(LlamaBlock(hidden, 11_008, 32, in_4_bits=in_4_bits) for _ in range(32))
        tokens = torch.zeros(batch, length, dtype=torch.int64)
    trained = [parameter for parameter in blocks.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)

    def step() -> None:
        data = embedding(tokens).requires_grad_()
        for block in blocks:
            data = checkpoint(block, data, use_reentrant=False)
        functional.cross_entropy(head(data).flatten(0, 1).float(), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return lp.capture(step, samples_per_step=batch)


def classifier_step(batch: int) -> Callable[[int], None]:
    """A step of BERT-base, given the length that its texts are padded to."""
    with torch.device("meta"):
        embedding = nn.Embedding(30_522, 768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
        model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        head = nn.Linear(768, 2)
    modules = nn.ModuleList((embedding, model, head))
    optimizer = torch.optim.AdamW(modules.parameters(), lr=2e-5)

    def step(length: int) -> None:
        tokens = torch.zeros(batch, length, dtype=torch.int64, device="meta")
        wanted = torch.zeros(batch, dtype=torch.int64, device="meta")
        functional.cross_entropy(head(model(embedding(tokens))[:, 0]), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def texts() -> list[int]:
    """Lengths of 4,096 texts: most are short, a few are cut at 512."""
    draw = random.Random(0)
    return [min(512, max(8, round(draw.lognormvariate(4.6, 0.7)))) for _ in range(4096)]


def padded() -> lp.Trace:
    """Batches of 32 texts, each as long as its longest, at their mean length."""
    lengths, batch = texts(), 32
    longest = [max(lengths[start : start + batch]) for start in range(0, len(lengths), batch)]
    step, mean = classifier_step(batch), round(sum(longest) / len(longest))
    return lp.capture(lambda: step(mean), samples_per_step=batch, precision="bf16-mixed")


def packed() -> lp.Trace:
    """The same texts one after another in rows of 512 tokens, without padding between them."""
    rows = 8
    texts_a_row = 512 * len(texts()) / sum(texts())
    step = classifier_step(rows)
    return lp.capture(lambda: step(512), samples_per_step=round(rows * texts_a_row), precision="bf16-mixed")


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(32, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.moment = nn.Linear(1280, outputs)
        self.past = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, data: Tensor, moment: Tensor) -> Tensor:
        changed = self.first(data) + self.moment(functional.silu(moment))[:, :, None, None]
        result: Tensor = self.past(data) + self.second(changed)
        return result


class Looking(nn.Module):
    """Attention among the pixels, and to the words of the text."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.own = nn.MultiheadAttention(channels, 8, batch_first=True)
        self.words = nn.MultiheadAttention(channels, 8, kdim=768, vdim=768, batch_first=True)
        self.inner = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))

    def forward(self, data: Tensor, words: Tensor) -> Tensor:
        pixels = self.norm(data).flatten(2).transpose(1, 2)
        pixels = pixels + self.own(pixels, pixels, pixels, need_weights=False)[0]
        pixels = pixels + self.words(pixels, words, words, need_weights=False)[0]
        pixels = pixels + self.inner(pixels)
        result: Tensor = data + pixels.transpose(1, 2).reshape(data.shape)
        return result


class Unet(nn.Module):
    """Two residual blocks with attention on each of three sizes, down and up again."""

    def __init__(self, widths: tuple[int, ...] = (320, 640, 1280)) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(4, widths[0], 3, padding=1), nn.Conv2d(widths[0], 4, 3, padding=1)
        befores = (widths[0], *widths[:-1])
        self.smaller = nn.ModuleList(nn.Conv2d(width, width, 3, 2, 1) for width in widths)
        self.down, self.down_looks = (
            nn.ModuleList(Residual(before, width) for before, width in zip(befores, widths, strict=True)),
            nn.ModuleList(Looking(width) for width in widths),
        )
        self.middle, self.middle_looks = Residual(widths[-1], widths[-1]), Looking(widths[-1])
        self.up, self.up_looks = (
            nn.ModuleList(
                Residual(2 * width, before) for before, width in zip(befores[::-1], widths[::-1], strict=True)
            ),
            nn.ModuleList(Looking(before) for before in befores[::-1]),
        )

    def forward(self, data: Tensor, moment: Tensor, words: Tensor) -> Tensor:
        data, kept = self.enter(data), []
        for residual, looking, smaller in zip(self.down, self.down_looks, self.smaller, strict=True):
            data = looking(residual(data, moment), words)
            kept.append(data)
            data = smaller(data)
        data = self.middle_looks(self.middle(data, moment), words)
        for residual, looking in zip(self.up, self.up_looks, strict=True):
            beside = kept.pop()
            larger = functional.interpolate(data, size=beside.shape[2:])
            data = looking(residual(torch.cat((larger, beside), dim=1), moment), words)
        result: Tensor = self.leave(data)
        return result


def diffusion() -> lp.Trace:
    """A step of a U-Net on the latents of four 512 x 512 pictures, with texts of 77 tokens."""
    batch = 4
    with torch.device("meta"):
        model = Unet()
        data, moment, words = torch.empty(batch, 4, 64, 64), torch.empty(batch, 1280), torch.empty(batch, 77, 768)
    return lp.capture(
        _trained(model, lambda: functional.mse_loss(model(data, moment, words), data)),
        samples_per_step=batch,
        precision="bf16-mixed",
    )


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        is_same = inputs == 4 * width and stride == 1
        self.past = nn.Identity() if is_same else nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)

    def forward(self, data: Tensor) -> Tensor:
        return functional.relu(self.past(data) + self.body(data))


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        stages, inputs = [], 64
        for number, (width, depth) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
            blocks = [Bottleneck(inputs, width, 1 if number == 0 else 2)]
            stages.append(nn.Sequential(*blocks, *(Bottleneck(4 * width, width, 1) for _ in range(depth - 1))))
            inputs = 4 * width
        self.stages = nn.Sequential(*stages)


def resnet() -> lp.Trace:
    """A step of ResNet-50 on 256 pictures of 224 x 224, channels last; 90 epochs of ImageNet."""
    batch = 256
    with torch.device("meta"):
        body, pool = ResNet50(), nn.AdaptiveAvgPool2d(1)
        model: nn.Module = nn.Sequential(body.stem, body.stages, pool, nn.Flatten(), nn.Linear(2048, 1000))
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        data = torch.empty(batch, 3, 224, 224).to(memory_format=torch.channels_last)
        wanted = torch.zeros(batch, dtype=torch.int64)

    def loss() -> Tensor:
        return functional.cross_entropy(model(data), wanted)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return lp.capture(_trained(model, loss, optimizer), samples_per_step=batch, precision="bf16-mixed")


class Detector(ResNet50):
    """ResNet-50 with a pyramid of features and a head on each of its sizes, as RetinaNet has them."""

    def __init__(self, classes: int = 80, anchors: int = 9) -> None:
        super().__init__()
        self.pyramid = nn.ModuleList(nn.Conv2d(width, 256, 1) for width in (512, 1024, 2048))

        def head(outputs: int) -> nn.Sequential:
            hidden = [layer for _ in range(4) for layer in (nn.Conv2d(256, 256, 3, padding=1), nn.ReLU())]
            return nn.Sequential(*hidden, nn.Conv2d(256, anchors * outputs, 3, padding=1))

        self.classes, self.boxes = head(classes), head(4)

    def forward(self, data: Tensor) -> tuple[Tensor, Tensor]:
        data, found = self.stem(data), []
        for number, stage in enumerate(self.stages):
            data = stage(data)
            if number > 0:
                found.append(self.pyramid[number - 1](data))
        for small, large in ((2, 1), (1, 0)):
            found[large] = found[large] + functional.interpolate(found[small], size=found[large].shape[2:])
        classes, boxes = ([head(one).flatten(1) for one in found] for head in (self.classes, self.boxes))
        return torch.cat(classes, dim=1), torch.cat(boxes, dim=1)


def detection() -> lp.Trace:
    """A step of a detector on eight pictures of 800 x 800."""
    batch = 8
    with torch.device("meta"):
        model = Detector()
        data = torch.empty(batch, 3, 800, 800)

    def loss() -> Tensor:
        classes, boxes = model(data)
        sure = torch.sigmoid(classes)
        focal = functional.binary_cross_entropy_with_logits(classes, torch.zeros_like(classes), reduction="none")
        return (focal * sure**2).mean() + functional.smooth_l1_loss(boxes, torch.zeros_like(boxes))

    return lp.capture(_trained(model, loss), samples_per_step=batch, precision="bf16-mixed")


class GraphLayer(nn.Module):
    """Each node takes the mean of its neighbours, and itself."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, nodes: Tensor, sources: Tensor, targets: Tensor, degree: Tensor) -> Tensor:
        gathered = torch.zeros_like(nodes).index_add(0, targets, nodes.index_select(0, sources)) / degree
        return functional.relu(self.own(nodes) + self.others(gathered))


def graph() -> lp.Trace:
    """A step over a whole graph of 169,343 papers with 2.3 million citations, both ways: the size of ogbn-arxiv."""
    nodes, edges, features = 169_343, 2_332_486, 128
    with torch.device("meta"):
        layers = nn.ModuleList(GraphLayer(inputs, 256) for inputs in (features, 256, 256))
        head = nn.Linear(256, 40)
        data, degree = torch.empty(nodes, features), torch.empty(nodes, 1)
        sources, targets, wanted = (torch.zeros(count, dtype=torch.int64) for count in (edges, edges, nodes))

    def loss() -> Tensor:
        hidden = data
        for layer in layers:
            hidden = layer(hidden, sources, targets, degree)
        return functional.cross_entropy(head(hidden), wanted)

    return lp.capture(_trained(nn.ModuleList((layers, head)), loss), samples_per_step=nodes)


def tabular() -> lp.Trace:
    """A step of a transformer over 30 columns of a table, each a token, 256 rows at a time."""
    rows, columns, width = 256, 30, 192
    with torch.device("meta"):
        scale, shift = nn.Parameter(torch.empty(columns, width)), nn.Parameter(torch.empty(columns, width))
        layer = nn.TransformerEncoderLayer(width, 8, 256, activation="gelu", batch_first=True, norm_first=True)
        model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        head = nn.Linear(width, 1)
        data, wanted = torch.empty(rows, columns), torch.empty(rows)
    every = nn.ParameterList([scale, shift, *model.parameters(), *head.parameters()])

    def loss() -> Tensor:
        tokens = data[:, :, None] * scale + shift
        return functional.mse_loss(head(model(tokens).mean(dim=1))[:, 0], wanted)

    return lp.capture(_trained(every, loss), samples_per_step=rows)


def _trained(
    model: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer | None = None
) -> Callable[[], None]:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


WORK: dict[str, tuple[Callable[[], lp.Trace], int]] = {
    "lora": (lambda: fine_tuning(in_4_bits=False), 50_000),
    "qlora": (lambda: fine_tuning(in_4_bits=True), 50_000),
    "padded": (padded, 100_000),
    "packed": (packed, 100_000),
    "resnet": (resnet, 90 * 1_281_167),
    "diffusion": (diffusion, 400_000),
    "detection": (detection, 12 * 118_000),  # a dozen epochs of COCO
    "graph": (graph, 500 * 169_343),
    "tabular": (tabular, 100 * 1_000_000),
}
"""Recorded step, and the total number of samples."""


def main() -> None:
    names = [word for word in sys.argv[1:] if word != "--save"]
    for name in names or WORK:
        record, samples = WORK[name]
        start = time.perf_counter()
        trace = record()
        if "--save" in sys.argv:
            trace.save(f"{name}.json.gz")
        steps = math.ceil(samples / (trace.samples or 1))
        result = lp.predict(trace, gpus=GPUS, iterations=steps, history=False)
        print(f"\n== {name}: {(record.__doc__ or fine_tuning.__doc__ or '').strip()}\n")
        print(result, "", result.ranking(), sep="\n")
        print(f"Recorded and predicted in {time.perf_counter() - start:.1f} s on this computer.")


if __name__ == "__main__":
    main()
