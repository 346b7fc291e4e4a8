"""Predict Hugging Face's guide to a bigger model and faster training: `python -m benchmarks.accuracy.guide`.

The guide (huggingface/transformers, `docs/source/en/performance.mdx` at 0f9f5ce, of January 2022) trains BERT-large on
512 sequences of 512 tokens on one V100-SXM2 of 16 GB, adds one thing after the other, and tells seconds and the memory
that the driver counts. torch 1.10 was then current. Its seconds are of the whole run, first step included; updates have
four sequences. Nothing was fitted to its times; of its memory, what torch of that time loads at the start was.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from transformers import BertConfig, BertForSequenceClassification
from transformers.optimization import Adafactor

import lightning_predict as lp
from benchmarks.scored_steps import ScoredRow, page_options, report_page
from lightning_predict.base.units import MEBIBYTE
from lightning_predict.reports.published_cases import StepDescription

GPU: Final = "V100-SXM2-16GB"
RELEASE: Final = "1.10"
UPDATES: Final = 128
SEQUENCES: Final = 4
TOKENS: Final = 512


@final
@dataclass(frozen=True)
class Row:
    """A run of the guide.

    Attributes:
        name: Option that was added.
        seconds: Measured, of the run.
        mebibytes: Measured memory.
        one_by_one: An update adds up four batches of one sequence.
        recomputes: Layers are computed again in the backward pass.
        half: Float16 autocast.
        adafactor: Adafactor in place of AdamW.
    """

    name: str
    seconds: float
    mebibytes: float
    one_by_one: bool = False
    recomputes: bool = False
    half: bool = False
    adafactor: bool = False


ROWS: Final = (
    Row("as it comes", 57.82, 14949),
    Row("accumulation", 66.03, 8681, one_by_one=True),
    Row("  checkpointing, too", 85.47, 6775, one_by_one=True, recomputes=True),
    Row("float16", 27.46, 13939, half=True),
    Row("  all three", 50.76, 7275, one_by_one=True, recomputes=True, half=True),
    Row("Adafactor", 64.31, 12295, adafactor=True),
    Row("  all four", 56.54, 4847, one_by_one=True, recomputes=True, half=True, adafactor=True),
)


def predicted(row: Row) -> lp.Prediction:
    """Predict an update from shapes alone."""
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

    trace = lp.capture(step, precision="16-mixed" if row.half else None)
    strategy = f"accumulate={SEQUENCES // batch}"
    return lp.predict(trace, [GPU], strategy=strategy, release=RELEASE, history=False)[GPU]


def row_of(row: Row) -> ScoredRow:
    """Predict a run and pair it with the measured one."""
    found = predicted(row)
    return ScoredRow(
        names=(f"BERT-large, {row.name.strip()} ({UPDATES} updates)",),
        gpu=GPU,
        step=StepDescription(kind="language model", precision="16 bits" if row.half else "float32"),
        measured=row.seconds,
        predicted=found.iteration.scaled(UPDATES),
        measured_bytes=MEBIBYTE * row.mebibytes,
        predicted_bytes=found.memory.process,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each run of the guide with its prediction; return 0."""
    options = page_options(arguments, main.__doc__ or "")
    title = f"{UPDATES} updates of {SEQUENCES} sequences on a {GPU}, predicted from shapes; no time was fitted"
    rows = [row_of(row) for row in ROWS]
    report_page("guide", title, ("change",), rows, unit="s", folder=options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
