"""Faults in functions that a fit reaches: a sample of the faults of `python -m tests.soak.faults`, which takes all."""

from pathlib import Path
from typing import Final

import pytest
import torch

from tests.processes import run
from tests.soak.faults import ENDS, ERRORS, Fault, drawn, fit, injected, reached, sampled

SAMPLES: Final = {"trainer": 23, "device": 211, "fabric": 151, "torch": 151, "transformers": 211}
"""One function in n is taken; a Trainer with both callbacks reaches the code that most users run."""

KINDS: Final = tuple(kind for kind in ERRORS if kind not in ENDS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loop", SAMPLES)
def test_no_fault_of_ours_reaches_a_fit_or_leaves_anything_behind(
    tmp_path: Path, said: list[str], capsys: pytest.CaptureFixture[str], loop: str
) -> None:
    alone = fit(tmp_path, with_callbacks=False, loop=loop)
    names = reached(tmp_path, loop)
    assert len(names) > 200
    chosen = sampled(names, SAMPLES[loop])
    assert len(names) / SAMPLES[loop] / 2 < len(chosen) < len(names) / SAMPLES[loop] * 2
    faults = 0
    for number, name in enumerate(chosen):
        fault = Fault(loop, name, KINDS[number % len(KINDS)], 0)
        result, was_reached = injected(tmp_path, fault)
        faults += was_reached  # State that is kept between fits is computed in the first alone.
        assert result.left == (), fault
        assert result.error is None, fault
        assert result.batches == alone.batches, fault
        assert torch.equal(result.weights, alone.weights), fault
    assert faults > len(chosen) / 2
    said.clear()


def test_faults_are_drawn_anew_with_each_seed() -> None:
    calls = {"trainer": {"a.py f": 3, "a.py g": 1}, "torch": {"b.py h": 100}, "fabric": {}}
    faults = drawn(calls, ["RuntimeError", "StopIteration"], 200, seed=1)
    assert faults == drawn(calls, ["RuntimeError", "StopIteration"], 200, seed=1)
    assert faults != drawn(calls, ["RuntimeError", "StopIteration"], 200, seed=2)
    assert all(0 <= fault.call < calls[fault.loop][fault.name] for fault in faults)
    assert {fault.name for fault in faults} == {"a.py f", "a.py g", "b.py h"}
    assert len({fault.call for fault in faults if fault.name == "b.py h"}) > 30  # later calls, too


def test_the_same_functions_are_drawn_in_every_process_and_order() -> None:
    names = [f"a.py f{number}" for number in range(100)]
    other = run(f"from tests.soak.faults import sampled; print(*sampled({names[::-1]}, 7), sep=chr(10))")
    assert sampled(names, 7) == other.stdout.splitlines()
    # A function that is reached now and then does not change the draw of the other functions.
    assert sampled([*names[:50], "a.py now and then", *names[50:]], 7) in (
        sampled(names, 7),
        sorted([*sampled(names, 7), "a.py now and then"]),
    )
