"""Notes below a table of predictions: one catalogue of sentences, by the condition that each of them states.

Without `verbose`, a table has at most `FEW` notes. Details that change no decision, such as the sources of
prices, appear only with `verbose`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from lightning_predict.base.note import is_decisive, is_detail
from lightning_predict.base.ties import NEGLIGIBLE, NOTICEABLE
from lightning_predict.cost.offers import OLD_DAYS, day_of
from lightning_predict.cost.prediction import AbstractPredictions, MachineInUse, Prediction
from lightning_predict.hardware.lookup import other_forms
from lightning_predict.hardware.records import NVIDIA
from lightning_predict.memory.step_memory import MemoryNeed
from lightning_predict.reports.format import FEW, duration, gibibytes, listed, milliseconds, share, usd_per_hour
from lightning_predict.reports.table_columns import EXTRAPOLATION_MARK, Grid, is_mostly_extrapolated, lacked_bytes
from lightning_predict.reports.table_rows import (
    LARGE_PART,
    TableLine,
    bound_by,
    folded_gpus,
    lines_of,
    name_in_use,
    shown_period,
)

NoteRule = Callable[[AbstractPredictions], Iterable[str]]  # Yields a note if its condition holds

_Key = TypeVar("_Key")

_METHODS: Final = {  # Description of each method in `StepPrediction.coverage`
    "measured": "measured here",
    "mlp": "a network trained on the operation and dtype",
    "proxy": "a surrogate operation or dtype",
    "wave": "kernel times measured here, wave-scaled",
    "bytes": "a copy of the same number of bytes",
    "formula": "a formula of tiles or caches",
    "roofline": "peak arithmetic and bandwidth only",
}


def table_notes(
    predictions: AbstractPredictions,
    shown: Grid,
    *,
    verbose: bool = False,
    asked_by: str = "verbose",
    asked_for: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the notes below a table: the `FEW` most important notes, or all notes with `verbose`.

    Args:
        predictions: The predictions.
        shown: The table of the predictions.
        verbose: Include all notes.
        asked_by: Option that shows the omitted notes, as the user would type the option.
        asked_for: Notes that answer an option of the user. These notes come last and are never omitted.
    """
    by_condition = {name: tuple(rule(predictions)) for name, rule in NOTES.items()}
    if verbose:
        by_condition["folded"] = ()
        if "coverage" not in [column.field.name for column in shown.columns]:
            by_condition["methods"] = ()
    else:
        by_condition["extrapolated"] = tuple(_extrapolated(predictions, folded_gpus(predictions)))
    by_condition["unknown columns"] = (f"Unknown for all rows: {', '.join(shown.unknown)}.",) if shown.unknown else ()
    hidden = f"Columns left out (line too narrow): {', '.join(shown.hidden)}."
    by_condition["hidden columns"] = (hidden,) if shown.hidden else ()
    details = tuple(note for name in DETAILS for note in by_condition[name])
    ranked = tuple(note for name, notes in by_condition.items() if name not in DETAILS for note in notes)
    if verbose:
        return (*ranked, *details, *asked_for)
    brief = ranked[: max(FEW - len(asked_for), 0)]
    more = sum(note not in by_condition["folded"] for note in ranked[len(brief) :])
    more += sum(not note.startswith(("Prices:", "Covered by:")) for note in details)
    rows = len(folded_gpus(predictions)) if any(note not in brief for note in by_condition["folded"]) else 0
    others = predictions.left_out
    what = [
        *([f"{others} other GPU{'' if others == 1 else 's'}"] if others else []),
        *([f"{rows} GPU{'' if rows == 1 else 's'} no faster than a cheaper one"] if rows else []),
        *(["the methods"] if any(row.coverage for row in predictions.values()) else []),
        *_sources_of_prices(predictions),
        *([f"{more} more note{'' if more == 1 else 's'}"] if more else []),
    ]
    if not what:
        return (*brief, *asked_for)
    together = f"{', '.join(what[:-1])} and {what[-1]}" if len(what) > 1 else what[0]
    return (*brief, *asked_for, f"{asked_by} adds {together}.")


def _sources_of_prices(predictions: AbstractPredictions) -> list[str]:
    """Describe what a longer table says of prices, with the first and the last of their days."""
    days = sorted({row.price.priced_on for row in predictions.values() if row.price.priced_on is not None})
    span = f" ({' to '.join(dict.fromkeys((days[0], days[-1])))})" if days else ""
    return [f"the sources of prices{span}"] if any(row.usd_per_hour is not None for row in predictions.values()) else []


def energy_note(predictions: AbstractPredictions) -> str:
    """Return a note on the assumptions behind the energies."""
    supplies = {row.supply for row in predictions.values()}
    grids = sorted({supply.grams_per_kwh for supply in supplies if supply.grams_per_kwh is not None})
    grid = "".join(f" CO2 at {grams:g} g/kWh." for grams in grids)
    factors = sorted({supply.overhead for supply in supplies} - {1.0})
    of = "GPU only" if not factors else f"GPU, times {factors[0]:g} for the data centre (PUE)"
    return f"Energy (upper estimate): {of}, at its power limit while it computes.{grid}"


def _names_by(
    predictions: Iterable[Prediction] | AbstractPredictions, key: Callable[[Prediction], _Key | None]
) -> dict[_Key, list[str]]:
    """Return the names of the GPUs by a value, in order; GPUs with the value None are left out."""
    names: dict[_Key, list[str]] = {}
    for row in predictions.values() if isinstance(predictions, AbstractPredictions) else predictions:
        value = key(row)
        if value is not None:
            names.setdefault(value, []).append(row.gpu)
    return names


def _given(is_wanted: Callable[[str], bool]) -> NoteRule:
    """Return a rule for the notes that the predictions have; a note that several GPUs share names them once."""

    def rule(predictions: AbstractPredictions) -> Iterator[str]:
        yield from (note for note in predictions.notes if is_wanted(note))
        names: dict[str, list[str]] = {}
        for row in predictions.values():
            for note in filter(is_wanted, row.notes):
                names.setdefault(note, []).append(row.gpu)
        for note, gpus in names.items():
            yield note if len(gpus) == len(predictions) else f"{listed(gpus)}: {note}"

    return rule


def _too_large(predictions: AbstractPredictions) -> Iterator[str]:
    missing = [(row, _lack(row)) for row in predictions.values() if row.memory_fit == "exceeds"]
    if missing:
        remedy = "`lightning-predict trace memory` shows what fills the memory and what would help"
        if any(row.num_gpus > 1 for row, _ in missing):
            remedy += ". `lightning-predict parallel` finds ways to split the model among GPUs"
        kinds = ("Unlikely to fit" if lacked_bytes(row.memory) is None else "Too large" for row, _ in missing)
        yield f"{' / '.join(dict.fromkeys(kinds))}: {listed([words for _, words in missing], most=2)}. {remedy}."


def _lack(row: Prediction) -> str:
    """Return what a GPU lacks by the numbers of its cell, or the chance if this is little."""
    need = row.memory
    lack = lacked_bytes(need)
    if lack is None:
        return f"{row.gpu} is {share(need.fit_probability or 0.0)} likely to fit{_freed(need)}"
    return f"{row.gpu} lacks {gibibytes(lack)} GiB{_freed(need)}"


def _freed(need: MemoryNeed) -> str:
    """Return the allocator's cache that is in the cell and not in what a step needs; empty if it is little."""
    cache = need.releasable_bytes
    is_shown = cache >= NOTICEABLE * (need.memory_bytes or 0.0) > 0
    return f" ({gibibytes(cache)} GiB of cache freed)" if is_shown else ""


def _tight(predictions: AbstractPredictions) -> Iterator[str]:
    tight = []
    for row in (row for row in predictions.values() if row.memory_fit == "tight"):
        chance = row.memory.fit_probability
        tight.append(row.gpu if chance is None else f"{row.gpu} is {share(chance)} likely to fit{_freed(row.memory)}")
    if tight:
        yield f"Tight memory: {listed(tight)}. Run a few steps before you rent for long."


def _filled(predictions: AbstractPredictions) -> Iterator[str]:
    filled = [
        f"{row.gpu} {gibibytes(row.memory.required_bytes)} GiB"
        for row in predictions.values()
        if row.memory_fit == "fits" and (held := row.memory.reserved) is not None and held.middle == held.high
    ]
    if filled:
        yield f"Full, but fits: torch's allocator frees what it caches when the GPU is full. Needed: {listed(filled)}."


def _other_precision(predictions: AbstractPredictions) -> Iterator[str]:
    for precision, names in _names_by(predictions, lambda row: row.precision).items():
        yield f"{listed(names)}: predicted in {precision}, the precision to use there, because bfloat16 is emulated."


def _time_limit(predictions: AbstractPredictions) -> Iterator[str]:
    reached = [
        f"{row.gpu} {row.remaining_seconds / row.cycle_seconds:,.0f}"
        for row in predictions.values()
        if row.is_cut_off and row.remaining_seconds is not None and row.cycle_seconds
    ]
    if reached:
        yield f"The time limit ends the run. Steps until then, without validation: {listed(reached)}."


def _whole_machine(predictions: AbstractPredictions) -> Iterator[str]:
    for row in predictions.values():
        paid, price = row.price.machine_gpus, row.usd_per_hour
        if paid is not None and price is not None and row.num_gpus == 1 and paid > 1 and row.fits is not False:
            each = usd_per_hour(price / paid)
            yield f"{row.gpu}: sold only in machines of {paid}; the cost pays for all {paid} ({each} for each GPU)."


def _folded(predictions: AbstractPredictions) -> Iterator[str]:
    cheaper = folded_gpus(predictions)
    names: dict[str, list[str]] = {}
    for name, other in cheaper.items():
        names.setdefault(other.gpu, []).append(name)
    for gpu, gpus in names.items():
        bound = bound_by(cheaper[gpus[0]])
        limit = "CPU" if bound == "host" else bound
        yield f"{listed(gpus)} would not be faster than the cheaper {gpu}: the {limit} limits this step."


def _other_vendor(predictions: AbstractPredictions) -> Iterator[str]:
    makers = _names_by(predictions, lambda row: row.layout.gpu.vendor)
    for maker, names in makers.items():
        if maker != NVIDIA:
            yield (
                f"{listed(names)}: not validated, may be several times too fast. Times are extrapolated from NVIDIA "
                f"GPUs by data sheet, without measurements on GPUs by {maker}; the intervals are doubled."
            )


def _extrapolated(predictions: AbstractPredictions, hidden: Container[str] = ()) -> Iterator[str]:
    marked = [row for name, row in predictions.items() if is_mostly_extrapolated(row) and name not in hidden]
    if marked:
        whose = "this GPU's" if len(marked) == 1 else "these GPUs'"
        on = f"the {marked[0].gpu}" if len(marked) == 1 else "them"
        part = _share_range([row.base_share for row in marked])
        yield (
            f"{EXTRAPOLATION_MARK} {part} of {whose} time is extrapolated from other GPUs (no measurements on {on})."
        )


def _share_range(shares: Sequence[float]) -> str:
    """Format the range of several shares: `42 to 61 %`."""
    low, high = share(min(shares)), share(max(shares))
    return high if low == high else f"{low.removesuffix(' %')} to {high}"


def _ambiguous_name(predictions: AbstractPredictions) -> Iterator[str]:
    gpus = {row.layout.requested_name: row.layout.gpu for row in predictions.values()}
    for asked, gpu in gpus.items():
        if asked is not None:
            yield f"{asked} is ambiguous: predicted as {gpu.name}. Also available: {listed(other_forms(asked, gpu))}."


def _epoch(predictions: AbstractPredictions) -> Iterator[str]:
    epochs = [
        f"{row.gpu} {duration(row.epoch_seconds)}"
        for row in predictions.values()
        if row.total_seconds is None and row.epoch_seconds is not None
    ]
    if epochs:
        yield f"Time of a training epoch: {listed(epochs)}."


def _large_parts(predictions: AbstractPredictions) -> Iterator[str]:
    differ = [line for line in lines_of(predictions, fold=True) if _beside_steps(line) > LARGE_PART]
    if not differ:
        return
    line = max(differ, key=_beside_steps)
    total, steps, run = line.run.total_seconds or 0.0, (line.run.iterations or 0) * line.step_seconds, line.run
    validation, writing = run.validation_seconds or 0.0, run.checkpoint_seconds or 0.0
    waits = (run.training_seconds or 0.0) - steps
    other = total - steps - waits - validation - writing
    amounts = (
        *((steps, "steps"), (validation, "validation"), (waits, "waits for data"), (writing, "checkpoints")),
        (other, "pauses between epochs and around validation"),
    )
    parts = [f"{duration(amount)} of {name}" for amount, name in amounts if amount >= NEGLIGIBLE * total]
    shorter = -sum(amount for amount, _ in amounts if amount < 0)
    less = f", less {duration(shorter)} for shorter steps" if shorter >= NEGLIGIBLE * total else ""
    name = name_in_use(line.name, predictions) if isinstance(line, MachineInUse) else line.gpu
    yield f"{name}: the total has {', '.join(parts)}{less}."
    low, high = run.beside.low, run.beside.high
    if high - low > LARGE_PART * total:
        yield f"On every GPU, pauses, checkpoints and waits in validation take {duration(low)} to {duration(high)}."


def _beside_steps(line: TableLine) -> float:
    """Return the difference between the total and all steps, as a share of the total; 0 if the total is unknown.

    An uncertain part beside the steps counts by its interval, which may be several times the total.
    """
    run, total = line.run, line.run.total_seconds
    if not total or run.is_cut_off or not run.iterations or run.training_seconds is None:
        return 0.0
    return max(abs(total - run.iterations * line.step_seconds), run.beside.high - run.beside.low) / total


def _old_prices(predictions: AbstractPredictions) -> Iterator[str]:
    if predictions.made_on is None:
        return
    today = datetime.date.fromisoformat(predictions.made_on)
    old = [
        f"{row.gpu} ({row.price.priced_on})"
        for row in predictions.values()
        if row.price.priced_on is not None and (today - day_of(row.price.priced_on)).days > OLD_DAYS
    ]
    if old:
        yield f"Prices older than {OLD_DAYS} days: {listed(old)}. Check them before you rent."


def _early_end(predictions: AbstractPredictions) -> Iterator[str]:
    if shown_period(predictions).is_whole and any(row.at_most for row in predictions.values()):
        yield "≤: the run may end earlier."


def _uncertain_bottleneck(predictions: AbstractPredictions) -> Iterator[str]:
    launches = [row.host_seconds or 0.0 for row in predictions.values() if bound_by(row).endswith("?")]
    if launches:
        yield (
            f"?: the CPU speed is assumed ({milliseconds(max(launches))} ms to launch the step), so either host or "
            "device may be the bottleneck."
        )


def _indirect(predictions: AbstractPredictions) -> Iterator[str]:
    shares = [
        sum(row.coverage.get(way, 0.0) for way in ("proxy", "bytes", "formula", "roofline"))
        for row in predictions.values()
        if row.fits is not False
    ]
    if max(shares, default=0.0) >= LARGE_PART:
        yield (
            f"{_share_range(shares)} of the GPU time has no direct measurement (surrogate operations, formulas); the "
            "interval covers it."
        )


def _in_use(predictions: AbstractPredictions) -> Iterator[str]:
    own = predictions.get(predictions.used_gpu or "")
    if own is not None and own.measured_seconds is not None and own.unmeasured_seconds is not None:
        error = 100 * (own.unmeasured_seconds / own.measured_seconds - 1)
        yield (
            f"{own.gpu}: a step takes {milliseconds(own.measured_seconds)} ms (measured). Without that measurement, "
            f"the prediction is {milliseconds(own.unmeasured_seconds)} ms ({error:+.0f} %)."
        )


def _parts_of_total(predictions: AbstractPredictions) -> Iterator[str]:
    if predictions:
        yield "Interval (90 %): nine in ten measured times should lie in it."
    if any(row.validation_is_estimated for row in predictions.values()):
        yield "Total: validation time is estimated from the forward pass of a training step."
    if any(row.checkpoint_is_estimated for row in predictions.values()):
        yield "Total: checkpoint time is estimated from the size of the files."


def _bound_by_links(predictions: AbstractPredictions) -> Iterator[str]:
    waits = [
        f"{100 * row.added_seconds / row.iteration_seconds:.0f} % ({row.gpu})"
        for row in predictions.values()
        if row.num_gpus > 1 and row.added_seconds > 0
    ]
    if waits:
        yield f"Several GPUs: share of a step spent waiting for other GPUs: {', '.join(waits)}."


def _methods(predictions: AbstractPredictions) -> Iterator[str]:
    methods = {method for row in predictions.values() for method, part in row.coverage.items() if part > 0}
    known = [f"{method}: {meaning}" for method, meaning in _METHODS.items() if method in methods]
    others = sorted(methods - _METHODS.keys())
    if any(row.coverage for row in predictions.values()):
        yield f"Covered by: share of the GPU time by method ({'; '.join([*known, *others])})."


def _prices(predictions: AbstractPredictions) -> Iterator[str]:
    priced = [row for row in predictions.values() if row.usd_per_hour is not None]
    names = _names_by(priced, lambda row: (row.usd_per_hour or 0.0, row.offer or "source not stated"))
    prices = [f"{', '.join(gpus)} {usd_per_hour(price)}, {offer}" for (price, offer), gpus in names.items()]
    if prices:
        yield f"Prices: {'; '.join(prices)}."


NOTES: Final[Mapping[str, NoteRule]] = {
    "too large": _too_large,
    "tight": _tight,
    "filled": _filled,
    "time limit": _time_limit,
    "large parts": _large_parts,
    "other precision": _other_precision,
    "decisive": _given(is_decisive),
    "other vendor": _other_vendor,
    "whole machine": _whole_machine,
    "uncertain bottleneck": _uncertain_bottleneck,
    "extrapolated": _extrapolated,
    "folded": _folded,
    "ambiguous name": _ambiguous_name,
    "epoch": _epoch,
    "old prices": _old_prices,
    "plain": _given(lambda note: not is_decisive(note) and not is_detail(note)),
    "indirect": _indirect,
    "early end": _early_end,
    "in use": _in_use,
    "parts of total": _parts_of_total,
    "bound by links": _bound_by_links,
    "methods": _methods,
    "prices": _prices,
    "details": _given(is_detail),
}
"""Notes by condition: first whether the run fits, then what moves its time and cost most."""

DETAILS: Final = ("in use", "parts of total", "bound by links", "methods", "prices", "details")
"""Conditions whose notes change no decision, and appear only with `verbose`."""
