"""Jobs to plan, straight from saved traces.

`planning` takes times as values; this module, above `prediction`, makes them from a trace: on one, two, four, ... GPUs
of each machine type, as far as it has them, where the step fits. Several GPUs do the same samples in fewer steps.
Example::

    from lightning_predict.planning.commands import plan

    plan(Path("jobs.yaml"), times_of_trace=times_of_trace)

    job = Job(name="bert", seconds=times_of_trace(Path("bert.json"), 200_000, machines), deadline_seconds=86400.0)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lightning_predict.gpus.layouts import Layout, layout_of
from lightning_predict.planning.problem import Configuration, MachineType
from lightning_predict.prediction import predict
from lightning_predict.tracing.trace import Trace


def times_of_trace(path: Path, iterations: int, machines: tuple[MachineType, ...]) -> Mapping[Configuration, float]:
    """Return the seconds of the run that is still to come, by configuration.

    A configuration is left out where the step is known not to fit in its GPUs' memory. A trace that does not know its
    parameters gives configurations of one GPU, as nobody can say what several would exchange.

    Args:
        path: A trace, as `Trace.save` writes it.
        iterations: Training steps still to come.
        machines: Machine types, each with a GPU of the catalogue.

    Raises:
        TraceError: The file is missing or is no trace.
        UnknownGpuError: A machine type has a GPU that the catalogue does not hold.
    """
    trace = Trace.load(str(path))
    layouts = {
        Configuration(machine=machine.name, num_gpus=count): Layout(layout_of(machine.gpu).gpu, count).name
        for machine in machines
        for count in _counts(machine.num_gpus if trace.parameters else 1)
    }
    predictions = predict(trace, gpus=list(layouts.values()), iterations=iterations)
    return {
        configuration: seconds
        for configuration, name in layouts.items()
        if predictions[name].fits is not False and (seconds := predictions[name].total_seconds) is not None
    }


def _counts(most: int) -> list[int]:
    """Powers of two up to the number of GPUs of a machine, and that number."""
    return sorted({*(2**power for power in range(most.bit_length()) if 2**power <= most), most})
