import math

import pytest

import lightning_predict.kernels  # noqa: F401  (registers the operations)
from lightning_predict.kernels.families.convolution import as_matmul
from lightning_predict.kernels.operations import (
    OperationShape,
    batch_shapes,
    network_spec,
    operation_shape,
    surrogates_of,
)

CONVOLUTION = {"batch": 2, "in_channels": 8, "out_channels": 16, "image_size": 10, "kernel_size": 3, "padding": 1}


def total_flops(item: OperationShape) -> float:
    return math.fsum(part.times * float(batch_shapes([part.shape]).flops[0]) for part in surrogates_of(item))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", ["conv2d", "conv2d_backward_input", "conv2d_backward_weight"])
def test_every_pass_of_a_convolution_is_a_product_of_the_same_flops(name: str, stride: int) -> None:
    item = operation_shape(name, "float32", **CONVOLUTION, stride=stride)
    product = as_matmul(item)
    assert product is not None
    assert float(batch_shapes([product]).flops[0]) == float(batch_shapes([item]).flops[0])


def test_implicit_products_of_a_convolution_by_hand() -> None:
    product = as_matmul(operation_shape("conv2d_backward_input", "float32", **CONVOLUTION))
    # 2 images of 10 x 10 positions, 8 x 3 x 3 taps, 16 filters to sum over.
    assert product == operation_shape("linear", "float32", m=200, n=72, k=16)
    assert as_matmul(operation_shape("conv2d", "float32", **CONVOLUTION, groups=4)) is None
    product = as_matmul(operation_shape("conv2d", "bfloat16", **CONVOLUTION))
    # 2 images of 10 x 10 positions, 16 filters, 8 x 3 x 3 taps.
    assert product == operation_shape("linear", "bfloat16", m=200, n=16, k=72)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "lstm_backward"])
def test_a_recurrent_layer_becomes_products_of_the_same_flops(name: str) -> None:
    item = operation_shape(name, "float16", batch=4, steps=7, input_size=32, hidden=64, layers=3, directions=2)
    assert math.isclose(total_flops(item), float(batch_shapes([item]).flops[0]))


def test_recurrent_layers_are_small_products_in_a_wave_of_layers_and_directions() -> None:
    inputs, state, gates, waiting = surrogates_of(
        operation_shape("lstm", "float16", batch=4, steps=7, input_size=32, hidden=64)
    )
    assert (inputs.times, inputs.shape) == (1, operation_shape("linear", "float16", m=28, n=256, k=32))
    assert (state.times, state.shape) == (7, operation_shape("linear", "float16", m=4, n=256, k=64))
    # 4 rows of 2 bytes: 256 gates from the input, 256 from the state and 64 cells in; gates, cells and states out.
    assert (gates.times, gates.shape.dims) == (7, (4 * 2 * 576, 4 * 2 * 384, 0))
    assert (waiting.times, sum(waiting.shape.dims)) == (7 * 5, 8)
    item = operation_shape("gru", "float16", batch=4, steps=7, input_size=32, hidden=64, layers=3)
    *layers, state, gates, waiting = surrogates_of(item)
    assert [part.shape.dims for part in layers] == [(1, 28, 192, 32), (1, 28, 192, 64), (1, 28, 192, 64)]
    # Three layers at a time, each a step behind the one below it.
    assert (state.times, state.shape) == (7, operation_shape("bmm", "float16", b=3, m=4, n=192, k=64))
    assert (gates.times, gates.shape.dims) == (7, (3 * 4 * 2 * 448, 3 * 4 * 2 * 320, 0))
    # Two steps more until the last layer has begun.
    assert waiting.times == (7 + 2) * 5
    item = operation_shape("lstm", "float16", batch=4, steps=7, input_size=32, hidden=64, layers=3, directions=2)
    state, _, waiting = surrogates_of(item)[-3:]
    assert (state.times, state.shape) == (3 * 7, operation_shape("bmm", "float16", b=2, m=4, n=256, k=64))
    assert waiting.times == 3 * 7 * 5


def test_the_weights_of_a_recurrent_layer_get_their_gradient_in_one_product() -> None:
    item = operation_shape("lstm_backward", "float16", batch=4, steps=7, input_size=32, hidden=64, directions=2)
    to_inputs, to_input_weight, to_state_weight, to_state = surrogates_of(item)[:4]
    assert (to_inputs.times, to_inputs.shape) == (2, operation_shape("linear", "float16", m=28, n=32, k=256))
    assert (to_input_weight.times, to_input_weight.shape) == (
        2,
        operation_shape("linear", "float16", m=256, n=32, k=28),
    )
    assert (to_state_weight.times, to_state_weight.shape) == (
        2,
        operation_shape("linear", "float16", m=256, n=64, k=28),
    )
    assert (to_state.times, to_state.shape) == (7, operation_shape("bmm", "float16", b=2, m=4, n=64, k=256))


@pytest.mark.parametrize("name", ["linear_backward", "bmm_backward"])
def test_the_backward_pass_of_a_product_is_two_products_of_its_size(name: str) -> None:
    item = operation_shape(name, "float32", b=3, m=5, n=7, k=11)
    to_data, to_weight = surrogates_of(item)
    assert total_flops(item) == float(batch_shapes([item]).flops[0]) == 2 * (2 * 3 * 5 * 7 * 11)
    if name == "linear_backward":  # (15 x 7) · (7 x 11) and (11 x 15) · (15 x 7)
        assert (to_data.shape.dims, to_weight.shape.dims) == ((1, 15, 11, 7), (1, 11, 7, 15))
    else:
        assert (to_data.shape.dims, to_weight.shape.dims) == ((3, 5, 11, 7), (3, 11, 7, 5))
    # Gradient, data and weight in; the gradients to data and weight out.
    weight = 7 * 11 * (3 if name == "bmm_backward" else 1)
    assert float(batch_shapes([item]).bytes_moved[0]) == 4 * (3 * 5 * 7 + 2 * 3 * 5 * 11 + 2 * weight)


@pytest.mark.parametrize("causal", [0, 1])
def test_eager_attention_is_its_parts(causal: int) -> None:
    words = {"batch": 2, "heads": 3, "seq": 16, "kv_seq": 32, "head_dim": 8, "causal": causal}
    item, backward = (
        operation_shape(name, "float32", **words) for name in ("eager_attention", "eager_attention_backward")
    )
    names = [part.shape.operation for part in surrogates_of(item)]
    assert names == ["bmm", "mul_scalar", *["add_scalar"] * causal, "softmax", "bmm"]
    for shape in (item, backward):
        products = [part for part in surrogates_of(shape) if part.shape.operation == "bmm"]
        flops = sum(part.times * float(batch_shapes([part.shape]).flops[0]) for part in products)
        assert flops == float(batch_shapes([shape]).flops[0])  # no product is spared by the mask
    assert float(batch_shapes([backward]).flops[0]) == 2 * float(batch_shapes([item]).flops[0])


def test_norms_and_softmax_are_multiples_of_their_bytes_without_networks() -> None:
    words = {"rows": 64, "cols": 100}
    for suffix in ("", "_backward"):
        (part,) = surrogates_of(operation_shape(f"log_softmax{suffix}", "float32", **words))
        assert part.shape == operation_shape(f"softmax{suffix}", "float32", **words)
    forward = operation_shape("layer_norm", "float32", rows=8, cols=16)
    (part,) = surrogates_of(OperationShape("layer_norm_backward", forward.dtype, forward.dims))
    assert (part.times, part.shape) == (2.2, forward)
    # A network that knows them by their counts alone would come first.
    for name in ("layer_norm_backward", "rms_norm", "rms_norm_backward"):
        assert network_spec(name, "float32") is None
        assert surrogates_of(operation_shape(name, "bfloat16", rows=64, cols=100))
    item = operation_shape("rms_norm", "bfloat16", rows=64, cols=100)
    (part,) = surrogates_of(item)
    assert (part.times, part.shape.operation) == (1.0, "transfer")
    assert part.shape.dims[:2] == (64 * 100 * 2, 64 * 100 * 2)  # read once, written once
    (backward,) = surrogates_of(OperationShape("rms_norm_backward", item.dtype, item.dims))
    assert (backward.times, backward.shape) == (2.2, item)
    item = operation_shape("batch_norm", "bfloat16", rows=64, cols=100)
    (part,) = surrogates_of(item)
    assert part.shape.operation == "transfer"
    assert sum(part.shape.dims[:2]) == float(batch_shapes([item]).bytes_moved[0])
    assert surrogates_of(operation_shape("linear", "bfloat16", m=1, n=1, k=1)) == ()
