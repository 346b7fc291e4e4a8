r"""Rank GPUs to rent: cheapest, fastest, cheapest within a deadline, and those that no other beats in both.

A GPU on which the run does not fit is never recommended. Times and costs that are equal to 1 % are equal: of GPUs that
are as fast the cheapest is named, of those that cost as much the fastest, then the first asked. Where intervals overlap
so widely that another may as well be the cheapest, both are named. Where the host or the loader is the limit, what
would help is said. Where the length of the run is not known, time and cost are those of one iteration; a thousand are
printed. Example::

    ranking = rank(result, deadline_hours=2.0)
    ranking.cheapest.gpu if ranking.cheapest else None
    print(*ranking_lines(ranking), sep="\n")
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from lightning_predict.cost.prediction import AbstractPredictions, Prediction
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.interval import Interval
from lightning_predict.reports.format import (
    PLAIN_WIDTH,
    duration,
    duration_interval,
    gibibytes,
    markdown_text,
    usd,
    usd_of_steps,
    usd_per_hour,
)
from lightning_predict.reports.table import STEPS_SHOWN, bound_by, name_in_use
from lightning_predict.units import hours_to_seconds, seconds_to_hours

EQUAL: Final = 0.01
"""Relative difference up to which two times, or two costs, are equal: far less than any prediction is sure of."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RankedGpu:
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


DOUBT: Final = 1 / 3
"""Chance from which on a GPU that looks dearer, or slower, may as well be the cheaper, or faster: no single one is then
named. Both ends of the interval hold 90 % of the cases, as if the logarithms of times were normal."""

WORTH_NAMING: Final = 0.05
"""Share of the time that another GPU must save to be worth naming next to the cheapest."""

MOVING_SECONDS: Final = 300.0
"""What is left of a run below which moving it is not worth while, and no GPU is recommended: a rented machine takes
minutes to start, and the environment and the data take more."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """The machine in use, to compare with.

    Attributes:
        name: Name of its GPU or layout in the catalogue, or what it calls itself.
        label: Its name in a sentence: `this L4`.
        is_running: The run goes on there.
        time: Seconds of the run, or of one iteration, there.
        cost_usd: Cost of that time; None if no price is known.
        left: Seconds of the run there; None if its length is not known.
        at_most: It may end earlier.
    """

    name: str
    label: str
    is_running: bool
    time: Interval[float]
    cost_usd: float | None
    left: Interval[float] | None = None
    at_most: bool = False

    @property
    def seconds(self) -> float:
        """Time of the run, or of one iteration, there."""
        return self.time.middle

    @property
    def is_short(self) -> bool:
        """The run is over before it could be moved."""
        return self.left is not None and self.left.middle <= MOVING_SECONDS


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The GPUs to rent, and those that cannot be recommended.

    Attributes:
        per_iteration: The length of the run is unknown: times and costs are those of one iteration.
        cheapest: The lowest cost; None if no price is known.
        fastest: The least time; None if the run fits nowhere.
        as_fast: Names of the other GPUs that are as fast as `fastest`, in the order asked.
        perhaps_cheapest: Names of GPUs that may as well be the cheapest, the likeliest first.
        perhaps_fastest: Names of GPUs that may as well be the fastest, the likeliest first, those of `as_fast` not.
        limit: What the fastest waits for, if that is not the device: `loader`, `host` or None; no GPU then helps.
        in_use: The machine in use; None if it is not known, or was not timed.
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
    cheapest: RankedGpu | None
    fastest: RankedGpu | None
    as_fast: tuple[str, ...]
    perhaps_cheapest: tuple[str, ...]
    perhaps_fastest: tuple[str, ...]
    limit: Literal["loader", "host"] | None
    in_use: InUse | None
    deadline_hours: float | None
    within_deadline: RankedGpu | None
    frontier: tuple[RankedGpu, ...]
    does_not_fit: tuple[str, ...]
    tight: tuple[str, ...]
    without_price: tuple[str, ...]
    memory_unknown: bool

    def __str__(self) -> str:
        return "\n".join(ranking_lines(self))

    def __repr__(self) -> str:
        """Show the lines where a notebook or a prompt shows a value, instead of all that they are made of."""
        return str(self)

    def as_dict(self) -> dict[str, Any]:
        """Give the names as JSON values; None if there is none."""
        return {
            "per_iteration": self.per_iteration,
            "cheapest": None if self.cheapest is None else self.cheapest.gpu,
            "fastest": None if self.fastest is None else self.fastest.gpu,
            "as_fast": list(self.as_fast),
            "perhaps_cheapest": list(self.perhaps_cheapest),
            "perhaps_fastest": list(self.perhaps_fastest),
            "limit": self.limit,
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
    # Under a time limit all take as long: they differ by the steps that they do until then, and by the cost of each.
    per_iteration = any(one.total_seconds is None or one.is_cut_off for one in predictions.values())
    candidates = [_candidate(prediction, per_iteration) for prediction in fitting]
    in_time: list[RankedGpu] = []
    if deadline_hours is not None and not per_iteration:
        in_time = [one for one in candidates if one.seconds <= hours_to_seconds(deadline_hours)]
    cheapest, fastest = _cheapest(candidates), _fastest(candidates)
    as_fast = tuple(one.gpu for one in _least(candidates, _time) if one is not fastest)
    in_use = _in_use(predictions, per_iteration) if isinstance(predictions, AbstractPredictions) else None
    priced = [one for one in candidates if one.cost_usd is not None]
    if in_use is not None and cheapest is not None and not _is_slower(cheapest, in_use):
        priced = [one for one in priced if one.gpu == in_use.name or not _is_slower(one, in_use)]
    return Ranking(
        per_iteration=per_iteration,
        cheapest=cheapest,
        fastest=fastest,
        as_fast=as_fast,
        perhaps_cheapest=_rivals(cheapest, priced, _cost),
        perhaps_fastest=tuple(one for one in _rivals(fastest, candidates, _time) if one not in as_fast),
        limit=None if fastest is None else _limit(fastest.prediction),
        in_use=in_use,
        deadline_hours=deadline_hours,
        within_deadline=_cheapest(in_time) or _fastest(in_time),
        frontier=frontier(candidates),
        does_not_fit=tuple(one.gpu for one in predictions.values() if one.fits is False),
        tight=tuple(one.gpu for one in predictions.values() if one.memory_fit == "tight"),
        without_price=tuple(one.gpu for one in candidates if one.cost_usd is None),
        memory_unknown=bool(fitting) and all(prediction.fits is None for prediction in fitting),
    )


def frontier(candidates: Sequence[RankedGpu]) -> tuple[RankedGpu, ...]:
    """Choose those with a price that no other beats, or equals to 1 %, in both time and cost, the fastest first."""
    best: list[RankedGpu] = []
    left = [one for one in candidates if one.cost_usd is not None]
    while (fastest := _fastest(left)) is not None:
        best.append(fastest)
        left = [one for one in left if _cost(one) * (1 + EQUAL) < _cost(fastest)]
    return tuple(best)


def ranking_lines(ranking: Ranking, *, width: int = PLAIN_WIDTH) -> tuple[str, ...]:
    """Write the ranking as lines of at most so many columns."""
    return tuple(line for text in (*advice(ranking), *remarks(ranking)) for line in _wrapped(text, width))


def lines_of_run(ranking: Ranking, *, when: str, news: str, width: int = PLAIN_WIDTH) -> tuple[str, ...]:
    """Write the ranking for a run that goes on, led by what is left of it; that is said once.

    Args:
        ranking: The ranking.
        when: Leads the first sentence, where it says what is left: `After 16 steps: `.
        news: What is left, where no sentence of the ranking says it.
        width: Columns of a line at most.
    """
    texts = [*advice(ranking), *remarks(ranking)]
    if _is_soon_over(ranking):
        texts[0] = f"{when}{texts[0]}"
    else:
        texts.insert(0, news)
    return tuple(line for text in texts for line in _wrapped(text, width))


def ranking_markdown(ranking: Ranking) -> str:
    """Write the ranking as a Markdown list."""
    return "\n".join(f"- {markdown_text(text)}" for text in (*advice(ranking), *remarks(ranking)))


def advice(ranking: Ranking) -> Iterable[str]:
    """Say what to rent and what would help, a sentence each."""
    in_use, cheapest = ranking.in_use, ranking.cheapest
    short = tuple(too_short(ranking))
    if short:
        yield from (*short, *_in_time(ranking))
        return
    if cheapest is not None:
        yield _to_rent(cheapest, ranking)
        if in_use is None or not in_use.is_short:
            yield from _sooner(cheapest, ranking)
    elif ranking.fastest is not None:
        names = either(ranking.fastest.gpu, ranking.as_fast or ranking.perhaps_fastest)
        yield f"The least time: {takes(ranking.fastest, ranking)} on {names}{_beside(ranking.fastest, ranking)}."
    if ranking.limit is not None and ranking.fastest is not None:
        yield _help(ranking.fastest.prediction, ranking.limit)
    yield from _in_time(ranking)


def _is_soon_over(ranking: Ranking) -> bool:
    """Return whether the run goes on and is over before it could be moved, which the first sentence then says."""
    in_use = ranking.in_use
    return in_use is not None and in_use.is_running and in_use.is_short


def _is_too_short(ranking: Ranking) -> bool:
    """Return whether the run is over on a rented machine before that machine would be ready for it."""
    best, in_use = ranking.cheapest, ranking.in_use
    if best is None or ranking.per_iteration or (in_use is not None and not in_use.is_short):
        return False
    return best.seconds <= MOVING_SECONDS


def _in_time(ranking: Ranking) -> Iterable[str]:
    """Answer the question for a deadline, where it was asked."""
    if ranking.deadline_hours is not None:
        seconds = hours_to_seconds(ranking.deadline_hours)
        yield f"Within {duration(seconds)}: {_deadline_text(ranking, seconds)}."


def too_short(ranking: Ranking) -> Iterable[str]:
    """Say of a run not worth a machine that it is not, and how the GPUs compare for longer ones; of others nothing."""
    if not (_is_soon_over(ranking) or _is_too_short(ranking)):
        return
    in_use, best, doubt = ranking.in_use, ranking.cheapest, ""
    if in_use is not None and in_use.is_running and in_use.left is not None:
        doubt = ", as far as so few tell"
        left = f"{duration_interval(in_use.left)}{' at most' if in_use.at_most else ''}"
        yield f"{left} are left on {in_use.label}: too little to move the run."
    elif best is not None:
        yield f"The run takes {takes(best, ranking)} on {with_article(best.gpu)}: too little to rent a machine for."
    names: dict[str, list[str]] = {}
    for word, one in (("cheapest", ranking.cheapest), ("fastest", ranking.fastest)):
        if one is not None:
            names.setdefault(one.gpu, []).append(word)
    if names:
        said = ", ".join(f"the {gpu} is the {' and the '.join(words)}" for gpu, words in names.items())
        yield f"For a longer run of such steps{doubt}: {said}."


def either(name: str, others: Sequence[str]) -> str:
    """Name a GPU and those that may stand for it: `L40S or A10G`, `L4, T4 or any of 5 others`."""
    if not others:
        return name
    if len(others) <= 2:
        return f"{', '.join((name, *others[:-1]))} or {others[-1]}"
    return f"{name}, {others[0]} or any of {len(others) - 1} others"


def _to_rent(best: RankedGpu, ranking: Ranking) -> str:
    in_use = ranking.in_use
    names = either(best.gpu, ranking.perhaps_cheapest)
    amount = takes(best, ranking)
    if in_use is not None and in_use.is_running and in_use.name in (best.gpu, *ranking.perhaps_cheapest):
        others = [one for one in (best.gpu, *ranking.perhaps_cheapest) if one != in_use.name]
        doubt = f"; {either(others[0], others[1:])} may cost as little" if others else ""
        own = amount if best.gpu == in_use.name or in_use.cost_usd is None else usd(in_use.cost_usd)
        return f"Stay on {in_use.label}: no GPU is cheaper ({own}){doubt}."
    price = best.prediction.usd_per_hour
    offer = best.prediction.offer
    given = ", ".join(text for text in ("" if price is None else usd_per_hour(price), offer or "") if text)
    doubt = ", as far as can be told" if ranking.perhaps_cheapest else ""
    which = given if not ranking.perhaps_cheapest else f"the first {given}"
    if in_use is not None and not _is_worth_renting(best, in_use):
        return f"Cheapest{doubt} is {with_article(names)} ({which}; {amount}){_beside(best, ranking)}: no gain in time."
    return f"Rent {with_article(names)} ({which}): cheapest{doubt} ({amount}){_beside(best, ranking)}."


def _is_slower(candidate: RankedGpu, in_use: InUse) -> bool:
    """Return whether a run would take longer than on the machine in use: nobody is told to rent such a GPU."""
    return candidate.seconds > (1 + EQUAL) * in_use.seconds


def _is_worth_renting(candidate: RankedGpu, in_use: InUse) -> bool:
    """Return whether a GPU saves money, or where nobody knows what the machine in use costs, time."""
    if in_use.cost_usd is None:
        return (1 + WORTH_NAMING) * candidate.seconds <= in_use.seconds
    return not _is_slower(candidate, in_use)


_SPELLED: Final = re.compile(r"[A-Z]+(?![a-z])")
"""Capital letters at the beginning of a name that are read one by one: the L of L4, RTX, but not the M of MyL4."""


def with_article(name: str) -> str:
    """Put `a` or `an` before a GPU by the sound its name begins with: an A100, an RTX-4090, a T4; several have none."""
    if re.match(r"\d+x", name):
        return name
    letters = _SPELLED.match(name)
    return f"{'an' if name[0] in ('AEFHILMNORSX' if letters is not None else 'AEIO') else 'a'} {name}"


def _beside(candidate: RankedGpu, ranking: Ranking) -> str:
    """Compare with the machine in use, in words."""
    in_use = ranking.in_use
    if in_use is None or in_use.name == candidate.gpu or in_use.seconds <= 0 or candidate.seconds <= 0:
        return ""
    ratio = in_use.seconds / candidate.seconds
    if ratio >= 1 + WORTH_NAMING:
        return (
            f", and {ratio:.2g} times as fast as {in_use.label}"
            if ratio < 10
            else (f", and {ratio:,.0f} times as fast as {in_use.label}")
        )
    if ratio <= 1 / (1 + WORTH_NAMING):
        return f", but {1 / ratio:.2g} times as slow as {in_use.label}"
    return f", and as fast as {in_use.label}"


def _sooner(cheapest: RankedGpu, ranking: Ranking) -> Iterable[str]:
    """Name what is faster for more money, each with what it saves and what it adds."""
    texts, on_frontier = [], {one.gpu for one in ranking.frontier}
    for one in reversed(ranking.frontier):
        saved = cheapest.seconds - one.seconds
        if one.gpu == cheapest.gpu or saved < WORTH_NAMING * cheapest.seconds:
            continue
        if ranking.in_use is not None and _is_slower(one, ranking.in_use):
            continue
        name, scale = one.gpu, STEPS_SHOWN if ranking.per_iteration else 1
        if one is ranking.fastest:
            name = either(one.gpu, [other for other in ranking.perhaps_fastest if other not in on_frontier])
        added = (_cost(one) - _cost(cheapest)) * scale
        dollars = usd_of_steps(added) if ranking.per_iteration else usd(added)
        texts.append(f"{name} is {duration(saved * scale)} sooner for {dollars} more")
    if texts:
        yield f"{'; '.join(texts)}."


def _help(fastest: Prediction, limit: Literal["loader", "host"]) -> str:
    if limit == "loader":
        return (
            f"The loader takes {duration(fastest.loader_seconds)} for the batches of a step on any GPU: a faster one "
            "hardly helps; more workers, or data that is prepared once, would."
        )
    return (
        f"On {fastest.gpu} the host launches more slowly than the GPU computes: a still faster one hardly helps; a "
        "larger batch, torch.compile or CUDA graphs would."
    )


def takes(candidate: RankedGpu, ranking: Ranking) -> str:
    """Write time and cost in words: `3 h 12 min, $1.12`."""
    if ranking.per_iteration:
        cost = "" if candidate.cost_usd is None else f", {usd_of_steps(STEPS_SHOWN * candidate.cost_usd)}"
        return f"{duration(STEPS_SHOWN * candidate.seconds)}{cost} for {STEPS_SHOWN:,} steps"
    most = "at most " if candidate.prediction.at_most else ""
    cost = "" if candidate.cost_usd is None else f", {usd(candidate.cost_usd)}"
    return f"{most}{duration(candidate.seconds)}{cost}"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False, drop_whitespace=True)


def _deadline_text(ranking: Ranking, deadline_seconds: float) -> str:
    best = ranking.within_deadline
    if ranking.per_iteration:
        return "not known, as the length of the run is not known"
    if best is None:
        nearest = "" if ranking.fastest is None else f"; the fastest, {ranking.fastest.gpu}, takes "
        return "none" + nearest + ("" if ranking.fastest is None else duration(ranking.fastest.seconds))
    late = "" if best.time.high <= deadline_seconds else f"; may take up to {duration(best.time.high)}"
    return f"{best.gpu}, {takes(best, ranking)}{late}"


def memory_of(candidate: RankedGpu) -> str | None:
    """Write the memory in words: `fits, 7.81 of 14.1 GiB`; None if it is not known."""
    one = candidate.prediction
    usable = one.memory.usable_bytes
    if one.memory_bytes is None or usable is None:
        return None
    fits = "fits narrowly" if one.memory_fit == "tight" else "fits"
    return f"{fits}, {gibibytes(one.memory_bytes)} of {gibibytes(usable)} GiB"


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


def _candidate(prediction: Prediction, per_iteration: bool) -> RankedGpu:
    if not per_iteration and prediction.total is not None:
        return RankedGpu(prediction=prediction, time=prediction.total, cost_usd=prediction.cost_usd)
    price = prediction.usd_per_hour
    cost = None if price is None else seconds_to_hours(prediction.cycle_seconds) * price
    return RankedGpu(prediction=prediction, time=prediction.cycle, cost_usd=cost)


def _cheapest(candidates: Iterable[RankedGpu]) -> RankedGpu | None:
    """Choose the lowest cost; of those that cost as much the fastest; None if no cost is known."""
    return _fastest(_least([one for one in candidates if one.cost_usd is not None], _cost))


def _fastest(candidates: Sequence[RankedGpu]) -> RankedGpu | None:
    """Choose the least time; of those that are as fast the cheapest, then the first; None without candidates."""
    return min(_least(candidates, _time), key=_cost, default=None)


def _least(candidates: Sequence[RankedGpu], value: Callable[[RankedGpu], float]) -> list[RankedGpu]:
    """Choose those whose value equals the least to 1 %, in their order."""
    least = min(map(value, candidates), default=0.0)
    return [one for one in candidates if value(one) <= least * (1 + EQUAL)]


def _rivals(
    best: RankedGpu | None, candidates: Sequence[RankedGpu], value: Callable[[RankedGpu], float]
) -> tuple[str, ...]:
    """Name the others that are better in more than `DOUBT` of the cases, the likeliest first."""
    if best is None or value(best) <= 0:
        return ()
    chances = {
        one.gpu: _chance_of_less(math.log(value(one) / value(best)), math.hypot(_spread(one), _spread(best)))
        for one in candidates
        if one is not best and value(one) > 0
    }
    return tuple(sorted((one for one in chances if chances[one] > DOUBT), key=lambda one: -chances[one]))


_NORMAL_95: Final = 1.645
"""Standard deviations that 95 % of a normal distribution lie below."""


def _spread(candidate: RankedGpu) -> float:
    """Compute the standard deviation of the logarithm of the time from its 90 % interval."""
    low, high = candidate.time.low, candidate.time.high
    return math.log(high / low) / (2 * _NORMAL_95) if 0 < low < high < math.inf else 0.0


def _chance_of_less(log_ratio: float, spread: float) -> float:
    """Compute the chance that a value is the smaller one though its logarithm is larger by so much, so uncertain."""
    return 0.5 * math.erfc(log_ratio / (spread * math.sqrt(2))) if spread > 0 else float(log_ratio < 0)


def _limit(prediction: Prediction) -> Literal["loader", "host"] | None:
    bound = bound_by(prediction)
    return bound if bound in ("loader", "host") else None  # type: ignore[return-value]


def _in_use(predictions: AbstractPredictions, per_iteration: bool) -> InUse | None:
    """Find what the run takes on the machine in use."""
    own = predictions.get(predictions.used_gpu or "")
    if own is not None:
        candidate = _candidate(own, per_iteration)
        return InUse(
            name=own.gpu,
            label=name_in_use(own.gpu, predictions),
            is_running=predictions.is_running,
            time=candidate.time,
            cost_usd=candidate.cost_usd,
            left=own.total,
            at_most=own.at_most,
        )
    machine = predictions.machine
    if machine is None or (machine.total is None and not per_iteration):
        return None
    time = machine.cycle if per_iteration or machine.total is None else machine.total
    price = machine.price.usd_per_hour
    return InUse(
        name=machine.name,
        label=name_in_use(machine.name, predictions),
        is_running=predictions.is_running,
        time=time,
        cost_usd=None if price is None else seconds_to_hours(time.middle) * price,
        left=machine.total,
        at_most=machine.at_most,
    )


def _time(candidate: RankedGpu) -> float:
    return candidate.seconds


def _cost(candidate: RankedGpu) -> float:
    """Give the cost as a key to sort by: what has no price comes last."""
    return math.inf if candidate.cost_usd is None else candidate.cost_usd
