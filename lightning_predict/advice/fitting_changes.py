"""`ways_to_fit`: what to change so that a step fits in a GPU's memory: the smallest set, then the next cheaper ones.

Each set of changes is simulated as a whole, with its largest batch. A smaller batch, accumulated to the recorded number
of samples, counts as a change. Changes of the model, such as frozen weights in 4 bits, are steps of their own, which a
model by name has. Example::

    for way in lp.ways_to_fit(trace, "RTX-4090"):
        print(way.sentence)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, groupby
from math import ceil
from typing import Final

from lightning_predict.advice.batch_size import with_samples
from lightning_predict.advice.changes import change_named
from lightning_predict.advice.largest_batch import ScaledMemory, largest_batch
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import LightningPredictError
from lightning_predict.base.ties import NOTICEABLE
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.memory.simulation import copy_bytes
from lightning_predict.memory.step_memory import usable_bytes
from lightning_predict.prediction import predict_workload, remaining_steps
from lightning_predict.record.sources import Variant
from lightning_predict.record.trace import DTYPE_BYTES, TensorInfo, Trace
from lightning_predict.reports.memory import WayToFit

EIGHT_BITS: Final = DTYPE_BYTES["int8"] / DTYPE_BYTES["float32"]  # Size of 8-bit optimizer state, relative to 32 bits

CHANGES: Final = ("bf16-mixed", "checkpointing", "8-bit optimizer")
"""Changes that are combined. `8-bit optimizer` changes the memory alone: its update takes about as long."""

_STATE_WORDS: Final = "an optimizer with 8-bit state (bitsandbytes)"


def ways_to_fit(
    trace: Trace, gpu: str | Gpu, assumptions: Assumptions | None = None, *, variants: Sequence[Variant] = ()
) -> tuple[WayToFit, ...]:
    """Return the smallest set of changes with which a step fits on a GPU, then larger sets that take less time.

    Args:
        trace: One kind of step with a known number of samples, recorded with data flow.
        gpu: The GPU, or its name.
        assumptions: Assumptions of the predicted times (default: those of `lp.predict`).
        variants: Other ways to train the same model. Those that train fewer parameters are tried if nothing else fits.

    Returns:
        The sets, each with more changes and less time than the one before; none if no set fits.

    Raises:
        InvalidArgumentError: The step cannot be scaled, or its memory cannot be derived.
        UnknownGpuError: The GPU is unknown.
    """
    layout = Layout(gpu if isinstance(gpu, Gpu) else find_gpu(gpu))
    assumptions = assumptions or Assumptions()
    own = Variant(changes=(), trains_all=True, step=lambda: trace)
    same = [own, *(variant for variant in variants if variant.trains_all)]
    fewer = [variant for variant in variants if not variant.trains_all]
    ways = list(_ways(same, layout, assumptions)) or list(_ways(fewer, layout, assumptions))
    ways.sort(key=lambda way: (way.number, way.seconds))
    kept: list[WayToFit] = []
    for way in ways:
        if not kept or way.seconds < kept[-1].seconds * (1 - NOTICEABLE):
            kept.append(way)
    return tuple(kept)


def _ways(variants: Sequence[Variant], layout: Layout, assumptions: Assumptions) -> Iterator[WayToFit]:
    """Yield the sets that fit, up to the number of changes with which the recorded batch fits."""
    sets: list[tuple[Trace, tuple[str, ...], tuple[str, ...]]] = []
    for variant in variants:
        try:
            trace = variant.step()
        except LightningPredictError:  # for example a model without layers that LoRA adapts
            continue
        if (trace.memory.parameter_bytes or 0) > usable_bytes(layout.gpu):  # no change makes parameters smaller
            continue
        trace = replace(trace, memory=replace(trace.memory, peak_bytes=None, reserved_bytes=None))
        applicable = [name for name in CHANGES if _applies(name, trace, layout.gpu)]
        for count in range(len(applicable) + 1):
            sets += [(trace, variant.changes, names) for names in combinations(applicable, count)]
    sets.sort(key=_number_of_changes)
    for _, some in groupby(sets, key=_number_of_changes):
        ways = [way for trace, given, names in some for way in _way(trace, given, names, layout, assumptions)]
        yield from ways
        if any(way.accumulate == 1 for way in ways):
            return


def _number_of_changes(attempt: tuple[Trace, tuple[str, ...], tuple[str, ...]]) -> int:
    return len(attempt[1]) + len(attempt[2])


def _applies(name: str, trace: Trace, gpu: Gpu) -> bool:
    if name == CHANGES[-1]:
        return bool(trace.memory.optimizer_state_bytes)
    return change_named(name).why_not(trace, gpu) is None


def with_eight_bit_state(trace: Trace) -> Trace:
    """Return the step with the memory of an optimizer with 8-bit state. Its times are no longer those of the step.

    The update runs one parameter at a time, as in bitsandbytes, and thus without temporary tensors.
    """
    known = {
        tensor.id
        for operation in trace.operations
        if operation.phase != "optimizer"
        for tensor in (*operation.inputs, *operation.outputs)
    }

    def lasting(tensors: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
        return tuple(tensor for tensor in tensors if tensor.id in known)

    operations = tuple(
        replace(operation, inputs=lasting(operation.inputs), outputs=lasting(operation.outputs))
        if operation.phase == "optimizer"
        else operation
        for operation in trace.operations
    )
    memory = trace.memory
    memory = replace(
        memory,
        optimizer_state_bytes=ceil(EIGHT_BITS * (memory.optimizer_state_bytes or 0)),
        resident_bytes=(memory.resident_bytes or 0) + copy_bytes(trace),  # for example an EMA, which stays as it is
    )
    return replace(trace, operations=operations, memory=memory)


def _way(
    trace: Trace, given: tuple[str, ...], names: tuple[str, ...], layout: Layout, assumptions: Assumptions
) -> Iterator[WayToFit]:
    """Yield the step with these further changes and its largest batch, if one fits."""
    words = list(given)
    for name in names:
        if name == CHANGES[-1]:
            words.append(_STATE_WORDS)
        else:
            change = change_named(name)
            trace, _ = change.apply(trace, assumptions)
            words.append(change.words)
    small = with_eight_bit_state(trace) if CHANGES[-1] in names else trace
    scaled, recorded, strategy = ScaledMemory(small), trace.samples_per_batch, Strategy()
    if scaled.need(recorded, layout, strategy).memory_fit != "fits":
        strategy = Strategy(accumulate=2)  # more batches hold the same gradients
    largest = largest_batch(scaled, layout, strategy).batch_size
    if largest is None:
        return
    accumulate = ceil(recorded / largest)
    batch, smaller = ceil(recorded / accumulate), recorded // accumulate
    need = scaled.need(batch, layout, strategy)
    together = replace(assumptions, strategy=Strategy(accumulate=accumulate))
    seconds = {
        size: predict_workload(step, [layout], remaining_steps(step, None), together)
        .items_in_order[0]
        .iteration_seconds
        for size in {batch, smaller}
        for step in [trace if size == recorded else with_samples(trace, size)]
    }
    smaller_share = batch - recorded / accumulate  # of the batches, which are one sample smaller
    yield WayToFit(
        gpu=layout.gpu.name,
        changes=tuple(words),
        batch_size=batch,
        accumulate=accumulate,
        largest_batch=largest,
        seconds=(1 - smaller_share) * seconds[batch] + smaller_share * seconds[smaller],
        process_bytes=None if need.process is None else need.process.middle,
        fit_probability=need.fit_probability,
    )
