from __future__ import annotations

import threading

import pytest

from lightning_predict.base.timeout import BackgroundTask, run_with_timeout


def test_the_result_comes_as_it_is() -> None:
    assert run_with_timeout(5.0, lambda: [1, 2]) == [1, 2]


def test_an_error_comes_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        run_with_timeout(5.0, lambda: 1 / 0)


def test_what_takes_longer_is_left_behind() -> None:
    goes_on, is_done = threading.Event(), threading.Event()

    def takes_long() -> None:
        goes_on.wait()
        is_done.set()

    with pytest.raises(TimeoutError, match=r"not done within 0\.05 s"):
        run_with_timeout(0.05, takes_long)
    assert not is_done.is_set()
    goes_on.set()
    is_done.wait()


def test_it_can_be_asked_for_later() -> None:
    done = threading.Event()
    background = BackgroundTask(lambda: done.wait(60))
    assert not background.is_done()
    done.set()
    assert background.is_done(wait_seconds=30)
    assert background.result() is True
