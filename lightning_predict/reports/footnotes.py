"""What is said below a table: marks, what the interval and the coverage mean, prices with their dates, notes.

Each function gives its footnotes for some predictions, none where there is nothing to say. Example::

    >>> list(price_notes(result))  # doctest: +SKIP
    ['Prices: T4 $0.35/h, Google n1-standard-4 (2026-10-01).']
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lightning_predict.cost.memory_fit import MARGIN
from lightning_predict.cost.records import Prediction
from lightning_predict.reports.format import duration, gibibytes, milliseconds, share, usd_per_hour
from lightning_predict.reports.predictions import Predictions

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


def in_use_note(predictions: Predictions) -> Iterable[str]:
    """The GPU in use, its step as measured, and how well it would have been predicted."""
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


def interval_note(predictions: Predictions) -> Iterable[str]:
    """What the interval promises."""
    if predictions:
        yield "Interval: nine in ten measured times should lie in it (90 %)."


def total_notes(predictions: Predictions) -> Iterable[str]:
    """What limits the total time."""
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
    """The loader takes longer for the batches of a step than the step computes."""
    return (prediction.loader_seconds or 0.0) > prediction.iteration_seconds


def loader_note(predictions: Predictions) -> Iterable[str]:
    """What the loader takes, where it is the limit."""
    bound = [prediction.loader_seconds or 0.0 for prediction in predictions.values() if is_bound_by_loader(prediction)]
    if bound:
        yield (
            f"Bound by loader: it takes {milliseconds(max(bound))} ms for the batches of an iteration on any GPU, so a "
            "faster one hardly helps; the total counts it. More workers may."
        )


def host_note(predictions: Predictions) -> Iterable[str]:
    """What a faster GPU gains where the host is the limit."""
    names_of_gain: dict[int, list[str]] = {}
    for prediction in predictions.values():
        verdict = prediction.verdict
        if verdict is not None and verdict.bound_by == "host" and not is_bound_by_loader(prediction):
            names_of_gain.setdefault(round(100 * verdict.gain), []).append(prediction.gpu)
    gains = [f"{gain} % ({', '.join(names)})" for gain, names in sorted(names_of_gain.items())]
    if gains:
        yield f"Bound by host: it cannot launch faster, so a GPU twice as fast gains {', '.join(gains)}."


def is_bound_by_links(prediction: Prediction) -> bool:
    """Half of a step or more is waiting for other GPUs."""
    return prediction.added_seconds >= prediction.iteration_seconds / 2


def links_note(predictions: Predictions) -> Iterable[str]:
    """What of a step several GPUs wait for each other, and that each takes samples of its own."""
    several = [one for one in predictions.values() if one.num_gpus > 1]
    shares = [(one.gpu, one.added_seconds / one.iteration_seconds) for one in several if one.added_seconds > 0]
    if shares:
        waits = ", ".join(f"{100 * share:.0f} % ({name})" for name, share in shares)
        yield f"Several GPUs: of an iteration, they wait for each other {waits}."
    if several:
        yield "Several GPUs: each copy of the model takes as many samples as were recorded, so that steps are fewer."


def bound_notes(predictions: Predictions) -> Iterable[str]:
    """What bounds a step, where it is not the device."""
    yield from links_note(predictions)
    yield from host_note(predictions)
    yield from loader_note(predictions)


def unknown_length_note(predictions: Predictions) -> Iterable[str]:
    """What a thousand steps and an epoch take where the length of the run is not known."""
    known = [one for one in predictions.values() if one.total_seconds is None and one.cycle_seconds is not None]
    if not known:
        return
    thousand = [f"{one.gpu} {duration(1000 * (one.cycle_seconds or 0.0))}" for one in known]
    yield f"The length of this run is not known. 1,000 steps of training take: {', '.join(thousand)}."
    epochs = [f"{one.gpu} {duration(one.epoch_seconds)}" for one in known if one.epoch_seconds is not None]
    if epochs:
        yield f"An epoch of training takes: {', '.join(epochs)}."


def tight_note(predictions: Predictions) -> Iterable[str]:
    """Where the memory is narrow, and what is left of it."""
    tight = [
        f"{one.gpu} has {gibibytes(one.memory_free_bytes or 0.0)} GiB to spare"
        for one in predictions.values()
        if one.memory_fit == "tight"
    ]
    if tight:
        yield f"Tight: it fits as predicted, but without a margin of {share(MARGIN)} ({', '.join(tight)})."


def time_limit_note(predictions: Predictions) -> Iterable[str]:
    """How far a run gets that a time limit ends."""
    reached = [
        f"{one.gpu} {one.total_seconds / one.cycle_seconds:,.0f}"
        for one in predictions.values()
        if one.is_cut_off and one.total_seconds is not None and one.cycle_seconds
    ]
    if reached:
        yield f"The time limit ends the run. Steps until then, without validation: {', '.join(reached)}."


def coverage_note(predictions: Predictions) -> Iterable[str]:
    """What the methods are."""
    methods = {method for one in predictions.values() for method, part in one.coverage.items() if part > 0}
    known = [f"{method}: {meaning}" for method, meaning in _METHODS.items() if method in methods]
    others = sorted(methods - _METHODS.keys())
    yield f"Covered by: share of the device's time by method ({'; '.join([*known, *others])})."
    yield from base_note(predictions)


def is_marked_as_base(prediction: Prediction) -> bool:
    """Networks that saw no measurement of the GPU time a share of it that counts."""
    return prediction.base_share >= LARGE_BASE_SHARE


def base_note(predictions: Predictions) -> Iterable[str]:
    """Where networks had to do without measurements of the GPU, and for how much of the time."""
    names_of_share: dict[str, list[str]] = {}
    for prediction in predictions.values():
        if is_marked_as_base(prediction):
            names_of_share.setdefault(share(prediction.base_share), []).append(prediction.gpu)
    if names_of_share:
        shares = ", ".join(f"{part} ({', '.join(names)})" for part, names in names_of_share.items())
        yield f"{BASE_MARK}: networks that know that GPU by its data sheet alone timed {shares}."


def price_notes(predictions: Predictions) -> Iterable[str]:
    """Each price once, with its GPUs, its source and date."""
    names_of_price: dict[tuple[float, str], list[str]] = {}
    for prediction in predictions.values():
        if prediction.usd_per_hour is not None:
            key = (prediction.usd_per_hour, prediction.offer or "source not stated")
            names_of_price.setdefault(key, []).append(prediction.gpu)
    prices = [f"{', '.join(names)} {usd_per_hour(price)}, {offer}" for (price, offer), names in names_of_price.items()]
    if prices:
        yield f"Prices: {'; '.join(prices)}."


def prediction_notes(predictions: Predictions) -> Iterable[str]:
    """Notes of all, then each note of some with the names of its GPUs."""
    yield from predictions.notes
    names_of_note: dict[str, list[str]] = {}
    for prediction in predictions.values():
        for note in prediction.notes:
            names_of_note.setdefault(note, []).append(prediction.gpu)
    for note, names in names_of_note.items():
        yield note if len(names) == len(predictions) else f"{', '.join(names)}: {note}"
