"""Changes to a training run, each as a function of a recorded step: precision, compile, batch size, sharding ...

`CHANGES` is the table of all changes. A change has the code that the user writes, its side effects, a check whether it
applies, and the kind of measured pairs that validate its gains (`gain_accuracy.py`). Changes of the operations that
need more than a few lines have a file in this folder. Example::

    change = change_named("bf16-mixed")
    changed, assumptions = change.apply(trace, Assumptions())
    lp.predict(changed, ["L4"])
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from lightning_predict.advice.batch_size import why_no_other_batch, with_batch
from lightning_predict.advice.checkpointing import checkpointed, kept, recomputed
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.fusion.kernels import list_member_of
from lightning_predict.fusion.options import GRAPHS, KERNELS, without_launches
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.memory_bound import FUSED_OPTIMIZERS
from lightning_predict.layouts.strategy import DataStrategy, Strategy
from lightning_predict.record.data_flow import NO_DATA_FLOW, has_data_flow
from lightning_predict.record.precision import emulates_bfloat16, in_float16, in_precision, is_cast_by_autocast
from lightning_predict.record.trace import Operation, TensorInfo, Trace
from lightning_predict.run.carried_measurements import carry_measurements
from lightning_predict.timeline.host import WAITING_OPERATIONS

SideEffect = Literal["numerics", "digits", "memory", "samples"]
"""Side effects of a change: results are rounded differently (`numerics`), parameters permanently lose digits
(`digits`), the step needs more memory (`memory`), or the step has other samples (`samples`)."""

SIDE_EFFECTS: Final[tuple[SideEffect, ...]] = ("numerics", "digits", "memory", "samples")

Apply = Callable[[Trace, Assumptions], tuple[Trace, Assumptions]]
WhyNot = Callable[[Trace, Gpu | None], str | None]
WhyNotShared = Callable[[Layout, Strategy], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One possible change to a training run."""

    name: str  # Short name, for commands and results
    words: str  # Code that the user writes to apply the change
    note: str  # Text that describes the side effects
    apply: Apply  # Function that returns the changed step and assumptions
    why_not: WhyNot  # Function that returns why the change does not apply to a step on a GPU (None: any GPU), or None
    # Function that returns why the change does not apply to a layout with a strategy, or None
    why_not_shared: WhyNotShared = lambda _layout, _strategy: None
    side_effects: frozenset[SideEffect] = frozenset()
    # Key of the evidence for the gain in `gain_accuracy.py`, without the mode. Changes of one kind exclude each other,
    # except `amp` and `half`, which are both precisions.
    kind: str
    useless_after: frozenset[str] = frozenset()

    @property
    def slot(self) -> str:
        """Name of the group of changes that exclude each other."""
        return "precision" if self.kind in ("amp", "half") else self.kind

    def why_not_on(self, trace: Trace, layout: Layout, strategy: Strategy) -> str | None:
        """Return why the change does not apply to a step on a layout; None if it applies."""
        return self.why_not(trace, layout.gpu) or self.why_not_shared(layout, strategy)

    def is_compatible(self, others: tuple[Change, ...]) -> bool:
        """Return whether the change has an effect in addition to other changes."""
        return all(self.slot != other.slot and other.name not in self.useless_after for other in others)


def of_steps(change: Callable[[Trace], Trace]) -> Apply:
    """Return an `apply` function that changes every kind of step, and keeps measurements that still apply."""

    def apply(trace: Trace, assumptions: Assumptions) -> tuple[Trace, Assumptions]:
        return trace.changed(lambda step: carry_measurements(step, change, assumptions.weights)), assumptions

    return apply


def has_backward(trace: Trace) -> bool:
    """Return whether the step has a backward pass."""
    return any(operation.phase == "backward" for operation in trace.operations)


# --- Precision: autocast, whole models in 16 bits, TF32


def in_half(trace: Trace, dtype: str) -> Trace:
    """Return a float32 step with every float32 tensor in 16 bits, as after `model.half()`."""

    def halved(tensor: TensorInfo) -> TensorInfo:
        return replace(tensor, dtype=dtype) if tensor.dtype == "float32" else tensor

    memory = trace.memory
    known = {
        name: None if (value := getattr(memory, name)) is None else value // 2
        for name in ("parameter_bytes", "gradient_bytes", "forward_gradient_bytes", "optimizer_state_bytes")
    }
    return replace(
        _with_tensors(trace, halved),
        parameters=tuple(
            replace(parameter, dtype=dtype) if parameter.dtype == "float32" else parameter
            for parameter in trace.parameters
        ),
        memory=replace(memory, **known, peak_bytes=None, reserved_bytes=None),
        notes=(*trace.notes, f"What if in true {dtype}: parameters, data and the optimizer's state."),
    )


def _with_tensors(trace: Trace, changed: Callable[[TensorInfo], TensorInfo]) -> Trace:
    """Return the step with every tensor of its operations changed."""
    operations = (
        replace(operation, inputs=tuple(map(changed, operation.inputs)), outputs=tuple(map(changed, operation.outputs)))
        for operation in trace.operations
    )
    return replace(trace, operations=tuple(operations))


def with_tf32(trace: Trace) -> Trace:
    """Return the step with TF32 allowed for float32 matmuls and convolutions."""
    return replace(trace, flags=replace(trace.flags, matmul_tf32=True, cudnn_tf32=True))


def _why_no_lower_precision(trace: Trace) -> str | None:
    """Return why a step is already in 16 bits; None for a float32 step."""
    if trace.flags.autocast_dtype is not None:
        return f"the step runs under autocast in {trace.flags.autocast_dtype} already"
    if not any(operation.inputs for operation in trace.operations):
        return "the recording holds no shapes; record it with record_shapes=True, or with capture()"
    elements: Counter[str] = Counter()
    for operation in trace.operations:
        if is_cast_by_autocast(operation):
            for tensor in operation.inputs:
                elements[tensor.dtype] += tensor.elements
    if not elements:
        return "the step holds no product that autocast would cast"
    dtype = elements.most_common(1)[0][0]
    return None if dtype == "float32" else f"most of the model is in {dtype} already"


def _in_autocast(trace: Trace, dtype: str) -> Trace:
    """Return a step under autocast: in float16 also from a step under autocast in bfloat16."""
    if dtype == "float16" and trace.flags.autocast_dtype == "bfloat16":
        return in_float16(trace)
    return in_precision(trace, dtype)


def _why_no_autocast(dtype: str, trace: Trace, gpu: Gpu | None) -> str | None:
    if dtype == "float16" and trace.flags.autocast_dtype == "bfloat16" and gpu is not None and emulates_bfloat16(gpu):
        return None
    lowered = _why_no_lower_precision(trace)
    if lowered is None and trace.compiled:
        return "the step was recorded compiled, which hides what autocast would cast; record it without torch.compile"
    if lowered is None and gpu is not None and gpu.peak(dtype) is None:
        return f"{gpu.name} has no {dtype}"
    return lowered


def _why_no_half(dtype: str, trace: Trace, gpu: Gpu | None) -> str | None:
    return _why_no_lower_precision(trace) or _why_no_autocast(dtype, trace, gpu)


def _why_no_tf32(trace: Trace, gpu: Gpu | None) -> str | None:
    if trace.flags.matmul_tf32 and trace.flags.cudnn_tf32:
        return "TF32 is on already"
    if gpu is not None and "tf32" not in gpu.peak_flops_per_second:
        return f"{gpu.name} has no TF32"
    lowered = _why_no_lower_precision(trace)
    return None if lowered is None else f"{lowered}, and TF32 serves products in float32"


# --- Kernels: channels last, torch.compile, fused optimizer, attention, padding


def _why_no_kernels(name: str, trace: Trace, gpu: Gpu | None) -> str | None:
    if gpu is not None and not KERNELS[name].runs_on(gpu):
        return f"{gpu.name} lacks it: it needs {KERNELS[name].needs}"
    old = KERNELS[name].too_old(trace)
    return f"it {old}" if old else KERNELS[name].why_not(trace)


def _with_fused_optimizer(trace: Trace) -> Trace:
    """Return the step with a single optimizer call over all tensors that the optimizer uses."""
    updates = [operation for operation in trace.operations if operation.phase == "optimizer"]
    large: dict[int, TensorInfo] = {}  # tensors that existed before the optimizer step, by storage id
    made: set[int | None] = set()
    for update in updates:
        for tensor in update.inputs:
            if tensor.id is not None and tensor.shape and tensor.id not in made:
                large[tensor.id] = tensor
        made |= {tensor.id for tensor in update.outputs if tensor.id not in large}
    by_shape: dict[tuple[int, ...], list[TensorInfo]] = {}
    for tensor in large.values():
        by_shape.setdefault(tensor.shape, []).append(tensor)
    # Adam divides by the root of a second moment.
    has_moments = any("sqrt" in operation.name or "adam" in operation.name for operation in updates)
    per_parameter, name = (4, "aten::_fused_adamw_") if has_moments else (3, "aten::_fused_sgd_")
    lists: list[list[TensorInfo]] = [[] for _ in range(per_parameter)]
    for shape in {parameter.shape for parameter in trace.parameters} or by_shape:
        for place, tensor in enumerate(by_shape.get(shape, [])):
            lists[place % per_parameter].append(tensor)
    tensors = tuple(tensor for each in lists for tensor in each)

    def changed() -> Iterator[Operation]:
        for operation in trace.operations:
            if operation.phase != "optimizer":
                yield operation
            elif operation is updates[0]:
                yield Operation(name=name, phase="optimizer", inputs=tensors, outputs=())

    return replace(trace, operations=tuple(changed()))


def _why_no_fused_optimizer(trace: Trace, _gpu: Gpu | None) -> str | None:
    updates = [operation for operation in trace.operations if operation.phase == "optimizer"]
    if not updates:
        return "the step holds no optimizer update"
    if any(operation.name in FUSED_OPTIMIZERS for operation in updates):
        return "the optimizer is fused already"
    if not any(tensor.id is not None for operation in updates for tensor in operation.inputs):
        return "the recording does not hold which tensors the optimizer updates; capture the step on the meta device"
    return None


MULTIPLE: Final = 64  # Sizes of parameters are padded to a multiple of this number: 128 bytes in 16 bits, a cache line
MIN_SIDE: Final = 256  # Minimum size to pad. Smaller odd sizes are usually classes or channels of data.
ALIGNED: Final = 8  # Required alignment, as a number of 16-bit elements: tensor cores need rows aligned to 16 bytes


def _odd_sides(trace: Trace) -> dict[int, int]:
    sides = {side for parameter in trace.parameters for side in parameter.shape if side >= MIN_SIDE and side % ALIGNED}
    return {side: -(-side // MULTIPLE) * MULTIPLE for side in sides}


def _padded(trace: Trace) -> Trace:
    """Return the step with padded sizes of parameters, in every tensor that has such a size."""
    sides = _odd_sides(trace)

    def grown(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sides.get(side, side) for side in shape)

    return replace(
        _with_tensors(trace, lambda tensor: replace(tensor, shape=grown(tensor.shape))),
        parameters=tuple(replace(parameter, shape=grown(parameter.shape)) for parameter in trace.parameters),
    )


def _why_no_padding(trace: Trace, _gpu: Gpu | None) -> str | None:
    if not trace.parameters:
        return "the recording does not hold the model's parameters"
    return None if _odd_sides(trace) else f"no parameter has a long side that is no multiple of {ALIGNED}"


# --- Host: loader, waits, CUDA graphs


def _waits_for_device(operation: Operation) -> bool:
    return operation.name in WAITING_OPERATIONS and operation.phase != "optimizer"


def _without_waits(trace: Trace) -> Trace:
    """Return the step without operations in which the host waits for a value from the device."""
    operations = tuple(operation for operation in trace.operations if not _waits_for_device(operation))
    return replace(trace, operations=operations, waits=tuple(wait for wait in trace.waits if wait.cause != "device"))


def _why_no_fewer_waits(trace: Trace, _gpu: Gpu | None) -> str | None:
    reads = any(map(_waits_for_device, trace.operations)) or any(wait.cause == "device" for wait in trace.waits)
    return None if reads else "the host reads no value of the step"


def _why_no_loader(trace: Trace, _gpu: Gpu | None) -> str | None:
    if not trace.loader_seconds:
        return "no wait for the loader was recorded"
    return None if statistics.mean(trace.loader_seconds) > 0 else "the step never waits for the loader"


# --- Memory: checkpointing. Several GPUs: accumulation, DDP, FSDP


def _why_no_checkpointing(trace: Trace, _gpu: Gpu | None) -> str | None:
    if not has_backward(trace):
        return "the step has no backward pass"
    if not any(list_member_of(operation.module) for operation in trace.operations):
        return "the recording does not hold blocks of modules"
    return "blocks compute their activations again already" if recomputed(trace) else None


def _why_checkpointing(trace: Trace, _gpu: Gpu | None) -> str | None:
    if not has_data_flow(trace):
        return NO_DATA_FLOW
    return None if recomputed(trace) else "the backward pass computes nothing again"


BATCHES: Final = 2  # Factor by which gradient accumulation increases the number of batches per optimizer step


def _accumulated(trace: Trace, assumptions: Assumptions) -> tuple[Trace, Assumptions]:
    strategy = assumptions.strategy
    return trace, replace(assumptions, strategy=replace(strategy, accumulate=BATCHES * strategy.accumulate))


def _why_no_accumulation(trace: Trace, _gpu: Gpu | None) -> str | None:
    if not has_backward(trace) or not any(operation.phase == "optimizer" for operation in trace.operations):
        return "the step holds no update that batches could share"
    return "steps of several kinds take turns" if trace.other_steps else None


def _split_as(data: DataStrategy, trace: Trace, assumptions: Assumptions) -> tuple[Trace, Assumptions]:
    return trace, replace(assumptions, strategy=replace(assumptions.strategy, data=data))


def _why_no_split(trace: Trace, _gpu: Gpu | None) -> str | None:
    if not has_backward(trace):
        return "the step has no backward pass"
    return None if trace.parameters else "the recording does not hold the model's parameters"


def _why_not_shared(data: DataStrategy, layout: Layout, strategy: Strategy) -> str | None:
    if layout.count == 1:
        return f"one {layout.gpu.name} shares nothing; ask for several, as 8x{layout.gpu.name}"
    return f"the strategy is {data} already" if strategy.data == data else None


# --- The table


def batch_change(factor: int) -> Change:
    """Return the change to `factor` times the batch size."""
    return Change(
        name="batch_size" if factor == 2 else f"batch_size x {factor}",
        words="twice the batch size" if factor == 2 else f"{factor} times the batch size",
        note="memory; other optimisation: scale the learning rate",
        apply=of_steps(partial(with_batch, factor=factor)),
        why_not=lambda trace, _gpu: why_no_other_batch(trace),
        side_effects=frozenset({"memory", "samples"}),
        kind="batch",
    )


def _autocast(dtype: str, word: str, note: str) -> Change:
    return Change(
        name=f"{word}-mixed",
        words=f'Trainer(precision="{word}-mixed")',
        note=note,
        apply=of_steps(partial(_in_autocast, dtype=dtype)),
        why_not=partial(_why_no_autocast, dtype),
        side_effects=frozenset({"numerics"}),
        kind="amp",
    )


def _half(dtype: str, name: str, word: str) -> Change:
    return Change(
        name=name,
        words=f'Trainer(precision="{word}-true")',
        note="digits: parameters and updates lose them for good",
        apply=of_steps(partial(in_half, dtype=dtype)),
        why_not=partial(_why_no_half, dtype),
        side_effects=frozenset({"numerics", "digits"}),
        kind="half",
    )


def _sharing(data: DataStrategy, note: str, side_effects: frozenset[SideEffect]) -> Change:
    return Change(
        name=data,
        words=f'Trainer(strategy="{data}")',
        note=note,
        apply=partial(_split_as, data),
        why_not=_why_no_split,
        why_not_shared=partial(_why_not_shared, data),
        side_effects=side_effects,
        kind="strategy",
    )


def _kernels(
    name: str,
    words: str,
    note: str,
    side_effects: frozenset[SideEffect] = frozenset(),
    useless_after: frozenset[str] = frozenset(),
) -> Change:
    """Return the change to kernels with a word of `lp.predict`."""
    return Change(
        name=name,
        words=words,
        note=note,
        apply=of_steps(KERNELS[name].apply),
        why_not=partial(_why_no_kernels, name),
        side_effects=side_effects,
        kind="attention" if name == "sdpa" else name,
        useless_after=useless_after,
    )


_ALL: Final = (
    _autocast("bfloat16", "bf16", "numerics: check the loss"),
    _autocast("float16", "16", "numerics: check the loss, a scaler skips steps"),
    _half("bfloat16", "bf16-true", "bf16"),
    _half("float16", "half", "16"),
    Change(
        name="tf32",
        words='torch.set_float32_matmul_precision("high")',
        note="numerics: products keep 10 bits of the mantissa",
        apply=of_steps(with_tf32),
        why_not=_why_no_tf32,
        side_effects=frozenset({"numerics"}),
        kind="tf32",
        useless_after=frozenset({"bf16-mixed", "16-mixed", "bf16-true", "half"}),
    ),
    _kernels(
        "channels_last",
        "model.to(memory_format=torch.channels_last), and the images",
        "none",
        useless_after=frozenset({"compile"}),
    ),
    _kernels("compile", "torch.compile(model)", "compiles for a minute or more, and again where shapes change"),
    batch_change(2),
    Change(
        name="accumulation",
        words=f"Trainer(accumulate_grad_batches=...), {BATCHES} times as many",
        note="other optimisation: scale the learning rate",
        apply=_accumulated,
        why_not=_why_no_accumulation,
        side_effects=frozenset({"samples"}),
        kind="accumulation",
    ),
    _sharing("fsdp", "checkpoints in parts; less memory", frozenset()),
    _sharing("ddp", "memory for the whole model on each GPU", frozenset({"memory"})),
    Change(
        name="loader",
        words="DataLoader(num_workers=..., pin_memory=True)",
        note="cores and memory of the host",
        apply=lambda trace, assumptions: (replace(trace, loader_seconds=()), assumptions),
        why_not=_why_no_loader,
        kind="loader",
    ),
    Change(
        name="fewer_waits",
        words="no .item(), print or log of a tensor each step",
        note="values are seen later",
        apply=of_steps(_without_waits),
        why_not=_why_no_fewer_waits,
        kind="waits",
    ),
    replace(
        _kernels(
            GRAPHS,
            'torch.compile(model, mode="reduce-overhead"), or torch.cuda.graphs',
            "shapes must stay the same; memory for a graph's own pool",
            frozenset({"memory"}),
        ),
        apply=lambda trace, assumptions: (
            trace.changed(without_launches),
            replace(assumptions, kernels=(*assumptions.kernels_applied, GRAPHS)),
        ),
    ),
    Change(
        name="fused_optimizer",
        words="AdamW(..., fused=True)",
        note="not every optimizer has it",
        apply=of_steps(_with_fused_optimizer),
        why_not=_why_no_fused_optimizer,
        kind="fused_optimizer",
    ),
    _kernels(
        "sdpa",
        'F.scaled_dot_product_attention (attn_implementation="sdpa")',
        "none; attention weights cannot be returned",
    ),
    Change(
        name="padding",
        words=f"pad odd sizes (vocabulary, classes) to a multiple of {MULTIPLE}",
        note="a few unused rows",
        apply=of_steps(_padded),
        why_not=_why_no_padding,
        kind="padding",
    ),
    Change(
        name="checkpointing",
        words="torch.utils.checkpoint of each block (gradient_checkpointing_enable())",
        note="slower: it saves memory, for a larger batch",
        apply=of_steps(checkpointed),
        why_not=_why_no_checkpointing,
        kind="checkpointing",
    ),
    Change(
        name="no_checkpointing",
        words="no checkpointing (gradient_checkpointing_disable())",
        note="memory for the activations",
        apply=of_steps(kept),
        why_not=_why_checkpointing,
        side_effects=frozenset({"memory"}),
        kind="checkpointing",
    ),
)

CHANGES: Final[Mapping[str, Change]] = {change.name: change for change in _ALL}
"""Changes by name. Their order breaks ties between equal gains."""


def change_named(name: str) -> Change:
    """Return a change by name."""
    if name not in CHANGES:
        raise InvalidArgumentError(f"change={name!r} is not known; choose one of {', '.join(CHANGES)}.")
    return CHANGES[name]
