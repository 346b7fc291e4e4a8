"""How far one GPU's error corrects another's: the study behind `timeline/same_gpu.py`.

Of two GPUs that ran the same benchmark in the same container, one is the GPU in use: its error, to a power from 0 (no
correction) to 1 (all of it), corrects the prediction for the other. The power is chosen on all families of models but
one and judged on the one left out. Example::

    study = correction_study(report.ratios)
    study.held_out_error, study.uncorrected_error
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from rich import box
from rich.table import Table

from lightning_predict.fitting.evaluation_throughput import RatioResult
from lightning_predict.timeline.same_gpu import CORRECTION_EXPONENT

EXPONENTS: Final = tuple(number / 20 for number in range(21))

FAMILY_OF: Final[Mapping[str, str]] = {
    "bert_base_squad": "BERT",
    "bert_large_squad": "BERT",
    "transformerxlbase": "Transformer-XL",
    "transformerxllarge": "Transformer-XL",
    "BERT-Large": "BERT",
    "GPT2-Large": "GPT",
    "GPT3-XL": "GPT",
    "GPT3-2.7B": "GPT",
    "OPT-1.3B": "GPT",
}
"""Models that are one architecture in several sizes: what is left out goes together."""


@final
@dataclass(frozen=True, slots=True)
class LeftOut:
    """One family of models, judged by a power that was chosen without it.

    Attributes:
        family: Its name.
        exponent: Power with the least median error on all other families.
        errors: Error of each pair of this family by that power.
        uncorrected: The same without a correction.
        fully_corrected: The same with all of it.
    """

    family: str
    exponent: float
    errors: tuple[float, ...]
    uncorrected: tuple[float, ...]
    fully_corrected: tuple[float, ...]


@final
@dataclass(frozen=True, slots=True)
class CorrectionStudy:
    """Each family left out in turn."""

    families: tuple[LeftOut, ...]

    @property
    def held_out_error(self) -> float:
        """Median of |error| over all pairs, each by a power that did not see its family; nan without pairs."""
        return _median(error for family in self.families for error in family.errors)

    @property
    def uncorrected_error(self) -> float:
        """The same without a correction."""
        return _median(error for family in self.families for error in family.uncorrected)

    @property
    def fully_corrected_error(self) -> float:
        """The same with all of it."""
        return _median(error for family in self.families for error in family.fully_corrected)


def corrected_error(pair: RatioResult, exponent: float) -> float:
    """Error of a pair's target, predicted over measured less one, where the origin's error corrects it."""
    origin = pair.origin.case.measured_per_second / pair.origin.predicted_per_second
    corrected = pair.target.predicted_per_second * origin**exponent
    return float(corrected / pair.target.case.measured_per_second - 1)


def correction_study(pairs: Sequence[RatioResult]) -> CorrectionStudy:
    """The study over all ordered pairs of GPUs."""
    groups: dict[str, list[RatioResult]] = defaultdict(list)
    for pair in pairs:
        model = pair.target.case.model
        groups[FAMILY_OF.get(model, model)].append(pair)
    found = []
    for family, members in sorted(groups.items()):
        others = [pair for other, own in groups.items() if other != family for pair in own]
        exponent = best_exponent(others)
        found.append(LeftOut(family, exponent, *(_errors(members, power) for power in (exponent, 0.0, 1.0))))
    return CorrectionStudy(tuple(found))


def best_exponent(pairs: Sequence[RatioResult]) -> float:
    """The power with the least median error; the smaller of two alike. Without pairs there is no correction."""
    if not pairs:
        return 0.0
    return min(EXPONENTS, key=lambda power: _median(_errors(pairs, power)))


def correction_table(study: CorrectionStudy) -> Table:
    """The study for the terminal."""
    table = Table(
        title="Prediction corrected by the error on another GPU in the same container, to a power chosen on the other "
        f"models; in use: {CORRECTION_EXPONENT:g}",
        box=box.SIMPLE,
    )
    table.add_column("left out", no_wrap=True)
    for heading in ("pairs", "power", "corrected median %", "uncorrected median %", "fully corrected median %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in study.families:
        medians = (_median(errors) for errors in (one.errors, one.uncorrected, one.fully_corrected))
        table.add_row(one.family, str(len(one.errors)), f"{one.exponent:.2f}", *map(_percent, medians))
    count = sum(len(one.errors) for one in study.families)
    together = (study.held_out_error, study.uncorrected_error, study.fully_corrected_error)
    table.add_section()
    table.add_row("all", str(count), "", *map(_percent, together))
    return table


def _errors(pairs: Sequence[RatioResult], exponent: float) -> tuple[float, ...]:
    return tuple(corrected_error(pair, exponent) for pair in pairs)


def _median(errors: Iterable[float]) -> float:
    absolute = [abs(error) for error in errors]
    return statistics.median(absolute) if absolute else float("nan")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
