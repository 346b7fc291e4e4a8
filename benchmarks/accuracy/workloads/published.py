"""The published float32 transformers, recorded as they were timed.

The published training times leave out the loss itself, which a recorded step has. Example::

    trace = published_trace("GPT2-Large", mode="inference", length=1024, batch=4)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Literal

import torch
from torch import nn

import lightning_predict as lp
from benchmarks.accuracy.workloads.bert import BERT_LARGE, Bert
from benchmarks.accuracy.workloads.gpt import GPT2_LARGE, GPT3_2_7B, GPT3_XL, Gpt
from benchmarks.accuracy.workloads.opt import OPT_1_3B, Opt
from benchmarks.accuracy.workloads.recorded import tf32
from benchmarks.accuracy.workloads.switch import SWITCH_XL_4, Switch

Mode = Literal["inference", "training"]

PUBLISHED_MODELS: Final[Mapping[str, Callable[[Mode], nn.Module]]] = {  # Models by the table's name
    # BERT's inference used a sequence classifier, its training the pre-training model.
    "BERT-Large": lambda mode: Bert(BERT_LARGE, head="classification" if mode == "inference" else "pretraining"),
    "GPT2-Large": lambda _mode: Gpt(GPT2_LARGE),
    "GPT3-XL": lambda _mode: Gpt(GPT3_XL),
    "GPT3-2.7B": lambda _mode: Gpt(GPT3_2_7B),
    "OPT-1.3B": lambda _mode: Opt(OPT_1_3B),
    "SwitchTransformer-XL-4": lambda _mode: Switch(SWITCH_XL_4),
}


@lru_cache(maxsize=4)
def published_trace(model: str, *, mode: Mode, length: int, batch: int) -> lp.Trace:
    """Record one iteration of a published model on the meta device, in float32 without TF32.

    Args:
        model: A key of `PUBLISHED_MODELS`.
        mode: `inference`: a forward pass without gradients. `training`: forward pass with dropout, loss, and a backward
            pass that adds to the gradients of the step before.
        length: Tokens of a sequence.
        batch: Sequences.
    """
    with torch.device("meta"):
        module = PUBLISHED_MODELS[model](mode).train(mode == "training")
        tokens = torch.ones(batch, length, dtype=torch.int64)

    def infer() -> None:
        with torch.no_grad():
            module(tokens)

    def train() -> None:
        logits = module(tokens)
        nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), tokens.view(-1)).backward()

    with tf32(products=False, convolutions=False):
        return lp.capture(infer if mode == "inference" else train, samples_per_step=batch)
