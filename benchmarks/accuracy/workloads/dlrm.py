"""DLRM as NVIDIA's DeepLearningExamples train it on Criteo's terabyte of clicks: 26 tables, one look-up a sample each.

`criteo_trace("large", precision="TF32", batch=8192)` is a step of SGD; the tables of `small` hold values that occur at
least 15 times, the tables of `large` at least 3 times (15.6 and 84.9 GiB in float32). Tables are updated by their
sparse gradients.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn

import lightning_predict as lp
from benchmarks.accuracy.workloads.recorded import tf32

DENSE: Final = 13
WIDTH: Final = 128
BOTTOM: Final = (512, 256)
TOP: Final = (1024, 1024, 512, 256)

ROWS: Final = {  # Rows of each table (NVIDIA/DeepLearningExamples, PyTorch/Recommendation/DLRM)
    "small": "7912889 33823 17139 7339 20046 4 7105 1382 63 5554114 582469 245828 11 2209 10667 104 4 968 15 8165896 "
    "2675940 7156453 302516 12022 97 35",
    "large": "45833188 36746 17245 7413 20243 3 7114 1441 62 29275261 1572176 345138 10 2209 11267 128 4 974 14 "
    "48937457 11316796 40094537 452104 12606 104 35",
}


def criteo_rows(size: str) -> tuple[int, ...]:
    """Return the rows of each table of `small` or `large`."""
    return tuple(map(int, ROWS[size].split()))


def _perceptron(widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class CriteoDlrm(nn.Module):
    """DLRM with dot products of all pairs; a logit a sample."""

    pairs: Tensor

    def __init__(self, rows: tuple[int, ...]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(count, WIDTH, mode="sum", sparse=True) for count in rows)
        self.bottom = _perceptron((DENSE, *BOTTOM, WIDTH))
        vectors = len(rows) + 1
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, offset=-1), persistent=False)
        self.top = _perceptron((WIDTH + vectors * (vectors - 1) // 2 + 1, *TOP))
        self.logit = nn.Linear(TOP[-1], 1)

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        """A logit a sample, of dense features (batch, 13) and look-ups (26, batch, 1)."""
        bottom = self.bottom(dense)
        embedded = [table(rows) for table, rows in zip(self.tables, indices, strict=True)]
        vectors = torch.stack((bottom, *embedded), dim=1).to(bottom.dtype)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        padding = bottom.new_zeros(len(bottom), 1)
        logits: Tensor = self.logit(self.top(torch.cat((bottom, products, padding), dim=1))).flatten()
        return logits


def criteo_trace(size: str, *, precision: str, batch: int) -> lp.Trace:
    """Record one training step on the meta device.

    Args:
        size: `small` or `large`.
        precision: `FP32` or `TF32` (in float32, on tensor cores where there are), or `AMP`.
        batch: Samples.
    """
    with torch.device("meta"):
        model = CriteoDlrm(criteo_rows(size))
        dense, labels = torch.empty(batch, DENSE), torch.empty(batch)
        indices = torch.zeros(len(model.tables), batch, 1, dtype=torch.int64)
    layers = [parameter for name, parameter in model.named_parameters() if not name.startswith("tables.")]
    optimizer = torch.optim.SGD(layers, lr=0.1)  # the tables are updated where their gradients are made

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, indices).float(), labels)
        loss.backward()
        optimizer.step()

    with tf32(products=precision != "FP32", convolutions=precision != "FP32"):
        return lp.capture(step, samples_per_step=batch, precision="16-mixed" if precision == "AMP" else None)
