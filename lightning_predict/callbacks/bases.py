"""What the callbacks need of Lightning, for whichever of its two packages is installed, and a guard around hooks.

`lightning` and `pytorch_lightning` ship the same Trainer under two names, and their `Callback` classes are unrelated.
A class that inherits both is accepted by either Trainer, alone or in a list, and by either LightningCLI.

Whatever goes wrong inside a guarded hook is handed to the callback's `give_up`, which cleans up and warns once; the
Trainer sees nothing of it. Example::

    class Careful(Callback):
        @never_raises
        def on_train_batch_end(self, trainer, *args):
            raise RuntimeError("training goes on")
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from lightning_predict.errors import MissingDependencyError
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar
from lightning_predict.errors import BudgetExceededError

if TYPE_CHECKING:
    from lightning.pytorch import Callback as Callback
    from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint, Timer
    from lightning.pytorch.utilities import rank_zero_info as rank_zero_info
    from lightning.pytorch.utilities import rank_zero_warn as rank_zero_warn
    TIMERS = (Timer,)
    ACCUMULATION_SCHEDULERS = (GradientAccumulationScheduler,)
    MODEL_CHECKPOINTS = (ModelCheckpoint,)


PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")


def installed_packages() -> tuple[ModuleType, ...]:
    """Those of `PACKAGES` that can be imported.

    Raises:
        MissingDependencyError: None of them.
    """
    modules = []
    for name in PACKAGES:
        try:
            modules.append(import_module(name))
        except ImportError:
            continue
    if not modules:
        raise MissingDependencyError(
            "The callbacks need Lightning, and neither 'lightning' nor 'pytorch_lightning' can be imported. "
            "Install it with: pip install lightning"
        )
    return tuple(modules)




class LightningPredictWarning(UserWarning):
    """Something that a callback could not do, or that breaks a budget; training goes on unharmed."""


def warn(message: str) -> None:
    """Show one `LightningPredictWarning` on rank zero."""
    rank_zero_warn(message, category=LightningPredictWarning, stacklevel=5)


def samples_of(batch: Any) -> int | None:
    """Samples of a batch: the first size that all of its tensors share; None where they do not agree, or there is none.

    Args:
        batch: What a loader yields: a tensor, or tensors in tuples, lists and dicts.
    """
    sizes = set(_first_sizes(batch))
    return sizes.pop() if len(sizes) == 1 else None


def _first_sizes(batch: Any) -> list[int]:
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (tuple, list)):
        return [size for part in batch for size in _first_sizes(part)]
    shape = getattr(batch, "shape", None)
    return [int(shape[0])] if shape is not None and len(shape) > 0 else []


Parameters = ParamSpec("Parameters")


class GivesUp(Protocol):
    """A callback that can be switched off."""

    def give_up(self, error: Exception) -> None:
        """Clean up, say once what went wrong, and do nothing from now on."""


Guarded = TypeVar("Guarded", bound=GivesUp)


def never_raises(
    hook: Callable[Concatenate[Guarded, Parameters], None],
) -> Callable[Concatenate[Guarded, Parameters], None]:
    """The hook, with every error in it handed to `give_up`; only a `BudgetExceededError` leaves it.

    Args:
        hook: A method of a callback.
    """

    @wraps(hook)
    def guarded(self: Guarded, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        # Exception, the broadest that is not an exit: predictions are worth less than the run that they are about.
        try:
            hook(self, *args, **kwargs)
        except BudgetExceededError:
            raise
        except Exception as error:
            self.give_up(error)

    return guarded
