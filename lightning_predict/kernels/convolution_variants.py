"""Convolutions in one and three dimensions, and transposed ones, as the two-dimensional convolution each amounts to.

A line is an image of height 1. A volume folds its output depth into the batch and its taps' depth into the channels,
which keeps the FLOPs. A transposed convolution computes what the gradient to the input of a convolution does: its input
is that convolution's output. Example::

    >>> from lightning_predict.kernels.operations import problem_batch
    >>> batch = problem_batch("conv1d", "float32", batch=1, in_channels=2, out_channels=3, length=8, kernel_size=3)
    >>> float(batch.flops[0])  # 2 x 3 x 6 positions x 2 x 3 taps
    216.0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lightning_predict.kernels.convolution import output_size
from lightning_predict.kernels.operations import Array, Columns, OperationKind, operation_kind, register

PASSES: Final = ("", "_backward_input", "_backward_weight")
_SHARED: Final = ("batch", "in_channels", "out_channels", "groups")
_SETTINGS: Final = ("kernel", "stride", "padding", "dilation")
_PLANE: Final = ("height", "width")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A kind of convolution and the two-dimensional one that it amounts to.

    Attributes:
        name: Its name, without the pass.
        sides: Its sides: `height`, `width` and, for a volume, `depth`; none for a line, which has a length.
        as_plane: Its columns as those of `conv2d`.
        plane_passes: Its passes -> those of `conv2d`.
    """

    name: str
    sides: tuple[str, ...]
    as_plane: Callable[[Columns], Columns]
    plane_passes: Mapping[str, str]


def _settings(c: Columns, sides: tuple[str, ...]) -> dict[str, Array]:
    return {f"{setting}_{side}": c[f"{setting}_{side}"] for side in sides for setting in _SETTINGS}


def _line_as_plane(c: Columns) -> Columns:
    one = np.ones_like(c["length"])
    across = {"height": one, "kernel_height": one, "stride_height": one, "dilation_height": one}
    along = {"kernel_width": "kernel_size", "stride_width": "stride", "dilation_width": "dilation"}
    along |= {"width": "length", "padding_width": "padding"}
    shared = {word: c[word] for word in _SHARED}
    return {**shared, **across, "padding_height": 0 * one, **{word: c[own] for word, own in along.items()}}


def _volume_as_plane(c: Columns) -> Columns:
    return {
        "batch": c["batch"] * output_size(c, "depth"),
        "in_channels": c["in_channels"] * c["kernel_depth"],
        "out_channels": c["out_channels"],
        "groups": c["groups"],
        **{side: c[side] for side in _PLANE},
        **_settings(c, _PLANE),
    }


def _transposed_as_plane(c: Columns) -> Columns:
    def written(side: str) -> Array:
        reach = c[f"dilation_{side}"] * (c[f"kernel_{side}"] - 1) + 1 + c[f"padding_output_{side}"]
        size: Array = np.maximum((c[side] - 1) * c[f"stride_{side}"] - 2 * c[f"padding_{side}"] + reach, 1)
        return size

    return {
        "batch": c["batch"],
        "in_channels": c["out_channels"],
        "out_channels": c["in_channels"],
        "groups": c["groups"],
        **{side: written(side) for side in _PLANE},
        **_settings(c, _PLANE),
    }


_SAME: Final = {name: name for name in PASSES}
VARIANTS: Final = (
    Variant(name="conv1d", sides=(), as_plane=_line_as_plane, plane_passes=_SAME),
    Variant(name="conv3d", sides=("depth", *_PLANE), as_plane=_volume_as_plane, plane_passes=_SAME),
    Variant(
        name="conv_transpose2d",
        sides=_PLANE,
        as_plane=_transposed_as_plane,
        plane_passes={"": "_backward_input", "_backward_input": "", "_backward_weight": "_backward_weight"},
    ),
)
"""`conv2d` itself is in `convolution.py`."""


def plane_columns(variant: Variant, columns: Columns) -> Columns:
    """Columns of the two-dimensional convolution, in the order of its words."""
    plane = variant.as_plane(columns)
    return {word: plane[word] for word in operation_kind("conv2d").words}


def _elements(variant: Variant, c: Columns) -> Array:
    """Input, filters and output once each; folding a volume must not count its input for every tap of depth."""
    plane = plane_columns(variant, c)
    if variant.name != "conv3d":
        return operation_kind("conv2d").elements_moved(plane)
    volume = c["batch"] * c["in_channels"] * c["depth"] * c["height"] * c["width"]
    image = plane["batch"] * plane["in_channels"] * plane["height"] * plane["width"]
    folded: Array = operation_kind("conv2d").elements_moved(plane) - image + volume
    return folded


def _words(variant: Variant) -> tuple[tuple[str, ...], dict[str, float | str], dict[str, tuple[str, ...]]]:
    """Shape words, their defaults, and the spellings that set several of them."""
    if not variant.sides:
        words = ("batch", "in_channels", "out_channels", "length", "kernel_size", "stride", "padding", "dilation")
        return (*words, "groups"), {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}, {"image_size": ("length",)}
    first, *others = variant.sides
    settings = [f"{setting}_{side}" for setting in _SETTINGS for side in variant.sides]
    defaults: dict[str, float | str] = {f"stride_{first}": 1, f"dilation_{first}": 1, "groups": 1}
    defaults |= dict.fromkeys(others, first)
    for setting in ("kernel", "stride", "dilation"):
        defaults |= dict.fromkeys((f"{setting}_{side}" for side in others), f"{setting}_{first}")
    defaults |= {f"padding_{side}": 0 for side in variant.sides}
    spellings = {"image_size": variant.sides, "kernel_size": tuple(f"kernel_{side}" for side in variant.sides)}
    spellings |= {name: tuple(f"{name}_{side}" for side in variant.sides) for name in ("stride", "padding", "dilation")}
    if variant.name == "conv_transpose2d":
        extra = tuple(f"padding_output_{side}" for side in variant.sides)
        settings += extra
        defaults |= dict.fromkeys(extra, 0)
        spellings["output_padding"] = extra
    return ("batch", "in_channels", "out_channels", *variant.sides, *settings, "groups"), defaults, spellings


def _kind(variant: Variant, suffix: str) -> OperationKind:
    words, defaults, spellings = _words(variant)
    plane = operation_kind(f"conv2d{variant.plane_passes[suffix]}")
    least = plane.least_flops or plane.flops
    return OperationKind(
        name=variant.name + suffix,
        words=words,
        defaults=defaults,
        units="tensor",
        flops=lambda c: plane.flops(plane_columns(variant, c)),
        least_flops=lambda c: least(plane_columns(variant, c)),
        elements_moved=lambda c: _elements(variant, c),
        spellings=spellings,
    )


register(*(_kind(variant, suffix) for variant in VARIANTS for suffix in PASSES))
