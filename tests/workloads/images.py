"""ViT and UNet.

Example::

    logits = VisionTransformer(layers=2, hidden=32, heads=4, patch=8, image=32, classes=10)(images)
"""

import torch
from torch import Tensor, nn


class VisionTransformer(nn.Module):
    """ViT: patches, a class token, pre-norm encoder layers."""

    def __init__(self, *, layers: int, hidden: int, heads: int, patch: int, image: int, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, hidden))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                hidden, heads, 4 * hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm, self.classifier = nn.LayerNorm(hidden), nn.Linear(hidden, classes)

    def forward(self, batch: Tensor) -> Tensor:
        data = self.patches(batch).flatten(2).transpose(1, 2)
        data = torch.cat((self.token.expand(len(data), -1, -1), data), dim=1) + self.positions
        for layer in self.layers:
            data = layer(data)
        result: Tensor = self.classifier(self.norm(data[:, 0]))
        return result


class UNet(nn.Module):
    """U-Net with padded convolutions: four levels down, four up, shortcuts across."""

    def __init__(self, *, width: int = 64, classes: int = 2) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        self.down = nn.ModuleList(_pair(*pair) for pair in zip((3, *widths), widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.join = nn.ModuleList(_pair(2 * w, w) for w in reversed(widths[:-1]))
        self.pool, self.classifier = nn.MaxPool2d(2), nn.Conv2d(width, classes, 1)

    def forward(self, batch: Tensor) -> Tensor:
        """Logits by pixel, (batch, height, width, classes)."""
        data, kept = self.down[0](batch), []
        for level in self.down[1:]:
            kept.append(data)
            data = level(self.pool(data))
        for rise, join in zip(self.up, self.join, strict=True):
            data = join(torch.cat((kept.pop(), rise(data)), dim=1))
        result: Tensor = self.classifier(data).movedim(1, -1)
        return result


def _pair(inputs: int, outputs: int) -> nn.Module:
    first, second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True))
