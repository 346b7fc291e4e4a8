"""Name operations that are timed as a copy of their tensors though they may compute far more.

An operation without a translator is timed by the bytes that it touches. That is right for the calls of the tables in
`traffic.py`; of any other, such as an operator of one's own, nothing is known but its tensors, so its interval reaches
far up and it is named with its share of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.translation import WorkItem

UNKNOWN_SPREAD: Final = 10.0
"""Extra factor upwards around an operation of which only the bytes are known. An assumption: a factorisation of a large
matrix (`linalg.solve`, 4096 x 4096, float32) takes at least 20 times as long as its copy on an H100."""

SHARE_TO_NAME: Final = 0.01
"""Least share of the time for an operation to be named."""

MOST_NAMES: Final = 5


def unknown_operation_notes(items: Sequence[WorkItem], seconds: Array, unmeasured: Array) -> tuple[str, ...]:
    """Name the unknown operations that take a share of the time worth a line.

    Args:
        items: A trace's work.
        seconds: Device seconds, shape (gpus, items).
        unmeasured: Share of each item's time that no measured kernel gave, shape (gpus, items).

    Returns:
        One sentence, with shares over all GPUs; none if every operation is known.
    """
    total = seconds.sum(axis=1)
    spent: dict[str, Array] = {}
    for column, item in enumerate(items):
        for name in item.unknown:
            spent[name] = spent.get(name, np.zeros(len(seconds))) + seconds[:, column] * unmeasured[:, column]
    shares = {name: own / np.where(total > 0, total, 1.0) for name, own in spent.items()}
    named = sorted(
        (name for name, share in shares.items() if share.max(initial=0.0) >= SHARE_TO_NAME),
        key=lambda name: (-float(shares[name].max()), name),
    )
    if not named:
        return ()
    texts = [f"{name} ({_range(shares[name])} of the time)" for name in named[:MOST_NAMES]]
    others = f" and {len(named) - MOST_NAMES} more" if len(named) > MOST_NAMES else ""
    if len(named) == 1:
        return (f"{texts[0]} is not known; it is timed as a copy of its tensors and may take far longer.",)
    listed = ", ".join(texts) + others
    return (f"{listed} are not known; they are timed as copies of their tensors and may take far longer.",)


def _range(shares: Array) -> str:
    least, most = round(100 * float(shares.min())), round(100 * float(shares.max()))
    return f"{most} %" if least == most else f"{least}–{most} %"  # noqa: RUF001 (an en dash is meant)
