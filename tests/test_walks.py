"""CONTRIBUTING tells the walk of a trace and of a Trainer through the package; here both are walked."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import lightning_predict as lp
from lightning_predict.callbacks import CostBudget, RuntimePredictor
from lightning_predict.testing import example_trace
from tests.callbacks.small import Small

PACKAGE = "lightning_predict."
CONTRIBUTING = Path(__file__).parent.parent / "CONTRIBUTING.md"


def told(heading: str) -> list[str]:
    """The calls of a walk as CONTRIBUTING lists them, one a line: `run.workload.run_of  what it does`."""
    text = re.search(rf"{re.escape(heading)}.*?```text\n(.*?)```", CONTRIBUTING.read_text(encoding="utf-8"), re.DOTALL)
    assert text is not None
    return [line.split()[0] for line in text[1].splitlines()]


def walked(run: Callable[[], object]) -> list[str]:
    """The package's functions in the order of their first call, as `run.workload.run_of`."""
    calls: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # and not a module's or a class's body
        if event == "call" and is_function and module.startswith(PACKAGE):
            calls.setdefault(f"{module.removeprefix(PACKAGE)}.{frame.f_code.co_name}", None)

    before = sys.getprofile()
    threading.setprofile(note)  # a prediction runs in a thread of its own, so that it can be given up
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return list(calls)


def check(heading: str, calls: list[str], *, most: int) -> None:
    """What is told was called, in this order, and leads through so many modules at most."""
    walk = told(heading)
    assert [call for call in walk if call not in calls] == []
    assert sorted(walk, key=calls.index) == walk
    modules = {call.rpartition(".")[0] for call in walk}
    assert f"{heading}, {len(modules)} modules:" in CONTRIBUTING.read_text(encoding="utf-8")
    assert len(modules) <= most


def test_a_trace_walks_from_predict_to_the_table_as_told() -> None:
    calls = walked(lambda: str(lp.predict(example_trace(), ["T4", "8xL4"], iterations=1000, history=False)))
    check("A trace, from `predict` to the table", calls, most=17)  # half of the 34 of the first build


def test_a_trainer_walks_through_both_callbacks_as_told(lightning: Small, tmp_path: Path) -> None:
    callbacks = [RuntimePredictor(["T4"]), CostBudget(usd=1000, usd_per_hour=1.0)]
    trainer = lightning.trainer(tmp_path, max_epochs=2, callbacks=callbacks)
    calls = walked(lambda: trainer.fit(lightning.model(), lightning.loader(12)))
    check("A Trainer, through both callbacks", calls, most=21)  # half of 42


@pytest.fixture
def lightning() -> Small:
    return Small("lightning.pytorch")
