"""Share the embedding tables of a recommendation model among several GPUs, without any of them.

    python examples/recommendation.py

A model like DLRM is recorded on PyTorch's meta device, where its 90 GB of tables take no memory. Then: which sharding
of its tables is fastest on which machine, how much memory it takes, and the data that GPUs send each other.
"""

import torch
from torch import Tensor, nn

import lightning_predict as lp
from lightning_predict.embeddings.placement import place_tables
from lightning_predict.embeddings.tables import tables_of_trace

ROWS = (200_000_000, 80_000_000, 40_000_000, 20_000_000, 8_000_000, 2_000_000, 500_000, 100_000, 10_000, 1_000, 100)
WIDTH, LOOK_UPS, DENSE = 64, 20, 256


class Recommender(nn.Module):
    """Embedding bags and a perceptron over dense features; their products go through another perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum") for rows in ROWS)
        self.bottom = nn.Sequential(nn.Linear(DENSE, 512), nn.ReLU(), nn.Linear(512, WIDTH))
        vectors = len(ROWS) + 1
        self.top = nn.Sequential(nn.Linear(vectors * vectors, 1024), nn.ReLU(), nn.Linear(1024, 1))

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        embedded = [table(rows) for table, rows in zip(self.tables, indices, strict=True)]
        vectors = torch.stack((self.bottom(dense), *embedded), dim=1)
        result: Tensor = self.top((vectors @ vectors.transpose(1, 2)).flatten(1))
        return result


def main() -> None:
    batch = 8192
    with torch.device("meta"):
        model = Recommender()
        dense, indices = torch.empty(batch, DENSE), torch.zeros(len(ROWS), batch, LOOK_UPS, dtype=torch.int64)

    def step() -> None:
        model(dense, indices).sum().backward()

    traced = tables_of_trace(lp.capture(step, samples_per_step=batch))
    samples = 8 * traced.batch_size
    for gpus in ("8xH100-SXM-80GB", "8xA100-SXM-40GB", "8xL4"):
        placement = place_tables(traced.tables, gpus, samples=samples, optimizer="row_wise_adagrad")
        print(f"\n{gpus}, {samples:,} samples a step\n{placement.reason}")
        for plan in placement.plans:
            print(f"  {plan.name:14} {1000 * plan.seconds:8.2f} ms: {plan.reason}")
        for name, reason in placement.refused.items():
            print(f"  {name:14} does not fit: {reason}")
        for assignment in placement.best.assignments:
            place = "all GPUs" if assignment.gpu is None else f"GPU {assignment.gpu}"
            print(f"    {assignment.table.rows:>11,} rows: {assignment.kind} on {place}")


if __name__ == "__main__":
    main()
