"""milabench's Reformer, recorded on the meta device as its loop runs it.

The loop leaves autocast before `backward`, so that the layers, which are reversible, are computed again in float32;
each keeps the graph of that until the next one is. transformers is the user's to install. Example::

    trace = reformer_trace(16, Path("cache"))
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch

from lightning_predict.base.errors import MissingDependencyError
from lightning_predict.record.recording import capture
from lightning_predict.record.trace import Trace

TOKENS: Final = 4096
"""Of a sample, as milabench draws them."""

BUCKETS: Final = 128
"""That hidden states are hashed to; milabench sets it where the configuration leaves it open."""


def reformer_trace(batch: int, cache: Path) -> Trace:
    """Record a step, or read it where it was recorded before.

    Args:
        batch: Samples.
        cache: Folder that keeps traces. Empty it when the recordings change.

    Raises:
        MissingDependencyError: transformers is not installed.
    """
    path = cache / f"transformers-reformer-{batch}.json.gz"
    if path.is_file():
        return Trace.load(str(path))
    trace = _recorded(batch)
    cache.mkdir(parents=True, exist_ok=True)
    trace.save(str(path))
    return trace


def _recorded(batch: int) -> Trace:
    try:
        transformers: Any = import_module("transformers")
    except ImportError as error:
        raise MissingDependencyError(
            "Recording Reformer needs transformers, which is not installed: pip install transformers."
        ) from error
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

    return capture(step, precision="16-mixed", samples_per_step=batch)
