"""Fixtures of the callbacks' tests: both Lightning packages, the predictor's calls, and predictions without weights."""

import itertools
import logging
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lightning_predict.base.interval import NOTHING
from lightning_predict.callbacks.lightning_packages import PACKAGES
from lightning_predict.observe.clock import clock_of_fits
from lightning_predict.observe.run_observer import RunObserver
from lightning_predict.observe.run_session import RunSession
from lightning_predict.prediction import predict_workload
from lightning_predict.record.trace import Trace
from lightning_predict.run.workload import Workload
from tests.callbacks.small import Small

WITH_BOTH = ("test_bases", "test_promises", "test_loggers", "test_command_line", "test_runtime_predictor")
"""Modules whose tests run with both Lightning packages; both ship the same code, so that others take turns."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `small` a Lightning package, or both."""
    if "small" not in metafunc.fixturenames:
        return
    module, name = metafunc.module.__name__.rpartition(".")[2], metafunc.function.__name__
    both = module in WITH_BOTH
    packages = PACKAGES if both else (PACKAGES[zlib.crc32(name.encode()) % len(PACKAGES)],)
    metafunc.parametrize("small", packages, indirect=True)


@pytest.fixture
def small(request: pytest.FixtureRequest) -> Small:
    """Models and Trainers of a Lightning package."""
    return Small(request.param)


@pytest.fixture
def lightning() -> Small:
    """Models and Trainers of `lightning` alone, where the package makes no difference."""
    return Small("lightning.pytorch")


@dataclass(frozen=True)
class Call:
    """Arguments of the predictor's calls."""

    trace: Trace
    workload: Workload
    validation: Trace | None


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """The calls of `predict_workload`, which are made all the same."""
    seen: list[Call] = []

    def noting(trace: Trace, layouts: Any, workload: Workload, assumptions: Any, **options: Any) -> Any:
        seen.append(Call(trace, workload, options.get("validation")))
        return predict_workload(trace, layouts, workload, assumptions, **options)

    monkeypatch.setattr("lightning_predict.prediction.predict_workload", noting)
    return seen


RENEW = RunSession.renew  # What `readings` takes away


class AtOnce:
    """Believe at the capture, and nothing is to be asked again later."""

    def __init__(self, **_: Any) -> None:
        self.has_started = False

    def is_due(self, batches: int, seconds: float) -> bool:
        is_first, self.has_started = not self.has_started, True
        return is_first

    def nothing_until(self, batches: int) -> tuple[float, float]:
        return math.inf, math.inf


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Readings of the predictor's device clock, which shows a second more each time: no step takes longer by chance.

    So does the plain clock by which it times the run, whose readings are not kept. Nothing is predicted again from it.
    """
    seen: list[float] = []
    plain = itertools.count()

    def clock() -> float:
        seen.append(float(len(seen)))
        return seen[-1]

    monkeypatch.setattr("lightning_predict.observe.run_session.ForecastSchedule", AtOnce)
    monkeypatch.setattr(RunSession, "renew", lambda *args, **options: None)
    monkeypatch.setattr(RunObserver, "pause", lambda *args, **options: NOTHING)  # hooks between epochs read it, too
    with clock_of_fits(lambda: float(next(plain)), device=clock):
        yield seen


@pytest.fixture(autouse=True)
def said() -> Iterator[list[str]]:
    """What was logged as it could not be warned about; a test that expects any clears it."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("lightning_predict")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)
    assert messages == []


@pytest.fixture(autouse=True)
def _without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict by roofline alone: a callback's behaviour must not depend on the installed weights."""
    monkeypatch.setattr("lightning_predict.step_predictor.kernel_models", lambda names, weights: None)
