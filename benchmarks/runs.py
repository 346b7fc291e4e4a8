"""The benchmark commands whose results the documentation shows: how each is run, and the constants fitted to its rows.

`make results` runs those whose data is there and writes `benchmarks/results/NAME.json`. Example::

    RUNS["lin"].command            # "python -m benchmarks.accuracy lin --data DATA"
    python -m benchmarks.runs --data DATA --only lin,guide
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from lightning_predict.reports.published_cases import SourceSplit

TIMEOUT_MINUTES: Final = 25  # Longest time of one command
TABLES: Final = "benchmarks.accuracy"  # Module that scores accuracy tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A command with a result."""

    name: str  # Name of the result
    module: str = TABLES  # Module that Python runs
    words: tuple[str, ...] = ()  # What follows the module. `DATA` stands for the folder of data.
    split: SourceSplit  # Whether constants were chosen on the scored rows
    fitted: str = ""  # Constants that were chosen on them
    needs: str = ""  # A file or folder of the data without which the command has nothing to do; empty if it needs none
    packages: tuple[str, ...] = ()  # Packages beyond the pinned ones without which it has nothing to do
    copies_allowed: bool = True  # False if a licence of the source does not allow copies of measured values
    is_quick: bool = True  # `make results` runs it: all such commands together take less than 40 minutes on two cores

    @property
    def command(self) -> str:
        """The command as the documentation shows it."""
        return " ".join(["python -m", self.module, *self.words])

    def arguments(self, data: Path, results: Path, cache: Path | None = None) -> tuple[str, ...]:
        """Words after `python`.

        Args:
            data: Folder of data.
            results: Folder to write the result to.
            cache: Folder that keeps the recorded steps of accuracy tables; None records each anew.
        """
        words = [str(data) if word == "DATA" else word for word in self.words]
        kept = () if cache is None or self.module != TABLES else ("--cache", str(cache))
        return ("-m", self.module, *words, *kept, "--result", str(results))

    def why_not(self, data: Path) -> str | None:
        """Return what the command lacks; None if it can run."""
        if self.needs and not (data / self.needs).exists():
            return f"{data / self.needs} is missing"
        missing = [name for name in self.packages if find_spec(name) is None]
        return f"{', '.join(missing)} is not installed" if missing else None


SOURCES: Final[Mapping[str, str]] = {  # Who measured, by the name of a table
    "tutorial": "Karpathy, Let's reproduce GPT-2 (2024)",
    "finetuning": "Qwen, README (2023)",
    "segmentation": "nnU-Net, expected epoch times (2024)",
    "diffusion": "NVIDIA NeMo, ControlNet (2024)",
    "compiled": "a book's ladder, nanoT5, airbench, torchtune (2023-25)",
    "guide": "Hugging Face, guide to one GPU (2022)",
    "backends": "Keras, benchmarks of backends (2024)",
    "transformers": "NeuSight (2024)",
    "benchmarks": "Lambda, deep-learning-benchmark (2020-24)",
    "timm": "timm, published results (2022-25)",
    "torchvision": "pytorch-gpu-benchmark (2019-20)",
    "milabench": "Mila, milabench (2025)",
    "lin": "Lin et al. (2022)",
    "dlrm": "NVIDIA, DeepLearningExamples (2020-21)",
    "gavel": "Gavel (2020), data loader included",
    "sia": "Sia (2023), data loader included",
    "nemo": "NVIDIA NeMo (2024-26)",
    "torchtitan": "torchtitan (2024-26)",
    "torchtitan-large": "torchtitan, large models (2024-26)",
    "nanogpt": "modded-nanogpt, speed runs (2024-26)",
    "nanotron": "nanotron (2025)",
    "simumax": "SimuMax, Megatron-LM on B200 (2026)",
    "automodel": "NVIDIA NeMo Automodel (2025-26)",
    "cards": "NVIDIA Megatron Bridge, model cards (2026)",
    "dgxc": "NVIDIA DGX Cloud, Llama 3.1 (2025)",
    "dgxc-more": "NVIDIA DGX Cloud, other models (2025)",
    "ibm": "IBM, FSDP of Llama 2 (2023-24)",
    "internevo": "InternEvo, InternLM 7B on 8 to 1,024 A100 (2023)",
    "kempner": "KempnerForge (2026)",
    "large-steps": "MPT and Megatron-LM (2021-23)",
    "several-cards": "Sia and milabench, several cards (2023-25)",
    "own-gpu": "own H200 (2026)",
    "adapters-t4": "fitcheck, LoRA on a T4 (2026)",
    "adapters-rtx-4080": "can-i-finetune-this, QLoRA on an RTX 4080 (2026)",
    "peft-methods": "PEFT, comparison of methods on an L40S (2026)",
    "fms": "IBM, fms-acceleration, LoRA on A100 (2024-25)",
    "memory": "GPUMemNet, timm's memory (2025)",
    "milabench-memory": "Mila, milabench's memory (2025)",
    "reported-cases": "public reports of single steps (2022-26)",
    "kernel-bench": "KernelBench, single modules (2025)",
}


def _table(name: str, split: SourceSplit, fitted: str = "", **fields: Any) -> Run:
    return Run(name=name, words=(name, "--data", "DATA"), split=split, fitted=fitted, **fields)


def _other(name: str, module: str, *words: str, split: SourceSplit = "held out", **fields: Any) -> Run:
    return Run(name=name, module=f"benchmarks.{module}", words=words, split=split, **fields)


_VALIDATION: Final = "validation"

RUNS: Final[Mapping[str, Run]] = {  # All runs, by name
    run.name: run
    for run in (
        _table("large-steps", "fitted", "differences of pace, the framework's host, overlap costs", needs=_VALIDATION),
        _table("gains", "fitted", "factors of some changes", needs=_VALIDATION, packages=("transformers",)),
        _table("tutorial", "held out"),
        _table("finetuning", "held out"),
        _table("segmentation", "held out"),
        _table("backends", "held out", packages=("transformers",)),
        _table("compiled", "held out", packages=("transformers",)),
        _table("guide", "held out", packages=("transformers",)),
        _table("diffusion", "fitted", "padding of attention heads"),
        _table("own-gpu", "held out", "rate of large products, on products of the same machine; no step",
               packages=("timm", "torchvision", "transformers")),
        _table("transformers", "fitted", "constants of several operations", needs=_VALIDATION),
        _table("benchmarks", "fitted", "constants of several operations and of hosts", needs=_VALIDATION,
               copies_allowed=False),
        _table("timm", "fitted", "batch norms in 16 bits on GDDR memory", needs=_VALIDATION, packages=("timm",)),
        _table("torchvision", "fitted", "VGG in 16 bits", needs=_VALIDATION, packages=("torchvision",),
               copies_allowed=False, is_quick=False),
        _table("milabench", "fitted", "constants of six operations", needs=_VALIDATION),
        _table("lin", "fitted", "width of the interval", needs=_VALIDATION),
        _table("gavel", "fitted", "the rate of the K80's convolutions", needs=_VALIDATION),
        _table("sia", "held out", needs=_VALIDATION, copies_allowed=False),
        _table("kernel-bench", "fitted", "constants of norms and volumes", needs=_VALIDATION),
        _table("dlrm", "held out", needs=_VALIDATION),
        _table("torchtitan", "fitted", "overlap and casts in float8", needs=_VALIDATION),
        _table("nanogpt", "held out", needs=_VALIDATION),
        _table("nanotron", "fitted", "overlap", needs=_VALIDATION),
        _table("nemo", "fitted", "overlap, casts and launches in float8", needs=_VALIDATION),
        _table("simumax", "held out", "rate of large products, on operators of the same machine; no step",
               needs=_VALIDATION),
        _table("automodel", "held out", needs=_VALIDATION),
        _table("cards", "held out", needs=_VALIDATION),
        _table("dgxc", "held out"),
        _table("dgxc-more", "held out"),
        _table("torchtitan-large", "held out"),
        _table("ibm", "held out"),
        _table("internevo", "held out"),
        _table("kempner", "held out"),
        _table("several-cards", "fitted", "shares of a link's rate by kind of machine", needs=_VALIDATION,
               copies_allowed=False),
        _table("memory", "held out", "form of the interval", needs=_VALIDATION, copies_allowed=False),
        _table("milabench-memory", "fitted", "form of the interval", needs=_VALIDATION),
        _table("adapters-t4", "fitted", "the recipe of runs in 4 bits, read off their peaks of memory",
               needs=_VALIDATION, packages=("transformers", "peft")),
        _table("adapters-rtx-4080", "held out", needs=_VALIDATION, packages=("transformers", "peft")),
        _table("peft-methods", "held out", needs=_VALIDATION, packages=("transformers", "peft", "diffusers")),
        _table("fms", "held out", needs=_VALIDATION, packages=("transformers", "peft")),
        _table("reported-cases", "fitted", "width of memory's intervals on two of the sources; no other number",
               needs="cases", packages=("transformers", "timm", "diffusers", "peft"), is_quick=False),
        _other("regressions", "accuracy.regressions", "--data", "DATA", copies_allowed=False),
        _other("rest-of-run", "accuracy.rest_of_run"),
        _other("fit-verdicts", "accuracy.fit_verdicts", split="fitted", fitted="the width of memory's intervals"),
        _other("operator-weights", "training", "evaluate", "DATA", is_quick=False),
        _other("ablation", "accuracy.ablation", "--data", "DATA", split="fitted", is_quick=False,
               fitted="the constants of kind `fitted` in `constants.toml`"),
        _other("planning", "planning", is_quick=False),
        _other("optimum", "planning.optimum", is_quick=False),
        _other("promises", "planning.promises", is_quick=False),
        *(
            _other(f"speed-{name}", f"speed.{name}_speed", is_quick=False)
            for name in ("prediction", "recording", "planning")
        ),
        _other("peers", "accuracy.peers", "--data", "DATA", "--peers", "PYTHON", needs=_VALIDATION, is_quick=False,
               split="fitted", fitted="the recipe of the T4's runs in 4 bits"),
        _other("speed-import", "speed.import_time", is_quick=False),
        _other("speed-callbacks", "speed.callback_overhead", is_quick=False),
    )
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the commands that can run here; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of data, with validation and cases")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), help="(default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=None, help="folder that keeps recorded steps (default: none)")
    parser.add_argument("--jobs", type=int, default=2, help="commands at a time (default: %(default)s)")
    parser.add_argument("--only", default="", help="names, separated by commas (default: all that are quick)")
    options = parser.parse_args(arguments)
    names = [name for name in options.only.split(",") if name] or [name for name in RUNS if RUNS[name].is_quick]
    if unknown := set(names) - set(RUNS):
        parser.error(f"no run is named {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    with ThreadPoolExecutor(options.jobs) as pool:
        codes = list(pool.map(lambda name: _run(RUNS[name], options.data, options.results, options.cache), names))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"all: {(used.ru_utime + used.ru_stime) / 60:.1f} minutes of CPU time", flush=True)
    return int(any(codes))


def _run(run: Run, data: Path, results: Path, cache: Path | None) -> int:
    """Run a command if it can run here, and print how it ended; return its exit code."""
    lacks = run.why_not(data)
    if lacks is not None:
        print(f"{run.name}: skipped, {lacks}", flush=True)
        return 0
    start = time.monotonic()
    words = [sys.executable, *run.arguments(data, results, cache)]
    try:
        code = subprocess.run(words, timeout=60 * TIMEOUT_MINUTES, check=False).returncode
    except subprocess.TimeoutExpired:
        code = 124
    print(f"{run.name}: exit code {code} after {time.monotonic() - start:.0f} s", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
