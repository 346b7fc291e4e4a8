"""Kineto events: nesting, steps, and the device work of each call."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import TraceFormatError
from lightning_predict.record.events import read_profile


def event(
    name: str,
    start: float,
    duration: float,
    category: str = "cpu_op",
    *,
    tid: int = 1,
    external_id: int | None = None,
    number: int | None = None,
    forward_thread: int | None = None,
    **args: Any,
) -> dict[str, Any]:
    """One row of a file; `number` is autograd's counter, `forward_thread` stands with it on backward nodes."""
    blanks = {"External id": external_id, "Sequence number": number, "Fwd thread id": forward_thread}
    args |= {key: value for key, value in blanks.items() if value is not None}
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": tid, "ts": start, "dur": duration, "args": args}


def test_calls_nest_by_time_length_and_number_on_their_thread() -> None:
    profile = read_profile(
        [event("outer", 0, 10), event("inner", 2, 3), event("beside", 2, 3, tid=2), event("next", 10, 5)],
        "f",
        step=None,
    )
    assert [(root.name, [child.name for child in root.children]) for root in profile.roots] == [
        ("outer", ["inner"]),
        ("beside", []),
        ("next", []),
    ]
    rows = [
        event("inner", 0, 4, external_id=2),
        event("outer", 0, 9, external_id=1),
        event("second", 20, 5, external_id=4),
        event("first", 20, 5, external_id=3),
    ]
    profile = read_profile(rows, "f", step=None)
    assert [(call.name, call.parent.name if call.parent else None) for call in profile.calls()] == [
        ("outer", None),
        ("inner", "outer"),
        ("first", None),
        ("second", "first"),
    ]


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 50), st.integers(1, 3)), min_size=1, max_size=40))
def test_every_call_begins_inside_its_parent(rows: list[tuple[int, int, int]]) -> None:
    events = [event(f"op{index}", start, length, tid=tid) for index, (start, length, tid) in enumerate(rows)]
    calls = list(read_profile(events, "f", step=None).calls())
    assert sorted(call.name for call in calls) == sorted(row["name"] for row in events)
    for call in calls:
        if call.parent is not None:
            assert call.thread == call.parent.thread
            assert call.parent.start <= call.start < call.parent.end


STEPS = [
    event("ProfilerStep#3", 0, 10, "user_annotation"),
    event("a", 1, 2),
    event("ProfilerStep#4", 10, 10, "user_annotation"),
    event("b", 11, 2),
    event("late", 25, 2),
]


@pytest.mark.parametrize(("step", "expected"), [(None, ["b"]), (3, ["a"]), (4, ["b"])])
def test_marked_step_is_selected_by_number_or_median(step: int | None, expected: list[str]) -> None:
    profile = read_profile({"traceEvents": STEPS}, "f", step=step)
    assert [root.name for root in profile.roots] == expected


def test_unmarked_files_are_a_step_and_work_of_another_one_is_excluded() -> None:
    profile = read_profile([event("a", 5, 2), event("k", 8, 4, "kernel", correlation=1)], "f", step=None)
    assert profile.start == 5
    assert profile.end == pytest.approx(12)
    assert [work.name for work in profile.stray_work] == ["k"]
    rows = [
        *STEPS,
        event("cudaLaunchKernel", 2, 1, "cuda_runtime", correlation=7),
        event("k", 12, 2, "kernel", tid=99, correlation=7),
    ]
    profile = read_profile(rows, "f", step=4)
    assert profile.stray_work == ()
    assert not any(call.device_work for call in profile.calls())


def test_device_work_belongs_to_its_launch_or_named_call() -> None:
    rows = [
        event("op", 0, 20, external_id=5),
        event("cudaLaunchKernel", 2, 3, "cuda_runtime", correlation=7, external_id=5),
        event("k1", 6, 2, "kernel", tid=99, correlation=7, external_id=5),
        event("k2", 9, 2, "kernel", tid=99, correlation=8, external_id=5),
        event("k3", 12, 2, "kernel", tid=99, correlation=9),
    ]
    profile = read_profile(rows, "f", step=None)
    (op,) = profile.roots
    assert [work.name for work in op.device_work] == ["k2"]
    assert [work.name for work in op.children[0].device_work] == ["k1"]
    assert [work.name for work in profile.stray_work] == ["k3"]


def test_older_spelling_of_categories_and_keys_is_read() -> None:
    rows = [
        event("aten::mm", 0, 20, "Operator") | {"args": {"external id": 5, "Input dims": [[2, 3]]}},
        event("cudaLaunchKernel", 2, 3, "Runtime", correlation=7),
        event("k", 6, 2, "Kernel", tid=99, correlation=7),
        event("Memcpy HtoD", 9, 1, "Memcpy", tid=99) | {"args": {"external id": 5}},
        event("Optimizer.step#SGD.step", 30, 5, "Operator"),
    ]
    op, step = read_profile(rows, "f", step=None).roots
    assert step.is_annotation
    assert not op.is_annotation
    assert op.details["input dims"] == [[2, 3]]
    assert [work.name for work in op.children[0].device_work] == ["k"]
    assert [work.name for work in op.device_work] == ["Memcpy HtoD"]


@pytest.mark.parametrize(
    ("document", "step", "message"),
    [
        ({"events": []}, None, "f: traceEvents is missing"),
        ({"traceEvents": 3}, None, "f: traceEvents is 3; expected an array"),
        (7, None, "f: the whole file is 7; expected an object"),
        ([], None, "holds no operations: none of its 0 events"),
        ([event("k", 0, 1, "kernel")], None, r"none of its 1 events has the category 'cpu_op'\. Record with"),
        ({"traceEvents": STEPS}, 9, r"f has no ProfilerStep#9; the steps that it marks: 3, 4\."),
        ([event("a", 0, 1)], 1, r"f has no ProfilerStep#1; the steps that it marks: none\."),
        ([{**event("a", 0, 1), "ts": "soon"}], None, r"\[0\]\.ts is 'soon'; expected a finite number"),
    ],
)
def test_invalid_profile_is_rejected(document: Any, step: int | None, message: str) -> None:
    with pytest.raises(TraceFormatError, match=message):
        read_profile(document, "f", step=step)
