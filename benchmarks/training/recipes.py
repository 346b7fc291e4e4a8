"""Recipes, one per family: training length, random shapes to regularise the model, and the rows that are scored.

Example::

    >>> RECIPES["matmul_half"].scored_from_seconds
    4e-06
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.training.doublings import ShapeRange
from lightning_predict.kernels.operations import NetworkSpec, network_specs
from lightning_predict.own_weights.training.networks import TrainingPlan
from lightning_predict.own_weights.training.tables import Group

RECIPE_NAME: Final = "utilisation-4"
DATA_CENTRE_BLACKWELL: Final = ("B200-SXM-180GB", "B300-SXM-288GB", "GB200", "GB300")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The recipe by which one family is trained."""

    family: NetworkSpec  # The family
    base: TrainingPlan  # Plan of the base
    own: TrainingPlan  # Plan of a GPU's own weights
    # Groups of GPUs that are left out together: alike ones must not stand in for each other
    folds: tuple[tuple[str, ...], ...]
    scored_from_seconds: float  # Kernels shorter than this are not scored
    scored_calls_from_seconds: float  # Timed calls shorter than this show the launch, and are not scored
    # Families of the same features whose measurements its bases learn from as well: the effect of a GPU's clock, caches
    # and multiprocessors on a matmul is similar in all dtypes, and more GPUs show it
    kin: tuple[NetworkSpec, ...] = ()
    # Plan of a base of the family alone, from which own weights are tuned; None if the base serves
    start: TrainingPlan | None = None
    fold: TrainingPlan | None = None  # Plan of the bases that leave GPUs out; None takes the base's
    sources: frozenset[str] | None = None  # Sources that it is fitted to; None takes all
    shapes: tuple[ShapeRange, ...] = ()  # Where shapes are drawn that must not get faster by growing
    # Tiny shapes of the family (operation, shape words), for sources whose short rows show only the launch; empty where
    # the tables have short rows
    shortest: tuple[tuple[str, Mapping[str, tuple[float, ...]]], ...] = ()
    shortest_seconds: float = 2.5e-6  # Device time of each of them

    def serves(self, group: Group) -> bool:
        """Return whether measurements are of this family."""
        return self._takes(group, self.family)

    def learns_from(self, group: Group) -> bool:
        """Return whether the family's bases are fitted to measurements."""
        return self._takes(group, self.family, *self.kin)

    def scored_from(self, group: Group) -> float:
        """Return the seconds from which a group's rows are scored."""
        return self.scored_calls_from_seconds if group.floor_seconds > 0 else self.scored_from_seconds

    def _takes(self, group: Group, *families: NetworkSpec) -> bool:
        """Return whether measurements are of one of the families, from a source that is taken."""
        operation, dtype = group.batch.operation, group.batch.dtype
        is_taken = self.sources is None or group.source in self.sources
        return is_taken and any(operation in family.operations and dtype in family.dtypes for family in families)


def _products(*pairs: tuple[str, str]) -> tuple[ShapeRange, ...]:
    """Draw matrix products of 1 to 65536 a side, as layers and as batches of 1 to 1024."""
    sides = {"m": (1.0, 65536.0), "n": (1.0, 65536.0), "k": (1.0, 65536.0)}
    batched = {"b": (1.0, 1024.0), "m": (1.0, 4096.0), "n": (1.0, 4096.0), "k": (1.0, 4096.0)}
    return tuple(
        ShapeRange(operation=operation, dtype=dtype, sides=batched if operation == "bmm" else sides, fixed={})
        for operation, dtype in pairs
    )


def _convolutions(*dtypes: str) -> tuple[ShapeRange, ...]:
    """Draw convolutions of the usual filters, forward and backward."""
    return tuple(
        ShapeRange(
            operation=operation,
            dtype=dtype,
            sides={
                "batch": (1.0, 512.0),
                "in_channels": (1.0, 2048.0),
                "out_channels": (1.0, 2048.0),
                "image_size": (8.0, 256.0),
            },
            fixed={"kernel_size": (1.0, 3.0, 3.0, 5.0, 7.0), "stride": (1.0, 1.0, 2.0), "padding": (1.0,)},
        )
        for dtype in dtypes
        for operation in network_specs()["convolution"].operations
    )


_VECTORS: Final = tuple(
    ShapeRange(operation=operation, dtype="float32", sides={"rows": (1.0, 1e6), "cols": (1.0, 65536.0)}, fixed={})
    for operation in ("add", "relu", "gelu", "softmax", "layer_norm")
)
_TINY: Final = (1.0, 4.0, 16.0, 32.0)
_FLOAT32_FOLDS: Final = (
    ("P4",),
    ("P100-PCIe-16GB",),
    ("V100-PCIe-32GB",),
    ("T4",),
    ("A100-PCIe-40GB", "A100-PCIe-80GB"),
    ("H100-SXM-80GB",),
    ("L4",),
)
_BFLOAT16_FOLDS: Final = (
    ("A100-SXM-80GB",),
    ("H100-SXM-80GB",),
    ("H200-SXM-141GB",),
    ("L40S",),
    ("RTX-PRO-6000-Server",),
    DATA_CENTRE_BLACKWELL,
)

_A100: Final = ("A100-PCIe-40GB", "A100-PCIe-80GB", "A100-SXM-40GB", "A100-SXM-80GB")
_V100: Final = ("V100-PCIe-32GB", "V100-SXM2-16GB")
_PRODUCT_FOLDS: Final = (
    ("P4",),
    ("P100-PCIe-16GB",),
    _V100,
    ("T4",),
    _A100,
    ("H100-SXM-80GB",),
    ("H200-SXM-141GB",),
    ("L4",),
    ("L40S",),
    ("RTX-PRO-6000-Server",),
    DATA_CENTRE_BLACKWELL,
)
# Small, short and strongly decayed, with little or no sight of the machine's own figures: anything else that the base
# learns is specific to the training GPUs, which have their own weights. Chosen by the errors on GPUs that were left
# out.
_PRODUCT_BASE: Final = TrainingPlan(
    steps=500, hidden=(64, 64), members=4, weight_decay=1.0, machine_weight=0.3, group_rows=4000
)
_BLIND_BASE: Final = replace(_PRODUCT_BASE, machine_weight=0.0, group_rows=None)
_PRODUCT_SHAPES: Final = _products(
    ("linear", "bfloat16"),
    ("linear", "float16"),
    ("bmm", "float16"),
    ("bmm", "bfloat16"),
    ("linear", "float32"),
    ("bmm", "float32"),
)
_TINY_PRODUCTS: Final = (
    ("linear", {"b": (1.0,), "m": _TINY, "n": _TINY, "k": _TINY}),
    ("bmm", {"b": _TINY, "m": _TINY, "n": _TINY, "k": _TINY}),
)

_CONVOLUTION_BASE: Final = TrainingPlan(steps=4000, batch_rows=512, hidden=(64, 64, 64), members=4, weight_decay=0.03)
_CONVOLUTION_OWN: Final = TrainingPlan(steps=800, batch_rows=512, learning_rate=1e-3, weight_decay=0.03)

RECIPES: Final[Mapping[str, Recipe]] = {  # Recipes by family name
    recipe.family.name: recipe
    for recipe in (
        Recipe(
            family=network_specs()["matmul_half"],
            kin=(network_specs()["matmul_single"],),
            shapes=_PRODUCT_SHAPES,
            base=_PRODUCT_BASE,
            start=TrainingPlan(steps=8000, batch_rows=2048),
            own=TrainingPlan(steps=2500, learning_rate=1e-3),
            folds=_PRODUCT_FOLDS,
            shortest=_TINY_PRODUCTS,
            scored_from_seconds=4e-6,
            scored_calls_from_seconds=2e-4,
        ),
        Recipe(
            family=network_specs()["matmul_single"],
            kin=(network_specs()["matmul_half"],),
            shapes=_PRODUCT_SHAPES,
            base=_PRODUCT_BASE,
            start=TrainingPlan(steps=6000),
            own=TrainingPlan(steps=4000, learning_rate=1e-3),
            folds=_PRODUCT_FOLDS,
            shortest=_TINY_PRODUCTS,
            scored_from_seconds=0.0,
            scored_calls_from_seconds=2e-4,
        ),
        Recipe(
            family=network_specs()["convolution"],
            shapes=_convolutions("float32"),
            base=_CONVOLUTION_BASE,
            start=_CONVOLUTION_BASE,
            own=_CONVOLUTION_OWN,
            fold=TrainingPlan(steps=1500, batch_rows=512, hidden=(64, 64, 64), members=4, weight_decay=0.03),
            folds=_FLOAT32_FOLDS[:5],
            scored_from_seconds=0.0,
            scored_calls_from_seconds=2e-4,
            shortest=(
                (
                    "conv2d",
                    {
                        "batch": (1.0,),
                        "in_channels": (1.0, 4.0, 16.0),
                        "out_channels": (1.0, 4.0, 16.0),
                        "kernel_size": (
                            3.0,
                        ),  # as all that were timed by calls: networks must know what they never saw
                        "padding": (1.0,),
                        "image_size": (1.0, 4.0, 8.0),
                    },
                ),
            ),
            shortest_seconds=6e-6,
        ),
        # A few hundred rows of an old cuDNN on Volta and Turing would represent all GPUs, so only own measurements
        # count.
        Recipe(
            family=network_specs()["convolution_tensor"],
            sources=frozenset({"own"}),
            shapes=_convolutions("bfloat16", "float16"),
            base=_CONVOLUTION_BASE,
            own=_CONVOLUTION_OWN,
            folds=(),
            scored_from_seconds=4e-6,
            scored_calls_from_seconds=2e-4,
        ),
        Recipe(
            family=network_specs()["vector"],
            shapes=_VECTORS,
            base=_BLIND_BASE,
            start=TrainingPlan(steps=4000),
            own=TrainingPlan(steps=1200, learning_rate=1e-3),
            folds=_FLOAT32_FOLDS,
            scored_from_seconds=0.0,
            scored_calls_from_seconds=1e-4,
            shortest=tuple(
                (operation, {"rows": (1.0, 4.0, 16.0), "cols": (16.0, 64.0, 256.0)})
                for operation in ("add", "relu", "gelu", "softmax", "layer_norm")
            ),
        ),
    )
}
