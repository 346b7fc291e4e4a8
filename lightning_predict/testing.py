"""Fakes for tests, so that they need no GPU, no waiting and no patching: of this package, and of what builds on it.

Example::

    clock = Clock()
    with clock_of_fits(clock):  # of lightning_predict.callbacks.clocks
        trainer.fit(model)  # whose training_step calls clock.advance(3600)
    one = example_prediction("T4", cost_usd=1.12)
    changed(one, fits=False, memory_fit="exceeds").memory_fit
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final, final

from lightning_predict.cost.memory import MemoryNeed
from lightning_predict.cost.prediction import Prediction, Price
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.layouts import layout_of
from lightning_predict.interval import Interval
from lightning_predict.run.workload import Run
from lightning_predict.timeline.iteration import Iteration


@final
class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Read the clock."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Let time go by."""
        self.seconds += seconds


_PARTS: Final[dict[str, type]] = {"step": Iteration, "run": Run, "price": Price, "memory": MemoryNeed}


def example_prediction(layout: str = "T4", **values: Any) -> Prediction:
    """Make a prediction by hand: a step of 20 ms, of which the host launches for 5 ms, and nothing else is known.

    Args:
        layout: Name of a GPU or layout.
        values: Any of a prediction's values by their flat names, as for `changed`.
    """
    found = layout_of(layout)
    step = Iteration(
        gpu=found.name,
        interval=Interval(0.018, 0.020, 0.023),
        device_seconds=0.020,
        host_seconds=0.005,
        coverage={},
    )
    run = Run(gpu=found.name, training_seconds=None, validation_seconds=None, total=None, cycle_seconds=0.020)
    return changed(Prediction(found, step, run, Price(), MemoryNeed()), **values)


def changed(prediction: Prediction, **values: Any) -> Prediction:
    """Change values of a prediction by their flat names.

    Args:
        prediction: Any prediction.
        values: For example `cost_usd=1.12` or `iteration=Interval(0.4, 0.5, 0.6)`. `gpu` renames the GPU, whatever the
            catalogue holds; `layout` is a layout of the catalogue by name.

    Raises:
        InvalidArgumentError: A name that no part of a prediction has.
    """
    if "layout" in values:
        prediction = replace(prediction, layout=layout_of(values.pop("layout")))
    if "gpu" in values:
        named = replace(prediction.layout, gpu=replace(prediction.layout.gpu, name=values.pop("gpu")))
        prediction = replace(prediction, layout=named)
    if "iteration" in values:
        values["interval"] = values.pop("iteration")
    if "samples_per_second" in values:
        rate = values.pop("samples_per_second")
        seconds = values.get("interval", prediction.step.interval).middle
        values["samples_per_iteration"] = None if rate is None else rate * seconds
    for part, kind in _PARTS.items():
        own = {field.name: values.pop(field.name) for field in fields(kind) if field.name in values}
        prediction = replace(prediction, **{part: replace(getattr(prediction, part), **own)})
    if values:
        raise InvalidArgumentError(f"A prediction has no {', '.join(values)}; give names of its values.")
    return prediction
