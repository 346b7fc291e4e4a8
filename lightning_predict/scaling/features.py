"""Features of a run: its variables, their inverses, and products of both.

A `Term` is a product of variables, each as it is or inverted; the terms of a table of runs are all those of its
variables that vary, up to a degree. Example::

    >>> names = [term.name for term in terms_of(["batch_size", "num_gpus"])]
    >>> names[:4], len(names)
    (['batch_size', '1 / batch_size', 'num_gpus', '1 / num_gpus'], 8)
    >>> names[5]
    'batch_size / num_gpus'
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import final

import numpy as np
import numpy.typing as npt

from lightning_predict.scaling.runs import Variable

FloatArray = npt.NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True)
class Term:
    """A product of variables.

    Attributes:
        variables: The factors.
        exponents: 1 or -1 for each.
    """

    variables: tuple[Variable, ...]
    exponents: tuple[int, ...]

    @property
    def name(self) -> str:
        """The product as people write it."""
        above = [name for name, exponent in zip(self.variables, self.exponents, strict=True) if exponent > 0]
        below = [name for name, exponent in zip(self.variables, self.exponents, strict=True) if exponent < 0]
        parts = [" * ".join(above) or "1", *below]
        return " / ".join(parts)

    def values(self, columns: Mapping[Variable, FloatArray]) -> FloatArray:
        """The product for each run, shape (runs,).

        Args:
            columns: Values of each variable, shape (runs,).
        """
        powers = (columns[name] ** float(power) for name, power in zip(self.variables, self.exponents, strict=True))
        values: FloatArray = np.prod(np.stack(list(powers)), axis=0)
        return values


def terms_of(
    variables: Sequence[Variable],
    *,
    degree: int = 2,
    inverses: bool = True,
    not_inverted: Collection[Variable] = (),
    only_inverted: Collection[Variable] = (),
) -> tuple[Term, ...]:
    """All products of up to `degree` different variables, the short ones first.

    Args:
        variables: Those that vary.
        degree: Factors of a product at most; 1 makes no products.
        inverses: Take each factor inverted, too.
        not_inverted: Variables that are not inverted, as they can be 0.
        only_inverted: Variables that are inverted in every term; without effect where there are no inverses.
    """
    terms: list[Term] = []
    for length in range(1, min(degree, len(variables)) + 1):
        for chosen in combinations(variables, length):
            powers = [_powers(name, inverses, not_inverted, only_inverted) for name in chosen]
            terms += [Term(chosen, exponents) for exponents in product(*powers)]
    return tuple(terms)


def _powers(
    name: Variable, inverses: bool, not_inverted: Collection[Variable], only_inverted: Collection[Variable]
) -> tuple[int, ...]:
    """How a variable enters a product."""
    if not inverses or name in not_inverted:
        return (1,)
    return (-1,) if name in only_inverted else (1, -1)
