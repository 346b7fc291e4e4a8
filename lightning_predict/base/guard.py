"""Decorators that keep errors in our code away from the training: `log_exceptions` and `fallback_on_error`.

An error in a guarded hook is passed to the callback's `give_up`, which cleans up and warns once. Errors in `give_up`
are only logged, so the Trainer sees none of them. Every method that a Trainer or torch calls has a decorator, because a
`try` inside the method would not catch errors in its arguments. Example::

    class Careful(Callback):
        @log_exceptions
        def on_train_batch_end(self, trainer, *args):
            raise RuntimeError("training goes on")

        def give_up(self, error):
            warn(f"Careful is off: {error}")
"""

from __future__ import annotations

import logging
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dis import opname
from functools import partial, wraps
from inspect import CO_VARARGS
from itertools import pairwise
from queue import Empty, Full
from types import CodeType, FrameType, TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from lightning_predict.base.errors import BudgetExceededError
from lightning_predict.base.timeout import THREAD_NAME

_LOG: Final = logging.getLogger("lightning_predict")

Parameters = ParamSpec("Parameters")

CAUGHT: Final = (Exception, GeneratorExit)
"""Caught errors: all except KeyboardInterrupt and SystemExit. StopIteration and GeneratorExit are also caught,
because they would silently end the calling loop or generator."""


def log_warning(message: str) -> None:
    """Log a message instead of warning: under `-W error`, a warning would raise an exception."""
    _LOG.warning(message)


class CanGiveUp(Protocol):
    """A callback that can be switched off."""

    def give_up(self, error: Exception) -> None:
        """Clean up, report the error once, and do nothing afterwards."""


Guarded = TypeVar("Guarded", bound=CanGiveUp)
Owner = TypeVar("Owner")
Result = TypeVar("Result")


def log_exceptions(
    hook: Callable[Concatenate[Guarded, Parameters], None],
) -> Callable[Concatenate[Guarded, Parameters], None]:
    """Decorate a hook so that its errors go to `give_up`; only a BudgetExceededError is raised.

    StopIteration and GeneratorExit are also caught, because they would silently end the calling loop or generator.
    KeyboardInterrupt, SystemExit and all errors of signal handlers are raised: their cause is outside the hook.
    """

    @wraps(hook)
    def guarded(self: Guarded, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        # Catch broadly: the training is worth more than predictions.
        try:
            with unseen_by_modes():
                hook(self, *args, **kwargs)
        except BudgetExceededError:
            raise
        except CAUGHT as error:
            _give_up(self, error)

    return guarded


def log_exceptions_unless(
    is_done: Callable[[Guarded], bool],
) -> Callable[[Callable[Concatenate[Guarded, Parameters], None]], Callable[Concatenate[Guarded, Parameters], None]]:
    """Return `log_exceptions` for a hook of every step, which is called only if `is_done` returns False."""

    def decorate(
        hook: Callable[Concatenate[Guarded, Parameters], None],
    ) -> Callable[Concatenate[Guarded, Parameters], None]:
        whole = log_exceptions(hook)

        @wraps(hook)
        def guarded(self: Guarded, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
            try:
                if is_done(self):
                    return
            except CAUGHT as error:
                _give_up(self, error)
                return
            whole(self, *args, **kwargs)

        return guarded

    return decorate


def _give_up(callback: CanGiveUp, error: BaseException) -> None:
    own = own_error(error)
    try:
        callback.give_up(own)
    except CAUGHT as another:
        own_error(another)
        log_warning(f"{type(callback).__name__} failed ({error!r}), and so did giving up ({another!r}).")


def fallback_on_error(
    make_fallback: Callable[[], Any], report: Callable[[Any, Exception], object]
) -> Callable[[Callable[Concatenate[Owner, Parameters], Result]], Callable[Concatenate[Owner, Parameters], Result]]:
    """Return a decorator for a method: if the method fails, report the error and return a fallback value.

    An error in `report` is logged.
    """

    def decorate(
        method: Callable[Concatenate[Owner, Parameters], Result],
    ) -> Callable[Concatenate[Owner, Parameters], Result]:
        @wraps(method)
        def guarded(self: Owner, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            try:
                with unseen_by_modes():
                    return method(self, *args, **kwargs)
            except CAUGHT as error:
                own = own_error(error)
                try:
                    report(self, own)
                except CAUGHT as another:
                    own_error(another)
                    name = f"{type(self).__name__}.{method.__name__}"
                    log_warning(f"{name} failed ({error!r}), and so did saying it ({another!r}).")
            instead: Result = make_fallback()
            return instead

        return guarded

    return decorate


def unseen_by_modes() -> AbstractContextManager[None]:
    """Return a context manager that hides our code from the script's TorchFunctionModes.

    Even reading a tensor's shape calls the modes. A mode that draws random numbers would change the training.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch._C._len_torch_function_stack():
        return _AS_IT_IS
    context: AbstractContextManager[None] = torch._C.DisableTorchFunction()
    return context


_AS_IT_IS: Final = nullcontext()


def keeps_random_state(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a method that calls code of the user (loaders, loggers), which may draw random numbers.

    The generators of Python, NumPy and torch (on the CPU) then continue as if the method had not run. If another thread
    of the user runs, such as one that makes batches ahead, it may draw meanwhile: the generators are left alone.
    """

    @wraps(method)
    def kept(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if any(map(_may_draw, threading.enumerate())):
            return method(*args, **kwargs)
        generators: list[tuple[Callable[[Any], object], Any]] = [(random.setstate, random.getstate())]
        if (numpys := sys.modules.get("numpy.random")) is not None:
            generators.append((numpys.set_state, numpys.get_state(legacy=False)))
        if (torch := sys.modules.get("torch")) is not None:
            generators.append((torch.default_generator.set_state, torch.default_generator.get_state()))
        try:
            return method(*args, **kwargs)
        finally:
            for restore, state in generators:
                restore(state)

    return kept


def _may_draw(thread: threading.Thread) -> bool:
    """Return whether a thread is another one, neither ours nor of torch's loader, a logger, a bar or a notebook."""
    if thread is threading.current_thread() or thread.name == THREAD_NAME or "_pin_memory_loop" in thread.name:
        return False
    modules = (getattr(part, "__module__", None) or "" for part in (type(thread), getattr(thread, "_target", None)))
    return not (thread.name.startswith("Mlflow") or any(module.partition(".")[0] in _QUIET for module in modules))


_QUIET: Final = (  # Packages whose threads run beside many trainings, and draw none of its random numbers
    *("tqdm", "rich", "tensorboard", "wandb", "mlflow", "comet_ml", "neptune"),
    *("ipykernel", "IPython", "zmq"),
)


def own_error(error: BaseException) -> Exception:
    """Return the error if our code raised it; re-raise an error of a signal handler that interrupted our code.

    A signal handler may raise an error for a time limit of the script, for example with SIGALRM. Every `except` of ours
    that may catch such an error calls this function. GeneratorExit, which is not an Exception, becomes a RuntimeError.
    """
    if comes_from_handler(error):
        raise error
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


def comes_from_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised the error, or another thread or the system raised it in our code."""
    codes = {code for number in signal.valid_signals() for code in _codes_of(signal.getsignal(number))}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        inner = trace.tb_next
        if inner is None:
            return _is_asynchronous(error, trace)
        if inner.tb_frame.f_back is trace.tb_frame and _is_handler(inner.tb_frame, trace.tb_frame):
            return True
        trace = inner
    return False


def _codes_of(handler: object) -> Iterator[CodeType]:
    """Yield the code of a handler: of a function, a method, a partial or an object that can be called."""
    while isinstance(handler, partial):
        handler = handler.func
    for function in (handler, type(handler).__call__ if callable(handler) else None):
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield code


def _is_asynchronous(error: BaseException, trace: TracebackType) -> bool:
    """Return whether an error was raised in a frame from outside, for example by `PyThreadState_SetAsyncExc`.

    The interpreter raises it where it looks for events: at the start of a function, in a loop, and after a call. It
    creates it from a class, without arguments. The frame of an error in Cython has no names and at most three steps.
    """
    code = trace.tb_frame.f_code
    if len(code.co_code) <= 6 and not (code.co_consts or code.co_names or code.co_varnames):
        return False
    operation = opname[code.co_code[trace.tb_lasti]]
    if operation == "RESUME" or "JUMP_BACKWARD" in operation:
        return not isinstance(error, RecursionError)
    return operation.startswith("CALL") and not error.args and not isinstance(error, _WITHOUT_ARGUMENTS)


_WITHOUT_ARGUMENTS: Final = (StopIteration, StopAsyncIteration, GeneratorExit, MemoryError, RecursionError, Empty, Full)
"""Errors that functions in C raise without arguments."""


def _is_handler(frame: FrameType, interrupted: FrameType) -> bool:
    """Return whether a frame is a signal handler: two adjacent arguments are a number and the interrupted frame."""
    code = frame.f_code
    values = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & CO_VARARGS:
        values += frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
    return any(isinstance(number, int) and value is interrupted for number, value in pairwise(values))
