"""Plain training steps of the benchmarks."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

import lightning_predict as lp
from benchmarks.accuracy.workloads import llama
from benchmarks.accuracy.workloads.benchmarks import benchmark_trace


def test_ncf_parameters_equal_the_published_log() -> None:
    trace = benchmark_trace("ncf", precision="FP32", batch=2)
    assert sum(math.prod(one.shape) for one in trace.parameters) == 31_832_577
    assert sum(one.name == "aten::_fused_adam_" for one in trace.operations) == 1


def test_float16_step_clips_gradients_and_updates_float32_copies() -> None:
    trace = benchmark_trace("bert_base_squad", precision="FP16", batch=2)
    names = Counter(one.name for one in trace.operations if one.phase in ("optimizer", "other"))
    assert names["aten::_to_copy"] == names["aten::copy_"] > 100  # to gradients of the copies, and back from these
    assert names["aten::_foreach_norm"] == names["aten::_fused_adam_"] == 1


def test_tf32_switches_are_recorded_and_restored() -> None:
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    assert benchmark_trace("ncf", precision="FP32", batch=2).flags.matmul_tf32
    assert torch.backends.cuda.matmul.allow_tf32 == before


def test_llama_sample_is_written_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = llama.LlamaConfig(layers=2, hidden=64, heads=4, kv_heads=2, inner=128, vocabulary=512)
    monkeypatch.setitem(llama.LLAMA, "tiny", sizes)
    assert llama.main(["tiny", "16", str(tmp_path / "step.json.gz")]) == 0
    trace = lp.Trace.load(str(tmp_path / "step.json.gz"))
    assert trace.samples == 1
    # Two tables; a block has queries and outputs, keys and values of half of the heads, a gated perceptron, two norms.
    block = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 2 * 64
    assert sum(math.prod(one.shape) for one in trace.parameters) == 2 * 512 * 64 + 2 * block + 64
