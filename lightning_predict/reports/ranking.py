r"""Rank GPUs to rent: cheapest, fastest, cheapest within a deadline, and those that no other beats in both.

A GPU on which the run does not fit is never recommended. Times and costs that are equal to 1 % are equal: of GPUs that
are as fast the cheapest is named, of those that cost as much the fastest, then the first asked. Where the length of the
run is not known, time and cost are those of one iteration. Example::

    ranking = rank(result, deadline_hours=2.0)
    ranking.cheapest.gpu if ranking.cheapest else None
    print(*ranking_lines(ranking), sep="\n")
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from lightning_predict.cost.prediction import Prediction
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.interval import Interval
from lightning_predict.reports.format import PLAIN_WIDTH, duration, gibibytes, markdown_text, usd
from lightning_predict.units import hours_to_seconds, seconds_to_hours

EQUAL: Final = 0.01
"""Relative difference up to which two times, or two costs, are equal: far less than any prediction is sure of."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A GPU on which the run may go, with what it takes there.

    Attributes:
        prediction: Everything that is known.
        time: Seconds of the run; of one iteration where the run's length is unknown.
        cost_usd: Cost of that time; None if no price is known.
    """

    prediction: Prediction
    time: Interval[float]
    cost_usd: float | None

    @property
    def seconds(self) -> float:
        """Time of the run, or of one iteration, as predicted."""
        return self.time.middle

    @property
    def gpu(self) -> str:
        """Name of the GPU."""
        return self.prediction.gpu


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The GPUs to rent, and those that cannot be recommended.

    Attributes:
        per_iteration: The length of the run is unknown: times and costs are those of one iteration.
        cheapest: The lowest cost; None if no price is known.
        fastest: The least time; None if the run fits nowhere.
        as_fast: Names of the other GPUs that are as fast as `fastest`, in the order asked.
        deadline_hours: Time that the run may take; None if not asked for.
        within_deadline: The lowest cost (where no price is known, the least time) among those that meet the deadline;
            None if none does, or none was asked for.
        frontier: The GPUs that no other beats in both time and cost, the fastest first.
        does_not_fit: Names of the GPUs on which the run does not fit.
        tight: Names of the GPUs on which it fits narrowly.
        without_price: Names of the GPUs that fit and have no price.
        memory_unknown: It is not known whether the run fits on any of them.
    """

    per_iteration: bool
    cheapest: Candidate | None
    fastest: Candidate | None
    as_fast: tuple[str, ...]
    deadline_hours: float | None
    within_deadline: Candidate | None
    frontier: tuple[Candidate, ...]
    does_not_fit: tuple[str, ...]
    tight: tuple[str, ...]
    without_price: tuple[str, ...]
    memory_unknown: bool

    def __str__(self) -> str:
        return "\n".join(ranking_lines(self))

    def as_dict(self) -> dict[str, Any]:
        """Give the names as JSON values; None if there is none."""
        return {
            "per_iteration": self.per_iteration,
            "cheapest": None if self.cheapest is None else self.cheapest.gpu,
            "fastest": None if self.fastest is None else self.fastest.gpu,
            "as_fast": list(self.as_fast),
            "deadline_hours": self.deadline_hours,
            "within_deadline": None if self.within_deadline is None else self.within_deadline.gpu,
            "frontier": [candidate.gpu for candidate in self.frontier],
            "does_not_fit": list(self.does_not_fit),
            "tight": list(self.tight),
            "without_price": list(self.without_price),
        }


def rank(predictions: Mapping[str, Prediction], *, deadline_hours: float | None = None) -> Ranking:
    """Order the GPUs of some predictions.

    Args:
        predictions: What to choose from.
        deadline_hours: Time that the run may take; judged by the middle of the prediction.

    Raises:
        InvalidArgumentError: A deadline that is not above 0.
    """
    if deadline_hours is not None and not (math.isfinite(deadline_hours) and deadline_hours > 0):
        raise InvalidArgumentError(f"deadline_hours={deadline_hours!r} is no deadline; expected hours above 0.")
    fitting = [prediction for prediction in predictions.values() if prediction.fits is not False]
    per_iteration = any(prediction.total_seconds is None for prediction in predictions.values())
    candidates = [_candidate(prediction, per_iteration) for prediction in fitting]
    in_time: list[Candidate] = []
    if deadline_hours is not None and not per_iteration:
        in_time = [one for one in candidates if one.seconds <= hours_to_seconds(deadline_hours)]
    fastest = _fastest(candidates)
    return Ranking(
        per_iteration=per_iteration,
        cheapest=_cheapest(candidates),
        fastest=fastest,
        as_fast=tuple(one.gpu for one in _least(candidates, _time) if one is not fastest),
        deadline_hours=deadline_hours,
        within_deadline=_cheapest(in_time) or _fastest(in_time),
        frontier=frontier(candidates),
        does_not_fit=tuple(one.gpu for one in predictions.values() if one.fits is False),
        tight=tuple(one.gpu for one in predictions.values() if one.memory_fit == "tight"),
        without_price=tuple(one.gpu for one in candidates if one.cost_usd is None),
        memory_unknown=bool(fitting) and all(prediction.fits is None for prediction in fitting),
    )


def frontier(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Choose those with a price that no other beats, or equals to 1 %, in both time and cost, the fastest first."""
    best: list[Candidate] = []
    left = [one for one in candidates if one.cost_usd is not None]
    while (fastest := _fastest(left)) is not None:
        best.append(fastest)
        left = [one for one in left if _cost(one) * (1 + EQUAL) < _cost(fastest)]
    return tuple(best)


def ranking_lines(ranking: Ranking) -> tuple[str, ...]:
    """Write the ranking as lines for a terminal of 120 columns."""
    rows = list(_rows(ranking))
    width = max((len(name) for name, _ in rows), default=0)
    lines = [line for name, text in rows for line in _wrapped(f"{name:<{width}}  {text}", width + 2)]
    return (*lines, *(line for text in remarks(ranking) for line in _wrapped(text, 2)))


def ranking_markdown(ranking: Ranking) -> str:
    """Write the ranking as a Markdown list."""
    rows = [f"- **{name}:** {markdown_text(text)}" for name, text in _rows(ranking)]
    return "\n".join([*rows, *(f"- {markdown_text(text)}" for text in remarks(ranking))])


def takes(candidate: Candidate, ranking: Ranking) -> str:
    """Write time and cost in words: `3 h 12 min, $1.12`."""
    most = "at most " if candidate.prediction.at_most and not ranking.per_iteration else ""
    cost = "" if candidate.cost_usd is None else f", {usd(candidate.cost_usd)}"
    unit = " an iteration" if ranking.per_iteration else ""
    return f"{most}{duration(candidate.seconds)}{cost}{unit}"


def _rows(ranking: Ranking) -> Iterable[tuple[str, str]]:
    if ranking.cheapest is not None:
        yield "Cheapest", _described(ranking.cheapest, ranking)
    if ranking.fastest is not None:
        equals = f"; as fast: {', '.join(ranking.as_fast)}" if ranking.as_fast else ""
        yield "Fastest", _described(ranking.fastest, ranking) + equals
    if ranking.deadline_hours is not None:
        name = f"Best within {duration(hours_to_seconds(ranking.deadline_hours))}"
        yield name, _deadline_text(ranking, hours_to_seconds(ranking.deadline_hours))
    if len(ranking.frontier) > 1:
        listed = ", ".join(f"{one.gpu} ({takes(one, ranking)})" for one in ranking.frontier)
        yield "Trade-off", f"{listed}; none of the others is faster for less"


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text, PLAIN_WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False, drop_whitespace=True
    )


def _deadline_text(ranking: Ranking, deadline_seconds: float) -> str:
    best = ranking.within_deadline
    if ranking.per_iteration:
        return "not known, as the length of the run is not"
    if best is None:
        nearest = "" if ranking.fastest is None else f"; the fastest, {ranking.fastest.gpu}, takes "
        return "none" + nearest + ("" if ranking.fastest is None else duration(ranking.fastest.seconds))
    late = "" if best.time.high <= deadline_seconds else f"; may take up to {duration(best.time.high)}"
    return _described(best, ranking) + late


def _described(candidate: Candidate, ranking: Ranking) -> str:
    parts = [f"{candidate.gpu}: {takes(candidate, ranking)}"]
    memory = memory_of(candidate)
    if memory is not None:
        parts.append(memory)
    if candidate.prediction.offer is not None:
        parts.append(f"price: {candidate.prediction.offer}")
    return "; ".join(parts)


def memory_of(candidate: Candidate) -> str | None:
    """Write the memory in words: `fits, 7.81 of 14.1 GiB`; None if it is not known."""
    one = candidate.prediction
    if one.memory_bytes is None or one.memory_free_bytes is None:
        return None
    fits = "fits narrowly" if one.memory_fit == "tight" else "fits"
    return f"{fits}, {gibibytes(one.memory_bytes)} of {gibibytes(one.memory_bytes + one.memory_free_bytes)} GiB"


def remarks(ranking: Ranking) -> Iterable[str]:
    """Name the GPUs that the ranking leaves out, and those that it recommends with a doubt."""
    if ranking.fastest is None:
        yield "No GPU can be recommended: the run fits on none of them."
    if ranking.does_not_fit:
        yield f"Not recommended, as the run does not fit: {', '.join(ranking.does_not_fit)}."
    if ranking.tight:
        yield f"The memory is narrow on {', '.join(ranking.tight)}: try a few steps before you rent for long."
    if ranking.without_price:
        yield f"No price known: {', '.join(ranking.without_price)}."
    if ranking.memory_unknown:
        yield "Memory is not known: whether the run fits was not checked."


def _candidate(prediction: Prediction, per_iteration: bool) -> Candidate:
    if not per_iteration and prediction.total is not None:
        return Candidate(prediction=prediction, time=prediction.total, cost_usd=prediction.cost_usd)
    price = prediction.usd_per_hour
    cost = None if price is None else seconds_to_hours(prediction.iteration_seconds) * price
    return Candidate(prediction=prediction, time=prediction.iteration, cost_usd=cost)


def _cheapest(candidates: Iterable[Candidate]) -> Candidate | None:
    """Choose the lowest cost; of those that cost as much the fastest; None if no cost is known."""
    return _fastest(_least([one for one in candidates if one.cost_usd is not None], _cost))


def _fastest(candidates: Sequence[Candidate]) -> Candidate | None:
    """Choose the least time; of those that are as fast the cheapest, then the first; None without candidates."""
    return min(_least(candidates, _time), key=_cost, default=None)


def _least(candidates: Sequence[Candidate], value: Callable[[Candidate], float]) -> list[Candidate]:
    """Choose those whose value equals the least to 1 %, in their order."""
    least = min(map(value, candidates), default=0.0)
    return [one for one in candidates if value(one) <= least * (1 + EQUAL)]


def _time(candidate: Candidate) -> float:
    return candidate.seconds


def _cost(candidate: Candidate) -> float:
    """Give the cost as a key to sort by: what has no price comes last."""
    return math.inf if candidate.cost_usd is None else candidate.cost_usd
