from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lightning_predict as lp
import lightning_predict.kernels
from lightning_predict.base.errors import UnknownOperationError
from lightning_predict.hardware import gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import OperationShape, operation_names, operation_shape, operation_spec
from lightning_predict.kernels.timing import BOUNDS, KernelModels, explain, predict_operation_times, source_of
from tests.example_gpu import SMALL
from tests.kernels.example_models import half_speed

LINEAR = operation_shape("linear", "float32", m=512, n=512, k=512)
GROUPED = operation_shape(
    "conv2d", "float32", batch=8, in_channels=64, out_channels=64, image_size=16, kernel_size=3, groups=8
)
PLAIN = operation_shape("conv2d", "float32", batch=8, in_channels=64, out_channels=64, image_size=16, kernel_size=3)


@pytest.mark.parametrize(
    ("item", "models", "name"),
    [
        (LINEAR, half_speed("linear/float32"), "network"),
        (PLAIN, half_speed("conv2d/float32"), "network"),
        (GROUPED, half_speed("conv2d/float32"), "formula"),  # networks saw no groups
        (replace(PLAIN, dtype="tf32"), half_speed("conv2d/bfloat16"), "formula"),  # before the sibling's network
        (replace(LINEAR, dtype="tf32"), half_speed("linear/bfloat16"), "sibling dtype"),
        (operation_shape("linear_backward", "float32", m=8, n=8, k=8), half_speed("linear/float32"), "proxy"),
        (LINEAR, half_speed("add/float32"), "roofline"),
        (GROUPED, None, "roofline"),
        (operation_shape("linear_backward", "float32", m=8, n=8, k=8), None, "roofline"),
    ],
)
def test_the_first_source_that_knows_a_shape_times_it(
    item: OperationShape, models: KernelModels | None, name: str
) -> None:
    assert source_of(item, models) == name
    assert explain(item, SMALL, models).source == name


def test_last_source_knows_every_shape_and_a_proxy_names_its_parts() -> None:
    assert source_of(GROUPED, None) == "roofline"
    explanation = explain(LINEAR, SMALL, half_speed("linear/float32"))
    assert explanation.limits == ()
    assert explanation.sourced_seconds == explanation.interval.middle
    item = operation_shape("linear_backward", "float32", m=8, n=16, k=32)
    parts = explain(item, SMALL, half_speed("linear/float32")).parts
    assert [part.shape.dims for part in parts] == [(1.0, 8.0, 32.0, 16.0), (1.0, 32.0, 16.0, 8.0)]


def test_an_explanation_ends_at_the_prediction_and_names_what_moved_it() -> None:
    models = kernel_models(("H200-SXM-141GB",))
    # Rows of 49,160 numbers do not stay in shared memory: they are read again from memory.
    item = operation_shape("softmax", "float32", rows=8192, cols=12290 * 4)
    explanation = explain(item, gpu("H200-SXM-141GB"), models)
    times = predict_operation_times([item], [gpu("H200-SXM-141GB")], models)
    assert explanation.interval.middle == times.seconds[0, 0]
    names = [name for name, _ in explanation.limits]
    assert names[-1] == "instructions and waiting"
    assert names == [limit.name for limit in BOUNDS if limit.name in names]
    assert explanation.limits[-1][1] == explanation.interval.middle


def test_times_keep_to_the_least_work_and_tf32_doubles_all_but_the_start() -> None:
    models = kernel_models(("L4",))
    for item in (LINEAR, GROUPED, PLAIN):
        single = predict_operation_times([item], [gpu("L4")], models)
        lower = predict_operation_times([replace(item, dtype="tf32")], [gpu("L4")], models)
        assert lower.seconds[0, 0] <= single.seconds[0, 0] * (1 + 1e-6)
        assert np.all(single.interval.low <= single.seconds)
    b200 = gpu("B200-SXM-180GB")  # half of bfloat16's rate in TF32, and twice the bytes
    sizes = ({"m": 64, "n": 512, "k": 2048}, {"m": 512, "n": 2048, "k": 2048}, {"m": 8192, "n": 8192, "k": 8192})
    items = [operation_shape("linear", dtype, **size) for dtype in ("bfloat16", "tf32") for size in sizes]
    half, whole = predict_operation_times(items, [b200], kernel_models((b200.name,))).seconds[0].reshape(2, 3)
    start = 2e-6  # of a kernel with nothing to do
    np.testing.assert_allclose(whole, start + 2 * (half - start), rtol=1e-6)


# What users ask for by these names, and must not lose.
WANTED = (
    "linear bmm conv1d conv2d conv3d conv_transpose2d attention eager_attention lstm gru rnn layer_norm rms_norm "
    "batch_norm group_norm softmax log_softmax cross_entropy add sub mul div pow relu gelu tanh sigmoid silu exp sqrt "
    "sum mean max argmax avg_pool2d max_pool2d embedding embedding_bag concat copy cast scatter gather sort topk "
    "dropout adam adamw sgd adagrad host_copy transfer"
).split()
BACKWARD = (
    "linear bmm attention eager_attention lstm gru rnn layer_norm rms_norm batch_norm group_norm softmax log_softmax "
    "cross_entropy relu gelu tanh sigmoid silu avg_pool2d max_pool2d embedding embedding_bag dropout"
).split()
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose2d")
COMPUTING = [name for name in operation_names() if operation_spec(name).units != "fabric"]


def example(operation: str) -> dict[str, float]:
    kind = operation_spec(operation)
    words = {word: 16.0 for word in kind.shape if word not in kind.defaults}
    return words | {word: 3.0 for word in words if word.startswith("kernel")} or {"read_bytes": 64.0}


def seconds(operation: str, gpu: str, dtype: str, words: dict[str, Any]) -> npt.NDArray[np.float64]:
    return np.asarray(lp.operator_seconds(operation, gpu, dtype=dtype, **words), dtype=np.float64)


def test_what_was_asked_for_is_there_forward_and_backward() -> None:
    known = set(operation_names())
    assert set(WANTED) <= known
    assert {f"{name}_backward" for name in BACKWARD} <= known
    assert {f"{name}_backward_{side}" for name in CONVOLUTIONS for side in ("input", "weight")} <= known


@pytest.mark.parametrize("operation", COMPUTING)
def test_an_array_gives_the_times_of_its_values(operation: str) -> None:
    words: dict[str, Any] = example(operation)
    first = next(iter(words))
    for card, dtype in (("T4", "float32"), ("RTX-4090", "bfloat16")):
        one, other = (seconds(operation, card, dtype, words | {first: value}) for value in (16, 48))
        assert ((one > 0) & (one < 1)).all()
        both = seconds(operation, card, dtype, words | {first: np.array([[16], [48]])})
        assert both.shape == (2, 1)
        np.testing.assert_allclose(both, np.stack([[one], [other]]), rtol=1e-5)
        assert isinstance(lp.operator_seconds(operation, card, dtype=dtype, **words), float)


def test_unknown_names_values_and_shape_words_are_refused_in_words() -> None:
    trace: Any = lp.Trace(operations=(), device="cpu", recorder="profiler")
    with pytest.raises(lp.LightningPredictError, match=r"^Operation Trace\(0 operations.* is not known\. Known"):
        lp.operator_seconds(trace, "T4", m=1, n=1, k=1)
    with pytest.raises(lp.LightningPredictError, match="is not the name of a GPU; give a text, for example 'L4'"):
        lp.operator_seconds("linear", trace, m=1, n=1, k=1)
    with pytest.raises(UnknownOperationError, match=r"'conv4d' is not known\. Known operations: .*conv1d.*conv3d"):
        lp.operator_seconds("conv4d", "T4", batch=1)
    with pytest.raises(
        UnknownOperationError, match=r"'conv1d' does not take \['height'\].*needs .*'length'.*Its shape parameters"
    ):
        lp.operator_seconds("conv1d", "T4", batch=1, height=3)
