"""Cases that share one recorded step are predicted together, several steps at a time.

Example::

    evaluate_in_groups([3, 1, 3], key=str, evaluate=lambda group: [2 * one for one in group], jobs=1)  # (6, 2, 6)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from joblib import Parallel, delayed

Case = TypeVar("Case")
Result = TypeVar("Result")


def evaluate_in_groups(
    cases: Sequence[Case],
    *,
    key: Callable[[Case], Hashable],
    evaluate: Callable[[Sequence[Case]], Sequence[Result]],
    jobs: int,
) -> tuple[Result, ...]:
    """Results in the order of the cases.

    Args:
        cases: What to evaluate.
        key: Cases with equal keys are evaluated by one call.
        evaluate: One result for each of its cases, in their order.
        jobs: Calls at a time, each in a process of its own where there is more than one.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        groups[key(case)].append(index)
    calls = (delayed(evaluate)([cases[index] for index in indices]) for indices in groups.values())
    parts = Parallel(n_jobs=jobs)(calls)
    results = {
        index: result
        for indices, part in zip(groups.values(), parts, strict=True)
        for index, result in zip(indices, part, strict=True)
    }
    return tuple(results[index] for index in range(len(cases)))
