"""Networks of families that only one GPU has, as `train` makes of 16-bit convolutions."""

import pytest

from lightning_predict.hardware import gpu
from lightning_predict.kernels.models import BundledModels, UtilisationModels
from lightning_predict.kernels.operations import operation_shape
from lightning_predict.kernels.timing import predict_operation_times
from tests.kernels.example_networks import constant_weights, with_own

CARDS = [gpu("H200-SXM-141GB"), gpu("L4")]
SIZES = {"batch": 64, "in_channels": 256, "out_channels": 256, "kernel_size": 3, "image_size": 56, "padding": 1}


def models(trained: tuple[tuple[str, str], ...]) -> tuple[BundledModels, BundledModels]:
    """Models without and with the H200's own network, at a utilisation of a tenth."""
    shipped = constant_weights("matmul_half", utilisation=0.5, interval=0.2)
    own = with_own(shipped, CARDS[0].name, "convolution_tensor", utilisation=0.1, trained=trained)
    before, after = (BundledModels(UtilisationModels(weights)) for weights in (shipped, own))
    return before, after


def test_own_weights_of_16_bit_convolutions_time_them_on_their_gpu_alone() -> None:
    """They were trained and never used: only families of the cross-GPU weights counted as supported."""
    before, after = models((("conv2d", "float16"),))
    convolution = operation_shape("conv2d", "float16", **SIZES)
    old, new = (predict_operation_times([convolution], CARDS, one) for one in (before, after))
    assert new.shares["mlp"][0, 0] == 1.0
    assert new.extrapolated_share[0, 0] == 0.0
    assert new.seconds[0, 0] > 2 * old.seconds[0, 0]
    assert new.seconds[1, 0] == pytest.approx(old.seconds[1, 0])


def test_dtypes_that_they_were_not_trained_on_keep_their_formula() -> None:
    before, after = models((("conv2d", "float16"),))
    other = operation_shape("conv2d_backward_input", "tf32", **SIZES)
    old, new = (predict_operation_times([other], CARDS[:1], one) for one in (before, after))
    assert new.shares["formula"] == old.shares["formula"]
    assert new.seconds == pytest.approx(old.seconds)
