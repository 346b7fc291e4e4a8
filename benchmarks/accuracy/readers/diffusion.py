"""NVIDIA's published training of ControlNet.

NeMo's page on ControlNet (docs.nvidia.com/nemo-framework, user guide 24.12) changes one thing at a time and tells
samples a second and memory on one A100, which is taken as the 80 GB one, as one row needs 76 G. The networks are Stable
Diffusion 1.5's, of images of 512 x 512 in float16 autocast: its encoders of images and of text, its U-Net, and a copy
of the U-Net's first half that is trained. As NeMo's code has it, the U-Net's first half runs without gradients, and its
second half with gradients of its weights, though no weight is updated. Which release of torch ran is not told; 2.1 is
assumed. Norms that Apex fuses with what follows, and its optimizer, are predicted as torch's, and all of the step as
compiled where NeMo compiles the U-Nets. Nothing was fitted to these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.readers.pretraining import with_memory

GPU: Final = "A100-SXM-80GB"
RELEASE: Final = "2.1"
WIDTHS: Final = (320, 640, 1280, 1280)
HEADS: Final = 8
BLOCKS: Final = 2  # Residual blocks of a level on the way down; one more on the way up

EMBEDDED: Final = 1280
WORDS: Final = 77
WORD_WIDTH: Final = 768
SIDE: Final = 512


@dataclass(frozen=True)
class Row:
    """A row of the page."""

    name: str  # What changed
    batch: int  # Samples of a step
    samples_per_second: float  # Measured
    gigabytes: float  # Measured memory
    fused: bool = True  # Attention is fused
    channels_last: bool = True  # Tensors are laid out so
    compiled: bool = False  # The step is compiled


ROWS: Final = (
    Row("as it comes", 8, 11.68, 76, fused=False, channels_last=False),
    Row("flash attention", 8, 16.40, 33, channels_last=False),
    Row("channels last", 8, 20.24, 29),
    Row("torch.compile", 8, 21.52, 29, compiled=True),
    Row("batch of 32", 32, 27.20, 66, compiled=True),
)


class Norm(nn.GroupNorm):
    """A group norm of 32 groups."""

    def __init__(self, channels: int) -> None:
        super().__init__(32, channels)


class Residual(nn.Module):
    """Two convolutions with a shortcut, told the time of the noise."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(Norm(inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(EMBEDDED, outputs))
        self.last = nn.Sequential(Norm(outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, data: Tensor, time: Tensor) -> Tensor:
        """Data of shape (batch, inputs, side, side)."""
        inner = self.first(data) + self.time(time)[:, :, None, None]
        result: Tensor = self.shortcut(data) + self.last(inner)
        return result


class Attention(nn.Module):
    """Attention to the image itself or to words."""

    def __init__(self, width: int, context: int, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.query = nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(context, width, bias=False) for _ in range(2))
        self.output = nn.Linear(width, width)

    def forward(self, data: Tensor, context: Tensor) -> Tensor:
        """Data of shape (batch, positions, width)."""
        query, key, value = (
            layer(source).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer, source in ((self.query, data), (self.key, context), (self.value, context))
        )
        if self.fused:
            joined = functional.scaled_dot_product_attention(query, key, value)
        else:
            scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
            joined = scores.softmax(dim=-1) @ value
        result: Tensor = self.output(joined.transpose(1, 2).flatten(2))
        return result


class Gated(nn.Module):
    """A layer whose one half gates the other, and one back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rise, self.fall = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, data: Tensor) -> Tensor:
        """Same shape as `data`."""
        values, gate = self.rise(data).chunk(2, dim=-1)
        result: Tensor = self.fall(values * functional.gelu(gate))
        return result


class Transformer(nn.Module):
    """A transformer's block between two layers, over all positions of an image."""

    def __init__(self, width: int, *, fused: bool) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.into, self.out = (nn.Conv2d(width, width, 1) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.itself = Attention(width, width, fused=fused)
        self.words = Attention(width, WORD_WIDTH, fused=fused)
        self.gated = Gated(width)

    def forward(self, data: Tensor, words: Tensor) -> Tensor:
        """Data of shape (batch, width, side, side), words of (batch, words, their width)."""
        side = data.shape[-1]
        inner = self.into(self.norm(data)).flatten(2).transpose(1, 2)
        normed = self.norms[0](inner)
        inner = inner + self.itself(normed, normed)
        inner = inner + self.words(self.norms[1](inner), words)
        inner = inner + self.gated(self.norms[2](inner))
        result: Tensor = data + self.out(inner.transpose(1, 2).unflatten(2, (side, side)))
        return result


class Stage(nn.Module):
    """A residual block, and a transformer's behind it but at the coarsest level."""

    def __init__(self, inputs: int, outputs: int, *, attends: bool, fused: bool) -> None:
        super().__init__()
        self.residual = Residual(inputs, outputs)
        self.transformer = Transformer(outputs, fused=fused) if attends else None

    def forward(self, data: Tensor, time: Tensor, words: Tensor) -> Tensor:
        """Data of shape (batch, inputs, side, side)."""
        data = self.residual(data, time)
        return data if self.transformer is None else self.transformer(data, words)


class FirstHalf(nn.Module):
    """The way down and the middle."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(WIDTHS[0], EMBEDDED), nn.SiLU(), nn.Linear(EMBEDDED, EMBEDDED))
        self.into = nn.Conv2d(4, WIDTHS[0], 3, padding=1)
        self.stages = nn.ModuleList()
        width = WIDTHS[0]
        for level, wider in enumerate(WIDTHS):
            is_last = level == len(WIDTHS) - 1
            for _ in range(BLOCKS):
                self.stages.append(Stage(width, wider, attends=not is_last, fused=fused))
                width = wider
            if not is_last:
                self.stages.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
        self.middle = Stage(width, width, attends=True, fused=fused)
        self.rest = Residual(width, width)

    def forward(self, noisy: Tensor, time: Tensor, words: Tensor, hint: Tensor | None = None) -> list[Tensor]:
        """What each stage gives, for latent images of shape (batch, 4, side, side)."""
        told = self.time(time)
        data = self.into(noisy)
        if hint is not None:
            data = data + hint
        kept = [data]
        for stage in self.stages:
            data = stage(data, told, words) if isinstance(stage, Stage) else stage(data)
            kept.append(data)
        kept.append(self.rest(self.middle(data, told, words), told))
        return kept


class SecondHalf(nn.Module):
    """The way up."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        self.rises = nn.ModuleList()
        skips = list(_skip_widths())
        width = WIDTHS[-1]
        for level in range(len(WIDTHS) - 1, -1, -1):
            for _ in range(BLOCKS + 1):
                attends = level < len(WIDTHS) - 1
                self.stages.append(Stage(width + skips.pop(), WIDTHS[level], attends=attends, fused=fused))
                width = WIDTHS[level]
            self.rises.append(nn.Conv2d(width, width, 3, padding=1) if level else nn.Identity())
        self.out = nn.Sequential(Norm(width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, kept: Sequence[Tensor], time: Tensor, words: Tensor) -> Tensor:
        """The predicted noise, from the output of the first half."""
        *skips, data = kept
        for number, stage in enumerate(self.stages):
            data = stage(torch.cat((data, skips.pop()), dim=1), time, words)
            level, block = divmod(number, BLOCKS + 1)
            if block == BLOCKS and level < len(WIDTHS) - 1:
                data = self.rises[level](functional.interpolate(data, scale_factor=2, mode="nearest"))
        result: Tensor = self.out(data)
        return result


def _skip_widths() -> Iterator[int]:
    """List the channels of all that the way down keeps."""
    yield WIDTHS[0]
    for level, width in enumerate(WIDTHS):
        yield from [width] * (BLOCKS + (level < len(WIDTHS) - 1))


class Hint(nn.Module):
    """The control image, encoded at the size of a latent image."""

    def __init__(self) -> None:
        super().__init__()
        widths = ((3, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 96, 2), (96, 96, 1), (96, 256, 2))
        layers = list[nn.Module]()
        for inputs, outputs, stride in widths:
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.SiLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(256, WIDTHS[0], 3, padding=1))

    def forward(self, image: Tensor) -> Tensor:
        """Image of shape (batch, 3, 512, 512)."""
        result: Tensor = self.layers(image)
        return result


class ImageBlock(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(Norm(inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)),
            *(Norm(outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)),
        )
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, data: Tensor) -> Tensor:
        """Data of shape (batch, inputs, side, side)."""
        result: Tensor = self.shortcut(data) + self.layers(data)
        return result


class ImageAttention(nn.Module):
    """One head over all positions of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.query, self.key, self.value, self.out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, data: Tensor) -> Tensor:
        """Same shape as `data`."""
        normed = self.norm(data)
        query, key, value = (layer(normed).flatten(2) for layer in (self.query, self.key, self.value))
        shares = (query.transpose(1, 2) @ key * data.shape[1] ** -0.5).softmax(dim=-1)
        result: Tensor = data + self.out((value @ shares.transpose(1, 2)).unflatten(2, data.shape[2:]))
        return result


def image_encoder() -> nn.Sequential:
    """Build the encoder of images of Stable Diffusion's autoencoder."""
    layers: list[nn.Module] = [nn.Conv2d(3, 128, 3, padding=1)]
    width = 128
    for level, wider in enumerate((128, 256, 512, 512)):
        for _ in range(2):
            layers.append(ImageBlock(width, wider))
            width = wider
        if level < 3:
            layers += [nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(width, width, 3, stride=2)]
    layers += [ImageBlock(width, width), ImageAttention(width), ImageBlock(width, width)]
    return nn.Sequential(*layers, Norm(width), nn.SiLU(), nn.Conv2d(width, 8, 3, padding=1), nn.Conv2d(8, 8, 1))


class Training(nn.Module):
    """All that a step runs."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.images = image_encoder().requires_grad_(False)
        layer = nn.TransformerEncoderLayer(
            WORD_WIDTH, 12, 4 * WORD_WIDTH, dropout=0, activation="gelu", batch_first=True, norm_first=True
        )
        self.text = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).requires_grad_(False)
        self.first, self.second = FirstHalf(fused=fused), SecondHalf(fused=fused)
        self.hint, self.control = Hint(), FirstHalf(fused=fused)
        self.answers = nn.ModuleList(nn.Conv2d(width, width, 1) for width in (*_skip_widths(), WIDTHS[-1]))
        self.trained = nn.ModuleList((self.hint, self.control, self.answers))

    def forward(self, images: Tensor, hints: Tensor, words: Tensor, noise: Tensor, waves: Tensor) -> Tensor:
        """The loss of images and hints of shape (batch, 3, 512, 512)."""
        with torch.no_grad():
            mean, _ = self.images(images).chunk(2, dim=1)
            noisy = mean + noise
            told = self.text(words)
            kept = self.first(noisy, waves, told)
            time = self.first.time(waves)
        control = self.control(noisy, waves, told, self.hint(hints))
        kept = [feature + answer(other) for feature, answer, other in zip(kept, self.answers, control, strict=True)]
        return functional.mse_loss(self.second(kept, time, told).float(), noise)


def recorded(row: Row) -> lp.Trace:
    """Record a step of a row."""
    layout = torch.channels_last if row.channels_last else torch.contiguous_format
    with torch.device("meta"):
        network = Training(fused=row.fused)
        network.to(memory_format=layout)  # type: ignore[call-overload]
        images, hints = (torch.zeros(row.batch, 3, SIDE, SIDE).to(memory_format=layout) for _ in range(2))
        noise = torch.zeros(row.batch, 4, SIDE // 8, SIDE // 8)
        words, waves = torch.zeros(row.batch, WORDS, WORD_WIDTH), torch.zeros(row.batch, WIDTHS[0])
    trained = list(network.trained.parameters())
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    for parameter in network.second.parameters():  # the script never clears these gradients
        parameter.grad = torch.zeros_like(parameter)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = network(images, hints, words, noise, waves)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return lp.capture(step)


def diffusion_cases(_data: Path) -> Iterator[Case]:
    """Yield time and memory of each row."""
    for row in ROWS:
        yield from with_memory(
            {"process": row.gigabytes * 1e9},
            source="compiled" if row.compiled else "eager",
            model=f"ControlNet, {row.name}, batch {row.batch}",
            gpu=GPU,
            step=Step(name=f"controlnet-{row.name}", record=partial(recorded, row)),
            measured=row.batch / row.samples_per_second,
            release=None if row.compiled else RELEASE,
            kernels=("compile",) if row.compiled else (),
        )
