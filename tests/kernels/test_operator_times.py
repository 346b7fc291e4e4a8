"""Every operation has a time on a measured and an unmeasured GPU, one by one and as arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lightning_predict as lp
from lightning_predict.base.errors import UnknownOperationError
from lightning_predict.kernels.operations import operation_names, operation_spec

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
    for gpu, dtype in (("T4", "float32"), ("RTX-4090", "bfloat16")):
        one, other = (seconds(operation, gpu, dtype, words | {first: value}) for value in (16, 48))
        assert ((one > 0) & (one < 1)).all()
        both = seconds(operation, gpu, dtype, words | {first: np.array([[16], [48]])})
        assert both.shape == (2, 1)
        np.testing.assert_allclose(both, np.stack([[one], [other]]), rtol=1e-5)
        assert isinstance(lp.operator_seconds(operation, gpu, dtype=dtype, **words), float)


def test_values_that_are_no_names_are_refused_in_words() -> None:
    trace: Any = lp.Trace(operations=(), device="cpu", recorder="profiler")
    with pytest.raises(lp.LightningPredictError, match=r"^Operation Trace\(0 operations.* is not known\. Known"):
        lp.operator_seconds(trace, "T4", m=1, n=1, k=1)
    with pytest.raises(lp.LightningPredictError, match="is not the name of a GPU; give a text, for example 'L4'"):
        lp.operator_seconds("linear", trace, m=1, n=1, k=1)


def test_errors_list_the_names_and_the_shape_words() -> None:
    with pytest.raises(UnknownOperationError, match=r"'conv4d' is not known\. Known operations: .*conv1d.*conv3d"):
        lp.operator_seconds("conv4d", "T4", batch=1)
    with pytest.raises(
        UnknownOperationError, match=r"'conv1d' does not take \['height'\].*needs .*'length'.*Its shape parameters"
    ):
        lp.operator_seconds("conv1d", "T4", batch=1, height=3)
