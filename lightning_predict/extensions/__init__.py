"""Less common parts of the package. The core asks for a registered name, whose module is loaded on first use.

- `parallel` shares a model over GPUs (tensor, pipeline, context and expert parallelism) and searches layouts.
- `embeddings` shards the embedding tables of recommendation models.
- `advice` predicts how much changes to the training settings would gain.
- `planning` schedules jobs on machines to rent.
- `regression` predicts from past runs.
- `own_weights` measures a GPU and trains the weights of the prediction networks on the measurements.
- `named_models` records the step of a model by name.
- `notebook` shows a recorded step and one prediction as HTML.
- `quantization` has layers in 4 bits and optimizers in 8 bits for the meta device.

Example::

    best_layouts = extension("best_layouts")
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

REGISTERED: Final[Mapping[str, str]] = {
    # names that `lightning_predict` exports at the top level
    "Advice": "advice.advice_text",
    "advise": "advice.advice",
    "best_layouts": "parallel.layout_search",
    "step_of": "named_models.step",
    # tables in notebooks
    "prediction_html": "notebook",
    "trace_html": "notebook",
    # strategies
    "DividedStep": "parallel.divided_step",
    "StageStorages": "parallel.stage_memory",
    "strategy_of_foreign": "parallel.external_configs",
    "ShardedEmbeddings": "embeddings.whole_step",
    "skew_of": "embeddings.tables",
    "with_skew": "embeddings.tables",
    # 4-bit layers and 8-bit optimizers
    "patches_of_bitsandbytes": "quantization.installed",
    # suggested changes to a training run
    "advice_for": "advice.advice",
    "carry_measurements": "advice.measured",
    "batch_size_lines": "advice.what_if",
    "batch_sizes_that_fit": "advice.what_if",
    "layer_table": "advice.layers",
    "memory_report": "advice.memory_savings",
    "short_lines": "advice.advice_text",
    "why_no_other_batch": "advice.batch_size",
    "with_samples": "advice.batch_size",
}
"""Names that the core may ask for, each with the module that defines it."""

COMMANDS: Final[Mapping[str, str]] = {
    "advise": "advice.commands",
    "regress": "regression.commands",
    "shard": "embeddings.commands",
    "parallel": "parallel.commands",
    "curve": "parallel.commands",
    "plan": "planning.commands",
    "simulate": "planning.commands",
    "measure": "own_weights.commands",
    "first-hour": "own_weights.commands",
    "train": "own_weights.commands",
}
"""Commands of the command line, each with the module that defines its function."""


def extension(name: str) -> Any:
    """Return the object that an extension registered under a name; the first call imports its module."""
    return getattr(import_module(f"{__name__}.{REGISTERED[name]}"), name)


def command(name: str) -> Any:
    """Return the function of a command that an extension registered."""
    return getattr(import_module(f"{__name__}.{COMMANDS[name]}"), name.replace("-", "_"))
