"""Table of all changes, which defines their order for equal gains. A new change needs its file and its name here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lightning_predict.advice.attention import FUSED_ATTENTION
from lightning_predict.advice.batch_size import TWICE_THE_BATCH
from lightning_predict.advice.change import Change
from lightning_predict.advice.channels_last import CHANNELS_LAST_CHANGE
from lightning_predict.advice.checkpointing import CHECKPOINTING, NO_CHECKPOINTING
from lightning_predict.advice.compiled import COMPILE
from lightning_predict.advice.embedding import FUSED_TABLES
from lightning_predict.advice.host_changes import CUDA_GRAPHS, FEWER_WAITS, LOADER
from lightning_predict.advice.optimizer import FUSED_OPTIMIZER
from lightning_predict.advice.padding import PADDING
from lightning_predict.advice.precision import PRECISIONS
from lightning_predict.advice.sharing import ACCUMULATION, SHARING
from lightning_predict.base.errors import InvalidArgumentError

CHANGES: Final[Mapping[str, Change]] = {
    change.name: change
    for change in (
        *PRECISIONS,
        CHANNELS_LAST_CHANGE,
        COMPILE,
        TWICE_THE_BATCH,
        ACCUMULATION,
        *SHARING,
        LOADER,
        FEWER_WAITS,
        CUDA_GRAPHS,
        FUSED_OPTIMIZER,
        FUSED_ATTENTION,
        FUSED_TABLES,
        PADDING,
        CHECKPOINTING,
        NO_CHECKPOINTING,
    )
}
"""Changes by name."""


def change_named(name: str) -> Change:
    """Return a change by name.

    Raises:
        InvalidArgumentError: No change has this name.
    """
    if name not in CHANGES:
        raise InvalidArgumentError(f"change={name!r} is not known; choose one of {', '.join(CHANGES)}.")
    return CHANGES[name]
