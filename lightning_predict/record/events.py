"""Reads the events of a Kineto (Chrome trace) JSON file: trees of host calls, and device work.

Calls on one thread are nested by their times. Device work is linked to its launch by a correlation id. Without a
requested step, the step of median length is used: warm-up steps are longer, and a truncated last step is shorter. Files
of all torch releases since 1.8 can be read. Older files use other spellings of categories and keys. Example::

    >>> rows = [{"ph": "X", "cat": "cpu_op", "name": "aten::t", "pid": 1, "tid": 1, "ts": 0, "dur": 9, "args": {}},
    ...         {"ph": "X", "cat": "cpu_op", "name": "aten::transpose", "pid": 1, "tid": 1, "ts": 2, "dur": 5}]
    >>> profile = read_profile({"traceEvents": rows}, "two.json", step=None)
    >>> [call.name for call in profile.roots], profile.roots[0].children[0].name
    (['aten::t'], 'aten::transpose')
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from lightning_predict.base.checked import MAX_INTEGER, Checked, File, shown
from lightning_predict.base.errors import TraceFormatError

Thread = tuple[object, object]

_OLD_CATEGORIES: Final = {
    "operator": "cpu_op",
    "runtime": "cuda_runtime",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
}
_LAUNCHES: Final = frozenset({"cuda_runtime", "cuda_driver"})
_HOST: Final = frozenset({"cpu_op", "user_annotation"}) | _LAUNCHES
_DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_NUMBERS: Final = (int, float)
NO_TENSORS: Final = frozenset({"", "Scalar", "ScalarList", "GenericList", "TensorList", "None", "Device", "String"})
"""Argument types that have no sizes."""

_STEP: Final = re.compile(r"ProfilerStep#(\d{1,18})")

_WAITS_FOR_DEVICE: Final = frozenset({"cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"})
"""Runtime functions that return only when the device has finished all earlier work."""


@dataclass(slots=True, eq=False)
class Call:
    """Host call, with the calls inside it."""

    name: str  # Name of the operation, annotation or runtime function
    is_launch: bool  # Whether the call is a function of the CUDA runtime or driver
    is_annotation: bool  # Whether the call is a range that the program marked
    thread: Thread
    start: float  # Start in microseconds
    end: float  # End in microseconds
    details: Mapping[str, Any]  # The event's `args`, with keys in lower case
    children: list[Call] = field(default_factory=list)  # Calls directly inside this call, in order
    parent: Call | None = None  # Enclosing call; None for an outermost call
    device_work: list[DeviceWork] = field(default_factory=list)

    @property
    def sequence_number(self) -> int | None:
        """Number of the next autograd node; None if gradients were disabled."""
        number = self.details.get("sequence number")
        return number if isinstance(number, int) and number >= 0 else None

    def descendants(self) -> Iterator[Call]:
        """Yield all calls inside this call, each before the calls inside it."""
        for child in self.children:
            yield child
            yield from child.descendants()


@dataclass(slots=True, eq=False)
class DeviceWork:
    """A kernel, copy or fill on the device. Times are in microseconds."""

    name: str
    start: float
    duration: float
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Profile:
    """One step of a file."""

    roots: tuple[Call, ...]  # Outermost calls of all threads, sorted by start
    stray_work: tuple[DeviceWork, ...]  # Device work within the step's time that no call of the step launched
    start: float  # Start of the step in microseconds
    end: float  # End of the step in microseconds
    # Pairs of (thread, start) that link a forward call to its backward call
    flows: tuple[tuple[tuple[Thread, float], tuple[Thread, float]], ...]
    header: Mapping[str, Any]  # All fields of the file except the events
    step: int | None = None  # Number of the step's `ProfilerStep#`; None if the file marks no steps
    marked_steps: tuple[int, ...] = ()
    earlier_work: tuple[DeviceWork, ...] = ()  # Device work within the step's time that belongs to the previous step
    waited: float = 0.0  # Microseconds in which the host waited for the previous step, excluded from this step

    def calls(self) -> Iterator[Call]:
        """Yield every call, each before the calls inside it."""
        for root in self.roots:
            yield root
            yield from root.descendants()


def read_profile(document: Any, source: str, *, step: int | None) -> Profile:
    """Return one step of a parsed file.

    Args:
        document: The parsed JSON: an object with `traceEvents`, or only their list.
        source: Name of the file, for errors.
        step: Number of the `ProfilerStep#` to read. If None, the median of the steps with work, or the whole file if no
            step is marked.
    """
    checked = Checked(document, File(source, TraceFormatError))
    rows = checked if isinstance(document, list) else checked.member("traceEvents")
    calls, work = _split(rows)
    if not calls:
        raise TraceFormatError(
            f"{source} holds no operations: none of its {len(rows.value)} events has the category 'cpu_op'. Record "
            "with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
        )
    marks = {int(match[1]): call for call in calls if (match := _STEP.fullmatch(call.name)) is not None}
    if step is not None and step not in marks:
        there = ", ".join(map(str, sorted(marks))) or "none"
        raise TraceFormatError(f"{source} has no ProfilerStep#{step}; the steps that it marks: {there}.")
    if step is None and marks:
        step = _median_step(marks, calls, work)
    start, end = _whole_window(calls, work) if step is None else (marks[step].start, marks[step].end)
    inside = [call for call in calls if start <= call.start < end and not _STEP.fullmatch(call.name)]
    roots = tuple(_nest(inside))
    stray = [item for item in _attach_device_work(calls, inside, work) if start <= item.start < end]
    begun = _end_of_leading_wait(inside) if step is not None else None
    if begun is not None:  # the next step begins with the same wait, until the last work of this step is done
        end = max([end, *(item.start + item.duration for call in inside for item in call.device_work)])
    earlier = _earlier_work(stray, inside)
    kept = set(map(id, earlier))
    header = {} if isinstance(document, list) else {key: document[key] for key in document if key != "traceEvents"}
    return Profile(
        roots=roots,
        stray_work=tuple(item for item in stray if id(item) not in kept),
        start=start if begun is None else begun,
        end=end,
        flows=tuple(_flows(rows)),
        header=header,
        step=step,
        marked_steps=tuple(sorted(marks)),
        earlier_work=tuple(earlier),
        waited=0.0 if begun is None else begun - start,
    )


def _split(rows: Checked) -> tuple[list[Call], list[DeviceWork]]:
    calls: list[Call] = []
    work: list[DeviceWork] = []
    for row in rows.items():
        event = row.value
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        category = str(event.get("cat", "")).lower()
        category = _OLD_CATEGORIES.get(category, category)
        if category not in _HOST and category not in _DEVICE:
            continue
        name, start, duration, arguments = _fields(row)
        details = _details(row, arguments)
        if category in _DEVICE:
            work.append(DeviceWork(name, start, duration, details))
            continue
        thread = _thread(row)
        is_annotation = category == "user_annotation" or "#" in name  # older files use one category for both
        calls.append(Call(name, category in _LAUNCHES, is_annotation, thread, start, start + duration, details))
    return calls, work


def _thread(row: Checked) -> Thread:
    thread = (row.value.get("pid"), row.value.get("tid"))
    if not all(map(is_label, thread)):
        raise row.error(f"has {shown(thread)} as its process and thread; expected numbers or strings.")
    return thread


def _fields(row: Checked) -> tuple[str, float, float, dict[str, Any]]:
    event = row.value
    name, start, duration, arguments = event.get("name"), event.get("ts"), event.get("dur", 0.0), event.get("args", {})
    usual = type(name) is str and type(start) in _NUMBERS and type(duration) in _NUMBERS and type(arguments) is dict
    if usual and math.isfinite(start + duration):
        return name, start, duration, arguments
    # The fast check failed. The slow path raises an error with the reason.
    return (
        row.member("name").text(),
        row.member("ts").any_number(),
        row.optional("dur", Checked.any_number, 0.0),
        row.member("args").mapping(),
    )


def _details(row: Checked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's arguments with keys in lower case, after checking the types of the arguments that are used."""
    details = {key.lower(): value for key, value in arguments.items()}
    for key in details.keys() & _CHECKS.keys():
        is_good, expected = _CHECKS[key]
        if not is_good(details[key]):
            raise row.error(f"has {shown(details[key])} as {key!r}; expected {expected}.")
    for shape, kind in zip(details.get("input dims", ()), details.get("input type", ()), strict=False):
        if kind not in NO_TENSORS and not is_shape(shape):
            raise row.error(f"has {shown(shape)} as sizes of a tensor; expected an array of integers of at least 0.")
    return details


def is_label(value: object) -> bool:
    """Return whether a value can be the label of a process, thread, device or stream."""
    return value is None or isinstance(value, str | int | float)


def is_shape(value: object) -> TypeGuard[list[int]]:
    """Return whether a value is the shape of a tensor."""
    return isinstance(value, list) and all(type(size) is int and 0 <= size <= MAX_INTEGER for size in value)


def _are_arrays(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, list) for item in value)


_LABEL: Final = (is_label, "a number or a string")
_CHECKS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {  # Expected types of the arguments that are read
    "correlation": _LABEL,
    "external id": (
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
        "a finite number",
    ),
    "fwd thread id": _LABEL,
    "device": _LABEL,
    "stream": _LABEL,
    "input dims": (_are_arrays, "an array of arrays"),
    "input strides": (_are_arrays, "an array of arrays"),
    "input type": (
        lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
        "an array of strings",
    ),
    "concrete inputs": (lambda value: isinstance(value, list), "an array"),
}


def _median_step(marks: Mapping[int, Call], calls: list[Call], work: list[DeviceWork]) -> int:
    """Return the number of the median step by length among the steps with device work; of two, the later step."""
    launched = {item.details.get("correlation") for item in work} - {None}
    launches = [call.start for call in calls if call.is_launch and call.details.get("correlation") in launched]
    begins = sorted(launches or (call.start for call in calls if not call.is_launch and not call.is_annotation))

    def is_busy(mark: Call) -> bool:
        return bisect_left(begins, mark.start) < bisect_left(begins, mark.end)

    busy = [number for number, mark in marks.items() if is_busy(mark)] or list(marks)
    by_length = sorted(busy, key=lambda number: marks[number].end - marks[number].start)
    middle = by_length[(len(busy) - 1) // 2 : len(busy) // 2 + 1]
    return max(middle)


def _whole_window(calls: list[Call], work: list[DeviceWork]) -> tuple[float, float]:
    ends = [*(call.end for call in calls), *(item.start + item.duration for item in work)]
    return min(call.start for call in calls), math.nextafter(max(ends), math.inf)


def _end_of_leading_wait(inside: list[Call]) -> float | None:
    """Return the end of the host's initial wait for the previous step; None without such a wait."""
    begun = min((call.start for call in inside if not call.is_launch and not call.is_annotation), default=math.inf)
    begun = min(begun, min((call.start for call in inside if call.device_work), default=math.inf))
    waits = [call.end for call in inside if call.name in _WAITS_FOR_DEVICE and call.end <= begun]
    return max(waits) if waits and begun < math.inf else None


def _earlier_work(stray: list[DeviceWork], inside: list[Call]) -> list[DeviceWork]:
    """Find work without a known launch that the previous step had queued.

    Streams execute in order. Work that began on a stream before this step's first work on the stream was therefore
    launched earlier. On a stream that the step does not use, work belongs to the previous step if it began before the
    step's first launch.
    """
    first_launch = min((call.start for call in inside if call.device_work), default=-math.inf)
    first_on: dict[object, float] = {}
    for item in (item for call in inside for item in call.device_work):
        stream = item.details.get("stream")
        first_on[stream] = min(item.start, first_on.get(stream, math.inf))
    return [item for item in stray if item.start < first_on.get(item.details.get("stream"), first_launch)]


def _nest(calls: list[Call]) -> Iterator[Call]:
    """Nest calls by their times on each thread. Yield the outermost calls, sorted by start."""
    open_calls: dict[Thread, list[Call]] = {}
    # If two calls start at the same time, the longer call is outside. If both also end together, the call with the
    # lower number is outside.
    for call in sorted(calls, key=lambda one: (one.start, one.start - one.end, one.details.get("external id", 0))):
        stack = open_calls.setdefault(call.thread, [])
        while stack and stack[-1].end <= call.start:
            stack.pop()
        if stack:
            call.parent = stack[-1]
            stack[-1].children.append(call)
        else:
            yield call
        stack.append(call)


def _attach_device_work(calls: list[Call], inside: list[Call], work: list[DeviceWork]) -> list[DeviceWork]:
    """Attach device work to the launches of the step. Return the work without a known launch or call."""
    launches = {call.details["correlation"]: call for call in calls if call.is_launch and "correlation" in call.details}
    by_external_id = {
        call.details["external id"]: call
        for call in inside
        if "external id" in call.details and not call.is_launch and not call.is_annotation
    }
    stray = []
    for item in sorted(work, key=lambda event: event.start):
        launch = launches.get(item.details.get("correlation")) or by_external_id.get(item.details.get("external id"))
        if launch is None:
            stray.append(item)
        else:
            launch.device_work.append(item)
    return stray


def _flows(rows: Checked) -> Iterator[tuple[tuple[Thread, float], tuple[Thread, float]]]:
    """Yield the links from forward to backward calls, which are pairs of events with the same id."""
    starts: dict[object, tuple[Thread, float]] = {}
    for row in rows.items():
        event = row.value
        if not isinstance(event, dict) or event.get("cat") not in ("fwdbwd", "forward_backward"):
            continue
        place, number = (_thread(row), row.optional("ts", Checked.any_number, 0.0)), event.get("id")
        if not is_label(number):
            raise row.member("id").unexpected("a number or a string")
        if event.get("ph") == "s":
            starts[number] = place
        elif event.get("ph") == "f" and number in starts:
            yield starts[number], place
