"""Read NVIDIA's runs of named recipes on H100, GB200 and GB300: NeMo Automodel's, and Megatron Bridge's model cards.

Both tables are tests: nothing is chosen on them. The tables name a recipe, and the settings below are what the recipes
say (NVIDIA-NeMo/Automodel at 36044ad, `examples/llm_benchmark`; NVIDIA-NeMo/Megatron-Bridge at 067f987, `recipes` and
`perf_recipes`, with the changes that a card's command makes). Example::

    cases, left_out = read_automodel_cases(Path("validation/automodel_h100.csv"))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

from benchmarks.accuracy.large_runs import LargeRunCase
from benchmarks.accuracy.pretraining import NEMO_FLOAT8, Cases, PretrainingWorkload, machines_of
from lightning_predict.base.checked import Checked, read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import milliseconds_to_seconds
from lightning_predict.layouts.strategy import Strategy

AUTOMODEL_TABLE: Final = "automodel_h100.csv"
CARDS_TABLE: Final = "megatron_bridge_cards.csv"


@final
@dataclass(frozen=True, slots=True)
class AutomodelRecipe:
    """What a recipe of NeMo Automodel says beyond its row.

    Attributes:
        model: A key of `LLAMA`.
        is_compiled: `enable_compile`; Transformer Engine's layers and fused rotary positions count as compiled.
        recomputes: `activation_checkpointing`.
        overlaps: `enable_async_tensor_parallel`.
        sequence: `sequence_parallel`.
        expert: `ep_size`.
    """

    model: str
    is_compiled: bool = True
    recomputes: bool = False
    overlaps: bool = False
    sequence: bool = False
    expert: int = 1


AUTOMODEL: Final[Mapping[str, AutomodelRecipe]] = {
    "Qwen3 MoE 30B": AutomodelRecipe("qwen3-30b-a3b", recomputes=True, expert=8),
    "GPT-OSS 20B": AutomodelRecipe("gpt-oss-20b", expert=8),
    "Llama3 8B": AutomodelRecipe("llama3-8b-lora", is_compiled=False),
    "Qwen2.5 7B": AutomodelRecipe("qwen2.5-7b-lora", is_compiled=False),
    "Llama3 70B": AutomodelRecipe("llama3-70b-lora", recomputes=True, overlaps=True, sequence=True),
    "Qwen2.5 32B": AutomodelRecipe("qwen2.5-32b-lora", recomputes=True),
}
"""Recipes by the table's model, without the number of machines. Those with adapters have rank 16."""


def read_automodel_cases(path: Path) -> Cases:
    """Read the rows of `automodel_h100.csv`.

    Raises:
        MeasurementTableError: A missing column, or a value that is not a positive number.
    """
    cases, left_out = [], Counter[str]()
    columns = ("Model", "#GPUs", "GBS", "LBS", "Seq Length", "TP", "Time per Global Step (s)")
    for row in read_csv(path, MeasurementTableError, columns=columns):
        recipe = AUTOMODEL.get(row.value["Model"].removesuffix(" 2-node"))
        if recipe is None:
            left_out[f"no recipe: {row.value['Model']}"] += 1
            continue
        cases.append(_automodel_case(row, recipe))
    return tuple(cases), left_out


def _automodel_case(row: Checked, recipe: AutomodelRecipe) -> LargeRunCase:
    def number(column: str) -> int:
        return row.member(column).parsed().integer(minimum=1)

    count, tensor, micro = number("#GPUs"), number("TP"), number("LBS")
    return LargeRunCase(
        workload=PretrainingWorkload(
            table="automodel",
            model=recipe.model,
            length=number("Seq Length"),
            batch=micro,
            is_compiled=recipe.is_compiled,
            kind="adapters" if recipe.model.endswith("lora") else "all parameters",
        ),
        layout=machines_of("H100-SXM-80GB", count),
        strategy=Strategy(
            data="fsdp" if count > tensor else "ddp",
            tensor=tensor,
            expert=recipe.expert,
            micro_batches=1,
            accumulate=number("GBS") * tensor // (count * micro),
            sequence=recipe.sequence,
            overlap_tensor=recipe.overlaps,
            recompute="full" if recipe.recomputes else "none",
            reduce_dtype="float32" if count > tensor else None,
        ),
        micro_batch=micro,
        measured_seconds=row.member("Time per Global Step (s)").parsed().positive(),
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CardRecipe:
    """A recipe of Megatron Bridge.

    Attributes:
        model: A key of `LLAMA`.
        batch: Samples of a step.
        strategy: Degrees and overlaps.
        length: Tokens of a sample.
        micro_batch: Samples of a micro-batch.
    """

    model: str
    batch: int
    strategy: Strategy
    length: int = 4096
    micro_batch: int = 1


_PRETRAIN: Final = Strategy(
    data="zero1",
    tensor=2,
    pipeline=4,
    sequence=True,
    expert_tensor=1,
    expert_launches=True,
    reduce_dtype="float32",
    overlap_param_gather=True,
    micro_batches=1,
)
"""Megatron's mixtures over tensor-parallel GPUs and pipelines: whole experts, and tokens sent before their products."""

_TUNE: Final = Strategy(
    data="ddp", expert=8, expert_launches=True, overlap_grad_reduce=False, micro_batches=1, expert_tensor=1
)

CARDS: Final[Mapping[str, CardRecipe]] = {
    "gpt_oss_20b_pretrain_16gpu_h100_bf16_config": CardRecipe(
        model="gpt-oss-20b", batch=512, strategy=replace(_PRETRAIN, expert=4)
    ),
    "gpt_oss_120b_pretrain_config": CardRecipe(model="gpt-oss-120b", batch=512, strategy=replace(_PRETRAIN, expert=16)),
    "gpt_oss_20b_sft_8gpu_h100_bf16_config": CardRecipe(model="gpt-oss-20b", batch=128, strategy=_TUNE, length=2048),
    "gpt_oss_120b_sft_32gpu_h100_bf16_config": CardRecipe(
        model="gpt-oss-120b", batch=128, strategy=replace(_TUNE, tensor=2, pipeline=4, sequence=True), length=2048
    ),
    "gpt_oss_20b_sft_8gpu_h100_bf16_32k_config": CardRecipe(
        model="gpt-oss-20b",
        batch=32,
        strategy=replace(_TUNE, tensor=4, context=2, sequence=True, recompute="full"),
        length=32768,
    ),
    "gpt_oss_120b_sft_48gpu_h100_bf16_32k_config": CardRecipe(
        model="gpt-oss-120b",
        batch=4,
        strategy=replace(_TUNE, tensor=2, context=4, pipeline=6, expert=4, sequence=True),
        length=32768,
    ),
    "gpt_oss_120b_pretrain_64gpu_gb200_bf16_config": CardRecipe(
        model="gpt-oss-120b",
        batch=1280,
        strategy=replace(_PRETRAIN, tensor=1, pipeline=1, sequence=False, expert=64),
        micro_batch=4,
    ),
    "gpt_oss_120b_pretrain_64gpu_gb300_fp8mx_config": CardRecipe(
        model="gpt-oss-120b",
        batch=1280,
        strategy=replace(_PRETRAIN, tensor=1, pipeline=1, sequence=False, expert=16, expert_launches=False),
        micro_batch=4,
    ),
}
"""Recipes of the cards. Steps of fine-tuning are padded to the stated length. The one in float8 is one CUDA graph."""

CARD_GPUS: Final[Mapping[str, str]] = {"H100": "H100-SXM-80GB", "GB200": "GB200", "GB300": "GB300"}


def read_card_cases(path: Path) -> Cases:
    """Read the rows of `megatron_bridge_cards.csv`. Most are sanity checks that nobody tuned.

    Raises:
        MeasurementTableError: A missing column, or a value that is not a positive number.
    """
    cases, left_out = [], Counter[str]()
    columns = ("item", "recipe", "nodes", "gpus_per_node", "precision", "step_ms")
    for row in read_csv(path, MeasurementTableError, columns=columns):
        recipe = CARDS.get(row.value["recipe"])
        if recipe is None:
            left_out[f"no recipe: {row.value['model'].rpartition('/')[2]}"] += 1
            continue
        cases.append(_card_case(row, recipe))
    return tuple(cases), left_out


def _card_case(row: Checked, recipe: CardRecipe) -> LargeRunCase:
    item, gpu, _ = row.value["item"].split("/", 2)
    count = row.member("nodes").parsed().integer(minimum=1) * row.member("gpus_per_node").parsed().integer(minimum=1)
    layout = machines_of(CARD_GPUS[gpu], count)
    fp8 = NEMO_FLOAT8[row.value["precision"].replace("_", "-").upper()]
    strategy = replace(recipe.strategy, fp8=fp8)
    samples = recipe.micro_batch * layout.count // strategy.batch_parallel
    return LargeRunCase(
        workload=PretrainingWorkload(
            table="cards",
            model=recipe.model,
            length=recipe.length,
            batch=recipe.micro_batch,
            is_compiled=True,
            kind="tuned" if "performance" in item else f"not tuned, {item}",
        ),
        layout=layout,
        strategy=replace(strategy, accumulate=recipe.batch // samples),
        micro_batch=recipe.micro_batch,
        measured_seconds=milliseconds_to_seconds(row.member("step_ms").parsed().positive()),
    )
