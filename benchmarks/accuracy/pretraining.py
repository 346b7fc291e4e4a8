"""Read published runs of pretraining: torchtitan's, nanotron's, NeMo's and DGX Cloud's, as cases of `large_runs.py`.

Each row's micro-batch is recorded on the meta device and repeated by the strategy. What a table does not say is as the
framework's own configuration has it, from memory: torchtitan gathers in bfloat16, reduces in float32 and shares the
stream along the sequence; nanotron does that, too, and exchanges gradients in float32; NeMo runs Megatron's kernels,
taken to be as fused as a compiled step's, behind its distributed optimizer with everything overlapped, and launches
the products of each expert. Example::

    cases, left_out = read_torchtitan_cases(Path("validation/torchtitan.csv"))
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, final

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.large_runs import (
    GPUS_PER_NODE,
    AnyWorkload,
    LargeRunCase,
    LargeRunResult,
    choices_table,
    errors_table,
    predicted_runs,
    recorded,
)
from benchmarks.accuracy.transformers import evaluate_in_groups
from benchmarks.accuracy.workloads.llama import LLAMA, LlamaConfig, llama_trace, with_compiled_loss
from benchmarks.training.report import report_table
from lightning_predict.checked import Checked, read_csv
from lightning_predict.cost.memory import step_memory
from lightning_predict.distributed.memory import shared_memory_bytes
from lightning_predict.distributed.strategy import Float8, Recompute, Strategy
from lightning_predict.errors import MeasurementTableError
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.gpus.layouts import Layout
from lightning_predict.kernels.fabric import CATALOGUE, Interconnect
from lightning_predict.kernels.fusion import fused
from lightning_predict.tracing.recorded_on import under_release
from lightning_predict.tracing.trace import Trace
from lightning_predict.units import GIBIBYTE, MEBIBYTE, gigabytes_to_bytes

TORCHTITAN_TABLE: Final = "torchtitan.csv"
NANOTRON_TABLE: Final = "nanotron.csv"
NEMO_TABLE: Final = "nemo.csv"


@final
@dataclass(frozen=True, slots=True)
class PretrainingWorkload:
    """A micro-batch of a model; rows with equal ones share a recording.

    Attributes:
        table: `torchtitan`, `nanotron` or `nemo`.
        model: A key of `LLAMA`.
        length: Tokens of a sample.
        batch: Samples of a micro-batch.
        is_compiled: Point-wise work is fused.
        kind: What rows of the table are told apart by, in words.
        release: Release of torch of its time, which decides on the kernels of attention; None for today's.
        compiles_loss: The loss is compiled, too.
    """

    table: str
    model: str
    length: int
    batch: int
    is_compiled: bool
    kind: str = ""
    release: str | None = None
    compiles_loss: bool = False

    @property
    def name(self) -> str:
        """Words for a file."""
        return f"{self.model}-{self.length}-{self.batch}"

    def trace(self) -> Trace:
        """Record it on the meta device."""
        return llama_trace(LLAMA[self.model], length=self.length, batch=self.batch)

    def prepared(self, trace: Trace) -> Trace:
        """Return the recording as it runs."""
        trace = with_compiled_loss(trace) if self.compiles_loss else trace
        return under_release(fused(trace) if self.is_compiled else trace, self.release)


Cases = tuple[tuple[LargeRunCase, ...], Counter[str]]
"""Cases, and how many rows were left out, by reason."""

RECOMPUTED: Final[Mapping[str, Recompute]] = {
    "none": "none",
    "": "none",
    "full": "full",
    "selective_op": "operations",
    "selective_layer": "layers",
}
"""torchtitan's words for activation checkpointing."""

TORCHTITAN_FLOAT8: Final[Mapping[str, Float8 | None]] = {
    "none": None,
    "tensorwise": "tensorwise",
    "rowwise": "rowwise",
    "mxfp8": "mx",
    "mxfp8_cublas": "mx",
    "mxfp8_cublas_rceil": "mx",
}


RELEASES: Final[Mapping[str, str]] = {
    "docs/performance.md": "2.4",
    "h100_202412": "2.6",
    "h100_2025-06": "2.8",
    "h200_202506": "2.8",
}
"""Releases of torch by the date of torchtitan's pages; where none is named, cuDNN's attention is asked for (B200)."""

LOSS_NOT_COMPILED: Final = ("docs/performance.md", "h100_202412")
"""torchtitan's pages of the time when `--training.compile` left the loss out ("compiling loss function causes CUDA
errors, turning off for now", its `train.py` of December 2024); from 2025 on it is compiled, too."""


POWER_LIMITED: Final = "H100-SXM-96GB"
"""What torchtitan's rows ran on whose note says 500 W: Meta's H100."""


def read_torchtitan_cases(path: Path) -> Cases:
    """Read the rows of `torchtitan.csv`.

    Raises:
        MeasurementTableError: A missing column, or a value that is not a positive number.
    """
    left_out = Counter[str]()
    columns = ("model", "gpu", "gpus", "sequence", "local_batch", "global_batch", "tp", "pp", "cp", "step_seconds")
    cases = []
    for row in read_csv(path, MeasurementTableError, columns=(*columns, "activation_checkpointing", "float8")):
        words, model = row.value, row.value["model"].replace("llama3.1", "llama3")
        if model not in LLAMA or words["float8"] not in TORCHTITAN_FLOAT8:
            left_out["model" if model not in LLAMA else words["float8"]] += 1
            continue
        tensor, pipeline, context = (_number(row, column) for column in ("tp", "pp", "cp"))
        count, micro = _number(row, "gpus"), _number(row, "local_batch")
        micro = 1 if pipeline > 1 else micro
        replicas = count // (tensor * pipeline * context)
        recipe = words["float8"] if words["float8"] != "none" else "bfloat16"
        memory = float(words.get("memory_gib") or 0) * GIBIBYTE or None
        if memory is not None and not words["activation_checkpointing"]:
            left_out["from memory alone: what is computed again is not told"] += 1
            memory = None
        cases.append(
            LargeRunCase(
                workload=PretrainingWorkload(
                    table="torchtitan",
                    model=model,
                    length=_number(row, "sequence"),
                    batch=micro,
                    is_compiled=words["compile"] == "1",
                    kind=f"{recipe}, {'compiled' if words['compile'] == '1' else 'eager'}",
                    release=next((own for part, own in RELEASES.items() if part in words["source"]), None),
                    compiles_loss=words["compile"] == "1"
                    and not any(page in words["source"] for page in LOSS_NOT_COMPILED),
                ),
                layout=_layout(POWER_LIMITED if "500 W" in words["gpu_note"] else words["gpu"], count),
                strategy=Strategy(
                    data="fsdp",
                    tensor=tensor,
                    pipeline=pipeline,
                    context=context,
                    micro_batches=1,
                    accumulate=max(_number(row, "global_batch") // (replicas * micro), 1),
                    sequence=tensor > 1,
                    recompute=RECOMPUTED[words["activation_checkpointing"]],
                    fp8=TORCHTITAN_FLOAT8[words["float8"]],
                    overlap_tensor=words["async_tp"] == "1",
                    reduce_dtype="float32",
                ),
                micro_batch=micro,
                measured_seconds=row.member("step_seconds").parsed().positive(),
                interconnect=_network(words["gpu_note"]),
                memory_bytes=memory,
            )
        )
    return tuple(cases), left_out


def _network(note: str) -> Interconnect:
    """Return what a note says of the links between machines."""
    return Interconnect(inter_node_bytes_per_second=gigabytes_to_bytes(400)) if "400 Gb/s" in note else CATALOGUE


def read_nanotron_cases(path: Path) -> Cases:
    """Read the rows of `nanotron.csv`.

    Raises:
        MeasurementTableError: A missing column, or a value that is not a positive number.
    """
    columns = ("gpu", "gpus", "dp", "tp", "pp", "micro_batch", "accumulation", "sequence", "zero_stage", "step_seconds")
    cases, left_out = [], Counter[str]()
    for row in read_csv(path, MeasurementTableError, columns=(*columns, "model")):
        name = row.value["model"].split()[0]
        if name not in LLAMA:
            left_out["model"] += 1
            continue
        tensor, pipeline = _number(row, "tp"), _number(row, "pp")
        micro = _number(row, "micro_batch")
        last = blocks_of_last_stage(LLAMA[name], pipeline) if pipeline > 1 else None
        cases.append(
            LargeRunCase(
                workload=PretrainingWorkload(
                    table="nanotron",
                    model=name,
                    length=_number(row, "sequence"),
                    batch=micro,
                    is_compiled=False,
                    release="2.4",
                ),
                layout=_layout(row.value["gpu"], _number(row, "gpus")),
                strategy=Strategy(
                    data="zero1" if row.value["zero_stage"] == "1" else "ddp",
                    tensor=tensor,
                    pipeline=pipeline,
                    last_stage=last,
                    micro_batches=1,
                    accumulate=_number(row, "accumulation"),
                    sequence=tensor > 1,
                    reduce_dtype="float32",
                ),
                micro_batch=micro,
                measured_seconds=row.member("step_seconds").parsed().positive(),
                memory_bytes=float(row.value.get("memory_mib") or 0) * MEBIBYTE or None,
                is_reserved=False,  # fractions of a MiB, where the allocator reserves 2 MiB at a time
            )
        )
    return tuple(cases), left_out


def blocks_of_last_stage(config: LlamaConfig, pipeline: int) -> int:
    """Count the blocks that nanotron leaves to the last stage of a pipeline, beside the output layer; at least one.

    It deals out modules in order by their multiplications for a token; a stage is full with the module that takes the
    sum beyond the stage's share of all.
    """
    block = 4 * config.hidden**2 + 3 * config.inner * config.hidden
    before_last = (block * config.layers + config.vocabulary * config.hidden) * (pipeline - 1) / pipeline
    return max(config.layers - math.floor(before_last / block) - 1, 1)


RING_RELEASE: Final = "2.4"
"""Of NeMo's runs that share sequences, from 2024: Transformer Engine's ring took FlashAttention 2 then, whose rate the
longest of them shows (315 TFLOP/s over both passes at a million tokens)."""

NEMO_FLOAT8: Final[Mapping[str, Float8 | None]] = {
    "BF16": None,
    "FP8": "tensorwise",
    "FP8-CS": "tensorwise",
    "FP8-MX": "mx",
    "MXFP8": "mx",
}


def read_nemo_cases(path: Path) -> Cases:
    """Read the rows of `nemo.csv`; one configuration in several containers becomes its median.

    Raises:
        MeasurementTableError: A missing column, or a value that is not a positive number.
    """
    columns = ("task", "model", "gpu", "gpus", "precision", "gbs", "mbs", "sequence", "tp", "pp", "cp", "step_seconds")
    times: dict[tuple[str, ...], list[float]] = defaultdict(list)
    rows: dict[tuple[str, ...], Checked] = {}
    left_out = Counter[str]()
    kept = (*columns[1:-1], "fsdp", "vp", "ep")
    for row in read_csv(path, MeasurementTableError, columns=columns):
        words = row.value
        reason = _why_not(words)
        if reason is not None:
            left_out[reason] += 1
            continue
        key = tuple(words[column].replace("_", "-").upper() for column in kept)
        key = (*key[:-3], words["fsdp"] or "0", words["vp"] or "1", words["ep"] or "1")
        times[key].append(row.member("step_seconds").parsed().positive())
        rows.setdefault(key, row)
    cases = tuple(_nemo_case(row, statistics.median(times[key])) for key, row in rows.items())
    return cases, left_out


def _why_not(words: Mapping[str, str]) -> str | None:
    if words["task"] not in ("pretrain", "long sequence") or not words["sequence"] or not words["step_seconds"]:
        return f"{words['task']}, or no sequence or time"
    if _nemo_model(words["model"]) not in LLAMA:
        return words["model"]
    if words["precision"] not in NEMO_FLOAT8:
        return words["precision"]
    if int(words["ep"] or 1) > int(words["gpus"]) // (int(words["tp"]) * int(words["pp"]) * int(words["cp"])):
        return "experts are dealt out among GPUs that share a block, too"
    return "tokens are dropped" if "tokendrop" in words["note"] else None


def _nemo_model(name: str) -> str:
    return name.lower().replace("_", "-").replace(" ", "-")


def _nemo_case(row: Checked, seconds: float) -> LargeRunCase:
    words = row.value
    tensor, pipeline, context = (_number(row, column) for column in ("tp", "pp", "cp"))
    count, micro = _number(row, "gpus"), _number(row, "mbs")
    replicas = count // (tensor * pipeline * context)
    is_fsdp = words["fsdp"] not in ("", "0")
    expert = int(words["ep"] or 1)
    return LargeRunCase(
        workload=PretrainingWorkload(
            table="nemo",
            model=_nemo_model(words["model"]),
            length=_number(row, "sequence"),
            batch=micro,
            is_compiled=True,
            kind=f"{NEMO_FLOAT8[words['precision']] or 'bfloat16'}{', FSDP' if is_fsdp else ''}",
            release=RING_RELEASE if context > 1 else None,
        ),
        layout=_layout(words["gpu"], count),
        strategy=Strategy(
            data="fsdp" if is_fsdp else "zero1",
            tensor=tensor,
            pipeline=pipeline,
            virtual=int(words["vp"] or 1) if pipeline > 1 else 1,
            context=context,
            expert=expert,
            expert_launches=expert > 1,
            micro_batches=1,
            accumulate=max(_number(row, "gbs") // (replicas * micro), 1),
            sequence=tensor > 1,
            overlap_tensor=tensor > 1,
            overlap_param_gather=not is_fsdp,
            fp8=NEMO_FLOAT8[words["precision"]],
        ),
        micro_batch=micro,
        measured_seconds=seconds,
    )


DGXC: Final = (
    # model, GPUs, tensor, pipeline, context, virtual, samples of a step, seconds in bfloat16, in float8
    ("llama3-8b", 8, 1, 1, 2, 1, 128, 12.91, 9.67),
    ("llama3-8b", 128, 1, 1, 2, 1, 2048, 13.10, 9.82),
    ("llama3-70b", 64, 4, 4, 2, 5, 128, 14.72, 11.01),
    ("llama3-70b", 512, 4, 4, 2, 5, 1024, 14.89, 11.18),
    ("llama3-70b", 2048, 4, 4, 2, 5, 4096, 14.98, 11.39),
    ("llama3-405b", 576, 8, 9, 2, 7, 252, 17.20, 11.24),
    ("llama3-405b", 2304, 8, 9, 2, 7, 1008, 17.62, 12.35),
)
"""Steps on H100s as NVIDIA/dgxc-benchmarking states them (`llama3.1/README_8b.md`, `70b` and `405b` at 143b90d, with
NeMo 24.09, 8,192 tokens and micro-batches of one). Nothing is fitted to them."""


def dgxc_cases(_path: Path) -> Cases:
    """Return the rows of `DGXC`, in both precisions."""
    precisions: tuple[Float8 | None, ...] = (None, "tensorwise")
    return tuple(
        LargeRunCase(
            workload=PretrainingWorkload(
                table="dgxc",
                model=model,
                length=8192,
                batch=1,
                is_compiled=True,
                kind=fp8 or "bfloat16",
                release=RING_RELEASE,
            ),
            layout=_layout("H100-SXM-80GB", count),
            strategy=Strategy(
                data="zero1",
                tensor=tensor,
                pipeline=pipeline,
                virtual=virtual,
                context=context,
                micro_batches=1,
                accumulate=batch * tensor * pipeline * context // count,
                sequence=tensor > 1,
                overlap_tensor=tensor > 1,
                overlap_param_gather=True,
                fp8=fp8,
            ),
            micro_batch=1,
            measured_seconds=seconds,
        )
        for model, count, tensor, pipeline, context, virtual, batch, *both in DGXC
        for fp8, seconds in zip(precisions, both, strict=True)
    ), Counter()


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
                layout=_layout(gpu, count),
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
                interconnect=CATALOGUE if is_old else _network("400 Gb/s"),
                memory_bytes=None if gibibytes is None else gibibytes * GIBIBYTE,
            )
        )
    return tuple(cases), Counter()


def fewer_blocks_at_ends(layers: int, stages: int) -> int | None:
    """Return the blocks of the first and the last stage where both have one less; None where all have as many."""
    return None if layers % stages == 0 else (layers + 2) // stages - 1


def _number(row: Checked, column: str) -> int:
    return row.member(column).parsed().integer(minimum=1)


TRAY: Final = 4
"""GPUs of a machine of GB200 and GB300."""


def _layout(name: str, count: int) -> Layout:
    per_node = min(count, TRAY if name.startswith("GB") else GPUS_PER_NODE)
    return Layout(find_gpu(name), per_node, count // per_node)


READERS: Final[Mapping[str, tuple[str, Callable[[Path], Cases]]]] = {
    "torchtitan": (TORCHTITAN_TABLE, read_torchtitan_cases),
    "nanotron": (NANOTRON_TABLE, read_nanotron_cases),
    "nemo": (NEMO_TABLE, read_nemo_cases),
    "dgxc": ("", dgxc_cases),
    "torchtitan-large": ("", large_titan_cases),
}
"""File and reader of each table; what is no table, reads none."""


def print_report(folder: Path, of: str, console: Console, *, weights: Path | None, cache: Path | None) -> None:
    """Print the errors of a table's rows, by what may explain them and one by one, and what was left out.

    Args:
        folder: Folder of the tables.
        of: A key of `READERS`.
        console: Where to print.
        weights: Weights to use.
        cache: Folder that keeps the recordings; None records them anew.

    Raises:
        MeasurementTableError: The table is wrong.
        LightningPredictError: As `predict`.
    """
    file, read = READERS[of]
    cases, left_out = read(folder / file)
    results = evaluate_in_groups(
        cases,
        key=lambda case: case.workload,
        evaluate=partial(predicted_runs, weights=weights, cache=cache, studies=False),
        jobs=1,
    )
    console.print(errors_table(of, results), choices_table(results))
    rows = report_table(
        f"{of}: each row",
        ("model", "GPU", "recipe", "sharing"),
        ("length", "measured s", "predicted s", "error %", "inside"),
        no_wrap=False,
    )
    for result in results:
        rows.add_row(*_cells(result))
    console.print(rows)
    if any(case.memory_bytes for case in cases):
        console.print(memory_table(of, cases, cache))
    for reason, count in sorted(left_out.items()):
        console.print(f"left out: {count} row(s), {reason}")


def memory_table(of: str, cases: Sequence[LargeRunCase], cache: Path | None) -> Table:
    """Compare the peak that is derived for the fullest GPU with the one that was published."""
    words, numbers = ("model", "GPU", "sharing"), ("GiB", "predicted", "error %")
    table = report_table(f"{of}: memory of a GPU", words, numbers, no_wrap=False)
    by_workload: dict[AnyWorkload, list[LargeRunCase]] = defaultdict(list)
    for case in cases:
        if case.memory_bytes:
            by_workload[case.workload].append(case)
    errors = []
    for workload, own in by_workload.items():
        trace = workload.prepared(recorded(workload, cache))
        need = step_memory(trace)
        for case in own if need is not None else ():
            assert need is not None
            assert case.memory_bytes is not None
            alone = (need.bytes_on if case.is_reserved else need.allocated_on)(case.layout.gpu)
            found = shared_memory_bytes(alone, trace, case.layout, case.strategy)
            errors.append(found / case.memory_bytes - 1)
            sizes = (f"{size / GIBIBYTE:.1f}" for size in (case.memory_bytes, found))
            table.add_row(workload.name, case.layout.name, case.strategy.name, *sizes, f"{100 * errors[-1]:+.1f}")
    middle = f"{100 * statistics.median(map(abs, errors)):.1f}"
    table.add_row("median |error|, bias", "", "", "", middle, f"{100 * statistics.median(errors):+.1f}")
    return table


def _cells(result: LargeRunResult) -> tuple[str, ...]:
    case = result.case
    return (
        case.workload.model,
        case.layout.name,
        case.workload.kind,
        case.strategy.name,
        str(case.workload.length),
        f"{case.measured_seconds:.3f}",
        f"{result.step.seconds:.3f}",
        f"{100 * result.error:+.1f}",
        "yes" if result.is_inside else "no",
    )
