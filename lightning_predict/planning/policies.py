"""Policies by the names that files and commands use.

Example::

    policy("milp").decide(problem, situation)
"""

from __future__ import annotations

from typing import Final

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.planning.baselines import BASELINES, SHARING_BASELINES
from lightning_predict.planning.heuristic import HeuristicPlanner
from lightning_predict.planning.milp import MilpPlanner
from lightning_predict.planning.records import AbstractPolicy

POLICIES: Final[dict[str, AbstractPolicy]] = {
    "milp": MilpPlanner(),
    "heuristic": HeuristicPlanner(),
    **{rule.name.lower().replace(" ", "-"): rule for rule in (*BASELINES, *SHARING_BASELINES)},
}

PLANNERS: Final = ("milp", "heuristic")
"""Those that weigh costs; the others serve queues."""


def policy(name: str) -> AbstractPolicy:
    """The policy of this name: `milp`, `heuristic`, `fifo`, `edf`, `ps`, `fifo-shared`, `edf-shared`, `ps-shared`.

    Raises:
        InvalidArgumentError: There is none.
    """
    if name not in POLICIES:
        raise InvalidArgumentError(f"There is no policy {name!r}; known: {', '.join(POLICIES)}.")
    return POLICIES[name]
