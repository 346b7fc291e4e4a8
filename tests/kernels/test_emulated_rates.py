"""Convolutions on chips that lack units (16 bits before tensor cores) or kernels (Winograd before Maxwell)."""

import lightning_predict as lp


def seconds(dtype: str, gpu: str) -> float:
    """Time of one of VGG's convolutions, which float32's kernels do with fewer products (Winograd)."""
    found = lp.operator_seconds(
        "conv2d",
        gpu,
        dtype=dtype,
        batch=12,
        in_channels=256,
        out_channels=256,
        kernel_size=3,
        image_size=56,
        padding=1,
        stride=1,
    )
    assert isinstance(found, float)
    return found


def test_float16_before_tensor_cores_is_no_slower_than_float32() -> None:
    # VGG-16 in half takes 0.91 of its time in single on a GTX 1080 Ti (torchvision, 2019).
    assert seconds("float16", "GTX-1080-Ti") <= seconds("float32", "GTX-1080-Ti") * 1.001


def test_bfloat16_runs_at_the_rate_of_its_emulation() -> None:
    # 2 x 12 x 56 x 56 x 256 x 256 x 9 FLOPs at the 5.38 TFLOP/s that people measured, half of float32's rate.
    assert seconds("bfloat16", "GTX-1080-Ti") >= 2 * 12 * 56**2 * 256**2 * 9 / 5.38e12 * 0.999


def test_kepler_computes_every_product_of_a_convolution() -> None:
    # The K80 sustains 2.1 TFLOP/s, and cuDNN's kernels with fewer products begin with Maxwell.
    flops = 2 * 12 * 56**2 * 256**2 * 9
    assert seconds("float32", "K80") >= flops / 2.1e12 * 0.999
    assert seconds("float32", "M60") < flops / 3.2e12
