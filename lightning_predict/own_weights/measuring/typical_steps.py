"""Training steps to measure: ResNet-50, GPT-2, ViT-B and BERT-large, built here, and models of timm and transformers.

Example::

    step = TYPICAL_STEPS["gpt2"](torch.device("meta"))
    trace = capture(step, warmup_steps=0, precision="bf16-mixed")
    measured_share(trace, find_gpu("H100-SXM-80GB"), tuned={"matmul_half"}, factors=set())
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import OperationShape, network_spec, surrogates_of
from lightning_predict.record.named_models.names import shipped
from lightning_predict.record.recording import capture
from lightning_predict.record.trace import Trace

Build = Callable[[], nn.Module]
Step = Callable[[], None]
Shape = tuple[int, ...]


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *_normed(channels, width, 1),
            nn.ReLU(inplace=True),
            *_normed(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_normed(width, 4 * width, 1),
        )
        self.shortcut = nn.Sequential(*(_normed(channels, 4 * width, 1, stride) if channels != 4 * width else ()))

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu_(self.branch(images) + self.shortcut(images))


def _normed(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)


def _resnet50() -> nn.Module:
    parts = [*_normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for index in range(count):
            parts.append(_Bottleneck(channels, 64 << stage, 2 if stage and not index else 1))
            channels = 256 << stage
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class _Language(nn.Module):
    def __init__(self, layers: int, hidden: int, words: int, *, is_causal: bool) -> None:
        super().__init__()
        self.words, self.is_causal = nn.Embedding(words, hidden), is_causal
        self.places = nn.Parameter(torch.zeros(1024, hidden))
        block = nn.TransformerEncoderLayer(
            hidden, hidden // 64, 4 * hidden, activation="gelu", batch_first=True, norm_first=is_causal
        )
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(hidden), enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, tokens.device) if self.is_causal else None
        data = self.blocks(self.words(tokens) + self.places[:length], mask=mask, is_causal=self.is_causal)
        return functional.linear(data, self.words.weight).flatten(0, 1)


class _Vision(nn.Module):
    def __init__(self, layers: int, hidden: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, patch)
        block = nn.TransformerEncoderLayer(
            hidden, hidden // 64, 4 * hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(hidden), enable_nested_tensor=False)
        self.head = nn.Linear(hidden, 1000)

    def forward(self, images: Tensor) -> Tensor:
        data = self.blocks(self.patches(images).flatten(2).transpose(1, 2))
        logits: Tensor = self.head(data.mean(1))
        return logits


def _step(build: Build, inputs: Shape, classes: int, device: torch.device, *, capturable: bool = False) -> Step:
    """Return a training step in bfloat16 with AdamW; a CUDA graph can capture the step if `capturable`."""
    is_language = len(inputs) == 2
    with device:
        network = build()
        data = torch.randint(classes, inputs) if is_language else torch.randn(inputs)
        labels = torch.randint(classes, (inputs[0] * inputs[1] if is_language else inputs[0],))
    if not is_language:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        data = data.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4, capturable=capturable)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type != "meta"):
            loss = functional.cross_entropy(network(data), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


TYPICAL_STEPS: Final[Mapping[str, Callable[..., Step]]] = {
    "resnet50": partial(_step, _resnet50, (128, 3, 224, 224), 1000),
    "gpt2": partial(_step, partial(_Language, 12, 768, 50257, is_causal=True), (8, 1024), 50257),
    "vit_base": partial(_step, partial(_Vision, 12, 768, 16), (64, 3, 224, 224), 1000),
    "bert_large": partial(_step, partial(_Language, 24, 1024, 30522, is_causal=False), (16, 512), 30522),
}
"""Makers of training steps by name. Each takes the device of the step, and `capturable`."""


IMAGE_STEPS: Final[Mapping[str, int]] = {  # Batch sizes of models of timm; of each family one
    "resnext50_32x4d": 64,
    "densenet121": 64,
    "deit3_small_patch16_224": 128,
    "convnextv2_tiny": 64,
    "swinv2_tiny_window8_256": 64,
    "mobilenetv3_large_100": 128,
    "beit_base_patch16_224": 64,
    "tf_efficientnetv2_s": 32,
    "maxvit_tiny_tf_224": 32,
    "regnetx_032": 64,
    "mvitv2_tiny": 64,
    "dm_nfnet_f0": 32,
    "eva02_small_patch14_224": 64,
    "coatnet_0_rw_224": 64,
    "levit_256": 128,
    "mixer_b16_224": 64,
}

TEXT_STEPS: Final[Mapping[str, Shape]] = {
    "Qwen/Qwen2.5-0.5B": (4, 1024),
    "FacebookAI/roberta-base": (32, 256),
    "meta-llama/Llama-3.2-1B": (2, 2048),
    "EleutherAI/pythia-410m": (4, 1024),
    "facebook/opt-125m": (16, 1024),
    "microsoft/deberta-v3-base": (16, 256),
}
"""Batch sizes and lengths of language models of transformers, whose configurations ship with this package."""


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens).logits
        return logits.flatten(0, 1)


def library_steps() -> Mapping[str, Callable[..., Step]]:
    """Return makers of training steps by name, as `TYPICAL_STEPS`, of the models whose libraries are installed.

    A library is imported when a step is made, so that one of another release costs its own steps alone.
    """
    images = {name: partial(_image_step, name, batch) for name, batch in IMAGE_STEPS.items()}
    texts = {name: partial(_text_step, name, sizes) for name, sizes in TEXT_STEPS.items()}
    return (images if find_spec("timm") else {}) | (texts if find_spec("transformers") else {})


def _image_step(name: str, batch: int, device: torch.device, *, capturable: bool = False) -> Step:
    timm = import_module("timm")
    inputs = (batch, *timm.get_pretrained_cfg(name).input_size)
    return _step(partial(timm.create_model, name), inputs, 1000, device, capturable=capturable)


def _text_step(name: str, inputs: Shape, device: torch.device, *, capturable: bool = False) -> Step:
    transformers, words = import_module("transformers"), shipped("hf", name).config
    config = transformers.AutoConfig.for_model(**words, use_cache=False)
    build = partial(getattr(transformers, words["architectures"][0]), config)
    return _step(lambda: _Logits(build()), inputs, config.vocab_size, device, capturable=capturable)


RECORDED_AFTER: Final = 12  # Number of steps before the recorded one, most of them timed as in a training loop


CHECKED: Final = ("resnet50", "gpt2", "vit_base")  # Steps by which `train` checks its weights


def record_steps(folder: Path, device: torch.device) -> tuple[str, ...]:
    """Record the checked steps into a folder, unless they are there, and return a sentence for each that failed."""
    failures = []
    for name in CHECKED:
        path = folder / f"{name}.json.gz"
        if path.is_file():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        try:
            capture(TYPICAL_STEPS[name](device), warmup_steps=RECORDED_AFTER).save(path)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            failures.append(f"The step of {name} could not be recorded: {reason}")
    return tuple(failures)


def measured_shares(gpu: Gpu, tuned: Collection[str], factors: Collection[str]) -> dict[str, float]:
    """Return the share of the GPU time of a ResNet-50's and a GPT-2's step in measured operations.

    `tuned` and `factors` ("gelu/bfloat16") have enough rows.
    """
    steps = {name: TYPICAL_STEPS[name](torch.device("meta")) for name in ("resnet50", "gpt2")}
    traces = {name: capture(step, warmup_steps=0, precision="bf16-mixed") for name, step in steps.items()}
    return {name: measured_share(trace, gpu, tuned, factors) for name, trace in traces.items()}


def measured_share(trace: Trace, gpu: Gpu, tuned: Collection[str], factors: Collection[str]) -> float:
    """Return the share of a step's GPU time in operations that are measured, directly or as their surrogates."""

    def is_measured(shape: OperationShape) -> bool:
        family = network_spec(shape.operation, shape.dtype)
        if (family is not None and family.name in tuned) or f"{shape.operation}/{shape.dtype}" in factors:
            return True
        parts = surrogates_of(shape)
        return bool(parts) and all(is_measured(part.shape) for part in parts)

    timed = predict_work_times(trace, [gpu], origin=None, models=kernel_models((gpu.name,)))
    measured = [bool(item.shapes) and all(map(is_measured, item.shapes)) for item in timed.items]
    return float((timed.seconds[0] * measured).sum() / timed.seconds[0].sum())
