"""Predict the time and cost of a training run on GPUs that you could rent.

The public names are imported on first use, so torch is not loaded before a step is recorded. The names are:

* `capture(step)` runs a training step and returns its `Trace`; `Trace.save` and `Trace.load` write and read a file.
* `import_trace(path)` reads a `torch.profiler` profile as a Trace.
* `predict(trace, gpus)` returns `Predictions`: one `Prediction` per GPU, and a table when printed.
* `advise(trace, gpus)` returns `Advice`: the best changes to the training, their gains, and the GPU to rent.
* `best_layouts(trace, layouts)` ranks strategies for sharing a step among several GPUs.
* `step_of("hf:Qwen/Qwen2.5-7B", length=2048)` records the step of a model by name, without a script.
* `operator_seconds(operation, gpu, ...)` returns the device time of a single operation.
* `gpu(name)` finds a `Gpu` in the catalogue; `gpu_names()` lists all names. `peak_flops(name, dtype)` is for MFU.
* `ways_to_fit(trace, gpu)` lists what to change so that a step fits: the smallest set, then cheaper ones.
* `watch(total_steps=...)` adds predictions and a budget to your own training loop.
* `LightningPredictError` is the base class of all errors.

The callbacks for a Trainer are in `lightning_predict.callbacks`: `RuntimePredictor` and `CostBudget`.

Data flows through the packages in this order: `hardware`, `record`, `weights` -> `kernels` -> `timeline` ->
`layouts` -> `memory` -> `run` -> `cost` -> `reports` -> `prediction` -> `callbacks`. `planning`, `regression`,
`embeddings` and `own_weights` serve single commands; each is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from os.path import isdir
from typing import TYPE_CHECKING

from lightning_predict.base import __version__ as __version__

if not isdir(__path__[0]):
    raise ImportError(
        f"lightning_predict cannot run from an archive ({__path__[0]}), because it opens its tables and weights as "
        "files. Unpack the archive, or install the package with pip."
    )

if TYPE_CHECKING:
    from lightning_predict.advice.advice import advise
    from lightning_predict.advice.advice_text import Advice
    from lightning_predict.advice.fitting_changes import ways_to_fit
    from lightning_predict.base.errors import LightningPredictError
    from lightning_predict.cost.prediction import Prediction
    from lightning_predict.hardware import Gpu, gpu, gpu_names, peak_flops
    from lightning_predict.kernels.operator_times import operator_seconds
    from lightning_predict.layout_search.ranking import best_layouts
    from lightning_predict.observe.watched_loop import watch
    from lightning_predict.prediction import predict
    from lightning_predict.record.imports import import_trace
    from lightning_predict.record.named_models.step import step_of
    from lightning_predict.record.recording import capture
    from lightning_predict.record.trace import Trace
    from lightning_predict.reports.predictions import Predictions

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
    "peak_flops",
    "predict",
    "step_of",
    "watch",
    "ways_to_fit",
]

_HOMES = {  # The module that defines each name
    "Advice": "lightning_predict.advice.advice_text",
    "Gpu": "lightning_predict.hardware",
    "LightningPredictError": "lightning_predict.base.errors",
    "Prediction": "lightning_predict.cost.prediction",
    "Predictions": "lightning_predict.reports.predictions",
    "Trace": "lightning_predict.record.trace",
    "advise": "lightning_predict.advice.advice",
    "best_layouts": "lightning_predict.layout_search.ranking",
    "capture": "lightning_predict.record.recording",
    "gpu": "lightning_predict.hardware",
    "gpu_names": "lightning_predict.hardware",
    "import_trace": "lightning_predict.record.imports",
    "operator_seconds": "lightning_predict.kernels.operator_times",
    "peak_flops": "lightning_predict.hardware",
    "predict": "lightning_predict.prediction",
    "step_of": "lightning_predict.record.named_models.step",
    "watch": "lightning_predict.observe.watched_loop",
    "ways_to_fit": "lightning_predict.advice.fitting_changes",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
