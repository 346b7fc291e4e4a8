"""ResNet-18 for images of 32 x 32 (He et al., with a 3x3 stem and no pooling), trained by SGD with momentum.

Example::

    trace = cifar_resnet18_trace(128)  # forward, loss, backward and update of 128 images, float32
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

import lightning_predict as lp

STAGES: Final = ((64, 1), (128, 2), (256, 2), (512, 2))  # Channels and stride of the four stages, of two blocks each


class Block(nn.Module):
    """Two 3x3 convolutions with an identity, or with a 1x1 convolution if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_convolution(inputs, outputs, 3, stride), nn.ReLU(), *_convolution(outputs, outputs, 3, 1)
        )
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Sequential(*_convolution(inputs, outputs, 1, stride) if changes else ())

    def forward(self, images: Tensor) -> Tensor:
        """Images (batch, channels, height, width) after the block."""
        return torch.relu(self.layers(images) + self.shortcut(images))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return layer, nn.BatchNorm2d(outputs)


def cifar_resnet18(*, divisor: int = 1, classes: int = 10) -> nn.Module:
    """The network; `divisor` divides its channels, for steps on the CPU."""
    channels = STAGES[0][0] // divisor
    layers: list[nn.Module] = [*_convolution(3, channels, 3, 1), nn.ReLU()]
    for width, stride in STAGES:
        for step in (stride, 1):
            layers.append(Block(channels, width // divisor, step))
            channels = width // divisor
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(channels, classes))


def cifar_resnet18_trace(batch: int) -> lp.Trace:
    """Record a training step of the given number of images on the meta device."""
    with torch.device("meta"):
        model = cifar_resnet18()
        images, labels = torch.empty(batch, 3, 32, 32), torch.empty(batch, dtype=torch.int64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return lp.capture(step, warmup_steps=1, samples_per_step=batch)
