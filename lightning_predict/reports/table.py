"""Tables of predictions: plain text, rich, Markdown and HTML, all from the same columns and footnotes.

The heading describes the predictions; the machine in use comes first. Details that change no decision (prediction
methods, sources of prices, most notes) appear only with `verbose`. If a line is too narrow, less important columns are
dropped. Every field in `cost/prediction.py` with a title has a column. Example::

    print(result)            # plain_table: at most 120 columns, no colours
    print_table(result)      # rich: as wide as the terminal
    markdown_table(result)   # for TensorBoard and MLflow
    print(plain_table(result, columns=["kilowatt_hours"]))
"""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal, final

from lightning_predict.cost.fields import Field
from lightning_predict.cost.memory import MemoryNeed
from lightning_predict.cost.offers import OLD_DAYS, day_of
from lightning_predict.cost.prediction import FIELDS, AbstractPredictions, MachineInUse, Prediction
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.escaping import terminal_text
from lightning_predict.gpus.lookup import other_forms
from lightning_predict.gpus.records import NVIDIA
from lightning_predict.interval import Interval
from lightning_predict.note import is_decisive, is_detail
from lightning_predict.reports.format import (
    PLAIN_WIDTH,
    duration,
    encoding_at_hand,
    gibibytes,
    listed,
    milliseconds,
    milliseconds_interval,
    relative_interval,
    share,
    significant,
    usd,
    usd_of_steps,
    usd_per_hour,
)
from lightning_predict.ties import clearly_less, ordered
from lightning_predict.units import seconds_to_hours

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


SHARE_TO_MENTION: Final = 0.01
"""Parts of a total are mentioned from this share."""

LARGE_PART: Final = 0.1
"""Parts of a total other than training steps, and waits for the loader, are shown without `verbose` from this share."""

EXTRAPOLATION_MARK: Final = "†"
"""Marks a GPU whose time is mostly extrapolated from other GPUs."""

MARKED_EXTRAPOLATED_SHARE: Final = 0.5
"""A GPU is marked if at least this share of its time is extrapolated from other GPUs."""

_METHODS: Final = {
    "measured": "measured here",
    "mlp": "a network trained on the operation and dtype",
    "proxy": "a surrogate operation or dtype",
    "wave": "kernel times measured here, wave-scaled",
    "bytes": "a copy of the same number of bytes",
    "formula": "a formula of tiles or caches",
    "roofline": "peak arithmetic and bandwidth only",
}
"""Description of each method in `StepPrediction.coverage`."""


def name_in_use(name: str, predictions: AbstractPredictions) -> str:
    """Return the name of the machine in use: `this L4`, or `L4 (recorded)` if only a recording of the run exists."""
    return f"this {name}" if predictions.is_running else f"{name} (recorded)"


def in_use_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on the error that the prediction for the GPU in use would have without the measured step."""
    own = predictions.get(predictions.used_gpu or "")
    if own is None or own.measured_seconds is None or own.unmeasured_seconds is None:
        return
    error = 100 * (own.unmeasured_seconds / own.measured_seconds - 1)
    yield (
        f"{own.gpu}: a step takes {milliseconds(own.measured_seconds)} ms (measured). Without that measurement, the "
        f"prediction is {milliseconds(own.unmeasured_seconds)} ms ({error:+.0f} %)."
    )


def end_notes(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note if the run may end earlier."""
    if shown_period(predictions).times is None and any(prediction.at_most for prediction in predictions.values()):
        yield "≤: the run may end earlier."


def total_notes(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield notes on the parts of the total time and the meaning of its interval."""
    if predictions:
        yield "Interval (90 %): nine in ten measured times should lie in it."
    if any(prediction.validation_is_estimated for prediction in predictions.values()):
        yield "Total: validation time is estimated from the forward pass of a training step."
    writing = [one for one in predictions.values() if _checkpoint_share(one) >= SHARE_TO_MENTION]
    if writing:
        how = ", estimated from their size" if any(one.checkpoint_is_estimated for one in writing) else ""
        yield f"Total: {duration(max(one.checkpoint_seconds or 0.0 for one in writing))} for checkpoints{how}."


def sum_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on the parts of the total other than training steps, if these parts are large."""
    one: TableLine | None = next(iter(predictions.values()), None) if predictions.machine is None else None
    if one is None or one.total is None or one.is_cut_off or not one.iterations or one.run.training_seconds is None:
        return
    validation, writing = one.validation_seconds or 0.0, one.checkpoint_seconds or 0.0
    other = max(one.total.middle - one.run.training_seconds - validation - writing, 0.0)
    if one.total.middle <= 0 or (validation + writing + other) < LARGE_PART * one.total.middle:
        return
    amounts = ((validation, "validation"), (writing, "checkpoints"), (other, "pauses between epochs"))
    parts = [
        f"{duration(amount)} of {name}" for amount, name in amounts if amount >= SHARE_TO_MENTION * one.total.middle
    ]
    yield f"{one.gpu}: the total has {duration(one.run.training_seconds)} of steps, {', '.join(parts)}."


def _checkpoint_share(prediction: Prediction) -> float:
    if not prediction.total_seconds or prediction.checkpoint_seconds is None:
        return 0.0
    return prediction.checkpoint_seconds / prediction.total_seconds


def is_bound_by_loader(prediction: Prediction) -> bool:
    """Return whether the loader takes longer to load the batches of a step than the step takes."""
    return clearly_less(prediction.iteration_seconds, prediction.loader_seconds) and prediction.run.loader_is_reliable


def loader_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on the loader's time if the loader is the bottleneck."""
    bound = [prediction.loader_seconds for prediction in predictions.values() if is_bound_by_loader(prediction)]
    if bound:
        yield (
            f"Bound by loader: it takes {milliseconds(max(bound))} ms per step on any GPU (included in the "
            "total). Use more workers; a faster GPU would not help."
        )


LOADER_RATE: Final = 5000.0
"""Samples per second and machine above which a loader may not keep up: a rounded figure for about 32 cores that
decode JPEG images."""


def loader_rate_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on layouts that need more than `LOADER_RATE` samples per second, if the loader was not measured."""
    rates = {
        one.gpu: one.samples_per_second / one.layout.nodes
        for one in predictions.values()
        if one.num_gpus > 1 and one.samples_per_second is not None and one.loader_seconds == 0
    }
    most = max(rates, key=rates.__getitem__, default=None)
    if most is not None and rates[most] >= LOADER_RATE:
        yield (
            f"{most}: each machine needs {significant(rates[most])} samples/s from its loader, whose speed was not "
            "measured."
        )


def host_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on the gain from a faster GPU if the host is the bottleneck."""
    names_of_gain: dict[int, list[str]] = {}
    for prediction in predictions.values():
        verdict = prediction.verdict
        if verdict is not None and verdict.bound_by == "host" and not is_bound_by_loader(prediction):
            names_of_gain.setdefault(round(100 * verdict.gain), []).append(prediction.gpu)
    gains = [f"{gain} % ({', '.join(names)})" for gain, names in sorted(names_of_gain.items())]
    if gains:
        yield f"Bound by host: the CPU limits kernel launches. A GPU twice as fast gains only {', '.join(gains)}."


def is_bound_by_links(prediction: Prediction) -> bool:
    """Return whether waiting for other GPUs takes half of a step or more."""
    return prediction.added_seconds >= prediction.iteration_seconds / 2


def links_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on the share of a step in which GPUs wait for each other."""
    several = [one for one in predictions.values() if one.num_gpus > 1]
    shares = [(one.gpu, one.added_seconds / one.iteration_seconds) for one in several if one.added_seconds > 0]
    if shares:
        waits = ", ".join(f"{100 * share:.0f} % ({name})" for name, share in shares)
        yield f"Several GPUs: share of a step spent waiting for other GPUs: {waits}."


def replicas_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note with the number of remaining steps and the samples per step of layouts with several GPUs."""
    several = [one for one in predictions.values() if one.num_gpus > 1]
    if several:
        steps = [
            f"{one.iterations:,} of {one.run.samples_per_iteration:,} samples ({one.gpu})"
            for one in several
            if one.iterations is not None and one.run.samples_per_iteration is not None
        ]
        fewer = f"That leaves fewer steps: {listed(steps)}" if steps else "That leaves fewer steps"
        yield f"Several GPUs: each replica processes the recorded number of samples. {fewer}."


def bound_notes(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield notes on the bottleneck of a step, unless it is the device."""
    yield from links_note(predictions)
    yield from host_note(predictions)
    yield from loader_note(predictions)


def uncertain_bottleneck_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note if the bottleneck of a step may be either the host or the device."""
    if any(bound_by(prediction).endswith("?") for prediction in predictions.values()):
        yield "?: the CPU speed is assumed, so either host or device may be the bottleneck."


def epoch_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on the time of an epoch if the length of the run is unknown."""
    known = [one for one in predictions.values() if one.total_seconds is None and one.epoch_seconds is not None]
    if known:
        epochs = (f"{one.gpu} {duration(one.epoch_seconds or 0.0)}" for one in known)
        yield f"Time of a training epoch: {listed(tuple(epochs))}."


def tight_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on GPUs with little free memory."""
    tight = [
        f"{one.gpu} has {gibibytes(one.memory_free_bytes or 0.0)} GiB to spare{_chance(one.memory)}"
        for one in predictions.values()
        if one.memory_fit == "tight"
    ]
    if tight:
        yield f"Tight memory: {listed(tight)}. Run a few steps before you rent for long."


def large_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on the missing memory of GPUs that are too small, with commands that reduce memory."""
    missing = [
        (one, f"{one.gpu} lacks at least {gibibytes(-one.memory_free_bytes)} GiB")
        for one in predictions.values()
        if one.memory_fit == "exceeds" and one.memory_free_bytes is not None and one.memory_free_bytes < 0
    ]
    if missing:
        told = "`lightning-predict trace memory` shows what fills the memory and what would help"
        if any(one.num_gpus > 1 for one, _ in missing):
            told += ". `lightning-predict parallel` finds ways to split the model among GPUs"
        yield f"Too large: {listed([words for _, words in missing], most=2)}. {told}."


def _chance(need: MemoryNeed) -> str:
    return "" if need.fit_probability is None else f" ({share(need.fit_probability)} likely to fit)"


def time_limit_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on the number of steps until a time limit ends the run."""
    reached = [
        f"{one.gpu} {one.total_seconds / one.cycle_seconds:,.0f}"
        for one in predictions.values()
        if one.is_cut_off and one.total_seconds is not None and one.cycle_seconds
    ]
    if reached:
        yield f"The time limit ends the run. Steps until then, without validation: {listed(reached)}."


def coverage_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note that explains the prediction methods."""
    if not any(one.coverage for one in predictions.values()):
        return
    methods = {method for one in predictions.values() for method, part in one.coverage.items() if part > 0}
    known = [f"{method}: {meaning}" for method, meaning in _METHODS.items() if method in methods]
    others = sorted(methods - _METHODS.keys())
    yield f"Covered by: share of the GPU time by method ({'; '.join([*known, *others])})."


def is_mostly_extrapolated(prediction: Prediction) -> bool:
    """Return whether a GPU is marked: its time is mostly extrapolated, or the GPU comes from a user's file.

    A GPU with a measured step is never marked.
    """
    is_unseen = prediction.base_share >= MARKED_EXTRAPOLATED_SHARE or prediction.layout.gpu.is_described_by_user
    return is_unseen and prediction.measured_seconds is None


def extrapolation_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on marked GPUs, with the extrapolated share of their time."""
    marked = [one for one in predictions.values() if is_mostly_extrapolated(one)]
    if len(marked) == 1:
        part, gpu = share(marked[0].base_share), marked[0].gpu
        yield (
            f"{EXTRAPOLATION_MARK} {part} of this GPU's time is extrapolated from other GPUs (no measurements on the "
            f"{gpu})."
        )
    elif marked:
        part = _share_range([one.base_share for one in marked])
        yield (
            f"{EXTRAPOLATION_MARK} {part} of these GPUs' time is extrapolated from other GPUs (no measurements on "
            "them)."
        )


def base_shares_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note with the extrapolated share of each marked GPU, if several GPUs are marked."""
    names_of_share: dict[str, list[str]] = {}
    marked = [one for one in predictions.values() if is_mostly_extrapolated(one)]
    for one in marked:
        names_of_share.setdefault(share(one.base_share), []).append(one.gpu)
    if len(marked) > 1:
        shares = ", ".join(f"{part} ({', '.join(names)})" for part, names in names_of_share.items())
        yield f"{EXTRAPOLATION_MARK} Extrapolated share of each GPU: {shares}."


def _share_range(shares: Sequence[float]) -> str:
    """Format the range of several shares: `42 to 61 %`."""
    low, high = share(min(shares)), share(max(shares))
    return high if low == high else f"{low.removesuffix(' %')} to {high}"


def vendor_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on accelerators of vendors other than NVIDIA, none of which we have measured."""
    makers: dict[str, list[str]] = {}
    for prediction in predictions.values():
        if prediction.layout.gpu.vendor != NVIDIA:
            makers.setdefault(prediction.layout.gpu.vendor, []).append(prediction.gpu)
    for maker, names in makers.items():
        yield (
            f"{listed(names)}: extrapolated from NVIDIA GPUs by data sheet (no measurements on GPUs by {maker}). Treat "
            "the times as orders of magnitude; the intervals are doubled."
        )


LARGE_INDIRECT_SHARE: Final = 0.1
"""A note appears if indirect methods (`proxy`, `bytes`, `formula`, `roofline`) predict at least this share of GPU
time."""


def indirect_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on the share of GPU time predicted by indirect methods."""
    shares = [
        sum(one.coverage.get(way, 0.0) for way in ("proxy", "bytes", "formula", "roofline"))
        for one in predictions.values()
        if one.fits is not False
    ]
    if max(shares, default=0.0) >= LARGE_INDIRECT_SHARE:
        yield (
            f"{_share_range(shares)} of the GPU time is estimated indirectly, by surrogate operations or formulas. The "
            "(90 %) column includes this."
        )


def asked_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note for each ambiguous GPU name, with the chosen GPU."""
    for asked, one in {
        one.layout.requested_name: one for one in predictions.values() if one.layout.requested_name is not None
    }.items():
        found = one.layout.gpu
        yield f"{asked} is ambiguous: predicted as {found.name}. Also available: {listed(other_forms(asked, found))}."


def old_price_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on GPUs whose prices are older than `OLD_DAYS`."""
    if predictions.made_on is None:
        return
    today = datetime.date.fromisoformat(predictions.made_on)
    old = [
        f"{one.gpu} ({one.price.priced_on})"
        for one in predictions.values()
        if one.price.priced_on is not None and (today - day_of(one.price.priced_on)).days > OLD_DAYS
    ]
    if old:
        yield f"Prices older than {OLD_DAYS} days: {listed(old)}. Check them before you rent."


def precision_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on GPUs that are predicted in another precision than the recorded one."""
    names_of_precision: dict[str, list[str]] = {}
    for one in predictions.values():
        if one.precision is not None:
            names_of_precision.setdefault(one.precision, []).append(one.gpu)
    for precision, names in names_of_precision.items():
        yield f"{listed(names)}: predicted in {precision}, the precision to use there, because bfloat16 is emulated."


def whole_machine_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on GPUs that are rented only in larger machines; their cost is the price of the whole machine."""
    for one in predictions.values():
        paid, price = one.price.machine_gpus, one.usd_per_hour
        if paid is not None and price is not None and one.num_gpus == 1 and paid > 1 and one.fits is not False:
            each = usd_per_hour(price / paid)
            yield f"{one.gpu}: sold only in machines of {paid}; the cost pays for all {paid} ({each} for each GPU)."


def price_notes(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note with each price, the GPUs with this price, its source and date."""
    names_of_price: dict[tuple[float, str], list[str]] = {}
    for prediction in predictions.values():
        if prediction.usd_per_hour is not None:
            key = (prediction.usd_per_hour, prediction.offer or "source not stated")
            names_of_price.setdefault(key, []).append(prediction.gpu)
    prices = [f"{', '.join(names)} {usd_per_hour(price)}, {offer}" for (price, offer), names in names_of_price.items()]
    if prices:
        yield f"Prices: {'; '.join(prices)}."


def _is_plain(note: str) -> bool:
    """Return whether a note is neither decisive nor a detail."""
    return not is_decisive(note) and not is_detail(note)


def prediction_notes(predictions: AbstractPredictions, is_wanted: Callable[[str], bool]) -> Iterable[str]:
    """Yield the notes of individual predictions; a note that several GPUs share appears once, with their names.

    Args:
        predictions: The predictions.
        is_wanted: Returns whether to yield a note.
    """
    names_of_note: dict[str, list[str]] = {}
    for prediction in predictions.values():
        for note in prediction.notes:
            if is_wanted(note):
                names_of_note.setdefault(note, []).append(prediction.gpu)
    for note, names in names_of_note.items():
        yield note if len(names) == len(predictions) else f"{listed(names)}: {note}"


TableLine = Prediction | MachineInUse
"""What a table row describes."""


def lines_of(predictions: AbstractPredictions, *, fold: bool = False) -> tuple[TableLine, ...]:
    """Return the rows: first the machine in use, then the other GPUs in the requested order.

    GPUs without enough memory come last.

    Args:
        predictions: The predictions.
        fold: Omit GPUs that a cheaper, equally fast GPU represents; see `folded_gpus`.
    """
    own = predictions.get(predictions.used_gpu or "")
    left_out = folded_gpus(predictions) if fold else ()
    others = (one for one in predictions.values() if one is not own and one.gpu not in left_out)
    first: list[TableLine] = [one for one in (predictions.machine, own) if one is not None]
    return (*first, *sorted(others, key=lambda one: one.fits is False))


def folded_gpus(predictions: AbstractPredictions) -> dict[str, Prediction]:
    """Find GPUs that take as long as a cheaper GPU because the loader or the host is the bottleneck.

    Returns:
        The cheaper GPU that represents each of these GPUs, by GPU name. Their rows would differ only in price and name.
    """
    span = shown_period(predictions)
    alike: dict[tuple[str, str, str | None], list[Prediction]] = {}
    for one in predictions.values():
        seconds = span.seconds(one)
        if one.gpu == predictions.used_gpu or seconds is None or one.usd_per_hour is None:
            continue  # a GPU without a price may be cheaper
        if bound_by(one) in ("loader", "host"):
            alike.setdefault((bound_by(one), duration(seconds.middle), one.memory_fit), []).append(one)
    standing: dict[str, Prediction] = {}
    for group in alike.values():
        cheapest = min(group, key=lambda one: one.usd_per_hour or 0.0)
        standing.update({one.gpu: cheapest for one in group if one is not cheapest})
    return standing


def folded_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on the GPUs that have no row of their own (`folded_gpus`)."""
    names_of_gpu: dict[str, list[str]] = {}
    found = folded_gpus(predictions)
    for name, one in found.items():
        names_of_gpu.setdefault(one.gpu, []).append(name)
    for gpu, names in names_of_gpu.items():
        limit = {"host": "CPU"}.get(bound_by(found[names[0]]), bound_by(found[names[0]]))
        yield f"{listed(names)} would not be faster than the cheaper {gpu}: the {limit} limits this step."


GAP: Final = 2
"""Spaces between two columns."""

_UNKNOWN: Final = "unknown"
_MOST_LINES: Final = 2
"""Maximum number of lines per row."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        field: Field of `cost/prediction.py` that the column shows.
        header: Header, possibly of several lines.
        cell: Returns the text for a row; None if the value is unknown.
    """

    field: Field[Any]
    header: str
    cell: Callable[[TableLine], str | None]

    @property
    def title(self) -> str:
        """Header on one line."""
        return self.header.replace("\n", " ")

    @property
    def justify(self) -> Literal["left", "right"]:
        """Alignment."""
        return "left" if self.field.is_left else "right"

    def text(self, line: TableLine) -> str | None:
        """Return the text of a cell; None if the value is unknown."""
        if isinstance(line, Prediction):
            return self.cell(line)
        return (self.cell(line) or "") if self.field.on_machine else ""


STEPS_SHOWN: Final = 1000
"""If the length of the run is unknown, times and costs are shown for this number of steps."""


@final
@dataclass(frozen=True, slots=True)
class ShownPeriod:
    """Period of the shown times and costs: the run, or `STEPS_SHOWN` steps if the length of the run is unknown.

    Attributes:
        title: Title of the time column.
        times: Number of steps; None for the whole run.
    """

    title: str
    times: int | None = None

    def seconds(self, line: TableLine) -> Interval[float] | None:
        """Return the time of the period in one row, with its interval; None if unknown."""
        if self.times is None:
            return line.total
        return line.cycle.scaled(self.times)

    def cost_usd(self, line: TableLine) -> float | None:
        """Return the cost of the period in one row; None if unknown."""
        price, seconds = line.price, self.seconds(line)
        if self.times is None:
            return price.cost_usd
        return (
            None
            if seconds is None or price.usd_per_hour is None
            else (seconds_to_hours(seconds.middle) * price.usd_per_hour)
        )


def shown_period(predictions: AbstractPredictions) -> ShownPeriod:
    """Choose the period for which times and costs are shown."""
    if predictions and all(one.total_seconds is None for one in predictions.values()):
        return ShownPeriod(f"{STEPS_SHOWN:,} steps", STEPS_SHOWN)
    return ShownPeriod("rest of the run" if predictions.is_running else "total")


def _memory(need: MemoryNeed) -> str | None:
    if need.memory_bytes is None:
        return None
    if need.usable_bytes is None:
        return gibibytes(need.memory_bytes)
    amount = f"{gibibytes(need.memory_bytes)} of {gibibytes(need.usable_bytes)}"
    return {"exceeds": f"too large: {amount}", "tight": f"tight: {amount}"}.get(need.memory_fit or "", amount)


def bound_by(prediction: Prediction) -> str:
    """Return the bottleneck of a step, with a question mark if it is uncertain."""
    if is_bound_by_loader(prediction):
        return "loader"
    verdict = prediction.verdict
    if verdict is not None and verdict.bound_by in ("links", "bubble"):
        return verdict.bound_by
    if is_bound_by_links(prediction):
        return "links"
    bound = "host" if clearly_less(prediction.device_seconds, prediction.host_seconds) else "device"
    return f"{bound}?" if verdict is not None and verdict.is_doubtful else bound


MAIN_SHARE: Final = 1 / 3
"""A table names the loader as the bottleneck if waiting for the loader takes at least this share of the time."""


def bound_cell(prediction: Prediction) -> str:
    """Return the bottleneck for a table, with the loader's share of the time if the share is large."""
    part, bound = prediction.loader_share, bound_by(prediction)
    if part < LARGE_PART or not prediction.run.loader_is_reliable:
        return bound
    loader = f"loader {share(part)}"
    return loader if bound == "loader" or part >= MAIN_SHARE else f"{bound}, {loader}"


def _covered_by(prediction: Prediction) -> str | None:
    by_share = ordered(prediction.coverage.items(), lambda item: item[1], reverse=True)
    text = ", ".join(f"{method} {share(part)}" for method, part in by_share if part > 0)
    return text or None


_BY_UNIT: Final[Mapping[str, Callable[[Any], str]]] = {
    "s": duration,
    "$": usd,
    "$/h": lambda price: usd_per_hour(price).removesuffix("/h"),
    "bytes": gibibytes,
    "share": share,
    "": str,
}
"""Formatters by unit; values with other units get three significant digits."""


def columns_of(
    predictions: AbstractPredictions, *, verbose: bool = False, asked: Collection[str] = ()
) -> tuple[Column, ...]:
    """Return the columns of a table of these predictions.

    Args:
        predictions: The predictions.
        verbose: Include the prediction methods and the step's interval.
        asked: Names of optional columns to show.

    Raises:
        InvalidArgumentError: `asked` has a name without a column.
    """
    asked = column_names(asked)
    shown = {"always", "verbose"} if verbose else {"always"}
    return tuple(
        _column(row, predictions)
        for row in FIELDS
        if row.title is not None and (row.shown in shown or row.name in asked)
        if row.name != "cycle_seconds" or waits_for_loader(predictions) or row.name in asked
    )


def waits_for_loader(predictions: AbstractPredictions) -> bool:
    """Return whether waiting for the loader takes a notable share of the time in any row."""
    lines: list[TableLine] = [*predictions.values()]
    if predictions.machine is not None:
        lines.append(predictions.machine)
    return any(one.loader_share >= SHARE_TO_MENTION for one in lines)


def column_names(asked: Collection[str]) -> tuple[str, ...]:
    """Return the field names for names or titles of columns: `mfu`, `MFU`, `tokens/s`.

    Raises:
        InvalidArgumentError: `asked` contains an unknown name.
    """
    titled = {row.name: row.title.replace("\n", " ") for row in FIELDS if row.title is not None}
    fields = {word.casefold(): name for name, title in titled.items() for word in (name, title)}
    for word in asked:
        if word.casefold() not in fields:
            known = ", ".join(row.name for row in FIELDS if row.shown == "asked")
            raise InvalidArgumentError(f"columns={word!r} is no column; expected some of {known}.")
    return tuple(fields[word.casefold()] for word in asked)


def _column(row: Field[Any], predictions: AbstractPredictions) -> Column:
    special = _SPECIAL.get(row.name)
    header = row.title or row.name
    if row.name == "total_seconds":
        header = shown_period(predictions).title
    if special is not None:
        return Column(field=row, header=header, cell=partial(special, predictions))

    def cell(line: TableLine) -> str | None:
        value = row.value(line)
        return None if value is None else _BY_UNIT.get(row.unit, significant)(value)

    return Column(field=row, header=header, cell=cell)


def _name_cell(predictions: AbstractPredictions, line: TableLine) -> str:
    if isinstance(line, MachineInUse):
        return name_in_use(line.name, predictions)
    text = name_in_use(line.gpu, predictions) if line.gpu == predictions.used_gpu else line.gpu
    if line.step.precision is not None:
        text = f"{text} ({line.step.precision})"
    return f"{text} {EXTRAPOLATION_MARK}" if is_mostly_extrapolated(line) else text


def _most(predictions: AbstractPredictions, line: TableLine) -> str:
    return "≤ " if line.at_most and shown_period(predictions).times is None else ""


def _total_cell(predictions: AbstractPredictions, line: TableLine) -> str | None:
    seconds = shown_period(predictions).seconds(line)
    return None if seconds is None else _most(predictions, line) + duration(seconds.middle)


def _interval_cell(predictions: AbstractPredictions, line: TableLine) -> str | None:
    seconds = shown_period(predictions).seconds(line)
    is_measured = isinstance(line, MachineInUse) or line.measured_seconds is not None
    if is_measured and not (predictions.is_running and seconds is not None and seconds.low < seconds.high):
        return "measured" if isinstance(line, Prediction) or seconds is not None else ""
    return None if seconds is None else relative_interval(seconds.low, seconds.middle, seconds.high)


def _cost_cell(predictions: AbstractPredictions, line: TableLine) -> str | None:
    span = shown_period(predictions)
    amount = span.cost_usd(line)
    if amount is None:
        return None
    text = usd(amount) if span.times is None else usd_of_steps(amount)
    return text if text.startswith("<") else _most(predictions, line) + text


_SPECIAL: Final[Mapping[str, Callable[[AbstractPredictions, Any], str | None]]] = {
    "gpu": _name_cell,
    "iteration": lambda _, one: milliseconds_interval(one.iteration_seconds_low, one.iteration_seconds_high),
    "total_seconds": _total_cell,
    "total": _interval_cell,
    "cost_usd": _cost_cell,
    "memory_bytes": lambda _, line: _memory(line.memory),
    "verdict": lambda _, one: bound_cell(one),
    "coverage": lambda _, one: _covered_by(one),
}
"""Cell functions of fields whose text depends on all predictions, by field name."""


@final
@dataclass(frozen=True, slots=True)
class Grid:
    """Columns and cell texts of one table.

    Attributes:
        columns: The columns that are shown.
        rows: The cell texts of each row. A line break in a text breaks the cell.
        unknown: Titles of the columns without any known value.
        hidden: Titles of the columns that were dropped for lack of space.
        lines: What each row describes.
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
    columns: Collection[str] = (),
    verbose: bool = False,
    fold: bool = False,
) -> Grid:
    """Lay out a table of these predictions.

    Args:
        predictions: The predictions to show.
        width: Maximum line width in characters; columns are dropped if they do not fit. None for no limit.
        columns: Names of optional columns to show.
        verbose: Include the step's interval and the prediction methods.
        fold: Omit the GPUs of `folded_gpus`.
    """
    offered = columns_of(predictions, verbose=verbose, asked=columns)
    known = [
        column
        for column in offered
        if not predictions or any(column.cell(prediction) is not None for prediction in predictions.values())
    ]
    unknown = tuple(column.title for column in offered if column not in known)
    giving_way = sorted((one for one in known if one.field.gives_way), key=lambda one: one.field.gives_way or 0)
    lines = lines_of(predictions, fold=fold)
    for count in range(len(giving_way) + 1):
        hidden = giving_way[:count]
        left = tuple(column for column in known if column not in hidden)
        rows = tuple(tuple(_cell(column, line) for column in left) for line in lines)
        shown = Grid(left, rows, unknown, tuple(column.title for column in hidden), lines)
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
    """Break cells of breakable columns until the table fits the width, as far as possible."""
    excess = _total_width(whole.widths) - width
    if excess <= 0:
        return whole
    rows = tuple(
        tuple(
            _break_after_commas(text, column_width - excess) if column.field.breaks else text
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
        if len(joined) < width:  # `<`, not `<=`, because a comma may follow
            lines[-1] = joined
        else:
            lines[-1] += ","
            lines.append(piece)
    return "\n".join(lines)


def energy_note(predictions: AbstractPredictions) -> str:
    """Return a note on the assumptions behind the energies."""
    supplies = {one.supply for one in predictions.values()}
    grids = sorted({one.grams_per_kwh for one in supplies if one.grams_per_kwh is not None})
    grid = "".join(f" CO2 at {grams:g} g/kWh." for grams in grids)
    factors = sorted({one.overhead for one in supplies} - {1.0})
    of = "GPU only" if not factors else f"GPU, times {factors[0]:g} for the data centre (PUE)"
    return f"Energy (upper estimate): {of}, at its power limit while it computes.{grid}"


_ASCII: Final = str.maketrans({"≤": "<", "–": "-", "†": "+", "±": "~", "−": "-", "×": "x"})  # noqa: RUF001
"""ASCII replacements of one character each, so that columns stay aligned."""


def plain_table(
    predictions: AbstractPredictions,
    *,
    columns: Collection[str] = (),
    verbose: bool = False,
    notes: Sequence[str] = (),
) -> str:
    """Return the table and its footnotes as aligned text of at most 120 columns, without colours.

    Args:
        predictions: The predictions to show.
        columns: Names of optional columns to show.
        verbose: Add prediction methods, sources of prices, and all notes.
        notes: Additional notes.
    """
    predictions = predictions if verbose else predictions.shown()
    shown = grid(predictions, PLAIN_WIDTH, columns=columns, verbose=verbose, fold=not verbose)
    header_lines = max(column.header.count("\n") for column in shown.columns)
    headers = ["\n" * (header_lines - column.header.count("\n")) + column.header for column in shown.columns]
    rule = ["-" * width for width in shown.widths]
    heading = () if predictions.heading is None else (*_wrapped(predictions.heading, PLAIN_WIDTH), "")
    lines = [line for row in (headers, rule, *shown.rows) for line in _aligned(row, shown)]
    texts = table_notes(predictions, shown, verbose=verbose, asked_for=notes)
    below = [line for note in texts for line in _wrapped(note, PLAIN_WIDTH)]
    return terminal_text("\n".join([*heading, *lines, *(("", *below) if below else ())]))


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)


def print_table(
    predictions: AbstractPredictions,
    console: Console | None = None,
    *,
    columns: Collection[str] = (),
    verbose: bool = False,
    notes: Sequence[str] = (),
) -> None:
    """Print the table and its footnotes. Columns that do not fit into a narrow terminal are named below the table.

    Args:
        predictions: The predictions to print.
        console: Console to print to; None uses standard output, with 120 columns if standard output is a file.
        columns: Names of optional columns to show.
        verbose: Add prediction methods, sources of prices, and all notes.
        notes: Additional notes.
    """
    from rich.console import Console
    from rich.text import Text

    predictions = predictions if verbose else predictions.shown()
    if console is None:
        console = Console()
        if not (console.is_terminal or console.is_jupyter):
            console.width = PLAIN_WIDTH
    if console.options.ascii_only:  # without a Unicode encoding, printing an unsupported character would raise an error
        text = plain_table(predictions, columns=columns, verbose=verbose, notes=notes).translate(_ASCII)
        console.out(text.encode(console.encoding, "replace").decode(console.encoding), highlight=False)
        return
    shown = grid(predictions, console.width, columns=columns, verbose=verbose, fold=not verbose)
    if predictions.heading is not None:
        console.print(Text("\n".join(_wrapped(predictions.heading, console.width)), style="bold"))
        console.print()
    console.print(_rich_table(predictions, shown))
    below = table_notes(predictions, shown, verbose=verbose, asked_for=notes)
    if below:
        console.print()
    for note in below:
        console.print(Text("\n".join(_wrapped(note, console.width)), style="dim"))


def print_text(text: Callable[[], str], write: Callable[[str], object] = print) -> str | None:
    """Print a text; replace characters that standard output does not support.

    Args:
        text: Function that returns the text. Its errors are returned, too.
        write: Prints the text.

    Returns:
        The error message if printing failed, for example because the pipe is closed; None on success.
    """
    try:
        encoding = encoding_at_hand()
        safe = terminal_text(text())
        characters = safe if encoding.lower().startswith("utf") else safe.translate(_ASCII)
        write(characters.encode(encoding, "replace").decode(encoding))
    except Exception as error:
        from lightning_predict.guard import own_error

        own_error(error)
        return f"{type(error).__name__}: {error}"
    return None


MAX_NOTES: Final = 3
"""Maximum number of notes below a table without `verbose`."""


def table_notes(
    predictions: AbstractPredictions,
    shown: Grid,
    *,
    verbose: bool = False,
    asked_by: str = "verbose",
    asked_for: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the notes below a table: the `MAX_NOTES` most important notes, or all notes with `verbose`.

    Args:
        predictions: The predictions.
        shown: The table of the predictions.
        verbose: Include all notes.
        asked_by: Option that shows the omitted notes, as the user would type the option.
        asked_for: Notes that answer an option of the user. These notes come last and are never omitted.
    """
    decisive = (
        *(note for note in predictions.notes if is_decisive(note)),
        *prediction_notes(predictions, is_decisive),
    )
    folded = () if verbose else tuple(folded_note(predictions))
    ranked = (
        *large_note(predictions),
        *tight_note(predictions),
        *precision_note(predictions),
        *decisive,
        *time_limit_note(predictions),
        *whole_machine_note(predictions),
        *folded,
        *vendor_note(predictions),
        *extrapolation_note(predictions),
        *asked_note(predictions),
        *epoch_note(predictions),
        *sum_note(predictions),
        *loader_rate_note(predictions),
        *old_price_note(predictions),
        *(note for note in predictions.notes if _is_plain(note)),
        *prediction_notes(predictions, _is_plain),
        *end_notes(predictions),
        *replicas_note(predictions),
        *uncertain_bottleneck_note(predictions),
        *indirect_note(predictions),
        *([f"Unknown for all rows: {', '.join(shown.unknown)}."] if shown.unknown else ()),
        *([f"Columns left out (line too narrow): {', '.join(shown.hidden)}."] if shown.hidden else ()),
    )
    details = (
        *base_shares_note(predictions),
        *in_use_note(predictions),
        *total_notes(predictions),
        *bound_notes(predictions),
        *(coverage_note(predictions) if not verbose or "coverage" in [one.field.name for one in shown.columns] else ()),
        *price_notes(predictions),
        *(note for note in predictions.notes if is_detail(note)),
        *prediction_notes(predictions, is_detail),
    )
    if verbose:
        return (*ranked, *details, *asked_for)
    brief = ranked[: max(MAX_NOTES - len(asked_for), 0)]
    omitted = [note for note in ranked[len(brief) :] if note not in folded]
    more = len(omitted) + sum(not note.startswith(("Prices:", "Covered by:")) for note in details)
    rows = len(folded_gpus(predictions)) if any(note not in brief for note in folded) else 0
    others = predictions.left_out
    what = [
        *([f"{others} other GPU{'' if others == 1 else 's'}"] if others else []),
        *([f"{rows} GPU{'' if rows == 1 else 's'} no faster than a cheaper one"] if rows else []),
        *(["the methods"] if any(one.coverage for one in predictions.values()) else []),
        *(["the sources of prices"] if any(one.usd_per_hour is not None for one in predictions.values()) else []),
        *([f"{more} more note{'' if more == 1 else 's'}"] if more else []),
    ]
    if not what:
        return (*brief, *asked_for)
    together = f"{', '.join(what[:-1])} and {what[-1]}" if len(what) > 1 else what[0]
    return (*brief, *asked_for, f"{asked_by} adds {together}.")


def _aligned(row: Iterable[str], shown: Grid) -> Iterable[str]:
    for line in zip_longest(*(text.split("\n") for text in row), fillvalue=""):
        cells = (
            text.rjust(width) if column.justify == "right" else text.ljust(width)
            for text, column, width in zip(line, shown.columns, shown.widths, strict=True)
        )
        yield (" " * GAP).join(cells).rstrip()


def _rich_table(predictions: AbstractPredictions, shown: Grid) -> Table:
    """Return the table for rich: the machine in use in bold, GPUs without enough memory dimmed."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for column in shown.columns:
        table.add_column(Text(column.header), justify=column.justify, no_wrap=True)
    for line, row in zip(shown.lines, shown.rows, strict=True):
        is_in_use = isinstance(line, MachineInUse) or line.gpu == predictions.used_gpu
        style = "bold" if is_in_use else ("dim" if isinstance(line, Prediction) and line.fits is False else None)
        # Text objects, so that rich does not parse markup in names and notes.
        table.add_row(*(Text(text) for text in row), style=style)
    return table
