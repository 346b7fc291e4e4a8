"""NeuMF, neural collaborative filtering: a product of embeddings next to a perceptron on other embeddings.

Example::

    scores = NeuMf(MOVIELENS_20M)(users, items)  # (pairs, 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class NeuMfConfig:
    """Sizes of a NeuMF; the first of `widths` is the width of the perceptron's joined embeddings."""

    users: int
    items: int
    factors: int = 64
    widths: tuple[int, ...] = (256, 256, 128, 64)
    dropout: float = 0.5


MOVIELENS_20M: Final = NeuMfConfig(users=138493, items=26744)


class NeuMf(nn.Module):
    """Generalised matrix factorisation and a perceptron, joined by one linear layer."""

    def __init__(self, config: NeuMfConfig) -> None:
        super().__init__()
        half = config.widths[0] // 2
        self.product_users, self.product_items = (
            nn.Embedding(count, config.factors) for count in (config.users, config.items)
        )
        self.perceptron_users, self.perceptron_items = (
            nn.Embedding(count, half) for count in (config.users, config.items)
        )
        layers: list[nn.Module] = []
        for inputs, outputs in zip(config.widths, config.widths[1:], strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(config.dropout)]
        self.perceptron = nn.Sequential(*layers)
        self.score = nn.Linear(config.widths[-1] + config.factors, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """A logit (pairs, 1) for users and items, both (pairs,)."""
        product = self.product_users(users) * self.product_items(items)
        joined = torch.cat((self.perceptron_users(users), self.perceptron_items(items)), dim=1)
        result: Tensor = self.score(torch.cat((product, self.perceptron(joined)), dim=1))
        return result
