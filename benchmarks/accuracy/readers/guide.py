"""Hugging Face's guide to a bigger model and faster training.

The guide (huggingface/transformers, `docs/source/en/performance.mdx` at 0f9f5ce, of January 2022) trains BERT-large on
512 sequences of 512 tokens on one V100-SXM2 of 16 GB, adds one thing after the other, and tells seconds and the memory
that the driver counts. torch 1.10 was then current. Its seconds are of the whole run, first step included; updates have
four sequences. Nothing was fitted to its times; of its memory, what torch of that time loads at the start was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.readers.pretraining import with_memory
from benchmarks.accuracy.workloads.vision import import_torchvision

GPU: Final = "V100-SXM2-16GB"
RELEASE: Final = "1.10"
UPDATES: Final = 128
SEQUENCES: Final = 4
TOKENS: Final = 512


@dataclass(frozen=True)
class Row:
    """A run of the guide."""

    name: str  # Option that was added
    seconds: float  # Measured, of the run
    mebibytes: float  # Measured memory
    one_by_one: bool = False  # An update adds up four batches of one sequence
    recomputes: bool = False  # Layers are computed again in the backward pass
    half: bool = False  # Float16 autocast
    adafactor: bool = False  # Adafactor in place of AdamW


ROWS: Final = (
    Row("as it comes", 57.82, 14949),
    Row("accumulation", 66.03, 8681, one_by_one=True),
    Row("  checkpointing, too", 85.47, 6775, one_by_one=True, recomputes=True),
    Row("float16", 27.46, 13939, half=True),
    Row("  all three", 50.76, 7275, one_by_one=True, recomputes=True, half=True),
    Row("Adafactor", 64.31, 12295, adafactor=True),
    Row("  all four", 56.54, 4847, one_by_one=True, recomputes=True, half=True, adafactor=True),
)


def recorded(row: Row) -> lp.Trace:
    """Record a batch with its update."""
    import_torchvision()
    from transformers import BertConfig, BertForSequenceClassification
    from transformers.optimization import Adafactor

    configuration = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    configuration._attn_implementation = "eager"
    batch = 1 if row.one_by_one else SEQUENCES
    with torch.device("meta"):
        model = BertForSequenceClassification(configuration)
        tokens = torch.zeros(batch, TOKENS, dtype=torch.long)
        labels = torch.zeros(batch, dtype=torch.long)
    if row.recomputes:
        model.activation_checkpointing_enable()
    model.train()
    parameters = list(model.parameters())
    optimizer: torch.optim.Optimizer = (
        Adafactor(parameters, lr=5e-5, scale_parameter=False, relative_step=False)  # type: ignore[no-untyped-call]
        if row.adafactor
        else torch.optim.AdamW(parameters, lr=5e-5, foreach=False)
    )

    def step() -> None:
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=False)
        optimizer.step()
        optimizer.zero_grad()

    return lp.capture(step, precision="16-mixed" if row.half else None)


def guide_cases(_data: Path) -> Iterator[Case]:
    """Yield time and memory of each run."""
    for row in ROWS:
        name = row.name.strip()
        yield from with_memory(
            {"process": row.mebibytes * 2**20},
            source="float16" if row.half else "float32",
            model=f"BERT-large, {name} ({UPDATES} updates)",
            gpu=GPU,
            step=Step(name=f"guide-{name}", record=partial(recorded, row)),
            measured=row.seconds,
            count=UPDATES,
            release=RELEASE,
            strategy="ddp" if not row.one_by_one else f"ddp,accumulate={SEQUENCES}",
            includes="first step",
        )
