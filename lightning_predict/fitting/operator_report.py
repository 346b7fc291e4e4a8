"""The report on single operations in the terminal, for every command that trains or scores weights.

Held-out problems beside simpler predictors, GPUs that were left out, operations that are predicted through others, and
what is to be reached. Example::

    print_operators(scores, manifest, detours, Console(width=WIDTH))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console

from lightning_predict.fitting.detours import DetourScore, detour_table
from lightning_predict.fitting.evaluation_reach import reach_table
from lightning_predict.fitting.operator_reach import operator_goals
from lightning_predict.fitting.scores import Score, score_table
from lightning_predict.fitting.unseen import unseen_table
from lightning_predict.weights.manifest import Manifest

WIDTH: Final = 220
"""Columns of the printed tables."""


def print_operators(
    scores: Sequence[Score], manifest: Manifest | None, detours: Sequence[DetourScore], console: Console
) -> None:
    """Print the report.

    Args:
        scores: Of the weights on held-out problems.
        manifest: What was found in training on GPUs that were left out; None leaves that out.
        detours: Scores of operations without a network; none leaves them out.
        console: Where to.
    """
    console.print(score_table(scores))
    if manifest is not None:
        console.print(unseen_table(manifest))
    if detours:
        console.print(detour_table(detours))
    console.print(reach_table(operator_goals(scores, manifest)))
