"""Score five tools of 2025 and 2026 on rows that ours is scored on: `python -m benchmarks.peers.newest VALIDATION`.

- ftuneai (time, memory) and fitcheck-llm (memory): LoRA of Qwen on an A100, and LoRA and QLoRA on a T4. fitcheck's
  authors measured the rows of the T4 and calibrated on them.
- crusoe-estimator and green-love: the step on an H100 from the measured one on an L40S (milabench).
- nvMatmulHeuristics: matrix products in bfloat16, of 20 microseconds and more at the roofline, by the settings with
  the smallest errors: the fastest of eight kernels, tuned by its model.

Each tool answers through its own functions, without a GPU::

    pip install --no-deps --target peers ftuneai fitcheck-llm crusoe-estimator green-love nvidia-matmul-heuristics
    PYTHONPATH=peers python -m benchmarks.peers.newest validation --tables measurements
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.finetuning import LENGTHS, MODELS, RANK, SEQUENCES, VOCABULARY, Model
from benchmarks.accuracy.product_tables import LONG_SECONDS
from benchmarks.accuracy.published_steps import milabench_steps
from benchmarks.accuracy.qlora import TARGETS
from benchmarks.accuracy.source_scores import ratio_scores, scored_steps
from benchmarks.result_files import ResultConsole, write_result
from benchmarks.runs import RUNS
from benchmarks.scored_steps import GIGABYTE, WIDTH
from benchmarks.training.report import report_table
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import GIBIBYTE, MEBIBYTE, milliseconds_to_seconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import OperationShape, batch_shapes
from lightning_predict.kernels.roofline import roofline_seconds
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.record.named_models.configurations import shipped

PRODUCTS: Final[Mapping[str, tuple[str, ...]]] = {
    "matmul_tf32.csv": ("H100-SXM-80GB", "B200-SXM-180GB"),
    "matmul.csv.gz": ("A100-SXM-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "GB300"),
}
"""Tables of products in bfloat16 and their GPUs. Our networks were trained on the second table."""

NVIDIA_NAMES: Final[Mapping[str, str]] = {
    "A100-SXM-80GB": "A100_SXM_80GB",
    "H100-SXM-80GB": "H100_SXM",
    "H200-SXM-141GB": "H200_SXM",
    "B200-SXM-180GB": "B200",
    "GB300": "GB300_NVL",
}
"""nvMatmulHeuristics' names of GPUs."""

EVERY_LAYER: Final = (*TARGETS, "gate_proj", "up_proj", "down_proj")
"""Layers of a block with adapters in Qwen's page."""

SAMPLE: Final = 400
"""Products of each GPU and table, spread evenly."""

KERNELS: Final = 8
"""Kernels that nvMatmulHeuristics is asked for; the fastest counts. With one, its errors are larger."""

UPDATES: Final = 1_000_000
"""Updates that ftuneai is asked for, as hours are rounded to two digits."""

Errors = dict[str, list[float]]


def qwen_errors() -> Errors:
    """Ask for time and memory of Qwen's published updates with LoRA."""
    found: Errors = defaultdict(list)
    for model in MODELS:
        for length, seconds, gigabytes in zip(LENGTHS, model.seconds, model.gigabytes, strict=True):
            asked = {"name": model.name, "length": length, "batch": 1, "rank": RANK, "quantization": "none"}
            shape = _shape_of_qwen(model)
            time, memory = _ftuneai(shape, asked, "A100-80GB", targets="all_linear", samples=SEQUENCES)
            found["ftuneai, time"].append(time / seconds - 1)
            found["ftuneai, memory"].append(memory / (GIGABYTE * gigabytes) - 1)
            memory = _fitcheck(shape, asked, "a100-80", precision="bf16", flash=True, targets=EVERY_LAYER)
            found["fitcheck-llm, memory"].append(memory / (GIGABYTE * gigabytes) - 1)
    return found


def t4_errors(folder: Path) -> Errors:
    """Ask for time and memory of LoRA and QLoRA on a T4."""
    found: Errors = defaultdict(list)
    for row in csv.DictReader((folder / "fitcheck_t4.csv").open(encoding="utf-8")):
        shape = _shape_of(dict(shipped("hf", row["model"]).config))
        asked = {
            "name": row["model"],
            "length": int(row["seq"]),
            "batch": int(row["batch"]),
            "rank": int(row["lora_r"]),
            "quantization": row["quantization"],
        }
        time, memory = _ftuneai(shape, asked, "T4-16GB", targets="attention_all", samples=int(row["batch"]))
        measured = MEBIBYTE * float(row["process_mib"])
        found["ftuneai, time"].append(time / float(row["step_seconds"]) - 1)
        found["ftuneai, memory"].append(memory / measured - 1)
        memory = _fitcheck(shape, asked, "t4", precision="fp16", flash=row["attention"] != "eager", targets=TARGETS)
        found["fitcheck-llm, memory"].append(memory / measured - 1)
    return found


def _shape_of_qwen(model: Model) -> dict[str, int]:
    layer = 4 * model.width**2 + 3 * model.width * model.inner
    return {
        "hidden_size": model.width,
        "num_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_kv_heads": model.heads,
        "intermediate_size": model.inner,
        "vocab_size": VOCABULARY,
        "parameters": model.layers * layer + 2 * VOCABULARY * model.width,
        "is_tied": False,
    }


def _shape_of(config: Mapping[str, Any]) -> dict[str, int]:
    width, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    of_keys = config.get("num_key_value_heads", heads)
    layer = 2 * width**2 + 2 * width * (width // heads) * of_keys + 3 * width * inner
    tied = bool(config.get("tie_word_embeddings", False))
    return {
        "hidden_size": width,
        "num_layers": config["num_hidden_layers"],
        "num_attention_heads": heads,
        "num_kv_heads": of_keys,
        "intermediate_size": inner,
        "vocab_size": config["vocab_size"],
        "parameters": config["num_hidden_layers"] * layer + (2 - tied) * config["vocab_size"] * width,
        "is_tied": tied,
    }


def _ftuneai(
    shape: Mapping[str, int], asked: Mapping[str, Any], gpu: str, *, targets: str, samples: int
) -> tuple[float, float]:
    """Ask ftuneai for the seconds of an update of `samples` sequences, and for the bytes of the process."""
    models, loader = import_module("ftuneai.core.models"), import_module("ftuneai.loader")
    own = {key: value for key, value in shape.items() if key != "is_tied"}
    model = models.ModelSpec(name=asked["name"], max_seq_length=32_768, **own)
    is_quantized = asked["quantization"] != "none"
    config = models.TrainingConfig(
        model=asked["name"],
        method=models.FineTuneMethod("qlora" if is_quantized else "lora"),
        quantization=models.Quantization("4bit" if is_quantized else "none"),
        batch_size=asked["batch"],
        seq_length=asked["length"],
        gradient_checkpointing=True,
        lora_rank=asked["rank"],
        lora_target=models.LoRATarget(targets),
    )
    time = import_module("ftuneai.core.time").TimeEstimator(model, config)
    hours = time.estimate(loader.get_gpu(gpu), dataset_size=samples * UPDATES, epochs=1).total_hours
    memory = import_module("ftuneai.core.memory").MemoryEstimator(model, config).estimate().total_gb
    return 3600 * hours / UPDATES, memory * GIBIBYTE


def _fitcheck(
    shape: Mapping[str, int],
    asked: Mapping[str, Any],
    gpu: str,
    *,
    precision: str,
    flash: bool,
    targets: Sequence[str],
) -> float:
    """Ask fitcheck-llm for the bytes of the process."""
    parser, estimator = import_module("fitcheck.config_parser"), import_module("fitcheck.estimator")
    own = {key: value for key, value in shape.items() if key not in ("is_tied", "parameters")}
    head = shape["hidden_size"] // shape["num_attention_heads"]
    model = parser.ModelConfig(
        name=asked["name"],
        num_params=shape["parameters"],
        head_dim=head,
        tie_word_embeddings=bool(shape["is_tied"]),
        **own,
    )
    training = estimator.TrainingConfig(
        precision=precision,
        quantization=asked["quantization"],
        batch_size=asked["batch"],
        seq_len=asked["length"],
        lora_rank=asked["rank"],
        lora_targets=list(targets),
        grad_checkpoint=True,
        flash_attn=flash,
    )
    spec = import_module("fitcheck.gpu_db").GPU_DB[gpu]
    return MEBIBYTE * float(estimator.estimate(model, training, spec).total_mib)


def other_gpu_errors(folder: Path, cache: Path) -> Errors:
    """Ask for the step on an H100 over the one on an L40S, on which both tools would have timed it."""
    found: Errors = defaultdict(list)
    for one in ratio_scores(scored_steps(tuple(milabench_steps(folder)), cache=cache)):
        if one.gpu == "H100-SXM-80GB" and one.group.endswith(" from L40S"):
            found["lightning-predict"].append(one.predicted / one.measured - 1)
            found["crusoe-estimator"].append(_crusoe() / one.measured - 1)
            found["green-love"].append(_green(one.group) / one.measured - 1)
    return found


def _crusoe() -> float:
    """Ask crusoe-estimator for the time on an H100 of a step that takes a second on an L40S."""
    catalogue, estimator = import_module("crusoe_estimator.gpu_database"), import_module("crusoe_estimator.estimator")
    own = estimator.CrusoeEstimator
    spec = catalogue.match_gpu("NVIDIA L40S")
    made = own._estimate_crusoe(object.__new__(own), "H100", catalogue.CRUSOE_GPUS["H100"], spec, 1.0, 1.0)
    return float(made.estimated_time_seconds)


def _green(group: str) -> float:
    """Ask green-love the same, by its published benchmarks in the step's precision."""
    benchmarks = import_module("green_love.benchmarks")
    origin, target = (benchmarks.detect_gpu_benchmark_key(f"NVIDIA {name}") for name in ("L40S", "H100-SXM"))
    precision = "fp16" if "fp16" in group else "fp32"
    return 1 / float(benchmarks.get_speedup_ratio(origin, target, precision))


def product_rows(folder: Path) -> Iterator[tuple[str, Errors]]:
    """Yield each table and GPU with the errors of both on its products."""
    for table, gpus in PRODUCTS.items():
        columns = ("gpu", "op", "dtype", "m", "n", "k", "latency_ms")
        rows: dict[str, list[tuple[tuple[int, int, int], float]]] = defaultdict(list)
        for row in read_csv(folder / table, MeasurementTableError, columns=columns):
            value = row.value
            if value["gpu"] in gpus and (value["op"], value["dtype"]) == ("linear", "bfloat16"):
                shape = (int(value["m"]), int(value["n"]), int(value["k"]))
                rows[value["gpu"]].append((shape, milliseconds_to_seconds(float(value["latency_ms"]))))
        for gpu, found in rows.items():
            yield f"{table}, {gpu}", _product_errors(gpu, found)


def _product_errors(gpu: str, rows: Sequence[tuple[tuple[int, int, int], float]]) -> Errors:
    on = find_gpu(gpu)

    def shapes(some: Iterable[tuple[tuple[int, int, int], float]]) -> list[OperationShape]:
        return [OperationShape("linear", "bfloat16", (1.0, *map(float, shape))) for shape, _ in some]

    bounds = roofline_seconds(batch_shapes(shapes(rows)), [on])[0]
    long = [row for row, bound in zip(rows, bounds, strict=True) if bound >= LONG_SECONDS]
    long = long[:: max(len(long) // SAMPLE, 1)]
    ours = predict_operation_times(shapes(long), [on], kernel_models((gpu,))).interval.middle[0]
    tool = import_module("nvMatmulHeuristics.nvMatmulHeuristics")
    asked = tool.NvMatmulHeuristicsInterfaceEx(
        gpu=tool.NvMatmulHeuristicsNvidiaGpu[NVIDIA_NAMES[gpu]],
        flags=tool.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
    )
    layout = tool.boolsToNvMatmulHeuristicsLayout(False, True)  # a linear layer multiplies by its transposed weight
    found: Errors = {"lightning-predict": [], "nvMatmulHeuristics": []}
    for (shape, measured), own in zip(long, ours, strict=True):
        kernels = asked.get(asked.makeNvMatmulHeuristicsProblem(*shape, layout), KERNELS, precision="TST")
        found["lightning-predict"].append(float(own) / measured - 1)
        found["nvMatmulHeuristics"].append(min(one["runtime"] for one in kernels) / measured - 1)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the errors of each tool by source; return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("validation", type=Path, help="folder of published runs")
    parser.add_argument("--tables", type=Path, required=True, help="folder of measured operations")
    parser.add_argument("--cache", type=Path, default=Path("recorded-steps"), help="recorded steps (%(default)s)")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    console = ResultConsole(width=WIDTH)
    found = {
        "LoRA of Qwen on an A100": qwen_errors(),
        "LoRA and QLoRA on a T4": t4_errors(options.validation),
        "A step on an H100 from one on an L40S": other_gpu_errors(options.validation, options.cache),
        **{f"Products of {name}": errors for name, errors in product_rows(options.tables)},
    }
    table = report_table("Newest tools", ("rows", "tool"), ("n", "median |error| %", "worst %", "bias %"))
    for rows, tools in found.items():
        for tool, errors in tools.items():
            table.add_row(rows, tool, *_cells(errors))
    console.print(table)
    if options.result is not None:
        write_result(console.result(RUNS["newest-peers"]), options.result)
    return 0


def _cells(errors: Sequence[float]) -> tuple[str, ...]:
    worst = max(errors, key=abs)
    sizes = [abs(error) for error in errors]
    return (
        str(len(errors)),
        f"{100 * statistics.median(sizes):.1f}",
        f"{100 * worst:+.0f}",
        f"{100 * statistics.median(errors):+.1f}",
    )


if __name__ == "__main__":
    sys.exit(main())
