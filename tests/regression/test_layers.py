"""Complexities by hand, of operations and of a small network that was recorded."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.regression.per_layer import Layer, layer_of, layers_of
from lightning_predict.tracing.trace import Operation, Phase, TensorInfo, Trace


def tensor(*shape: int) -> TensorInfo:
    return TensorInfo(shape, "float32")


def operation(
    name: str,
    *inputs: TensorInfo,
    phase: Phase = "forward",
    outputs: tuple[TensorInfo, ...] = (),
    **arguments: Any,
) -> Operation:
    return Operation(name=f"aten::{name}", phase=phase, inputs=inputs, outputs=outputs, arguments=arguments)


IMAGES, FILTERS = tensor(2, 3, 8, 8), tensor(16, 3, 3, 3)
CONVOLUTION = operation("convolution", IMAGES, FILTERS, stride=[1, 1], padding=[1, 1])
PRODUCTS = 2 * 3 * 3 * 3 * 16 * 8 * 8
"""batch * C_in * k² * C_out * H_out * W_out"""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (CONVOLUTION, Layer("convolution", "forward", PRODUCTS)),
        # The gradients to the images and to the filters are as much work each.
        (
            operation(
                "convolution_backward",
                tensor(2, 16, 8, 8),
                IMAGES,
                FILTERS,
                phase="backward",
                padding=[1, 1],
                output_mask=[True, True, False],
            ),
            Layer("convolution", "backward", 2 * PRODUCTS),
        ),
        # batch * in * out
        (operation("addmm", tensor(10), tensor(4, 20), tensor(20, 10)), Layer("fully connected", "forward", 800)),
        (operation("mm", tensor(4, 10), tensor(10, 20), phase="backward"), Layer("fully connected", "backward", 800)),
        (operation("relu_", tensor(4, 5)), Layer("activation", "forward", 60)),
        (operation("threshold_backward", tensor(4, 5), phase="backward"), Layer("activation", "backward", 80)),
        (operation("native_batch_norm", tensor(2, 3, 4, 4)), Layer("normalisation", "forward", 5 * 96)),
        (
            operation("native_batch_norm_backward", tensor(2, 3, 4, 4), phase="backward"),
            Layer("normalisation", "backward", 8 * 96),
        ),
        (operation("_log_softmax", tensor(4, 10)), Layer("loss", "forward", 160)),
        (operation("cat", tensor(2, 3), tensor(2, 5), outputs=(tensor(2, 8),)), Layer("concatenation", "forward", 16)),
        (operation("add", tensor(2, 3), tensor(2, 3)), Layer("element-wise", "forward", 6)),
        (operation("add_", tensor(2, 3), tensor(2, 3), phase="optimizer"), Layer("update", "forward", 6)),
        # 2 x 3 x 4 x 4 outputs of 2 x 2 windows; going back, one operation an output more.
        (
            operation("max_pool2d_with_indices", IMAGES, outputs=(tensor(2, 3, 4, 4),), kernel_size=[2, 2], stride=[2]),
            Layer("pooling", "forward", 96 * 4),
        ),
        (operation("max_pool2d", IMAGES, kernel_size=[2, 2], stride=[2]), Layer("pooling", "forward", 96 * 4)),
        (operation("avg_pool2d", IMAGES, kernel_size=2), Layer("pooling", "forward", 96 * 4)),
        (
            operation("avg_pool2d_backward", tensor(2, 3, 4, 4), IMAGES, phase="backward", kernel_size=[2, 2]),
            Layer("pooling", "backward", 96 * 5),
        ),
        (operation("_adaptive_avg_pool2d", IMAGES, outputs=(tensor(2, 3, 1, 1),)), Layer("pooling", "forward", 384)),
        (operation("view", tensor(4, 5)), None),
        (operation("add", tensor(0, 5)), None),
    ],
)  # fmt: skip
def test_complexities(found: Operation, expected: Layer | None) -> None:
    assert layer_of(found) == expected


def test_a_recurrent_layer_counts_its_products() -> None:
    # A GRU of one layer: 3 gates x hidden x (inputs + hidden) for each of 5 steps of 2 samples.
    with torch.device("meta"):
        gru, data = nn.GRU(7, 11, batch_first=True), torch.empty(2, 5, 7)
    trace = lp.capture(lambda: gru(data)[0].sum().backward())
    recurrent = [layer for layer in layers_of(trace) if layer.kind == "recurrent"]
    assert recurrent[0] == Layer("recurrent", "forward", 2 * 5 * 3 * 11 * (7 + 11))
    assert recurrent[1] == Layer("recurrent", "backward", 2 * recurrent[0].complexity)


def test_the_layers_of_a_network() -> None:
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 16, 10)
        )
        data, labels = torch.empty(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), labels).backward()
        optimizer.step()

    layers = layers_of(lp.capture(step))
    counts = Counter((layer.kind, layer.direction) for layer in layers)
    assert counts["convolution", "forward"] == counts["convolution", "backward"] == 1
    assert counts["pooling", "forward"] == counts["pooling", "backward"] == 1
    assert counts["activation", "forward"] == counts["activation", "backward"] == 1
    assert counts["fully connected", "forward"] == 1
    assert counts["fully connected", "backward"] == 2  # to the data, and to the weight
    assert counts["update", "forward"] == 4  # a weight and a bias each
    work = {
        direction: sum(one.complexity for one in layers if (one.kind, one.direction) == ("fully connected", direction))
        for direction in ("forward", "backward")
    }
    assert work == {"forward": 2 * 64 * 10, "backward": 2 * 2 * 64 * 10}


def test_a_trace_without_work_has_no_layers() -> None:
    assert layers_of(Trace(operations=(operation("view", tensor(2)),), device="cpu", recorder="dispatch")) == ()
