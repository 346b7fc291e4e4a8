"""Twenty fine-tuning runs, predicted by this package and by estimators that answer from a model's name.

The peers (fitcheck-llm 0.3.1, ftuneai 0.4.1, canifinetune 0.4.1, soup-cli 0.77.0) run in an interpreter of their own,
without a network: each gets the model's dimensions that this package ships (soup-cli knows its name alone). Memory is
compared with what was measured: the process on a T4 and an A100, reserved memory on an RTX 4080. fitcheck's constants
were fitted on the five runs of the T4, canifinetune's on those of the RTX 4080; of ours, the recipe of the T4's runs in
4 bits was read off them. Example::

    python -m venv peers
    peers/bin/pip install fitcheck-llm==0.3.1 ftuneai==0.4.1 canifinetune==0.4.1 soup-cli==0.77.0
    python -m benchmarks.accuracy.peers --data ../shared --peers peers/bin/python
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from rich.table import Table

import lightning_predict as lp
from benchmarks.accuracy.case import Case
from benchmarks.accuracy.readers.adapters import TARGETS, rtx_4080_cases, t4_cases
from benchmarks.accuracy.readers.files import rows
from benchmarks.accuracy.readers.finetuning import LENGTHS, MODELS, RANK, VOCABULARY, finetuning_cases
from benchmarks.result_files import ResultConsole, write_run

EVERY_LINEAR: Final = f"{TARGETS},gate_proj,up_proj,down_proj"
OURS: Final = "lightning-predict"
SHIPPED: Final = "record/named_models/models.json"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A measured run, LoRA or QLoRA with checkpointed blocks, as a peer is told of it."""

    model: str
    config: Mapping[str, Any]
    gpu: str
    batch: int
    length: int
    rank: int
    targets: tuple[str, ...]
    quantization: str | None
    optimizer: str


def runs(data: Path) -> Iterator[tuple[Run, Case, Case]]:
    """Yield each run with the cases of its time and of its memory."""
    for row, cases in zip(
        rows(data / "validation" / "fitcheck_t4.csv"), _pairs(t4_cases(data), "process"), strict=True
    ):
        run = Run(
            model=row["model"],
            config=_configuration(row["model"]),
            gpu="T4",
            batch=int(row["batch"]),
            length=int(row["seq"]),
            rank=int(row["lora_r"]),
            targets=tuple(TARGETS.split(",")),
            quantization=None if row["quantization"] == "none" else "nf4",
            optimizer="adamw",
        )
        yield run, *cases
    told = [
        row for row in rows(data / "validation" / "canifinetune_rtx4080.csv") if row["model_id"].startswith("Qwen/")
    ]
    for row, cases in zip(told, _pairs(rtx_4080_cases(data), "reserved"), strict=True):
        run = Run(
            model=row["model_id"],
            config=_configuration(row["model_id"]),
            gpu="RTX-4080",
            batch=int(row["micro_batch_size"]),
            length=int(row["seq_len"]),
            rank=int(row["lora_rank"]),
            targets=tuple(TARGETS.split(",")),
            quantization="nf4-double",
            optimizer=row["optimizer"],
        )
        yield run, *cases
    lengths = [(model, length) for model in MODELS for length in LENGTHS]
    for (model, length), cases in zip(lengths, _pairs(finetuning_cases(data), "process"), strict=True):
        if length not in SOME_LENGTHS[model.name]:
            continue
        config = {
            "model_type": "llama",
            "hidden_size": model.width,
            "num_hidden_layers": model.layers,
            "num_attention_heads": model.heads,
            "num_key_value_heads": model.heads,
            "intermediate_size": model.inner,
            "vocab_size": VOCABULARY,
            "tie_word_embeddings": False,
        }
        run = Run(
            model=f"Qwen-{model.name}",
            config=config,
            gpu="A100-SXM-80GB",
            batch=1,
            length=length,
            rank=RANK,
            targets=tuple(EVERY_LINEAR.split(",")),
            quantization=None,
            optimizer="adamw",
        )
        yield run, *cases


def _configuration(name: str) -> Mapping[str, Any]:
    """Return the configuration that ships with the package."""
    rows = json.loads((files("lightning_predict") / SHIPPED).read_text(encoding="utf-8"))["hf"]
    row = next(row for own, row in rows.items() if name in (own, *row.get("also", ())))
    return {"tie_word_embeddings": True, **row["config"]}


SOME_LENGTHS: Final = {"1.8B": (1024, 8192), "7B": (256, 1024, 4096, 8192), "14B": (1024, 8192)}
"""Lengths of Qwen's runs, by model: twenty runs in all."""


def _pairs(cases: Iterator[Case], quantity: str) -> Iterator[tuple[Case, Case]]:
    """Yield the case of each time with that of the memory of the same run."""
    when: Case | None = None
    for case in cases:
        if case.quantity == "time":
            when = case
        elif case.quantity == quantity and when is not None:
            yield when, case


def _ours(when: Case, memory: Case) -> dict[str, float]:
    """Return what this package predicts, with the seconds that it took, recording included."""
    began = time.perf_counter()
    trace = when.step.record()
    prediction = lp.predict(trace, [when.gpu], iterations=1000, strategy=when.strategy, release=when.release)[when.gpu]
    size = prediction.memory.process if memory.quantity == "process" else prediction.memory.reserved
    if size is None:
        raise RuntimeError(f"{when.model} on the {when.gpu} has no memory; record it on the meta device.")
    took = time.perf_counter() - began
    return {"seconds": prediction.iteration_seconds, "memory": size.middle, "took": took}


def _steps_of_peer(when: Case) -> float:
    """Return the number of a peer's steps in a measured one: eight sequences one by one, in Qwen's runs."""
    return 8.0 if when.strategy.endswith("accumulate=8") else 1.0


def main() -> None:
    """Score all tools on the same runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peers", type=Path, required=True, help="Python of the peers' environment")
    parser.add_argument("--result", type=Path, help="folder of the result's file")
    chosen = parser.parse_args()
    every = list(runs(chosen.data))
    asked = json.dumps([asdict(run) for run, _, _ in every])
    script = str(Path(__file__).with_name("peer_answers.py"))
    done = subprocess.run([str(chosen.peers), script], input=asked, capture_output=True, text=True, check=True)
    errors: dict[str, dict[str, list[float]]] = {}
    refused: dict[str, int] = {}
    for (run, when, memory), answers in zip(every, json.loads(done.stdout), strict=True):
        told = {OURS: _ours(when, memory), **answers}
        for tool, answer in told.items():
            own = errors.setdefault(tool, {"memory": [], "seconds": [], "a100": [], "took": []})
            own["took"].append(answer["took"])
            refused[tool] = refused.get(tool, 0) + ("refused" in answer)
            times = 1.0 if tool == OURS else _steps_of_peer(when)
            if "memory" in answer:
                own["memory"].append(answer["memory"] / memory.measured - 1)
            if "seconds" in answer:
                answer["seconds"] *= times
                own["seconds"].append(answer["seconds"] / when.measured - 1)
                own["a100"] += own["seconds"][-1:] if run.gpu.startswith("A100") else []
        words = ", ".join(f"{tool} {_said(reply, when, memory)}" for tool, reply in told.items())
        print(f"{run.model} {run.length} on {run.gpu}: {words}")
    console = ResultConsole(width=120)
    table = Table(title="fine-tuning runs")
    for heading in ("tool", "runs", "refused", *COLUMNS):
        table.add_column(heading)
    for tool, own in errors.items():
        table.add_row(tool, str(len(every)), str(refused[tool]), *_summary(own))
    console.print(table)
    write_run(console, "peers", chosen.result)


COLUMNS: Final = (
    "memory, median error %",
    "memory, bias %",
    "time, median error %",
    "time, bias %",
    "time on the A100, median error %",
    "time on the A100, bias %",
    "a case, s",
)


def _said(answer: Mapping[str, float], when: Case, memory: Case) -> str:
    size = f"{100 * (answer['memory'] / memory.measured - 1):+.0f} %" if "memory" in answer else "refused"
    return size + (f" / {answer['seconds'] / when.measured:.2f}x" if "seconds" in answer else "")


def _summary(own: Mapping[str, list[float]]) -> list[str]:
    def of(values: list[float]) -> list[str]:
        if not values:
            return ["", ""]
        return [f"{100 * statistics.median(map(abs, values)):.1f}", f"{100 * statistics.median(values):+.1f}"]

    return [*of(own["memory"]), *of(own["seconds"]), *of(own["a100"]), f"{statistics.median(own['took']):.3f}"]


if __name__ == "__main__":
    main()
