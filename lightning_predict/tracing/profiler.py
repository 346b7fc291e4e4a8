"""`ProfilerRecorder`: records a step with `torch.profiler`, for CUDA and for compiled code.

The profiler watches; it changes nothing that runs, so compiled code stays compiled. Its events go through the same
file format and the same reader as files that others recorded; what the format leaves out (storage numbers, devices,
dtypes of lists) is added on the way. Example::

    recorder = ProfilerRecorder(cuda=True)
    recorder.start()
    loss = model(batch).sum(); loss.backward(); optimizer.step()
    recorder.stop()
    recorder.trace().operations          # with their kernels
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final, final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lightning_predict.errors import CaptureError
from lightning_predict.tracing.calls import RECORDED_TENSORS
from lightning_predict.tracing.events import read_profile
from lightning_predict.tracing.kineto import trace_of_profile
from lightning_predict.tracing.tensors import dtype_name
from lightning_predict.tracing.trace import Operation, Trace, read_json

WINDOW_MARK: Final = "ProfilerStep#0"
"""The mark that readers of profiles take for the extent of a step."""


def refuse_second_profiler() -> None:
    """Raise where a profiler is running: a second one would take its events.

    Raises:
        CaptureError: A profiler is running.
    """
    if torch._C._autograd._profiler_enabled():
        raise CaptureError(
            "Another profiler is running, and two at once would both lose events. Stop it or let it finish before the "
            "capture (in a Trainer: profiler=None), or import the file that it writes with "
            "`lightning_predict.import_trace`."
        )


@final
class ProfilerRecorder:
    """Profiles what runs between `start` and `stop`, which may be repeated.

    Args:
        cuda: Record what runs on the GPU as well.
    """

    def __init__(self, *, cuda: bool) -> None:
        self._cuda = cuda
        self._profile: profile | None = None
        self._window: record_function | None = None
        self._documents: list[dict[str, Any]] = []

    def start(self) -> None:
        """Start the profiler.

        Raises:
            CaptureError: Another profiler is running.
        """
        refuse_second_profiler()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
        if self._cuda:
            torch.cuda.synchronize()
        # Memory events give tensors their storage numbers.
        self._profile = profile(activities=activities, record_shapes=True, profile_memory=True)
        self._profile.start()
        # From here on the step's own time counts, before its first operation, too.
        self._window = record_function(WINDOW_MARK)
        self._window.__enter__()

    def stop(self) -> None:
        """Stop the profiler and keep its events; stopping twice is harmless."""
        running, self._profile = self._profile, None
        window, self._window = self._window, None
        if running is None:
            return
        with ExitStack() as parts:  # each ends even if others raise; the last one first
            parts.callback(_stop, running)
            if window is not None:
                parts.callback(window.__exit__, None, None, None)
            if self._cuda:
                torch.cuda.synchronize()
        with _collector_paused():
            self._documents.append(_export(running))

    def trace(self) -> Trace:
        """Return the recorded step, its parts one after another.

        Raises:
            CaptureError: Nothing was recorded.
        """
        if not self._documents:
            raise CaptureError("Nothing was recorded: the profiler was not started, or has not been stopped.")
        with _collector_paused():
            profiles = [read_profile(document, "the recorded step", step=None) for document in self._documents]
            first, *rest = [trace_of_profile(one, recorder="profiler") for one in profiles]
        for part in rest:
            first = _append(first, part)
        return first


def _stop(running: profile) -> None:
    """Stop a profiler; where its own way of stopping fails, torch's is taken, so that none stays on."""
    try:
        running.stop()
    except BaseException:
        if torch._C._autograd._profiler_enabled():
            torch._C._autograd._disable_profiler()
        raise


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Hold the garbage collector back while many small objects are made; it would look at all of them repeatedly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _append(first: Trace, second: Trace) -> Trace:
    """Join two parts of one step; the second begins where the first ends."""
    offset = first.profiled_seconds or 0.0
    return replace(
        first,
        operations=first.operations + tuple(_later(operation, offset) for operation in second.operations),
        profiled_seconds=offset + (second.profiled_seconds or 0.0),
        waits=first.waits + tuple(replace(wait, start_seconds=wait.start_seconds + offset) for wait in second.waits),
        optimizer_steps=first.optimizer_steps + second.optimizer_steps,
        compiled=first.compiled or second.compiled,
        notes=first.notes + second.notes,
    )


def _later(operation: Operation, offset: float) -> Operation:
    def move(seconds: float | None) -> float | None:
        return None if seconds is None else seconds + offset

    kernels = tuple(
        replace(
            kernel,
            start_seconds=kernel.start_seconds + offset,
            launch_start_seconds=move(kernel.launch_start_seconds),
        )
        for kernel in operation.kernels
    )
    return replace(operation, kernels=kernels, host_start_seconds=move(operation.host_start_seconds))


def _export(stopped: profile) -> dict[str, Any]:
    """Return the events of a stopped profiler as its file would hold them, with each call's tensors added."""
    with tempfile.TemporaryDirectory(prefix="lightning-predict-") as folder:
        path = os.path.join(folder, "profile.json")
        stopped.export_chrome_trace(path)
        document: dict[str, Any] = read_json(path, strict=False)
    tensors = dict(_recorded_tensors(stopped))
    for event in document["traceEvents"]:
        if event.get("cat") == "cpu_op" and event["args"].get("External id") in tensors:
            event["args"][RECORDED_TENSORS] = tensors[event["args"]["External id"]]
    return document


def _recorded_tensors(stopped: profile) -> Iterator[tuple[int, list[list[list[Any]]]]]:
    """Yield each call's number in the file, and the tensors at each position of its schema."""
    results = stopped.profiler and stopped.profiler.kineto_results
    pending = list(results.experimental_event_tree()) if results else []
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        inputs = getattr(event.extra_fields, "inputs", None)
        if inputs:
            yield event.correlation_id, [list(_rows(value)) for value in inputs]


def _rows(value: Any) -> Iterator[list[Any]]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, torch._C._profiler._TensorMetadata):
            yield [list(item.sizes), dtype_name(item.dtype), item.id, item.device.type]
