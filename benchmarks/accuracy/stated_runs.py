"""Runs of pretraining as pages state them, one by one, without a table: cases of `large_runs.py`.

NVIDIA's DGX Cloud, torchtitan's large models, IBM's FSDP and KempnerForge. Nothing is fitted to any of them. Example::

    cases, _ = dgxc_cases(Path())
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.accuracy.large_runs import LargeRunCase
from benchmarks.accuracy.pretraining import (
    POWER_LIMITED,
    RECOMPUTED,
    RING_RELEASE,
    Cases,
    PretrainingWorkload,
    machines_of,
    network_of,
)
from benchmarks.accuracy.workloads.llama import LLAMA
from lightning_predict.base.units import GIBIBYTE, gigabytes_to_bytes
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect
from lightning_predict.layouts.strategy import Float8, Recompute, Strategy

DGXC: Final = (
    # model, GPU, length, tensor, pipeline, virtual, context, experts shared by, micro-batch,
    # then GPUs, samples of a step, seconds in bfloat16 and in float8
    (
        ("llama3-8b", "H100-SXM-80GB", 8192, 1, 1, 1, 2, 1, 1),
        ((8, 128, 12.91, 9.67), (128, 2048, 13.10, 9.82)),
    ),
    (
        ("llama3-70b", "H100-SXM-80GB", 8192, 4, 4, 5, 2, 1, 1),
        ((64, 128, 14.72, 11.01), (512, 1024, 14.89, 11.18), (2048, 4096, 14.98, 11.39)),
    ),
    (
        ("llama3-405b", "H100-SXM-80GB", 8192, 8, 9, 7, 2, 1, 1),
        ((576, 252, 17.20, 11.24), (2304, 1008, 17.62, 12.35)),
    ),
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


def dgxc_cases(_path: Path) -> Cases:
    """Return the rows of `DGXC`, in both precisions."""
    return _dgxc(DGXC, "dgxc"), Counter()


def more_dgxc_cases(_path: Path) -> Cases:
    """Return the rows of `DGXC_MORE`, in both precisions."""
    return _dgxc(DGXC_MORE, "dgxc, more"), Counter()


Step = tuple[int, int, float, float]
Recipe = tuple[tuple[str, str, int, int, int, int, int, int, int], tuple[Step, ...]]


def _dgxc(recipes: tuple[Recipe, ...], table: str) -> tuple[LargeRunCase, ...]:
    precisions: tuple[Float8 | None, ...] = (None, "tensorwise")
    return tuple(
        LargeRunCase(
            workload=PretrainingWorkload(
                table=table,
                model=model,
                length=length,
                batch=micro,
                is_compiled=True,
                kind=fp8 or "bfloat16",
                release=RING_RELEASE if context > 1 else None,
            ),
            layout=machines_of(gpu, count),
            strategy=Strategy(
                data="zero1",
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
            micro_batch=micro,
            measured_seconds=seconds,
        )
        for (model, gpu, length, tensor, pipeline, virtual, context, expert, micro), steps in recipes
        for count, batch, *both in steps
        for fp8, seconds in zip(precisions, both, strict=True)
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


def large_titan_cases(_path: Path) -> Cases:
    """Return the rows of `LARGE_TITAN`."""
    cases = []
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
        recompute,
        is_async,
        rate,
        gibibytes,
    ) in LARGE_TITAN:
        is_old, micro_batches = gpu != POWER_LIMITED, pipeline * virtual if pipeline > 1 else 1
        ends = fewer_blocks_at_ends(LLAMA[model].layers, pipeline) if virtual == 1 else None
        cases.append(
            LargeRunCase(
                workload=PretrainingWorkload(
                    table="torchtitan, large",
                    model=model,
                    length=length,
                    batch=batch // micro_batches,
                    is_compiled=not is_old,
                    kind="bfloat16, eager" if is_old else "tensorwise, compiled",
                    release="2.4" if is_old else "2.6",
                ),
                layout=machines_of(gpu, count),
                strategy=Strategy(
                    data="fsdp",
                    tensor=tensor,
                    pipeline=pipeline,
                    virtual=virtual,
                    first_stage=ends,
                    last_stage=ends,
                    context=context,
                    micro_batches=1,
                    accumulate=micro_batches,
                    sequence=tensor > 1,
                    recompute=RECOMPUTED[recompute],
                    fp8=None if is_old else "tensorwise",
                    overlap_tensor=is_async,
                    reduce_dtype="float32",
                ),
                micro_batch=batch // micro_batches,
                measured_seconds=batch * length / (tensor * pipeline * context) / rate,
                interconnect=CATALOGUE if is_old else network_of("400 Gb/s"),
                memory_bytes=None if gibibytes is None else gibibytes * GIBIBYTE,
            )
        )
    return tuple(cases), Counter()


def fewer_blocks_at_ends(layers: int, stages: int) -> int | None:
    """Return the blocks of the first and the last stage where both have one less; None where all have as many."""
    return None if layers % stages == 0 else (layers + 2) // stages - 1


IBM: Final = (
    # model, samples, recomputed, sharing, tokens/s a GPU on 128 A100, on 96 H100
    ("llama2-7b", 2, "none", "hybrid", 3700, 7500),
    ("llama2-13b", 2, "layers", "hybrid", 1800, 3800),
    ("llama2-34b", 2, "full", "fsdp", 700, 1550),
    ("llama2-70b", 2, "full", "fsdp", 370, 800),
)
"""Table 1 of "Maximizing training throughput using PyTorch FSDP" (PyTorch's blog, March 2024): 4,096 tokens, bfloat16,
eager, machines joined by 400 Gbit/s (A100) and 800 (H100). "Selective" computes every second block again, as its HFU
over its MFU tells (1.16); how replicas share is what foundation-model-stack/fms-fsdp's README says of each size."""

IBM_CLUSTERS: Final[Mapping[str, tuple[int, float]]] = {"A100-SXM-80GB": (128, 50), "H100-SXM-80GB": (96, 100)}
"""GPUs, and GB/s of a machine."""


def ibm_cases(_path: Path) -> Cases:
    """Return the rows of `IBM`."""
    recomputed: Mapping[str, Recompute] = {"none": "none", "layers": "layers", "full": "full"}
    return tuple(
        LargeRunCase(
            workload=PretrainingWorkload(
                table="ibm", model=model, length=4096, batch=batch, is_compiled=False, release="2.4"
            ),
            layout=machines_of(gpu, count),
            strategy=Strategy(
                data="hybrid" if data == "hybrid" else "fsdp", micro_batches=1, recompute=recomputed[recompute]
            ),
            micro_batch=batch,
            measured_seconds=4096 * batch / rate,
            interconnect=Interconnect(inter_node_bytes_per_second=gigabytes_to_bytes(link)),
        )
        for model, batch, recompute, data, *rates in IBM
        for (gpu, (count, link)), rate in zip(IBM_CLUSTERS.items(), rates, strict=True)
    ), Counter()


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
gradients stay whole on each GPU until the last micro-batch (`no_sync`), and each GPU of a block has all logits."""

KEMPNER_GPUS: Final = 4
"""GPUs of a machine."""


def kempner_cases(_path: Path) -> Cases:
    """Return the rows of `KEMPNER`."""
    return tuple(
        LargeRunCase(
            workload=PretrainingWorkload(
                table="kempner",
                model=model,
                length=4096,
                batch=batch,
                is_compiled=compiled,
                kind="tensor" if tensor > 1 else "replicas alone",
                release="2.11",
                is_all_bfloat16=True,
            ),
            layout=Layout(find_gpu("H200-SXM-141GB"), min(count, KEMPNER_GPUS), max(count // KEMPNER_GPUS, 1)),
            strategy=Strategy(
                data="fsdp" if count > tensor else "ddp",
                tensor=tensor,
                micro_batches=1,
                accumulate=accumulated,
                sequence=tensor > 1,
                recompute="full",
                reduce_dtype="float32" if count > tensor else None,
                no_sync=count > tensor,
                loss="gathered" if tensor > 1 else "split",
            ),
            micro_batch=batch,
            measured_seconds=seconds,
            memory_bytes=gibibytes * GIBIBYTE,
            is_reserved=False,
        )
        for model, count, tensor, batch, accumulated, compiled, seconds, gibibytes in KEMPNER
    ), Counter()
