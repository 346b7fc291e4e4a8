from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks.training.tables import LONGEST_LAUNCH_SECONDS, SHORTEST_SECONDS, read_tables
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.own_weights.training.tables import Group
from tests.example_gpu import SMALL
from tests.own_weights.training.example import group as synthetic_group

MATMUL = ["gpu", "op", "dtype", "b", "m", "n", "k", "latency_ms", "kernel", "software", "source"]


def write(folder: Path, name: str, header: list[str], *rows: list[object]) -> Path:
    folder.mkdir(exist_ok=True)
    with gzip.open(folder / name, "wt", newline="") as lines:
        csv.writer(lines).writerows([header, *rows])
    return folder


def matmul_row(
    milliseconds: float, *, m: int = 64, software: str = "a", source: str = "aiconfigurator"
) -> list[object]:
    return ["T4", "linear", "float32", 1, m, 64, 64, milliseconds, "sgemm", software, source]


def only(groups: tuple[Group, ...]) -> Group:
    (group,) = groups
    return group


def test_builds_of_one_shape_count_once_by_their_mean(tmp_path: Path) -> None:
    rows = [matmul_row(1.0, software="a"), matmul_row(3.0, software="b"), matmul_row(5.0, m=128)]
    group = only(read_tables(write(tmp_path, "matmul.csv.gz", MATMUL, *rows)))
    assert (group.gpu, group.batch.operation, group.batch.dtype, group.source) == (
        "T4",
        "linear",
        "float32",
        "aiconfigurator",
    )
    assert group.batch.columns["m"].tolist() == [64, 128]
    assert group.seconds.tolist() == pytest.approx([2e-3, 5e-3])


def test_a_source_that_times_the_device_has_no_floor_and_one_that_times_calls_has(tmp_path: Path) -> None:
    rows = [matmul_row(0.03 + 0.001 * m, m=m, source="neusight") for m in range(1, 102)]
    assert only(read_tables(write(tmp_path, "matmul.csv.gz", MATMUL, *rows))).floor_seconds == pytest.approx(
        32e-6  # the 1 % quantile of 31, 32, ..., 131 microseconds
    )
    long = [matmul_row(10.0 + m, m=m, source="neusight") for m in range(1, 102)]
    group = only(read_tables(write(tmp_path, "matmul.csv.gz", MATMUL, *long)))
    assert group.floor_seconds == LONGEST_LAUNCH_SECONDS  # a table without short rows shows no launch
    replays = [matmul_row(0.03 + 0.001 * m, m=m) for m in range(1, 102)]
    assert only(read_tables(write(tmp_path, "matmul.csv.gz", MATMUL, *replays))).floor_seconds == 0


CONVOLUTION = (
    "gpu,op,dtype,batch,in_channels,out_channels,kernel_size,image_size,stride,padding,latency_ms,source".split(",")
)


def convolution_row(milliseconds: float, *, batch: int, source: str = "neusight") -> list[object]:
    return ["T4", "conv2d", "float32", batch, 16, 16, 3, 32, 1, 1, milliseconds, source]


def test_the_launch_that_grew_from_row_to_row_is_taken_off_the_convolutions_that_neusight_timed(
    tmp_path: Path,
) -> None:
    # Rows in the order of their measurement: 0.1 and 0.3 ms are launches, so 0.2 ms at the row between.
    times = {3: 0.1, 2: 1.2, 1: 0.3}
    rows = [convolution_row(time, batch=batch) for batch, time in times.items()]
    group = only(read_tables(write(tmp_path, "conv2d.csv.gz", CONVOLUTION, *rows)))
    assert group.batch.columns["batch"].tolist() == [2]  # the others show the launch alone
    assert group.seconds.tolist() == pytest.approx([1e-3 + SHORTEST_SECONDS])
    assert group.floor_seconds == SHORTEST_SECONDS
    other = [convolution_row(time, batch=batch, source="mine") for batch, time in times.items()]
    group = only(read_tables(write(tmp_path, "conv2d.csv.gz", CONVOLUTION, *other)))
    assert group.seconds.tolist() == pytest.approx([3e-4, 1.2e-3, 1e-4])


def test_the_passes_of_a_convolution_are_operations_of_their_own_and_may_be_missing(tmp_path: Path) -> None:
    header = (
        "gpu,op,dtype,batch,in_channels,height,width,out_channels,kernel_height,kernel_width,pad_h,pad_w,stride_h,"
        "stride_w,forward_ms,backward_input_ms,backward_weight_ms,source"
    ).split(",")
    row = ["T4", "conv2d", "float16 (tensor cores)", 4, 1, 161, 700, 32, 5, 20, 0, 0, 2, 2, 0.1, "", 0.3, "deepbench"]
    groups = read_tables(write(tmp_path, "conv2d_passes.csv.gz", header, row))
    assert [group.batch.operation for group in groups] == ["conv2d", "conv2d_backward_weight"]
    assert {group.batch.dtype for group in groups} == {"float16"}
    assert groups[1].seconds.tolist() == pytest.approx([3e-4])
    assert groups[0].batch.columns["stride_width"].tolist() == [2]


def test_a_mask_takes_rows() -> None:
    whole = synthetic_group(SMALL, 10)
    taken = whole.take(np.arange(10) < 3)
    assert len(taken.batch) == len(taken.seconds) == 3
    np.testing.assert_array_equal(taken.batch.flops, whole.batch.flops[:3])


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        ("0", "latency_ms is 0; expected a finite number above 0, in milliseconds"),
        ("fast", "latency_ms is 'fast'; expected a finite number"),
    ],
)
def test_a_wrong_value_is_named_with_its_row(tmp_path: Path, milliseconds: str, words: str) -> None:
    bad = ["T4", "linear", "float32", 1, 64, 64, 64, milliseconds, "", "", "x"]
    write(tmp_path, "matmul.csv.gz", MATMUL, matmul_row(1.0), bad)
    with pytest.raises(MeasurementTableError, match=f"line 3: {words}"):
        read_tables(tmp_path)
