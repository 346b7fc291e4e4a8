import ctypes
import inspect
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_predict.base.errors import BudgetExceededError
from lightning_predict.base.files import in_hook
from lightning_predict.base.guard import fallback_on_error, keeps_random_state, log_exceptions


class Careful:
    def __init__(self) -> None:
        self.errors: list[Exception] = []

    @log_exceptions
    def hook(self, error: BaseException | None, *, more: int = 0) -> None:
        """Does something."""
        if error is not None:
            raise error

    def give_up(self, error: Exception) -> None:
        self.errors.append(error)


def test_errors_of_ours_go_to_give_up_and_hooks_keep_their_names() -> None:
    careful, error = Careful(), ValueError("wrong")
    careful.hook(error, more=1)
    careful.hook(None)
    assert careful.errors == [error]
    assert Careful.hook.__doc__ == "Does something."
    assert list(inspect.signature(Careful.hook).parameters) == ["self", "error", "more"]


def test_an_error_in_giving_up_is_said_and_goes_no_further(said: list[str]) -> None:
    class Careless(Careful):
        def give_up(self, error: Exception) -> None:
            raise RuntimeError("no way out")

    Careless().hook(ValueError("wrong"))
    words = "Careless failed (ValueError('wrong')), and so did giving up (RuntimeError('no way out'))."
    assert said == [words]
    said.clear()


@pytest.mark.parametrize("error", [StopIteration(3), GeneratorExit()])
def test_stop_iteration_goes_to_give_up(error: BaseException) -> None:
    careful = Careful()
    careful.hook(error)
    (kept,) = careful.errors
    assert isinstance(kept, Exception)
    assert repr(error) in repr(kept)


def test_method_that_fails_returns_its_fallback(said: list[str]) -> None:
    reported: list[Exception] = []

    class Asked:
        @fallback_on_error(dict, lambda _, error: reported.append(error))
        def state(self, error: BaseException | None) -> dict[str, int]:
            if error is not None:
                raise error
            return {"steps": 3}

        @fallback_on_error(lambda: 7, lambda *_: reported[99])
        def number(self) -> int:
            raise ValueError("wrong")

    asked, error = Asked(), ValueError("wrong")
    assert [asked.state(None), asked.state(error), asked.state(GeneratorExit())] == [{"steps": 3}, {}, {}]
    assert [repr(error) for error in reported] == ["ValueError('wrong')", "RuntimeError('GeneratorExit()')"]
    assert asked.number() == 7
    assert said == [
        "Asked.number failed (ValueError('wrong')), and so did saying it (IndexError('list index out of range'))."
    ]
    said.clear()
    with pytest.raises(KeyboardInterrupt):
        asked.state(KeyboardInterrupt())


@pytest.mark.parametrize("error", [BudgetExceededError("too much"), KeyboardInterrupt(), SystemExit()])
def test_budget_exceeded_error_is_raised(error: BaseException) -> None:
    careful = Careful()
    with pytest.raises(type(error)):
        careful.hook(error)
    assert careful.errors == []


class UserTimeLimitError(Exception):
    """The user's own time limit."""


@pytest.fixture
def alarm() -> Iterator[Callable[[Callable[..., None]], None]]:
    """Call a handler of SIGALRM after 20 ms."""

    def start(handler: Callable[..., None]) -> None:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.02)

    before = signal.getsignal(signal.SIGALRM)
    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def handler_of(kind: str, error: type[Exception]) -> Callable[..., None]:
    def plain(number: int, frame: object) -> None:
        raise error("the user's time limit")

    def rebinding(number: Any, frame: object) -> None:
        number = signal.Signals(number).name
        del frame
        raise error(f"the user's time limit: {number}")

    class Handler:
        def __call__(self, *values: object) -> None:
            raise error("the user's time limit")

    def of_three(_: object, number: Any, frame: Any) -> None:
        number = frame = None
        raise error(f"the user's time limit{number or frame or ''}")

    handlers: dict[str, Callable[..., None]] = {
        "function": plain,
        "rebinding": rebinding,
        "object": Handler(),
        "partial": partial(of_three, 0),
    }
    return handlers[kind]


@pytest.mark.parametrize("error", [UserTimeLimitError, TimeoutError, ValueError])
def test_error_from_another_thread_passes(error: type[Exception]) -> None:
    """A time limit that a library implements with `PyThreadState_SetAsyncExc`."""
    ours = ctypes.c_ulong(threading.get_ident())

    class Working(Careful):
        @log_exceptions
        def work(self) -> None:
            """Works until the error comes."""
            end = time.monotonic() + 5.0
            while time.monotonic() < end:
                pass

    limit = threading.Timer(0.05, lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(ours, ctypes.py_object(error)))
    limit.start()
    with pytest.raises(error):
        Working().work()


@pytest.mark.parametrize("kind", ["function", "object", "rebinding", "partial"])
@pytest.mark.parametrize("error", [UserTimeLimitError, TimeoutError])
@pytest.mark.parametrize("place", ["in a hook", "in a result", "in giving up", "while a file is written"])
def test_an_error_of_a_signal_handler_passes(
    kind: str, error: type[Exception], place: str, alarm: Callable[[Callable[..., None]], None], tmp_path: Path
) -> None:
    def wait() -> None:
        end = time.monotonic() + 5.0
        while time.monotonic() < end:
            pass

    def write() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.02)  # not before: it may interrupt the start of a thread
        time.sleep(5.0)

    class Working(Careful):
        @log_exceptions
        def work(self) -> None:
            """Works for a while."""
            if place == "in giving up":
                raise ValueError
            if place == "while a file is written":
                in_hook(tmp_path / "file", write)
            wait()

        @fallback_on_error(dict, lambda *_: None)
        def result(self) -> dict[str, int]:
            wait()
            return {}

        def give_up(self, error: Exception) -> None:
            wait()

    working = Working()
    alarm(handler_of(kind, error))
    if place == "while a file is written":
        signal.setitimer(signal.ITIMER_REAL, 0)
    with pytest.raises(error, match="the user's time limit"):
        working.result() if place == "in a result" else working.work()


def test_an_error_of_ours_does_not_pass_because_a_handler_ran_before(
    alarm: Callable[[Callable[..., None]], None],
) -> None:
    alarm(lambda *_: None)
    careful = Careful()
    time.sleep(0.05)
    careful.hook(ValueError("wrong"))
    assert len(careful.errors) == 1


def test_an_error_in_cython_goes_to_give_up() -> None:
    class Drawing(Careful):
        @log_exceptions
        def work(self) -> None:
            """Fails in numpy's compiled code."""
            np.random.normal(0.0, -1.0)

    drawing = Drawing()
    drawing.work()
    assert [type(error) for error in drawing.errors] == [ValueError]


@pytest.mark.parametrize("package", ["wandb.sdk.lib.asyncio_manager", "ipykernel.iostream"])
def test_random_numbers_continue_beside_a_thread_of_a_logger_or_a_notebook(package: str) -> None:
    ends = threading.Event()

    def send() -> None:
        ends.wait(5.0)

    send.__module__ = package
    thread, before = threading.Thread(target=send), random.getstate()
    thread.start()
    keeps_random_state(random.random)()
    ends.set()
    thread.join()
    assert random.getstate() == before


@pytest.mark.parametrize("draw", [random.random, np.random.random, lambda: torch.rand(()).item()])
@pytest.mark.parametrize("in_thread", [False, True])
def test_random_numbers_continue_after_our_call_unless_another_thread_drew_some(
    draw: Callable[[], float], in_thread: bool
) -> None:
    may_draw, drawn = threading.Event(), list[float]()

    def make_ahead() -> None:
        may_draw.wait(5.0)
        drawn.append(draw())

    thread = threading.Thread(target=make_ahead)

    @keeps_random_state
    def call() -> None:
        may_draw.set()
        thread.join() if in_thread else drawn.append(draw())

    if in_thread:
        thread.start()
    call()
    assert (draw() == drawn[0]) is not in_thread
