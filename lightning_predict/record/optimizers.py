"""Optimizers by name, for models by name and for sharded embedding tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerKind:
    """One optimizer."""

    words: str
    # Class in `torch.optim`, or `BlockwiseAdamW` for bitsandbytes' optimizers; None if no named step uses it. `Muon`
    # trains the matrices of layers, and AdamW trains the rest.
    torch_class: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    # Values that it stores for each element and each row of an embedding table; None if no table uses it
    table_values: tuple[int, int] | None = None


OPTIMIZERS: Final[Mapping[str, OptimizerKind]] = {
    "adamw": OptimizerKind(words="AdamW", torch_class="AdamW"),
    "adam": OptimizerKind(words="Adam", torch_class="Adam", table_values=(2, 0)),
    # the values do not affect the time; tables have no momentum
    "sgd": OptimizerKind(
        words="SGD with momentum", torch_class="SGD", options={"lr": 1e-3, "momentum": 0.9}, table_values=(0, 0)
    ),
    "muon": OptimizerKind(words="Muon, and AdamW for embeddings, the last layer and vectors", torch_class="Muon"),
    "adamw_8bit": OptimizerKind(words="AdamW with states in 8 bits", torch_class="BlockwiseAdamW", options={"bits": 8}),
    "paged_adamw_8bit": OptimizerKind(
        words="paged AdamW with states in 8 bits", torch_class="BlockwiseAdamW", options={"bits": 8, "paged": True}
    ),
    "paged_adamw_32bit": OptimizerKind(
        words="paged AdamW", torch_class="BlockwiseAdamW", options={"bits": 32, "paged": True}
    ),
    "adagrad": OptimizerKind(words="Adagrad", table_values=(1, 0)),
    "row_wise_adagrad": OptimizerKind(words="row-wise Adagrad", table_values=(0, 1)),
}
"""Optimizers by name; bitsandbytes' have their names in Hugging Face's `TrainingArguments`."""

STEP_OPTIMIZERS: Final = tuple(name for name, kind in OPTIMIZERS.items() if kind.torch_class is not None)
TABLE_OPTIMIZERS: Final = tuple(name for name, kind in OPTIMIZERS.items() if kind.table_values is not None)
