"""Print predictions as tables: plain text, rich and Markdown, all from the same columns and footnotes.

A column is added by a row of `COLUMNS`, with its footnotes; columns give way where there is no room for all. Energy has
columns of its own, for those who ask. Example::

    print(result)            # plain_table: at most 120 columns, no colours
    print_table(result)      # rich: as wide as the terminal
    markdown_table(result)   # for TensorBoard and MLflow

    energies = {one.gpu: prediction_energy(one, grid_grams_per_kwh=380) for one in result.values()}
    print(plain_table(result, extra=energy_columns(energies)))
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Literal, final

from lightning_predict.cost.energy import Energy
from lightning_predict.cost.memory import MARGIN
from lightning_predict.cost.prediction import Prediction
from lightning_predict.reports.format import (
    PLAIN_WIDTH,
    duration,
    gibibytes,
    markdown_text,
    milliseconds,
    milliseconds_interval,
    share,
    significant,
    usd,
    usd_per_hour,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class AbstractPredictions(Mapping[str, Prediction]):
    """Map names of GPUs to their predictions, with what a table says of all of them.

    Attributes:
        used_gpu: Name of the GPU that the trace was recorded on, where it is one of the catalogue's.
        notes: What holds for all of them.
    """

    used_gpu: str | None
    notes: tuple[str, ...]


IN_USE_MARK: Final = "*"

SHARE_TO_MENTION: Final = 0.01
"""Share of a total from which on what it is for is said."""

BASE_MARK: Final = "†"
"""Beside the methods of a GPU that networks time without having seen a measurement of it."""

LARGE_BASE_SHARE: Final = 0.1
"""Share of the time by such networks from which a GPU is marked."""

_METHODS: Final = {
    "measured": "measured here",
    "mlp": "a network trained on the operation and dtype",
    "proxy": "through a related operation or dtype",
    "wave": "kernel times measured here, wave-scaled",
    "bytes": "as a copy of as many bytes",
    "roofline": "peak arithmetic and bandwidth only",
}
"""What each method of `Iteration.coverage` does, in words."""


def in_use_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Name the GPU in use, its step as measured, and how well it would have been predicted."""
    if predictions.used_gpu is None:
        return
    if predictions.used_gpu not in predictions:
        yield f"In use now: {predictions.used_gpu}, which was not asked for."
        return
    own = predictions[predictions.used_gpu]
    seconds, unmeasured = own.measured_seconds, own.unmeasured_seconds
    measured = "" if seconds is None else f": an iteration takes {milliseconds(seconds)} ms (measured)"
    if seconds is not None and unmeasured is not None:
        error = 100 * (unmeasured / seconds - 1)
        measured += f"; without that, {milliseconds(unmeasured)} ms would be predicted ({error:+.0f} %)"
    yield f"{IN_USE_MARK} In use now{measured}."


def interval_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say what the interval promises."""
    if predictions:
        yield "Interval: nine in ten measured times should lie in it (90 %)."


def total_notes(predictions: AbstractPredictions) -> Iterable[str]:
    """Say what the total time includes, and what limits it."""
    if any(prediction.at_most for prediction in predictions.values()):
        yield "≤: the run may end earlier."
    if any(prediction.validation_is_estimated for prediction in predictions.values()):
        yield "Total: the time of validation is estimated from the forward part of a training step."
    yield from time_limit_note(predictions)
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
    return prediction.loader_seconds > prediction.iteration_seconds


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
    """Say how long several GPUs wait for each other in a step, and that each takes samples of its own."""
    several = [one for one in predictions.values() if one.num_gpus > 1]
    shares = [(one.gpu, one.added_seconds / one.iteration_seconds) for one in several if one.added_seconds > 0]
    if shares:
        waits = ", ".join(f"{100 * share:.0f} % ({name})" for name, share in shares)
        yield f"Several GPUs: of an iteration, they wait for each other {waits}."
    if several:
        yield "Several GPUs: each copy of the model takes as many samples as were recorded, so that steps are fewer."


def bound_notes(predictions: AbstractPredictions) -> Iterable[str]:
    """Say what bounds a step, where it is not the device."""
    yield from links_note(predictions)
    yield from host_note(predictions)
    if any(_bound_by(prediction).endswith("?") for prediction in predictions.values()):
        yield "Bound by host? or device?: which of the two is not sure, as the host was assumed."
    yield from loader_note(predictions)


def unknown_length_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Say what a thousand steps and an epoch take where the length of the run is not known."""
    known = [one for one in predictions.values() if one.total_seconds is None]
    if not known:
        return
    thousand = [f"{one.gpu} {duration(1000 * one.cycle_seconds)}" for one in known]
    yield f"The length of this run is not known. 1,000 steps of training take: {', '.join(thousand)}."
    epochs = [f"{one.gpu} {duration(one.epoch_seconds)}" for one in known if one.epoch_seconds is not None]
    if epochs:
        yield f"An epoch of training takes: {', '.join(epochs)}."


def tight_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Name the GPUs whose memory is narrow, and what is left of it."""
    tight = [
        f"{one.gpu} has {gibibytes(one.memory_free_bytes or 0.0)} GiB to spare"
        for one in predictions.values()
        if one.memory_fit == "tight"
    ]
    if tight:
        yield f"Tight: it fits as predicted, but without a margin of {share(MARGIN)} ({', '.join(tight)})."


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
    methods = {method for one in predictions.values() for method, part in one.coverage.items() if part > 0}
    known = [f"{method}: {meaning}" for method, meaning in _METHODS.items() if method in methods]
    others = sorted(methods - _METHODS.keys())
    yield f"Covered by: share of the device's time by method ({'; '.join([*known, *others])})."
    yield from base_note(predictions)


def is_marked_as_base(prediction: Prediction) -> bool:
    """Tell whether networks that saw no measurement of the GPU time a share of it that counts."""
    return prediction.base_share >= LARGE_BASE_SHARE


def base_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Name the GPUs for which networks had no measurements, and for how much of the time."""
    names_of_share: dict[str, list[str]] = {}
    for prediction in predictions.values():
        if is_marked_as_base(prediction):
            names_of_share.setdefault(share(prediction.base_share), []).append(prediction.gpu)
    if names_of_share:
        shares = ", ".join(f"{part} ({', '.join(names)})" for part, names in names_of_share.items())
        yield f"{BASE_MARK}: networks that know that GPU by its data sheet alone timed {shares}."


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


def prediction_notes(predictions: AbstractPredictions) -> Iterable[str]:
    """List notes of all predictions, then each note of some with the names of its GPUs."""
    yield from predictions.notes
    names_of_note: dict[str, list[str]] = {}
    for prediction in predictions.values():
        for note in prediction.notes:
            names_of_note.setdefault(note, []).append(prediction.gpu)
    for note, names in names_of_note.items():
        yield note if len(names) == len(predictions) else f"{', '.join(names)}: {note}"


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
        justify: Alignment.
        gives_way: Order in which columns go when there is no room for all, 1 first; None: it stays.
        breaks: Its cells may be broken into lines, after commas only.
        notes: Its footnotes, given where it is shown; None without any.
    """

    header: str
    cell: Callable[[Prediction], str | None]
    justify: Literal["left", "right"] = "left"
    gives_way: int | None = None
    breaks: bool = False
    notes: Callable[[AbstractPredictions], Iterable[str]] | None = None

    @property
    def title(self) -> str:
        """The header on one line."""
        return self.header.replace("\n", " ")


def _interval(prediction: Prediction) -> str:
    return milliseconds_interval(prediction.iteration_seconds_low, prediction.iteration_seconds_high)


def _total(prediction: Prediction) -> str | None:
    if prediction.total_seconds is None:
        return None
    return ("≤ " if prediction.at_most else "") + duration(prediction.total_seconds)


def _cost(prediction: Prediction) -> str | None:
    if prediction.cost_usd is None:
        return None
    return ("≤ " if prediction.at_most else "") + usd(prediction.cost_usd)


def _memory(prediction: Prediction) -> str | None:
    return None if prediction.memory_bytes is None else gibibytes(prediction.memory_bytes)


def _fits(prediction: Prediction) -> str | None:
    if prediction.memory_fit == "tight":
        return "tight"
    return None if prediction.fits is None else ("yes" if prediction.fits else "no")


def _bound_by(prediction: Prediction) -> str:
    if is_bound_by_loader(prediction):
        return "loader"
    if is_bound_by_links(prediction):
        return "links"
    bound = "host" if prediction.host_seconds > prediction.device_seconds else "device"
    return f"{bound}?" if prediction.verdict is not None and prediction.verdict.is_doubtful else bound


def _covered_by(prediction: Prediction) -> str | None:
    by_share = sorted(prediction.coverage.items(), key=lambda item: -item[1])
    text = ", ".join(f"{method} {share(part)}" for method, part in by_share if part > 0)
    return f"{text} {BASE_MARK}" if text and is_marked_as_base(prediction) else text or None


COLUMNS: Final = (
    Column(header="GPU", cell=lambda prediction: prediction.gpu, notes=in_use_note),
    Column(
        header="iteration\n(ms)", cell=lambda prediction: milliseconds(prediction.iteration_seconds), justify="right"
    ),
    Column(header="interval\n(90 %, ms)", cell=_interval, justify="right", notes=interval_note),
    Column(header="total", cell=_total, justify="right", notes=total_notes),
    Column(header="cost", cell=_cost, justify="right"),
    Column(header="memory\n(GiB)", cell=_memory, justify="right", gives_way=3),
    Column(header="fits", cell=_fits, notes=tight_note),
    Column(header="bound\nby", cell=_bound_by, gives_way=2, notes=bound_notes),
    Column(header="covered by", cell=_covered_by, gives_way=1, breaks=True, notes=coverage_note),
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
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    unknown: tuple[str, ...]
    hidden: tuple[str, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each column in characters."""
        texts = zip((column.header for column in self.columns), *self.rows, strict=True)
        return tuple(max(len(line) for text in column for line in text.split("\n")) for column in texts)


def grid(predictions: AbstractPredictions, width: int | None = None, *, extra: Sequence[Column] = ()) -> Grid:
    """Choose columns and write texts of a table for these predictions.

    Args:
        predictions: What to show.
        width: Characters on one line; columns give way where it is too small for all. None: no limit.
        extra: Columns to show after the usual ones.
    """
    offered = (*COLUMNS, *extra)
    known = [
        column
        for column in offered
        if not predictions or any(column.cell(prediction) is not None for prediction in predictions.values())
    ]
    unknown = tuple(column.title for column in offered if column not in known)
    giving_way = sorted((column for column in known if column.gives_way), key=lambda column: column.gives_way or 0)
    for count in range(len(giving_way) + 1):
        hidden = giving_way[:count]
        columns = tuple(column for column in known if column not in hidden)
        rows = _rows(predictions, columns)
        shown = Grid(columns, rows, unknown, tuple(column.title for column in hidden))
        if width is None:
            break
        shown = _broken(shown, width)
        if _total_width(shown.widths) <= width and _most_lines(shown) <= _MOST_LINES:
            break
    return shown


def _rows(predictions: AbstractPredictions, columns: Sequence[Column]) -> tuple[tuple[str, ...], ...]:
    rows = []
    for prediction in predictions.values():
        name, *others = (column.cell(prediction) or _UNKNOWN for column in columns)
        marked = f"{name} {IN_USE_MARK}" if prediction.gpu == predictions.used_gpu else name
        rows.append((marked, *others))
    return tuple(rows)


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
    return Grid(whole.columns, rows, whole.unknown, whole.hidden)


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

    def notes(_: AbstractPredictions) -> Iterable[str]:
        grid = "".join(f" CO2 at {grams:g} g/kWh." for grams in sorted(one for one in grids if one is not None))
        yield f"Energy: of the GPU alone, at its power limit while it computes; an upper estimate.{grid}"

    energy = Column(header="energy\n(kWh)", cell=kilowatt_hours, justify="right", notes=notes)
    return (energy, Column(header="CO2\n(kg)", cell=co2, justify="right")) if grids else (energy,)


_ASCII: Final = str.maketrans({"≤": "<", "–": "-", "†": "+"})  # noqa: RUF001 (an en dash is meant)
"""One character for one, so that columns stay aligned."""


def plain_table(predictions: AbstractPredictions, *, extra: Sequence[Column] = ()) -> str:
    """Write the table and its footnotes as aligned text of at most 120 columns, without colours.

    Args:
        predictions: What to show.
        extra: Columns to show after the usual ones.
    """
    shown = grid(predictions, PLAIN_WIDTH, extra=extra)
    header_lines = max(column.header.count("\n") for column in shown.columns)
    headers = ["\n" * (header_lines - column.header.count("\n")) + column.header for column in shown.columns]
    rule = ["-" * width for width in shown.widths]
    lines = [line for row in (headers, rule, *shown.rows) for line in _aligned(row, shown)]
    notes = [
        textwrap.fill(note, PLAIN_WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        for note in _notes(predictions, shown)
    ]
    return "\n".join([*lines, "", *notes])


def print_table(
    predictions: AbstractPredictions, console: Console | None = None, *, extra: Sequence[Column] = ()
) -> None:
    """Print the table and its footnotes; columns that a narrow terminal has no room for are named below it.

    Args:
        predictions: What to print.
        console: Where to; standard output without one, 120 columns wide where that is a file.
        extra: Columns to show after the usual ones.
    """
    from rich.console import Console
    from rich.text import Text

    if console is None:
        console = Console()
        if not (console.is_terminal or console.is_jupyter):
            console.width = PLAIN_WIDTH
    if console.options.ascii_only:  # its encoding is not a Unicode one; a character that it lacks would raise
        text = plain_table(predictions, extra=extra).translate(_ASCII)
        console.out(text.encode(console.encoding, "replace").decode(console.encoding), highlight=False)
        return
    shown = grid(predictions, console.width, extra=extra)
    console.print(_rich_table(predictions, shown))
    console.print()
    for note in _notes(predictions, shown):
        wrapped = textwrap.fill(note, console.width, subsequent_indent="  ", break_on_hyphens=False)
        console.print(Text(wrapped, style="dim"))


def markdown_table(predictions: AbstractPredictions, *, extra: Sequence[Column] = ()) -> str:
    """Write the table and its footnotes in Markdown, with columns of one's own after the usual ones."""
    shown = grid(predictions, extra=extra)
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
    lines = ["| " + " | ".join(row) + " |" for row in (heads, rule, *rows)]
    return "\n".join([*lines, "", *(f"- {markdown_text(note)}" for note in _notes(predictions, shown))])


def html_table(predictions: AbstractPredictions) -> str:
    """Write the table and its footnotes as a fragment of HTML, as notebooks show values."""
    shown = grid(predictions)

    def line(kind: str, texts: Iterable[str], **attributes: str) -> str:
        given = "".join(f' {name}="{value}"' for name, value in attributes.items())
        cells = (
            f'<{kind}{given} style="text-align: {column.justify}">{escape(text)}</{kind}>'
            for column, text in zip(shown.columns, texts, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    head = line("th", (column.title.replace("\n", " ") for column in shown.columns), scope="col")
    body = "".join(line("td", row) for row in shown.rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in _notes(predictions, shown))
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table><ul>{notes}</ul>"


def _notes(predictions: AbstractPredictions, shown: Grid) -> Iterable[str]:
    """Collect all that is said below this table."""
    for column in shown.columns:
        if column.notes is not None:
            yield from column.notes(predictions)
    yield from unknown_length_note(predictions)
    yield from price_notes(predictions)
    yield from prediction_notes(predictions)
    if shown.unknown:
        yield f"Not known for any of them: {', '.join(shown.unknown)}."
    if shown.hidden:
        yield f"Left out for want of room: {', '.join(shown.hidden)}."


def _aligned(row: Iterable[str], shown: Grid) -> Iterable[str]:
    """Align the lines of one row of a plain table."""
    for line in zip_longest(*(text.split("\n") for text in row), fillvalue=""):
        cells = (
            text.rjust(width) if column.justify == "right" else text.ljust(width)
            for text, column, width in zip(line, shown.columns, shown.widths, strict=True)
        )
        yield (" " * GAP).join(cells).rstrip()


def _rich_table(predictions: AbstractPredictions, shown: Grid) -> Table:
    """Draw the grid in rich: the GPU in use bold, one that the run does not fit dim."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for column in shown.columns:
        table.add_column(Text(column.header), justify=column.justify, no_wrap=True)
    for prediction, row in zip(predictions.values(), shown.rows, strict=True):
        in_use = prediction.gpu == predictions.used_gpu
        style = "bold" if in_use else ("dim" if prediction.fits is False else None)
        # Text, so that nothing in a name or a note is taken for rich's markup.
        table.add_row(*(Text(text) for text in row), style=style)
    return table
