"""A step of many lengths is the mean of a few that stand for all."""

from functools import partial
from typing import Any

import pytest
import torch

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.lengths import capture_lengths, shares_of_lengths


def step(length: int) -> None:
    with torch.device("meta"):
        model, data = torch.nn.Linear(64, 64), torch.empty(8, length, 64)
    model(data).sum().backward()


def test_each_length_is_recorded_with_its_share() -> None:
    trace = capture_lengths(step, {128: 3, 512: 1}, samples_per_step=8)
    assert [kind.share for kind in trace.kinds] == [0.75, 0.25]
    sizes = [
        max(max(operation.outputs[0].shape, default=0) for operation in kind.trace.operations if operation.outputs)
        for kind in trace.kinds
    ]
    assert sizes == [8 * 128, 8 * 512]  # rows of the product
    assert trace.samples == 8
    # The mean of steps is the mean of its kinds.
    one, four = (lp.predict(lp.capture(partial(step, n)), ["T4"])["T4"].device_seconds for n in (128, 512))
    assert lp.predict(trace, ["T4"])["T4"].device_seconds == pytest.approx(0.75 * one + 0.25 * four)


def test_lengths_are_grouped_except_the_longest() -> None:
    shares = shares_of_lengths([*range(1, 101), 500], kinds=5)  # 100 lengths once each, in four groups of 25
    assert shares == pytest.approx({500: 1 / 101, 13: 25 / 101, 38: 25 / 101, 63: 25 / 101, 88: 25 / 101})
    assert sum(shares.values()) == pytest.approx(1)
    assert shares_of_lengths({100: 1, 300: 1}, kinds=1) == {200: 1.0}
    assert shares_of_lengths([7, 7, 9], kinds=6) == pytest.approx({7: 2 / 3, 9: 1 / 3})


@pytest.mark.parametrize(
    ("lengths", "kinds", "words"),
    [
        ([], 6, "lengths is empty; give the lengths of batches, or how often each occurs."),
        ([0], 6, "lengths has 0: 1.0; expected lengths of at least 1"),
        ([1.5], 6, "lengths has 1.5: 1.0; expected lengths of at least 1"),
        ({8: -1}, 6, "lengths has 8: -1; expected lengths of at least 1, and how often each occurs."),
        ([8], 0, "kinds=0 is no number of lengths; expected 1 or more."),
    ],
)
def test_invalid_histogram_is_rejected(lengths: Any, kinds: int, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        capture_lengths(step, lengths, kinds=kinds)
