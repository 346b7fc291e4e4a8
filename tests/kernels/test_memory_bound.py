import numpy as np
import pytest

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.kernels.corrections import ADA_WITHOUT_ECC_TIME
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.memory_bound import bytes_read, bytes_written, crosses_host_link, transfer_of
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import (
    NetworkSpec,
    Surrogate,
    operation_names,
    operation_shape,
    operation_spec,
    shape_batch,
)
from lightning_predict.kernels.roofline import DELIVERED_SHARE, LIMITED, SHORTEST_KERNEL_SECONDS
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.record.trace import Operation, TensorInfo, Trace

# Operations that move bytes and have no network of their own: those timed through a transfer.
MEMORY_BOUND = [
    name
    for name in operation_names()
    if operation_spec(name).units == "vector"
    and operation_spec(name).of(Surrogate)
    and not operation_spec(name).of(NetworkSpec)
    if name != LIMITED
]


def moved(operation: str, **words: float) -> float:
    return float(shape_batch(operation, "float32", **words).bytes_moved[0])


def test_traffic_by_hand() -> None:
    assert moved("sum", rows=10, cols=10) == 400
    assert moved("concat", rows=10, cols=10) == 800
    assert moved("cast", rows=10, cols=10) == 100 * (4 + 2)
    assert moved("cast", rows=10, cols=10, source_bytes=2, target_bytes=4) == 600
    assert moved("sgd", parameters=100, fused=1) == 4 * 500
    assert moved("adamw", parameters=100) == 4 * 2100
    # 8 x 8 images pooled by 2: a quarter of the elements come out; the maximum's place is 8 bytes more each.
    assert moved("avg_pool2d", batch=1, channels=1, image_size=8) == 4 * (64 + 16)
    assert moved("max_pool2d", batch=1, channels=1, image_size=8) == 4 * (64 + 3 * 16)
    assert moved("max_pool2d_backward", batch=1, channels=1, image_size=8) == 4 * (64 + 3 * 16)
    assert moved("gelu_backward", rows=10, cols=10) == 4 * 300
    assert moved("dropout_backward", rows=10, cols=10) == 400 + 100 + 400  # gradient in, a byte of mask each, out
    assert moved("adagrad", parameters=100, fused=1) == 4 * 500


@pytest.mark.parametrize("operation", MEMORY_BOUND)
@pytest.mark.parametrize("gpu", ["T4", "H100-SXM-80GB", "RTX-4090"])
def test_every_one_has_a_time_between_its_bound_and_a_multiple_of_it(operation: str, gpu: str) -> None:
    kind = operation_spec(operation)
    words = {word: 256 for word in kind.shape if word not in kind.defaults}
    if "parameters" in words:
        words["parameters"] = 10**8
    if "rows" in words:
        words |= {"rows": 16384, "cols": 4096}
    seconds = float(lp.operator_seconds(operation, gpu, dtype="float32", **words))  # type: ignore[arg-type]
    least = moved(operation, **words) / lp.gpu(gpu).dram_bytes_per_second
    # Average pooling's backward pass visits each position with integer divisions: 7 times its traffic on the H200.
    assert least <= seconds < (20 if operation == "avg_pool2d_backward" else 10) * least


def test_kernels_without_computing_and_on_hbm_take_their_bytes() -> None:
    # An addition in float32 computes once for 12 bytes, the least that networks have seen; a reduction counts none.
    gpus = [lp.gpu(name) for name in lp.gpu_names()]
    words = {"read_bytes": 8e9, "write_bytes": 4e9}
    none, few = (operation_shape("transfer", "float32", **words, flops=flops) for flops in (0, 1e9))
    times = predict_operation_times([none, few], gpus, kernel_models(tuple(lp.gpu_names()))).seconds
    assert (times[:, 0] == times[:, 1]).all()
    # GDDR keeps the networks' times: L40S's measured share is lower and differs by operation.
    words = {"rows": 65536, "cols": 4096}
    for name in ("H200-SXM-141GB", "A100-SXM-80GB", "V100-SXM2-32GB"):
        least = moved("relu", **words) / lp.gpu(name).dram_bytes_per_second
        seconds = float(lp.operator_seconds("relu", name, dtype="float32", rows=65536, cols=4096))
        assert seconds <= least / DELIVERED_SHARE + SHORTEST_KERNEL_SECONDS


# Kernels of an H200 (recordings of Swin-T, ConvNeXt-T, BERT-large and ViT-S), rows x columns and microseconds; each
# shape runs with torch 2.11. The tolerance covers the clock, and what the rules leave out.
@pytest.mark.parametrize(
    ("operation", "dtype", "rows", "cols", "microseconds"),
    [
        ("column_sum", "bfloat16", 401408, 96, 85.2),  # few columns: 1,056 blocks share each
        ("column_sum", "bfloat16", 25088, 384, 32.7),
        ("column_sum", "float16", 6144, 4096, 27.5),
        ("layer_norm_backward", "float32", 401408, 96, 433),  # more than 65,536 rows are split among blocks
        ("layer_norm_backward", "float32", 100352, 384, 225),
        ("layer_norm_backward", "float32", 25088, 384, 145),  # a block sums 32 columns over all rows
        ("layer_norm_backward", "float32", 6144, 1024, 56),
        ("layer_norm", "float32", 401408, 96, 628),
    ],
)
def test_rows_and_columns_decide_sums_and_norms(
    operation: str, dtype: str, rows: int, cols: int, microseconds: float
) -> None:
    seconds = float(lp.operator_seconds(operation, "H200-SXM-141GB", dtype=dtype, rows=rows, cols=cols))
    assert seconds * 1e6 == pytest.approx(microseconds, rel=0.3)


X = TensorInfo((100,), "float32", device="cuda")
HALF = TensorInfo((100,), "float16", device="cuda")


def traffic(name: str, *inputs: TensorInfo, outputs: tuple[TensorInfo, ...] = ()) -> tuple[int, int]:
    operation = Operation(name=name, phase="forward", inputs=inputs, outputs=outputs)
    return bytes_read(operation), bytes_written(operation)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "expected"),
    [
        ("aten::sigmoid", (X,), (X,), (400, 400)),
        ("aten::sigmoid", (X,), (), (400, 400)),  # unseen output: as large as the input
        ("aten::_to_copy", (X,), (HALF,), (400, 200)),
        ("aten::zero_", (X,), (), (0, 400)),
        ("aten::sum", (X,), (), (400, 0)),
        ("aten::add_", (HALF, X), (), (600, 200)),  # changed in place: the first
        ("aten::copy_", (HALF, X), (HALF,), (400, 200)),
        ("aten::_foreach_add_", (X, X), (), (800, 400)),  # two lists of one tensor
        ("aten::_foreach_addcdiv_", (X, X, X), (), (1200, 400)),
        ("aten::_foreach_zero_", (X, X), (), (0, 800)),
        ("aten::_foreach_norm", (X, X), (), (800, 0)),
        ("aten::_fused_adamw_", (X, X, X, X), (), (1600, 1200)),
        ("aten::index_select", (TensorInfo((10_000,), "float32"), TensorInfo((100,), "int64")), (X,), (1200, 400)),
    ],
)
def test_bytes_by_hand(
    name: str, inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...], expected: tuple[int, int]
) -> None:
    assert traffic(name, *inputs, outputs=outputs) == expected


def test_copies_from_the_host_and_lists_of_tensors_by_hand() -> None:
    host = TensorInfo((100,), "float32", device="cpu")
    copy = Operation(name="aten::_to_copy", phase="other", inputs=(host,), outputs=(X,))
    assert crosses_host_link(copy)
    assert transfer_of(copy)[0].operation == "host_copy"
    assert transfer_of(copy)[0].dims == (400.0,)
    assert not crosses_host_link(Operation(name="aten::_to_copy", phase="other", inputs=(X,), outputs=(X,)))
    one = Operation(name="aten::_foreach_mul_", phase="optimizer", inputs=(X, X), arguments={"scalar": 0.9})
    two = Operation(name="aten::_foreach_mul_", phase="optimizer", inputs=(X, X))
    assert (bytes_written(one), bytes_written(two)) == (800, 400)
    assert transfer_of(Operation(name="my::marker", phase="forward")) == ()


def test_ada_boards_without_ecc_are_faster_than_measured_ones() -> None:
    x = TensorInfo((4096, 4096), "float32")
    step = Trace(
        operations=(Operation(name="aten::relu", phase="forward", inputs=(x,), outputs=(x,)),),
        device="meta",
        recorder="dispatch",
    )
    names = ("RTX-4090", "L4")
    times = predict_work_times(step, [gpu(name) for name in names], origin=None, models=None)
    alone = predict_work_times(step, [gpu("L4")], origin=None, models=None)
    np.testing.assert_allclose(times.seconds[1], alone.seconds[0])
    # 2 x 64 MiB at four fifths of 1,008 GB/s, and 2 µs.
    without = 2 * 4096 * 4096 * 4 / (0.8 * gpu("RTX-4090").dram_bytes_per_second) + 2e-6
    assert times.seconds[0, 0] == pytest.approx(without * ADA_WITHOUT_ECC_TIME, rel=1e-6)
