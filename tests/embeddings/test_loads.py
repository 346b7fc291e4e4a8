import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lightning_predict as lp
from lightning_predict.embeddings.loads import KINDS, Load, TablePart, empty_load, loads_of, local_samples
from lightning_predict.embeddings.step import checked_optimizer
from lightning_predict.embeddings.tables import EmbeddingTable
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import operation_shape
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.record.optimizers import TABLE_OPTIMIZERS

A100 = "A100-SXM-80GB"
TABLE = EmbeddingTable(rows=1000, dim=64, pooling=10)


def load(table: EmbeddingTable, kind: str, gpus: int, samples: int = 1024, optimizer: str = "sgd") -> Load:
    layout = Layout(lp.gpu(A100), gpus)
    (loads,) = loads_of([table], [kind], layout, samples, checked_optimizer(optimizer), kernel_models((A100,)))
    return loads[kind]


def seconds(operation: str, **words: float) -> float:
    given = operation_shape(operation, "float32", **words)
    return float(predict_operation_times([given], [lp.gpu(A100)], kernel_models((A100,))).seconds[0, 0])


def test_rows_are_dealt_in_equal_blocks_to_as_many_gpus_as_there_are() -> None:
    table = EmbeddingTable(rows=10, dim=64, pooling=5)
    # Blocks of ceil(10 / 4) = 3 rows: 3, 3, 3 and 1; each finds its share of the five rows of a bag.
    assert KINDS["row_wise"].parts(table, 4, 1024) == (
        TablePart(rows=3, dim=64, bags=1024, lookups=1.5, num_gpus=3),
        TablePart(rows=1, dim=64, bags=1024, lookups=0.5, num_gpus=1),
    )
    parts = KINDS["row_wise"].parts(EmbeddingTable(rows=3, dim=8), 8, 64)
    assert [(part.num_gpus, part.rows) for part in parts] == [(3, 1)]
    assert (load(EmbeddingTable(rows=3, dim=8), "row_wise", 8).memory_bytes > 0).tolist() == [True] * 3 + [False] * 5
    tokens = EmbeddingTable(rows=100, dim=64, vectors=7, is_pooled=False)
    (part,) = KINDS["row_wise"].parts(tokens, 4, 1024)
    assert part == TablePart(rows=25, dim=64, bags=1024 * 7 / 4, lookups=1.0, num_gpus=4)


def test_columns_differ_by_one_at_most_and_copies_look_up_their_own_samples() -> None:
    wide = KINDS["column_wise"].parts(EmbeddingTable(rows=10, dim=30, pooling=5), 4, 64)
    assert [(part.num_gpus, part.dim, part.bags, part.lookups) for part in wide] == [(2, 8, 64, 5), (2, 7, 64, 5)]
    narrow = KINDS["column_wise"].parts(EmbeddingTable(rows=10, dim=3), 4, 64)
    assert [(part.num_gpus, part.dim) for part in narrow] == [(3, 1)]
    (part,) = KINDS["data_parallel"].parts(TABLE, 8, 1000)
    assert (part.bags, part.num_gpus) == (125, 8)
    assert [local_samples(samples, 8) for samples in (8, 9, 1000)] == [1, 2, 125]


@given(
    rows=st.integers(1, 10**9),
    dim=st.integers(1, 1024),
    gpus=st.integers(1, 64),
    kind=st.sampled_from(["table_wise", "row_wise", "column_wise"]),
    is_pooled=st.booleans(),
)
def test_parts_make_up_the_table_and_its_look_ups(rows: int, dim: int, gpus: int, kind: str, is_pooled: bool) -> None:
    table = EmbeddingTable(rows=rows, dim=dim, pooling=3 if is_pooled else 1, vectors=2, is_pooled=is_pooled)
    parts = KINDS[kind].parts(table, gpus, 128)
    assert 1 <= sum(part.num_gpus for part in parts) <= gpus
    assert sum(part.num_gpus * part.rows * part.dim for part in parts) == rows * dim
    read = sum(part.num_gpus * part.bags * part.lookups * part.dim for part in parts)
    assert read == pytest.approx(128 * 2 * table.pooling * dim)


def test_times_equal_the_kernel_models() -> None:
    whole = load(TABLE, "table_wise", 4)
    shape = {"bags": 1024, "lookups": 10, "rows": 1000, "dim": 64}
    assert whole.forward_seconds[0].tolist() == [seconds("embedding_bag", **shape), 0, 0, 0]
    assert whole.backward_seconds[0].tolist() == [seconds("embedding_bag_backward", **shape), 0, 0, 0]
    assert np.all(whole.forward_seconds[1] <= whole.forward_seconds[0])
    assert np.all(whole.forward_seconds[0] <= whole.forward_seconds[2])
    rows = load(TABLE, "row_wise", 4)
    quarter = {"bags": 1024, "lookups": 2.5, "rows": 250, "dim": 64}
    assert rows.forward_seconds[0].tolist() == [seconds("embedding_bag", **quarter)] * 4


def test_optimizer_state_and_dense_gradients_of_copies_count() -> None:
    # 1e9 rows, hardly one asked for twice: 10,240 of them. Adam: two moments of 64 numbers, 256 bytes each.
    table = EmbeddingTable(rows=10**9, dim=64, pooling=10)
    plain, adam = (load(table, "table_wise", 2, optimizer=name).backward_seconds[0, 0] for name in ("sgd", "adam"))
    assert adam - plain == pytest.approx(10_240 * 2 * 2 * 256 / lp.gpu(A100).dram_bytes_per_second, rel=1e-3)
    copies = load(TABLE, "data_parallel", 4, optimizer="adam")
    shape = {"bags": 256, "lookups": 10, "rows": 1000, "dim": 64}
    size = 1000 * 64 * 4
    # The gradient is filled; gradient, parameters, two moments are read; parameters and moments written.
    update = seconds("transfer", read_bytes=4 * size, write_bytes=4 * size, flops=2 * 1000 * 64)
    assert copies.backward_seconds[0].tolist() == pytest.approx(
        [seconds("embedding_bag_backward", **shape) + update] * 4
    )
    assert copies.dense_gradient_bytes == size
    assert copies.memory_bytes.tolist() == [4 * size] * 4  # parameters, gradient, two moments
    assert not copies.index_bytes.any()
    assert not copies.vector_bytes.any()
    assert copies.partial_sum_bytes == 0


def test_memory_exchanged_bytes_and_moved_loads_by_hand() -> None:
    size, dim = 1000 * 64 * 4, 64
    assert load(TABLE, "table_wise", 4).memory_bytes.tolist() == [size, 0, 0, 0]
    assert load(TABLE, "row_wise", 4, optimizer="adam").memory_bytes.tolist() == [3 * size / 4] * 4
    # A number a row, on each GPU that holds some of its columns.
    by_column = load(TABLE, "column_wise", 4, optimizer="row_wise_adagrad").memory_bytes
    assert by_column.tolist() == [1000 * (dim / 4 * 4 + 4)] * 4
    # 1,024 samples on 4 GPUs: 256 each. A sample has ten indices and a length of 8 bytes, and a vector of 64 x 4.
    sent = {kind: load(TABLE, kind, 4) for kind in KINDS}
    assert sent["table_wise"].index_bytes.tolist() == [256 * 11 * 8, 0, 0, 0]
    assert sent["table_wise"].vector_bytes.tolist() == [256 * 64 * 4, 0, 0, 0]
    assert sent["column_wise"].index_bytes.tolist() == [256 * 11 * 8] * 4
    assert sent["column_wise"].vector_bytes.tolist() == [256 * 16 * 4] * 4
    assert sent["row_wise"].index_bytes.tolist() == [256 * (10 / 4 + 1) * 8] * 4
    assert sent["row_wise"].vector_bytes.tolist() == [0] * 4
    assert sent["row_wise"].partial_sum_bytes == 1024 * 64 * 4
    tokens = load(EmbeddingTable(rows=1000, dim=64, vectors=7, is_pooled=False), "row_wise", 4)
    assert tokens.vector_bytes.tolist() == [256 * 7 * 64 * 4 / 4] * 4
    assert tokens.partial_sum_bytes == 0
    whole, shared = load(TABLE, "table_wise", 4), load(TABLE, "row_wise", 4)
    both = whole.moved_to(2) + shared
    assert both.memory_bytes.tolist() == [64e3, 64e3, 64e3 + 256e3, 64e3]
    assert both.partial_sum_bytes == shared.partial_sum_bytes
    back = both - shared
    assert back.vector_bytes.tolist() == [0, 0, 256 * 64 * 4, 0]
    assert (empty_load(4) + shared).forward_seconds.tolist() == shared.forward_seconds.tolist()


@settings(deadline=None)
@given(
    rows=st.integers(1, 10**9),
    dim=st.integers(1, 256),
    pooling=st.floats(0.5, 200),
    samples=st.integers(64, 10**6),
    gpus=st.integers(1, 31),
    optimizer=st.sampled_from(TABLE_OPTIMIZERS),
)
def test_more_gpus_never_raise_the_time_of_the_slowest_by_rows(
    rows: int, dim: int, pooling: float, samples: int, gpus: int, optimizer: str
) -> None:
    table = EmbeddingTable(rows=rows, dim=dim, pooling=pooling)
    few, many = (load(table, "row_wise", count, samples, optimizer) for count in (gpus, gpus + 1))
    for less, more in ((many.forward_seconds, few.forward_seconds), (many.backward_seconds, few.backward_seconds)):
        assert np.all(less.max(axis=1) <= more.max(axis=1) * (1 + 1e-9))
    assert many.memory_bytes.max() <= few.memory_bytes.max()
