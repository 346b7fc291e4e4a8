"""`run_with_timeout`: call a function with a timeout.

A call that cannot be interrupted (a DNS lookup, a slow server, a hanging disk) runs in a separate thread, which is
abandoned after the timeout. Example::

    >>> run_with_timeout(1.0, lambda: 6 * 7)
    42
    >>> run_with_timeout(0.01, lambda: __import__("time").sleep(0.2))
    Traceback (most recent call last):
    ...
    TimeoutError: not done within 0.01 s
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Final, Generic, TypeVar

Result = TypeVar("Result")

PATIENCE_SECONDS: Final = 60.0  # Longest that a file, a logger, a prediction or another rank may delay a training

THREAD_NAME: Final = "lightning-predict"  # Name of our threads, which draw no random numbers (`base.guard`)


class BackgroundTask(Generic[Result]):
    """A function call in a daemon thread, which does not keep the process alive.

    Raises:
        OSError: No further thread can be started.
    """

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._results: list[Result] = []
        self._error: BaseException | None = None
        context = copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name=THREAD_NAME, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # callers handle an OSError, as for any other exhausted resource
            raise OSError(errno.EAGAIN, str(error)) from error

    def is_done(self, *, wait_seconds: float = 0.0) -> bool:
        """Wait up to `wait_seconds`, and return whether the call has ended."""
        self._thread.join(wait_seconds)
        return not self._thread.is_alive()

    def result(self) -> Result:
        """Return the result of the finished call, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # raised by `result`
            self._error = error


def run_with_timeout(seconds: float, work: Callable[[], Result]) -> Result:
    """Call `work` with a timeout; return its result or raise its error.

    Raises:
        TimeoutError: `work` has not finished. Its thread continues in the background.
    """
    background = BackgroundTask(work)
    if not background.is_done(wait_seconds=seconds):
        raise TimeoutError(f"not done within {seconds:g} s")
    return background.result()


_UNANSWERED: Final[dict[str, BackgroundTask[Any]]] = {}  # Calls that timed out, by the name of their resource


def run_unless_hanging(seconds: float, resource: str, work: Callable[[], Result]) -> Result:
    """Call `work` with a timeout, unless an earlier call on the same resource still hangs.

    Raises:
        TimeoutError: `work` has not finished, or an earlier call still hangs.
    """
    before = _UNANSWERED.get(resource)
    if before is not None and not before.is_done():
        raise TimeoutError(f"{resource} has not answered yet")
    _UNANSWERED.pop(resource, None)
    background = BackgroundTask(work)
    if not background.is_done(wait_seconds=seconds):
        _UNANSWERED[resource] = background
        raise TimeoutError(f"{resource} did not answer within {seconds:g} s")
    return background.result()
