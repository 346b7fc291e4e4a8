"""CONTRIBUTING tells the walk of a trace and of a Trainer through the package; here both are walked."""

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
from lightning_predict.kernels.operations import operation_names
from lightning_predict.testing import example_trace
from tests.callbacks.small import Small

PACKAGE = "lightning_predict."
CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
EXAMPLES = CONTRIBUTING.parent / "examples"

MODULES_OF_A_TRACE = 60
MODULES_OF_A_TRAINER = 106
"""Modules of the package in which a function runs, counted by running; lower these when one is no longer met."""


def told(heading: str) -> list[str]:
    """The calls of a walk as CONTRIBUTING lists them, one a line: `run.workload.predict_run  what it does`."""
    text = re.search(rf"{re.escape(heading)}.*?```text\n(.*?)```", CONTRIBUTING.read_text(encoding="utf-8"), re.DOTALL)
    assert text is not None
    return [line.split()[0] for line in text[1].splitlines()]


def walked(run: Callable[[], object]) -> tuple[list[str], int]:
    """The package's functions in the order of their first call, as `run.workload.predict_run`, and their number."""
    calls: dict[str, None] = {}
    count = [0]

    def note(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith(PACKAGE):
            count[0] += 1
            if frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # and not a module's or a class's body
                calls.setdefault(f"{module.removeprefix(PACKAGE)}.{frame.f_code.co_name}", None)

    before = sys.getprofile()
    threading.setprofile(note)  # a prediction runs in a thread of its own, so that it can be given up
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return list(calls), count[0]


def check_order(heading: str, calls: list[str]) -> None:
    """The listed functions were called, in this order."""
    walk = told(heading)
    assert [call for call in walk if call not in calls] == []
    assert sorted(walk, key=calls.index) == walk


def check_modules(heading: str, calls: list[str], *, most: int) -> None:
    """No more modules ran than CONTRIBUTING says, which is `most`."""
    ran = {call.rpartition(".")[0] for call in calls}
    assert f"{heading}, through at most {most} modules:" in CONTRIBUTING.read_text(encoding="utf-8")
    assert len(ran) <= most, sorted(ran)


MOST_CALLS = 100_000
"""Calls of the package's functions, for GPT-2 on two GPUs: 97,800 as of November 2026. A loop that calls a function for
each of the 3,000 operations adds thousands."""

MOST_IN_TWO_PRECISIONS = 162_000
"""Calls if one GPU is predicted in float16: 160,400 on 29 November 2026, 148,400 before tensors, arguments and casts
took float16's dtypes as a recording in float16 has them. Both precisions share the step's memory."""


def test_a_trace_walks_from_predict_to_the_table_as_told() -> None:
    calls, _ = walked(lambda: str(lp.predict(example_trace(), ["T4", "8xL4"], iterations=1000, history=False)))
    check_order("A trace, from `predict` to the table", calls)


def test_a_trace_not_seen_before_meets_few_modules_and_takes_few_calls() -> None:
    recorded, other = (lp.Trace.load(str(EXAMPLES / f"{name}.json.gz")) for name in ("gpt2", "dlrm"))
    assert operation_names()  # loads every family
    str(lp.predict(other, ["A10G", "L4"], iterations=1000, history=False))  # loads modules, weights and the catalogue
    calls, count = walked(lambda: str(lp.predict(recorded, ["A10G", "L4"], iterations=1000, history=False)))
    check_modules("A trace, from `predict` to the table", calls, most=MODULES_OF_A_TRACE)
    assert count <= MOST_CALLS
    # A GPU that emulates bfloat16 is predicted again in float16.
    _, twice = walked(lambda: str(lp.predict(recorded, ["T4", "L4"], iterations=1000, history=False)))
    assert twice <= MOST_IN_TWO_PRECISIONS


def test_a_trainer_walks_through_both_callbacks_as_told(lightning: Small, tmp_path: Path) -> None:
    callbacks = [RuntimePredictor(["T4"]), CostBudget(usd=1000, usd_per_hour=1.0)]
    trainer = lightning.trainer(tmp_path, max_epochs=2, callbacks=callbacks)
    calls, _ = walked(lambda: trainer.fit(lightning.model(), lightning.loader(12)))
    check_order("A Trainer, through both callbacks", calls)
    check_modules("A Trainer, through both callbacks", calls, most=MODULES_OF_A_TRAINER)


@pytest.fixture
def lightning() -> Small:
    return Small("lightning.pytorch")
