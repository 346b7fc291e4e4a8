"""milabench's Reformer, recorded on the meta device as its loop runs it.

The loop leaves autocast before `backward`, so that the layers, which are reversible, are computed again in float32;
each keeps the graph of that until the next one is. transformers is the user's to install. Example::

    trace = reformer_trace(16)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import torch

import lightning_predict as lp

TOKENS: Final = 4096  # Of a sample, as milabench draws them
BUCKETS: Final = 128  # That hidden states are hashed to; milabench sets it where the configuration leaves it open


def reformer_trace(batch: int) -> lp.Trace:
    """Record a step on the meta device.

    Args:
        batch: Samples.
    """
    transformers: Any = import_module("transformers")
    config = transformers.ReformerConfig(is_decoder=False, num_buckets=BUCKETS)
    with torch.device("meta"):
        model = transformers.ReformerForMaskedLM(config).train()
        words = torch.zeros(batch, TOKENS, dtype=torch.int64)
    # It warns about padding by looking at the words, which have no values here.
    model.reformer.warn_if_padding_and_no_attention_mask = lambda *_: None
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        model(input_ids=words, labels=words).loss.backward()
        optimizer.step()

    return lp.capture(step, precision="16-mixed", samples_per_step=batch)
