"""How images lie in memory: channels first (N, C, H, W), or channels last, as tensor cores want them.

A convolution whose images are channels last bears the argument `channels_last`, whichever way it was recorded.
Example::

    >>> is_channels_last((2, 3, 8, 8), (192, 64, 8, 1)), is_channels_last((2, 3, 8, 8), (192, 1, 24, 3))
    (False, True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

CHANNELS_LAST: Final = "channels_last"
"""Argument of a convolution that reads images in this layout; left out for channels first."""

IMAGES_AT: Final[Mapping[str, int]] = {
    "aten::convolution": 0,
    "aten::_convolution": 0,
    "aten::cudnn_convolution": 0,
    "aten::convolution_backward": 1,
}
"""Convolutions, with the position of the images among their arguments."""


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True where neighbours in memory are channels; False where both layouts are the same, too.

    Args:
        shape: Sizes (N, C, *sizes) in two or three dimensions.
        strides: Elements between neighbours in each dimension.
    """
    if len(shape) not in (4, 5) or len(strides) != len(shape):
        return False
    return shape[1] > 1 and math.prod(shape[2:]) > 1 and strides[1] == 1
