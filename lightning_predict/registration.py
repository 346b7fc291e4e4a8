"""Callback factory for use without code changes: Lightning calls it whenever a Trainer is made.

It adds `RuntimePredictor`, and `CostBudget` for a budget, only if environment variables ask for it; otherwise it has
almost no overhead::

    LIGHTNING_PREDICT=1 LIGHTNING_PREDICT_GPUS=T4,L4 python train.py

`lightning-predict run --gpus T4,L4 train.py` sets these variables.

Registered in pyproject.toml under `lightning.pytorch.callbacks_factory` and `pytorch_lightning.callbacks_factory`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightning_predict.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.guard import log_warning

if TYPE_CHECKING:
    from lightning_predict.callbacks import CostBudget, RuntimePredictor

SWITCH_VARIABLE: Final = "LIGHTNING_PREDICT"
GPUS_VARIABLE: Final = "LIGHTNING_PREDICT_GPUS"
USD_VARIABLE: Final = "LIGHTNING_PREDICT_USD"
PRICE_VARIABLE: Final = "LIGHTNING_PREDICT_USD_PER_HOUR"
SEEN_VARIABLE: Final = "LIGHTNING_PREDICT_SEEN"
"""Path of a file that is created once a Trainer is made, so that `lightning-predict run` can report if none was."""


def callbacks_from_environment() -> list[RuntimePredictor | CostBudget]:
    """Return the callbacks that the environment asks for.

    With `LIGHTNING_PREDICT=1` that is a `RuntimePredictor`, for the GPUs in `LIGHTNING_PREDICT_GPUS` if set. With
    `LIGHTNING_PREDICT_USD` it is also a `CostBudget` of that many dollars, at `LIGHTNING_PREDICT_USD_PER_HOUR` or the
    listed price. Wrong values raise an error when a Trainer is made, before any training. If our own code fails, the
    Trainer is made without it.

    Raises:
        InvalidArgumentError: `LIGHTNING_PREDICT` is not 1, 0 or empty, or an amount is invalid.
        UnknownGpuError: `LIGHTNING_PREDICT_GPUS` has a name that the catalogue does not contain.
    """
    switch = os.environ.get(SWITCH_VARIABLE, "").strip()
    if switch in ("", "0"):
        return []
    if switch != "1":
        raise InvalidArgumentError(f"{SWITCH_VARIABLE}={switch!r} is not known; set it to 1, or to 0 to switch it off.")
    if SEEN_VARIABLE in os.environ:
        with suppress(OSError):
            Path(os.environ[SEEN_VARIABLE]).touch()
    names = [name.strip() for name in os.environ.get(GPUS_VARIABLE, "").split(",") if name.strip()]
    usd, usd_per_hour = _amount(USD_VARIABLE), _amount(PRICE_VARIABLE)
    try:
        from lightning_predict.callbacks import CostBudget, RuntimePredictor

        callbacks: list[RuntimePredictor | CostBudget] = [RuntimePredictor(names) if names else RuntimePredictor()]
        if usd is not None:
            budget = CostBudget(usd=usd, usd_per_hour=usd_per_hour)
            budget.state_key = f"{CostBudget.state_key}.environment"  # distinct from a budget in the script
            callbacks.append(budget)
        return callbacks
    except UnknownGpuError as error:
        raise UnknownGpuError(f"{GPUS_VARIABLE}: {error}") from error
    except Exception as error:
        log_warning(f"{SWITCH_VARIABLE}=1, but RuntimePredictor cannot be made: {type(error).__name__}: {error}")
        return []


def _amount(variable: str) -> float | None:
    """Read an amount from the environment; None if it is not set or empty.

    Raises:
        InvalidArgumentError: It is not a number above 0.
    """
    from lightning_predict.checked import positive_number

    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    amount = None
    with suppress(ValueError):
        amount = positive_number(float(text))
    if amount is None:
        raise InvalidArgumentError(f"{variable}={text!r} is not an amount; set it to US dollars above 0.")
    return amount
