"""Jobs to plan, straight from saved traces.

`planning` takes times as values; this module, above `prediction`, makes them from a trace. It predicts one GPU, so a
job gets the configuration of one GPU of each machine type whose GPU the trace fits in. Example::

    from lightning_predict.planning.commands import plan

    plan(Path("jobs.yaml"), times_of_trace=times_of_trace)

    job = Job(name="bert", seconds=times_of_trace(Path("bert.json"), 200_000, machines), deadline_seconds=86400.0)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lightning_predict.planning.records import Configuration, MachineType
from lightning_predict.prediction import predict
from lightning_predict.tracing.records import Trace


def times_of_trace(path: Path, iterations: int, machines: tuple[MachineType, ...]) -> Mapping[Configuration, float]:
    """Seconds of the run that is still to come, by configuration.

    A machine type is left out where the step is known not to fit in its GPU's memory.

    Args:
        path: A trace, as `Trace.save` writes it.
        iterations: Training steps still to come.
        machines: Machine types, each with a GPU of the catalogue.

    Raises:
        TraceError: The file is missing or is no trace.
        UnknownGpuError: A machine type has a GPU that the catalogue does not hold.
    """
    names = list(dict.fromkeys(machine.gpu for machine in machines))
    result = predict(Trace.load(str(path)), gpus=names, iterations=iterations)
    predictions = dict(zip(names, result.values(), strict=True))
    return {
        Configuration(machine=machine.name, num_gpus=1): predictions[machine.gpu].iteration_seconds * iterations
        for machine in machines
        if predictions[machine.gpu].fits is not False
    }
