"""A step of very many operations: recording it must not make the release of its graph recursive."""

from __future__ import annotations

import pytest
import torch

from lightning_predict.tracing import dispatch
from lightning_predict.tracing.dispatch import DispatchRecorder
from tests.processes import run

# 60,000 nodes that Python was shown die on a stack of 8 MiB (about 165 bytes a node); 20,000 on one of 2 MiB.
STEP = """
import threading
import torch
from lightning_predict.tracing.dispatch import DispatchRecorder

def record():
    value = weight = torch.ones(1, requires_grad=True)
    recorder = DispatchRecorder()
    recorder.start()
    for _ in range(25_000):
        value = value * 0.5
    value.sum().backward()
    recorder.stop()
    del value
    print(len(recorder.operations), recorder.failure)

threading.stack_size(2 << 20)
thread = threading.Thread(target=record)
thread.start()
thread.join()
"""


def test_a_long_chain_of_operations_is_recorded_on_a_small_stack() -> None:
    ran = run(STEP)
    assert ran.returncode == 0, ran.stderr
    # 25,000 products forward and back, the sum, and for its gradient ones and their expansion; a detach for `.grad`.
    assert ran.stdout == "50004 None\n"


def test_operations_beyond_the_limit_are_recorded_without_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dispatch.NODES_IDENTIFIED == 10_000  # 1.7 MB of stack
    layers = torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in range(6)))
    recorder = DispatchRecorder(layers)
    data = torch.ones(1, 2)
    monkeypatch.setattr(dispatch, "NODES_IDENTIFIED", 8)
    recorder.start()
    layers(data).sum().backward()
    recorder.stop()
    modules = [o.module for o in recorder.operations if o.name == "aten::mm" and o.phase == "backward"]
    assert modules[0] == "5"
    assert modules[-1] is None
    assert recorder.notes == (
        "A backward pass has more than 8 nodes: the modules of the operations after them are not known.",
    )
