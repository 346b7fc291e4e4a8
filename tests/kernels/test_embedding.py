import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lightning_predict as lp
from lightning_predict.kernels.families.embedding import bag_seconds, hit_rate, unique_rows
from lightning_predict.kernels.operations import OperationShape, shape_batch
from lightning_predict.kernels.roofline import roofline_seconds
from lightning_predict.kernels.translation import translate
from lightning_predict.record.trace import Flags, Operation, TensorInfo
from tests.example_gpu import BIG, SMALL


def rate(**words: float) -> float:
    return float(hit_rate(shape_batch("embedding_bag", "float32", **words).columns, [SMALL])[0, 0])


def test_hit_rate_is_that_of_first_look_ups_and_grows_with_the_cache() -> None:
    # 10 rows, 1,000 lookups: all ten asked for, 990 found. L2 of 1 MB holds them.
    assert rate(bags=1000, lookups=1, rows=10, dim=64) == pytest.approx(0.99, abs=1e-6)
    assert rate(bags=1000, lookups=10, rows=1e8, dim=64) < 0.01
    batch = shape_batch("embedding_bag", "float32", bags=4096, lookups=20, rows=20_000, dim=64)
    larger = type(SMALL)(**{field: getattr(SMALL, field) for field in SMALL.__slots__} | {"l2_bytes": 40e6})
    small, large = hit_rate(batch.columns, [SMALL, larger])[:, 0]
    assert 0 < small < large < 1


def test_misses_cost_whole_sectors_and_short_rows_leave_lanes_idle() -> None:
    # 1e5 bags of 1 lookup in 1e9 rows of 100 numbers: 416 bytes a row (13 sectors), read once and written once; 96 for
    # offsets, 32 for the index. 100 GB/s. The hit rate is (nearly) 0.
    batch = shape_batch("embedding_bag", "float32", bags=1e5, lookups=1, rows=1e9, dim=100)
    seconds = bag_seconds(batch, [SMALL]).middle[0, 0]
    assert seconds == pytest.approx(1e5 * (416 + 416 + 96 + 32) / 100e9 + 2e-6, rel=1e-3)
    wide, narrow = (
        bag_seconds(shape_batch("embedding_bag", "float32", bags=1e6, lookups=1, rows=1e9, dim=dim), [SMALL])
        for dim in (128, 32)
    )
    # 512 bytes against 128 a row: (512·2 + 128) / (128·2 + 128) = 3 times the traffic, but 1.55 times slower per byte.
    assert wide.middle[0, 0] / narrow.middle[0, 0] == pytest.approx(3 / 1.55, rel=1e-2)
    forward = lp.operator_seconds("embedding_bag", "V100", bags=1e5, lookups=50, rows=1e8, dim=128)
    backward = lp.operator_seconds("embedding_bag_backward", "V100", bags=1e5, lookups=50, rows=1e8, dim=128)
    assert float(backward) / float(forward) == pytest.approx(2, rel=0.05)


def test_half_rows_are_half_as_long_and_uneven_ones_found_more_often() -> None:
    # 128 numbers of two bytes: 256 bytes a row, read and written; 96 for offsets, 32 for the index.
    batch = shape_batch("embedding_bag", "bfloat16", bags=1e5, lookups=1, rows=1e9, dim=128)
    seconds = bag_seconds(batch, [SMALL]).middle[0, 0]
    assert seconds == pytest.approx(1e5 * (256 + 256 + 96 + 32) / 100e9 + 2e-6, rel=1e-3)
    # L2 holds as many rows of 128 two-byte numbers as of 64 four-byte ones.
    wide, narrow = (
        shape_batch("embedding_bag", "float32", bags=4096, lookups=20, rows=20_000, dim=dim).columns
        for dim in (128, 64)
    )
    assert hit_rate(wide, [SMALL], value_bytes=2) == hit_rate(narrow, [SMALL])
    words = {"bags": 4096, "lookups": 20, "rows": 1e6, "dim": 64}
    rates = [bags(False, **words, alpha=alpha) for alpha in (0, 1e-3, 0.6, 1.0, 1.4)]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(rates[1], abs=5e-3)
    assert bags(True, **words, alpha=1.4) < rates[-1]


@given(bags=st.integers(1, 10**6), lookups=st.integers(1, 500), rows=st.integers(1, 10**9), dim=st.integers(1, 1024))
def test_rates_are_shares_and_times_keep_their_bound(bags: int, lookups: int, rows: int, dim: int) -> None:
    batch = shape_batch("embedding_bag", "float32", bags=bags, lookups=lookups, rows=rows, dim=dim)
    rates = hit_rate(batch.columns, [SMALL, BIG])
    assert np.all((rates >= 0) & (rates <= 1))
    interval = bag_seconds(batch, [SMALL, BIG])
    assert np.all(interval.low >= roofline_seconds(batch, [SMALL, BIG], least=True))
    assert np.all(np.isfinite(interval.high))


def bags(rate_of: bool, **words: float) -> float:
    columns = shape_batch("embedding_bag", "float32", **words).columns
    return float(hit_rate(columns, [SMALL], whole_bags=rate_of)[0, 0])


def test_a_bag_is_updated_from_l2_where_all_of_its_rows_are_there() -> None:
    # 20,000 rows of 256 bytes, 1 MB holds X = 3,906.25; 4,096 bags of 3. C(X, 3) / C(E, 3) of the bags are all
    # there, and X of the 12,288 look-ups fill the cache first.
    held, rows, asked = 1e6 / 256, 20_000, 4096 * 3
    product = held / rows * (held - 1) / (rows - 1) * (held - 2) / (rows - 2)
    expected = 1 - (held + (asked - held) * (1 - product)) / asked
    assert bags(True, bags=4096, lookups=3, rows=rows, dim=64) == pytest.approx(expected, rel=1e-6)
    # Of a single row, the look-up finds the same.
    assert bags(True, bags=4096, lookups=1, rows=rows, dim=64) == pytest.approx(
        bags(False, bags=4096, lookups=1, rows=rows, dim=64)
    )
    # A table that L2 holds is found whole.
    assert bags(True, bags=4096, lookups=3, rows=100, dim=64) == bags(False, bags=4096, lookups=3, rows=100, dim=64)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.2])
def test_zipf_asks_for_as_many_rows_as_the_sum_over_all_of_them(alpha: float) -> None:
    rows, asked = 5000, 1000 * 7
    chances = np.arange(1, rows + 1) ** -alpha
    chances /= chances.sum()
    expected = (1 - (1 - chances) ** asked).sum()
    columns = shape_batch("embedding_bag", "float32", bags=1000, lookups=7, rows=rows, dim=64, alpha=alpha).columns
    assert unique_rows(columns)[0] == pytest.approx(expected, rel=2e-3)


def test_many_tables_of_fbgemm_are_looked_up_at_once() -> None:
    """Of a file: 3 tables of 90 rows in all, 40 numbers each; 30 indices in 12 bags, a weight for each."""
    shapes = [([0], "float32"), ([3600], "float32"), ([0], "float32"), ([0, 0], "float32"), ([3], "int32")]
    shapes += [([3], "int64"), ([4], "int32"), ([4], "int64"), ([30], "int64"), ([13], "int64"), ([30], "float32")]
    inputs = tuple(TensorInfo(tuple(shape), dtype) for shape, dtype in [*shapes, ([90], "float32"), ([3], "int64")])
    name = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
    (found,) = translate(Operation(name=name, phase="forward", inputs=inputs), Flags())
    assert found == OperationShape("embedding_bag", "float32", (12.0, 2.5, 90.0, 40.0, 0.0))
    # Without state a row is taken as 64 numbers long.
    (assumed,) = translate(Operation(name=name, phase="forward", inputs=inputs[:10]), Flags())
    assert assumed.dims[2:4] == (3600 / 64, 64.0)
