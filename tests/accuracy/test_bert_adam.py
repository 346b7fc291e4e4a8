"""The optimizer of the published BERT in float32, which the benchmarks must run unfused."""

from __future__ import annotations

import pytest
import torch

import lightning_predict as lp
from benchmarks.accuracy.workloads.bert import BertAdam


def test_one_step_follows_the_formula() -> None:
    parameter = torch.nn.Parameter(torch.tensor([2.0]))
    parameter.grad = torch.tensor([0.5])  # within the norm of 1: not clipped
    BertAdam([parameter], lr=0.1).step()
    # Mean 0.1 x 0.5, square 0.001 x 0.25, no bias correction; decay adds 0.01 x 2.
    update = 0.05 / (0.00025**0.5 + 1e-6) + 0.02
    assert parameter.item() == pytest.approx(2.0 - 0.1 * update, rel=1e-6)


def test_a_long_gradient_is_clipped_alone() -> None:
    short, long = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    short.grad, long.grad = torch.tensor([1.0]), torch.tensor([100.0])
    BertAdam([short, long], lr=1.0, weight_decay=0.0).step()
    assert long.item() == pytest.approx(short.item(), rel=1e-4)  # both gradients have norm 1 then


def test_a_parameter_is_read_and_written_thirty_times() -> None:
    with torch.device("meta"):
        parameter = torch.nn.Parameter(torch.empty(1 << 20))
        parameter.grad = torch.empty(1 << 20)
        optimizer = BertAdam([parameter])
        optimizer.step()  # makes its state
    trace = lp.capture(optimizer.step)
    touched = [
        tensor for one in trace.operations for tensor in (*one.inputs, *one.outputs) if tensor.elements == 1 << 20
    ]
    # Clipping 1 + 2 or 3; the mean 2 + 3, the square 2 + 4; root, epsilon and quotient 2 + 2 + 3; decay 2 + 3;
    # the rate, its sign and the sum 2 + 2 + 3.
    assert 32 <= len(touched) <= 36
