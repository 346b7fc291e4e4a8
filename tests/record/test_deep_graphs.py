"""A step of very many operations: recording it must not make the release of its graph recursive."""

import gc
import sys
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lightning_predict.record import graph_release
from lightning_predict.record.dispatch import DispatchRecorder
from lightning_predict.record.session import FRAMES, CaptureSession, RecursionHeadroom
from tests.processes import run

# 60,000 nodes that Python was shown die on a stack of 8 MiB (about 165 bytes a node), 10,000 on one of 1 MiB.
STEP = """
import gc
import threading
import torch
from lightning_predict.record.dispatch import DispatchRecorder

def record(freed):
    value = weight = torch.ones(1, requires_grad=True)
    recorder = DispatchRecorder()
    recorder.start()
    for _ in range(10_000):
        value = value * 0.5
    loss = value.sum()
    loss.backward()
    if freed == "while it is recorded":
        del value, loss
    recorder.stop()
    if freed == "afterwards":
        del value, loss
        gc.collect()
    print(len(recorder.operations), recorder.failure)

threading.stack_size(1 << 20)
for freed in ("while it is recorded", "afterwards", "as the thread ends"):
    thread = threading.Thread(target=record, args=[freed])
    thread.start()
    thread.join()
"""


def test_long_chain_is_freed_on_a_small_stack() -> None:
    ran = run(STEP)
    assert ran.returncode == 0, ran.stderr
    # 10,000 products forward and back, the sum, and for its gradient ones and their expansion; a detach for `.grad`.
    assert ran.stdout == 3 * "20004 None\n"


def test_held_nodes_are_freed_with_their_graph() -> None:
    gc.collect()
    others = set(graph_release._keepers)  # of graphs that earlier tests' models still hold
    weight = torch.ones(1, requires_grad=True)
    recorder = DispatchRecorder()
    recorder.start()
    value = weight
    for _ in range(3 * graph_release.INTERVAL):
        value = value * 0.5
    value.backward()
    recorder.stop()
    own = graph_release._keepers - others
    assert len(own) == 4  # of the first node, and behind each of three rows
    del value
    gc.collect()
    assert not own & graph_release._keepers
    assert (graph_release._after_collection in gc.callbacks) == bool(graph_release._keepers)


class Block(nn.Module):
    """Attention in one call, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.output = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, data: Tensor) -> Tensor:
        """Data of shape (batch, length, 16)."""
        query, key, value = self.project(data).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4).unbind()
        joined = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return data + torch.tanh(self.output(joined.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("layers", [2, 400])
def test_all_blocks_of_a_deep_model_are_recorded_alike(layers: int) -> None:
    """Autograd's nodes of 400 blocks are more than 10,000."""
    with torch.device("meta"):
        model = nn.Sequential(*(Block() for _ in range(layers)))
        data = torch.zeros(2, 4, 16)
    recorder = DispatchRecorder(model)
    recorder.start()
    model(data).sum().backward()
    recorder.stop()
    assert recorder.failure is None
    by_block = [
        Counter((one.name, one.phase) for one in recorder.operations if one.module and one.module.split(".")[0] == name)
        for name in map(str, range(layers))
    ]
    assert by_block[0]["aten::scaled_dot_product_attention_backward", "backward"] == 1
    assert by_block[1:] == by_block[:1] * (layers - 1) or by_block[1:-1] == by_block[1:2] * (layers - 2)


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
    assert [operation.name for operation in session.trace().operations].count("aten::addmm") == 2
    assert sys.getrecursionlimit() == LIMIT


def test_recursion_limit_is_restored_by_the_last_recorder_unless_the_user_set_it() -> None:
    first, second = RecursionHeadroom(), RecursionHeadroom()
    for recorder in (first, second, first):
        recorder.open()
    assert sys.getrecursionlimit() == LIMIT + FRAMES
    first.close()
    first.close()
    assert sys.getrecursionlimit() == LIMIT + FRAMES
    second.close()
    assert sys.getrecursionlimit() == LIMIT
    room = RecursionHeadroom()
    room.open()
    try:
        sys.setrecursionlimit(LIMIT + 1)
        room.close()
        assert sys.getrecursionlimit() == LIMIT + 1
    finally:
        sys.setrecursionlimit(LIMIT)
