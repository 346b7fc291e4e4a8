"""What published runs of pretraining hold of a GPU, on a model of two small blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy.pretraining import (
    blocks_of_last_stage,
    dgxc_cases,
    fewer_blocks_at_ends,
    large_titan_cases,
)
from benchmarks.accuracy.workloads.llama import LLAMA, LlamaConfig, llama_trace, with_compiled_loss
from lightning_predict.cost.memory import step_memory
from lightning_predict.distributed.memory import shared_memory_bytes
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.gpus import gpu
from lightning_predict.gpus.layouts import Layout
from lightning_predict.kernels.fusion import fused
from lightning_predict.tracing.trace import Trace

CONFIG = LlamaConfig(layers=2, hidden=64, heads=4, kv_heads=2, inner=160, vocabulary=1000)
TOKENS = 2 * 32


@pytest.fixture(scope="module")
def trace() -> Trace:
    return llama_trace(CONFIG, length=32, batch=2)


def test_the_float32_copies_of_the_parameters_are_part_of_the_optimizers_state(trace: Trace) -> None:
    # Two moments and the copy of each parameter, 4 bytes each, of parameters of 2 bytes; and the counts of updates.
    assert trace.memory.parameter_bytes is not None
    assert trace.memory.optimizer_state_bytes == pytest.approx(6 * trace.memory.parameter_bytes, rel=1e-3)


def test_a_compiled_loss_writes_no_logits_in_float32(trace: Trace) -> None:
    def written(step: Trace) -> set[str]:
        tensors = (tensor for one in step.operations for tensor in one.outputs)
        return {tensor.dtype for tensor in tensors if tensor.elements == TOKENS * CONFIG.vocabulary}

    assert written(trace) == {"bfloat16", "float32"}
    assert written(with_compiled_loss(trace)) == written(fused(with_compiled_loss(trace))) == {"bfloat16"}


def test_compiled_blocks_keep_no_product_that_only_the_sum_behind_it_reads(trace: Trace) -> None:
    # By operation, the first, third, fifth and seventh product are kept: queries, values, gate, and what leaves the
    # block, which nothing reads again.
    need = step_memory(trace)
    assert need is not None
    tensors = float(need.lasting_bytes + need.passing_bytes)  # and 512 bytes of the batch, a 700th of them
    eager, compiled = (
        shared_memory_bytes(
            tensors, one, Layout(gpu("H100-SXM-80GB"), 2), Strategy(data="fsdp", recompute="operations")
        )
        for one in (trace, replace(trace, compiled=True))
    )
    assert eager - compiled == pytest.approx(CONFIG.layers * TOKENS * CONFIG.hidden * 2, rel=0.002)


def test_dgx_clouds_pages_are_read_in_both_precisions() -> None:
    cases, _ = dgxc_cases(Path())
    assert len(cases) == 14
    for plain, narrow in zip(cases[::2], cases[1::2], strict=True):
        assert replace(narrow.strategy, fp8=None) == plain.strategy
        assert 1.2 < plain.measured_seconds / narrow.measured_seconds < 1.6
        # Micro-batches of the pages: 32 (8B), 64 (70B), 63 (405B), one sample each.
        assert plain.strategy.accumulate in (32, 63, 64)


def test_nanotron_leaves_the_last_stage_what_its_output_layer_leaves_room_for() -> None:
    # A block multiplies 4 x 2048 x 2048 + 3 x 4096 x 2048 times for a token, the output layer 50,257 x 2048 times, as
    # 2.5 blocks. Of these 26.5 each of four stages takes 6.6: three end with the block that passes 6.6, 13.2 and 19.8.
    assert [blocks_of_last_stage(LLAMA["llama-1b"], stages) for stages in (2, 4)] == [24 - 14, 24 - 20]
    # Of eight, the seventh would end with the last block; here each stage has one.
    assert blocks_of_last_stage(LLAMA["llama-1b"], 8) == 1


def test_torchtitans_large_runs_are_read_as_their_pages_say() -> None:
    cases, _ = large_titan_cases(Path())
    # 8,192 tokens a GPU at 331 a second; 16 samples of them on eight GPUs at 829; 32 on 64 at 100.
    seconds = [cases[row].measured_seconds for row in (0, 3, 5)]
    assert seconds == pytest.approx([8192 / 331, 2 * 8192 / 829, 8192 / 2 / 100])
    assert [case.strategy.replicas(case.layout) for case in cases] == [64] * 3 + [32] * 2 + [8] * 3 + [4, 2, 1]
    # A micro-batch for each stage: eight, or sixteen where each GPU has two.
    assert [case.strategy.accumulate for case in cases] == [1] * 5 + [8, 16, 8, 8, 8, 8]
    assert [case.micro_batch for case in cases[5:8]] == [4, 2, 1]


def test_both_ends_have_one_block_less_where_stages_do_not_divide_them() -> None:
    assert fewer_blocks_at_ends(126, 8) == 15  # 6 x 16 + 2 x 15
    assert fewer_blocks_at_ends(80, 8) is None
