"""FLOPs and bytes of every family, derived by hand."""

import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import lightning_predict.kernels  # noqa: F401  (registers the operations)
from lightning_predict.kernels.families.attention import ATTENTION_DROPOUT
from lightning_predict.kernels.operations import operation_names, operation_spec, shape_batch


def flops(operation: str, **words: float) -> float:
    return float(shape_batch(operation, "float32", **words).flops[0])


def moved(operation: str, dtype: str = "float32", **words: float) -> float:
    return float(shape_batch(operation, dtype, **words).bytes_moved[0])


def test_bytes_by_hand() -> None:
    # b=2: data 2·3·7, weight 7·5 once, product 2·3·5; four bytes each.
    assert moved("linear", b=2, m=3, n=5, k=7) == 4 * (42 + 35 + 30)
    # bmm: a weight for each.
    assert moved("bmm", b=2, m=3, n=5, k=7) == 4 * (42 + 70 + 30)
    assert moved("linear", "float16", m=8, n=8, k=8) * 2 == moved("linear", "float32", m=8, n=8, k=8)
    # q and output 4 heads each, k and v 2 heads each: (2·4 + 2·2)·seq·dim elements of two bytes.
    assert moved("attention", "bfloat16", batch=1, heads=4, kv_heads=2, seq=8, head_dim=16) == 2 * 12 * 8 * 16
    assert moved("transfer", "bfloat16", read_bytes=10, write_bytes=6) == 16
    assert moved("host_copy", "float32", size_bytes=100) == 100


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 1), (1, 1, 1, 4)]
)
def test_a_convolution_has_the_flops_that_torch_counts(stride: int, padding: int, dilation: int, groups: int) -> None:
    layer = torch.nn.Conv2d(
        8, 12, (3, 5), stride=stride, padding=padding, dilation=dilation, groups=groups, device="meta"
    )
    with FlopCounterMode(display=False) as counter:
        output = layer(torch.empty(2, 8, 20, 17, device="meta"))
    # Torch counts the bias of a convolution as nothing and ignores no tap at the border, as we do.
    ours = flops(
        "conv2d",
        batch=2,
        in_channels=8,
        out_channels=12,
        height=20,
        width=17,
        kernel_height=3,
        kernel_width=5,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    assert ours == counter.get_total_flops()
    assert ours == 2 * output.numel() * (8 // groups) * 15


def test_flops_of_convolutions_and_recurrent_layers_by_hand() -> None:
    words = {"batch": 1, "in_channels": 4, "out_channels": 4, "image_size": 8, "kernel_size": 3, "padding": 1}
    batch = shape_batch("conv2d", "float32", **words)
    assert float(batch.flops[0] / batch.minimum_flops[0]) == 36 / 16
    strided = shape_batch("conv2d", "float32", stride=2, **words)
    assert float(strided.flops[0]) == float(strided.minimum_flops[0])
    words = {"batch": 1, "in_channels": 4, "out_channels": 4, "image_size": 8, "kernel_size": 3}
    assert flops("conv2d", **words) == flops("conv2d_backward_input", **words)
    assert flops("conv2d", **words) == flops("conv2d_backward_weight", **words)
    one = flops("lstm", batch=2, steps=3, input_size=5, hidden=7)
    two = flops("lstm", batch=2, steps=3, input_size=5, hidden=7, layers=2)
    assert one == 2 * 4 * 2 * 3 * 7 * (5 + 7)
    assert two - one == 2 * 4 * 2 * 3 * 7 * (7 + 7)
    one = flops("gru", batch=1, steps=1, input_size=5, hidden=7, directions=2)
    two = flops("gru", batch=1, steps=1, input_size=5, hidden=7, directions=2, layers=2)
    assert one == 2 * 3 * 7 * 2 * (5 + 7)
    assert two - one == 2 * 3 * 7 * 2 * (14 + 7)
    words = {"batch": 2, "steps": 3, "hidden": 7}
    assert flops("rnn_backward", **words) == 2 * flops("rnn", **words)


@pytest.mark.parametrize(("seq", "kv_seq", "visible"), [(2, 5, 1 + 2), (5, 2, 1 + 2 + 2 + 2 + 2)])
def test_a_causal_mask_over_a_rectangle_is_aligned_top_left(seq: int, kv_seq: int, visible: int) -> None:
    got = flops("attention", batch=1, heads=1, seq=seq, kv_seq=kv_seq, head_dim=1, causal=1)
    assert math.isclose(got, 4 * visible)


def test_attention_has_the_flops_that_torch_counts_and_a_causal_mask_a_triangle() -> None:
    q, k, v = (torch.empty(2, 4, 16, 8, device="meta", requires_grad=True) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        out = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[0]
    assert flops("attention", batch=2, heads=4, seq=16, head_dim=8) == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        out.backward(torch.empty_like(out))
    assert flops("attention_backward", batch=2, heads=4, seq=16, head_dim=8) == counter.get_total_flops()
    words = {"batch": 1, "heads": 1, "seq": 4, "head_dim": 8}
    # 4 x 4 scores, 1 + 2 + 3 + 4 = 10 of them visible.
    assert flops("attention", causal=1, **words) / flops("attention", **words) == 10 / 16


def test_every_operation_has_positive_work_that_grows_with_its_shape() -> None:
    for name in operation_names():
        kind = operation_spec(name)
        required = [word for word in kind.shape if word not in kind.defaults] or list(kind.shape)
        small = shape_batch(name, "float32", **dict.fromkeys(required, 4))
        large = shape_batch(name, "float32", **dict.fromkeys(required, 8))
        if name == ATTENTION_DROPOUT:  # drawn in registers inside attention, which moves the tensors: only instructions
            assert not small.bytes_moved.any()
            assert not large.bytes_moved.any()
            assert np.all(small.flops > 0)
            assert np.all(large.flops > small.flops)
            continue
        assert np.all(small.bytes_moved > 0), name
        assert np.all(large.bytes_moved > small.bytes_moved), name
        assert np.all(large.flops >= small.flops), name
        assert np.all(small.minimum_flops <= small.flops), name
