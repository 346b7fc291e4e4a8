"""Callback factory that Lightning calls whenever a Trainer is created, so that scripts need no change.

If environment variables request it, the factory adds `RuntimePredictor` and, for a budget, `CostBudget`::

    LIGHTNING_PREDICT=1 LIGHTNING_PREDICT_GPUS=T4,L4 python train.py

`lightning-predict run --gpus T4,L4 train.py` sets these variables. Otherwise, the factory has almost no overhead. The
factory is registered in pyproject.toml under `lightning.pytorch.callbacks_factory` and
`pytorch_lightning.callbacks_factory`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.base.files import mark
from lightning_predict.base.guard import log_warning

if TYPE_CHECKING:
    from lightning_predict.callbacks import CostBudget, RuntimePredictor

SWITCH_VARIABLE: Final = "LIGHTNING_PREDICT"
GPUS_VARIABLE: Final = "LIGHTNING_PREDICT_GPUS"
USD_VARIABLE: Final = "LIGHTNING_PREDICT_USD"
PRICE_VARIABLE: Final = "LIGHTNING_PREDICT_USD_PER_HOUR"
SEEN_VARIABLE: Final = "LIGHTNING_PREDICT_SEEN"
"""Environment variable with the path of a file that is created with the first Trainer. If the file is missing at the
end, `lightning-predict run` reports that no Trainer was created."""


def callbacks_from_environment() -> list[RuntimePredictor | CostBudget]:
    """Return the callbacks that environment variables request.

    `LIGHTNING_PREDICT=1` requests a `RuntimePredictor` for the GPUs in `LIGHTNING_PREDICT_GPUS`.
    `LIGHTNING_PREDICT_USD` also requests a `CostBudget` of this number of dollars, at the price in
    `LIGHTNING_PREDICT_USD_PER_HOUR` or the listed price. Invalid values raise an error when a Trainer is created,
    before training starts. If our own code fails, the Trainer is created without callbacks.
    """
    switch = os.environ.get(SWITCH_VARIABLE, "").strip()
    if switch in ("", "0"):
        return []
    if switch != "1":
        raise InvalidArgumentError(f"{SWITCH_VARIABLE}={switch!r} is not known; set it to 1, or to 0 to switch it off.")
    mark(SEEN_VARIABLE)
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
    """Return a number from an environment variable; None if the variable is unset or empty."""
    from lightning_predict.base.checked import positive_number

    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    amount = None
    with suppress(ValueError):
        amount = positive_number(float(text))
    if amount is None:
        raise InvalidArgumentError(f"{variable}={text!r} is not an amount; set it to US dollars above 0.")
    return amount
