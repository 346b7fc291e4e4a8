r"""Rank GPUs for renting: cheapest, fastest, cheapest within a deadline, and the Pareto frontier of time and cost.

A GPU on which the run does not fit is never recommended. Times or costs within 1 % count as equal. Ties in time go to
the cheaper GPU, ties in cost to the faster GPU, and further ties to the first GPU in the list. If intervals overlap so
much that another GPU may be the cheapest, the advice names both GPUs. If the host or the loader is the bottleneck, the
advice suggests remedies. If the length of the run is unknown, time and cost are per iteration, and printed for 1,000
iterations.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from lightning_predict.base.answers import TEXT_WIDTH
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.escaping import markdown_text
from lightning_predict.base.interval import NORMAL_95, NOTHING, Interval
from lightning_predict.base.ties import NEGLIGIBLE, TIE, clearly_less, least, ordered
from lightning_predict.base.units import hours_to_seconds, seconds_to_hours
from lightning_predict.cost.offers import kind_of_provider
from lightning_predict.cost.prediction import AbstractPredictions, MachineInUse, Prediction
from lightning_predict.cost.priced_gpus import GROUPS
from lightning_predict.reports.format import (
    FEW,
    duration,
    duration_interval,
    gibibytes,
    listed,
    usd,
    usd_of_steps,
    usd_per_hour,
)
from lightning_predict.reports.table_rows import TableLine, bound_by, name_in_use
from lightning_predict.run.workload import STEPS_SHOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedGpu:
    """A GPU on which the run fits, with the time and cost of the run."""

    prediction: Prediction
    time: Interval[float]  # Seconds of the run, or of one iteration if the run's length is unknown
    cost_usd: float | None  # Cost of the run, or of one iteration; None if no price is known

    @property
    def seconds(self) -> float:
        """Predicted time of the run, or of one iteration."""
        return self.time.middle

    @property
    def gpu(self) -> str:
        """Name of the GPU."""
        return self.prediction.gpu


MIN_RIVAL_PROBABILITY: Final = 1 / 3
"""The advice also names a GPU that beats the best GPU with at least this probability. The probability follows from
log-normal distributions whose 5 % and 95 % quantiles are the ends of the intervals."""

MONTHS_FROM: Final = 100  # The age of a price is shown in months from this number of days
WORTH_NAMING: Final = 0.05  # Minimum relative time saving for a GPU to be named next to the cheapest GPU

MOVING_SECONDS: Final = 300.0
"""If less than this time remains, we recommend no other GPU. Starting a rented machine takes minutes, and setting up
the environment and the data takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTimes:
    """The machine in use, which recommended GPUs are compared with."""

    name: str  # Catalogue name of the machine's GPU or layout, or the name that the GPU reports
    label: str  # Name of the machine in a sentence: `this L4`.
    is_running: bool
    time: Interval[float]  # Seconds of the run, or of one iteration, on this machine
    cost_usd: float | None  # Cost of `time` on this machine; None if no price is known
    left: Interval[float] | None = None  # Remaining seconds of the run on this machine; None if its length is unknown
    at_most: bool = False  # Whether the run may end earlier than predicted

    @property
    def seconds(self) -> float:
        """Predicted time of the run, or of one iteration, on this machine."""
        return self.time.middle

    @property
    def is_short(self) -> bool:
        """Whether the run ends before it could be moved to another machine (`MOVING_SECONDS`)."""
        return self.left is not None and self.left.middle <= MOVING_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Recommended GPUs, and GPUs that cannot be recommended."""

    per_iteration: bool  # Whether values are of one recorded iteration, as the run's length is unknown
    cheapest: RankedGpu | None  # The GPU with the lowest cost; None if no price is known
    fastest: RankedGpu | None  # The fastest GPU; None if the run fits on no GPU
    as_fast: tuple[str, ...]  # Names of GPUs within 1 % of the time of `fastest`, in the requested order
    cheapest_rivals: tuple[RankedGpu, ...]  # GPUs that may be the cheapest within their intervals, likeliest first
    perhaps_fastest: tuple[str, ...]  # GPUs that may be the fastest, likeliest first, without `as_fast`
    # Bottleneck on the fastest GPU: `loader` or `host`, so that a faster GPU does not help; None for the GPU itself.
    limit: Literal["loader", "host", "wait"] | None
    in_use: MachineTimes | None  # The machine in use; None if unknown or not timed
    deadline_hours: float | None  # Maximum time of the run; None without a deadline
    # The cheapest GPU (the fastest, if no price is known) that meets the deadline; None if no GPU does, or without a
    # deadline
    within_deadline: RankedGpu | None
    frontier: tuple[RankedGpu, ...]  # Pareto frontier of time and cost, fastest first
    group: str | None  # Requested group of GPUs (`all`); None if the user named GPUs
    compared: int  # Number of compared GPUs that have a price, and on which the run fits
    does_not_fit: tuple[str, ...]
    tight: tuple[str, ...]  # Names of the GPUs on which the run fits tightly
    without_price: tuple[str, ...]  # Names of the GPUs on which the run fits but which have no price
    memory_unknown: bool  # Whether the memory need of the run is unknown on every GPU
    made_on: str | None = None  # ISO day of the predictions, for the age of prices; None omits the age

    @property
    def perhaps_cheapest(self) -> tuple[str, ...]:
        """Names of GPUs that may be the cheapest within their intervals, likeliest first."""
        return tuple(ranked.gpu for ranked in self.cheapest_rivals)

    def __str__(self) -> str:
        return "\n".join(ranking_lines(self))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from lightning_predict.base.escaping import html_text

        return "".join(f"<p>{html_text(text)}</p>" for text in (*advice(self), *remarks(self)))

    def as_dict(self) -> dict[str, object]:
        """Return the GPU names of each field as JSON-serializable values; None for a missing choice."""
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
            "group": self.group,
            "compared": self.compared,
            "does_not_fit": list(self.does_not_fit),
            "tight": list(self.tight),
            "without_price": list(self.without_price),
        }


def rank(predictions: Mapping[str, Prediction], *, deadline_hours: float | None = None) -> Ranking:
    """Rank the predicted GPUs.

    Args:
        predictions: The predictions to rank.
        deadline_hours: Maximum time of the run; the middle of the predicted interval must not exceed this time.
    """
    if deadline_hours is not None and not (math.isfinite(deadline_hours) and deadline_hours > 0):
        raise InvalidArgumentError(f"deadline_hours={deadline_hours!r} is not a deadline; expected hours above 0.")
    fitting = [prediction for prediction in predictions.values() if prediction.fits is not False]
    # With a time limit, all GPUs take the same time, and differ in the number and the cost of steps.
    per_iteration = any(row.total_seconds is None or row.is_cut_off for row in predictions.values())
    each = ((prediction, *_time_and_cost(prediction, per_iteration)) for prediction in fitting)
    candidates = [RankedGpu(prediction=prediction, time=time, cost_usd=cost) for prediction, time, cost in each]
    in_time: list[RankedGpu] = []
    if deadline_hours is not None and not per_iteration:
        in_time = [
            ranked for ranked in candidates if not clearly_less(hours_to_seconds(deadline_hours), ranked.seconds)
        ]
    cheapest, fastest = _cheapest(candidates), _fastest(candidates)
    as_fast = tuple(ranked.gpu for ranked in _equal_least(candidates, _time) if ranked is not fastest)
    in_use = _in_use(predictions, per_iteration) if isinstance(predictions, AbstractPredictions) else None
    priced = [ranked for ranked in candidates if ranked.cost_usd is not None]
    if in_use is not None and cheapest is not None and not _is_slower(cheapest, in_use):
        priced = [ranked for ranked in priced if ranked.gpu == in_use.name or not _is_slower(ranked, in_use)]
    front, group = frontier(candidates), predictions.group if isinstance(predictions, AbstractPredictions) else None
    rivals = _rivals(cheapest, priced, _cost)
    tight = [row.gpu for row in predictions.values() if row.memory_fit == "tight"]
    if group is not None:
        best = {ranked.gpu for ranked in (*rivals, *front)}
        tight = [name for name in tight if name in best]
    return Ranking(
        per_iteration=per_iteration,
        cheapest=cheapest,
        fastest=fastest,
        as_fast=as_fast,
        cheapest_rivals=rivals,
        perhaps_fastest=tuple(
            ranked.gpu for ranked in _rivals(fastest, candidates, _time) if ranked.gpu not in as_fast
        ),
        limit=None if fastest is None else _limit(fastest.prediction),
        in_use=in_use,
        deadline_hours=deadline_hours,
        within_deadline=_cheapest(in_time) or _fastest(in_time),
        frontier=front,
        group=group,
        compared=sum(row.usd_per_hour is not None for row in fitting),
        does_not_fit=tuple(row.gpu for row in predictions.values() if row.fits is False),
        tight=tuple(tight),
        without_price=tuple(ranked.gpu for ranked in candidates if ranked.cost_usd is None),
        memory_unknown=bool(fitting) and all(prediction.fits is None for prediction in fitting),
        made_on=predictions.made_on if isinstance(predictions, AbstractPredictions) else None,
    )


def frontier(candidates: Sequence[RankedGpu]) -> tuple[RankedGpu, ...]:
    """Return the priced GPUs on the Pareto frontier of time and cost (ties within 1 %), fastest first."""
    best: list[RankedGpu] = []
    left = [ranked for ranked in candidates if ranked.cost_usd is not None]
    while (fastest := _fastest(left)) is not None:
        best.append(fastest)
        left = [ranked for ranked in left if _cost(ranked) * (1 + NEGLIGIBLE) < _cost(fastest)]
    return tuple(best)


MOST_ROWS: Final = 7  # Maximum number of GPUs of a group in a table
FEWEST_ROWS: Final = 5  # Minimum number of GPUs of a group in a table, if the run fits on this number of GPUs


def shortlist(ranking: Ranking, predictions: Mapping[str, Prediction]) -> tuple[str, ...]:
    """Choose the GPUs of a group that a table shows, cheapest first.

    The table shows at most `MOST_ROWS` GPUs of the Pareto frontier, and GPUs that may be the cheapest. Up to
    `FEWEST_ROWS`, the next GPUs of the group follow. If the run fits on no GPU, the GPUs that lack the least memory
    follow.
    """
    # A GPU that is rented only with others is shown if it is the fastest.
    single = [
        ranked for ranked in ranking.frontier if ranked is ranking.fastest or not sold_together(ranked.prediction)
    ]
    front = shorten_frontier(single, MOST_ROWS - min(len(ranking.perhaps_cheapest), 1))
    names = {ranked.gpu for ranked in front} | {*ranking.perhaps_cheapest[: MOST_ROWS - len(front)]}
    fitting = [name for name, row in predictions.items() if row.fits is not False]
    # If the step fits on no GPU, those whose missing memory is least come first.
    for name in fitting or ordered(predictions, lambda name: -(predictions[name].memory_free_bytes or 0.0)):
        if len(names) < FEWEST_ROWS:
            names.add(name)
    return tuple(name for name in predictions if name in names)


def shorten_frontier(front: Sequence[RankedGpu], most: int) -> tuple[RankedGpu, ...]:
    """Shorten a frontier to `most` GPUs: repeatedly drop the GPU that is hardly faster than the next slower GPU."""
    left = list(front)
    while len(left) > max(most, 1):
        left.remove(min(left[:-1], key=lambda ranked: left[left.index(ranked) + 1].seconds / ranked.seconds))
    return tuple(left)


def ranking_lines(ranking: Ranking, *, width: int = TEXT_WIDTH) -> tuple[str, ...]:
    """Return the ranking as lines of at most `width` characters."""
    return tuple(line for text in (*advice(ranking), *remarks(ranking)) for line in _wrapped(text, width))


def lines_of_run(ranking: Ranking, *, when: str, news: str, width: int = TEXT_WIDTH) -> tuple[str, ...]:
    """Return the ranking of a run in progress as lines; the first line states the remaining time.

    Args:
        ranking: The ranking.
        when: Start of the first sentence if the ranking states the remaining time itself: `After 16 steps: `.
        news: Sentence with the remaining time, used if the ranking does not state the remaining time.
        width: Maximum line width.
    """
    texts = [*advice(ranking), *remarks(ranking)]
    if _is_soon_over(ranking):
        texts[0] = f"{when}{texts[0]}"
    else:
        texts.insert(0, news)
    return tuple(line for text in texts for line in _wrapped(text, width))


def ranking_markdown(ranking: Ranking) -> str:
    """Return the ranking as a Markdown list."""
    return "\n".join(f"- {markdown_text(text)}" for text in (*advice(ranking), *remarks(ranking)))


def advice(ranking: Ranking) -> Iterable[str]:
    """Yield the recommendations: what to rent, and how to speed up the run."""
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
        names = alternatives_text(ranking.fastest.gpu, ranking.as_fast or ranking.perhaps_fastest)
        compared = _compared_to_machine(ranking.fastest, ranking)
        yield f"Fastest: {time_and_cost_text(ranking.fastest, ranking)} on {names}.{compared}"
    if ranking.limit is not None and ranking.fastest is not None:
        yield _help(ranking.fastest.prediction, ranking.limit)
    yield from _in_time(ranking)


def _is_soon_over(ranking: Ranking) -> bool:
    """Return whether a run in progress ends before it could be moved to another machine."""
    in_use = ranking.in_use
    return in_use is not None and in_use.is_running and in_use.is_short


def _is_too_short(ranking: Ranking) -> bool:
    """Return whether the run would end before a rented machine is ready."""
    best, in_use = ranking.cheapest, ranking.in_use
    if best is None or ranking.per_iteration or (in_use is not None and not in_use.is_short):
        return False
    return best.seconds <= MOVING_SECONDS


def _in_time(ranking: Ranking) -> Iterable[str]:
    """Yield the cheapest GPU that meets the deadline, as a sentence; nothing without a deadline."""
    if ranking.deadline_hours is not None:
        seconds = hours_to_seconds(ranking.deadline_hours)
        yield f"Within {duration(seconds)}: {_deadline_text(ranking, seconds)}."


def too_short(ranking: Ranking) -> Iterable[str]:
    """Yield sentences if the run is too short to rent a machine, with a ranking for longer runs; otherwise nothing."""
    if not (_is_soon_over(ranking) or _is_too_short(ranking)):
        return
    in_use, best, doubt = ranking.in_use, ranking.cheapest, ""
    if in_use is not None and in_use.is_running and in_use.left is not None:
        doubt = " (early estimate)"
        left = f"{duration_interval(in_use.left)}{' at most' if in_use.at_most else ''}"
        yield f"{left} left on {in_use.label}: too short to move the run."
    elif best is not None:
        yield (
            f"The run takes {time_and_cost_text(best, ranking)} on {with_article(best.gpu)}: too short to rent a "
            "machine."
        )
    names: dict[str, list[str]] = {}
    for word, ranked in (("cheapest", ranking.cheapest), ("fastest", ranking.fastest)):
        if ranked is not None:
            names.setdefault(ranked.gpu, []).append(word)
    if names:
        said = ", ".join(f"{' and '.join(words)} {gpu}" for gpu, words in names.items())
        yield f"For a longer run{doubt}: {said}."


def alternatives_text(name: str, others: Sequence[str]) -> str:
    """Format a GPU and its alternatives: `L40S or A10G`, `L4, T4 or any of 5 others`."""
    if not others:
        return name
    if len(others) <= 2:
        return f"{', '.join((name, *others[:-1]))} or {others[-1]}"
    return f"{name}, {others[0]} or any of {len(others) - 1} others"


_KIND_WORDS: Final = {"specialised": "specialised cloud", "marketplace": "marketplace", "hyperscaler": "hyperscaler"}
"""Name of each kind of provider in a sentence."""


def _to_rent(best: RankedGpu, ranking: Ranking) -> str:
    in_use, rivals = ranking.in_use, ranking.cheapest_rivals
    amount = time_and_cost_text(best, ranking)
    if in_use is not None and in_use.is_running and in_use.name in (best.gpu, *ranking.perhaps_cheapest):
        others = [name for name in (best.gpu, *ranking.perhaps_cheapest) if name != in_use.name]
        doubt = f" {alternatives_text(others[0], others[1:])} may cost the same." if others else ""
        own = amount if best.gpu == in_use.name or in_use.cost_usd is None else usd(in_use.cost_usd)
        return f"Stay on {in_use.label}: no GPU is cheaper ({own}).{doubt}"
    kind = _KIND_WORDS.get(kind_of_provider(best.prediction.price.provider or "") or "")
    precision = "" if best.prediction.precision is None else f"in {best.prediction.precision}"
    parts = (precision, best.prediction.offer, kind, _stale(best, ranking), sold_together(best.prediction))
    offer, words = ", ".join(filter(None, parts)), f"cheapest{_among(ranking)} ({amount})"
    beside = f"{_compared_to_machine(best, ranking)}{f' Offer: {offer}.' if offer else ''}"
    if in_use is not None and not _is_worth_renting(best, in_use):
        return f"Cheapest{_among(ranking)}: {_priced(best)}: {amount}.{beside} It saves no time."
    if rivals:
        return f"Rent {_either(best, rivals, ranking)}.{beside}"
    if ranking.compared == 1:
        words = amount
    if ranking.group is None and best.prediction.usd_per_hour is not None:
        price = ", ".join(filter(None, (usd_per_hour(best.prediction.usd_per_hour), offer)))
        return f"Rent {with_article(best.gpu)} ({price}): {words}.{_compared_to_machine(best, ranking)}"
    return f"Rent {_priced(best)}: {words}.{beside}"


def _either(best: RankedGpu, rivals: Sequence[RankedGpu], ranking: Ranking) -> str:
    """Recommend GPUs that may be equally cheap: `an L4 ($0.71/h) or a T4 ($0.35/h): both about $0.75, the cheapest`."""
    scale, dollars = (STEPS_SHOWN, usd_of_steps) if ranking.per_iteration else (1, usd)
    costs = list(dict.fromkeys(dollars(scale * cost) for cost in sorted(_cost(ranked) for ranked in (best, *rivals))))
    every, joined = ("both", "and") if len(rivals) == 1 else ("all", "to")
    both = f"{every} about {costs[0]}" if len(costs) == 1 else f"about {costs[0]} {joined} {costs[-1]}"
    steps = f" for {STEPS_SHOWN:,} steps" if ranking.per_iteration else ""
    others = {1: "", 2: " or another"}.get(len(rivals), f" or any of {len(rivals) - 1} others")
    cheap = f"{both.replace('about <', 'below ')}{steps}, the cheapest{_among(ranking)}"
    return (
        f"{_priced(best)} or {_priced(rivals[0])}{others}: {cheap}. {best.gpu} takes {duration(scale * best.seconds)}"
    )


def _priced(ranked: RankedGpu) -> str:
    """Format a GPU with its price: `an RTX-4090 ($0.29/h)`."""
    price = ranked.prediction.usd_per_hour
    return with_article(ranked.gpu) + ("" if price is None else f" ({usd_per_hour(price)})")


def _among(ranking: Ranking) -> str:
    """Return the size of the compared group, after a space: ` of the 27 GPUs that fit`; empty for named GPUs."""
    if ranking.group is None or ranking.compared < 2:
        return ""
    which = "with a price" if ranking.memory_unknown else "that fit"
    return f" of the {ranking.compared} {GROUPS[ranking.group]} {which}"


def sold_together(best: Prediction) -> str:
    """Describe the price of a GPU that is rented only in larger machines: `sold only in eights: $1.25/h each`."""
    paid, price = best.price.machine_gpus, best.usd_per_hour
    if paid is None or price is None or paid <= best.layout.gpus_per_node or best.num_gpus > 1:
        return ""
    count = {2: "pairs", 4: "fours", 8: "eights"}.get(paid, f"machines of {paid}")
    return f"sold only in {count}: {usd_per_hour(price / paid)} each"


def _stale(candidate: RankedGpu, ranking: Ranking) -> str:
    """Format the age of an outdated price: `price 63 days old`; empty for a recent price."""
    days = candidate.prediction.price.stale_days(ranking.made_on)
    if days is None:
        return ""
    return f"price {days} days old" if days < MONTHS_FROM else f"price {days * 12 // 365} months old"


def _is_slower(candidate: RankedGpu, in_use: MachineTimes) -> bool:
    """Return whether the run would take longer than on the machine in use; slower GPUs are never recommended."""
    return candidate.seconds > (1 + NEGLIGIBLE) * in_use.seconds


def _is_worth_renting(candidate: RankedGpu, in_use: MachineTimes) -> bool:
    """Return whether a GPU saves money, or time if the cost of the machine in use is unknown."""
    if in_use.cost_usd is None:
        return (1 + WORTH_NAMING) * candidate.seconds <= in_use.seconds
    return not _is_slower(candidate, in_use)


_SPELLED: Final = re.compile(r"[A-Z]+(?![a-z])")
"""Capital letters at the start of a name that are spelled out: `L` in L4, `RTX`, but not `M` in MyL4."""


def with_article(name: str) -> str:
    """Add `a` or `an` to a GPU's name by pronunciation: an A100, an RTX-4090, a T4; `8xT4` stays unchanged."""
    if re.match(r"\d+x", name):
        return name
    letters = _SPELLED.match(name)
    return f"{'an' if name[0] in ('AEFHILMNORSX' if letters is not None else 'AEIO') else 'a'} {name}"


def _compared_to_machine(candidate: RankedGpu, ranking: Ranking) -> str:
    """Compare a GPU with the machine in use: text after a space, empty if there is nothing to compare."""
    in_use = ranking.in_use
    if in_use is None or in_use.name == candidate.gpu or in_use.seconds <= 0 or candidate.seconds <= 0:
        return ""
    ratio = in_use.seconds / candidate.seconds
    if ratio >= 1 + WORTH_NAMING:
        times = f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}"
        return f" It is {times} times as fast as {in_use.label}."
    if ratio <= 1 / (1 + WORTH_NAMING):
        return f" It takes {1 / ratio:.2g} times as long as {in_use.label}."
    return f" It is as fast as {in_use.label}."


def _sooner(cheapest: RankedGpu, ranking: Ranking) -> Iterable[str]:
    """Yield a sentence with the faster, more expensive GPUs, each with the saved time and the extra cost."""
    texts = []
    for ranked in reversed(shorten_frontier(ranking.frontier, FEW + 1)):
        saved = cheapest.seconds - ranked.seconds
        if ranked.gpu == cheapest.gpu or saved < WORTH_NAMING * cheapest.seconds:
            continue
        if ranking.in_use is not None and _is_slower(ranked, ranking.in_use):
            continue
        scale = STEPS_SHOWN if ranking.per_iteration else 1
        added = (_cost(ranked) - _cost(cheapest)) * scale
        dollars = usd_of_steps(added) if ranking.per_iteration else usd(added)
        sold = sold_together(ranked.prediction)
        sold = f" ({sold})" if sold else ""
        texts.append(f"{ranked.gpu} is {duration(saved * scale)} sooner for {dollars} more{sold}")
    if texts:
        yield f"{'. '.join(texts)}."


def _help(fastest: Prediction, limit: Literal["loader", "host", "wait"]) -> str:
    if limit == "loader":
        return (
            f"The loader takes {duration(fastest.loader_seconds)} per step on any GPU. Use more workers or "
            "preprocessed data; a faster GPU would not help."
        )
    if limit == "wait":
        return (
            f"On {fastest.gpu} the step mostly waits for something outside torch (an environment, a server), on any "
            "GPU. Shorten this wait; a faster GPU would not help."
        )
    return (
        f"On {fastest.gpu} the CPU limits this step. Try a larger batch, torch.compile or CUDA graphs; a faster GPU "
        "would not help."
    )


def time_and_cost_text(candidate: RankedGpu, ranking: Ranking) -> str:
    """Format time and cost: `3 h 12 min, $1.12`."""
    if ranking.per_iteration:
        cost = "" if candidate.cost_usd is None else f", {usd_of_steps(STEPS_SHOWN * candidate.cost_usd)}"
        return f"{duration(STEPS_SHOWN * candidate.seconds)}{cost} for {STEPS_SHOWN:,} steps"
    most = "at most " if candidate.prediction.at_most else ""
    cost = "" if candidate.cost_usd is None else f", {usd(candidate.cost_usd)}"
    return f"{most}{duration(candidate.seconds)}{cost}"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False, drop_whitespace=True)


def _deadline_text(ranking: Ranking, deadline_seconds: float) -> str:
    best, fastest = ranking.within_deadline, ranking.fastest
    if fastest is None:
        return "none"
    if ranking.per_iteration:
        chosen = (ranking.cheapest or fastest, fastest)
        return " or ".join(dict.fromkeys(_amount_within(ranked, deadline_seconds) for ranked in chosen))
    if best is None:
        whole = f"the whole run takes {duration(fastest.seconds)} on it, the fastest"
        return f"{_amount_within(fastest, deadline_seconds)}; {whole}"
    late = "" if best.time.high <= deadline_seconds else f"; may take up to {duration(best.time.high)}"
    age = "" if best is ranking.cheapest else _stale(best, ranking)
    return f"{best.gpu}, {', '.join(filter(None, (time_and_cost_text(best, ranking), age)))}{late}"


def _amount_within(ranked: RankedGpu, seconds: float) -> str:
    """Format the part of a run that a GPU finishes in a time: `11 epochs (43,120 steps) on an RTX-4090`."""
    epoch, steps = ranked.prediction.run.epoch_iterations, math.floor(seconds / ranked.prediction.run.pace)
    if epoch and steps >= epoch:
        epochs = steps // epoch
        return f"{epochs:,} epoch{'' if epochs == 1 else 's'} ({epochs * epoch:,} steps) on {with_article(ranked.gpu)}"
    recorded = math.floor(seconds / ranked.prediction.run.pace * STEPS_SHOWN / ranked.prediction.run.shown_iterations)
    return f"{recorded:,} steps on {with_article(ranked.gpu)}"


def memory_of(candidate: RankedGpu) -> str | None:
    """Format the memory of a GPU: `fits, 7.81 of 14.1 GiB`; None if unknown."""
    row = candidate.prediction
    usable = row.memory.usable_bytes
    if row.memory_bytes is None or usable is None:
        return None
    fits = "fits tightly" if row.memory_fit == "tight" else "fits"
    least = row.memory_least_filled_bytes
    amount = gibibytes(row.memory_bytes) if least is None else f"{gibibytes(least)} to {gibibytes(row.memory_bytes)}"
    return f"{fits}, {amount} of {gibibytes(usable)} GiB"


def remarks(ranking: Ranking) -> Iterable[str]:
    """Yield remarks on GPUs that are not recommended, or recommended with reservations."""
    if ranking.fastest is None:
        yield "No GPU can be recommended: the run does not fit on any of them."
    if ranking.does_not_fit and ranking.group is not None:
        yield f"The run does not fit on {len(ranking.does_not_fit)} of the GPUs with a price."
    elif ranking.does_not_fit:
        yield f"Not recommended (does not fit): {listed(ranking.does_not_fit)}."
    if ranking.tight:
        yield f"Memory is tight on {listed(ranking.tight)}: run a few steps before you rent for long."
    if ranking.without_price:
        yield f"Price unknown: {listed(ranking.without_price)}."
    if ranking.memory_unknown:
        yield "Memory unknown: whether the run fits was not checked."


def _time_and_cost(line: TableLine, per_iteration: bool) -> tuple[Interval[float], float | None]:
    if not per_iteration and line.remaining is not None:
        return line.remaining, line.cost_usd
    price, time = line.usd_per_hour, line.cycle.scaled(line.run.shown_iterations / STEPS_SHOWN)
    return time, None if price is None else seconds_to_hours(time.middle) * price


def _cheapest(candidates: Iterable[RankedGpu]) -> RankedGpu | None:
    """Return the GPU with the lowest cost, or the fastest of several within 1 %; None if no cost is known."""
    return _fastest(_equal_least([ranked for ranked in candidates if ranked.cost_usd is not None], _cost))


def _fastest(candidates: Sequence[RankedGpu]) -> RankedGpu | None:
    """Return the fastest GPU, or the cheapest of several within 1 %; None without candidates."""
    return least(_equal_least(candidates, _time), _cost) if candidates else None


def _equal_least(candidates: Sequence[RankedGpu], value: Callable[[RankedGpu], float]) -> list[RankedGpu]:
    """Return the candidates within 1 % of the minimum value, in order."""
    smallest = min(map(value, candidates), default=0.0)
    return [ranked for ranked in candidates if value(ranked) <= smallest * (1 + NEGLIGIBLE)]


def _rivals(
    best: RankedGpu | None, candidates: Sequence[RankedGpu], value: Callable[[RankedGpu], float]
) -> tuple[RankedGpu, ...]:
    """Return the GPUs that beat `best` with a probability above `MIN_RIVAL_PROBABILITY`, likeliest first."""
    if best is None or value(best) <= 0:
        return ()

    def chance(rival: RankedGpu) -> float:
        """Return the probability that the first of two log-normal values is smaller."""
        log_ratio, spread = math.log(value(rival) / value(best)), math.hypot(_spread(rival), _spread(best))
        return 0.5 * math.erfc(log_ratio / (spread * math.sqrt(2))) if spread > 0 else float(log_ratio < -TIE)

    rivals = [
        ranked
        for ranked in candidates
        if ranked is not best and value(ranked) > 0 and chance(ranked) > MIN_RIVAL_PROBABILITY
    ]
    return tuple(ordered(rivals, chance, reverse=True))


def _spread(candidate: RankedGpu) -> float:
    """Return the standard deviation of the logarithm of the time, without what is the same on every GPU."""
    time, run = candidate.time, candidate.prediction.run
    same = run.beside if time == run.total else NOTHING
    low = time.middle - math.sqrt(max(0.0, (time.middle - time.low) ** 2 - (same.middle - same.low) ** 2))
    high = time.middle + math.sqrt(max(0.0, (time.high - time.middle) ** 2 - (same.high - same.middle) ** 2))
    return math.log(high / low) / (2 * NORMAL_95) if 0 < low < high < math.inf else 0.0


def _limit(prediction: Prediction) -> Literal["loader", "host", "wait"] | None:
    bound = bound_by(prediction)
    return bound if bound in ("loader", "host", "wait") else None  # type: ignore[return-value]


def _in_use(predictions: AbstractPredictions, per_iteration: bool) -> MachineTimes | None:
    line: TableLine | None = predictions.get(predictions.used_gpu or "") or predictions.machine
    if line is None or (line.remaining is None and not per_iteration):
        return None
    name = line.name if isinstance(line, MachineInUse) else line.gpu
    time, cost = _time_and_cost(line, per_iteration)
    return MachineTimes(
        name=name,
        label=name_in_use(name, predictions),
        is_running=predictions.is_running,
        time=time,
        cost_usd=cost,
        left=line.remaining,
        at_most=line.at_most,
    )


def _time(candidate: RankedGpu) -> float:
    return candidate.seconds


def _cost(candidate: RankedGpu) -> float:
    """Return the cost as a sort key; a missing cost sorts last."""
    return math.inf if candidate.cost_usd is None else candidate.cost_usd
