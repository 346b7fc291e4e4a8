"""Steps on one GPU: as recorded on a GPU, on a processor and on the meta device, with all that hosts may be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

import lightning_predict as lp
from lightning_predict.gpus import gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.reports.predictions import Predictions
from lightning_predict.timeline.viewer import chrome_trace
from lightning_predict.tracing.imports import import_trace
from lightning_predict.tracing.trace import OtherStep, Trace
from tests.kept import Kept, example, many_calls, numbers

TRACES: Final = Path(__file__).parents[1] / "traces"
GPUS: Final = ("T4", "H100-SXM-80GB")


def steps(predictions: Predictions) -> dict[str, object]:
    """What the timeline says of a step on each GPU."""
    return {
        name: [
            *numbers(one.iteration),
            one.device_seconds,
            one.host_seconds,
            one.measured_seconds or 0.0,
            one.unmeasured_seconds or 0.0,
            *(part for part in numbers(one.coverage) if not isinstance(part, str)),
            *(part for part in numbers(one.verdict) if not isinstance(part, str)),
            len(one.notes),
        ]
        for name, one in predictions.items()
    }


@pytest.mark.parametrize("name", ["gpt2", "resnet", "tabular", "vit", "many calls"])
def test_recorded_without_a_gpu(kept: Kept, name: str) -> None:
    trace = many_calls() if name == "many calls" else example(name)
    found = {}
    for host in (None, "fast", "slow") if name == "gpt2" else (None,):
        for gpu_name, values in steps(lp.predict(trace, gpus=GPUS, host=host, history=False)).items():
            found[f"{gpu_name}, {host or 'unknown'} host"] = values
    kept(f"steps of {name}", found)


def profiled() -> Trace:
    return import_trace(TRACES / "synthetic_cuda_step.json")


@pytest.mark.parametrize("method", ["auto", "mlp", "wave"])
def test_recorded_on_a_gpu(kept: Kept, method: str) -> None:
    found, graph = dict[str, object](), import_trace(TRACES / "synthetic_cuda_graph.json")
    for word, trace in (
        ("profiled", profiled()),
        ("a graph", graph),
        ("timed", replace(profiled(), step_seconds=(0.0031, 0.0029, 0.0033, 0.003))),
        ("slower than profiled", replace(profiled(), step_seconds=(0.05, 0.051, 0.049))),
        (
            "several kinds",
            replace(profiled(), other_steps=(OtherStep(share=0.25, trace=graph),)),
        ),
    ):
        try:
            predictions = lp.predict(trace, gpus=GPUS, method=method, history=False)
        except lp.LightningPredictError as error:
            found[word] = [str(error)]
            continue
        found |= {f"{word}, {name}": values for name, values in steps(predictions).items()}
    kept(f"profiled by {method}", found)


@pytest.mark.parametrize("name", ["cpu_mixed", "cpu_closure", "cpu_compiled", "cpu_mixed_bfloat16"])
def test_recorded_on_a_processor(kept: Kept, name: str) -> None:
    trace = import_trace(TRACES / f"{name}.json.gz")
    kept(f"imported {name}", steps(lp.predict(trace, gpus=GPUS, history=False)))


def test_the_picture(kept: Kept) -> None:
    models = kernel_models(("T4",))
    found = {}
    for word, trace in (("tabular", example("tabular")), ("profiled", profiled())):
        events = chrome_trace(trace, gpu("T4"), origin=None, models=models)["traceEvents"]
        ends = [one["ts"] + one["dur"] for one in events if "dur" in one]
        found[word] = [len(events), max(ends), sum(ends), sum(one.get("dur", 0.0) for one in events)]
    kept("pictures", found)
