"""Test doubles for this package and for packages built on it: tests need no GPU, no waiting and no patching.

Example::

    clock = Clock()
    with clock_of_fits(clock):
        trainer.fit(model)  # training_step calls clock.advance(3600)
    lightning_predict.predict(example_trace(), gpus=[SMALL_GPU], offers=[example_offer("T4", 0.35)])
    one = example_prediction("T4", cost_usd=1.12)
    with_values(one, fits=False, memory_fit="exceeds").memory_fit
    with registrations():
        register(OperationSpec(name="mine", ...))  # in `kernels.operations`; removed at the end of the block
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import MachineInUse, PowerSupply, Prediction, Price
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.hardware.records import Gpu, Source
from lightning_predict.kernels.operations import registrations as registrations
from lightning_predict.memory.step_memory import MemoryNeed
from lightning_predict.record.trace import Operation, Parameter, Phase, TensorInfo, Trace
from lightning_predict.run.workload import Run
from lightning_predict.timeline.step_prediction import StepPrediction


class Clock:
    """A clock that moves only when `advance` is called."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.seconds += seconds


SMALL_GPU: Final = Gpu(
    name="SMALL",
    reported_names=("Test SMALL",),
    aliases=(),
    architecture="ampere",
    compute_capability=(8, 0),
    launch_year=2020,
    streaming_multiprocessors=10,
    cores_per_multiprocessor=50,
    float64_lanes_per_multiprocessor=20,  # 0.4 TFLOP/s; the tensor cores add more
    base_clock_hz=0.8e9,
    boost_clock_hz=1e9,
    highest_clock_hz=1e9,
    peak_flops_per_second={"float64": 0.5e12, "float32": 1e12, "tf32": 4e12, "float16": 8e12, "bfloat16": 8e12},
    emulated_dtypes=frozenset(),
    measured_flops_per_second={},
    dram_bytes_per_second=100e9,
    l2_bytes=1e6,
    l2_bytes_per_second=400e9,
    memory_bytes=8e9,
    memory_kind="HBM2",
    has_inline_ecc=False,
    max_threads_per_multiprocessor=2048,
    max_blocks_per_multiprocessor=32,
    registers_per_multiprocessor=65536,
    shared_memory_bytes_per_multiprocessor=100_000,
    nvlink_bytes_per_second=None,
    pcie_bytes_per_second=10e9,
    has_peer_access=True,
    power_watts=100,
    single_source=True,
    sources={"*": (Source("made up", "https://example.com", "2026-01-01"),)},
)
"""A GPU with round numbers, 1 TFLOP/s in float32 and 100 GB/s, so that tests can calculate times by hand."""


def example_trace(size: int = 512, **values: Any) -> Trace:
    """Return the trace of a step that trains one square linear layer without bias: three matmuls and an update.

    Args:
        size: Rows, inputs and outputs of the layer. Each matmul has 2 size³ FLOPs.
        values: Other fields of the Trace, for example `samples=16` or `step_seconds=(0.1,)`.
    """
    tensor = TensorInfo((size, size), "float32")

    def product(phase: Phase) -> Operation:
        return Operation(name="aten::mm", phase=phase, inputs=(tensor, tensor), outputs=(tensor,))

    update = Operation(name="aten::add_", phase="optimizer", inputs=(tensor, tensor), outputs=(tensor,))
    given = {
        "operations": (product("forward"), product("backward"), product("backward"), update),
        "device": "cpu",
        "recorder": "dispatch",
        "parameters": (Parameter(name="weight", shape=(size, size), dtype="float32"),),
    }
    return Trace(**(given | values))


def example_offer(gpu: str = "T4", usd_per_hour: float = 1.0, *, num_gpus: int = 1, **values: Any) -> Offer:
    """Return an offer of a machine.

    Args:
        gpu: Name of the GPU.
        usd_per_hour: Price of the whole machine.
        num_gpus: Number of GPUs of the machine.
        values: Other fields of the Offer.
    """
    given = {"provider": "example", "instance": f"{num_gpus}x{gpu}", "date": "2026-01-01", "source": "made up"}
    return Offer(gpu=gpu, num_gpus=num_gpus, usd_per_hour=usd_per_hour, **(given | values))


_PARTS: Final[dict[str, type]] = {
    "step": StepPrediction,
    "run": Run,
    "price": Price,
    "memory": MemoryNeed,
    "supply": PowerSupply,
}


def example_prediction(layout: str = "T4", **values: Any) -> Prediction:
    """Return a prediction with a step of 20 ms and 5 ms of host time; all other values are unknown unless given."""
    parsed = layout_of(layout)
    step = StepPrediction(
        gpu=parsed.name, interval=Interval(0.018, 0.020, 0.023), device_seconds=0.020, host_seconds=0.005, coverage={}
    )
    run = Run(gpu=parsed.name, training_seconds=None, validation_seconds=None, total=None, cycle_seconds=0.020)
    return with_values(Prediction(parsed, step, run, Price(), MemoryNeed()), **values)


def example_machine(name: str, step_seconds: float, *, cycle_seconds: float | None = None, **run: Any) -> MachineInUse:
    """Return a machine in use with the given measured step time.

    Args:
        name: `CPU`, or the name of a GPU.
        step_seconds: Measured time of a step.
        cycle_seconds: Time of a step including the wait for the loader; None for no wait.
        run: Other fields of the Run, for example `total=Interval(11.0, 12.0, 13.0)`.
    """
    interval = Interval(step_seconds, step_seconds, step_seconds)
    step = StepPrediction(gpu=name, interval=interval, device_seconds=step_seconds, host_seconds=0.0, coverage={})
    cycle = step_seconds if cycle_seconds is None else cycle_seconds
    given = {"training_seconds": None, "validation_seconds": None, "total": None, "cycle_seconds": cycle}
    return MachineInUse(name=name, step=step, run=Run(gpu=name, **(given | run)))


def with_values(prediction: Prediction, **values: Any) -> Prediction:
    """Return a copy of a prediction with other values.

    Args:
        prediction: The prediction to copy.
        values: New values by flat name, for example `cost_usd=1.12` or `iteration=Interval(0.4, 0.5, 0.6)`. `gpu`
            renames the GPU; `layout` is the name of a layout of the catalogue.

    Raises:
        InvalidArgumentError: A prediction has no value of this name.
    """
    if "layout" in values:
        prediction = replace(prediction, layout=layout_of(values.pop("layout")))
    if "gpu" in values:
        named = replace(prediction.layout, gpu=replace(prediction.layout.gpu, name=values.pop("gpu")))
        prediction = replace(prediction, layout=named)
    if "iteration" in values:
        values["interval"] = values.pop("iteration")
        waiting = prediction.cycle_seconds - prediction.iteration_seconds
        values.setdefault("cycle_seconds", values["interval"].middle + waiting)
    if "base_share" in values:
        values["extrapolated_share"] = values.pop("base_share")
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
