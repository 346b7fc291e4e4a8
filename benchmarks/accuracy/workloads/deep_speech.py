"""A DeepSpeech-like recogniser of speech.

Example::

    letters = DeepSpeech(channels=32, hidden=800, layers=5)(torch.zeros(2, 1, 161, 100))  # (2, 50, 29)
"""

from __future__ import annotations

from torch import Tensor, nn


class DeepSpeech(nn.Module):
    """Two convolutions over (frequency, time), bidirectional GRUs, and letters for each frame."""

    def __init__(self, *, channels: int, hidden: int, layers: int, frequencies: int = 161, letters: int = 29) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, channels, (41, 11), (2, 2), (20, 5)),
            nn.BatchNorm2d(channels),
            nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(channels, channels, (21, 11), (2, 1), (10, 5)),
            nn.BatchNorm2d(channels),
            nn.Hardtanh(0, 20, inplace=True),
        )
        rows = (frequencies + 3) // 4  # both strides are 2
        self.recurrent = nn.GRU(channels * rows, hidden, layers, bidirectional=True, batch_first=True)
        self.classifier = nn.Linear(2 * hidden, letters)

    def forward(self, spectra: Tensor) -> Tensor:
        """Logits (batch, frames, letters) of spectra (batch, 1, frequencies, time)."""
        data = self.convolutions(spectra).flatten(1, 2).transpose(1, 2)
        data, _ = self.recurrent(data)
        result: Tensor = self.classifier(data)
        return result
