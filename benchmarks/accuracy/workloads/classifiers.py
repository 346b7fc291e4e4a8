"""Image classifiers of 2012 to 2015: AlexNet, VGG, GoogLeNet.

`divisor` divides the channels of the published sizes, for steps on the CPU. Example::

    logits = alexnet()(torch.zeros(2, 3, 224, 224))  # (2, 1000)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

VGG16: Final = (2, 2, 3, 3, 3)
VGG19: Final = (2, 2, 4, 4, 4)


def vgg(blocks: Sequence[int], *, divisor: int = 1, classes: int = 1000) -> nn.Module:
    """VGG without batch norm: 3x3 convolutions in five blocks, three linear layers."""
    layers: list[nn.Module] = []
    channels = 3
    for count, width in zip(blocks, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width // divisor, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width // divisor
        layers.append(nn.MaxPool2d(2))
    inner = 4096 // divisor
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    layers += [nn.Linear(channels * 49, inner), nn.ReLU(inplace=True), nn.Dropout()]
    layers += [nn.Linear(inner, inner), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(inner, classes)]
    return nn.Sequential(*layers)


def alexnet(*, divisor: int = 1, classes: int = 1000) -> nn.Module:
    """AlexNet on one GPU ("one weird trick"): five convolutions, three linear layers."""
    layers: list[nn.Module] = []
    channels = 3
    for width, kernel, stride, padding, pools in (
        (64, 11, 4, 2, True),
        (192, 5, 1, 2, True),
        (384, 3, 1, 1, False),
        (256, 3, 1, 1, False),
        (256, 3, 1, 1, True),
    ):
        layers += [nn.Conv2d(channels, width // divisor, kernel, stride, padding), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(3, 2)] if pools else []
        channels = width // divisor
    inner = 4096 // divisor
    layers += [nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Dropout(), nn.Linear(channels * 36, inner)]
    layers += [nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(inner, inner), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(inner, classes))


def convolution(
    inputs: int, outputs: int, kernel: int | tuple[int, int], **options: int | tuple[int, int]
) -> nn.Module:
    """Convolution, batch norm and ReLU."""
    layer = nn.Conv2d(inputs, outputs, kernel, bias=False, **options)  # type: ignore[arg-type]
    return nn.Sequential(layer, nn.BatchNorm2d(outputs, eps=1e-3), nn.ReLU(inplace=True))


class Branches(nn.Module):
    """Branches over the same input, joined by channel."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, data: Tensor) -> Tensor:
        """All branches of (batch, channels, height, width), joined by channel."""
        return torch.cat([branch(data) for branch in self.branches], dim=1)


def _inception(inputs: int, widths: Sequence[int]) -> nn.Module:
    """GoogLeNet's module: 1x1; 1x1 then 3x3, twice; pool then 1x1 (both larger kernels are 3x3, as ported widely)."""
    one, before, three, before_five, five, pooled = widths
    return Branches(
        convolution(inputs, one, 1),
        nn.Sequential(convolution(inputs, before, 1), convolution(before, three, 3, padding=1)),
        nn.Sequential(convolution(inputs, before_five, 1), convolution(before_five, five, 3, padding=1)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), convolution(inputs, pooled, 1)),
    )


def googlenet(*, divisor: int = 1, classes: int = 1000) -> nn.Module:
    """GoogLeNet with batch norm, without the auxiliary classifiers."""
    stem = [64 // divisor, 64 // divisor, 192 // divisor]
    layers: list[nn.Module] = [convolution(3, stem[0], 7, stride=2, padding=3), nn.MaxPool2d(3, 2, ceil_mode=True)]
    layers += [convolution(stem[0], stem[1], 1), convolution(stem[1], stem[2], 3, padding=1)]
    channels = stem[2]
    for stage in (
        ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
        (
            (192, 96, 208, 16, 48, 64),
            (160, 112, 224, 24, 64, 64),
            (128, 128, 256, 24, 64, 64),
            (112, 144, 288, 32, 64, 64),
            (256, 160, 320, 32, 128, 128),
        ),
        ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
    ):
        layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        for published in stage:
            widths = [max(width // divisor, 1) for width in published]
            layers.append(_inception(channels, widths))
            channels = widths[0] + widths[2] + widths[4] + widths[5]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(channels, classes))
