"""Ways to reduce a step's memory, with the saved bytes, by simulating the memory of the changed step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from lightning_predict.advice.batch_size import why_no_other_batch
from lightning_predict.advice.changes import change_named
from lightning_predict.advice.fitting_changes import ways_to_fit, with_eight_bit_state
from lightning_predict.advice.largest_batch import ScaledMemory, largest_batch
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.ties import NOTICEABLE
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.memory.breakdown import memory_breakdown
from lightning_predict.memory.simulation import blocks_of, simulated
from lightning_predict.memory.step_memory import step_memory
from lightning_predict.record.sources import Variant
from lightning_predict.record.trace import Trace
from lightning_predict.reports.memory import MemoryReport, MemorySaving
from lightning_predict.reports.published_cases import TrainedPart, trained_part
from lightning_predict.step_predictor import memory_need_of

CHANGES_ASKED: Final = ("bf16-mixed", "checkpointing", "fused_optimizer")  # Names of changes that may reduce memory


def memory_report(
    trace: Trace, gpu: Gpu, *, reported_bytes: float | None = None, variants: Sequence[Variant] = ()
) -> MemoryReport | None:
    """Return a report on the memory of a step and ways to reduce it; None without recorded tensors or model.

    Args:
        trace: One kind of step.
        gpu: The GPU to predict.
        reported_bytes: `total_memory` as reported by torch; None if unknown.
        variants: Other ways to train the same model, for `ways_to_fit`.
    """
    memory = step_memory(trace)
    if memory is None:
        return None
    layout, needed = Layout(gpu), float(memory.bytes_on(gpu))
    breakdown = memory_breakdown(trace, gpu, reserved_bytes=needed)
    if breakdown is None:
        return None
    least = NOTICEABLE * breakdown.total_bytes
    is_derived = trace.memory.peak_bytes is None and trace.memory.reserved_bytes is None
    derived = memory if is_derived else None
    scaled = None if why_no_other_batch(trace) is not None else ScaledMemory(trace, derived)
    savings = [one for one in _savings(trace, gpu, scaled, needed if is_derived else None) if one.bytes >= least]
    need = memory_need_of([(trace, memory)], layout, Strategy(), reported_bytes=reported_bytes)
    return MemoryReport(
        gpu=gpu.name,
        need=need,
        breakdown=breakdown,
        savings=tuple(sorted(savings, key=lambda saving: -saving.bytes)),
        largest=_largest(scaled, layout),
        ways=None if need.memory_fit == "fits" or scaled is None else ways_to_fit(trace, gpu, variants=variants),
        last_resort="Share the model among GPUs" if variants else LAST_RESORTS[trained_part(trace)],
        tried=tuple(dict.fromkeys(change for variant in variants for change in variant.changes)),
    )


LAST_RESORTS: Final[Mapping[TrainedPart, str]] = {  # What remains if no set of changes fits, by what the step trains
    "all": "Train adapters (LoRA or QLoRA), or share the model among GPUs",
    "adapters": "Load the frozen weights in 4 bits (by name `--quantization nf4`), or share the model among GPUs",
    "adapters over 4 bits": "Take shorter samples, or share the model among GPUs",
}


def _largest(scaled: ScaledMemory | None, layout: Layout) -> str | None:
    if scaled is None:
        return None
    try:
        return largest_batch(scaled, layout, Strategy()).sentence
    except InvalidArgumentError:  # the batch is not the first dimension of the data
        return None


def _savings(
    trace: Trace, gpu: Gpu, scaled: ScaledMemory | None, derived_bytes: float | None
) -> Iterator[MemorySaving]:
    # Both memory sizes must be derived to be comparable, even if the peak was measured.
    trace = replace(trace, memory=replace(trace.memory, peak_bytes=None, reserved_bytes=None))
    before = _reserved(trace, gpu) if derived_bytes is None else derived_bytes

    samples = trace.samples_per_batch
    if samples > 1 and scaled is not None:
        yield MemorySaving(f"a batch of {samples // 2:,}", before - scaled.derived_bytes(samples // 2, gpu))
    for name in CHANGES_ASKED:
        change = change_named(name)
        if change.why_not(trace, gpu) is None:
            changed, _ = change.apply(trace, Assumptions())
            yield MemorySaving(change.words, before - _reserved(changed, gpu), change.note)
    blocks = blocks_of(trace)
    reserved = simulated(blocks).reserved_bytes
    if blocks.state:
        less = before - _reserved(with_eight_bit_state(trace), gpu)
        yield MemorySaving("an optimizer with 8-bit state", less)
    apart = reserved - simulated(blocks, expandable_segments=True).reserved_bytes
    yield MemorySaving("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", float(apart))


def _reserved(trace: Trace, gpu: Gpu) -> float:
    memory = step_memory(trace)
    assert memory is not None  # known, because the report has a breakdown of the memory
    return float(memory.bytes_on(gpu))
