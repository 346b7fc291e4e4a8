"""What modules of other projects are trained with: losses of rows of eight numbers."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Loss = Callable[[nn.Module, Tensor], Tensor]


def squares(module: nn.Module, batch: Tensor) -> Tensor:
    """Take the squares of a module's outputs for rows."""
    return module(batch).square().mean()  # type: ignore[no-any-return]


def images_of(batch: Tensor) -> Tensor:
    """Make images of rows."""
    return nn.functional.interpolate(batch.view(len(batch), 1, 2, 4).expand(-1, 3, -1, -1), size=(64, 64))


def squares_of_images(module: nn.Module, batch: Tensor) -> Tensor:
    """Take the squares of a module's outputs for images."""
    return squares(module, images_of(batch))


def squares_of_series(module: nn.Module, batch: Tensor) -> Tensor:
    """Take the squares of a module's outputs for series of six rows."""
    return squares(module, batch.unsqueeze(1).expand(-1, 6, -1).cumsum(1))


def tokens_of(batch: Tensor) -> Tensor:
    """Make words of a vocabulary of 64 of rows."""
    return (batch.abs() * 8).long().clamp(max=63)


def next_word(module: nn.Module, batch: Tensor) -> Tensor:
    """Foretell each word by those before it."""
    tokens = tokens_of(batch)
    return nn.functional.cross_entropy(module(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
