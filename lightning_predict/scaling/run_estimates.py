"""What a regression says of a run: its time, how sure that is, and how far it had to reach beyond the past runs.

Example::

    >>> Extrapolation(variable="batch_size", asked=256, lowest=8, highest=128).note
    'batch size 256 is 2 times the largest of the past runs (128)'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lightning_predict.scaling.runs import WORDS, RunSetting, Variable


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    """A variable outside the range of the runs that were fitted.

    Attributes:
        variable: Which.
        asked: Value of the setting.
        lowest: Least value of the runs.
        highest: Largest value of the runs.
    """

    variable: Variable
    asked: float
    lowest: float
    highest: float

    @property
    def factor(self) -> float | None:
        """Asked over the nearest end of the range, above 1 beyond it; None where that end is 0."""
        nearest = self.highest if self.asked > self.highest else self.lowest
        return self.asked / nearest if nearest else None

    @property
    def note(self) -> str:
        """How far outside, in words."""
        is_above = self.asked > self.highest
        nearest = self.highest if is_above else self.lowest
        kind = "largest" if is_above else "smallest"
        kind = "only one" if self.lowest == self.highest else kind
        times = "beyond" if self.factor is None else f"{self.factor:.3g} times"
        return f"{WORDS[self.variable]} {self.asked:g} is {times} the {kind} of the past runs ({nearest:g})"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """A run as predicted from past runs.

    Attributes:
        setting: Of the run.
        seconds: Time; None where the regression falls to 0 or below, so far outside its range.
        low_seconds: Lower end of the 90 % interval; 0 where the regression's is below. None with `seconds`.
        high_seconds: Upper end; None with `seconds`.
        extrapolations: Variables outside the range of the past runs.
    """

    setting: RunSetting
    seconds: float | None
    low_seconds: float | None
    high_seconds: float | None
    extrapolations: tuple[Extrapolation, ...] = ()
