"""ResNet-50 v1.5: the stride of a stage is in the 3x3 convolution.

Example::

    logits = ResNet50()(torch.zeros(2, 3, 224, 224))  # (2, 1000); 25.557 million parameters
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with batch norm, with a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = _EXPANSION * width
        self.branch = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, 4 x width, ...)."""
        data = self.branch(images)
        data += self.shortcut(images)
        result: Tensor = self.activation(data)
        return result


class ResNet50(nn.Module):
    """Stem, four stages of bottlenecks, average pool, classifier.

    Args:
        blocks: Bottlenecks of each stage.
        width: Channels of the stem.
        classes: Classes.
    """

    def __init__(self, blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        channels, stages = width, []
        for stage, count in enumerate(blocks):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                stages.append(Bottleneck(channels, width * 2**stage, stride))
                channels = _EXPANSION * width * 2**stage
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, 3, height, width)."""
        result: Tensor = self.classifier(torch.flatten(self.pool(self.stages(self.stem(images))), 1))
        return result
