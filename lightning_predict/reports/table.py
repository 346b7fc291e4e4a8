"""Print predictions as tables: plain text, rich and Markdown, all from the same columns and footnotes.

A heading says what is predicted; the machine in use comes first. What does not change a decision (the methods that
timed the device, the sources of prices, most notes) is shown where `verbose` asks for it. Columns give way where there
is no room for all. Energy has columns of its own, for those who ask. Example::

    print(result)            # plain_table: at most 120 columns, no colours
    print_table(result)      # rich: as wide as the terminal
    markdown_table(result)   # for TensorBoard and MLflow

    energies = {one.gpu: prediction_energy(one, grid_grams_per_kwh=380) for one in result.values()}
    print(plain_table(result, extra=energy_columns(energies)))
"""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Literal, final

from lightning_predict.cost.energy import Energy
from lightning_predict.cost.memory import MemoryNeed
from lightning_predict.cost.prediction import AbstractPredictions, MachineInUse, Prediction
from lightning_predict.gpus.lookup import other_forms
from lightning_predict.gpus.records import NVIDIA
from lightning_predict.interval import Interval
from lightning_predict.note import is_detail
from lightning_predict.reports.format import (
    PLAIN_WIDTH,
    duration,
    encoding_at_hand,
    gibibytes,
    markdown_text,
    milliseconds,
    milliseconds_interval,
    relative_interval,
    share,
    significant,
    usd,
    usd_of_steps,
    usd_per_hour,
)
from lightning_predict.units import seconds_to_hours

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


SHARE_TO_MENTION: Final = 0.01
"""Share of a total from which on what it is for is said."""

BASE_MARK: Final = "†"
"""Beside the name of a GPU that networks time without having seen a measurement of it."""

LARGE_BASE_SHARE: Final = 0.5
"""Share of the time by such networks from which a GPU is marked: most of it."""

_METHODS: Final = {
    "measured": "measured here",
    "mlp": "a network trained on the operation and dtype",
    "proxy": "through a related operation or dtype",
    "wave": "kernel times measured here, wave-scaled",
    "bytes": "as a copy of as many bytes",
    "formula": "a formula of tiles or caches",
    "roofline": "peak arithmetic and bandwidth only",
}
"""What each method of `Iteration.coverage` does, in words."""


def name_in_use(name: str, predictions: AbstractPredictions) -> str:
    """Name the machine in use: `this L4`, or `L4 (recorded)` where a recording is all there is of the run."""
    return f"this {name}" if predictions.is_running else f"{name} (recorded)"


def in_use_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say how well the GPU in use would have been predicted without its measurement."""
    own = predictions.get(predictions.used_gpu or "")
    if own is None or own.measured_seconds is None or own.unmeasured_seconds is None:
        return
    error = 100 * (own.unmeasured_seconds / own.measured_seconds - 1)
    yield (
        f"{own.gpu}: a step takes {milliseconds(own.measured_seconds)} ms (measured); without that, "
        f"{milliseconds(own.unmeasured_seconds)} ms would be predicted ({error:+.0f} %)."
    )


def end_notes(predictions: AbstractPredictions) -> Iterable[str]:
    """Say what may end the run earlier."""
    if span_of(predictions).times is None and any(prediction.at_most for prediction in predictions.values()):
        yield "≤: the run may end earlier."
    yield from time_limit_note(predictions)


def total_notes(predictions: AbstractPredictions) -> Iterable[str]:
    """Say what the total time includes, and what its interval promises."""
    if predictions:
        yield "Interval: nine in ten measured times should lie in it (90 %)."
    if any(prediction.validation_is_estimated for prediction in predictions.values()):
        yield "Total: the time of validation is estimated from the forward part of a training step."
    writing = [one for one in predictions.values() if _checkpoint_share(one) >= SHARE_TO_MENTION]
    if writing:
        how = ", estimated from their size" if any(one.checkpoint_is_estimated for one in writing) else ""
        yield f"Total: {duration(max(one.checkpoint_seconds or 0.0 for one in writing))} for checkpoints{how}."


def _checkpoint_share(prediction: Prediction) -> float:
    if not prediction.total_seconds or prediction.checkpoint_seconds is None:
        return 0.0
    return prediction.checkpoint_seconds / prediction.total_seconds


def is_bound_by_loader(prediction: Prediction) -> bool:
    """Tell whether the loader takes longer for the batches of a step than the step computes."""
    return prediction.loader_seconds > prediction.iteration_seconds and prediction.run.loader_is_believed


def loader_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say what the loader takes, where it is the limit."""
    bound = [prediction.loader_seconds for prediction in predictions.values() if is_bound_by_loader(prediction)]
    if bound:
        yield (
            f"Bound by loader: it takes {milliseconds(max(bound))} ms for the batches of an iteration on any GPU, so a "
            "faster one hardly helps; the total counts it. More workers may."
        )


def host_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say what a faster GPU gains where the host is the limit."""
    names_of_gain: dict[int, list[str]] = {}
    for prediction in predictions.values():
        verdict = prediction.verdict
        if verdict is not None and verdict.bound_by == "host" and not is_bound_by_loader(prediction):
            names_of_gain.setdefault(round(100 * verdict.gain), []).append(prediction.gpu)
    gains = [f"{gain} % ({', '.join(names)})" for gain, names in sorted(names_of_gain.items())]
    if gains:
        yield f"Bound by host: it cannot launch faster, so a GPU twice as fast gains {', '.join(gains)}."


def is_bound_by_links(prediction: Prediction) -> bool:
    """Tell whether half of a step or more is waiting for other GPUs."""
    return prediction.added_seconds >= prediction.iteration_seconds / 2


def links_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say how long several GPUs wait for each other in a step."""
    several = [one for one in predictions.values() if one.num_gpus > 1]
    shares = [(one.gpu, one.added_seconds / one.iteration_seconds) for one in several if one.added_seconds > 0]
    if shares:
        waits = ", ".join(f"{100 * share:.0f} % ({name})" for name, share in shares)
        yield f"Several GPUs: of an iteration, they wait for each other {waits}."


def replicas_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say that each of several GPUs takes samples of its own, and how many steps are left of a run then."""
    several = [one for one in predictions.values() if one.num_gpus > 1]
    if several:
        steps = [
            f"{one.iterations:,} of {one.run.samples_per_iteration:,} samples ({one.gpu})"
            for one in several
            if one.iterations is not None and one.run.samples_per_iteration is not None
        ]
        fewer = f"so that fewer steps do as much: {', '.join(steps)}" if steps else "so that steps are fewer"
        yield f"Several GPUs: each copy of the model takes as many samples as were recorded, {fewer}."


def bound_notes(predictions: AbstractPredictions) -> Iterable[str]:
    """Say what bounds a step, where it is not the device."""
    yield from links_note(predictions)
    yield from host_note(predictions)
    yield from loader_note(predictions)


def doubtful_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say where it is not known which of the two queues bounds a step."""
    if any(bound_by(prediction).endswith("?") for prediction in predictions.values()):
        yield "host? or device?: which of the two bounds a step is not sure, as nobody timed the host."


def epoch_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say what an epoch takes where the length of the run is not known."""
    known = [one for one in predictions.values() if one.total_seconds is None and one.epoch_seconds is not None]
    if known:
        epochs = (f"{one.gpu} {duration(one.epoch_seconds or 0.0)}" for one in known)
        yield f"An epoch of training takes: {', '.join(epochs)}."


def tight_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Name the GPUs whose memory is narrow, and what is left of it."""
    tight = [
        f"{one.gpu} has {gibibytes(one.memory_free_bytes or 0.0)} GiB to spare" + _chance(one.memory)
        for one in predictions.values()
        if one.memory_fit == "tight"
    ]
    if tight:
        yield f"Tight: it fits as predicted, but not surely ({'; '.join(tight)})."


def large_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say how much is missing even to a step that keeps no more than it must, and where to read what would help."""
    missing = [
        (one, f"{one.gpu} lacks at least {gibibytes(-one.memory_free_bytes)} GiB")
        for one in predictions.values()
        if one.memory_fit == "exceeds" and one.memory_free_bytes is not None and one.memory_free_bytes < 0
    ]
    if missing:
        told = "`lightning-predict trace memory` says what fills it, and what would help"
        if any(one.num_gpus > 1 for one, _ in missing):
            told += "; `lightning-predict parallel` finds how several GPUs can share it"
        yield f"Too large: {', '.join(words for _, words in missing)}. {told}."


def _chance(need: MemoryNeed) -> str:
    return "" if need.fit_probability is None else f", a chance of {share(need.fit_probability)}"


def time_limit_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say how far a run gets that a time limit ends."""
    reached = [
        f"{one.gpu} {one.total_seconds / one.cycle_seconds:,.0f}"
        for one in predictions.values()
        if one.is_cut_off and one.total_seconds is not None and one.cycle_seconds
    ]
    if reached:
        yield f"The time limit ends the run. Steps until then, without validation: {', '.join(reached)}."


def coverage_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Explain the methods that time the device."""
    if not any(one.coverage for one in predictions.values()):
        return
    methods = {method for one in predictions.values() for method, part in one.coverage.items() if part > 0}
    known = [f"{method}: {meaning}" for method, meaning in _METHODS.items() if method in methods]
    others = sorted(methods - _METHODS.keys())
    yield f"Covered by: share of the device's time by method ({'; '.join([*known, *others])})."


def is_marked_as_base(prediction: Prediction) -> bool:
    """Tell whether networks that saw no measurement of the GPU time a share of it that counts, or a file describes it.

    A step that was measured on the GPU says more than either.
    """
    is_unseen = prediction.base_share >= LARGE_BASE_SHARE or prediction.layout.gpu.is_described_by_user
    return is_unseen and prediction.measured_seconds is None


def base_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Name the GPUs for which networks had no measurements, and for how much of the time."""
    names_of_share: dict[str, list[str]] = {}
    for prediction in predictions.values():
        if is_marked_as_base(prediction):
            names_of_share.setdefault(share(prediction.base_share), []).append(prediction.gpu)
    if names_of_share:
        shares = ", ".join(f"{part} ({', '.join(names)})" for part, names in names_of_share.items())
        yield (
            f"{BASE_MARK}: times were not measured on that GPU: networks of others, which know it by its data sheet "
            f"alone, timed {shares}."
        )


def vendor_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say of which accelerators not even the vendor's GPUs were measured."""
    makers: dict[str, list[str]] = {}
    for prediction in predictions.values():
        if prediction.layout.gpu.vendor != NVIDIA:
            makers.setdefault(prediction.layout.gpu.vendor, []).append(prediction.gpu)
    for maker, names in makers.items():
        yield (
            f"{', '.join(names)}: made by {maker}, but timed by networks and rules that know NVIDIA's GPUs and "
            "libraries alone, from a data sheet; no kernel was measured there, so intervals are twice as wide each "
            "way: an order of size."
        )


LARGE_INDIRECT_SHARE: Final = 0.1
"""Share of the device's time that no network of its own timed, from which on it is said."""


def indirect_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say how much of the time no measurement and no network of the operation's own stands behind."""
    shares = [
        sum(one.coverage.get(way, 0.0) for way in ("proxy", "bytes", "formula", "roofline"))
        for one in predictions.values()
        if one.fits is not False
    ]
    if max(shares, default=0.0) >= LARGE_INDIRECT_SHARE:
        low, high = share(min(shares)), share(max(shares))
        part = high if low == high else f"{low.removesuffix(' %')} to {high}"
        yield (
            f"{part} of the device's time is predicted through related operations, by formulas or as copies: counted "
            "in the intervals."
        )


def asked_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say which card a name was taken for that several are sold under."""
    for asked, one in {one.layout.asked: one for one in predictions.values() if one.layout.asked is not None}.items():
        found = one.layout.gpu
        yield f"{asked} is taken for {found.name}; also sold: {', '.join(other_forms(asked, found))}."


OLD_DAYS: Final = 180
"""Days from which on a price may well have changed, a round figure: of the 14 machines that `offers.toml` lists at two
dates, a year to a year and a half apart, 8 cost the same at both, 4 cost 12 to 44 % less at the second, 2 cost 27 to
29 % more."""


def old_price_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Name the GPUs whose prices are older than `OLD_DAYS`."""
    if predictions.made_on is None:
        return
    today = datetime.date.fromisoformat(predictions.made_on)
    old = [
        f"{one.gpu} ({one.price.priced_on})"
        for one in predictions.values()
        if one.price.priced_on is not None and (today - _last_day(one.price.priced_on)).days > OLD_DAYS
    ]
    if old:
        yield f"Prices older than {OLD_DAYS} days, look them up before you rent: {', '.join(old)}."


def _last_day(listed: str) -> datetime.date:
    """Read the date of a price; a month without a day is taken to its 28th."""
    return datetime.date.fromisoformat(listed if listed.count("-") == 2 else f"{listed}-28")


def price_notes(predictions: AbstractPredictions) -> Iterable[str]:
    """List each price once, with its GPUs, its source and date."""
    names_of_price: dict[tuple[float, str], list[str]] = {}
    for prediction in predictions.values():
        if prediction.usd_per_hour is not None:
            key = (prediction.usd_per_hour, prediction.offer or "source not stated")
            names_of_price.setdefault(key, []).append(prediction.gpu)
    prices = [f"{', '.join(names)} {usd_per_hour(price)}, {offer}" for (price, offer), names in names_of_price.items()]
    if prices:
        yield f"Prices: {'; '.join(prices)}."


def prediction_notes(predictions: AbstractPredictions, *, details: bool) -> Iterable[str]:
    """List the notes of single predictions, each once with the names of its GPUs.

    Args:
        predictions: Whose notes.
        details: Those that change no decision, or the others.
    """
    names_of_note: dict[str, list[str]] = {}
    for prediction in predictions.values():
        for note in prediction.notes:
            if is_detail(note) == details:
                names_of_note.setdefault(note, []).append(prediction.gpu)
    for note, names in names_of_note.items():
        yield note if len(names) == len(predictions) else f"{', '.join(names)}: {note}"


TableLine = Prediction | MachineInUse
"""What a row is of."""


def lines_of(predictions: AbstractPredictions, *, fold: bool = False) -> tuple[TableLine, ...]:
    """List what the rows are of: the machine in use, then the others in the order asked, what does not fit last.

    Args:
        predictions: Whose rows.
        fold: Leave out those that others stand for; see `stood_for`.
    """
    own = predictions.get(predictions.used_gpu or "")
    left_out = stood_for(predictions) if fold else ()
    others = (one for one in predictions.values() if one is not own and one.gpu not in left_out)
    first: list[TableLine] = [one for one in (predictions.machine, own) if one is not None]
    return (*first, *sorted(others, key=lambda one: one.fits is False))


def stood_for(predictions: AbstractPredictions) -> dict[str, Prediction]:
    """Find the GPUs that take as long as a cheaper one, as the loader or the host decides.

    Returns:
        By name of the GPU, the one that stands for it: nothing but its price and name would differ in a row.
    """
    span = span_of(predictions)
    alike: dict[tuple[str, str, str | None], list[Prediction]] = {}
    for one in predictions.values():
        seconds = span.seconds(one)
        if one.gpu == predictions.used_gpu or seconds is None or one.usd_per_hour is None:
            continue  # what costs nobody knows how much may be the cheaper one
        if bound_by(one) in ("loader", "host"):
            alike.setdefault((bound_by(one), duration(seconds.middle), one.memory_fit), []).append(one)
    standing: dict[str, Prediction] = {}
    for group in alike.values():
        cheapest = min(group, key=lambda one: one.usd_per_hour or 0.0)
        standing.update({one.gpu: cheapest for one in group if one is not cheapest})
    return standing


def folded_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Name the GPUs that have no row of their own."""
    names_of_gpu: dict[str, list[str]] = {}
    found = stood_for(predictions)
    for name, one in found.items():
        names_of_gpu.setdefault(one.gpu, []).append(name)
    for gpu, names in names_of_gpu.items():
        take = "takes" if len(names) == 1 else "take"
        limit = bound_by(found[names[0]])
        yield f"{', '.join(names)} {take} as long as the {gpu}, and no less money: the {limit} decides."


GAP: Final = 2
"""Spaces between two columns."""

_UNKNOWN: Final = "unknown"
_MOST_LINES: Final = 2
"""A table of ten GPUs with more lines for each is no longer read at a glance."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of every table.

    Attributes:
        header: Words over it, in lines.
        cell: Its text for one GPU; None if the value is not known.
        machine: Its text for the machine in use; None leaves it empty.
        justify: Alignment.
        gives_way: Order in which columns go when there is no room for all, 1 first; None: it stays.
        breaks: Its cells may be broken into lines, after commas only.
    """

    header: str
    cell: Callable[[Prediction], str | None]
    machine: Callable[[MachineInUse], str | None] | None = None
    justify: Literal["left", "right"] = "left"
    gives_way: int | None = None
    breaks: bool = False

    @property
    def title(self) -> str:
        """The header on one line."""
        return self.header.replace("\n", " ")

    def text(self, line: TableLine) -> str | None:
        """Write the cell of one row; None if the value is not known."""
        if isinstance(line, Prediction):
            return self.cell(line)
        return "" if self.machine is None else self.machine(line) or ""


COVERED_BY: Final = "covered by"

STEPS_SHOWN: Final = 1000
"""Steps whose time and cost are shown where the length of the run is not known: of one, nobody has an idea."""


@final
@dataclass(frozen=True, slots=True)
class Span:
    """What times and costs are shown of: the run, or so many steps where its length is not known.

    Attributes:
        title: Its name over the column.
        times: Seconds of one step are multiplied by it; None: of the whole run.
    """

    title: str
    times: int | None = None

    def seconds(self, line: TableLine) -> Interval[float] | None:
        """Give the seconds on one GPU with their interval; None if not known."""
        if self.times is None:
            return line.total
        return line.cycle.scaled(self.times)

    def cost_usd(self, line: TableLine) -> float | None:
        """Give the cost on one GPU; None if not known."""
        price, seconds = line.price, self.seconds(line)
        if self.times is None:
            return price.cost_usd
        return (
            None
            if seconds is None or price.usd_per_hour is None
            else (seconds_to_hours(seconds.middle) * price.usd_per_hour)
        )


def span_of(predictions: AbstractPredictions) -> Span:
    """Choose what times and costs are shown of."""
    if predictions and all(one.total_seconds is None for one in predictions.values()):
        return Span(f"{STEPS_SHOWN:,} steps", STEPS_SHOWN)
    return Span("rest of the run" if predictions.is_running else "total")


def _memory(need: MemoryNeed) -> str | None:
    if need.memory_bytes is None:
        return None
    if need.usable_bytes is None:
        return gibibytes(need.memory_bytes)
    amount = f"{gibibytes(need.memory_bytes)} of {gibibytes(need.usable_bytes)}"
    return {"exceeds": f"too large: {amount}", "tight": f"tight: {amount}"}.get(need.memory_fit or "", amount)


def bound_by(prediction: Prediction) -> str:
    """Name what a step waits for most; with a question mark where that is not sure."""
    if is_bound_by_loader(prediction):
        return "loader"
    verdict = prediction.verdict
    if verdict is not None and verdict.bound_by in ("links", "bubble"):
        return verdict.bound_by
    if is_bound_by_links(prediction):
        return "links"
    bound = "host" if prediction.host_seconds > prediction.device_seconds else "device"
    return f"{bound}?" if verdict is not None and verdict.is_doubtful else bound


def _covered_by(prediction: Prediction) -> str | None:
    by_share = sorted(prediction.coverage.items(), key=lambda item: -item[1])
    text = ", ".join(f"{method} {share(part)}" for method, part in by_share if part > 0)
    return text or None


def columns_of(predictions: AbstractPredictions, *, verbose: bool = False) -> tuple[Column, ...]:
    """Choose the columns of a table of these predictions."""
    span = span_of(predictions)

    def name(prediction: Prediction) -> str:
        in_use = prediction.gpu == predictions.used_gpu
        text = name_in_use(prediction.gpu, predictions) if in_use else prediction.gpu
        return f"{text} {BASE_MARK}" if is_marked_as_base(prediction) else text

    def most(line: TableLine) -> str:
        return "≤ " if line.at_most and span.times is None else ""

    def total(line: TableLine) -> str | None:
        seconds = span.seconds(line)
        return None if seconds is None else most(line) + duration(seconds.middle)

    def interval(line: TableLine) -> str | None:
        seconds = span.seconds(line)
        is_measured = isinstance(line, MachineInUse) or line.measured_seconds is not None
        if is_measured and not (predictions.is_running and seconds is not None and seconds.low < seconds.high):
            return "measured" if isinstance(line, Prediction) or seconds is not None else ""
        return None if seconds is None else relative_interval(seconds.low, seconds.middle, seconds.high)

    def cost(line: TableLine) -> str | None:
        amount = span.cost_usd(line)
        if amount is None:
            return None
        text = usd(amount) if span.times is None else usd_of_steps(amount)
        return text if text.startswith("<") else most(line) + text

    def price(line: TableLine) -> str | None:
        return None if line.price.usd_per_hour is None else usd_per_hour(line.price.usd_per_hour).removesuffix("/h")

    def step_interval(prediction: Prediction) -> str:
        return milliseconds_interval(prediction.iteration_seconds_low, prediction.iteration_seconds_high)

    brief = (
        Column(header="GPU", cell=name, machine=lambda machine: name_in_use(machine.name, predictions)),
        Column(
            header="step",
            cell=lambda one: duration(one.measured_seconds or one.iteration_seconds),
            machine=lambda machine: duration(machine.step_seconds),
            justify="right",
        ),
        Column(header=span.title, cell=total, machine=total, justify="right"),
        Column(header="(90 %)", cell=interval, machine=interval),
        Column(header="cost", cell=cost, machine=cost, justify="right"),
        Column(header="$/h", cell=price, machine=price, justify="right", gives_way=3),
        Column(
            header="memory (GiB)",
            cell=lambda one: _memory(one.memory),
            machine=lambda machine: _memory(machine.memory),
        ),
        Column(header="bound by", cell=bound_by, gives_way=2),
    )
    if not verbose:
        return brief
    return (
        *brief[:2],
        Column(header="90 % of steps\n(ms)", cell=step_interval, justify="right", gives_way=1),
        *brief[2:],
        Column(header=COVERED_BY, cell=_covered_by, gives_way=4, breaks=True),
    )


@final
@dataclass(frozen=True, slots=True)
class Grid:
    """The columns and texts of one table.

    Attributes:
        columns: The columns that are shown.
        rows: The texts of each GPU, in lines where a cell is broken.
        unknown: Titles of the columns in which nothing is known.
        hidden: Titles of the columns that there was no room for.
        lines: What each row is of.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    unknown: tuple[str, ...]
    hidden: tuple[str, ...]
    lines: tuple[TableLine, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each column in characters."""
        texts = zip((column.header for column in self.columns), *self.rows, strict=True)
        return tuple(max(len(line) for text in column for line in text.split("\n")) for column in texts)


def grid(
    predictions: AbstractPredictions,
    width: int | None = None,
    *,
    extra: Sequence[Column] = (),
    verbose: bool = False,
    fold: bool = False,
) -> Grid:
    """Choose columns and write texts of a table for these predictions.

    Args:
        predictions: What to show.
        width: Characters on one line; columns give way where it is too small for all. None: no limit.
        extra: Columns to show after the usual ones.
        verbose: Show the interval of a step and the methods, too.
        fold: Leave out the rows of GPUs that others stand for.
    """
    offered = (*columns_of(predictions, verbose=verbose), *extra)
    known = [
        column
        for column in offered
        if not predictions or any(column.cell(prediction) is not None for prediction in predictions.values())
    ]
    unknown = tuple(column.title for column in offered if column not in known)
    giving_way = sorted((column for column in known if column.gives_way), key=lambda column: column.gives_way or 0)
    lines = lines_of(predictions, fold=fold)
    for count in range(len(giving_way) + 1):
        hidden = giving_way[:count]
        columns = tuple(column for column in known if column not in hidden)
        rows = tuple(tuple(_cell(column, line) for column in columns) for line in lines)
        shown = Grid(columns, rows, unknown, tuple(column.title for column in hidden), lines)
        if width is None:
            break
        shown = _broken(shown, width)
        if _total_width(shown.widths) <= width and _most_lines(shown) <= _MOST_LINES:
            break
    return shown


def _cell(column: Column, line: TableLine) -> str:
    text = column.text(line)
    return _UNKNOWN if text is None else text


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _most_lines(shown: Grid) -> int:
    return max((text.count("\n") + 1 for row in shown.rows for text in row), default=1)


def _broken(whole: Grid, width: int) -> Grid:
    """Break the cells of the breaking columns as far as the width asks for."""
    excess = _total_width(whole.widths) - width
    if excess <= 0:
        return whole
    rows = tuple(
        tuple(
            _break_after_commas(text, column_width - excess) if column.breaks else text
            for column, column_width, text in zip(whole.columns, whole.widths, row, strict=True)
        )
        for row in whole.rows
    )
    return replace(whole, rows=rows)


def _break_after_commas(text: str, width: int) -> str:
    first, *others = text.split(", ")
    lines = [first]
    for piece in others:
        joined = f"{lines[-1]}, {piece}"
        if len(joined) < width:  # less, as a comma may follow
            lines[-1] = joined
        else:
            lines[-1] += ","
            lines.append(piece)
    return "\n".join(lines)


def energy_columns(energies: Mapping[str, Energy | None]) -> tuple[Column, ...]:
    """Make a column of kWh, and one of CO2 where a grid's intensity was given.

    Args:
        energies: By GPU name; None if the length of the run is unknown.
    """
    grids = {one.grid_grams_per_kwh for one in energies.values() if one is not None} - {None}

    def kilowatt_hours(prediction: Prediction) -> str | None:
        found = energies.get(prediction.gpu)
        return None if found is None else significant(found.kilowatt_hours)

    def co2(prediction: Prediction) -> str | None:
        found = energies.get(prediction.gpu)
        return None if found is None or found.co2_kilograms is None else significant(found.co2_kilograms)

    energy = Column(header="energy\n(kWh)", cell=kilowatt_hours, justify="right")
    return (energy, Column(header="CO2\n(kg)", cell=co2, justify="right")) if grids else (energy,)


def energy_note(energies: Mapping[str, Energy | None]) -> str:
    """Say what the energies are of."""
    grids = {one.grid_grams_per_kwh for one in energies.values() if one is not None} - {None}
    grid = "".join(f" CO2 at {grams:g} g/kWh." for grams in sorted(one for one in grids if one is not None))
    factors = sorted({one.overhead for one in energies.values() if one is not None} - {1.0})
    of = "the GPU alone" if not factors else f"the GPU, times {factors[0]:g} for the data centre (PUE)"
    return f"Energy: of {of}, at its power limit while it computes; an upper estimate.{grid}"


_ASCII: Final = str.maketrans({"≤": "<", "–": "-", "†": "+", "±": "~", "−": "-", "×": "x"})  # noqa: RUF001
"""One character for one, so that columns stay aligned."""


def plain_table(
    predictions: AbstractPredictions,
    *,
    extra: Sequence[Column] = (),
    verbose: bool = False,
    notes: Sequence[str] = (),
) -> str:
    """Write the table and its footnotes as aligned text of at most 120 columns, without colours.

    Args:
        predictions: What to show.
        extra: Columns to show after the usual ones.
        verbose: Add the methods that timed the device, the sources of prices, and every note.
        notes: What else is to be said.
    """
    shown = grid(predictions, PLAIN_WIDTH, extra=extra, verbose=verbose, fold=not verbose)
    header_lines = max(column.header.count("\n") for column in shown.columns)
    headers = ["\n" * (header_lines - column.header.count("\n")) + column.header for column in shown.columns]
    rule = ["-" * width for width in shown.widths]
    heading = () if predictions.heading is None else (*_wrapped(predictions.heading, PLAIN_WIDTH), "")
    lines = [line for row in (headers, rule, *shown.rows) for line in _aligned(row, shown)]
    below = [
        line
        for note in (*table_notes(predictions, shown, verbose=verbose), *notes)
        for line in _wrapped(note, PLAIN_WIDTH)
    ]
    return "\n".join([*heading, *lines, *(("", *below) if below else ())])


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)


def print_table(
    predictions: AbstractPredictions,
    console: Console | None = None,
    *,
    extra: Sequence[Column] = (),
    verbose: bool = False,
    notes: Sequence[str] = (),
) -> None:
    """Print the table and its footnotes; columns that a narrow terminal has no room for are named below it.

    Args:
        predictions: What to print.
        console: Where to; standard output without one, 120 columns wide where that is a file.
        extra: Columns to show after the usual ones.
        verbose: Add the methods that timed the device, the sources of prices, and every note.
        notes: What else is to be said.
    """
    from rich.console import Console
    from rich.text import Text

    if console is None:
        console = Console()
        if not (console.is_terminal or console.is_jupyter):
            console.width = PLAIN_WIDTH
    if console.options.ascii_only:  # its encoding is not a Unicode one; a character that it lacks would raise
        text = plain_table(predictions, extra=extra, verbose=verbose, notes=notes).translate(_ASCII)
        console.out(text.encode(console.encoding, "replace").decode(console.encoding), highlight=False)
        return
    shown = grid(predictions, console.width, extra=extra, verbose=verbose, fold=not verbose)
    if predictions.heading is not None:
        console.print(Text("\n".join(_wrapped(predictions.heading, console.width)), style="bold"))
        console.print()
    console.print(_rich_table(predictions, shown))
    below = (*table_notes(predictions, shown, verbose=verbose), *notes)
    if below:
        console.print()
    for note in below:
        console.print(Text("\n".join(_wrapped(note, console.width)), style="dim"))


def print_text(text: Callable[[], str], write: Callable[[str], object] = print) -> str | None:
    """Write a text for people to read, in characters that standard output has.

    Args:
        text: Makes the text, which may ask how wide the terminal is.
        write: Prints it.

    Returns:
        What went wrong where it cannot be written: whoever read it has gone, or somebody's progress bar fails.
    """
    try:
        encoding = encoding_at_hand()
        characters = text() if encoding.lower().startswith("utf") else text().translate(_ASCII)
        write(characters.encode(encoding, "replace").decode(encoding))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def markdown_table(
    predictions: AbstractPredictions,
    *,
    extra: Sequence[Column] = (),
    verbose: bool = True,
    notes: Sequence[str] = (),
    width: int | None = None,
) -> str:
    """Write the table and its footnotes in Markdown, in full unless asked otherwise.

    Args:
        predictions: What to show.
        extra: Columns to show after the usual ones.
        verbose: Add the methods that timed the device, the sources of prices, and every note.
        notes: What else is to be said.
        width: Characters on a line where the page is narrow: columns give way to it. None: no limit.
    """
    shown = grid(predictions, width, extra=extra, verbose=verbose, fold=not verbose)
    rule = ["---:" if column.justify == "right" else ":---" for column in shown.columns]
    heads = [markdown_text(column.title) for column in shown.columns]
    # Readers of Markdown give a long cell its room by breaking the words of the short ones.
    rows = [
        [
            markdown_text(text).replace(", ", ",<br>") if column.breaks else markdown_text(text)
            for column, text in zip(shown.columns, row, strict=True)
        ]
        for row in shown.rows
    ]
    heading = () if predictions.heading is None else (f"**{markdown_text(predictions.heading)}**", "")
    lines = ["| " + " | ".join(row) + " |" for row in (heads, rule, *rows)]
    below = (*table_notes(predictions, shown, verbose=verbose), *notes)
    return "\n".join([*heading, *lines, "", *(f"- {markdown_text(note)}" for note in below)])


def html_table(predictions: AbstractPredictions) -> str:
    """Write the table and its footnotes as a fragment of HTML, as notebooks show values."""
    shown = grid(predictions, fold=True)

    def line(kind: str, texts: Sequence[str], scope: str) -> str:
        cells = []
        for number, (column, text) in enumerate(zip(shown.columns, texts, strict=True)):
            is_head = kind == "th" or number == 0
            given = f' scope="{scope}"' if is_head else ""
            tag = "th" if is_head else "td"
            cells.append(f'<{tag}{given} style="text-align: {column.justify}">{escape(text)}</{tag}>')
        return f"<tr>{''.join(cells)}</tr>"

    head = line("th", [column.title for column in shown.columns], "col")
    body = "".join(line("td", row, "row") for row in shown.rows)
    caption = "" if predictions.heading is None else f"<caption>{escape(predictions.heading)}</caption>"
    notes = "".join(
        f"<li>{escape(note)}</li>" for note in table_notes(predictions, shown, asked_by=".text(verbose=True)")
    )
    return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table><ul>{notes}</ul>"


def table_notes(
    predictions: AbstractPredictions, shown: Grid, *, verbose: bool = False, asked_by: str = "verbose"
) -> tuple[str, ...]:
    """Collect what is said below a table: what changes a decision, and all else where it is asked for.

    Args:
        predictions: Of which.
        shown: Their table.
        verbose: Give all else, too.
        asked_by: What a reader would type for it, where it is left out.
    """
    brief = (
        *end_notes(predictions),
        *(() if verbose else folded_note(predictions)),
        *asked_note(predictions),
        *epoch_note(predictions),
        *tight_note(predictions),
        *large_note(predictions),
        *replicas_note(predictions),
        *doubtful_note(predictions),
        *base_note(predictions),
        *vendor_note(predictions),
        *indirect_note(predictions),
        *old_price_note(predictions),
        *(note for note in predictions.notes if not is_detail(note)),
        *prediction_notes(predictions, details=False),
        *([f"Not known for any of them: {', '.join(shown.unknown)}."] if shown.unknown else ()),
        *([f"Left out for want of room: {', '.join(shown.hidden)}."] if shown.hidden else ()),
    )
    details = (
        *in_use_note(predictions),
        *total_notes(predictions),
        *bound_notes(predictions),
        *(coverage_note(predictions) if not verbose or COVERED_BY in [one.title for one in shown.columns] else ()),
        *price_notes(predictions),
        *(note for note in predictions.notes if is_detail(note)),
        *prediction_notes(predictions, details=True),
    )
    if verbose:
        return (*brief, *details)
    more = sum(not note.startswith(("Prices:", "Covered by:")) for note in details)
    what = [
        *(["the methods"] if any(one.coverage for one in predictions.values()) else []),
        *(["the sources of prices"] if any(one.usd_per_hour is not None for one in predictions.values()) else []),
        f"{more} more note{'' if more == 1 else 's'}",
    ]
    together = f"{', '.join(what[:-1])} and {what[-1]}" if len(what) > 1 else what[0]
    return (*brief, f"{asked_by} adds {together}.") if details else brief


def _aligned(row: Iterable[str], shown: Grid) -> Iterable[str]:
    """Align the lines of one row of a plain table."""
    for line in zip_longest(*(text.split("\n") for text in row), fillvalue=""):
        cells = (
            text.rjust(width) if column.justify == "right" else text.ljust(width)
            for text, column, width in zip(line, shown.columns, shown.widths, strict=True)
        )
        yield (" " * GAP).join(cells).rstrip()


def _rich_table(predictions: AbstractPredictions, shown: Grid) -> Table:
    """Draw the grid in rich: the machine in use bold, one that the run does not fit dim."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for column in shown.columns:
        table.add_column(Text(column.header), justify=column.justify, no_wrap=True)
    for line, row in zip(shown.lines, shown.rows, strict=True):
        is_in_use = isinstance(line, MachineInUse) or line.gpu == predictions.used_gpu
        style = "bold" if is_in_use else ("dim" if isinstance(line, Prediction) and line.fits is False else None)
        # Text, so that nothing in a name or a note is taken for rich's markup.
        table.add_row(*(Text(text) for text in row), style=style)
    return table
