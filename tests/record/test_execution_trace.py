"""Imported execution traces: a real one of a CPU, and rejected inputs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.base.errors import TraceFormatError, TraceVersionError
from lightning_predict.record.imports import import_trace
from lightning_predict.record.trace import Trace
from tests.record.test_dispatch import operations_of
from tests.record.workloads import counted, names, perceptron_step

RECORDED = Path(__file__).parents[1] / "traces" / "cpu_execution_trace.json.gz"


@pytest.fixture(scope="module")
def trace() -> Trace:
    """The recorded step: two linear layers, dropout, clipping and AdamW."""
    return import_trace(RECORDED)


def test_execution_trace_has_the_operations_of_the_dispatch_recorder(trace: Trace) -> None:
    step = perceptron_step(clip=True)
    step()
    assert counted(trace.operations) == counted(operations_of(step))
    assert (trace.device, trace.recorder, trace.optimizer_steps) == ("cpu", "execution_trace", 1)
    assert names(trace.operations, "forward").count("aten::addmm") == 2
    assert "aten::lerp_" in names(trace.operations, "optimizer")


def test_tensors_have_ids_and_outputs(trace: Trace) -> None:
    relu = next(operation for operation in trace.operations if operation.name == "aten::relu")
    product = next(operation for operation in trace.operations if operation.name == "aten::addmm")
    # Linear(8, 16) on 4 rows, then ReLU of its output.
    assert [tensor.shape for tensor in product.inputs] == [(16,), (4, 8), (8, 16)]
    assert [tensor.shape for tensor in product.outputs] == [(4, 16)]
    assert product.outputs[0].id == relu.inputs[0].id
    assert product.outputs[0].dtype == "float32"
    assert product.arguments == {"beta": 1, "alpha": 1}


def test_execution_trace_has_no_times(trace: Trace) -> None:
    assert trace.profiled_seconds is None
    assert not trace.has_measured_kernels
    assert {operation.host_seconds for operation in trace.operations} == {None}


def changed(tmp_path: Path, **fields: Any) -> Path:
    """The recorded file with other fields; None takes one away."""
    document = json.loads(gzip.decompress(RECORDED.read_bytes())) | fields
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
    return path


def test_marked_step_of_an_execution_trace_is_selected(tmp_path: Path) -> None:
    document = json.loads(gzip.decompress(RECORDED.read_bytes()))
    nodes = document["nodes"]
    first = min(node["id"] for node in nodes if node["name"] == "aten::linear")
    empty: dict[str, list[Any]] = {"values": [], "shapes": [], "types": [], "strides": []}
    attributes = [{"name": key, "value": value} for key, value in (("scope", 7), ("tid", 1), ("seq_id", -1))]
    mark = {"id": first, "name": "ProfilerStep#5", "ctrl_deps": 2, "inputs": empty, "outputs": empty}
    for node in nodes:  # make room for the mark before the first layer, and put that layer inside
        node["ctrl_deps"] += node["ctrl_deps"] >= first
        node["id"] += node["id"] >= first
        if node["id"] == first + 1:
            node["ctrl_deps"] = first
    path = changed(tmp_path, nodes=[*nodes, {**mark, "attrs": attributes}])
    assert names(import_trace(path, step=5).operations) == ["aten::t", "aten::addmm"]
    with pytest.raises(TraceFormatError, match=r"no ProfilerStep#6; the steps that it marks: 5\."):
        import_trace(path, step=6)


def test_file_without_schema_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match=r"its field 'schema' is None.*export_chrome_trace holds 'traceEvents'"):
        import_trace(changed(tmp_path, schema=None))


def test_older_schema_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TraceVersionError, match=r"schema 1\.0\.1; this release reads 1\.1\.x.*Record it again"):
        import_trace(changed(tmp_path, schema="1.0.1"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nodes": None}, r"or an execution trace \(no 'nodes'\)"),
        ({"nodes": [{"id": 3}]}, r"nodes\[0\]\.name is missing"),
        ({"nodes": [{"name": "a", "id": -3}]}, r"nodes\[0\]\.id is -3; expected an integer of at least 0"),
        ({"nodes": [{"name": "a", "id": 3}]}, r"nodes\[0\]\.ctrl_deps is missing"),
        ({"nodes": []}, "holds no operations"),
    ],
)
def test_invalid_node_is_named(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = changed(tmp_path, **fields)
    with pytest.raises(TraceFormatError, match=message):
        import_trace(path)
