"""Kept steps on one GPU, recorded on a GPU, on a processor and on the meta device."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.record.imports import import_trace
from lightning_predict.record.trace import OtherStep, Trace
from lightning_predict.reports.predictions import Predictions
from lightning_predict.timeline.viewer import chrome_trace
from tests.kept import Kept, ends, example, many_calls

TRACES: Final = Path(__file__).parents[1] / "traces"
GPUS: Final = ("T4", "H100-SXM-80GB")


def steps(word: str, predictions: Predictions) -> dict[str, object]:
    """List the interval of a step on each GPU, and the device's and the host's part of it."""
    return {
        f"{word} on {name.partition('-')[0]}": [*ends(one.iteration), one.device_seconds, one.host_seconds]
        for name, one in predictions.items()
    }


def test_steps_recorded_without_gpu_match_kept_values(kept: Kept) -> None:
    values = dict[str, object]()
    for name in ("gpt2", "resnet", "tabular", "vit", "many calls"):
        trace = many_calls() if name == "many calls" else example(name)
        values |= steps(name, lp.predict(trace, gpus=GPUS, history=False))
    values |= steps("gpt2, slow host", lp.predict(example("gpt2"), gpus=GPUS, host="slow", history=False))
    kept("steps", values)


def profiled() -> Trace:
    return import_trace(TRACES / "synthetic_cuda_step.json")


def test_steps_recorded_on_gpu_match_kept_values(kept: Kept) -> None:
    values, graph = dict[str, object](), import_trace(TRACES / "synthetic_cuda_graph.json")
    for word, trace in (
        ("profiled", profiled()),
        ("a graph", graph),
        ("timed", replace(profiled(), step_seconds=(0.0031, 0.0029, 0.0033, 0.003))),
        ("slower than profiled", replace(profiled(), step_seconds=(0.05, 0.051, 0.049))),
        ("several kinds", replace(profiled(), other_steps=(OtherStep(share=0.25, trace=graph),))),
    ):
        values |= steps(word, lp.predict(trace, gpus=GPUS, history=False))
    kept("profiled", values)


def test_steps_recorded_on_processor_match_kept_values(kept: Kept) -> None:
    values = dict[str, object]()
    for name in ("cpu_mixed", "cpu_closure", "cpu_compiled"):
        trace = import_trace(TRACES / f"{name}.json.gz")
        values |= steps(name, lp.predict(trace, gpus=GPUS[:1], history=False))
    kept("imported", values)


def test_timelines_match_kept_values(kept: Kept) -> None:
    models = kernel_models(("T4",))
    values = {}
    for word, trace in (("tabular", example("tabular")), ("profiled", profiled())):
        events = chrome_trace(trace, gpu("T4"), origin=None, models=models)["traceEvents"]
        done = [event["ts"] + event["dur"] for event in events if "dur" in event]
        values[word] = [max(done), sum(event.get("dur", 0.0) for event in events)]
    kept("pictures", values)
