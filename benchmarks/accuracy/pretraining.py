"""Read tables of published pretraining, torchtitan's, nanotron's and NeMo's, as cases of `large_runs.py`.

Each row's micro-batch is recorded on the meta device and repeated by the strategy. Values that a table lacks follow the
framework's own configuration, from memory: torchtitan gathers in bfloat16, reduces in float32 and shares the
stream along the sequence; nanotron does that, too, and exchanges gradients in float32; NeMo runs Megatron's kernels,
taken to be as fused as a compiled step's, behind its distributed optimizer with everything overlapped, and launches
the products of each expert. Example::

    cases, left_out = read_torchtitan_cases(Path("validation/torchtitan.csv"))
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from benchmarks.accuracy.large_runs import (
    GPUS_PER_NODE,
    LargeRunCase,
)
from benchmarks.accuracy.workloads.llama import LLAMA, LlamaConfig, llama_trace, with_compiled_loss
from lightning_predict.base.checked import Checked, read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import GIBIBYTE, MEBIBYTE, gigabytes_to_bytes, milliseconds_to_seconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.fusion import fused
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect
from lightning_predict.layouts.strategy import Float8, Recompute, Strategy
from lightning_predict.record.torch_releases import for_torch_release
from lightning_predict.record.trace import Trace

TORCHTITAN_TABLE: Final = "torchtitan.csv"
NANOTRON_TABLE: Final = "nanotron.csv"
NEMO_TABLE: Final = "nemo.csv"
SIMUMAX_TABLE: Final = "simumax_steps.csv"


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
        kind: What rows of the table are distinguished by, in words.
        release: Release of torch of its time, which determines the kernels of attention; None for the current release.
        compiles_loss: The loss is compiled, too.
        is_all_bfloat16: So are the optimizer's state and the logits of the loss; else both are in float32.
    """

    table: str
    model: str
    length: int
    batch: int
    is_compiled: bool
    kind: str = ""
    release: str | None = None
    compiles_loss: bool = False
    is_all_bfloat16: bool = False

    @property
    def name(self) -> str:
        """Words for a file."""
        return f"{self.model}-{self.length}-{self.batch}{'-bfloat16' if self.is_all_bfloat16 else ''}"

    def trace(self) -> Trace:
        """Record it on the meta device."""
        config = LLAMA[self.model]
        return llama_trace(config, length=self.length, batch=self.batch, is_all_bfloat16=self.is_all_bfloat16)

    def prepared(self, trace: Trace) -> Trace:
        """Return the recording as it runs."""
        trace = with_compiled_loss(trace) if self.compiles_loss else trace
        return for_torch_release(fused(trace, compiles_loss=False) if self.is_compiled else trace, self.release)


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
                layout=machines_of(POWER_LIMITED if "500 W" in words["gpu_note"] else words["gpu"], count),
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
                interconnect=network_of(words["gpu_note"]),
                memory_bytes=memory,
            )
        )
    return tuple(cases), left_out


def network_of(note: str) -> Interconnect:
    """Return the links between machines as stated in a note."""
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
                layout=machines_of(row.value["gpu"], _number(row, "gpus")),
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
    """Count the blocks, at least one, that nanotron leaves to the last pipeline stage with the output layer.

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
    shares_blocks = expert > replicas  # experts are then dealt out among tensor- and context-parallel GPUs, too
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
        layout=machines_of(words["gpu"], count),
        strategy=Strategy(
            data="fsdp" if is_fsdp else "zero1",
            tensor=tensor,
            pipeline=pipeline,
            virtual=int(words["vp"] or 1) if pipeline > 1 else 1,
            context=context,
            expert=expert,
            expert_tensor=1 if shares_blocks else None,
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


_DEGREES: Final = re.compile(r"tp(?P<tensor>\d+)(?:cp(?P<context>\d+))?pp(?P<pipeline>\d+)")
_LENGTH: Final = re.compile(r"_seq(\d+)_")

SIMUMAX_GPU: Final = "B200-SXM-180GB"
SIMUMAX_LENGTH: Final = 4096
"""Tokens of a sample where a case does not name another number."""


def read_simumax_cases(path: Path) -> Cases:
    """Read the rows of `simumax_steps.csv`: dense models in Megatron-LM on one machine of eight B200.

    Its distributed optimizer overlaps nothing, and gradients are in float32. The rows are a test: nothing is chosen on
    them.

    Raises:
        MeasurementTableError: A missing column, or a value that is not a positive number.
    """
    cases, left_out = [], Counter[str]()
    for row in read_csv(path, MeasurementTableError, columns=("case", "model", "parallel", "layers", "step_ms")):
        words = row.value
        model = f"{words['model']}-{words['layers']}"
        found = _DEGREES.fullmatch(words["parallel"])
        if model not in LLAMA or found is None:
            left_out[words["model"] if found else words["parallel"]] += 1
            continue
        tensor, context, pipeline = (int(found[name] or 1) for name in ("tensor", "context", "pipeline"))
        length = _LENGTH.search(words["case"])
        cases.append(
            LargeRunCase(
                workload=PretrainingWorkload(
                    table="simumax",
                    model=model,
                    length=SIMUMAX_LENGTH if length is None else int(length[1]),
                    batch=1,
                    is_compiled=True,
                ),
                layout=machines_of(SIMUMAX_GPU, GPUS_PER_NODE),
                strategy=Strategy(
                    data="zero1",
                    tensor=tensor,
                    pipeline=pipeline,
                    context=context,
                    micro_batches=1,
                    accumulate=_number(row, "micro_batches"),
                    sequence=tensor > 1,
                    reduce_dtype="float32",
                    overlap_grad_reduce=False,
                ),
                micro_batch=1,
                measured_seconds=milliseconds_to_seconds(row.member("step_ms").parsed().positive()),
            )
        )
    return tuple(cases), left_out


def _number(row: Checked, column: str) -> int:
    return row.member(column).parsed().integer(minimum=1)


TRAY: Final = 4
"""GPUs of a machine of GB200 and GB300."""


def machines_of(name: str, count: int) -> Layout:
    """Return the given number of GPUs in machines as large as such GPUs come in."""
    per_node = min(count, TRAY if name.startswith("GB") else GPUS_PER_NODE)
    return Layout(find_gpu(name), per_node, count // per_node)
