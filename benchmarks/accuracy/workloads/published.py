"""The published float32 transformers, recorded as they were timed.

One inference is a forward pass without gradients. One training iteration is a forward pass with dropout and a backward
pass that adds to gradients which are there already; the loss between them was not timed, its gradient was. Example::

    trace = published_trace("GPT2-Large", mode="inference", length=1024, batch=4)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal

import torch
from torch import nn

from benchmarks.accuracy.workloads.bert import BERT_LARGE, Bert
from benchmarks.accuracy.workloads.gpt import GPT2_LARGE, GPT3_2_7B, GPT3_XL, Gpt
from benchmarks.accuracy.workloads.opt import OPT_1_3B, Opt
from benchmarks.accuracy.workloads.recorded import without_pauses
from benchmarks.accuracy.workloads.switch import SWITCH_XL_4, Switch
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Flags, Trace

Mode = Literal["inference", "training"]

PUBLISHED_MODELS: Final[Mapping[str, Callable[[Mode], nn.Module]]] = {
    # BERT's inference used a sequence classifier, its training the pre-training model.
    "BERT-Large": lambda mode: Bert(BERT_LARGE, head="classification" if mode == "inference" else "pretraining"),
    "GPT2-Large": lambda _mode: Gpt(GPT2_LARGE),
    "GPT3-XL": lambda _mode: Gpt(GPT3_XL),
    "GPT3-2.7B": lambda _mode: Gpt(GPT3_2_7B),
    "OPT-1.3B": lambda _mode: Opt(OPT_1_3B),
    "SwitchTransformer-XL-4": lambda _mode: Switch(SWITCH_XL_4),
}
"""Models by the table's name."""

NO_TF32: Final = Flags(matmul_tf32=False, cudnn_tf32=False)


@lru_cache(maxsize=4)
def published_trace(model: str, *, mode: Mode, length: int, batch: int) -> Trace:
    """One iteration of a published model on the meta device, in float32 with TF32 off.

    Raises:
        InvalidArgumentError: A model that the table does not have.
    """
    build = PUBLISHED_MODELS.get(model)
    if build is None:
        raise InvalidArgumentError(f"Model {model!r} is not known; choose one of {', '.join(PUBLISHED_MODELS)}.")
    with torch.device("meta"):
        module = build(mode).train(mode == "training")
        tokens = torch.ones(batch, length, dtype=torch.int64)
    trace = forward_trace(module, tokens) if mode == "inference" else training_trace(module, tokens)
    return replace(trace, flags=NO_TF32, samples=batch)


def forward_trace(module: nn.Module, tokens: torch.Tensor) -> Trace:
    """A forward pass without gradients."""
    session = CaptureSession(device=tokens.device, model=module)
    with torch.no_grad():
        module(tokens)  # the first call imports, which would count as Python work of the step
        session.start()
        module(tokens)
        session.stop()
    return without_pauses(session.trace())


def training_trace(module: nn.Module, tokens: torch.Tensor) -> Trace:
    """A forward and a backward pass without the loss between them; the pass before it has left gradients to add to."""
    session = CaptureSession(device=tokens.device, model=module)
    for is_recorded in (False, True):
        if is_recorded:
            session.start()
        logits = module(tokens)
        if is_recorded:
            session.stop()
        loss = nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), tokens.view(-1))
        if is_recorded:
            session.start()
        loss.backward()
        if is_recorded:
            session.stop()
    return without_pauses(session.trace())
