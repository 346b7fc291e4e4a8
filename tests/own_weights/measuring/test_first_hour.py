"""`first-hour`: a report to the end, after any failure, and the parts that need no GPU."""

import base64
import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware import gpu
from lightning_predict.own_weights import first_hour as module
from lightning_predict.own_weights.first_hour import MACHINE, NO_CUDA, PARTS, _Part, first_wait, report_on_gpu
from lightning_predict.own_weights.measuring import run, typical_steps
from lightning_predict.own_weights.measuring.run import measure
from lightning_predict.own_weights.measuring.typical_steps import TYPICAL_STEPS, library_steps
from lightning_predict.own_weights.training.tables import read_own_tables
from lightning_predict.record.recording import capture
from tests.own_weights.measuring.test_measuring import by_graph

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")


@without_cuda
def test_report_without_cuda_times_the_host_and_names_skipped_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WATCHED_SECONDS", 0.1)
    monkeypatch.setattr(module, "CALLS", 200)
    seen: list[str] = []
    report = report_on_gpu(tmp_path / "new" / "report.json", progress=seen.append)
    assert seen == [part.name for part in PARTS]
    written = json.loads((tmp_path / "new" / "report.json").read_text())
    assert {**written, **report} == written
    assert str(tmp_path) not in (text := json.dumps(written))
    assert str(Path.cwd()) not in text
    machine, host, watching = (report["parts"].pop(name) for name in (MACHINE, "host", "watching"))
    assert (machine["state"], host["state"], watching["state"]) == ("done",) * 3
    facts: Any = {name: part["facts"] for name, part in (("machine", machine), ("host", host), ("watching", watching))}
    assert facts["machine"]["torch"] == torch.__version__
    # Without a GPU, the host's own calls are timed: a layer and a pass of autograd take longer than an allocation.
    calls = facts["host"]["call_seconds"]
    assert 0 < calls["empty"] < min(calls["linear"], calls["autograd"])
    assert len(facts["watching"]["watched_seconds"]) == len(facts["watching"]["plain_seconds"]) == 3
    names = {"recordings", "launch queue", "rates", "operators", "steps"}
    assert set(report["parts"]) == names
    assert all(part == {"state": "skipped", "reason": NO_CUDA} for part in report["parts"].values())


@without_cuda
@pytest.mark.parametrize(
    ("preset", "names"),
    [
        ("facts", [MACHINE, "host", "watching", "recordings", "launch queue"]),
        ("measurements", [MACHINE, "rates", "operators", "steps"]),
    ],
)
def test_a_preset_has_its_own_parts(
    preset: Any, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WATCHED_SECONDS", 0.1)
    monkeypatch.setattr(module, "CALLS", 200)
    assert list(report_on_gpu(tmp_path / "report.json", preset=preset)["parts"]) == names


def test_failed_part_is_named_and_others_run(tmp_path: Path) -> None:
    def fails(left: float) -> Mapping[str, Any]:
        raise RuntimeError("CUDA error: no such luck")

    def holds(left: float) -> Mapping[str, Any]:
        return {"left": left}

    parts = [
        _Part("first", "facts", needs_cuda=False, find=fails),
        _Part("second", "facts", needs_cuda=False, find=holds),
    ]
    ticks = iter([0.0, 1.0, 1.0, 3.0, 10.0, 10.0, 12.0])
    report = report_on_gpu(tmp_path / "report.json", minutes=1, parts=parts, clock=lambda: next(ticks))
    assert report["parts"] == {
        "first": {"state": "failed", "reason": "RuntimeError: CUDA error: no such luck", "seconds": 2.0},
        "second": {"state": "done", "facts": {"left": 50.0}, "seconds": 2.0},
    }


def test_a_part_without_time_is_skipped_and_earlier_ones_are_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"

    def reads(left: float) -> Mapping[str, Any]:
        return {"before": list(json.loads(path.read_text())["parts"]) if path.exists() else []}

    parts = [_Part(name, "facts", needs_cuda=False, find=reads) for name in ("first", "second", "third")]
    ticks = iter([0.0, 1.0, 1.0, 2.0, 5.0, 5.0, 6.0, 61.0])
    report = report_on_gpu(path, minutes=1, parts=parts, clock=lambda: next(ticks))
    second: Any = report["parts"]["second"]
    assert second["facts"] == {"before": ["first"]}
    assert report["parts"]["third"] == {"state": "skipped", "reason": "no time left"}


@pytest.mark.parametrize(("preset", "minutes"), [("some", 1.0), ("all", 0.0)])
def test_bad_arguments_are_named(preset: Any, minutes: float, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="expected one of facts, measurements, all and a time above 0"):
        report_on_gpu(tmp_path / "report.json", preset=preset, minutes=minutes)


def test_first_waiting_launch_is_found_behind_the_longest_product_that_fits(as_cuda: pytest.MonkeyPatch) -> None:
    ticks = [0.0]
    for launch in range(2000):
        ticks.append(ticks[-1] + (5e-3 if launch >= 1023 else 3e-6))
    assert first_wait(ticks, 4e-3) == 1023
    assert first_wait(ticks[:1000], 4e-3) is None
    for name, value in (("FIRST_SIDE", 16), ("LARGEST_SIDE", 32), ("LAUNCH_QUEUE", 10), ("QUEUED_SECONDS", 1e-9)):
        as_cuda.setattr(module, name, value)
    facts: Any = module._launch_queue(60.0)
    assert 0 < facts["product_seconds"] < 1
    assert set(facts) == {"product_seconds", "launches_before_a_wait"}


@pytest.fixture
def as_cuda(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let the parts run on the CPU, as if it were a T4."""
    row = SimpleNamespace(name="Tesla T4", total_memory=15 * 2**30, multi_processor_count=40, L2_cache_size=4 * 2**20)
    monkeypatch.setattr(module, "_cuda", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: row)
    monkeypatch.setattr(module, "STEPS", 2)
    return monkeypatch


def test_each_session_counts_its_kernels_and_products(as_cuda: pytest.MonkeyPatch) -> None:
    as_cuda.setattr(torch, "compile", lambda step: step)
    facts: Any = module._recordings(60.0)
    assert facts["sessions"] == [facts["sessions"][0]] * module.SESSIONS
    assert facts["sessions"][0]["products"] >= 24
    assert facts["sessions"][0]["without_kernels"] == facts["sessions"][0]["products"]  # a CPU records none
    assert facts["step_seconds_before"] > 0
    assert facts["step_seconds_after"] > 0
    graph = facts["checks"].pop("CUDA graphs have kernels")  # a CPU has no graphs, and records no kernels
    assert isinstance(graph, str)
    assert facts["checks"] == {
        "kernels follow their launches": True,
        "kernel time belongs to operations": False,
        "phases follow each other": True,
        "each phase has kernels": False,
        "autocast is seen": True,
        "weights and random numbers stay": True,
        "compiled code has kernels": False,
    }


def test_the_rows_of_measured_operators_are_in_the_report(as_cuda: pytest.MonkeyPatch) -> None:
    words: dict[str, Any] = {
        "operations": ["add"],
        "dtypes": ["float32"],
        "shapes": 2,
        "device": "cpu",
        "is_trial": True,
        "gpu": "T4",
    }
    asked: list[float] = []

    def tried(folder: str, *, minutes: float) -> Any:
        asked.append(minutes)
        return measure(folder, **words)

    as_cuda.setattr(module, "measure", tried)
    as_cuda.setattr(module, "name_of", lambda device, gpu: "T4")
    as_cuda.setattr(module, "measured_shares", lambda *found: {"gpt2": 0.5})
    as_cuda.setattr(run, "time_call", by_graph)
    as_cuda.setattr(module, "library_steps", lambda: dict.fromkeys(("levit_256", "densenet121")))
    facts: Any = module._operators(600.0)
    assert asked == [pytest.approx((600 - 150 - 2 * 8) / 60)]  # for whole steps of ours, and 8 s for each of a library
    assert len(facts["tables"]["own_add"]["rows"]) == facts["rows"]
    assert facts["tables"]["own_add"]["columns"][:3] == ["gpu", "op", "dtype"]
    assert facts["shares"] == {"gpt2": 0.5}


def test_residuals_compare_each_operation_with_its_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "time_call", by_graph)
    measure(tmp_path, operations=["add"], dtypes=["float32"], shapes=8, device="cpu", gpu="T4", is_trial=True)
    (group,) = read_own_tables(tmp_path)
    entry = module.residuals(tmp_path, gpu("T4"))["add/float32"]
    shapes: Any = group.batch.columns
    predicted = lp.operator_seconds("add", "T4", dtype="float32", **shapes)
    assert entry["rows"] == len(group.seconds)
    # Every row says 0.8 ms with a warm L2.
    assert entry["median"] == pytest.approx(float(np.median(np.log(0.8e-3 / np.asarray(predicted)))))


@pytest.fixture
def tiny_steps(as_cuda: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let every whole step be one of a small layer; graphs and compiled code run as the step itself."""
    as_cuda.setattr(
        module, "TYPICAL_STEPS", dict.fromkeys(TYPICAL_STEPS, lambda device, capturable: module._small_step(device)[1])
    )
    as_cuda.setattr(module, "library_steps", dict)
    as_cuda.setattr(module, "in_cuda_graph", lambda step: step)
    as_cuda.setattr(module, "_main_rates", lambda: SimpleNamespace(flops_per_second={"float16": 30e12}))
    as_cuda.setattr(torch, "compile", lambda step: step)
    as_cuda.setattr(torch.cuda, "empty_cache", lambda: None)
    return as_cuda


def test_five_whole_steps_are_compared_with_their_loops(tiny_steps: pytest.MonkeyPatch) -> None:
    facts: Any = module._steps(60.0)
    kinds = ["resnet50 eager", "gpt2 eager", "gpt2 CUDA graph", "resnet50 compiled", "bert_large eager"]
    assert list(facts) == kinds
    for step in facts.values():
        assert step["error"] == pytest.approx(step["predicted_seconds"] / step["loop_seconds"] - 1)
        # A layer of 64 has no large product, so that the machine's rate changes nothing and does not help.
        assert step["own_rates_seconds"] == pytest.approx(step["predicted_seconds"])
        assert step["own_rates_help"] is False
    report: Any = {"parts": {"steps": {"facts": facts}}}
    assert module.words_on_own_rates(report) == (
        "The rates of this machine bring 0 of 5 whole steps nearer to their time: leave `measured=` out."
    )
    assert module.words_on_own_rates({"minutes": 1.0, "preset": "facts", "parts": {}}) is None


def test_every_second_step_of_a_library_is_kept_apart(tiny_steps: pytest.MonkeyPatch) -> None:
    names = ("densenet121", "levit_256", "facebook/opt-125m")
    tiny_steps.setattr(
        module, "library_steps", lambda: dict.fromkeys(names, lambda device, capturable: module._small_step(device)[1])
    )
    facts: Any = module._steps(60.0)
    assert {name: facts[f"{name} eager"]["kept_apart"] for name in names} == dict(
        zip(names, (False, True, False), strict=True)
    )
    assert "kept_apart" not in facts["gpt2 eager"]


def test_an_older_library_costs_its_own_steps_alone(tiny_steps: pytest.MonkeyPatch) -> None:
    tiny_steps.setattr(typical_steps, "find_spec", lambda name: name == "timm")
    tiny_steps.setattr(typical_steps, "import_module", lambda name: SimpleNamespace(get_pretrained_cfg=lambda _: None))
    tiny_steps.setattr(module, "library_steps", library_steps)
    assert len(library_steps()) == len(typical_steps.IMAGE_STEPS)  # nothing is imported
    facts: Any = module._steps(60.0)
    assert facts["levit_256 eager"] == "AttributeError: 'NoneType' object has no attribute 'input_size'"
    assert facts["bert_large eager"]["loop_seconds"] > 0


def test_the_recording_of_a_whole_step_comes_back_from_the_report(
    tiny_steps: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts: Any = module._steps(60.0)
    path = tmp_path / "step.json.gz"
    path.write_bytes(base64.b64decode(facts["resnet50 eager"]["recording"]))
    names = [operation.name for operation in lp.Trace.load(str(path)).operations]
    assert names.count("aten::addmm") == 24


def test_a_whole_step_that_fails_or_has_no_time_has_the_reason(tiny_steps: pytest.MonkeyPatch) -> None:
    def no_compiler(step: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    tiny_steps.setattr(torch, "compile", no_compiler)
    facts: Any = module._steps(60.0)
    assert facts["resnet50 compiled"] == "RuntimeError: Failed to find C compiler"
    assert facts["bert_large eager"]["loop_seconds"] > 0
    assert set(module._steps(0.0).values()) == {"no time left"}


@pytest.mark.parametrize(
    ("name", "library", "parameters"), [("facebook/opt-125m", "transformers", 125.2), ("levit_256", "timm", 18.9)]
)
def test_steps_of_libraries_train_all_parameters_of_their_models(name: str, library: str, parameters: float) -> None:
    pytest.importorskip(library)
    trace = capture(library_steps()[name](torch.device("meta")), warmup_steps=0, precision="bf16-mixed")
    # The published counts of the models, in millions.
    assert sum(math.prod(one.shape) for one in trace.parameters) / 1e6 == pytest.approx(parameters, rel=0.001)
    assert trace.optimizer_steps == 1


@pytest.mark.parametrize("name", TYPICAL_STEPS)
def test_the_typical_steps_train_all_parameters_of_their_models(name: str) -> None:
    trace = capture(TYPICAL_STEPS[name](torch.device("meta")), warmup_steps=0, precision="bf16-mixed")
    count = sum(math.prod(parameter.shape) for parameter in trace.parameters)
    # As published, in millions; our ViT has no embedding of its 197 positions.
    published = {"resnet50": 25.56, "gpt2": 124.44, "bert_large": 334.6, "vit_base": 86.57 - 197 * 768 / 1e6}
    assert count / 1e6 == pytest.approx(published[name], rel=0.001)
    assert trace.optimizer_steps == 1
