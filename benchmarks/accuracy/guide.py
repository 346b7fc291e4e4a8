"""Predict Hugging Face's guide to a bigger model and faster training: `python -m benchmarks.accuracy.guide`.

The guide (huggingface/transformers, `docs/source/en/performance.mdx` at 0f9f5ce, of January 2022) trains BERT-large on
512 sequences of 512 tokens on one V100-SXM2 of 16 GB, adds one thing after the other, and tells seconds and the memory
that the driver counts. torch 1.10 was then current. Its seconds are of the whole run, first step included; updates have
four sequences. Nothing was fitted to its times; of its memory, what torch of that time loads at the start was.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from typing import Final, final

import torch
from transformers import BertConfig, BertForSequenceClassification
from transformers.optimization import Adafactor

import lightning_predict as lp
from lightning_predict.units import MEBIBYTE

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
        name: What was added.
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


def main() -> int:
    """Print each run of the guide beside what is predicted; return 0."""
    print(f"BERT-large, {UPDATES} updates of {SEQUENCES} sequences, one {GPU}: from shapes alone, nothing fitted.")
    print(
        f"{'':<21}{'measured':>10}{'predicted':>11}{'error':>7}   {'90 %':<15}{'MiB':>6}{'predicted':>11}{'error':>7}"
    )
    errors, memories, inside, held = [], [], 0, 0
    for row in ROWS:
        found = predicted(row)
        low, middle, high = (
            UPDATES * seconds
            for seconds in (found.iteration_seconds_low, found.iteration_seconds, found.iteration_seconds_high)
        )
        assert found.memory.process is not None
        memory = found.memory.process.middle / MEBIBYTE
        errors.append(middle / row.seconds - 1)
        memories.append(memory / row.mebibytes - 1)
        inside += low <= row.seconds <= high
        held += found.memory.process.low <= row.mebibytes * MEBIBYTE <= found.memory.process.high
        print(
            f"{row.name:<21}{row.seconds:>8.1f} s{middle:>9.1f} s{errors[-1]:>+7.0%}   "
            f"{f'{low:.0f} to {high:.0f} s':<15}{row.mebibytes:>6,}{memory:>11,.0f}{memories[-1]:>+7.0%}"
        )
    time, memory = (statistics.median(map(abs, values)) for values in (errors, memories))
    print(
        f"median error {time:.1%}, {inside} of {len(ROWS)} in the interval; memory {memory:.1%}, {held} of {len(ROWS)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
