"""The benchmark commands whose results the documentation shows: how each is run, and the constants fitted to its rows.

`make results` runs those whose data is there and writes `benchmarks/results/NAME.json`. Example::

    RUNS["lin"].command            # "python -m benchmarks.accuracy validation --of lin"
    python -m benchmarks.runs --data DATA --only lin,guide
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lightning_predict.reports.published_cases import SourceSplit

FOLDERS: Final = ("validation", "measurements", "traces", "cases")
"""Folders of published measurements and recordings; the modules say where each comes from."""

TIMEOUT_MINUTES: Final = 25
"""Longest time of one command."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A command with a result.

    Attributes:
        name: Name of the result.
        module: Module that Python runs.
        words: What follows the module. `validation`, `measurements`, `traces` and `cases` stand for folders of data,
            `STEPS` for the folder of recorded steps.
        split: Whether constants were chosen on the scored rows.
        fitted: Constants that were chosen on them.
        copies_allowed: False if a licence of the source does not allow copies of measured values.
        is_quick: It takes less than about 15 minutes on two cores, with the pinned packages only.
    """

    name: str
    module: str = "benchmarks.accuracy"
    words: tuple[str, ...] = ()
    split: SourceSplit
    fitted: str = ""
    copies_allowed: bool = True
    is_quick: bool = True

    @property
    def command(self) -> str:
        """The command as the documentation shows it."""
        return " ".join(["python -m", self.module, *self.words])

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of data that the command reads."""
        return tuple(word for word in self.words if word in FOLDERS)

    def arguments(self, data: Path, results: Path, cache: Path) -> tuple[str, ...]:
        """Words after `python`.

        Args:
            data: Folder that holds `FOLDERS`.
            results: Folder to write the result to.
            cache: Folder of recorded steps.
        """
        paths = {"STEPS": cache} | {folder: data / folder for folder in FOLDERS}
        words = [str(paths.get(word, word)) for word in self.words]
        return ("-m", self.module, *words, "--result", str(results))


SOURCES: Final[Mapping[str, str]] = {
    "tutorial": "Karpathy, Let's reproduce GPT-2 (2024)",
    "finetuning": "Qwen, README (2023)",
    "segmentation": "nnU-Net, expected epoch times (2024)",
    "diffusion": "NVIDIA NeMo, ControlNet (2024)",
    "guide": "Hugging Face, guide to one GPU (2022)",
    "backends": "Keras, benchmarks of backends (2024)",
    "transformers": "NeuSight (2024)",
    "benchmarks": "Lambda, deep-learning-benchmark (2020-24)",
    "timm": "timm, published results (2022-25)",
    "torchvision": "pytorch-gpu-benchmark (2019-20)",
    "milabench": "Mila, milabench (2025)",
    "Lin et al.": "Lin et al. (2022)",
    "lin": "Lin et al. (2022)",
    "dlrm": "NVIDIA, DeepLearningExamples (2020-21)",
    "gavel": "Gavel (2020), data loader included",
    "sia": "Sia (2023), data loader included",
    "nemo": "NVIDIA NeMo (2024-26)",
    "torchtitan": "torchtitan (2024-26)",
    "torchtitan-large": "torchtitan, large models (2024-26)",
    "nanotron": "nanotron (2025)",
    "simumax": "SimuMax, Megatron-LM on B200 (2026)",
    "automodel": "NVIDIA NeMo Automodel (2025-26)",
    "cards": "NVIDIA Megatron Bridge, model cards (2026)",
    "dgxc": "NVIDIA DGX Cloud, Llama 3.1 (2025)",
    "dgxc-more": "NVIDIA DGX Cloud, other models (2025)",
    "ibm": "IBM, FSDP of Llama 2 (2023-24)",
    "kempner": "KempnerForge (2026)",
}
"""Who measured, by the name of a run or of a table."""


def _part(
    name: str,
    split: SourceSplit,
    fitted: str = "",
    *words: str,
    data: str = "validation",
    copies_allowed: bool = True,
    is_quick: bool = True,
) -> Run:
    return Run(
        name=name,
        words=(data, "--of", name, *words),
        split=split,
        fitted=fitted,
        copies_allowed=copies_allowed,
        is_quick=is_quick,
    )


def _page(name: str, fitted: str = "", *, split: SourceSplit = "held out") -> Run:
    return Run(name=name, module=f"benchmarks.accuracy.{name}", split=split, fitted=fitted)


_CACHE: Final = ("--cache", "STEPS")

RUNS: Final[Mapping[str, Run]] = {
    run.name: run
    for run in (
        _page("tutorial"),
        _page("finetuning"),
        _page("segmentation"),
        _page("backends"),
        _page("own_gpu", "cycles of norms, pooling, embeddings, fused Adam and sums of columns; no step"),
        _page("guide", "memory that torch before 1.13 loads at its start; no time"),
        _page("diffusion", "padding of attention heads", split="fitted"),
        _part("iterations", "fitted", "constants of several operations and of hosts", copies_allowed=False),
        _part("steps", "fitted", "constants of norms, memory, convolutions and releases", *_CACHE, is_quick=False),
        _part("milabench", "fitted", "constants of six operations", *_CACHE),
        _part("lin", "fitted", "width of the interval", *_CACHE),
        _part("gavel", "fitted", "the rate of the K80's convolutions", *_CACHE),
        _part("sia", "held out", "", *_CACHE, copies_allowed=False),
        _part("timm", "fitted", "batch norms in 16 bits on GDDR memory", "--sample", "40", *_CACHE, is_quick=False),
        _part(
            "torchvision", "fitted", "VGG in 16 bits", *_CACHE, copies_allowed=False, is_quick=False
        ),
        _part("operators", "fitted", "factors of two norms and of volumes"),
        _part("compiled", "fitted", "factors of two norms and of volumes"),
        _part("products", "fitted", "scaling of bfloat16 products", data="measurements"),
        _part("recordings", "fitted", "thresholds of the host's model, two figures of wave scaling", data="traces"),
        _part("correlations", "fitted", "correlation of errors within a family"),
        _part("regressions", "held out"),
        _part("pairs", "fitted", "exponents of measured scaling", data="measurements"),
        _part("choices", "held out", copies_allowed=False),
        _part("hosts", "fitted", "width of the host's interval", *_CACHE),
        _part("gains", "fitted", "factors of some changes", *_CACHE),
        Run(name="what-ifs", module="benchmarks.accuracy.what_ifs", words=("validation",), split="held out"),
        _part("unseen", "held out", "", "--tables", "measurements", *_CACHE, is_quick=False),
        _part("seeds", "fitted", "some constants of training benchmarks", copies_allowed=False),
        _part("dlrm", "held out", is_quick=False),
        _part("plans", "held out", "", *_CACHE, is_quick=False),
        _part("memory", "fitted", "constants on other families, the form of the interval on these", *_CACHE,
              copies_allowed=False),
        _part("layout-memory", "fitted", "what a fused loss and compiled code keep; no number", *_CACHE),
        _part("memory-peers", "fitted", "constants on some of the families", "--sample", "14", copies_allowed=False),
        _part("many-gpus", "fitted", "differences of pace, the framework's host, overlap costs", *_CACHE),
        _part("collectives", "fitted", "shares of a link's rate by kind of machine", copies_allowed=False),
        _part("nemo", "fitted", "overlap, casts and launches in float8", *_CACHE),
        _part("torchtitan", "fitted", "overlap and casts in float8", *_CACHE),
        _part("nanotron", "fitted", "overlap", *_CACHE),
        _part("simumax", "held out", "rate of large products, on operators of the same machine; no step", *_CACHE),
        _part("automodel", "held out", "", *_CACHE),
        _part("cards", "held out", "", *_CACHE),
        _part("dgxc", "held out", "", *_CACHE),
        _part("dgxc-more", "held out", "", *_CACHE),
        _part("torchtitan-large", "held out", "", *_CACHE),
        _part("ibm", "held out", "", *_CACHE),
        _part("kempner", "held out", "", *_CACHE),
        Run(
            name="reported-cases",
            module="benchmarks.accuracy.reported_cases",
            words=("cases",),
            split="fitted",
            fitted="width of memory's intervals on two of the sources; no other number",
            is_quick=False,
        ),
        Run(
            name="measured-layers",
            module="benchmarks.accuracy.measured_layers",
            words=("traces",),
            split="held out",
        ),
        Run(
            name="half-precision",
            module="benchmarks.accuracy.half_precision",
            words=("validation", *_CACHE),
            split="fitted",
            fitted="the kernels of batch norms with float16 weights, on these GPUs of NVIDIA",
        ),
        Run(
            name="sustained",
            module="benchmarks.accuracy.sustained",
            words=("measurements",),
            split="fitted",
            fitted="rate of the B200 on 20 forward products; no other row",
        ),
        Run(name="machine-rates", module="benchmarks.accuracy.machine_rates", words=("traces",), split="held out"),
        Run(
            name="fit-verdicts",
            module="benchmarks.accuracy.fit_verdicts",
            words=("validation", *_CACHE, "--sample", "40"),
            split="held out",
            copies_allowed=False,
            is_quick=False,
        ),
        Run(
            name="qlora",
            module="benchmarks.accuracy.qlora",
            words=("validation",),
            split="fitted",
            fitted="three settings of their script; no number",
            is_quick=False,
        ),
        Run(
            name="zero-peers",
            module="benchmarks.peers.zero_memory",
            words=("validation", *_CACHE),
            split="fitted",
            fitted="what recomputation keeps in our prediction; no number",
            is_quick=False,
        ),
        Run(
            name="newest-peers",
            module="benchmarks.peers.newest",
            words=("validation", "--tables", "measurements", *_CACHE),
            split="fitted",
            fitted="our networks, on the table matmul.csv.gz; fitcheck-llm, on the rows of the T4",
            is_quick=False,
        ),
        Run(
            name="operator-weights",
            module="benchmarks.training",
            words=("evaluate", "measurements"),
            split="held out",
            is_quick=False,
        ),
        Run(
            name="ablation",
            module="benchmarks.accuracy.ablation",
            words=("validation", *_CACHE),
            split="fitted",
            fitted="the constants of kind `fitted` in `constants.toml`",
            is_quick=False,
        ),
        Run(name="rest-of-run", module="benchmarks.accuracy.rest_of_run", split="held out"),
        Run(name="planning", module="benchmarks.planning", split="held out", is_quick=False),
        Run(name="optimum", module="benchmarks.planning.optimum", split="held out", is_quick=False),
        Run(name="promises", module="benchmarks.planning.promises", split="held out", is_quick=False),
        Run(
            name="promises-cheaper",
            module="benchmarks.planning.promises",
            words=("--cheaper", "--problems", "40"),
            split="held out",
            is_quick=False,
        ),
        *(
            Run(name=f"speed-{name}", module=f"benchmarks.speed.{name}_speed", split="held out", is_quick=False)
            for name in ("prediction", "recording", "planning")
        ),
        Run(name="speed-import", module="benchmarks.speed.import_time", split="held out", is_quick=False),
        Run(name="speed-callbacks", module="benchmarks.speed.callback_overhead", split="held out", is_quick=False),
    )
}  # fmt: skip
"""All runs, by name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the commands whose data is there; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with validation, measurements, traces and cases"
    )
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), help="(default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=Path("recorded-steps"), help="recorded steps (%(default)s)")
    parser.add_argument("--only", default="", help="names, separated by commas (default: all that are quick)")
    options = parser.parse_args(arguments)
    names = [name for name in options.only.split(",") if name] or [name for name in RUNS if RUNS[name].is_quick]
    if unknown := set(names) - set(RUNS):
        parser.error(f"no run is named {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    failed = []
    for name in names:
        run = RUNS[name]
        missing = [folder for folder in run.folders if not (options.data / folder).is_dir()]
        if missing:
            print(f"{name}: skipped, {options.data} has no folder {', '.join(missing)}")
            continue
        words = run.arguments(options.data, options.results, options.cache)
        try:
            code = subprocess.run([sys.executable, *words], timeout=60 * TIMEOUT_MINUTES, check=False).returncode
        except subprocess.TimeoutExpired:
            code = 124
        if code:
            failed.append(name)
            print(f"{name}: exit code {code}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
