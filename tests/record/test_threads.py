"""Recordings in two threads at once: each sees its own step, and torch is as it was, whichever ends first."""

import threading
from typing import Any

import torch
from torch import Tensor, nn

from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Trace

ENGINE = vars(torch.autograd)["_engine_run_backward"]


class Order:
    """The first thread enters its backward pass first and leaves it first, while the second is still in its own."""

    def __init__(self) -> None:
        self.first_is_in, self.second_is_in, self.first_is_out = (threading.Event() for _ in range(3))


def recorded(width: int, order: Order, found: dict[int, Any]) -> None:
    """Record a step in a thread: the first of width 4, the second of width 5."""
    model = nn.Linear(width, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = CaptureSession(device=torch.device("cpu"), model=model)

    def meet(_: Tensor) -> None:
        if width == 4:
            order.first_is_in.set()
            order.second_is_in.wait()
        else:
            order.second_is_in.set()
            order.first_is_out.wait()

    try:
        session.start()
        output = model(torch.ones(3, width))
        output.register_hook(meet)
        if width == 5:
            order.first_is_in.wait()
        output.sum().backward()
        order.first_is_out.set()
        optimizer.step()
        session.stop()
        found[width] = session.trace()
    except BaseException as error:
        found[width] = error
    finally:
        for moment in (order.first_is_in, order.second_is_in, order.first_is_out):
            moment.set()  # where this thread has failed, no other thread waits for it


def test_two_threads_record_their_own_steps() -> None:
    order, traces = Order(), dict[int, Any]()
    threads = [threading.Thread(target=recorded, args=(width, order, traces)) for width in (4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert vars(torch.autograd)["_engine_run_backward"] is ENGINE
    for width in (4, 5):
        trace = traces[width]
        assert isinstance(trace, Trace), trace
        products = [operation.inputs for operation in trace.operations if operation.name in ("aten::addmm", "aten::mm")]
        assert products
        assert all(width in {size for tensor in inputs for size in tensor.shape} for inputs in products)
        assert trace.optimizer_steps == 1
        assert not any(9 - width in tensor.shape for inputs in products for tensor in inputs)
