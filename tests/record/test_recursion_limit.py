import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

from lightning_predict.record.session import FRAMES, CaptureSession, RecursionHeadroom


def called_at(depth: int, step: Callable[[], object]) -> object:
    """Call a step from the given number of frames below the limit."""
    frame, frames = sys._getframe(), 1
    while frame.f_back is not None:
        frame, frames = frame.f_back, frames + 1

    def nested(more: int) -> object:
        return step() if more == 0 else nested(more - 1)

    return nested(LIMIT - frames - depth)


LIMIT = sys.getrecursionlimit()


@pytest.mark.parametrize("depth", [20, 22, 25])
def test_recursion_is_as_deep_as_without_a_recorder(depth: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))

    def step() -> None:
        model(torch.ones(3, 4)).sum().backward()

    called_at(depth, step)
    session = CaptureSession(device=torch.device("cpu"), model=model)
    session.start()
    called_at(depth, step)
    session.stop()
    assert [one.name for one in session.trace().operations].count("aten::addmm") == 2
    assert sys.getrecursionlimit() == LIMIT


def test_recursion_limit_is_restored_by_the_last_recorder() -> None:
    first, second = RecursionHeadroom(), RecursionHeadroom()
    for one in (first, second, first):
        one.open()
    assert sys.getrecursionlimit() == LIMIT + FRAMES
    first.close()
    first.close()
    assert sys.getrecursionlimit() == LIMIT + FRAMES
    second.close()
    assert sys.getrecursionlimit() == LIMIT


def test_recursion_limit_of_the_user_is_kept() -> None:
    room = RecursionHeadroom()
    room.open()
    try:
        sys.setrecursionlimit(LIMIT + 1)
        room.close()
        assert sys.getrecursionlimit() == LIMIT + 1
    finally:
        sys.setrecursionlimit(LIMIT)
