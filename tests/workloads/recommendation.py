"""DLRM: embedding bags and a perceptron over dense features, all pairs multiplied, and a perceptron over the products.

Example::

    logits = Dlrm(tables=8, rows=1000, width=16, bottom=(64, 32), top=(64,))(dense, indices)
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def perceptron(widths: Sequence[int]) -> nn.Module:
    """Linear layers with ReLU behind each."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """DLRM.

    Args:
        tables: Embedding tables.
        rows: Rows of each.
        width: Width of an embedding.
        bottom: Widths of the dense features' perceptron; `width` follows.
        top: Hidden widths of the last perceptron; one logit follows.
    """

    pairs: Tensor

    def __init__(self, *, tables: int, rows: int, width: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = perceptron((*bottom, width))
        vectors = tables + 1
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, offset=-1), persistent=False)
        self.top = perceptron((width + vectors * (vectors - 1) // 2, *top))
        self.logit = nn.Linear(top[-1], 1)

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        """A logit a sample, of dense features (batch, features) and look-ups (tables, batch, look-ups)."""
        embedded = [table(rows) for table, rows in zip(self.tables, indices, strict=True)]
        bottom = self.bottom(dense)
        vectors = torch.stack((bottom, *embedded), dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        result: Tensor = self.logit(self.top(torch.cat((bottom, products), dim=1))).flatten()
        return result
