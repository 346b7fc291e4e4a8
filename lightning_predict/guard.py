"""`never_raises`: keep a hook from ever harming training.

Whatever goes wrong inside a guarded hook is handed to the callback's `give_up`, which cleans up and warns once; the
Trainer sees neither that error nor one in `give_up`. Example::

    class Careful(Callback):
        @never_raises
        def on_train_batch_end(self, trainer, *args):
            raise RuntimeError("training goes on")

        def give_up(self, error):
            warn(f"Careful is off: {error}")
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from lightning_predict.errors import BudgetExceededError

_LOG: Final = logging.getLogger("lightning_predict")

Parameters = ParamSpec("Parameters")


def say(message: str) -> None:
    """Log what cannot be a warning: under `-W error` a warning is an exception. Logging raises nothing."""
    _LOG.warning(message)


class GivesUp(Protocol):
    """A callback that can be switched off."""

    def give_up(self, error: Exception) -> None:
        """Clean up, report once what went wrong, and do nothing from now on."""


Guarded = TypeVar("Guarded", bound=GivesUp)


def never_raises(
    hook: Callable[Concatenate[Guarded, Parameters], None],
) -> Callable[Concatenate[Guarded, Parameters], None]:
    """Return the hook with its errors handed to `give_up`; only exceptions with which a budget ends a run pass."""

    @wraps(hook)
    def guarded(self: Guarded, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        # Exception, the broadest that is not an exit: predictions are worth less than the run that they are about.
        try:
            hook(self, *args, **kwargs)
        except (BudgetExceededError, StopIteration):  # a loop treats StopIteration as the end of its loader
            raise
        except Exception as error:
            try:
                self.give_up(error)
            except Exception as another:
                say(f"{type(self).__name__} failed ({error!r}), and so did giving up ({another!r}).")

    return guarded
