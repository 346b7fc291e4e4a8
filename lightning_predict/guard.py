"""`never_raises` and `gives_instead`: keep what a Trainer calls of ours from ever harming training.

Whatever goes wrong inside a guarded hook is handed to the callback's `give_up`, which cleans up and warns once; the
Trainer sees neither that error nor one in `give_up`. Every method of ours that a Trainer, or torch, calls is guarded:
a `try` inside it begins too late. Example::

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
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from lightning_predict.errors import BudgetExceededError

_LOG: Final = logging.getLogger("lightning_predict")

Parameters = ParamSpec("Parameters")

FAILURES: Final = (Exception, GeneratorExit)
"""What is caught of ours: all but what asks a program to end. A loop would take StopIteration for its own end, and a
generator GeneratorExit for its own."""


def log_sentence(message: str) -> None:
    """Log what cannot be a warning: under `-W error` a warning is an exception. Logging raises nothing."""
    _LOG.warning(message)


class GivesUp(Protocol):
    """A callback that can be switched off."""

    def give_up(self, error: Exception) -> None:
        """Clean up, report once what went wrong, and do nothing from now on."""


Guarded = TypeVar("Guarded", bound=GivesUp)
Owner = TypeVar("Owner")
Result = TypeVar("Result")


def never_raises(
    hook: Callable[Concatenate[Guarded, Parameters], None],
) -> Callable[Concatenate[Guarded, Parameters], None]:
    """Return the hook with its errors handed to `give_up`; only exceptions with which a budget ends a run pass.

    StopIteration does not pass, as a loop would take it for the end of its loader, nor does GeneratorExit. What asks a
    program to end (KeyboardInterrupt, SystemExit) does: it came from outside while the hook ran.
    """

    @wraps(hook)
    def guarded(self: Guarded, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        # Exception, the broadest that is not an exit: predictions are worth less than the run that they are about.
        try:
            hook(self, *args, **kwargs)
        except BudgetExceededError:
            raise
        except FAILURES as error:
            try:
                self.give_up(as_error(error))
            except FAILURES as another:
                log_sentence(f"{type(self).__name__} failed ({error!r}), and so did giving up ({another!r}).")

    return guarded


def gives_instead(
    value: Callable[[], Any], report: Callable[[Any, Exception], object]
) -> Callable[[Callable[Concatenate[Owner, Parameters], Result]], Callable[Concatenate[Owner, Parameters], Result]]:
    """Return a decorator for a method that something is asked of: it gives another value where it fails, and reports.

    Args:
        value: Makes what is given instead.
        report: Says what failed; what fails in it is logged.
    """

    def decorate(
        method: Callable[Concatenate[Owner, Parameters], Result],
    ) -> Callable[Concatenate[Owner, Parameters], Result]:
        @wraps(method)
        def guarded(self: Owner, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            try:
                return method(self, *args, **kwargs)
            except FAILURES as error:
                try:
                    report(self, as_error(error))
                except FAILURES as another:
                    name = f"{type(self).__name__}.{method.__name__}"
                    log_sentence(f"{name} failed ({error!r}), and so did saying it ({another!r}).")
            instead: Result = value()
            return instead

        return guarded

    return decorate


def as_error(error: BaseException) -> Exception:
    """Return an error as it is, and a GeneratorExit, which is none for Python, as one that names it."""
    return error if isinstance(error, Exception) else RuntimeError(repr(error))
