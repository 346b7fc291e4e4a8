from __future__ import annotations

import json
from pathlib import Path

from lightning_predict.record.trace import Operation, Parameter, TensorInfo, Trace, anonymised

DATA = TensorInfo((4, 8), "float32", id=1)
TRACE = Trace(
    operations=(
        Operation(name="aten::mm", phase="forward", inputs=(DATA, DATA), module="secret.first"),
        Operation(name="aten::relu", phase="forward", inputs=(DATA,), module="secret.second"),
        Operation(name="aten::mm", phase="backward", inputs=(DATA, DATA), module="secret.first"),
        Operation(name="aten::add", phase="optimizer", inputs=(DATA,)),
    ),
    device="cpu",
    recorder="dispatch",
    parameters=(Parameter(name="secret.first.weight", shape=(4, 8), dtype="float32"),),
    notes=("recorded by /home/secret/train.py",),
)


def test_no_name_is_left_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    anonymised(TRACE).save(str(path))
    assert "secret" not in path.read_text()
    assert json.loads(path.read_text())


def test_equal_modules_keep_equal_numbers() -> None:
    assert [operation.module for operation in anonymised(TRACE).operations] == [
        "module_0",
        "module_1",
        "module_0",
        None,
    ]


def test_modules_can_be_kept() -> None:
    kept = anonymised(TRACE, keep_modules=True)
    assert kept.operations[0].module == "secret.first"
    assert kept.parameters[0].name == "parameter_0"
    assert kept.notes == ()


def test_what_predictions_need_stays() -> None:
    hidden = anonymised(TRACE)
    assert [operation.inputs for operation in hidden.operations] == [operation.inputs for operation in TRACE.operations]
    assert hidden.parameters[0].shape == (4, 8)
