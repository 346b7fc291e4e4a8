"""The table of workloads: models of the papers behind the method, and today's.

Batches of the first five are among the batches of Yu et al. (USENIX ATC 2021). Example::

    workload = WORKLOADS["resnet50"]
    workload.module("full"), workload.batch("full")
"""

from collections.abc import Callable
from typing import Final

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from benchmarks.accuracy.workloads import classifiers
from benchmarks.accuracy.workloads.bert import BERT_LARGE, Bert, BertConfig
from benchmarks.accuracy.workloads.deep_speech import DeepSpeech
from benchmarks.accuracy.workloads.gnmt import GNMT, Gnmt, GnmtConfig
from benchmarks.accuracy.workloads.inception import InceptionV3
from benchmarks.accuracy.workloads.resnet import ResNet50
from tests.workloads import images as vision
from tests.workloads.gan import Dcgan
from tests.workloads.gpt import GPT2_SMALL, TINY, Gpt
from tests.workloads.modules import (
    Batch,
    Size,
    Supervised,
    Workload,
    adam,
    adamw,
    classification_loss,
    click_loss,
    images,
    momentum,
    tokens,
)
from tests.workloads.recommendation import Dlrm
from tests.workloads.sequences import ExpertLayer, Llama, Transformer


def _classifier(network: Callable[[Size], nn.Module]) -> Callable[[Size], LightningModule]:
    return lambda size: Supervised(network(size), classification_loss, momentum)


def _language(network: Callable[[Size], nn.Module]) -> Callable[[Size], LightningModule]:
    return lambda size: Supervised(network(size), classification_loss, adamw)


def _images(count: int, size: int, tiny_size: int) -> Callable[[Size], Batch]:
    return lambda which: images(count, size, 1000) if which == "full" else images(2, tiny_size, 10)


def _tokens(count: int, length: int, vocabulary: int) -> Callable[[Size], Batch]:
    return lambda size: tokens(count, length, vocabulary) if size == "full" else tokens(2, 16, 101)


def _with_auxiliary(network: nn.Module, batch: Batch) -> Tensor:
    main, auxiliary = network(batch[0])
    loss = nn.functional.cross_entropy(main, batch[1])
    return loss + 0.4 * nn.functional.cross_entropy(auxiliary, batch[1])


def _inception(size: Size) -> LightningModule:
    network = InceptionV3() if size == "full" else InceptionV3(divisor=16, classes=10)
    return Supervised(network, _with_auxiliary, momentum)


def _transformer(size: Size) -> LightningModule:
    sizes = {"layers": 6, "hidden": 512, "heads": 8, "inner": 2048, "vocabulary": 37000}
    tiny = {"layers": 1, "hidden": 32, "heads": 4, "inner": 64, "vocabulary": 101}
    return Supervised(Transformer(**(sizes if size == "full" else tiny)), classification_loss, adam)


def _translation(count: int, length: int, vocabulary: int, *, by_step: bool) -> Callable[[Size], Batch]:
    """Source, target and labels, (batch, length) or (length, batch)."""

    def batch(size: Size) -> Batch:
        samples, steps, words = (count, length, vocabulary) if size == "full" else (2, 7, 101)
        shape = (steps, samples) if by_step else (samples, steps)
        source, target, labels = (torch.randint(words, shape) for _ in range(3))
        return source, target, labels

    return batch


def _gnmt(size: Size) -> LightningModule:
    config = GNMT if size == "full" else GnmtConfig(hidden=16, layers=4, vocabulary=101)
    return Supervised(Gnmt(config), classification_loss, adam)


def _deep_speech(size: Size) -> LightningModule:
    full, tiny = {"channels": 32, "hidden": 800, "layers": 5}, {"channels": 2, "hidden": 8, "layers": 2}
    return Supervised(DeepSpeech(**(full if size == "full" else tiny)), classification_loss, momentum)


def _speech(size: Size) -> Batch:
    """Spectra with a letter a frame, as aligned transcripts have; a second of speech is 100 spectra."""
    count, time, frames = (16, 100, 50) if size == "full" else (2, 20, 10)
    return torch.rand(count, 1, 161, time), torch.randint(29, (count, frames))


def _dlrm(size: Size) -> LightningModule:
    if size == "full":
        network = Dlrm(tables=8, rows=1_000_000, width=64, bottom=(512, 512), top=(1024, 1024, 1024))
    else:
        network = Dlrm(tables=3, rows=50, width=8, bottom=(16, 16), top=(16, 16))
    return Supervised(network, click_loss, momentum)


def _clicks(size: Size) -> Batch:
    count, tables, rows, looked_up, features = (2048, 8, 1_000_000, 10, 512) if size == "full" else (4, 3, 50, 2, 16)
    indices = torch.randint(rows, (tables, count, looked_up))
    return torch.rand(count, features), indices, torch.rand(count).round()


def _bert(size: Size) -> nn.Module:
    config = BERT_LARGE if size == "full" else BertConfig(2, 32, 4, vocabulary=101, context=16)
    return Bert(config, head="classification")


def _sentences(size: Size) -> Batch:
    count, length, words = (8, 512, 30522) if size == "full" else (2, 16, 101)
    return torch.randint(words, (count, length)), torch.randint(2, (count,))


def _llama(size: Size) -> nn.Module:
    if size == "full":
        return Llama(layers=32, hidden=4096, heads=32, kv_heads=8, inner=14336, vocabulary=128256)
    return Llama(layers=2, hidden=32, heads=4, kv_heads=2, inner=64, vocabulary=101)


def _vit(size: Size) -> nn.Module:
    if size == "full":
        return vision.VisionTransformer(layers=12, hidden=768, heads=12, patch=16, image=224)
    return vision.VisionTransformer(layers=2, hidden=32, heads=4, patch=8, image=32, classes=10)


def _masks(size: Size) -> Batch:
    count, pixels = (4, 512) if size == "full" else (1, 32)
    return torch.rand(count, 3, pixels, pixels), torch.randint(2, (count, pixels, pixels))


def _experts(size: Size) -> LightningModule:
    full = {"hidden": 4096, "inner": 14336, "experts": 8, "experts_per_token": 2}
    tiny = {"hidden": 16, "inner": 32, "experts": 4, "experts_per_token": 2}
    return Supervised(ExpertLayer(**(full if size == "full" else tiny)), _squared_error, adamw)


def _squared_error(network: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(network(batch[0]), batch[1])


def _vectors(size: Size) -> Batch:
    shape = (1, 4096, 4096) if size == "full" else (2, 8, 16)
    return torch.rand(shape), torch.rand(shape)


def _sized(full: Callable[[], nn.Module], tiny: Callable[[], nn.Module]) -> Callable[[Size], nn.Module]:
    return lambda size: full() if size == "full" else tiny()


def _unet(size: Size) -> LightningModule:
    return Supervised(_UNET(size), classification_loss, momentum)


def _unet_parameters() -> int:
    def convolution(taps: int, inputs: int, outputs: int) -> int:
        return taps * inputs * outputs + outputs

    widths = [64, 128, 256, 512, 1024]
    down = sum(convolution(9, a, b) + convolution(9, b, b) for a, b in zip([3, *widths], widths, strict=False))
    up = sum(convolution(4, 2 * w, w) + convolution(9, 2 * w, w) + convolution(9, w, w) for w in widths[:-1])
    return down + up + convolution(1, 64, 2)


_RESNET = _sized(ResNet50, lambda: ResNet50((1, 1, 1, 1), width=8, classes=10))
_VGG16 = _sized(
    lambda: classifiers.vgg(classifiers.VGG16), lambda: classifiers.vgg(classifiers.VGG16, divisor=32, classes=10)
)
_VGG19 = _sized(
    lambda: classifiers.vgg(classifiers.VGG19), lambda: classifiers.vgg(classifiers.VGG19, divisor=32, classes=10)
)
_ALEXNET = _sized(classifiers.alexnet, lambda: classifiers.alexnet(divisor=16, classes=10))
_GOOGLENET = _sized(classifiers.googlenet, lambda: classifiers.googlenet(divisor=8, classes=10))
_UNET = _sized(vision.UNet, lambda: vision.UNet(width=4))
_GPT2 = _sized(lambda: Gpt(GPT2_SMALL), lambda: Gpt(TINY))


def _gan(size: Size) -> LightningModule:
    return Dcgan(width=64 if size == "full" else 4)


def _real_images(size: Size) -> Batch:
    return (torch.rand(64 if size == "full" else 2, 3, 64, 64),)


_FROM_TORCHVISION = "torchvision's table of weights"

WORKLOADS: Final = {  # Workloads by name
    workload.name: workload
    for workload in (
        Workload("resnet50", _classifier(_RESNET), _images(32, 224, 32), 25_557_032, _FROM_TORCHVISION),
        Workload("inception_v3", _inception, _images(32, 299, 299), 27_161_264, _FROM_TORCHVISION),
        # Encoder layers of 3 152 384, decoder layers of 4 204 032, and 37 000 words of 512.
        Workload(
            "transformer",
            _transformer,
            _translation(32, 50, 37000, by_step=False),
            6 * 3_152_384 + 6 * 4_204_032 + 37_000 * 512,
            "by hand; Vaswani et al. say 65 million",
        ),
        Workload("gnmt", _gnmt, _translation(16, 25, 31800, by_step=True), 159_605_817, "published training logs"),
        Workload("dcgan", _gan, _real_images, 3_576_704 + 2_765_568, "PyTorch's tutorial"),
        Workload("vgg16", _classifier(_VGG16), _images(32, 224, 32), 138_357_544, _FROM_TORCHVISION),
        Workload("vgg19", _classifier(_VGG19), _images(32, 224, 32), 143_667_240, _FROM_TORCHVISION),
        Workload("alexnet", _classifier(_ALEXNET), _images(128, 224, 64), 61_100_840, _FROM_TORCHVISION),
        Workload("googlenet", _classifier(_GOOGLENET), _images(32, 224, 32), 6_624_904, _FROM_TORCHVISION),
        # Two convolutions with norms; GRU layers of 2 x 3 x 800 x (inputs + 800 + 2); a classifier.
        Workload(
            "deep_speech",
            _deep_speech,
            _speech,
            (32 * 451 + 32 + 64) + (32 * 32 * 231 + 32 + 64) + 4800 * (32 * 41 + 802) + 4 * 4800 * 2402 + 1601 * 29,
            "by hand",
        ),
        # Tables; 512-512-64; 64 + 36 products to 1024-1024-1024-1.
        Workload(
            "dlrm",
            _dlrm,
            _clicks,
            8 * 1_000_000 * 64 + 513 * 512 + 513 * 64 + 101 * 1024 + 2 * 1025 * 1024 + 1025,
            "by hand",
        ),
        Workload("bert_large", _language(_bert), _sentences, 335_141_888 + 2 * 1025, "bert-large-uncased, classifier"),
        Workload("gpt2", _language(_GPT2), _tokens(8, 1024, 50257), 124_439_808, "gpt2"),
        Workload("llama", _language(_llama), _tokens(1, 2048, 128256), 8_030_261_248, "Meta-Llama-3-8B"),
        Workload("vit", _classifier(_vit), _images(32, 224, 32), 86_567_656, _FROM_TORCHVISION),
        # Pairs of 3x3 convolutions down and up, 2x2 transposed ones, one 1x1: 9 x (inputs x outputs) + outputs each.
        Workload("unet", _unet, _masks, _unet_parameters(), "by hand; Ronneberger et al.'s has 31.0 million"),
        Workload("experts", _experts, _vectors, 8 * 3 * 4096 * 14336 + 4096 * 8, "by hand; a layer of Mixtral-8x7B"),
    )
}
