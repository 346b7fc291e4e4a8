"""All accuracy tables: the reader of each. `benchmarks/runs.py` says who measured, and what was chosen on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.accuracy.case import Reader
from benchmarks.accuracy.readers import (
    adapters,
    backends,
    diffusion,
    dlrm,
    finetuning,
    gains,
    guide,
    kernel_bench,
    machines,
    memory,
    own_gpu,
    pages,
    pretraining,
    reported,
    segmentation,
    several_cards,
    training,
    transformers,
    tutorial,
    vision,
)

READERS: Final[Mapping[str, Reader]] = {
    "tutorial": tutorial.tutorial_cases,
    "finetuning": finetuning.finetuning_cases,
    "segmentation": segmentation.segmentation_cases,
    "backends": backends.backend_cases,
    "guide": guide.guide_cases,
    "diffusion": diffusion.diffusion_cases,
    "transformers": transformers.transformer_cases,
    "benchmarks": training.training_cases,
    "timm": vision.timm_cases,
    "torchvision": vision.torchvision_cases,
    "milabench": machines.milabench_cases,
    "lin": machines.lin_cases,
    "gavel": machines.gavel_cases,
    "sia": machines.sia_cases,
    "kernel-bench": kernel_bench.kernel_bench_cases,
    "torchtitan": pretraining.torchtitan_cases,
    "nanotron": pretraining.nanotron_cases,
    "nemo": pretraining.nemo_cases,
    "simumax": pretraining.simumax_cases,
    "automodel": pretraining.automodel_cases,
    "cards": pretraining.card_cases,
    "dgxc": pages.dgxc_cases,
    "dgxc-more": pages.more_dgxc_cases,
    "torchtitan-large": pages.large_titan_cases,
    "ibm": pages.ibm_cases,
    "kempner": pages.kempner_cases,
    "large-steps": pages.large_step_cases,
    "several-cards": several_cards.several_card_cases,
    "dlrm": dlrm.dlrm_cases,
    "memory": memory.timm_memory_cases,
    "milabench-memory": memory.milabench_memory_cases,
    "adapters-t4": adapters.t4_cases,
    "adapters-rtx-4080": adapters.rtx_4080_cases,
    "own-gpu": own_gpu.own_cases,
    "reported-cases": reported.reported_cases,
    "gains": gains.gain_cases,
}
