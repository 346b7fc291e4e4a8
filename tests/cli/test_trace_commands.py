"""`trace check`, `anonymise`, `import` and `view` on real files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import lightning_predict as lp
from tests.cli.conftest import Run
from tests.record.kineto_files import steps, write
from tests.record.test_events import event

RECORDINGS = Path(__file__).parents[1] / "traces"


def test_check_summarizes_a_trace_or_names_the_place_of_its_error(trace: Path, run: Run, tmp_path: Path) -> None:
    answer = run("trace", "check", trace, "--json").json
    read = lp.Trace.load(str(trace))
    assert answer["operations"] == len(read.operations) == sum(answer["operations_by_phase"].values())
    assert (answer["device"], answer["samples"], answer["parameters"], answer["kernels"]) == ("meta", 256, 4, 0)
    assert answer["not_predictable_because"] is None
    text = run("trace", "check", trace).out
    assert f"A valid trace of {len(read.operations)} operations" in text
    assert "no kernels: times are predicted; without the host's times" in text
    assert "A step has 1 batch, 256 samples, 4 parameters in" in text
    broken = tmp_path / "broken.json"
    lp.Trace.load(str(trace)).save(str(broken))
    broken.write_text(broken.read_text().replace('"device":"meta"', '"device":7', 1))
    ran = run("trace", "check", broken)
    assert ran.code == 2
    assert "device is 7; expected a string" in ran.err
    missing = run("trace", "check", tmp_path / "none.json")
    assert missing.err.strip().endswith(f"No such file or directory: {tmp_path / 'none.json'}")


def test_anonymise_writes_a_trace_without_names(run: Run, trace: Path, tmp_path: Path) -> None:
    named = tmp_path / "run.json.gz"
    whole = lp.Trace.load(str(trace))
    replace(whole, notes=("/home/me/model.py",)).save(str(named))
    answer = run("trace", "anonymise", named, "--json").json
    assert answer["written"] == str(tmp_path / "run.anonymous.json.gz")
    hidden = lp.Trace.load(answer["written"])
    assert [parameter.name for parameter in hidden.parameters] == [f"parameter_{index}" for index in range(4)]
    assert {one.module for one in hidden.operations} <= {None, "module_0", "module_1", "module_2", "module_3"}
    assert hidden.notes == ()
    assert lp.predict(hidden, ["T4"])["T4"].iteration_seconds == lp.predict(whole, ["T4"])["T4"].iteration_seconds

    kept = tmp_path / "kept.json"
    assert f"Written: {kept}" in run("trace", "anonymise", named, "--keep-modules", "--output", kept).out
    assert [one.module for one in lp.Trace.load(str(kept)).operations] == [one.module for one in whole.operations]


def test_import_reads_a_profile_and_view_its_gpu(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "run.json.gz"
    answer = run("trace", "import", RECORDINGS / "synthetic_cuda_step.json", "--output", output, "--json").json
    read = lp.Trace.load(str(output))
    assert answer["operations"] == len(read.operations) > 0
    assert answer["recorder"] == read.recorder == "kineto"
    assert answer["kernels"] == len(read.kernels) > 0
    run("trace", "import", RECORDINGS / "synthetic_cuda_step.json", "--output", tmp_path / "run.json")
    answer = run("trace", "view", tmp_path / "run.json", "--json").json
    assert answer["gpu"] == "A100-SXM-40GB"
    assert answer["written"] == str(tmp_path / "run.timeline.json")


def test_import_rejects_other_files(trace: Path, run: Run, tmp_path: Path) -> None:
    assert "is a trace of lightning-predict already; there is nothing to import" in run("trace", "import", trace).err
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert "is not a Kineto JSON file (no 'traceEvents')" in (run("trace", "import", other).err)
    step = run("trace", "import", RECORDINGS / "synthetic_cuda_step.json", "--step", "77").err
    assert "has no ProfilerStep#77" in step


def test_view_writes_a_timeline_that_perfetto_opens(trace: Path, run: Run, tmp_path: Path) -> None:
    output = tmp_path / "timeline.json"
    ran = run("trace", "view", trace, "--gpu", "Tesla T4", "--output", output)
    timeline = json.loads(output.read_text())
    kernels = [entry for entry in timeline["traceEvents"] if entry["ph"] == "X" and entry["pid"] == 1]
    assert {kernel["name"] for kernel in kernels} >= {"aten::addmm", "aten::mm", "aten::relu"}
    assert f"{len(timeline['traceEvents'])} events on T4. Open it at https://ui.perfetto.dev." in ran.out
    # Kernels of one stream do not overlap, and the last ends no later than the predicted step from a standing start.
    ends = [kernel["ts"] + kernel["dur"] for kernel in kernels]
    assert all(end <= later["ts"] + 1e-2 for end, later in zip(ends, kernels[1:], strict=False))
    assert run("trace", "view", trace, "--gpu", "T4", "--output", output, "--json").json["gpu"] == "T4"


def test_view_and_memory_name_what_the_trace_lacks(trace: Path, run: Run, tmp_path: Path) -> None:
    assert "The trace was not recorded on a GPU of the catalogue; say which to view: --gpu T4." in (
        run("trace", "view", trace).err
    )
    read = lp.Trace.load(str(trace))
    unseen = replace(read, operations=tuple(replace(operation, outputs=()) for operation in read.operations))
    unseen.save(str(tmp_path / "unseen.json"))
    ran = run("trace", "memory", tmp_path / "unseen.json", "--gpu", "T4")
    assert ran.code != 0
    assert "The trace does not hold what its operations write, or no model" in ran.err


def test_explain_names_source_of_each_time(trace: Path, run: Run) -> None:
    answer = run("trace", "explain", trace, "--gpu", "T4", "--json").json
    assert answer["gpu"] == "T4"
    products = [shape for shape in answer["shapes"] if shape["operation"] == "linear"]
    assert products
    assert all(product["source"] == "network" and product["dtype"] == "float32" for product in products)
    longest = [shape["times"] * shape["seconds"] for shape in answer["shapes"]]
    assert longest == sorted(longest, reverse=True)
    text = run("trace", "explain", trace, "--gpu", "T4").out
    assert f"{len(answer['shapes'])} shapes on the T4, {1e3 * sum(longest):.3f} ms by their shapes:" in text
    assert "then held to (µs)" in text


def test_memory_lists_parts_and_fit(trace: Path, run: Run) -> None:
    answer = run("trace", "memory", trace, "--gpu", "T4", "--json").json
    assert (answer["gpu"], answer["memory_fit"]) == ("T4", "fits")
    assert answer["fit_probability"] > 0.9
    low, middle, high = answer["process_bytes"]
    assert low < middle < high
    assert sum(answer["parts"].values()) == pytest.approx(middle, rel=0.02)
    text = run("trace", "memory", trace, "--gpu", "T4").out
    assert "on the T4; the chance that it fits is >99 %." in text
    assert "Peak in the " in text
    assert "parameters and buffers" in text


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["check", "x", "--gpu", "T4"],
            "--gpu has no effect on trace check; it is for import, view, explain, memory.",
        ),
        (["view", "x", "--keep-modules"], "--keep-modules has no effect on trace view; it is for anonymise."),
        (["anonymise", "x", "--step", "3"], "--step has no effect on trace anonymise; it is for import."),
        (["check", "x", "--output", "y"], "--output has no effect on trace check; it is for anonymise, import, view."),
    ],
)
def test_option_without_effect_is_rejected(words: list[str], problem: str, run: Run) -> None:
    ran = run("trace", *words)
    assert ran.code == 2
    assert problem in ran.err


def test_import_of_unknown_gpu_takes_gpu_option(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", list(steps([2])), gpu={"id": 0, "name": "NVIDIA PG777-123"})
    ran = run("trace", "import", path, "--output", tmp_path / "unknown.json")
    assert "'NVIDIA PG777-123' is not a GPU of the catalogue." in ran.out
    assert "Its 2 measured kernels are left out and every time is predicted from shapes." in ran.out
    checked = run("trace", "check", tmp_path / "unknown.json", "--json").json
    assert checked["notes"][0].startswith("Recorded on an unknown GPU: 'NVIDIA PG777-123'")
    named = run("trace", "import", path, "--gpu", "H800", "--output", tmp_path / "known.json", "--json").json
    assert named["gpu"] == "H800-SXM-80GB"
    assert not any("unknown GPU" in note for note in named["notes"])
    assert "'H8000' is not a GPU of the catalogue" in run("trace", "import", path, "--gpu", "H8000").err


def test_unpredictable_trace_is_not_called_valid(run: Run, tmp_path: Path) -> None:
    events = [event("aten::mm", 10, 20), event("aten::mm", 40, 20)]  # neither shapes nor kernels
    file = write(tmp_path / "cpu.json", events)
    ran = run("trace", "import", file)
    assert ran.out.startswith("A trace that cannot be predicted, of 2 operations (2 forward), recorded on cpu.")
    assert "without shapes or measured kernels, so nothing can be predicted" in ran.out
    assert "The file names Tesla V100-SXM2-16GB, but has no kernels: it was recorded without Profiler" in ran.out
    assert "valid" not in ran.out
    assert "nothing can be predicted" in run("trace", "import", file, "--json").json["not_predictable_because"]
