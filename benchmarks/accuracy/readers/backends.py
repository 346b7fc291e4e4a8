"""PyTorch's side of Keras's benchmarks.

Keras's page on its backends (keras-team/keras-io, `templates/getting_started/benchmarks.md` at 18c6544) tells how long
a step takes in "native PyTorch", eager and compiled, on one A100-SXM-40GB, with scripts of their own
(haifeng-jin/keras-benchmarks, v0.0.5, torch 2.2.1): BERT-base, Gemma 7B and Mistral 7B in transformers' Trainer, which
allows TF32 where it compiles, the last two in bfloat16 with adapters on queries and values; and the encoders of
Segment Anything and of Stable Diffusion's images in plain loops. Which of Segment Anything's three sizes ran is not
told: the largest alone takes so long. They compile with "reduce-overhead", predicted as plain `torch.compile`. Nothing
was fitted to these times.
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
from benchmarks.accuracy.workloads.recorded import tf32
from benchmarks.accuracy.workloads.vision import import_torchvision

GPU: Final = "A100-SXM-40GB"
RELEASE: Final = "2.2"


@dataclass(frozen=True)
class Row:
    """A row of the page."""

    name: str  # As the page calls it
    step: str  # Name of the function of `workloads/keras_page.py` that makes its step
    eager: float  # Measured milliseconds of a step
    compiled: float  # The same, compiled
    allows_tf32: bool = False  # Its compiled step computes products in float32 as TF32


ROWS: Final = (
    Row("SegmentAnything", "segment_anything", 1305.52, 1222.85),
    Row("Stable Diffusion", "stable_diffusion", 481.48, 385.58),
    Row("BERT", "bert", 693.37, 202.43, allows_tf32=True),
    Row("Gemma", "gemma", 253.95, 211.73, allows_tf32=True),
    Row("Mistral", "mistral", 217.56, 176.04, allows_tf32=True),
)


def _recorded(row: Row, *, products: bool) -> lp.Trace:
    import_torchvision()
    from benchmarks.accuracy.workloads import keras_page

    with torch.device("meta"):
        step = getattr(keras_page, row.step)()
    with tf32(products=products):
        return lp.capture(step)


def backend_cases(_data: Path) -> Iterator[Case]:
    """Yield each model, eager and compiled."""
    for row in ROWS:
        for words, milliseconds in (("eager", row.eager), ("compiled", row.compiled)):
            products = row.allows_tf32 and words == "compiled"
            yield Case(
                source=words,
                model=f"{row.name}, {words}",
                gpu=GPU,
                step=Step(name=f"keras-{row.name}-{products}", record=partial(_recorded, row, products=products)),
                measured=milliseconds / 1e3,
                release=None if words == "compiled" else RELEASE,
                kernels=("compile",) if words == "compiled" else (),
            )
