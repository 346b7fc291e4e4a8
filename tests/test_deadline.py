import threading

import pytest

from lightning_predict.base.timeout import BackgroundTask, run_with_timeout


def test_timeout_returns_the_result_unchanged() -> None:
    assert run_with_timeout(5.0, lambda: [1, 2]) == [1, 2]


def test_timeout_raises_the_original_error() -> None:
    with pytest.raises(ZeroDivisionError):
        run_with_timeout(5.0, lambda: 1 / 0)


def test_call_beyond_the_timeout_is_abandoned() -> None:
    goes_on, is_done = threading.Event(), threading.Event()

    def takes_long() -> None:
        goes_on.wait()
        is_done.set()

    with pytest.raises(TimeoutError, match=r"not done within 0\.05 s"):
        run_with_timeout(0.05, takes_long)
    assert not is_done.is_set()
    goes_on.set()
    is_done.wait()


def test_timed_out_result_can_be_fetched_later() -> None:
    done = threading.Event()
    background = BackgroundTask(lambda: done.wait(60))
    assert not background.is_done()
    done.set()
    assert background.is_done(wait_seconds=30)
    assert background.result() is True
