import pytest

from lightning_predict.hardware import gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import operation_shape
from lightning_predict.kernels.timing import explain, predict_operation_times
from lightning_predict.kernels.translation import translate
from lightning_predict.record.trace import Flags, Operation, TensorInfo

SHAPE = {"batch": 16, "heads": 12, "seq": 512, "head_dim": 64}


def _seconds(operation: str, name: str) -> float:
    card = gpu(name)
    return float(
        predict_operation_times(
            [operation_shape(operation, "float32", **SHAPE)], [card], kernel_models((name,))
        ).seconds[0, 0]
    )


CALLS = ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_efficient_attention")


@pytest.mark.parametrize("call", CALLS)
def test_float32_attention_stays_float32_where_products_may_use_tf32(call: str) -> None:
    query = TensorInfo((16, 12, 512, 64), "float32")
    operation = Operation(name=call, phase="forward", inputs=(query, query, query))
    (shape,) = translate(operation, Flags(matmul_tf32=True))
    assert shape == operation_shape("attention", "float32", **SHAPE)


def test_float32_attention_is_timed_by_its_products_on_any_tensor_cores() -> None:
    card = gpu("A100-SXM-40GB")
    models = kernel_models((card.name,))
    item = operation_shape("attention", "float32", **SHAPE)
    assert explain(item, card, models).source == "formula"
    seconds = predict_operation_times([item], [card], models).seconds[0, 0]
    # 4 x 16 x 12 x 512^2 x 64 FLOPs at a tenth of 156 TFLOP/s, and 5 µs.
    assert seconds == pytest.approx(4 * 16 * 12 * 512**2 * 64 / 15.6e12 + 5e-6, rel=1e-2)
    a100, h100 = (_seconds("attention", name) for name in ("A100-SXM-40GB", "H100-SXM-80GB"))
    # 132 multiprocessors at 1.98 GHz over 108 at 1.41 GHz, where peaks in TF32 are 3.2 apart.
    card, other = gpu("H100-SXM-80GB"), gpu("A100-SXM-40GB")
    faster = card.streaming_multiprocessors * card.boost_clock_hz / (108 * other.boost_clock_hz)
    assert a100 / h100 == pytest.approx(faster, rel=0.03)
    forward, backward = (_seconds(name, "RTX-2080-Ti") for name in ("attention", "attention_backward"))
    assert (backward - 2e-6) / (forward - 2e-6) == pytest.approx(2.5)


def _fused_seconds(head_dim: int) -> float:
    item = operation_shape("attention", "float16", batch=8, heads=8, seq=4096, head_dim=head_dim)
    a100 = gpu("A100-SXM-80GB")
    return float(predict_operation_times([item], [a100], kernel_models((a100.name,))).seconds[0, 0])


@pytest.mark.parametrize(("smaller", "built"), [(40, 64), (88, 96), (112, 128), (168, 192)])
def test_smaller_heads_take_as_long_as_the_size_that_the_kernel_is_built_for(smaller: int, built: int) -> None:
    assert _fused_seconds(smaller) == pytest.approx(_fused_seconds(built), rel=1e-6)


def _rate(name: str, *, batch: int, heads: int, seq: int, head_dim: int, causal: int = 0, backward: int = 0) -> float:
    """Return TFLOP/s in bfloat16, as papers count them: half under a mask, 2.5 times as many backward."""
    dims = {"batch": batch, "heads": heads, "seq": seq, "head_dim": head_dim, "causal": causal}
    item = operation_shape(f"attention{'_backward' * backward}", "bfloat16", **dims)
    seconds = predict_operation_times([item], [gpu(name)], kernel_models((name,))).seconds[0, 0]
    flops = 4 * batch * heads * seq**2 * head_dim * (0.5 if causal else 1) * (2.5 if backward else 1)
    return flops / float(seconds) / 1e12


@pytest.mark.parametrize(
    ("head_dim", "causal", "published"),
    [
        (64, 0, (333, 392, 460, 476, 496, 497)),
        (128, 0, (467, 565, 625, 638, 646, 648)),
        (64, 1, (197, 265, 371, 420, 460, 473)),
        (128, 1, (292, 423, 521, 579, 602, 616)),
    ],
)
def test_rates_of_short_and_long_sequences_are_those_published(
    head_dim: int, causal: int, published: tuple[int, ...]
) -> None:
    """FlashAttention 3 in its paper: 16,384 tokens in sequences of 512 to 16,384, on an H100."""
    for seq, rate in zip((512, 1024, 2048, 4096, 8192, 16384), published, strict=True):
        achieved = _rate(
            "H100-SXM-80GB", batch=16384 // seq, heads=2048 // head_dim, seq=seq, head_dim=head_dim, causal=causal
        )
        assert achieved == pytest.approx(rate, rel=0.12 if seq <= 1024 else 0.1)


@pytest.mark.parametrize(
    ("name", "dims", "published"),
    [
        ("B200-SXM-180GB", {"batch": 4, "heads": 16, "seq": 8192, "head_dim": 64}, 758),  # FlashAttention 4 (2605)
        ("B200-SXM-180GB", {"batch": 4, "heads": 16, "seq": 8192, "head_dim": 128}, 1358),
        ("B200-SXM-180GB", {"batch": 4, "heads": 16, "seq": 8192, "head_dim": 128, "backward": 1}, 1248),  # 2280
        ("GB200", {"batch": 2, "heads": 64, "seq": 8192, "head_dim": 160}, 1781),  # cuDNN, heads of 192 and 128
        ("GB200", {"batch": 2, "heads": 64, "seq": 8192, "head_dim": 160, "backward": 1}, 1173),
        (
            "H200-SXM-141GB",
            {"batch": 1, "heads": 128, "seq": 8192, "head_dim": 160, "causal": 1, "backward": 1},
            425,
        ),
        ("H20-96GB", {"batch": 2, "heads": 16, "seq": 2048, "head_dim": 128}, 126),  # FlashAttention 3 (1310)
        ("RTX-A5000", {"batch": 2, "heads": 32, "seq": 8192, "head_dim": 64}, 82),  # FlashAttention 2
    ],
)
def test_rates_of_other_gpus_and_kernels_are_those_published(name: str, dims: dict[str, int], published: float) -> None:
    """Of numbers that chose nothing but the factor of wide heads backward and the share that waits on Blackwell."""
    assert _rate(name, **dims) == pytest.approx(published, rel=0.09)


@pytest.mark.parametrize(
    ("mask", "stride", "tf32", "expected"),
    [
        ("float32", 12, False, "float32"),
        ("bfloat16", 12, True, "tf32"),
        ("float32", 1, False, None),
        ("bool", 1, False, None),
        ("float32", None, False, "float32"),  # an earlier recording, without the stride
        ("bfloat16", None, False, None),
        (None, None, False, None),
    ],
)
def test_attention_is_taken_apart_if_rows_of_the_mask_are_not_contiguous(
    mask: str | None, stride: int | None, tf32: bool, expected: str | None
) -> None:
    # T5's position bias is permuted from (256, 256, 12): the recording on the H200 shows products of float32.
    heads = TensorInfo((16, 12, 256, 64), "bfloat16")
    masks = () if mask is None else (TensorInfo((1, 12, 256, 256), mask),)
    call = Operation(
        name="aten::scaled_dot_product_attention",
        phase="forward",
        inputs=(heads, heads, heads, *masks),
        arguments={} if stride is None else {"mask_stride": stride},
    )
    shape, *around = translate(call, Flags(matmul_tf32=tf32))
    assert (shape.operation, shape.dtype) == (
        ("attention", "bfloat16") if expected is None else ("eager_attention", expected)
    )
    assert bool(around) == (expected is not None)


def test_attention_that_torch_takes_apart_takes_as_long_as_recorded() -> None:
    """On our H200, T5's kernels take 431 us forward (20 kernels) and 375 us backward (16)."""
    heads, bias = TensorInfo((16, 12, 256, 64), "bfloat16"), TensorInfo((1, 12, 256, 256), "float32")
    arguments = {"dropout_p": 0.1, "mask_stride": 12}
    card = gpu("H200-SXM-141GB")
    for suffix, seconds in (("", 431e-6), ("_backward", 375e-6)):
        call = Operation(
            name=f"aten::scaled_dot_product_attention{suffix}",
            phase="backward" if suffix else "forward",
            inputs=(heads, heads, heads, bias),
            arguments=arguments,
        )
        times = predict_operation_times(list(translate(call, Flags())), [card], kernel_models((card.name,)))
        assert times.seconds.sum() == pytest.approx(seconds, rel=0.15)


def test_dropout_inside_attention_costs_the_instructions_of_its_mask() -> None:
    """On our H200, attention of BERT-large with dropout takes 17.6 us longer than predicted without."""
    query = TensorInfo((16, 16, 384, 64), "float16")
    dropped = Operation(name=CALLS[0], phase="forward", inputs=(query,) * 3, arguments={"dropout_p": 0.1})
    plain, mask = translate(dropped, Flags())
    assert plain == operation_shape("attention", "float16", batch=16, heads=16, seq=384, head_dim=64)
    card = gpu("H200-SXM-141GB")
    seconds = predict_operation_times([mask], [card], kernel_models((card.name,))).seconds[0, 0]
    # 6.5 instructions for each of 16 x 16 x 384 x 384 elements, on 132 x 64 lanes at 1.98 GHz: 14.7 us
    assert seconds == pytest.approx(6.5 * 16 * 16 * 384**2 / (132 * 64 * 1.98e9), rel=1e-3)
    assert seconds == pytest.approx(17.6e-6, rel=0.2)
