"""Faults in functions that a fit reaches: a sample of those of `python -m tests.soak.faults`, which takes all."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import torch

from tests.processes import run
from tests.soak.faults import ENDS, ERRORS, fit, injected, reached, sampled

SAMPLE: Final = 23
"""One function in so many is taken."""

KINDS: Final = tuple(kind for kind in ERRORS if kind not in ENDS)


@pytest.mark.filterwarnings("ignore")
def test_no_fault_of_ours_reaches_a_fit_or_leaves_anything_behind(tmp_path: Path, said: list[str]) -> None:
    plain = fit(tmp_path, with_callbacks=False)
    names = reached(tmp_path)
    assert len(names) > 200
    drawn = sampled(names, SAMPLE)
    assert len(names) / SAMPLE / 2 < len(drawn) < len(names) / SAMPLE * 2
    faults = 0
    for number, name in enumerate(drawn):
        kind = KINDS[number % len(KINDS)]
        result, was_reached = injected(tmp_path, name, 0, ERRORS[kind])
        faults += was_reached  # What is kept from one fit to the next is computed in the first alone.
        assert result.left == (), (kind, name)
        assert result.error is None, (kind, name)
        assert result.batches == plain.batches, (kind, name)
        assert torch.equal(result.weights, plain.weights), (kind, name)
    assert faults > len(drawn) / 2
    said.clear()


def test_the_same_functions_are_drawn_in_every_process_and_order() -> None:
    names = [f"a.py f{number}" for number in range(100)]
    other = run(f"from tests.soak.faults import sampled; print(*sampled({names[::-1]}, 7), sep=chr(10))")
    assert sampled(names, 7) == other.stdout.splitlines()
    # A function that is reached now and then changes nothing in what is drawn of the others.
    assert sampled([*names[:50], "a.py now and then", *names[50:]], 7) in (
        sampled(names, 7),
        sorted([*sampled(names, 7), "a.py now and then"]),
    )
