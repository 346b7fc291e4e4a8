"""Runs of pretraining that pages and papers state one by one: DGX Cloud, torchtitan, IBM, KempnerForge, MPT, Megatron.

Nothing is fitted to DGX Cloud's, IBM's and KempnerForge's runs and to torchtitan's large models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.case import Case, Step, machines, strategy_text
from benchmarks.accuracy.readers.files import rows
from benchmarks.accuracy.readers.pretraining import (
    GIBIBYTE,
    NEMO_RELEASE,
    POWER_LIMITED,
    RDMA_GBPS,
    RECOMPUTED,
    TITAN_KERNELS_2024,
    llama_step,
    with_memory,
)
from benchmarks.accuracy.workloads.large_language_models import MegatronConfig, megatron_trace, mpt_trace
from benchmarks.accuracy.workloads.llama import LLAMA

DGXC: Final = (
    # model, GPU, length, tensor, pipeline, virtual, context, experts shared by, micro-batch,
    # then GPUs, samples of a step, seconds in bfloat16 and in float8
    (("llama3-8b", "H100-SXM-80GB", 8192, 1, 1, 1, 2, 1, 1), ((8, 128, 12.91, 9.67), (128, 2048, 13.10, 9.82))),
    (
        ("llama3-70b", "H100-SXM-80GB", 8192, 4, 4, 5, 2, 1, 1),
        ((64, 128, 14.72, 11.01), (512, 1024, 14.89, 11.18), (2048, 4096, 14.98, 11.39)),
    ),
    (("llama3-405b", "H100-SXM-80GB", 8192, 8, 9, 7, 2, 1, 1), ((576, 252, 17.20, 11.24), (2304, 1008, 17.62, 12.35))),
)
"""Steps as NVIDIA/dgxc-benchmarking states them: `llama3.1/README_8b.md`, `70b` and `405b` at 143b90d (NeMo 24.09)."""

DGXC_MORE: Final = (
    (
        ("gpt3-175b", "H100-SXM-80GB", 2048, 4, 8, 12, 1, 1, 1),
        (
            (128, 256, 8.309, 5.626),
            (256, 512, 8.408, 5.725),
            (512, 1024, 8.42, 5.774),
            (1024, 2048, 8.453, 5.82),
            (2048, 4096, 8.49, 5.96),
        ),
    ),
    (
        ("nemotron4-15b", "H100-SXM-80GB", 4096, 4, 1, 1, 1, 1, 4),
        (
            (16, 64, 2.812, 2.039),
            (32, 128, 2.824, 2.046),
            (64, 256, 2.845, 2.048),
            (128, 512, 2.859, 2.059),
            (256, 1024, 2.852, 2.075),
            (512, 2048, 2.875, 2.12),
            (1024, 4096, 2.895, 2.094),
            (2048, 8192, 2.887, 2.12),
        ),
    ),
    (("nemotron4-15b", "H100-SXM-80GB", 4096, 2, 1, 1, 1, 1, 2), ((16, 64, 2.746, 1.988),)),
    (
        ("nemotron4-340b", "H100-SXM-80GB", 4096, 8, 8, 12, 1, 1, 1),
        (
            (128, 32, 4.61, 3.16),
            (256, 64, 4.67, 3.21),
            (512, 128, 4.7, 3.26),
            (1024, 256, 4.73, 3.34),
            (2048, 512, 4.84, 3.49),
        ),
    ),
    (
        ("nemotron4-340b", "GB200", 4096, 8, 4, 12, 1, 1, 1),
        (
            (128, 32, 2.189, 1.483),
            (256, 64, 2.19, 1.517),
            (512, 128, 2.229, 1.549),
            (128, 512, 32.66, 21.83),
            (256, 512, 16.58, 11.21),
            (512, 512, 8.468, 5.668),
        ),
    ),
    (
        ("grok1-314b", "H100-SXM-80GB", 8192, 4, 8, 8, 2, 8, 1),
        ((512, 1024, 20.83, 16.69), (512, 1024, 15.933, 13.433), (1024, 2048, 21.0, 16.89), (2048, 4096, 21.09, 17.04)),
    ),
)
"""The same repository's other models: `nemo_megatron/README_175b.md` at 0b71cfd, `nemotron/README_15b.md` there and
`README_340b.md` at 143b90d (NeMo 24.09 to 24.12), `nemotron/README.md` at 1f6d9f4 (`tensor=2`, and GB200, of 2025),
`grok1/README_314b.md` at 143b90d (a development container of 2024) and `grok1/README.md` at 1f6d9f4 (2025: the second
row of 512). They were predicted before anybody had compared them."""


def dgxc_cases(_data: Path) -> Iterator[Case]:
    """Yield the runs of Llama 3.1, in both precisions."""
    yield from _dgxc(DGXC)


def more_dgxc_cases(_data: Path) -> Iterator[Case]:
    """Yield the runs of the other models, in both precisions."""
    yield from _dgxc(DGXC_MORE)


def _dgxc(recipes: Any) -> Iterator[Case]:
    for (model, gpu, length, tensor, pipeline, virtual, context, expert, micro), steps in recipes:
        for count, batch, *both in steps:
            for fp8, seconds in zip((None, "tensorwise"), both, strict=True):
                yield Case(
                    source=f"{model}, {gpu}, {fp8 or 'bfloat16'}",
                    model=model,
                    gpu=machines(gpu, count),
                    step=llama_step(model, length, micro),
                    measured=seconds,
                    release=NEMO_RELEASE,
                    kernels=("transformer_engine",),
                    strategy=strategy_text(
                        "zero1",
                        tensor=tensor,
                        pipeline=pipeline,
                        virtual=virtual,
                        context=context,
                        expert=expert,
                        expert_launches=expert > 1,
                        micro_batches=1,
                        accumulate=batch * tensor * pipeline * context // (count * micro),
                        sequence=tensor > 1,
                        overlap_tensor=tensor > 1,
                        overlap_param_gather=True,
                        fp8=fp8,
                    ),
                )


LARGE_TITAN: Final = (
    # model, GPU, GPUs, tensor, pipeline, context, virtual, local batch, length, recomputed, async, tokens/s a GPU, GiB
    ("llama3-70b", "A100-SXM-80GB", 64, 1, 1, 1, 1, 1, 8192, "full", False, 331, None),
    ("llama2-70b", "A100-SXM-80GB", 64, 1, 1, 1, 1, 1, 4096, "selective_op", False, 355, None),
    ("llama2-70b", "A100-SXM-80GB", 64, 1, 1, 1, 1, 2, 4096, "full", False, 353, None),
    ("llama3-70b", POWER_LIMITED, 256, 8, 1, 1, 1, 16, 8192, "full", False, 829, 71.9),
    ("llama3-70b", POWER_LIMITED, 256, 8, 1, 1, 1, 16, 8192, "full", True, 876, 67.6),
    ("llama3-405b", POWER_LIMITED, 512, 8, 8, 1, 1, 32, 8192, "full", True, 100, 82.5),
    ("llama3-405b", POWER_LIMITED, 512, 8, 8, 1, 2, 32, 8192, "full", True, 128, 72.7),
    ("llama3-405b", POWER_LIMITED, 512, 8, 8, 1, 1, 8, 32768, "full", True, 76, 75.3),
    ("llama3-405b", POWER_LIMITED, 512, 8, 8, 2, 1, 8, 65536, "full", True, 47, 75.9),
    ("llama3-405b", POWER_LIMITED, 512, 8, 8, 4, 1, 8, 131072, "full", True, 31, 77.1),
    ("llama3-405b", POWER_LIMITED, 512, 8, 8, 8, 1, 8, 262144, "full", True, 16, 84.9),
)
"""torchtitan's runs of 70 and 405 billion parameters: `docs/performance.md` at 0413364 (A100, eager, bfloat16) and
`benchmarks/llama3_h100_202412_torchtitan.md` at 31a17bf (compiled, float8 tensorwise). Nothing is fitted to them. How
many micro-batches a pipeline has is not told: torchtitan's default of that time, one for each stage of all GPUs
(`build_pipeline_schedule` in its `pipelining_utils.py`; today it is micro-batches of one sample)."""


def large_titan_cases(_data: Path) -> Iterator[Case]:
    """Yield torchtitan's runs of large models."""
    for (
        model,
        gpu,
        count,
        tensor,
        pipeline,
        context,
        virtual,
        batch,
        length,
        again,
        is_async,
        rate,
        size,
    ) in LARGE_TITAN:
        is_old, micro_batches = gpu != POWER_LIMITED, pipeline * virtual if pipeline > 1 else 1
        layers = LLAMA[model].layers
        # The first and the last stage have one block less, where blocks do not divide evenly.
        ends = None if virtual > 1 or layers % pipeline == 0 else (layers + 2) // pipeline - 1
        yield from with_memory(
            {"reserved": None if size is None else size * GIBIBYTE},
            source="A100, eager, bfloat16" if is_old else "H100, compiled, tensorwise",
            model=f"{model}, {length:,} tokens",
            gpu=machines(gpu, count),
            step=llama_step(model, length, batch // micro_batches, written=None if is_old else "torchtitan"),
            measured=batch * length / (tensor * pipeline * context) / rate,
            release="2.4" if is_old else "2.6",
            network_gbps=None if is_old else RDMA_GBPS,
            kernels=() if is_old else TITAN_KERNELS_2024,
            strategy=strategy_text(
                "fsdp",
                tensor=tensor,
                pipeline=pipeline,
                virtual=virtual,
                first_stage=ends,
                last_stage=ends,
                context=context,
                micro_batches=1,
                accumulate=micro_batches,
                sequence=tensor > 1,
                recompute=RECOMPUTED[again],
                fp8=None if is_old else "tensorwise",
                overlap_tensor=is_async,
                reduce_dtype="float32",
            ),
        )


IBM: Final = (
    # model, samples, recomputed, sharing, tokens/s a GPU on 128 A100, on 96 H100
    ("llama2-7b", 2, "none", "hybrid", 3700, 7500),
    ("llama2-13b", 2, "layers", "fsdp", 1800, 3800),
    ("llama2-34b", 2, "full", "fsdp", 700, 1550),
    ("llama2-70b", 2, "full", "fsdp", 370, 800),
)
"""Table 1 of "Maximizing training throughput using PyTorch FSDP" (PyTorch's blog, March 2024): 4,096 tokens, bfloat16,
eager, machines joined by 400 Gbit/s (A100) and 800 (H100). "Selective" computes every second block again, as its HFU
over its MFU tells (1.16); how replicas share is what foundation-model-stack/fms-fsdp's README says of each size."""

IBM_CLUSTERS: Final[Mapping[str, tuple[int, float]]] = {"A100-SXM-80GB": (128, 400), "H100-SXM-80GB": (96, 800)}
"""GPUs, and Gbit/s of a machine."""


def ibm_cases(_data: Path) -> Iterator[Case]:
    """Yield the rows of `IBM`."""
    for model, batch, recompute, data, *rates in IBM:
        for (gpu, (count, gbps)), rate in zip(IBM_CLUSTERS.items(), rates, strict=True):
            yield Case(
                source=gpu,
                model=model,
                gpu=machines(gpu, count),
                step=llama_step(model, 4096, batch, written="fms"),
                measured=4096 * batch / rate,
                release="2.4",
                network_gbps=gbps,
                strategy=strategy_text(data, micro_batches=1, recompute=recompute),
            )


INTERNEVO: Final[Mapping[int, Mapping[int, float]]] = {
    1: {8: 4062, 16: 3842, 32: 3752, 64: 3690, 128: 3571, 256: 3209, 512: 2861, 1024: 2271},
    2: {8: 3822, 16: 3595, 32: 3475, 64: 3438, 128: 3308, 256: 3094, 512: 2992, 1024: 2785},
}
"""Tokens/s a GPU by tensor-parallel degree and number of A100, InternLM/InternEvo, `doc/en/train_performance.md` at
c628a8c (Apache-2.0): InternLM-7B, 2,048 tokens, two samples a GPU four times a step, the optimizer's state over all
replicas, machines joined by four links of 100 Gbit/s. Rows whose state is shared within a machine alone are left out:
no public word says so. Its norms, rotary positions and loss are fused kernels; the step here is plain PyTorch."""


def internevo_cases(_data: Path) -> Iterator[Case]:
    """Yield the rows of `INTERNEVO`."""
    for tensor, rates in INTERNEVO.items():
        for count, rate in rates.items():
            batch = 2 * tensor
            yield Case(
                source="one machine" if count == 8 else "2 to 32 machines" if count <= 256 else "64 and 128 machines",
                model="internlm-7b",
                gpu=machines("A100-SXM-80GB", count),
                step=llama_step("internlm-7b", 2048, batch),
                measured=4 * 2048 * batch / tensor / rate,
                release="2.1",
                network_gbps=400,
                strategy=strategy_text("zero1", tensor=tensor, micro_batches=1, accumulate=4),
            )


KEMPNER: Final = (
    # model, GPUs, tensor, samples, accumulated, compiled, seconds, GiB
    ("llama3-8b", 1, 1, 2, 4, True, 3.13, 80.7),
    ("llama3-8b", 2, 1, 2, 4, True, 3.50, 62.4),
    ("llama3-8b", 2, 2, 4, 2, True, 2.49, 57.8),
    ("llama3-8b", 4, 1, 4, 2, True, 3.36, 61.1),
    ("llama3-8b", 4, 4, 4, 2, True, 1.30, 39.4),
    ("llama3-8b", 4, 2, 4, 2, True, 2.52, 45.9),
    ("llama3-8b", 8, 4, 4, 2, True, 1.48, 32.7),
    ("llama3-15b", 8, 1, 4, 4, False, 14.81, 88.5),
    ("llama3-15b", 8, 4, 4, 4, True, 4.39, 45.0),
    ("llama3-8b", 16, 4, 4, 2, True, 1.58, 29.4),
    ("llama3-15b", 16, 4, 4, 4, True, 4.87, 39.2),
    ("llama3-8b", 32, 4, 4, 2, True, 1.68, 27.6),
    ("llama3-15b", 32, 4, 4, 4, True, 4.75, 36.2),
    ("llama3-15b", 64, 4, 4, 4, True, 4.84, 34.8),
    ("llama3-15b", 128, 4, 4, 4, True, 4.95, 34.0),
    ("llama3-15b", 160, 4, 4, 4, True, 4.91, 33.9),
    ("llama3-70b", 32, 4, 2, 4, True, 14.03, 93.2),
    ("llama3-70b", 64, 4, 2, 4, True, 14.63, 86.8),
    ("llama3-70b", 96, 4, 2, 4, True, 15.07, 84.6),
    ("llama3-70b", 128, 4, 2, 4, True, 14.98, 83.6),
    ("llama3-70b", 160, 4, 2, 4, True, 15.32, 82.9),
    ("llama3-175b", 360, 4, 8, 1, True, 19.09, 53.8),
)
"""KempnerInstitute/KempnerForge on machines of four H200: its `benchmarks/mfu_scaling/mfu_scaling_2026-04-05.md` at
9f3f03a, `weak_scaling_160gpu/README.md` at e9f9189 (the newer of two where both have a run; not the one that fills the
card) and `175b_360gpu/README.md` at b62d2e3: 4,096 tokens, all in bfloat16, all blocks computed again. Sums of
gradients stay whole on each GPU until the last micro-batch (`no_sync`), and each GPU of a block has all logits. The
model is compiled and the loss is not (`distributed/parallel.py`)."""


def kempner_cases(_data: Path) -> Iterator[Case]:
    """Yield the rows of `KEMPNER`."""
    for model, count, tensor, batch, accumulated, compiled, seconds, gibibytes in KEMPNER:
        is_shared = count > tensor
        yield from with_memory(
            {"allocated": gibibytes * GIBIBYTE},
            source="tensor" if tensor > 1 else "replicas alone",
            model=model,
            gpu=machines("H200-SXM-141GB", count, per_machine=4),
            step=llama_step(model, 4096, batch, is_all_bfloat16=True),
            measured=seconds,
            release="2.11",
            kernels=("compile", "eager_loss") if compiled else (),
            strategy=strategy_text(
                "fsdp" if is_shared else "ddp",
                tensor=tensor,
                micro_batches=1,
                accumulate=accumulated,
                sequence=tensor > 1,
                recompute="full",
                reduce_dtype="float32" if is_shared else None,
                no_sync=is_shared,
                loss="gathered" if tensor > 1 else None,
            ),
        )


# --- MPT and Megatron-LM

MPT_GPUS: Final = {"a100_40gb": "A100-SXM-40GB", "a100_80gb": "A100-SXM-80GB", "h100_80gb": "H100-SXM-80GB"}


def mpt_cases(data: Path) -> Iterator[Case]:
    """Read MPT's steps under FSDP (`mpt_fsdp.csv`)."""
    for row in rows(data / "validation" / "mpt_fsdp.csv"):
        name, length, count = row["Model"], int(row["SeqLen (T)"]), int(row["# GPUs"])
        micro, accumulated = int(row["MicroBatchSize"]), int(row["GradAccum"])
        again, gpu = row["Activation Checkpointing"] == "True", MPT_GPUS.get(row["GPU"], row["GPU"])
        yield Case(
            source=f"MPT, {gpu}",
            model=f"MPT-{name}, {length:,} tokens",
            gpu=machines(gpu, count),
            step=Step(
                name=f"mpt-{name}-{length}-{micro * accumulated}-{again}",
                record=partial(mpt_trace, name, length=length, batch=micro * accumulated, recompute=again),
            ),
            measured=length * micro * accumulated * count / float(row["Throughput (T/s)"]),
            release="2.1",
            network_gbps=1600 if "1600 Gbps" in row["section"] else None,
            kernels=("flash_attention_1",),
            strategy=strategy_text(
                "fsdp", micro_batches=accumulated, reduce_dtype="float32" if row["MP Mode"] == "DEFAULT" else None
            ),
        )


def megatron_cases(data: Path) -> Iterator[Case]:
    """Read Megatron-DeepSpeed's steps on one machine (`megatron_single_node.csv`)."""
    for row in rows(data / "validation" / "megatron_single_node.csv"):
        tensor, groups, pipeline = (int(row[f"{name} parallelism"]) for name in ("tensor", "data", "pipeline"))
        batch, micro = int(row["global batch"]) // groups, int(row["micro batch"])
        layers, hidden, heads = (int(row[name]) for name in ("# layers", "hidden size", "attention heads"))
        yield Case(
            source="Megatron-DeepSpeed, A100",
            model=f"GPT of {layers} x {hidden}",
            gpu=machines("A100-SXM-80GB", int(row["# GPUs"])),
            step=_megatron(
                MegatronConfig(layers, hidden, heads, context=int(row["sequence length"])), batch, again=True
            ),
            measured=float(row["iteration time (ms)"]) / 1e3,
            kernels=("megatron",),
            strategy=strategy_text(
                tensor=tensor, pipeline=pipeline, micro_batches=batch // micro, overlap_grad_reduce="false"
            ),
        )


def _megatron(config: MegatronConfig, batch: int, *, again: bool) -> Step:
    words = (config.layers, config.hidden, config.heads, config.context, config.vocabulary, batch, again)
    return Step(
        name=f"megatron-{'-'.join(map(str, words))}",
        record=partial(megatron_trace, config, batch=batch, recompute=again),
    )


LENGTH: Final = 2048
VOCABULARY: Final = 51200

NARAYANAN: Final = (
    # name, layers, hidden, heads, GPUs, batch, micro-batch, tensor, pipeline, virtual, TFLOP/s and GPU
    ("1.7B", 24, 2304, 24, 32, 512, 16, 1, 1, 1, 137),
    ("3.6B", 30, 3072, 32, 64, 512, 16, 2, 1, 1, 138),
    ("7.5B", 36, 4096, 32, 128, 512, 16, 4, 1, 1, 142),
    ("18.4B", 40, 6144, 48, 256, 1024, 8, 8, 1, 1, 135),
    ("39.1B", 48, 8192, 64, 512, 1536, 4, 8, 2, 1, 138),
    ("76.1B", 60, 10240, 80, 1024, 1792, 2, 8, 4, 3, 140),
    ("145.6B", 80, 12288, 96, 1536, 2304, 2, 8, 8, 2, 148),
    ("310.1B", 96, 16384, 128, 1920, 2160, 1, 8, 16, 2, 155),
    ("529.6B", 105, 20480, 128, 2520, 2520, 1, 8, 35, 3, 163),
    ("1008B", 128, 25600, 160, 3072, 3072, 1, 8, 64, 1, 163),
)

KORTHIKANTI: Final = (
    # name, layers, hidden, heads, GPUs, batch, micro-batch, pipeline, virtual, seconds: everything again, selective
    ("22B", 48, 6144, 64, 8, 4, 4, 1, 1, 1.42, 1.10),
    ("175B", 96, 12288, 96, 64, 64, 1, 8, 3, 18.13, 13.75),
    ("530B", 105, 20480, 128, 280, 280, 1, 35, 3, 49.05, 37.83),
    ("1T", 128, 25600, 160, 512, 512, 1, 64, 1, 94.42, 71.49),
)


def paper_cases(_data: Path) -> Iterator[Case]:
    """Yield the runs of Megatron-LM on up to 3,072 A100 (Narayanan et al., 2021; Korthikanti et al., 2022)."""
    for name, layers, hidden, heads, gpus, batch, micro, tensor, pipeline, virtual, rate in NARAYANAN:
        seconds = step_flops(batch=batch, layers=layers, hidden=hidden) / (gpus * rate * 1e12)
        sizes = (layers, hidden, heads, gpus, batch, micro, tensor, pipeline, virtual)
        yield _paper_case("Narayanan", name, sizes, seconds, is_selective=False)
    for name, layers, hidden, heads, gpus, batch, micro, pipeline, virtual, *times in KORTHIKANTI:
        for is_selective, seconds in zip((False, True), times, strict=True):
            sizes = (layers, hidden, heads, gpus, batch, micro, 8, pipeline, virtual)
            yield _paper_case("Korthikanti", name, sizes, seconds, is_selective=is_selective)


def _paper_case(source: str, name: str, sizes: tuple[int, ...], seconds: float, *, is_selective: bool) -> Case:
    layers, hidden, heads, gpus, batch, micro, tensor, pipeline, virtual = sizes
    groups = gpus // (tensor * pipeline)
    config = MegatronConfig(layers, hidden, heads, context=LENGTH, vocabulary=VOCABULARY)
    return Case(
        source=f"{source}, {'selective' if is_selective else 'full'} recomputation",
        model=f"GPT {name}",
        gpu=machines("A100-SXM-80GB", gpus),
        step=_megatron(config, batch // groups, again=not is_selective),
        measured=seconds,
        kernels=("megatron",),
        strategy=strategy_text(
            tensor=tensor,
            pipeline=pipeline,
            virtual=virtual,
            micro_batches=batch // groups // micro,
            sequence=is_selective,
            recompute="selective" if is_selective else None,
            overlap_grad_reduce="false",
        ),
    )


def step_flops(*, batch: int, layers: int, hidden: int) -> float:
    """Count a step's operations with every activation computed again (Narayanan et al., 2021, equation 3).

    Args:
        batch: Samples of a step on all GPUs.
        layers: Blocks.
        hidden: Width.
    """
    attention, vocabulary = LENGTH / (6 * hidden), VOCABULARY / (16 * layers * hidden)
    return 96.0 * batch * LENGTH * layers * hidden**2 * (1 + attention + vocabulary)


def large_step_cases(data: Path) -> Iterator[Case]:
    """Yield the steps of MPT and of Megatron-LM."""
    yield from mpt_cases(data)
    yield from megatron_cases(data)
    yield from paper_cases(data)
