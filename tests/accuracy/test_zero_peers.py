"""What DeepSpeed's function is asked for, and the errors of both tools."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

import lightning_predict as lp
from benchmarks.peers.zero_memory import deepspeed_bytes, table_of_errors
from benchmarks.result_files import table_of
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout


def test_deepspeed_gets_all_parameters_and_those_of_the_largest_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def estimate(total: int, largest: int, **options: Any) -> tuple[float, float, float]:
        asked.update(total=total, largest=largest, **options)
        return 0.0, 7.0, 0.0

    for name in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.zero", "deepspeed.runtime.zero.stage3"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(
        sys.modules["deepspeed.runtime.zero.stage3"], "estimate_zero3_model_states_mem_needs", estimate, raising=False
    )
    trace = lp.Trace.load("examples/gpt2.json.gz")
    assert deepspeed_bytes(trace, Layout(gpu("L4"), 8, 2)) == 7.0
    assert asked["total"] == 124_439_808  # GPT-2
    assert asked["largest"] == 50_257 * 768 + 1024 * 768 + 2 * 768  # words, positions and the last norm
    assert (asked["num_gpus_per_node"], asked["num_nodes"], asked["cpu_offload"]) == (8, 2, False)


def test_the_table_has_the_median_and_the_bias_of_each_tool() -> None:
    rows = table_of(table_of_errors({"a": [0.1, -0.3, -0.2]})).rows
    assert rows == (("a", "3", "20.0", "-20.0"),)
