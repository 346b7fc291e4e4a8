"""Say where the memory of a step goes at its fullest moment, and what would help by how much.

Example::

    parts = memory_breakdown(trace, gpu("L4"))
    parts.operation                    # 'aten::_log_softmax'
    [(one.name, one.bytes) for one in parts.parts]      # [('parameters', 497759232.0), ('activations', ...), ...]
    [(one.words, one.bytes) for one in parts.savings]   # [('checkpoint the 12 modules blocks.*', 6.1e9), ...]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.gpus.records import Gpu
from lightning_predict.memory.libraries import context_bytes, cublas_bytes
from lightning_predict.memory.simulation import Moment, blocks_of, fullest_moments, simulated
from lightning_predict.tracing.trace import Trace

LEAST_SAVING: Final = 0.02
"""Of all memory: less is no help."""


@final
@dataclass(frozen=True, slots=True)
class Part:
    """Bytes for one purpose."""

    name: str
    bytes: float


@final
@dataclass(frozen=True, slots=True)
class Saving:
    """What a change would save of the fullest moment, in words."""

    words: str
    bytes: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBreakdown:
    """Where the memory of a step goes on a GPU.

    Attributes:
        operation: Operation that runs at the fullest moment.
        phase: Its phase.
        module: Its module; None if not known.
        parts: What lives then, by purpose; they add up to the process.
        modules: Activations by the module that wrote them, the largest first.
        savings: Changes that would help, the largest first.
    """

    operation: str
    phase: str
    module: str | None
    parts: tuple[Part, ...]
    modules: tuple[Part, ...]
    savings: tuple[Saving, ...]

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return sum(part.bytes for part in self.parts)


def memory_breakdown(trace: Trace, gpu: Gpu) -> MemoryBreakdown | None:
    """Find where the memory of a step goes; None where the tensors that operations write were not seen.

    Args:
        trace: One kind of step.
        gpu: The GPU that it is to run on.
    """
    if trace.memory.parameter_bytes is None or not any(operation.outputs for operation in trace.operations):
        return None
    blocks = blocks_of(trace)
    moment = max(fullest_moments(blocks), key=lambda one: one.total_bytes)
    reserved = simulated(blocks).reserved_bytes
    by_cause = dict.fromkeys(("activation", "backward", "update"), 0)
    for storage in moment.storages:
        by_cause[storage.cause] += storage.size_bytes
    handles = 2 if any(operation.phase == "backward" for operation in trace.operations) else 1
    parts = {
        "parameters and buffers": moment.lasting_bytes,
        "gradients": moment.gradient_bytes,
        "optimizer state": moment.state_bytes,
        "batch": moment.batch_bytes,
        "activations": by_cause["activation"],
        "passing tensors of the backward pass": by_cause["backward"],
        "passing tensors of the optimizer": by_cause["update"] + moment.update_bytes,
        "held by variables of the loop": moment.left_bytes,
        "workspaces of cuBLAS": cublas_bytes(gpu, handles=handles),
        "allocator, beyond the tensors": max(reserved - moment.total_bytes, 0),
        "context and code of libraries": context_bytes(gpu).middle,
    }
    total = float(sum(parts.values()))
    modules = _by_module(moment)
    operation = trace.operations[moment.index]
    savings = [one for one in _savings(trace, moment, modules) if one.bytes >= LEAST_SAVING * total]
    return MemoryBreakdown(
        operation=operation.name,
        phase=operation.phase,
        module=operation.module,
        parts=tuple(Part(name, float(size)) for name, size in parts.items() if size),
        modules=tuple(Part(name, float(size)) for name, size in modules.items()),
        savings=tuple(sorted(savings, key=lambda one: -one.bytes)),
    )


def _by_module(moment: Moment) -> Mapping[str, int]:
    """Sum the activations by the module that wrote them, the largest first."""
    sizes: dict[str, int] = defaultdict(int)
    for storage in moment.storages:
        if storage.cause == "activation":
            sizes[storage.module or "(outside of modules)"] += storage.size_bytes
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _savings(trace: Trace, moment: Moment, modules: Mapping[str, int]) -> Iterator[Saving]:
    """Estimate what the usual remedies save, each by itself."""
    yield from _checkpointing(modules)
    if trace.memory.optimizer_state_bytes and trace.flags.autocast_dtype != "float8":
        yield Saving("an optimizer with 8-bit state", 0.75 * moment.state_bytes)
    samples = trace.samples
    if samples is not None and samples // trace.batches > 1:
        passing = sum(storage.size_bytes for storage in moment.storages) + moment.batch_bytes
        yield Saving("half the batch", passing / 2)
    if trace.flags.autocast_dtype is None and all(one.dtype == "float32" for one in trace.parameters):
        activations = sum(storage.size_bytes for storage in moment.storages if storage.cause == "activation")
        yield Saving(
            "bf16-mixed: activations in 16 bits, less copies of the weights", (activations - moment.lasting_bytes) / 2
        )


def _checkpointing(modules: Mapping[str, int]) -> Iterator[Saving]:
    """Estimate what checkpointing rows of blocks saves: all but the largest block and the blocks' inputs."""
    rows: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, size in modules.items():
        words = name.split(".")
        for index, word in enumerate(words):
            if word.isdigit():
                rows[".".join(words[:index])][".".join(words[: index + 1])] += size
                break
    for row, blocks in rows.items():
        if len(blocks) > 1:
            sizes = blocks.values()
            # Each keeps its input. Of a transformer's block in 16 bits, that is about one storage in eight.
            saved = (sum(sizes) - max(sizes)) * 7 / 8
            yield Saving(f"checkpoint the {len(blocks)} modules {row + '.' if row else ''}*", saved)
