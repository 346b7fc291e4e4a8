"""Traces survive a file, and no wrong file is taken for a Trace."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import TraceFormatError, TraceVersionError
from lightning_predict.record.trace import (
    FORMAT,
    PHASES,
    VERSION,
    WAIT_CAUSES,
    Flags,
    HostWait,
    Kernel,
    Memory,
    Operation,
    OtherStep,
    Parameter,
    TensorInfo,
    Trace,
    load_trace,
    save_trace,
)

counts = st.integers(0, 2**40)
seconds = st.floats(0, 1e6)
moments = st.floats(-1e3, 1e6)
words = st.text(max_size=12)
triples = st.tuples(counts, counts, counts)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
tensors = st.builds(
    TensorInfo,
    shape=st.lists(counts, max_size=4).map(tuple),
    dtype=st.sampled_from(["float32", "bfloat16", "int64"]),
    id=st.none() | counts,
    device=st.sampled_from([None, "cpu", "cuda", "meta"]),
)
kernels = st.builds(
    Kernel,
    name=words,
    seconds=seconds,
    grid=triples,
    block=triples,
    registers_per_thread=counts,
    shared_memory_bytes=counts,
    stream=counts,
    start_seconds=moments,
    launch_start_seconds=st.none() | moments,
    launch_seconds=st.none() | seconds,
)
operations = st.builds(
    Operation,
    name=words,
    phase=st.sampled_from(PHASES),
    inputs=st.lists(tensors, max_size=3).map(tuple),
    outputs=st.lists(tensors, max_size=2).map(tuple),
    arguments=st.dictionaries(words, json_values, max_size=3),
    module=st.none() | words,
    kernels=st.lists(kernels, max_size=2).map(tuple),
    host_start_seconds=st.none() | moments,
    host_seconds=st.none() | seconds,
    python_seconds=seconds,
)
traces = st.builds(
    Trace,
    operations=st.lists(operations, max_size=4).map(tuple),
    device=words,
    recorder=words,
    gpu_reported_name=st.none() | words,
    gpu_memory_bytes=st.none() | counts,
    step_seconds=st.lists(seconds, max_size=3).map(tuple),
    profiled_seconds=st.none() | seconds,
    loader_seconds=st.lists(seconds, max_size=3).map(tuple),
    waits=st.lists(
        st.builds(HostWait, start_seconds=moments, seconds=seconds, cause=st.sampled_from(WAIT_CAUSES)), max_size=3
    ).map(tuple),
    has_python_stacks=st.booleans(),
    batches=st.integers(1, 9),
    samples=st.none() | st.integers(1, 999),
    optimizer_steps=st.integers(0, 9),
    parameters=st.lists(
        st.builds(
            Parameter,
            name=words,
            shape=st.lists(counts, max_size=3).map(tuple),
            dtype=words,
            requires_grad=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    memory=st.builds(
        Memory,
        parameter_bytes=st.none() | counts,
        gradient_bytes=st.none() | counts,
        optimizer_state_bytes=st.none() | counts,
        peak_bytes=st.none() | counts,
    ),
    flags=st.builds(
        Flags,
        matmul_tf32=st.booleans(),
        cudnn_tf32=st.booleans(),
        autocast_dtype=st.sampled_from([None, "bfloat16"]),
        cudnn_benchmark=st.booleans(),
        cudnn_deterministic=st.booleans(),
    ),
    compiled=st.booleans(),
    compile_seconds=st.none() | st.floats(0, 1000),
    software=st.dictionaries(words, words, max_size=2),
    notes=st.lists(words, max_size=2).map(tuple),
)


mixed_traces = st.builds(
    lambda first, others: replace(first, other_steps=tuple(OtherStep(share=0.3, trace=other) for other in others)),
    traces,
    st.lists(traces, max_size=2),
)


@given(trace=mixed_traces, ending=st.sampled_from([".json", ".json.gz"]))
def test_what_is_saved_is_what_is_loaded(trace: Trace, ending: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("trace") / f"run{ending}"
    save_trace(trace, path)
    assert load_trace(path) == trace


WEIGHT = TensorInfo(shape=(4, 8), dtype="float32", id=1, device="cpu")
DATA = TensorInfo(shape=(2, 8), dtype="float32", id=0, device="cpu")
SMALL = Trace(
    operations=(
        Operation(name="aten::mm", phase="forward", inputs=(DATA, WEIGHT), arguments={"alpha": 1.5}),
        Operation(name="aten::mm", phase="backward", inputs=(WEIGHT, DATA)),
    ),
    device="cpu",
    recorder="dispatch",
)


def document_of(trace: Trace, folder: Path) -> dict[str, Any]:
    path = folder / "trace.json"
    save_trace(trace, path)
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_the_methods_of_a_trace_use_these_files(tmp_path: Path) -> None:
    SMALL.save(str(tmp_path / "run.json"))
    assert Trace.load(str(tmp_path / "run.json")) == SMALL


def test_a_file_lists_each_tensor_once_and_leaves_defaults_out(tmp_path: Path) -> None:
    document = document_of(SMALL, tmp_path)
    assert document["tensors"] == [[[2, 8], "float32", 0, "cpu"], [[4, 8], "float32", 1, "cpu"]]
    assert [row["inputs"] for row in document["operations"]] == [[0, 1], [1, 0]]
    assert set(document) == {"format", "version", "device", "recorder", "tensors", "operations"}
    assert set(document["operations"][1]) == {"name", "phase", "inputs"}


def test_gzip_is_told_by_the_first_bytes_and_not_by_the_name(tmp_path: Path) -> None:
    save_trace(SMALL, tmp_path / "a.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    os.rename(tmp_path / "a.json.gz", tmp_path / "b.json")
    assert load_trace(tmp_path / "b.json") == SMALL


def _set(*place: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        inner: Any = document
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = to

    return change


def _drop(*place: str | int) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        inner: Any = document
        for step in place[:-1]:
            inner = inner[step]
        del inner[place[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop("operations"), "operations is missing"),
        (_drop("operations", 0, "name"), r"operations\[0\]\.name is missing"),
        (
            _set("operations", 1, "phase", to="warmup"),
            r"operations\[1\]\.phase is 'warmup'; expected one of forward",
        ),
        (_set("operations", 0, "inputs", to=[0, 2]), r"operations\[0\]\.inputs\[1\] is 2; expected .* at most 1"),
        (_set("operations", 0, "surprise", to=1), r"operations\[0\] has the field 'surprise'"),
        (_set("tensors", 0, to=[[2, 8], "float32", 0]), r"tensors\[0\] is .*; expected an array of 4"),
        (_set("tensors", 0, 0, 1, to=-8), r"tensors\[0\]\[0\]\[1\] is -8; expected an integer of at least 0"),
        (_set("batches", to=0), "batches is 0; expected an integer of at least 1"),
        (_set("device", to=None), "device is None; expected a string"),
        (_set("compiled", to="yes"), "compiled is 'yes'; expected true or false"),
        (_set("step_seconds", to=[0.1, -0.1]), r"step_seconds\[1\] is -0\.1; expected a number of at least 0"),
        (_set("memory", to={"peak": 1}), "memory has the field 'peak'; expected only forward_gradient_bytes"),
        (_set("flags", to={"matmul_tf32": 1}), r"flags\.matmul_tf32 is 1; expected true or false"),
        (_set("software", to={"torch": 2}), r"software\.torch is 2; expected a string"),
        (_set("parameters", to=[{"name": "w", "shape": [1]}]), r"parameters\[0\]\.dtype is missing"),
        (_set("extra", to=1), "the whole file has the field 'extra'"),
        (_set("version", to="1"), "version is '1'; expected an integer of at least 1"),
    ],
)
def test_a_wrong_field_is_named(change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    document = document_of(SMALL, tmp_path)
    change(document)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TraceFormatError, match=f"wrong.json: {message}"):
        load_trace(path)


def test_a_wrong_kernel_is_named(tmp_path: Path) -> None:
    kernel = Kernel(
        name="sgemm",
        seconds=1e-5,
        grid=(1, 1, 1),
        block=(128, 1, 1),
        registers_per_thread=32,
        shared_memory_bytes=0,
        stream=7,
        start_seconds=0.0,
    )
    first = replace(SMALL.operations[0], kernels=(kernel,))
    document = document_of(replace(SMALL, operations=(first,)), tmp_path)
    document["operations"][0]["kernels"][0]["grid"] = [1, 1]
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TraceFormatError, match=r"kernels\[0\]\.grid is \[1, 1\]; expected an array of 3"):
        load_trace(path)


def test_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    path.write_text(json.dumps({**document_of(SMALL, tmp_path), "version": VERSION + 1, "new_field": 1}))
    with pytest.raises(TraceVersionError, match=r"version 2; this release reads version 1\. Record it again"):
        load_trace(path)


def test_another_json_file_is_refused_with_what_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "kineto.json"
    path.write_text(json.dumps({"events": []}))
    with pytest.raises(TraceFormatError, match=rf"'format' is None, expected '{FORMAT}'.*trace import"):
        load_trace(path)
    path.write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(TraceFormatError, match=r"is a profile of torch\.profiler .*`lightning-predict trace import"):
        load_trace(path)


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_a_truncated_file_is_refused_wherever_it_ends(ending: str, tmp_path: Path) -> None:
    whole = tmp_path / f"whole{ending}"
    save_trace(SMALL, whole)
    content = whole.read_bytes()
    for length in range(0, len(content), 7):
        path = tmp_path / f"part{ending}"
        path.write_bytes(content[:length])
        with pytest.raises(TraceFormatError, match=r"is not valid JSON|is damaged gzip"):
            load_trace(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"[1, 2",
        b'{"x": NaN}',
        b'{"x": -Infinity}',
        b"\xff\xfe{}",
        b"[" * 100_000,
        gzip.compress(b"{", mtime=0),
    ],
)
def test_what_is_no_json_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(
        TraceFormatError,
        match=r"x\.json is (not valid JSON .* it may be truncated|not JSON: it begins|nested 100,000 levels deep)",
    ):
        load_trace(path)


def test_a_missing_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_trace(tmp_path / "absent.json")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_a_value_that_json_cannot_hold_is_refused_and_no_file_appears(value: object, tmp_path: Path) -> None:
    trace = replace(SMALL, operations=(Operation(name="op", phase="other", arguments={"x": value}),))
    with pytest.raises(TraceFormatError, match="must be JSON values"):
        save_trace(trace, tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    save_trace(SMALL, path)

    def full(source: str, target: str) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        save_trace(replace(SMALL, samples=5), path)
    monkeypatch.undo()
    assert load_trace(path) == SMALL
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_and_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, pipe = tmp_path / "link.json", tmp_path / "pipe"
    link.symlink_to(tmp_path / "folder" / "run.json")
    save_trace(SMALL, link)
    assert link.is_symlink()
    assert load_trace(tmp_path / "folder" / "run.json") == SMALL
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    save_trace(SMALL, pipe)
    assert os.read(reader, 10) == b'{"format":'
    os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize("shares", [(0.0,), (0.6, 0.4), (1.0,)])
def test_shares_that_leave_nothing_to_the_commonest_step_are_refused(shares: tuple[float, ...], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    save_trace(replace(SMALL, other_steps=tuple(OtherStep(share=share, trace=SMALL) for share in shares)), path)
    with pytest.raises(TraceFormatError, match=r"other_steps.*shares above 0 that leave a part of 1"):
        load_trace(path)
