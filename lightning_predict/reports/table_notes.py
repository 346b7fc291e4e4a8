"""Notes below a table of predictions, in order of importance.

Without `verbose`, a table has at most `MAX_NOTES` notes. Details that change no decision, such as the sources of
prices, appear only with `verbose`. Each function yields no note if its fact does not apply. Example::

    table_notes(result, grid(result))   # ("L4: too large …", …, "verbose adds the methods and 4 more notes.")
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from lightning_predict.base.note import is_decisive, is_detail
from lightning_predict.base.ties import NEGLIGIBLE
from lightning_predict.cost.offers import OLD_DAYS, day_of
from lightning_predict.cost.prediction import AbstractPredictions, Prediction
from lightning_predict.hardware.lookup import other_forms
from lightning_predict.hardware.records import NVIDIA
from lightning_predict.memory.step_memory import MemoryNeed
from lightning_predict.reports.format import duration, gibibytes, listed, milliseconds, share, significant, usd_per_hour
from lightning_predict.reports.table_columns import EXTRAPOLATION_MARK, is_mostly_extrapolated
from lightning_predict.reports.table_rows import (
    LARGE_PART,
    TableLine,
    bound_by,
    folded_gpus,
    is_bound_by_loader,
    shown_period,
)

if TYPE_CHECKING:
    from lightning_predict.reports.table import Grid

MAX_NOTES: Final = 3
"""Maximum number of notes below a table without `verbose`."""

LOADER_RATE: Final = 5000.0
"""Samples per second and machine above which a loader may not keep up: a rounded figure for about 32 cores that
decode JPEG images."""

LARGE_INDIRECT_SHARE: Final = 0.1
"""A note appears if indirect methods (`proxy`, `bytes`, `formula`, `roofline`) predict at least this share of GPU
time."""

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
    decisive = (*(note for note in predictions.notes if is_decisive(note)), *prediction_notes(predictions, is_decisive))
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


def _is_plain(note: str) -> bool:
    """Return whether a note is neither decisive nor a detail."""
    return not is_decisive(note) and not is_detail(note)


def folded_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on the GPUs that have no row of their own (`folded_gpus`)."""
    names_of_gpu: dict[str, list[str]] = {}
    found = folded_gpus(predictions)
    for name, one in found.items():
        names_of_gpu.setdefault(one.gpu, []).append(name)
    for gpu, names in names_of_gpu.items():
        limit = {"host": "CPU"}.get(bound_by(found[names[0]]), bound_by(found[names[0]]))
        yield f"{listed(names)} would not be faster than the cheaper {gpu}: the {limit} limits this step."


def energy_note(predictions: AbstractPredictions) -> str:
    """Return a note on the assumptions behind the energies."""
    supplies = {one.supply for one in predictions.values()}
    grids = sorted({one.grams_per_kwh for one in supplies if one.grams_per_kwh is not None})
    grid = "".join(f" CO2 at {grams:g} g/kWh." for grams in grids)
    factors = sorted({one.overhead for one in supplies} - {1.0})
    of = "GPU only" if not factors else f"GPU, times {factors[0]:g} for the data centre (PUE)"
    return f"Energy (upper estimate): {of}, at its power limit while it computes.{grid}"


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
    writing = [one for one in predictions.values() if _checkpoint_share(one) >= NEGLIGIBLE]
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
    parts = [f"{duration(amount)} of {name}" for amount, name in amounts if amount >= NEGLIGIBLE * one.total.middle]
    yield f"{one.gpu}: the total has {duration(one.run.training_seconds)} of steps, {', '.join(parts)}."


def _checkpoint_share(prediction: Prediction) -> float:
    if not prediction.total_seconds or prediction.checkpoint_seconds is None:
        return 0.0
    return prediction.checkpoint_seconds / prediction.total_seconds


def loader_note(predictions: AbstractPredictions) -> Iterable[str]:
    """Yield a note on the loader's time if the loader is the bottleneck."""
    bound = [prediction.loader_seconds for prediction in predictions.values() if is_bound_by_loader(prediction)]
    if bound:
        yield (
            f"Bound by loader: it takes {milliseconds(max(bound))} ms per step on any GPU (included in the "
            "total). Use more workers; a faster GPU would not help."
        )


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
    """Yield a note on accelerators of vendors other than NVIDIA, whose steps are not predicted well enough to rank."""
    makers: dict[str, list[str]] = {}
    for prediction in predictions.values():
        if prediction.layout.gpu.vendor != NVIDIA:
            makers.setdefault(prediction.layout.gpu.vendor, []).append(prediction.gpu)
    for maker, names in makers.items():
        yield (
            f"{listed(names)}: not validated, may be several times too fast. Times are extrapolated from NVIDIA GPUs "
            f"by data sheet, without measurements on GPUs by {maker}; the intervals are doubled."
        )


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
