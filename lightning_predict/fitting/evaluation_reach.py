"""What the predictions of whole iterations should reach, and whether they do.

Example::

    [goal.is_held for goal in goals_of(report.transformers, report.throughput)]
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from rich import box
from rich.table import Table

from lightning_predict.fitting.evaluation_throughput import ThroughputReport
from lightning_predict.fitting.evaluation_transformers import TransformerResult, mean_error

TRANSFORMER_REACH: Final = 0.05
RATIO_REACH: Final = 0.12
ABSOLUTE_REACH: Final = 0.20
INTERVAL_REACH: Final = 0.85


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One figure with what it should reach.

    Attributes:
        what: The figure in words.
        cases: Cases that it is over.
        reached: Its value, as a share.
        reach: What it should be, as a share.
        is_error: It should be at most that; otherwise at least.
    """

    what: str
    cases: int
    reached: float
    reach: float
    is_error: bool = True

    @property
    def is_held(self) -> bool:
        """The figure is as good as it should be."""
        return self.reached <= self.reach if self.is_error else self.reached >= self.reach


def goals_of(transformers: Sequence[TransformerResult], throughput: ThroughputReport | None) -> tuple[Goal, ...]:
    """The goals that there are cases for."""
    return tuple(_goals(transformers, throughput))


def _goals(transformers: Sequence[TransformerResult], throughput: ThroughputReport | None) -> Iterator[Goal]:
    scored = [result for result in transformers if result.case.is_scored]
    if scored:
        yield Goal(
            what="transformers in float32 without any measurement, mean error; apart ones left out",
            cases=len(scored),
            reached=mean_error(scored),
            reach=TRANSFORMER_REACH,
        )
    benchmarks = () if throughput is None else throughput.absolute
    if throughput is not None and throughput.ratios:
        yield Goal(
            what="training benchmarks from one GPU's row to another's in one container, median error",
            cases=len(throughput.ratios),
            reached=throughput.median_ratio_error,
            reach=RATIO_REACH,
        )
    if throughput is not None and benchmarks:
        yield Goal(
            what="training benchmarks without any measurement, median error",
            cases=len(benchmarks),
            reached=throughput.median_absolute_error,
            reach=ABSOLUTE_REACH,
        )
    inside = [result.is_inside for result in transformers] + [result.is_inside for result in benchmarks]
    if inside:
        yield Goal(
            what="cases that the 90 % interval holds, all of both tables, apart ones too",
            cases=len(inside),
            reached=statistics.fmean(inside),
            reach=INTERVAL_REACH,
            is_error=False,
        )


def reach_table(goals: Sequence[Goal]) -> Table:
    """The goals for the terminal."""
    table = Table(title="What is to be reached", box=box.SIMPLE)
    table.add_column("figure", no_wrap=True)
    for heading in ("cases", "reached %", "reach %", "held"):
        table.add_column(heading, justify="right", no_wrap=True)
    for goal in goals:
        bound = "at most" if goal.is_error else "at least"
        table.add_row(
            goal.what,
            str(goal.cases),
            f"{100 * goal.reached:.1f}",
            f"{bound} {100 * goal.reach:.0f}",
            "yes" if goal.is_held else "no",
        )
    return table
