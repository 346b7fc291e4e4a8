"""Files of traces: written and read without a loss; invalid files are rejected with the place of the fault."""

import gzip
import json
import os
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
    anonymised,
)

counts = st.integers(0, 2**40)
seconds = st.floats(0, 1e6)
moments = st.floats(-1e3, 1e6)
words = st.text(max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


def tuples(values: st.SearchStrategy[Any], size: int = 3) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=size).map(tuple)


BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "str": words,
    "int": st.integers(1, 2**40),
    "float": seconds,
    "bool": st.booleans(),
    "Phase": st.sampled_from(PHASES),
    "WaitCause": st.sampled_from(WAIT_CAUSES),
    "Mapping[str, Any]": st.dictionaries(words, json_values, max_size=3),
    "Mapping[str, str]": st.dictionaries(words, words, max_size=2),
    "tuple[int, ...]": tuples(counts),
    "tuple[float, ...]": tuples(seconds),
    "tuple[str, ...]": tuples(words),
    "tuple[int, int, int]": st.tuples(counts, counts, counts),
    "tuple[OtherStep, ...]": st.just(()),
}


def records(record: type, **special: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Make records with any value in each field, by the type of the field."""
    made = {}
    for name, own in record.__dataclass_fields__.items():  # type: ignore[attr-defined]
        kind = own.type.removesuffix(" | None")
        values = special[name] if name in special else moments if name.endswith("start_seconds") else BY_TYPE[kind]
        made[name] = values if kind == own.type else st.none() | values
    return st.builds(record, **made)


dense = records(TensorInfo, stored_elements=st.none(), stored_bytes=st.none())
sparse = st.builds(replace, dense, stored_elements=counts, stored_bytes=counts)
BY_TYPE["tuple[TensorInfo, ...]"] = tuples(dense | sparse)
BY_TYPE["tuple[Kernel, ...]"] = tuples(records(Kernel), 2)
BY_TYPE["tuple[HostWait, ...]"] = tuples(records(HostWait))
BY_TYPE["tuple[Parameter, ...]"] = tuples(records(Parameter))
BY_TYPE |= {"Memory": records(Memory), "Flags": records(Flags)}
BY_TYPE["tuple[Operation, ...]"] = tuples(records(Operation), 4)
traces = records(Trace)
mixed_traces = st.builds(
    lambda first, others: replace(first, other_steps=tuple(OtherStep(share=0.3, trace=other) for other in others)),
    traces,
    st.lists(traces, max_size=2),
)


@given(trace=mixed_traces, ending=st.sampled_from([".json", ".json.gz"]))
def test_loaded_trace_equals_saved_trace(trace: Trace, ending: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("trace") / f"run{ending}"
    trace.save(path)
    assert Trace.load(path) == trace


WEIGHT = TensorInfo(shape=(4, 8), dtype="float32", id=1, device="cpu")
DATA = TensorInfo(shape=(2, 8), dtype="float32", id=0, device="cpu")
KERNEL = Kernel(
    name="sgemm",
    seconds=1e-5,
    grid=(1, 1, 1),
    block=(128, 1, 1),
    registers_per_thread=32,
    shared_memory_bytes=0,
    stream=7,
    start_seconds=0.0,
)
SMALL = Trace(
    operations=(
        Operation(name="aten::mm", phase="forward", inputs=(DATA, WEIGHT), arguments={"alpha": 1.5}, kernels=(KERNEL,)),
        Operation(name="aten::mm", phase="backward", inputs=(WEIGHT, DATA)),
    ),
    device="cpu",
    recorder="dispatch",
)


def document_of(trace: Trace, folder: Path) -> dict[str, Any]:
    path = folder / "trace.json"
    trace.save(path)
    assert Trace.load(path) == trace
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_file_lists_each_tensor_once_and_gzip_is_detected_by_content(tmp_path: Path) -> None:
    document = document_of(SMALL, tmp_path)
    assert document["tensors"] == [[[2, 8], "float32", 0, "cpu"], [[4, 8], "float32", 1, "cpu"]]
    assert [row["inputs"] for row in document["operations"]] == [[0, 1], [1, 0]]
    assert set(document) == {"format", "version", "device", "recorder", "tensors", "operations"}
    assert set(document["operations"][1]) == {"name", "phase", "inputs"}
    SMALL.save(tmp_path / "a.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    os.rename(tmp_path / "a.json.gz", tmp_path / "b.json")
    assert Trace.load(tmp_path / "b.json") == SMALL


MISSING = object()
FIRST = ("operations", 0)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("operations",), MISSING, "operations is missing"),
        ((*FIRST, "name"), MISSING, r"operations\[0\]\.name is missing"),
        ((*FIRST, "phase"), "warmup", r"operations\[0\]\.phase is 'warmup'; expected one of forward"),
        ((*FIRST, "inputs"), [0, 2], r"operations\[0\]\.inputs\[1\] is 2; expected .* at most 1"),
        ((*FIRST, "surprise"), 1, r"operations\[0\] has the field 'surprise'"),
        ((*FIRST, "kernels", 0, "grid"), [1, 1], r".*kernels\[0\]\.grid is \[1, 1\]; expected an array of 3"),
        (("tensors", 0), [[2, 8], "float32", 0], r"tensors\[0\] is .*; expected an array of 4"),
        (("tensors", 0, 0, 1), -8, r"tensors\[0\]\[0\]\[1\] is -8; expected an integer of at least 0"),
        (("batches",), 0, "batches is 0; expected an integer of at least 1"),
        (("device",), None, "device is None; expected a string"),
        (("compiled",), "yes", "compiled is 'yes'; expected true or false"),
        (("step_seconds",), [0.1, -0.1], r"step_seconds\[1\] is -0\.1; expected a number of at least 0"),
        (("memory",), {"peak": 1}, "memory has the field 'peak'; expected only forward_gradient_bytes"),
        (("flags",), {"matmul_tf32": 1}, r"flags\.matmul_tf32 is 1; expected true or false"),
        (("software",), {"torch": 2}, r"software\.torch is 2; expected a string"),
        (("parameters",), [{"name": "w", "shape": [1]}], r"parameters\[0\]\.dtype is missing"),
        (("extra",), 1, "the whole file has the field 'extra'"),
        (("version",), "1", "version is '1'; expected an integer of at least 1"),
    ],
)
def test_invalid_field_is_named(place: tuple[str | int, ...], value: object, message: str, tmp_path: Path) -> None:
    inner: Any = document_of(SMALL, tmp_path)
    document = inner
    for part in place[:-1]:
        inner = inner[part]
    if value is MISSING:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TraceFormatError, match=f"wrong.json: {message}"):
        Trace.load(path)


def test_newer_versions_and_missing_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    path.write_text(json.dumps({**document_of(SMALL, tmp_path), "version": VERSION + 1, "new_field": 1}))
    with pytest.raises(TraceVersionError, match=r"version 2; this release reads version 1\. Record it again"):
        Trace.load(path)
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"events": []}, rf"'format' is None, expected '{FORMAT}'.*trace import"),
        ({"traceEvents": []}, r"is a profile of torch\.profiler\. Convert it with `lightning-predict trace import"),
    ],
)
def test_other_json_file_is_rejected(document: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "kineto.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TraceFormatError, match=message):
        Trace.load(path)


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_truncated_file_is_rejected_at_every_length(ending: str, tmp_path: Path) -> None:
    whole = tmp_path / f"whole{ending}"
    SMALL.save(whole)
    content = whole.read_bytes()
    for length in range(0, len(content), 7):
        path = tmp_path / f"part{ending}"
        path.write_bytes(content[:length])
        with pytest.raises(TraceFormatError, match=r"is not valid JSON|is damaged gzip"):
            Trace.load(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"[1, 2", b'{"x": NaN}', b'{"x": -Infinity}', b"\xff\xfe{}", b"[" * 100_000, gzip.compress(b"{")],
    ids=["empty", "text", "cut", "nan", "infinity", "utf16", "deep", "gzip"],
)
def test_invalid_json_is_rejected(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    message = r"x\.json is (not valid JSON .* it may be truncated|not JSON: it begins|nested 100,000 levels deep)"
    with pytest.raises(TraceFormatError, match=message):
        Trace.load(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_argument_without_json_form_is_rejected_and_writes_no_file(value: object, tmp_path: Path) -> None:
    trace = replace(SMALL, operations=(Operation(name="op", phase="other", arguments={"x": value}),))
    with pytest.raises(TraceFormatError, match="must be JSON values"):
        trace.save(tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    SMALL.save(path)

    def full(source: str, target: str) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        replace(SMALL, samples=5).save(path)
    monkeypatch.undo()
    assert Trace.load(path) == SMALL
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_pipes_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, pipe = tmp_path / "link.json", tmp_path / "pipe"
    link.symlink_to(tmp_path / "folder" / "run.json")
    SMALL.save(link)
    assert link.is_symlink()
    assert Trace.load(tmp_path / "folder" / "run.json") == SMALL
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    SMALL.save(pipe)
    assert os.read(reader, 10) == b'{"format":'
    os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize("shares", [(0.0,), (0.6, 0.4), (1.0,)])
def test_shares_of_other_steps_must_leave_a_rest(shares: tuple[float, ...], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    replace(SMALL, other_steps=tuple(OtherStep(share=share, trace=SMALL) for share in shares)).save(path)
    with pytest.raises(TraceFormatError, match=r"other_steps.*shares above 0 that leave a part of 1"):
        Trace.load(path)


def test_anonymised_file_has_no_names_but_the_same_shapes(tmp_path: Path) -> None:
    modules = ("secret.first", "secret.second", "secret.first", None)
    trace = replace(
        SMALL,
        operations=tuple(replace(SMALL.operations[0], module=module) for module in modules),
        parameters=(Parameter(name="secret.first.weight", shape=(4, 8), dtype="float32"),),
        notes=("recorded by /home/secret/train.py",),
    )
    hidden, with_modules = anonymised(trace), anonymised(trace, keep_modules=True)
    hidden.save(tmp_path / "trace.json")
    assert "secret" not in (tmp_path / "trace.json").read_text()
    assert [operation.module for operation in hidden.operations] == ["module_0", "module_1", "module_0", None]
    assert [operation.inputs for operation in hidden.operations] == [operation.inputs for operation in trace.operations]
    assert (hidden.parameters[0].name, hidden.parameters[0].shape) == ("parameter_0", (4, 8))
    assert with_modules.operations[0].module == "secret.first"
    assert (with_modules.parameters[0].name, with_modules.notes) == ("parameter_0", ())
