"""The page that `make test-gpu` ends with, from facts that are made up."""

import json
from pathlib import Path

from tests.gpu.page import Fact, machine, page, write

FACTS = (
    Fact("a step is recorded with its kernels", "holds", "1204 kernels"),
    Fact("random numbers go on", "fails", "assert 1 == 2"),
    Fact("two GPUs reduce as fast as the curves say", "skipped", "needs two GPUs"),
)


def test_page_lists_passed_failed_and_skipped_checks() -> None:
    assert page(FACTS, {"torch": "2.13.0", "gpu": "Tesla T4", "gpus": 1}) == [
        "Facts on 2.13.0, Tesla T4, 1 gpus",
        "",
        "  + a step is recorded with its kernels  [1204 kernels]",
        "  ! random numbers go on  [assert 1 == 2]",
        "  . two GPUs reduce as fast as the curves say  [needs two GPUs]",
        "",
        "3 facts: holds 1, fails 1, skipped 1. As JSON for a report: build/gpu-facts.json",
    ]


def test_facts_are_written_without_the_name_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "new" / "facts.json"
    write(FACTS, {"torch": "2.13.0"}, path)
    document = json.loads(path.read_text())
    assert document["machine"] == {"torch": "2.13.0"}
    assert [fact["outcome"] for fact in document["facts"]] == ["holds", "fails", "skipped"]
    assert {"torch", "python", "system"} <= set(machine())
