"""What published runs of pretraining hold of a GPU, on a model of two small blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy.model_cards import read_automodel_cases, read_card_cases
from benchmarks.accuracy.pretraining import blocks_of_last_stage
from benchmarks.accuracy.pretraining_report import simumax_table
from benchmarks.accuracy.stated_runs import (
    dgxc_cases,
    fewer_blocks_at_ends,
    ibm_cases,
    kempner_cases,
    large_titan_cases,
    more_dgxc_cases,
)
from benchmarks.accuracy.workloads.llama import LLAMA, LlamaConfig, llama_trace, with_compiled_loss
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.fusion import fused
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.layouts.tensor_parallel import split_model
from lightning_predict.memory.rank_memory import RankMemory
from lightning_predict.record.trace import Trace

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
    layout, strategy = Layout(gpu("H100-SXM-80GB"), 2), Strategy(data="fsdp", recompute="operations")
    eager, compiled = (RankMemory(one).tensor_bytes(layout, strategy) for one in (trace, replace(trace, compiled=True)))
    assert eager - compiled == pytest.approx(CONFIG.layers * TOKENS * CONFIG.hidden * 2, rel=0.002)


def test_dgx_clouds_pages_are_read_in_both_precisions() -> None:
    cases, _ = dgxc_cases(Path())
    assert len(cases) == 14
    for plain, narrow in zip(cases[::2], cases[1::2], strict=True):
        assert replace(narrow.strategy, fp8=None) == plain.strategy
        assert 1.2 < plain.measured_seconds / narrow.measured_seconds < 1.6
        # Micro-batches of the pages: 32 (8B), 64 (70B), 63 (405B), one sample each.
        assert plain.strategy.accumulate in (32, 63, 64)


def test_dgx_clouds_other_models_accumulate_as_their_pages_say() -> None:
    # GA of the pages: 256 samples over 4 replicas of GPT-3; Nemotron 15B 4 (either layout), 340B 16 on H100, of 8 to
    # 128 on GB200; Grok-1 128.
    cases, _ = more_dgxc_cases(Path())
    accumulated = {(case.workload.model, case.layout.gpu.name, case.strategy.tensor): set[int]() for case in cases}
    for case in cases:
        accumulated[case.workload.model, case.layout.gpu.name, case.strategy.tensor].add(case.strategy.accumulate)
    assert accumulated == {
        ("gpt3-175b", "H100-SXM-80GB", 4): {64},
        ("nemotron4-15b", "H100-SXM-80GB", 4): {4},
        ("nemotron4-15b", "H100-SXM-80GB", 2): {4},
        ("nemotron4-340b", "H100-SXM-80GB", 8): {16},
        ("nemotron4-340b", "GB200", 8): {8, 32, 64, 128},
        ("grok1-314b", "H100-SXM-80GB", 4): {128},
    }


def test_ibms_and_kempners_rates_are_those_of_their_pages() -> None:
    # 2 x 4,096 tokens a GPU at 3,700 a second.
    assert ibm_cases(Path())[0][0].measured_seconds == pytest.approx(2.214, rel=1e-3)
    # 13B on 160 GPUs, four of which share each block: 534,644 tokens a second.
    cases, _ = kempner_cases(Path())
    for case, rate in ((cases[15], 534_644), (cases[-1], 154_523), (cases[1], 18_728)):
        replicas = case.strategy.replicas(case.layout)
        tokens = case.micro_batch * case.strategy.accumulate * replicas * case.workload.length
        assert tokens / case.measured_seconds == pytest.approx(rate, rel=5e-3)


def test_a_step_all_in_bfloat16_has_no_value_in_float32_but_sums() -> None:
    trace = llama_trace(CONFIG, length=32, batch=2, is_all_bfloat16=True)
    # Two moments of each parameter, as wide as it is, and the counts of updates.
    assert trace.memory.parameter_bytes is not None
    assert trace.memory.optimizer_state_bytes == pytest.approx(2 * trace.memory.parameter_bytes, rel=1e-2)
    wide = {one.elements for each in trace.operations for one in each.outputs if one.dtype == "float32"}
    assert TOKENS * CONFIG.vocabulary not in wide


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


def test_simumax_is_scored_by_the_figures_of_its_authors(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("case,step_ms,simumax_ms\na,100,90\nb,200,202\nc,50,48\n", encoding="utf-8")
    table = simumax_table(path)
    # Errors of -10, +1 and -4 %: the middle of 1, 4 and 10 is 4, and that of -10, -4 and 1 is -4.
    assert [list(column.cells) for column in table.columns] == [["all"], ["3"], ["4.0"], ["-10.0"], ["-4.0"]]


def test_adapters_add_no_collective_of_tensor_parallelism(trace: Trace) -> None:
    adapted = llama_trace(replace(CONFIG, rank=4), length=32, batch=2)
    assert len(adapted.parameters) == len(trace.parameters) + 2 * 7 * CONFIG.layers
    trained = {one.name.split(".")[-2] for one in adapted.parameters if one.requires_grad}
    assert trained == {"inward", "outward"}
    for plain, own in zip(split_model(trace).blocks, split_model(adapted).blocks, strict=True):
        assert own.reduced_bytes == plain.reduced_bytes != ()


def test_automodels_recipes_accumulate_the_global_batch(tmp_path: Path) -> None:
    path = tmp_path / "automodel.csv"
    path.write_text(
        "Model,#GPUs,GBS,LBS,Seq Length,TP,Time per Global Step (s)\n"
        "Qwen3 MoE 30B,8,64,4,4096,1,2.0\nLlama3 70B 2-node,16,32,2,4096,2,8.0\nAnother,8,8,1,4096,1,1.0\n"
    )
    (mixture, adapters), left_out = read_automodel_cases(path)
    assert (mixture.strategy.expert, mixture.strategy.data, mixture.strategy.accumulate) == (8, "fsdp", 2)
    assert (adapters.strategy.tensor, adapters.strategy.accumulate) == (2, 2)
    assert adapters.strategy.replicas(adapters.layout) == 8
    assert left_out == {"no recipe: Another": 1}


def test_model_cards_name_recipes_that_their_gpus_fit(tmp_path: Path) -> None:
    path = tmp_path / "cards.csv"
    path.write_text(
        "model,item,recipe,nodes,gpus_per_node,precision,step_ms\n"
        "a/gpt-oss-120b,pretrain/H100/metrics,gpt_oss_120b_pretrain_config,8,8,bf16,1000\n"
        "a/gpt-oss-120b,pretrain_performance/GB300/metrics,gpt_oss_120b_pretrain_64gpu_gb300_fp8mx_config,"
        "16,4,fp8_mx,500\n"
        "a/other,sft/H100/metrics,other_config,1,8,bf16,100\n"
    )
    (plain, narrow), left_out = read_card_cases(path)
    assert plain.layout.name == "8x8xH100-SXM-80GB"
    assert plain.strategy.replicas(plain.layout) == 8
    assert plain.strategy.accumulate == 64  # 512 samples for 8 replicas
    assert (narrow.strategy.fp8, narrow.strategy.accumulate, narrow.workload.kind) == ("mx", 5, "tuned")
    assert left_out == {"no recipe: other": 1}
