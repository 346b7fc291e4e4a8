"""Inception v3 with its auxiliary classifier, for images of 299 x 299.

Example::

    logits, auxiliary = InceptionV3()(torch.zeros(2, 3, 299, 299))
"""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.accuracy.workloads.classifiers import Branches, convolution


def _a(inputs: int, pooled: int, d: int) -> nn.Module:
    return Branches(
        convolution(inputs, 64 // d, 1),
        nn.Sequential(convolution(inputs, 48 // d, 1), convolution(48 // d, 64 // d, 5, padding=2)),
        nn.Sequential(
            convolution(inputs, 64 // d, 1),
            convolution(64 // d, 96 // d, 3, padding=1),
            convolution(96 // d, 96 // d, 3, padding=1),
        ),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), convolution(inputs, pooled // d, 1)),
    )


def _b(inputs: int, d: int) -> nn.Module:
    return Branches(
        convolution(inputs, 384 // d, 3, stride=2),
        nn.Sequential(
            convolution(inputs, 64 // d, 1),
            convolution(64 // d, 96 // d, 3, padding=1),
            convolution(96 // d, 96 // d, 3, stride=2),
        ),
        nn.MaxPool2d(3, 2),
    )


def _c(inputs: int, inner: int, d: int) -> nn.Module:
    inner, out = inner // d, 192 // d
    row, column = (0, 3), (3, 0)
    return Branches(
        convolution(inputs, out, 1),
        nn.Sequential(
            convolution(inputs, inner, 1),
            convolution(inner, inner, (1, 7), padding=row),
            convolution(inner, out, (7, 1), padding=column),
        ),
        nn.Sequential(
            convolution(inputs, inner, 1),
            convolution(inner, inner, (7, 1), padding=column),
            convolution(inner, inner, (1, 7), padding=row),
            convolution(inner, inner, (7, 1), padding=column),
            convolution(inner, out, (1, 7), padding=row),
        ),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), convolution(inputs, out, 1)),
    )


def _d(inputs: int, d: int) -> nn.Module:
    return Branches(
        nn.Sequential(convolution(inputs, 192 // d, 1), convolution(192 // d, 320 // d, 3, stride=2)),
        nn.Sequential(
            convolution(inputs, 192 // d, 1),
            convolution(192 // d, 192 // d, (1, 7), padding=(0, 3)),
            convolution(192 // d, 192 // d, (7, 1), padding=(3, 0)),
            convolution(192 // d, 192 // d, 3, stride=2),
        ),
        nn.MaxPool2d(3, 2),
    )


def _e(inputs: int, d: int) -> nn.Module:
    def split(channels: int) -> nn.Module:
        return Branches(
            convolution(channels, 384 // d, (1, 3), padding=(0, 1)),
            convolution(channels, 384 // d, (3, 1), padding=(1, 0)),
        )

    return Branches(
        convolution(inputs, 320 // d, 1),
        nn.Sequential(convolution(inputs, 384 // d, 1), split(384 // d)),
        nn.Sequential(convolution(inputs, 448 // d, 1), convolution(448 // d, 384 // d, 3, padding=1), split(384 // d)),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), convolution(inputs, 192 // d, 1)),
    )


class InceptionV3(nn.Module):
    """Inception v3.

    Args:
        divisor: Divides the published channels.
        classes: Classes.
    """

    def __init__(self, *, divisor: int = 1, classes: int = 1000) -> None:
        super().__init__()
        d = divisor
        self.first = nn.Sequential(
            convolution(3, 32 // d, 3, stride=2),
            convolution(32 // d, 32 // d, 3),
            convolution(32 // d, 64 // d, 3, padding=1),
            nn.MaxPool2d(3, 2),
            convolution(64 // d, 80 // d, 1),
            convolution(80 // d, 192 // d, 3),
            nn.MaxPool2d(3, 2),
            _a(192 // d, 32, d),
            _a(256 // d, 64, d),
            _a(288 // d, 64, d),
            _b(288 // d, d),
            *(_c(768 // d, inner, d) for inner in (128, 160, 160, 192)),
        )
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, 3),
            convolution(768 // d, 128 // d, 1),
            convolution(128 // d, 768 // d, 5),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(768 // d, classes),
        )
        self.second = nn.Sequential(
            _d(768 // d, d),
            _e(1280 // d, d),
            _e(2048 // d, d),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(),
            nn.Linear(2048 // d, classes),
        )

    def forward(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the main and of the auxiliary classifier."""
        data = self.first(batch)
        return self.second(data), self.auxiliary(data)
