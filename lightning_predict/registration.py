"""Use without a line of code: Lightning asks this factory for callbacks whenever a Trainer is made.

It adds `RuntimePredictor` only where the environment asks for it, and costs next to nothing where it does not::

    LIGHTNING_PREDICT=1 LIGHTNING_PREDICT_GPUS=T4,L4 python train.py

Registered in pyproject.toml under `lightning.pytorch.callbacks_factory` and `pytorch_lightning.callbacks_factory`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from lightning_predict.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.guard import say

if TYPE_CHECKING:
    from lightning_predict.callbacks import RuntimePredictor

SWITCH_VARIABLE: Final = "LIGHTNING_PREDICT"
GPUS_VARIABLE: Final = "LIGHTNING_PREDICT_GPUS"


def callbacks_from_environment() -> list[RuntimePredictor]:
    """Return a `RuntimePredictor` if `LIGHTNING_PREDICT=1`, for the GPUs in `LIGHTNING_PREDICT_GPUS` if they are named.

    What the environment says wrongly is raised where a Trainer is made, before anything is trained; where our own code
    fails, the Trainer is made without it.

    Raises:
        InvalidArgumentError: `LIGHTNING_PREDICT` is neither 1 nor 0 nor empty.
        UnknownGpuError: `LIGHTNING_PREDICT_GPUS` has a name that the catalogue does not hold.
    """
    switch = os.environ.get(SWITCH_VARIABLE, "").strip()
    if switch in ("", "0"):
        return []
    if switch != "1":
        raise InvalidArgumentError(f"{SWITCH_VARIABLE}={switch!r} is not known; set it to 1, or to 0 to switch it off.")
    names = [name.strip() for name in os.environ.get(GPUS_VARIABLE, "").split(",") if name.strip()]
    try:
        from lightning_predict.callbacks import RuntimePredictor

        return [RuntimePredictor(names) if names else RuntimePredictor()]
    except UnknownGpuError as error:
        raise UnknownGpuError(f"{GPUS_VARIABLE}: {error}") from error
    except Exception as error:
        say(f"{SWITCH_VARIABLE}=1, but RuntimePredictor cannot be made: {type(error).__name__}: {error}")
        return []
