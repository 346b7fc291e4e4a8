"""No prediction is faster than a data sheet allows: all GPUs, precisions and kinds of large shapes."""

import numpy as np
import pytest

from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.hardware.records import NVIDIA, Gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import OperationShape, batch_shapes, shape_batch
from lightning_predict.kernels.timing import predict_operation_times

GPUS = [one for one in map(gpu, gpu_names()) if one.vendor == NVIDIA]
IMAGES: dict[str, float] = {
    "batch": 64,
    "in_channels": 256,
    "out_channels": 256,
    "image_size": 56,
    "kernel_size": 3,
    "padding": 1,
}
POINTS: dict[str, float] = {"batch": 64, "in_channels": 512, "out_channels": 512, "image_size": 28, "kernel_size": 1}
PRODUCTS: dict[str, list[tuple[str, dict[str, float]]]] = {
    "linear": [("linear", {"m": 8192, "n": 8192, "k": 8192}), ("linear", {"m": 8191, "n": 4099, "k": 4097})],
    "bmm": [("bmm", {"b": 96, "m": 1024, "n": 1024, "k": 64})],
    "convolutions": [(f"conv2d{half}", shape) for half in ("", "_backward_weight") for shape in (IMAGES, POINTS)],
    "attention": [("attention", {"batch": 16, "heads": 16, "seq": 4096, "head_dim": 128, "causal": 0})],
}
DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16")


def operation_shape(operation: str, dtype: str, shape: dict[str, float]) -> OperationShape:
    columns = shape_batch(operation, dtype, **shape).columns
    return OperationShape(operation, dtype, tuple(float(column[0]) for column in columns.values()))


def highest_rate(card: Gpu, operation: str, dtype: str) -> float:
    """FLOP/s of the fastest units at the highest clock. cuDNN uses no tensor cores for convolutions in float64."""
    has_units = dtype != "float64" or not operation.startswith("conv")
    return card.overclock * max(card.lanes_peak(dtype), (card.peak(dtype) or 0.0) if has_units else 0.0)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, dtype) for kind in PRODUCTS for dtype in DTYPES if (kind, dtype) != ("attention", "tf32")],
)
def test_no_product_is_faster_than_its_units(kind: str, dtype: str) -> None:
    shapes = [operation_shape(operation, dtype, shape) for operation, shape in PRODUCTS[kind]]
    times = predict_operation_times(shapes, GPUS, kernel_models(tuple(card.name for card in GPUS))).seconds
    batches = [batch_shapes([one]) for one in shapes]
    # Winograd's algorithm saves multiplications, but not in float64.
    work = [float((one.flops if dtype == "float64" else one.minimum_flops)[0]) for one in batches]
    for card, row in zip(GPUS, times, strict=True):
        for one, flops, seconds in zip(shapes, work, row, strict=True):
            rate = highest_rate(card, one.operation, dtype)
            assert flops / seconds <= 1.001 * rate, (card.name, one, flops / seconds / 1e12, rate / 1e12)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("operation", ["add", "relu", "softmax", "layer_norm", "gelu"])
def test_nothing_moves_faster_than_the_memory(operation: str, dtype: str) -> None:
    one = operation_shape(operation, dtype, {"rows": 262144, "cols": 8192})  # 4 to 8 GiB: no cache holds them
    times = predict_operation_times([one], GPUS, kernel_models(tuple(card.name for card in GPUS))).seconds[:, 0]
    moved = float(batch_shapes([one]).bytes_moved[0])
    bandwidths = np.array([card.dram_bytes_per_second for card in GPUS])
    too_fast = [card.name for card, rate in zip(GPUS, moved / times / bandwidths, strict=True) if rate > 1.001]
    assert not too_fast
