"""The argument `weights`: a file or folder of your own weights, or None for the weights of the package."""

from __future__ import annotations

from os import PathLike

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError

AnyWeights = str | PathLike[str] | None


def check_weights(weights: object) -> None:
    """Reject a `weights` argument that is no path."""
    if weights is not None and not isinstance(weights, str | PathLike):
        raise InvalidArgumentError(f"weights={shown(weights)} is not a file or a folder of weights.")
