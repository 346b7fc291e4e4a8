"""Products A·Bᵀ: in float32 slower than A·B where power limits the lanes, in TF32 faster on Hopper."""

import numpy as np
import pytest

from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.kernels.corrections import transposed_matmuls
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.roofline import TRANSPOSED_WATTS, transposed_ratio
from lightning_predict.record.operand_strides import SECOND_TRANSPOSED
from lightning_predict.record.trace import Flags, Operation, TensorInfo, Trace


def tensor(number: int, *shape: int, dtype: str = "float32") -> TensorInfo:
    return TensorInfo(shape, dtype, id=number)


def view(name: str, before: TensorInfo, after: TensorInfo, phase: str = "forward", **arguments: object) -> Operation:
    return Operation(name=name, phase=phase, inputs=(before,), outputs=(after,), arguments=arguments)  # type: ignore[arg-type]


def product(left: TensorInfo, right: TensorInfo, **arguments: object) -> Operation:
    return Operation(name="aten::mm", phase="forward", inputs=(left, right), arguments=dict(arguments))


def test_views_tell_what_lies_transposed() -> None:
    data, weight, turned = tensor(0, 8, 4), tensor(1, 2, 4), tensor(1, 4, 2)
    transposing = [
        view("aten::t", weight, turned),
        view("aten::transpose", weight, turned, dim0=-2, dim1=-1),
        view("aten::permute", weight, turned, dims=[1, 0]),
    ]
    for each in transposing:
        assert transposed_matmuls((each, product(data, turned))) == {1}
    # Turned back, and a matrix of as many rows that was not turned.
    back = view("aten::t", turned, weight, phase="backward")
    assert transposed_matmuls((transposing[0], back, product(tensor(2, 8, 2), weight))) == set()
    assert transposed_matmuls((product(data, tensor(3, 4, 2)),)) == set()


def test_transposed_operands_follow_views_batches_and_recorded_strides() -> None:
    data, weight = tensor(0, 8, 4), tensor(1, 4, 4)
    forward = view("aten::t", weight, weight)
    again = (forward, product(data, weight), forward, product(data, weight))  # one weight, used twice
    backward = (view("aten::t", weight, weight, phase="backward"), product(data, weight))
    assert transposed_matmuls((*again, *backward)) == {1, 3}
    keys, turned, folded = tensor(0, 2, 3, 5, 4), tensor(0, 2, 3, 4, 5), tensor(0, 6, 4, 5)
    steps = (view("aten::transpose", keys, turned, dim0=2, dim1=3), view("aten::view", turned, folded))
    batched = Operation(name="aten::bmm", phase="forward", inputs=(tensor(1, 6, 5, 4), folded))
    assert transposed_matmuls((*steps, batched)) == {2}
    noted = product(data, weight, **{SECOND_TRANSPOSED: True})
    assert transposed_matmuls((view("aten::t", weight, weight), product(data, weight), noted)) == {2}


def test_power_decides() -> None:
    # L40S: 91.6 TFLOP/s of lanes x 4.6 x 0.83 W ask for 350 W, which it has: sqrt(1 + 1.6^2) / sqrt(1 + 1).
    assert transposed_ratio(gpu("L40S"), "float32") == pytest.approx(1.33, abs=0.01)
    assert transposed_ratio(gpu("A100-SXM-80GB"), "float32") < 1.03 < transposed_ratio(gpu("H100-PCIe-80GB"), "float32")
    # T4: 8.1 TFLOP/s of lanes x 4.6 x 1.7 W ask for 64 W of its 70: sqrt(1 + (1.6 x 0.91)^2) / sqrt(1 + 0.91^2).
    assert transposed_ratio(gpu("T4"), "float32") == pytest.approx(1.30, abs=0.01)
    for name in gpu_names():
        assert 1 <= transposed_ratio(gpu(name), "float32") < TRANSPOSED_WATTS
        assert transposed_ratio(gpu(name), "bfloat16") == 1
        # Without matrix units for it, TF32 is float32.
        has_units = "tf32" in gpu(name).peak_flops_per_second
        assert transposed_ratio(gpu(name), "tf32") == (1 if has_units else transposed_ratio(gpu(name), "float32"))


def test_a_transposed_product_is_faster_in_tf32_on_hopper_alone_and_tf32_is_never_slower() -> None:
    left, right = tensor(0, 2048, 8192), tensor(1, 8192, 4096)
    plain, turned = (product(left, right), product(left, right, **{SECOND_TRANSPOSED: True}))
    gpus, models = [gpu(name) for name in gpu_names()], kernel_models(gpu_names())

    def seconds(step: Operation, *, tf32: bool) -> Array:
        trace = Trace(operations=(step,), device="meta", recorder="dispatch", flags=Flags(matmul_tf32=tf32))
        return predict_work_times(trace, gpus, origin=None, models=models).interval.middle[:, 0]

    is_hopper = np.array([card.generation.chip == "hopper" for card in gpus])
    assert (seconds(turned, tf32=False) >= seconds(plain, tf32=False)).all()
    assert ((seconds(turned, tf32=True) >= seconds(plain, tf32=True)) | is_hopper).all()
    assert (seconds(turned, tf32=True) <= (1 + 1e-6) * seconds(turned, tf32=False)).all()  # equal but for rounding


@pytest.mark.parametrize(("name", "ratio"), [("L40S", 1.33), ("T4", 1.0)])
def test_only_gpus_whose_rate_is_that_of_other_products_take_longer(name: str, ratio: float) -> None:
    """The T4's own network was trained on A·Bᵀ. KernelBench: 4.26 and 2.88 ms on the L40S, 2048 x 4096 x 8192."""
    left, right = tensor(0, 2048, 8192), tensor(1, 8192, 4096)
    plain, turned = (
        Trace(operations=(operation,), device="meta", recorder="dispatch")
        for operation in (product(left, right), product(left, right, **{SECOND_TRANSPOSED: True}))
    )
    intervals = [
        predict_work_times(trace, [gpu(name)], origin=None, models=kernel_models((name,))).interval
        for trace in (plain, turned)
    ]
    for end in ("low", "middle", "high"):
        before, after = (float(getattr(each, end)[0, 0]) for each in intervals)
        assert after / before == pytest.approx(ratio, abs=0.01), end
    if name == "L40S":
        assert float(intervals[1].middle[0, 0]) == pytest.approx(4.26e-3, rel=0.1)


@pytest.mark.parametrize(
    ("name", "is_tf32", "gain"),
    [("H200-SXM-141GB", True, 1.3), ("H200-SXM-141GB", False, 1.0), ("A100-SXM-80GB", True, 1.0)],
)
def test_on_hopper_gradients_of_a_tf32_layer_run_with_instructions_of_ampere(
    name: str, is_tf32: bool, gain: float
) -> None:
    """ViT-S on our H200: 95 us forward, 137 us for the gradient of the data, 195 us for that of the weight."""
    dtype = "float32" if is_tf32 else "bfloat16"
    data, weight = tensor(0, 25_216, 384, dtype=dtype), tensor(1, 384, 1_536, dtype=dtype)
    products = (product(data, weight, **{SECOND_TRANSPOSED: True}), product(data, weight))
    trace = Trace(operations=products, device="meta", recorder="dispatch", flags=Flags(matmul_tf32=True))
    work = predict_work_times(trace, [gpu(name)], origin=None, models=kernel_models((name,)))
    along, across = work.interval.middle[0]
    flops = 2 * 25_216 * 384 * 1_536
    assert across / along == pytest.approx(gain, rel=0.05)
    if gain > 1:
        assert across == pytest.approx(flops / (0.8 * 1024 * 132 * 1.98e9), rel=1e-3)
