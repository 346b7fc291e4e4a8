from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.embeddings.step import checked_optimizer
from lightning_predict.embeddings.tables import EmbeddingTable, tables_of_trace
from lightning_predict.record.optimizers import TABLE_OPTIMIZERS
from lightning_predict.record.trace import Operation, TensorInfo, Trace
from tests.workloads.recommendation import Dlrm


def recorded(model: nn.Module, *data: Tensor, batches: int = 1, samples: int | None = None) -> Trace:
    """A training step on the meta device."""

    def step() -> None:
        for _ in range(batches):
            model(*data).sum().backward()

    return replace(lp.capture(step, samples_per_step=samples), batches=batches)


def meta_dlrm() -> tuple[nn.Module, Tensor, Tensor]:
    with torch.device("meta"):
        model = Dlrm(tables=3, rows=1000, width=16, bottom=(8, 8), top=(8,))
        return model, torch.empty(32, 8), torch.zeros(3, 32, 5, dtype=torch.int64)


def test_recorded_tables_count_their_look_ups_once_a_batch() -> None:
    traced = tables_of_trace(recorded(*meta_dlrm()))
    assert traced.batch_size == 32
    assert traced.tables == tuple(EmbeddingTable(rows=1000, dim=16, pooling=5, name=f"tables.{i}") for i in range(3))
    once, thrice = (tables_of_trace(recorded(*meta_dlrm(), batches=batches)) for batches in (1, 3))
    assert thrice == once
    said = tables_of_trace(recorded(*meta_dlrm(), batches=2, samples=64))
    assert said == once


def test_where_tables_do_not_fit_a_prediction_names_what_divides_them() -> None:
    trace = recorded(*meta_dlrm())
    assert not [note for note in lp.predict(trace, gpus=["T4"]).notes if "shard" in note]
    with torch.device("meta"):
        large = Dlrm(tables=3, rows=100_000_000, width=16, bottom=(8, 8), top=(8,))
    found = lp.predict(recorded(large, *meta_dlrm()[1:]), gpus=["T4"])
    assert found["T4"].fits is False
    # 3 x 6.4e9 bytes are 17.9 GiB.
    assert "Embedding tables take 17.9 GiB. Use `lightning-predict shard` to divide them among GPUs." in found.notes


class Pair(nn.Module):
    """One table looked up for a user's history and for the item; tokens are not summed."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.EmbeddingBag(500, 4, mode="sum", dtype=torch.bfloat16)
        self.tokens = nn.Embedding(70, 8)

    def forward(self, history: Tensor, item: Tensor, text: Tensor) -> Tensor:
        result: Tensor = self.items(history).sum() + self.items(item).sum() + self.tokens(text).sum()
        return result


def test_tables_without_storages_and_of_two_look_ups_are_told_apart() -> None:
    with torch.device("meta"):
        model = Pair()
        indices = [torch.zeros(16, length, dtype=torch.int64) for length in (9, 1, 6)]
    items, tokens = tables_of_trace(recorded(model, *indices)).tables
    # Two vectors a sample, of 9 and of 1 row: 5 on average.
    assert items == EmbeddingTable(rows=500, dim=4, pooling=5, vectors=2, dtype="bfloat16", name="items")
    assert tokens == EmbeddingTable(rows=70, dim=8, vectors=6, is_pooled=False, name="tokens")

    def look_up(module: str | None) -> Operation:
        inputs = (TensorInfo((10, 4), "float32"), TensorInfo((8, 3), "int64"))
        return Operation(name="aten::embedding", phase="forward", inputs=inputs, module=module)

    def count(*modules: str | None) -> int:
        operations = tuple(look_up(module) for module in modules)
        return len(tables_of_trace(Trace(operations=operations, device="cuda", recorder="kineto")).tables)

    assert (count("a", "b", "a"), count(None, None)) == (2, 2)


def test_trace_without_look_ups_or_samples_is_refused() -> None:
    backward = Operation(
        name="aten::embedding", phase="backward", inputs=(TensorInfo((10, 4), "float32"), TensorInfo((8,), "int64"))
    )
    with pytest.raises(
        InvalidArgumentError, match=r"no look-up of an embedding table \(aten::_embedding_bag, .*record"
    ):
        tables_of_trace(Trace(operations=(backward,), device="cpu", recorder="dispatch"))
    trace = replace(recorded(*meta_dlrm(), batches=2), samples=1)
    with pytest.raises(InvalidArgumentError, match=r"has 1 sample\(s\) in 2 batches; record it again"):
        tables_of_trace(trace)


def test_table_of_integers_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="Embedding table 'users': dtype='int8'; expected one of float32,"):
        EmbeddingTable(rows=10, dim=4, name="users", dtype="int8")


def test_bytes_and_optimizer_state_by_hand() -> None:
    table = EmbeddingTable(rows=1000, dim=16, pooling=5, vectors=2, dtype="float16")
    assert (table.parameter_bytes, table.vector_bytes_per_sample) == (1000 * 16 * 2, 2 * 16 * 2)
    # Two bags of five indices, and two lengths; a quarter of the rows has a quarter of the indices.
    assert table.index_bytes_per_sample() == 2 * (5 + 1) * 8
    assert table.index_bytes_per_sample(0.25) == 2 * (5 / 4 + 1) * 8
    tokens = EmbeddingTable(rows=1000, dim=16, vectors=7, is_pooled=False)
    assert tokens.index_bytes_per_sample() == 7 * 8  # without lengths
    # 1,000 rows of 20 numbers: 80 bytes, 3 sectors of 32 bytes; read and written.
    sizes = {name: checked_optimizer(name).size_bytes(1000, 20) for name in TABLE_OPTIMIZERS}
    assert sizes == {"sgd": 0, "row_wise_adagrad": 4e3, "adagrad": 80e3, "adam": 160e3}
    traffic = {name: checked_optimizer(name).traffic_bytes(1000, 20) for name in TABLE_OPTIMIZERS}
    assert traffic == {"sgd": 0, "row_wise_adagrad": 2 * 32e3, "adagrad": 2 * 96e3, "adam": 4 * 96e3}
