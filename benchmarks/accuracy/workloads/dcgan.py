"""DCGAN: a generator of images of 64 x 64 out of noise, and the discriminator that it learns from.

Example::

    logits = discriminator(64)(generator(64)(torch.randn(8, NOISE, 1, 1)))
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

NOISE = 100


def generator(width: int) -> nn.Module:
    """Noise (batch, 100, 1, 1) to images (batch, 3, 64, 64)."""
    widths = [NOISE, width * 8, width * 4, width * 2, width]
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        stride, padding = (1, 0) if index == 0 else (2, 1)
        layers.append(nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False))
        layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


def discriminator(width: int) -> nn.Module:
    """Images (batch, 3, 64, 64) to a logit each."""
    widths = [3, width, width * 2, width * 4, width * 8]
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        layers.append(nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False))
        layers += [nn.BatchNorm2d(outputs)] if index else []
        layers.append(nn.LeakyReLU(0.2, inplace=True))
    return nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4, bias=False), nn.Flatten(0))
