from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lightning_predict as lp
import lightning_predict.kernels  # registers the translators
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.kernels import operations
from lightning_predict.kernels.memory_bound import FREE_OPERATIONS
from lightning_predict.kernels.operations import OperationShape, batch_shapes, operation_shape, translates
from lightning_predict.kernels.translation import multi_tensor_launches, translate, work_items
from lightning_predict.record.operand_strides import CHANNELS_LAST
from lightning_predict.record.trace import Flags, Kernel, Operation, Phase, TensorInfo, Trace

RECORDED = Path(__file__).parents[2] / "benchmarks" / "measured" / "H200-SXM-141GB" / "recordings" / "gpt2.json.gz"
"""A step of GPT-2 with AdamW on an H200."""


def tensor(*shape: int, dtype: str = "float32", device: str | None = None) -> TensorInfo:
    return TensorInfo(shape, dtype, device=device)


def translated(
    name: str, *inputs: TensorInfo, flags: Flags | None = None, **arguments: Any
) -> tuple[OperationShape, ...]:
    operation = Operation(name=name, phase="forward", inputs=inputs, arguments=arguments)
    return translate(operation, flags or Flags(cudnn_tf32=False))


def test_products_use_tf32_where_the_flags_allow_it() -> None:
    expected = operation_shape("linear", "float32", m=8, n=4, k=16)
    assert translated("aten::mm", tensor(8, 16), tensor(16, 4)) == (expected,)
    assert translated("aten::addmm", tensor(4), tensor(8, 16), tensor(16, 4)) == (expected,)
    assert translated("aten::linear", tensor(2, 4, 16), tensor(4, 16)) == (expected,)
    assert translated("aten::mv", tensor(8, 16), tensor(16)) == (operation_shape("linear", "float32", m=8, n=1, k=16),)
    batched = operation_shape("bmm", "float32", b=3, m=8, n=4, k=16)
    assert translated("aten::bmm", tensor(3, 8, 16), tensor(3, 16, 4)) == (batched,)
    assert translated("aten::baddbmm", tensor(3, 8, 4), tensor(3, 8, 16), tensor(3, 16, 4)) == (batched,)
    flags = Flags(matmul_tf32=True, cudnn_tf32=True)
    assert translated("aten::mm", tensor(8, 16), tensor(16, 4), flags=flags)[0].dtype == "tf32"
    half = tensor(8, 16, dtype="float16")
    assert translated("aten::mm", half, half, flags=flags)[0].dtype == "float16"
    assert translated("aten::mm", tensor(8, 16), tensor(16, 4), flags=Flags(cudnn_tf32=True))[0].dtype == "float32"


def test_convolutions_of_lines_images_and_volumes_by_hand() -> None:
    got = translated("aten::convolution", tensor(2, 3, 8, 6), tensor(4, 3, 3, 5), stride=[2, 1], padding=[1, 2])
    words = {"batch": 2, "in_channels": 3, "out_channels": 4, "height": 8, "width": 6}
    words |= {"kernel_height": 3, "kernel_width": 5, "stride_height": 2, "stride_width": 1}
    assert got == (operation_shape("conv2d", "float32", **words, padding_height=1, padding_width=2),)
    got = translated("aten::convolution", tensor(2, 3, 100), tensor(4, 3, 5), stride=[2], padding=[2], dilation=[1])
    words = {"batch": 2, "in_channels": 3, "out_channels": 4, "height": 1, "width": 100, "kernel_height": 1}
    words |= {"kernel_width": 5, "stride_height": 1, "stride_width": 2, "padding_width": 2}
    assert got == (operation_shape("conv2d", "float32", **words),)
    from lightning_predict.kernels.operations import batch_shapes

    got = translated("aten::convolution", tensor(2, 3, 6, 8, 8), tensor(4, 3, 3, 3, 3), padding=[1, 1, 1])
    # Output 2 x 4 x 6 x 8 x 8, each of 3 x 27 taps.
    assert float(batch_shapes(got).flops[0]) == 2 * (2 * 4 * 6 * 8 * 8) * (3 * 27)


def test_backward_passes_of_convolutions_have_the_halves_asked_for() -> None:
    gradient, data, weight = tensor(2, 4, 8, 8), tensor(2, 3, 8, 8), tensor(4, 3, 3, 3)
    names = ["conv2d_backward_input", "conv2d_backward_weight", "transfer"]
    for mask in ([True, True, True], [False, True, False], [True, False, False]):
        got = translated("aten::convolution_backward", gradient, data, weight, padding=[1, 1], output_mask=mask)
        assert [item.operation for item in got] == [name for name, wanted in zip(names, mask, strict=True) if wanted]
    arguments: dict[str, Any] = {"stride": [2, 2], "padding": [1, 1], "transposed": True, "groups": 1}
    arguments["output_padding"] = [0, 0]
    got = translated("aten::convolution", tensor(2, 16, 4, 4), tensor(16, 8, 4, 4), **arguments)
    # It writes 2 x 8 x 8 x 8: (4 - 1)·2 - 2 + 3 + 1 = 8; the matching convolution reads that and gives 16 channels.
    words = {"batch": 2, "in_channels": 8, "out_channels": 16, "image_size": 8, "kernel_size": 4}
    assert got == (operation_shape("conv2d_backward_input", "float32", **words, stride=2, padding=1),)
    backward = translated(
        "aten::convolution_backward",
        tensor(2, 8, 8, 8),
        tensor(2, 16, 4, 4),
        tensor(16, 8, 4, 4),
        **arguments,
        output_mask=[True, True, False],
    )
    assert [item.operation for item in backward] == ["conv2d", "conv2d_backward_weight"]
    assert backward[0].dims == got[0].dims


def test_whole_attention_and_its_parts_in_double_precision() -> None:
    query, key = tensor(2, 8, 128, 64, dtype="bfloat16"), tensor(2, 2, 256, 64, dtype="bfloat16")
    words = {"batch": 2, "heads": 8, "kv_heads": 2, "seq": 128, "kv_seq": 256, "head_dim": 64}
    for is_causal in (False, True):
        got = translated("aten::scaled_dot_product_attention", query, key, key, is_causal=is_causal)
        assert got == (operation_shape("attention", "bfloat16", causal=is_causal, **words),)
        back = translated("aten::scaled_dot_product_attention_backward", query, key, key, is_causal=is_causal)
        assert back == (operation_shape("attention_backward", "bfloat16", causal=is_causal, **words),)
    query = tensor(2, 8, 16, 4, dtype="float64")
    got = translated("aten::scaled_dot_product_attention", query, query, query)
    assert [item.operation for item in got] == ["bmm", "bmm", "softmax"]
    back = translated("aten::scaled_dot_product_attention_backward", query, query, query)
    assert [item.operation for item in back] == ["bmm"] * 4 + ["softmax_backward", "mul"]


def test_softmax_takes_two_kernels_backward_and_autocast_decides_dtypes() -> None:
    """`softmax_backward_cuda_out` makes `grad * output` first; `log_softmax_backward_cuda_out` does not."""
    grad = tensor(4, 8, 128, dtype="bfloat16")
    matrix = {"rows": 32, "cols": 128}
    summed = operation_shape("softmax_backward", "bfloat16", **matrix)
    got = translated("aten::_softmax_backward_data", grad, grad, dim=-1)
    assert got == (summed, operation_shape("mul", "bfloat16", **matrix))
    assert translated("aten::_log_softmax_backward_data", grad, grad, dim=-1) == (summed,)
    assert translated("aten::_softmax_backward_data", tensor(0, 8), tensor(0, 8), dim=-1) == ()
    query = tensor(2, 8, 16, 4)
    got = translated("aten::scaled_dot_product_attention", query, query, query, compute_dtype="bfloat16")
    assert got[0].dtype == "bfloat16"
    layer = translated("aten::gru", tensor(20, 4, 32), tensor(1, 4, 64), num_layers=1, compute_dtype="float16")
    assert layer[0].dtype == "float16"
    allowed = Flags(matmul_tf32=True, cudnn_tf32=False)
    # PyTorch's memory-efficient kernel keeps the precision of float32, for all settings of matmuls.
    assert translated("aten::scaled_dot_product_attention", query, query, query, flags=allowed)[0].dtype == "float32"


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_recurrent_layer_whole(batch_first: bool) -> None:
    data = tensor(4, 20, 32) if batch_first else tensor(20, 4, 32)
    got = translated("aten::lstm", data, tensor(4, 4, 64), num_layers=2, bidirectional=True, batch_first=batch_first)
    words = {"batch": 4, "steps": 20, "input_size": 32, "hidden": 64, "layers": 2, "directions": 2}
    assert got == (operation_shape("lstm", "float32", **words),)
    assert translated("aten::rnn_relu_backward", data, tensor(1, 4, 64), num_layers=1)[0].operation == "rnn_backward"


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("aten::add", {}, "add"),
        ("aten::mul_", {}, "mul"),
        ("aten::gelu", {}, "gelu"),
        ("aten::_softmax", {"dim": -1}, "softmax"),
        ("aten::native_layer_norm", {"normalized_shape": [16]}, "layer_norm"),
    ],
)
def test_vector_operations_are_rows_and_columns(name: str, arguments: dict[str, Any], expected: str) -> None:
    inputs = [tensor(2, 4, 16)] * (2 if expected in ("add", "mul") else 1)
    assert translated(name, *inputs, **arguments) == (operation_shape(expected, "float32", rows=8, cols=16),)


def test_scalars_and_broadcast_operands_move_only_the_bytes_there_are() -> None:
    assert translated("aten::mul", tensor(2, 16), other=2.0)[0].operation == "mul_scalar"
    assert translated("aten::mul", tensor(2, 16), tensor())[0].operation == "mul_scalar"
    on_gpu = replace(tensor(), device="cuda")  # it is loaded for each element
    assert translated("aten::mul", tensor(2, 16), on_gpu)[0].operation == "limited_transfer"
    operation = Operation(
        name="aten::add", phase="forward", inputs=(tensor(8, 16), tensor(16)), outputs=(tensor(8, 16),)
    )
    (got,) = translate(operation, Flags())
    assert got.operation == "limited_transfer"  # its elements are loaded one by one
    assert got.dims[:3] == (4 * (128 + 16), 4 * 128, 128)
    norm = translated("aten::native_batch_norm", tensor(4, 8, 5, 5), tensor(8), training=True)
    assert norm == (operation_shape("batch_norm", "float32", rows=32, cols=25, channels=8),)
    frozen = translated("aten::native_batch_norm", tensor(4, 8, 5, 5), tensor(8), training=False)
    assert frozen[0].operation == "transfer"


@pytest.mark.parametrize("is_last", [False, True])
def test_batch_norms_with_float16_weights_run_in_pytorchs_kernels_as_in_bfloat16(*, is_last: bool) -> None:
    """With channels last, the kernels of cuDNN were assumed, which takes float16 images with float32 weights only."""
    images = tensor(4, 8, 5, 5, dtype="float16")
    layout: dict[str, Any] = {CHANNELS_LAST: True} if is_last else {}
    for weights, dtype in (("float16", "bfloat16"), ("float32", "float16")):
        (got,) = translated("aten::native_batch_norm", images, tensor(8, dtype=weights), training=True, **layout)
        assert (got.operation, got.dtype) == ("batch_norm_last" if is_last else "batch_norm", dtype)


def test_an_embedding_reads_its_rows_and_its_gradient_writes_the_table() -> None:
    indices = tensor(4, 6, dtype="int64")
    assert translated("aten::embedding", tensor(1000, 32), indices) == (
        operation_shape("embedding", "float32", rows=24, cols=32),
    )
    got = translated("aten::embedding_dense_backward", tensor(4, 6, 32), indices, num_weights=1000)
    size = 4 * 24 * 32
    assert list(got[0].dims) == [2 * size, 4 * 1000 * 32 + size, 24 * 32]
    # A thread adds one element in float32; the table that is zeroed is of 16 bits.
    half = translated("aten::embedding_dense_backward", tensor(4, 6, 32, dtype="float16"), indices, num_weights=1000)
    assert list(half[0].dims) == [2 * size, 2 * 1000 * 32 + size, 24 * 32]
    bag = translated("aten::_embedding_bag", tensor(1000, 32), tensor(24, dtype="int64"), tensor(4, dtype="int64"))
    assert bag == (operation_shape("embedding_bag", "float32", bags=4, lookups=6, rows=1000, dim=32),)


@pytest.mark.parametrize("name", ["aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward"])
def test_the_gradient_of_a_table_is_zeroed_and_each_row_is_added_to_it(name: str) -> None:
    gradient, indices = tensor(4, 32), tensor(24, dtype="int64")
    zeroed, added = translated(name, gradient, indices, num_weights=1000, sparse=False)
    # 24 indices of 8 bytes are read and, sorted, written; 1,000 rows of 32 numbers of 4 bytes are zeroed.
    assert list(zeroed.dims) == [8 * 24, 4 * 1000 * 32 + 8 * 24, 0]
    assert added == operation_shape("embedding_bag_backward", "float32", bags=4, lookups=6, rows=1000, dim=32)


def test_sparse_gradients_and_losses_move_a_row_or_a_probability_each() -> None:
    gradient, indices = tensor(4, 32), tensor(24, dtype="int64")
    (copied,) = translated("aten::_embedding_bag_backward", gradient, indices, num_weights=1000, sparse=True)
    assert list(copied.dims) == [24 * 32 * 4 + 24 * 8] * 2 + [0]
    forward = translated("aten::nll_loss_forward", tensor(8, 1000), tensor(8, dtype="int64"))
    assert forward[0].dims[0] == 2 * 8 * 8
    backward = translated("aten::nll_loss_backward", tensor(), tensor(8, 1000), tensor(8, dtype="int64"))
    assert backward[0].dims[1] == 4 * 8 * 1000
    data, sizes, hidden = tensor(30, 8), tensor(10, dtype="int64"), tensor(1, 4, 16)
    got = translated("aten::lstm", data, sizes, hidden, num_layers=1, packed=True)
    assert got == (operation_shape("lstm", "float32", batch=3, steps=10, input_size=8, hidden=16),)


def test_views_are_free_unless_they_ran_a_kernel() -> None:
    assert translated("aten::view", tensor(4, 4)) == ()
    ran = Kernel(
        name="copy",
        seconds=1e-6,
        grid=(1, 1, 1),
        block=(1, 1, 1),
        registers_per_thread=0,
        shared_memory_bytes=0,
        stream=7,
        start_seconds=0,
    )
    operation = Operation(name="aten::reshape", phase="forward", inputs=(tensor(4, 4),), kernels=(ran,))
    assert translate(operation, Flags())[0].operation == "transfer"
    # Every operator of torch whose result is a view of its input, and none that computes.
    copying = {  # they are views only where nothing is to be done
        *"_autocast_to_full_precision _autocast_to_reduced_precision coalesce contiguous resolve_conj".split(),
        *"resolve_neg to _test_autograd_multiple_dispatch_view".split(),
    }
    views = set()
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, qualified = name.partition("::")
        if namespace != "aten":
            continue
        base, _, overload = qualified.partition(".")
        returns = torch._C._get_schema(f"aten::{base}", overload).returns
        if any(returned.alias_info is not None and not returned.alias_info.is_write for returned in returns):
            views.add(base)
    assert {name for name in views - copying if f"aten::{name}" not in FREE_OPERATIONS} == set()
    # Wrappers of autograd for complex numbers and negations around a view of itself.
    for name in ("aten::_conj", "aten::_neg_view", "aten::_reshape_alias"):
        assert translated(name, tensor(64, 64, dtype="complex64")) == ()


def test_unknown_operations_and_products_of_vectors_are_timed_by_their_bytes() -> None:
    operation = Operation(name="my::op", phase="forward", inputs=(tensor(100),), outputs=(tensor(50),))
    assert translate(operation, Flags()) == (
        operation_shape("transfer", "float32", read_bytes=400, write_bytes=200, flops=50),
    )
    got = translated("aten::mm", tensor(8, 16))
    assert got == (operation_shape("transfer", "float32", read_bytes=512, write_bytes=512, flops=128),)


operations.operation_names()  # loads all families, and their translators


@pytest.mark.parametrize("name", sorted(operations._TRANSLATORS))
def test_an_unusual_overload_falls_back_to_its_bytes_not_to_nothing(name: str) -> None:
    """For every call with one tensor of one dimension, no tensor or a scalar, no translator raises."""
    got = translated(name, tensor(8))
    assert got
    assert all(float(batch_shapes([shape]).bytes_moved[0]) > 0 for shape in got)
    assert translated(name) == ()
    translated(name, tensor())
    translated(name, tensor(0, 8), tensor(8, 0), tensor(0), tensor(0))


def _break_addmm(monkeypatch: pytest.MonkeyPatch) -> Trace:
    """A step with an addmm whose translator has a bug."""

    def broken(operation: Operation, flags: Flags) -> tuple[OperationShape, ...]:
        raise KeyError("mat3")

    monkeypatch.setitem(operations._TRANSLATORS, "aten::addmm", broken)
    product = Operation(
        name="aten::addmm",
        phase="forward",
        inputs=(tensor(4096), tensor(4096, 4096), tensor(4096, 4096)),
        outputs=(tensor(4096, 4096),),
    )
    return Trace(operations=(product,) * 2, device="meta", recorder="dispatch")


def test_second_translator_and_a_translators_bug_raise_in_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = _break_addmm(monkeypatch)
    with pytest.raises(KeyError, match="mat3"):
        work_items(trace)
    with pytest.raises(InvalidArgumentError, match="'aten::mm' has a translator already"):

        @translates("aten::mm")
        def other(operation: Operation, flags: Flags) -> tuple[OperationShape, ...]:
            return ()


def test_a_translators_bug_is_a_note_and_a_wide_interval_in_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTNING_PREDICT_STRICT")
    trace = _break_addmm(monkeypatch)
    predictions = lp.predict(trace, gpus=["H100-SXM-80GB"])
    (note,) = (note for note in predictions.notes if "addmm" in note)
    assert note == (
        "aten::addmm could not be translated (KeyError: 'mat3'; its tensors: [4096] float32, [4096, 4096] float32, "
        "[4096, 4096] float32). It is timed by the bytes of its tensors. Please report this."
    )
    monkeypatch.undo()
    meant = lp.predict(trace, gpus=["H100-SXM-80GB"])["H100-SXM-80GB"]
    broken = predictions["H100-SXM-80GB"]
    # The interval covers the time of a working translator, though the bytes alone are an order of magnitude below.
    assert broken.iteration_seconds < meant.iteration_seconds / 5
    assert broken.iteration_seconds_low <= meant.iteration_seconds <= broken.iteration_seconds_high


def _optimizer_trace(device: str) -> Trace:
    def update(name: str, phase: Phase = "optimizer") -> Operation:
        data = tensor(10)
        return Operation(name=name, phase=phase, inputs=(data, data), outputs=(data,))

    operations = (update("aten::relu", "forward"), *(update("aten::lerp_") for _ in range(3)), update("aten::view"))
    product = Operation(name="aten::mm", phase="optimizer", inputs=(tensor(8, 8), tensor(8, 8)))
    return Trace(operations=(*operations, update("aten::mul_"), product), device=device, recorder="dispatch")


def test_single_tensor_updates_and_dropout_are_one_kernel_off_cuda() -> None:
    items = work_items(_optimizer_trace("cpu"))
    # A product inside an optimizer (Muon, Shampoo) stays a product.
    assert [item.operations for item in items] == [(0,), (6,), (1, 2, 3), (5,)]
    # Three times two tensors of 40 bytes read and one written.
    assert items[2].shapes == (operation_shape("transfer", "float32", read_bytes=240, write_bytes=120, flops=30),)
    assert items[2].launches == 1
    assert [item.operations for item in work_items(_optimizer_trace("cuda"))] == [(0,), (1,), (2,), (3,), (5,), (6,)]
    (item,) = work_items(_dropout_trace("cpu"))
    assert item.operations == (1, 2, 3)
    assert item.shapes == (operation_shape("dropout", "float32", rows=8, cols=16),)


@pytest.mark.parametrize(
    ("sizes", "lists", "launches"),
    [
        ([], 1, 1),
        ([10] * 110, 1, 1),
        ([10] * 111, 1, 2),  # a launch takes 110 tensors of one list
        ([10] * 65, 2, 2),  # and 64 pairs
        ([320 * 65_536], 3, 1),  # 320 chunks of 65,536 elements
        ([320 * 65_536 + 1], 3, 2),
        ([10] * 47 + [321 * 65_536], 3, 2),  # 273 chunks of the last tensor fit beside 47 of others, 48 are left
    ],
)
def test_launches_of_a_multi_tensor_update_follow_from_its_tensors(sizes: list[int], lists: int, launches: int) -> None:
    assert multi_tensor_launches(sizes, lists) == launches


def test_launches_of_updates_and_sums_equal_a_recording() -> None:
    updates = [one for one in Trace.load(RECORDED).operations if one.name.startswith("aten::_foreach_") and one.kernels]
    assert len(updates) > 5
    for update in updates:
        (bare,) = work_items(Trace(operations=(replace(update, kernels=()),), device="cuda", recorder="dispatch"))
        assert bare.launches == len(update.kernels)
    total = Operation(name="aten::sum", phase="backward", inputs=(tensor(64, 8),), outputs=(tensor(8),))
    trace = Trace(operations=(total, replace(total, phase="forward")), device="meta", recorder="dispatch")
    assert [item.launches for item in work_items(trace)] == [2, 1]


def _dropout_trace(device: str, *, same_mask: bool = True) -> Trace:
    data, mask = TensorInfo((8, 16), "float32", id=1), TensorInfo((8, 16), "float32", id=2)
    other = TensorInfo((8, 16), "float32", id=3)
    operations = (
        Operation(name="aten::empty_like", phase="forward", inputs=(data,), outputs=(mask,)),
        Operation(name="aten::bernoulli_", phase="forward", inputs=(mask,), outputs=(mask,)),
        Operation(name="aten::div_", phase="forward", inputs=(mask if same_mask else other,)),
        Operation(name="aten::mul", phase="forward", inputs=(data, mask)),
    )
    return Trace(operations=operations, device=device, recorder="dispatch")


def test_dropout_on_the_cpu_is_recognised_and_its_mask_read_by_the_byte() -> None:
    trace = _dropout_trace("meta")
    mask = trace.operations[1].inputs[0]
    gradient = TensorInfo((8, 16), "float32", id=4)
    backward = Operation(name="aten::mul", phase="backward", inputs=(gradient, mask))
    unrelated = Operation(name="aten::mul", phase="backward", inputs=(gradient, gradient))
    items = work_items(replace(trace, operations=(*trace.operations, backward, unrelated)))
    # 128 elements of 4 bytes and a mask of 128 bytes are read, 4 bytes an element written.
    expected = operation_shape("transfer", "float32", read_bytes=512 + 128, write_bytes=512, flops=256)
    assert items[1].shapes == (expected,)
    assert items[2].shapes[0].operation == "mul"
    import torch

    from lightning_predict.record.dispatch import DispatchRecorder

    recorder = DispatchRecorder()
    recorder.start()
    torch.nn.functional.dropout(torch.ones(8, 16), 0.5)
    recorder.stop()
    trace = Trace(operations=tuple(recorder.operations), device="cpu", recorder="dispatch")
    assert [item.shapes[0].operation for item in work_items(trace)][-1] == "dropout"
    assert not any(item.shapes[0].operation == "mul" for item in work_items(trace))


@pytest.mark.parametrize("trace", [_dropout_trace("cuda"), _dropout_trace("cpu", same_mask=False)])
def test_a_random_draw_that_is_no_dropout_stays_as_it_is(trace: Trace) -> None:
    assert [item.operations for item in work_items(trace)] == [(1,), (2,), (3,)]
