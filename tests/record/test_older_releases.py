"""Convolutions of older profiles: strides and paddings from the sizes around."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.record.older_releases import convolution_arguments, solved_geometry, with_current_names
from lightning_predict.record.trace import Operation, TensorInfo


@pytest.mark.parametrize(
    ("image", "taps", "result", "expected"),
    [
        (224, 7, 112, (2, 3)),  # ResNet: (224 + 6 - 7) // 2 + 1 = 112
        (56, 3, 56, (1, 1)),
        (56, 1, 28, (2, 0)),
        (224, 16, 14, (16, 0)),  # ViT's patches: 224 / 16
        (28, 5, 24, (1, 0)),  # LeNet without padding
        (8, 3, 20, None),  # nothing makes an image of 8 larger than 8 + 2 * 2 - 2 = 10
    ],
)
def test_strides_of_known_networks_are_solved(
    image: int, taps: int, result: int, expected: tuple[int, int] | None
) -> None:
    assert solved_geometry(image=image, filter_size=taps, result=result) == expected


@given(st.integers(1, 64), st.integers(1, 7), st.integers(1, 4), st.integers(0, 6))
def test_solved_geometry_gives_the_result(image: int, taps: int, stride: int, padding: int) -> None:
    result = (image + 2 * padding - taps) // stride + 1
    if result < 1 or padding >= taps:
        return
    geometry = solved_geometry(image=image, filter_size=taps, result=result)
    assert geometry is not None
    assert math.floor((image + 2 * geometry[1] - taps) / geometry[0]) + 1 == result


def tensors(*shapes: tuple[int, ...]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(shape, "float32") for shape in shapes)


def test_convolution_takes_its_result_from_the_next_operation_if_it_is_possible() -> None:
    convolution = Operation(name="aten::convolution", phase="forward", inputs=tensors((4, 6, 32, 32), (12, 3, 3, 3)))
    norm = Operation(name="aten::cudnn_batch_norm", phase="forward", inputs=tensors((4, 12, 16, 16), (12,)))
    completed = with_current_names([convolution, norm])[0]
    assert completed.arguments["stride"] == [2, 2]
    assert completed.arguments["groups"] == 2  # 6 channels, 3 of them a group
    assert with_current_names([convolution])[0] == convolution  # the outputs are unknown
    own = Operation(
        name="aten::convolution",
        phase="forward",
        inputs=tensors((4, 6, 32, 32), (12, 6, 3, 3)),
        arguments={"stride": [1, 1], "padding": [2, 2], "dilation": [2, 2]},
    )
    assert with_current_names([own]) == (own,)
    assert convolution_arguments((1, 4, 8, 8), (8, 4, 3, 3), (1, 8, 20, 20)) is None
    assert convolution_arguments((1, 4, 8, 8), (8, 3, 3, 3), (1, 8, 8, 8)) is None  # 4 channels in groups of 3
