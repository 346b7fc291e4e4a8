"""Predict the time and cost of a training run on GPUs that you could rent.

The public names are imported on first use, so torch is not loaded before a step is recorded. The names are:

* `capture(step)` runs a training step and returns its `Trace`; `Trace.save` and `Trace.load` write and read a file.
* `import_trace(path)` reads a `torch.profiler` profile as a Trace.
* `predict(trace, gpus)` returns `Predictions`: one `Prediction` per GPU, and a table when printed.
* `advise(trace, gpus)` returns `Advice`: the best changes to the training, their gains, and the GPU to rent.
* `best_layouts(trace, layouts)` ranks strategies for sharing a step among several GPUs.
* `step_of("hf:Qwen/Qwen2.5-7B", length=2048)` records the step of a model by name, without a script.
* `operator_seconds(operation, gpu, ...)` returns the device time of a single operation.
* `gpu(name)` finds a `Gpu` in the catalogue; `gpu_names()` lists all names.
* `watch(total_steps=...)` adds predictions and a budget to your own training loop.
* `LightningPredictError` is the base class of all errors.

The callbacks for a Trainer are in `lightning_predict.callbacks`: `RuntimePredictor` and `CostBudget`.

Data flows through the packages in this order: `gpus`, `tracing`, `weights` -> `kernels` -> `timeline` -> `distributed`
-> `run` -> `cost` -> `reports` -> `prediction` -> `callbacks`. Less common applications are in `extensions`; each is
loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lightning_predict.extensions import extension

if TYPE_CHECKING:
    from lightning_predict.cost.prediction import Prediction
    from lightning_predict.errors import LightningPredictError
    from lightning_predict.extensions.advice.advice import advise
    from lightning_predict.extensions.advice.advice_text import Advice
    from lightning_predict.extensions.named_models.step import step_of
    from lightning_predict.extensions.parallel.layout_search import best_layouts
    from lightning_predict.gpus import Gpu, gpu, gpu_names
    from lightning_predict.kernels.operator_times import operator_seconds
    from lightning_predict.observe.watched_loop import watch
    from lightning_predict.prediction import predict
    from lightning_predict.reports.predictions import Predictions
    from lightning_predict.tracing.imports import import_trace
    from lightning_predict.tracing.recording import capture
    from lightning_predict.tracing.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "Advice",
    "Gpu",
    "LightningPredictError",
    "Prediction",
    "Predictions",
    "Trace",
    "advise",
    "best_layouts",
    "capture",
    "gpu",
    "gpu_names",
    "import_trace",
    "operator_seconds",
    "predict",
    "step_of",
    "watch",
]

_HOMES = {
    "Gpu": "lightning_predict.gpus",
    "LightningPredictError": "lightning_predict.errors",
    "Prediction": "lightning_predict.cost.prediction",
    "Predictions": "lightning_predict.reports.predictions",
    "Trace": "lightning_predict.tracing.trace",
    "capture": "lightning_predict.tracing.recording",
    "gpu": "lightning_predict.gpus",
    "gpu_names": "lightning_predict.gpus",
    "import_trace": "lightning_predict.tracing.imports",
    "operator_seconds": "lightning_predict.kernels.operator_times",
    "predict": "lightning_predict.prediction",
    "watch": "lightning_predict.observe.watched_loop",
}
"""The module that defines each name. Extensions register further names."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(import_module(_HOMES[name]), name) if name in _HOMES else extension(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
