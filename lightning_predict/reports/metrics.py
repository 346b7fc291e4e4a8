"""Predictions as one flat dict of floats: what every logger takes.

Example::

    >>> metrics(result)  # doctest: +SKIP
    {'predict/T4/iteration_ms': 12.3, 'predict/T4/iteration_ms_low': 11.2, 'predict/T4/iteration_ms_high': 13.8}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from lightning_predict.cost.records import Prediction
from lightning_predict.reports.predictions import Predictions
from lightning_predict.units import bytes_to_gibibytes, seconds_to_hours, seconds_to_milliseconds


def _converted(convert: Callable[[float], float], value: float | None) -> float | None:
    return None if value is None else convert(value)


QUANTITIES: Final[Mapping[str, Callable[[Prediction], float | None]]] = {
    "iteration_ms": lambda prediction: seconds_to_milliseconds(prediction.iteration_seconds),
    "iteration_ms_low": lambda prediction: seconds_to_milliseconds(prediction.iteration_seconds_low),
    "iteration_ms_high": lambda prediction: seconds_to_milliseconds(prediction.iteration_seconds_high),
    "total_hours": lambda prediction: _converted(seconds_to_hours, prediction.total_seconds),
    "cost_usd": lambda prediction: prediction.cost_usd,
    "memory_gib": lambda prediction: _converted(bytes_to_gibibytes, prediction.memory_bytes),
    "memory_free_gib": lambda prediction: _converted(bytes_to_gibibytes, prediction.memory_free_bytes),
}
"""Logged name of each quantity, with its unit; None where it is not known."""


def metrics(predictions: Predictions, *, separator: str = "/") -> dict[str, float]:
    """Every known quantity of every GPU.

    Args:
        predictions: What to log.
        separator: Between the parts of a key; a logger's `group_separator`.

    Returns:
        Values by key `predict/<gpu>/<quantity>`; a quantity that is not known has no key.
    """
    return {
        separator.join(("predict", prediction.gpu, name)): float(value)
        for prediction in predictions.values()
        for name, quantity in QUANTITIES.items()
        if (value := quantity(prediction)) is not None
    }
