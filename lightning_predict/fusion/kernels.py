"""Rewrites an eager step as `torch.compile` would run it: point-wise operations between matmuls become fused kernels.

Inductor calls libraries for matmuls, convolutions, attention and embedding look-ups. Inductor fuses element-wise
operations and reductions that pass data to each other. A fused kernel reads external inputs and writes external
outputs, but its intermediate results never reach memory. Therefore the bytes of inputs and outputs determine the
kernel's time.

* A norm over long rows becomes two kernels. The statistics are fused with the operations before the norm, and the
  normalisation with those after it.
* The bias of a convolution is added by the kernel that reads the result of the convolution. Images are stored in
  channels-last layout.
* Odd sizes of 16-bit matmuls are padded.
* PyTorch's own kernels compute complex numbers, such as rotary positions, for which Inductor writes no code.
* The host needs additional time to call the compiled forward and backward passes.

Example::

    >>> from lightning_predict.record.trace import Operation, TensorInfo, Trace
    >>> a, b, c = (TensorInfo((1024,), "float32", id=number) for number in range(3))
    >>> relu = Operation(name="aten::relu", phase="forward", inputs=(a,), outputs=(b,))
    >>> twice = Operation(name="aten::mul", phase="forward", inputs=(b,), outputs=(c,))
    >>> _call, kernel = fused(Trace(operations=(relu, twice), device="meta", recorder="dispatch")).operations
    >>> kernel.name, kernel.inputs == (a,), kernel.outputs == (c,)
    ('triton::fused', True, True)
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Final

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.fusion.joint_graph import (
    COMPARISON,
    POOL_GRADIENT,
    RUN_AGAIN,
    Region,
    rematerialised,
    unused_ids,
)
from lightning_predict.kernels.memory_bound import COMPILED_CALL, LOOK_UPS, REDUCTIONS, is_free
from lightning_predict.kernels.operations import operation_spec
from lightning_predict.kernels.roofline import TENSOR_ALIGNMENT
from lightning_predict.kernels.translation import is_complex, translate
from lightning_predict.record.operand_strides import CHANNELS_LAST, FIRST_TRANSPOSED, IMAGES_AT, SECOND_TRANSPOSED
from lightning_predict.record.signatures import DRAWS_MASKS, FUSED
from lightning_predict.record.torch_releases import release_of
from lightning_predict.record.trace import Operation, TensorInfo, Trace

STATISTICS: Final = "triton::statistics"  # Reduction part of a norm, whose results are known only at its end

ROW_STATISTICS: Final = "triton::row_statistics"
"""Name of the reduction part of a softmax or norm over short rows, which the same kernel goes on to normalise."""

NORMALISATION: Final = "triton::normalisation"  # Name of the normalisation part of a norm
COLUMN_SUMS: Final = "triton::column_sums"  # Part of a norm's backward pass: gradients of weights, sums over all rows

_SUMS_COLUMNS: Final = frozenset({"aten::native_layer_norm_backward", "aten::_fused_rms_norm_backward"})

ROW_NORMS: Final = frozenset({"aten::native_layer_norm", "aten::_fused_rms_norm", *_SUMS_COLUMNS})

_OWN: Final = frozenset({STATISTICS, ROW_STATISTICS, NORMALISATION, COMPARISON, COLUMN_SUMS, POOL_GRADIENT})
"""Parts of operations, which only fused kernels run."""

_COMPARED: Final = frozenset({"aten::threshold_backward", "aten::leaky_relu_backward", "aten::hardtanh_backward"})
"""Backward passes that read their second input only to compare it with a number."""

_NORMS: Final = {  # Norms, with the number of leading tensors that are as large as the result
    "aten::native_batch_norm": 1,
    "aten::cudnn_batch_norm": 1,
    "aten::_native_batch_norm_legit": 1,
    "aten::_batch_norm_with_update": 1,
    "aten::native_batch_norm_backward": 2,
    "aten::cudnn_batch_norm_backward": 2,
    "aten::batch_norm_backward": 2,
    "aten::native_group_norm": 1,
    "aten::native_group_norm_backward": 2,
    "aten::native_layer_norm": 1,
    "aten::native_layer_norm_backward": 2,
}

LONGEST_ROW_IN_A_KERNEL: Final = 4096  # Longest row, in elements, that a fused kernel keeps while it reduces the row

_SCANS: Final = frozenset({"aten::cumsum", "aten::cumprod"})

LARGEST_WINDOW: Final = 25  # Largest pooling window, in elements, for which Inductor writes a kernel

_GATHERS: Final = ("embedding", "index", "scatter", "gather", "sort", "topk", "upsample")
"""Parts of the names of operations that read or write by position, or read their input more than once."""


def fused(trace: Trace, *, by_library: bool = False, by_blocks: bool = False, keeps_inputs: bool = False) -> Trace:
    """Fuse the point-wise operations of a step. The optimizer is unchanged, because it is not compiled.

    Args:
        trace: Eager step with tensor ids, recorded on the CPU or the meta device.
        by_library: Whether a library has the fused kernels. The host then calls no compiled code, and the backward pass
            computes only casts and the logarithms of a loss again.
        by_blocks: Whether each block, and what lies between blocks, is compiled by itself (regional compilation).
        keeps_inputs: Whether the backward pass of a library computes again whatever its kernels can.
    """
    if trace.compiled or trace.has_measured_kernels or not any(operation.outputs for operation in trace.operations):
        raise InvalidArgumentError(
            "Only an eager step whose tensors were followed can be fused; record it without torch.compile, on the CPU "
            "or on the meta device."
        )
    region_of = (lambda one: list_member_of(one.module)) if by_blocks else lambda _: None
    operations = tuple(_with_gradients(_in_regions(trace.operations) if by_blocks else trace.operations))
    if by_library and not keeps_inputs:  # Transformer Engine's norms are kernels of their own, which no sums join
        operations = tuple(_outside(one) if one.name in ROW_NORMS else one for one in operations)
    operations = operations if by_library else tuple(_padded(operations, trace))
    is_last = not by_library and _prefers_channels_last(operations)
    operations = tuple(_strided_rows(operations)) if is_last else operations
    operations = operations if by_library else tuple(map(_with_pool_gradient, operations))
    is_online = by_library or (release_of(trace.software) or ONLINE_SOFTMAX) >= ONLINE_SOFTMAX
    operations = tuple(_with_comparisons(_split_norms(_split_softmaxes(operations, is_online=is_online))))
    operations = rematerialised(
        operations,
        is_fusible=partial(_is_pointwise, trace=trace),
        is_free=_is_left_out,
        ends_kernel=_ends_kernel,
        may_run_again=_runs_again_in_libraries if by_library and not keeps_inputs else lambda _: True,
        region_of=region_of,
    )
    inside = _made_by(trace.operations) - _made_by(operations)  # nothing writes these values to memory
    operations = operations if by_library else _without_biases(operations, trace)
    trace = replace(trace, operations=_in_channels_last(operations) if is_last else operations)
    readers: defaultdict[int | None, list[int]] = defaultdict(list)
    for index, operation in enumerate(trace.operations):
        if not _is_left_out(operation):
            for tensor in operation.inputs:
                readers[tensor.id].append(index)
    made = {tensor.id: tensor for one in trace.operations if not is_free(one) for tensor in one.outputs}
    views = Counter(
        (tensor.id, tensor.shape) for one in trace.operations if _is_left_out(one) for tensor in one.outputs
    )
    replaced: dict[int, Operation | None] = {}
    masks: set[int | None] = set()
    for group in _groups(trace, region_of):
        members = [trace.operations[index] for index in group]
        kernel = _kernel(members, places=group, readers=readers, made=made, views=views)
        replaced |= {**dict.fromkeys(group), group[0]: kernel}
        inside |= {tensor.id for one in members for tensor in one.outputs} - {tensor.id for tensor in kernel.outputs}
        masks |= {tensor.id for member in members if member.name == DRAWS_MASKS for tensor in member.outputs}
        masks |= {member.inputs[1].id for member in members if member.name == POOL_GRADIENT}
    kept = (
        replaced[index] if index in replaced else _around_kernels(operation, inside)
        for index, operation in enumerate(trace.operations)
    )
    run = _with_masks_of_bytes((operation for operation in kept if operation is not None), masks - {None})
    operations = tuple(run if by_library else _with_compiled_calls(_split_concatenations(run), region_of))
    kernels = sum(operation.name == FUSED for operation in operations)
    runner = "a library of fused kernels" if by_library else "torch.compile"
    note = f"As {runner} would run it: {len(replaced)} point-wise operations in {kernels} fused kernels."
    return replace(trace, operations=operations, notes=(*trace.notes, note))


def _made_by(operations: Iterable[Operation]) -> set[int | None]:
    """Return the ids of the results of operations that run kernels."""
    return {tensor.id for operation in operations if not _is_left_out(operation) for tensor in operation.outputs}


def _runs_again_in_libraries(operation: Operation) -> bool:
    is_loss = operation.name == NORMALISATION and _row_length(operation) > LONGEST_ROW_IN_A_KERNEL
    return is_loss or operation.name == "aten::_to_copy"


def _around_kernels(operation: Operation, inside: Set[int | None]) -> Operation:
    """Adjust an operation that runs no kernel: views of tensors inside a kernel need no memory."""
    if not _is_left_out(operation):
        return operation

    def seen(tensor: TensorInfo) -> TensorInfo:
        return replace(tensor, id=None) if tensor.id in inside else tensor

    return replace(operation, inputs=tuple(map(seen, operation.inputs)), outputs=tuple(map(seen, operation.outputs)))


def _with_masks_of_bytes(operations: Iterable[Operation], masks: Set[int | None]) -> Iterator[Operation]:
    """Store the masks of dropout, and places of maxima in their windows, as bytes."""

    def stored(tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        return tuple(replace(tensor, dtype="uint8") if tensor.id in masks else tensor for tensor in tensors)

    for operation in operations:
        if any(tensor.id in masks for tensor in (*operation.inputs, *operation.outputs)):
            operation = replace(operation, inputs=stored(operation.inputs), outputs=stored(operation.outputs))
        yield operation


ONLINE_SOFTMAX: Final = (2, 7)  # First release in which one pass over long rows finds their maxima and sums
STRIDED: Final = "strided_rows"  # Argument of a softmax along a dimension of which the elements lie apart


def _split_softmaxes(operations: Iterable[Operation], *, is_online: bool) -> Iterator[Operation]:
    """Split each softmax into the sums of its rows and a normalisation, which the backward pass may run again."""
    operations = tuple(operations)
    unused = unused_ids(operations)
    for operation in operations:
        is_softmax = operation.phase != "optimizer" and operation.name in (*_SOFTMAXES, _LOSS_GRADIENT)
        is_long = is_softmax and (operation.arguments.get(STRIDED) or _row_length(operation) > LONGEST_ROW_IN_A_KERNEL)
        if not is_softmax or operation.arguments.get(OUTSIDE):
            yield operation
        elif operation.name in _SOFTMAXES and operation.outputs and operation.outputs[0].id is not None:
            data, *_ = operation.inputs
            sums = TensorInfo((data.elements // max(_row_length(operation), 1),), "float32", id=next(unused))
            read: tuple[TensorInfo, ...] = (data,)
            if is_long and not is_online:
                read = (data, replace(sums, id=next(unused)))
                yield replace(operation, name=STATISTICS, inputs=(data,), outputs=read[1:])
            yield replace(operation, name=STATISTICS if is_long else ROW_STATISTICS, inputs=read, outputs=(sums,))
            yield replace(operation, name=NORMALISATION, inputs=(data, sums))
        elif operation.name == _LOSS_GRADIENT and is_long:
            yield replace(operation, name=NORMALISATION)
        else:
            yield operation


PICKS_WORDS: Final = "aten::nll_loss_forward"
"""Operation that reads one element of each row, so that its kernel reads only these elements of other tensors."""

_LOSS_GRADIENT: Final = "aten::_log_softmax_backward_data"

_MATMULS: Final = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})


PADDING: Final = "aten::constant_pad_nd"

PADDED_INTENSITY: Final = 128
"""Multiplications for each element of a matmul's tensors above which Inductor tries to pad the matmul: half of the
balance between compute and bandwidth of an A100 and an H100 are 100 and 148 (`pad_mm.is_mm_compute_bound`)."""


def _padded(operations: Sequence[Operation], trace: Trace) -> Iterator[Operation]:
    """Pad the odd sides of large 16-bit matmuls, which are slow on tensor cores (Inductor's `pad_mm`).

    A fused kernel that makes an operand also writes its padding. Other operands are copied first, as are transposed
    ones, because padding makes them contiguous.
    """
    unused = unused_ids(operations)
    makers: dict[int | None, int] = {}
    copies: dict[object, TensorInfo] = {}
    before: defaultdict[int, list[Operation]] = defaultdict(list)
    changed = list(operations)
    for index, operation in enumerate(operations):
        operands = operation.inputs[-2:] if _is_padded(operation) else ()
        for place, tensor in enumerate(operands):
            padded = replace(tensor, shape=(*tensor.shape[:-2], *map(_even, tensor.shape[-2:])))
            if padded == tensor:
                continue
            maker = makers.get(tensor.id)
            is_turned = bool(operation.arguments.get((FIRST_TRANSPOSED, SECOND_TRANSPOSED)[place]))
            if maker is not None and (
                is_turned or operations[maker].phase != operation.phase or not _is_pointwise(operations[maker], trace)
            ):
                maker = None  # it cannot write the padding
            key = (tensor.id, padded.shape, operation.phase, is_turned)
            if tensor.id is None or key not in copies:
                copies[key] = replace(padded, id=next(unused))
                made = replace(operation, name=PADDING, inputs=(tensor,), outputs=(copies[key],))
                made = replace(made, arguments={OUTSIDE: True} if maker is None else {})
                before[index if maker is None else maker + 1].append(made)
            inputs = list(changed[index].inputs)
            inputs[len(inputs) - 2 + place] = copies[key]
            changed[index] = replace(changed[index], inputs=tuple(inputs))
        if not _is_left_out(operation):
            makers |= {tensor.id: index for tensor in operation.outputs if tensor.id is not None}
    for index, operation in enumerate(changed):
        yield from before[index]
        yield operation


OUTSIDE: Final = "outside_fused_kernels"  # Argument of a point-wise operation that no fused kernel runs


def _outside(operation: Operation) -> Operation:
    return replace(operation, arguments={**operation.arguments, OUTSIDE: True})


def _with_gradients(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Mark additions to gradients of earlier batches, which autograd runs outside of compiled code.

    A whole call's backward pass, whose gradient was not recorded, reads the last result of the same size.
    """
    made: set[int | None] = set()  # in this pass
    last: dict[int, int | None] = {}  # by number of elements
    for operation in operations:
        if operation.phase == "forward":
            made.clear()
            last.clear()
        elif operation.name == "aten::add_" and operation.phase == "backward" and operation.inputs[0].id not in made:
            operation = _outside(operation)
        elif operation.name in _SUMS_COLUMNS and operation.inputs[0].id is None:
            gradient, *others = operation.inputs
            operation = replace(operation, inputs=(replace(gradient, id=last.get(gradient.elements)), *others))
        made |= {tensor.id for tensor in operation.outputs}
        last |= {tensor.elements: tensor.id for tensor in operation.outputs}
        yield operation


def _even(side: int) -> int:
    return math.ceil(side / TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT if side % 2 and side > 1 else side


def _is_padded(operation: Operation) -> bool:
    if operation.name not in _MATMULS or operation.phase == "optimizer" or len(operation.inputs) < 2:
        return False
    first, second = operation.inputs[-2:]
    if first.dtype not in ("float16", "bfloat16") or min(len(first.shape), len(second.shape)) < 2:
        return False
    (m, k), n = first.shape[-2:], second.shape[-1]
    return m * n * k > PADDED_INTENSITY * (m * k + k * n + m * n)


def _with_compiled_calls(operations: Iterable[Operation], region_of: Region) -> Iterator[Operation]:
    """Insert the host's call of compiled code wherever a pass of a region begins."""
    entered: tuple[str, str | None] | None = None
    for operation in operations:
        place = operation.phase, region_of(operation)
        if operation.phase in ("forward", "backward") and place != entered and not _is_left_out(operation):
            entered = place
            yield Operation(name=COMPILED_CALL, phase=operation.phase, module=operation.module)
        yield operation


_BLOCK: Final = re.compile(r"^(.*?\.?\d+)(?:\.|$)")
"""Pattern of a member of a module list: finds `encoder.layers.3` in `encoder.layers.3.mlp.fc1`."""


def list_member_of(module: str | None) -> str | None:
    """Return the member of a module list that contains a module; None outside lists."""
    block = None if module is None else _BLOCK.match(module)
    return None if block is None else block.group(1)


def _in_regions(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Give operations of the backward pass without a module the module before, such as sums of two gradients."""
    module: str | None = None
    for operation in operations:
        if operation.phase == "backward" and operation.module is None:
            operation = replace(operation, module=module)
        module = operation.module
        yield operation


MAX_JOINED: Final = 8  # Maximum number of tensors that a kernel concatenates


def _is_joined_apart(operation: Operation) -> bool:
    return operation.name == "aten::cat" and len(operation.inputs) > MAX_JOINED


def _split_concatenations(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Split a concatenation of many tensors into one copy kernel per tensor."""
    for operation in operations:
        if _is_joined_apart(operation) and operation.phase in ("forward", "backward"):
            yield from (_copied(operation, tensor) for tensor in operation.inputs)
        else:
            yield operation


def _split_norms(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Split norms over long rows into statistics and normalisation, and gradients of weights from other gradients."""
    for operation in operations:
        wide = max((tensor.elements for tensor in operation.outputs), default=0)
        sums = tuple(tensor for tensor in operation.outputs if tensor.elements < wide)
        if operation.name in _SUMS_COLUMNS and sums and not operation.arguments.get(OUTSIDE):
            others = tuple(tensor for tensor in operation.outputs if tensor not in sums)
            yield from _split_norms([replace(operation, outputs=others)])
            yield replace(operation, name=COLUMN_SUMS, inputs=operation.inputs[:2], outputs=sums)
            continue
        large = None if operation.arguments.get(OUTSIDE) else _NORMS.get(operation.name)
        if large is None or len(operation.outputs) < 2 or not _reduces_long_rows(operation):
            yield operation
            continue
        data, statistics = operation.inputs[:large], operation.outputs[1:]
        yield replace(operation, name=STATISTICS, inputs=data, outputs=statistics)
        if "batch_norm" in operation.name and operation.phase == "forward":  # combines the partial sums of the blocks
            yield replace(operation, name=STATISTICS, inputs=statistics, outputs=statistics)
        yield replace(
            operation,
            name=NORMALISATION,
            inputs=(*data, *operation.inputs[large:], *statistics),
            outputs=operation.outputs[:1],
        )


def _with_comparisons(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Insert the comparison that some backward passes need instead of a value, such as where ReLU's result is zero."""
    operations = tuple(operations)
    unused = unused_ids(operations)
    compared: dict[int | None, TensorInfo] = {
        operation.inputs[1].id: replace(operation.inputs[1], dtype="bool", id=next(unused))
        for operation in operations
        if operation.name in _COMPARED and len(operation.inputs) > 1 and operation.inputs[1].id is not None
        if not operation.arguments.get(OUTSIDE)
    }
    for one in operations:
        if one.name in _COMPARED and len(one.inputs) > 1 and one.inputs[1].id in compared:
            gradient, value, *rest = one.inputs
            yield replace(one, inputs=(gradient, compared[value.id], *rest))
            continue
        yield one
        if one.phase == "forward" and not is_free(one):
            for tensor in one.outputs:
                if tensor.id in compared:
                    yield replace(one, name=COMPARISON, inputs=(tensor,), outputs=(compared[tensor.id],), arguments={})


_POOLED: Final = "aten::max_pool2d_with_indices"


def _with_pool_gradient(operation: Operation) -> Operation:
    """Let a kernel compute the backward pass of max pooling; a library does if many windows overlap."""
    if operation.name != f"{_POOLED}_backward" or len(operation.inputs) != 3:
        return operation
    kernel, step = (operation.arguments.get(name) for name in ("kernel_size", "stride"))
    step = step or kernel
    if not isinstance(kernel, list | tuple) or not isinstance(step, list | tuple):
        return operation
    windows = math.prod(
        max(max(place // each - max(0, (place - size) // each), 1) for place in range(2 * size))
        for size, each in zip(kernel, step, strict=False)
    )
    dilation = operation.arguments.get("dilation", 1)
    is_whole = all(each == 1 for each in (dilation if isinstance(dilation, list | tuple) else (dilation,)))
    gradient, _image, places = operation.inputs
    if windows > LARGEST_WINDOW or not is_whole:
        return operation
    return replace(operation, name=POOL_GRADIENT, inputs=(gradient, places))


def _reduces_long_rows(operation: Operation) -> bool:
    """Return whether an operation reduces over all samples, or more elements at once than a kernel keeps."""
    if "batch_norm" in operation.name:
        return operation.arguments.get("training") is not False
    small = min((tensor.elements for tensor in operation.outputs[1:] or operation.outputs), default=1)
    if operation.name.endswith("layer_norm_backward"):  # its other results: gradients of weights
        return int(math.prod(operation.arguments.get("normalized_shape", (1,)))) > LONGEST_ROW_IN_A_KERNEL
    if operation.name.endswith("group_norm_backward"):
        return True
    return operation.inputs[0].elements > LONGEST_ROW_IN_A_KERNEL * max(small, 1)


def _ends_kernel(operation: Operation) -> bool:
    """Return whether later operations must wait for the result (statistics, scans, reductions of long rows)."""
    if operation.name in (STATISTICS, COLUMN_SUMS, POOL_GRADIENT) or operation.name in _SCANS:
        return True
    return operation.name in REDUCTIONS and (_reduces_long_rows(operation) or _reduces_outer_sides(operation))


def _reduces_outer_sides(operation: Operation) -> bool:
    """Return whether a reduction is over elements that are not adjacent, so that a block does not contain the result.

    In KernelBench, compiled RMS norms over channels take three passes on all four GPUs (training data).
    """
    sides, dimensions = operation.arguments.get("dim"), len(operation.inputs[0].shape)
    listed = sides if isinstance(sides, list | tuple) else (sides,)
    inner = {side % dimensions for side in listed if isinstance(side, int) and dimensions}
    return bool(inner) and dimensions - 1 not in inner


def _without_biases(operations: tuple[Operation, ...], trace: Trace) -> tuple[Operation, ...]:
    """Remove the bias of each convolution whose result a fused kernel reads next, because that kernel adds the bias."""
    computing = [index for index, operation in enumerate(operations) if not _is_left_out(operation)]
    changed = list(operations)
    for index, following in pairwise(computing):
        convolution, reader = operations[index], operations[following]
        if convolution.name != "aten::convolution" or len(convolution.inputs) < 3 or not convolution.outputs:
            continue
        reads_it = any(tensor.id == convolution.outputs[0].id for tensor in reader.inputs)
        if reads_it and _is_pointwise(reader, trace):
            changed[index] = replace(convolution, inputs=convolution.inputs[:2])
    return tuple(changed)


LAYOUT_SHARES: Final = {"grouped": 1.358, "small": 0.783, "in_out": 0.725, "default": 0.823}
"""Inductor's assumed time of a convolution without gradients in channels-last layout, relative to channels first.

Inductor chooses channels last if this reduces the weighted FLOPs (`GraphLowering.decide_layout_opt`)."""


def _prefers_channels_last(operations: Sequence[Operation]) -> bool:
    """Return whether Inductor chooses channels-last layout. The rules differ between inference and training."""
    forward = [one for one in operations if one.name == "aten::convolution" and len(one.inputs) > 1 and one.outputs]
    if not forward:
        return False
    kinds = [_layout_kind(convolution) for convolution in forward]
    if any(operation.phase == "backward" for operation in operations):
        return not {"grouped", "in_out"} & set(kinds) and set(kinds) != {"small"}
    flops = [_convolution_flops(convolution) for convolution in forward]
    weighted = sum(LAYOUT_SHARES[kind] * each for kind, each in zip(kinds, flops, strict=True))
    return weighted <= sum(flops)


def _layout_kind(convolution: Operation) -> str:
    """Return the kind of a convolution in Inductor's layout rules, a key of `LAYOUT_SHARES`."""
    most, least, *sides = convolution.inputs[1].shape
    if int(convolution.arguments.get("groups", 1)) > 1 and least > 1:
        return "grouped"
    if max(most, least) <= SMALL_CHANNELS:
        return "small"
    return "in_out" if 2 * most <= least and sides[0] > 1 else "default"


SMALL_CHANNELS: Final = 64  # Number of channels up to which Inductor counts a convolution as small


def _convolution_flops(convolution: Operation) -> float:
    """Return the multiplications: positions of the output (transposed: of the input) times elements of the filter."""
    spread = convolution.inputs[0] if convolution.arguments.get("transposed") else convolution.outputs[0]
    return spread.elements / max(spread.shape[1], 1) * convolution.inputs[1].elements


def _strided_rows(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Mark each softmax along a spatial dimension of channels-last images, whose rows no kernel keeps."""
    laid: set[int | None] = set()
    for operation in operations:
        follows = not is_free(operation) and any(tensor.id in laid for tensor in operation.inputs)
        if follows or _convolves_images(operation):
            laid |= {tensor.id for tensor in operation.outputs if len(tensor.shape) == len("NCHW")}
        if follows and operation.name in _SOFTMAXES and int(operation.arguments.get("dim", -1)) % len("NCHW") > 1:
            operation = replace(operation, arguments={**operation.arguments, STRIDED: True})
        yield operation


_SOFTMAXES: Final = frozenset({"aten::_softmax", "aten::_log_softmax"})


def _in_channels_last(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Convert 2-d convolutions to channels-last layout.

    Kernels between convolutions write the layout that the next convolution needs. Images and filters from outside are
    copied first. If no operation reads the result of a convolution, the result is copied back.
    """
    read = {tensor.id for operation in operations for tensor in operation.inputs}
    written: set[int | None] = set()
    laid: list[Operation] = []
    for operation in operations:
        if _convolves_images(operation) and not operation.arguments.get(CHANNELS_LAST):
            position, result = IMAGES_AT[operation.name], operation.outputs[:1]
            images, filters = operation.inputs[position : position + 2]
            for tensor in (images, *((filters,) if _has_layout(filters) else ())):
                if tensor.id not in written:
                    laid.append(_copied(operation, tensor))
                    written.add(tensor.id)
            laid.append(replace(operation, arguments={**operation.arguments, CHANNELS_LAST: True}))
            if operation.phase == "forward" and result and result[0].id not in read:
                laid.append(_copied(operation, result[0]))
        else:
            laid.append(operation)
        written |= {tensor.id for tensor in operation.outputs}
    return tuple(laid)


def _copied(near: Operation, tensor: TensorInfo) -> Operation:
    return replace(near, name="aten::clone", inputs=(tensor,), outputs=(tensor,), arguments={})


def _convolves_images(operation: Operation) -> bool:
    position = IMAGES_AT.get(operation.name)
    return position is not None and len(operation.inputs) > position and len(operation.inputs[position].shape) == 4


def _has_layout(filters: TensorInfo) -> bool:
    """Return whether channels last changes the order of the filters: more than one channel and more than one tap."""
    _, channels, *sides = filters.shape
    return channels > 1 and math.prod(sides) > 1


def _is_left_out(operation: Operation) -> bool:
    """Return whether an operation runs no kernel, or only computes a scalar, such as the number of batches."""
    tensors = (*operation.inputs, *operation.outputs)
    return is_free(operation) or (bool(tensors) and all(not tensor.shape for tensor in tensors))


MOST_OPERATIONS_BETWEEN: Final = 64
"""Largest distance of operations that Inductor fuses although others run in between (`are_long_distant_nodes`)."""


@dataclass(slots=True)
class _Group:
    """Operations of one fused kernel."""

    places: list[int] = field(default_factory=list)  # Places of the operations in the step
    # Number of elements of each tensor from outside that the kernel reads
    read: dict[int | None, int] = field(default_factory=dict)
    written: set[int | None] = field(default_factory=set)  # Tensors that the kernel computes

    def add(self, unit: Sequence[int], operations: Iterable[Operation]) -> None:
        self.places += unit
        for operation in operations:
            self.read |= {one.id: one.elements for one in operation.inputs if one.id not in self.written}
            self.written |= {tensor.id for tensor in operation.outputs}

    def shares(self, operations: Iterable[Operation]) -> bool:
        """Return whether an operation reads a result or the largest input of the group, which is then loaded once."""
        largest = max(self.read.values(), default=0)
        return any(
            tensor.id in self.written or (self.read.get(tensor.id) == largest == tensor.elements)
            for operation in operations
            for tensor in operation.inputs
        )

    def could_run(self, operations: Iterable[Operation], made: Mapping[int | None, int]) -> bool:
        """Return whether the operations could run with the group: what they read existed then, or they make it."""
        own = {tensor.id for operation in operations for tensor in operation.outputs} | self.written
        inputs = {tensor.id for operation in operations for tensor in operation.inputs} - own
        return all(made.get(number, -1) < self.places[0] for number in inputs)


def _groups(trace: Trace, region_of: Region) -> Iterator[list[int]]:
    """Yield the operations of each fused kernel. Each operation reads a tensor that its group already read or wrote.

    Statistics are the last operation of a kernel, because their input must be read again. Pooling is the first
    operation of a kernel; a later position would compute the pooling's input several times. The forward and the
    backward pass are compiled separately, as is each region. If what an operation reads existed before, it joins an
    earlier kernel: the two gradients of a gated activation are one, although a matmul runs in between.
    """
    groups: list[_Group] = []
    made: dict[int | None, int] = {}
    is_open = False

    def follows(group: _Group, first: Operation) -> bool:
        last = trace.operations[group.places[-1]]
        is_same = last.phase == first.phase and region_of(last) == region_of(first)
        return is_same and not _ends_kernel(last) and "pool" not in first.name and first.name != COLUMN_SUMS

    for unit in _units(trace.operations):
        operations = [trace.operations[index] for index in unit]
        joins = all(_is_pointwise(operation, trace) for operation in operations)
        near = [group for group in groups[-1:] if is_open]
        if joins and not any(map(_ends_kernel, operations)):
            near += [
                group
                for group in reversed(groups)
                if unit[0] - group.places[-1] <= MOST_OPERATIONS_BETWEEN and group.could_run(operations, made)
            ]
        group = next((one for one in near if joins and follows(one, operations[0]) and one.shares(operations)), None)
        is_open = joins and (group is None or (is_open and group is groups[-1]))
        if joins and group is None:
            group = _Group()
            groups.append(group)
        if group is not None:
            group.add(unit, operations)
        made |= {tensor.id: index for index in unit for tensor in trace.operations[index].outputs}
    yield from (group.places for group in groups if _is_worth_fusing(group.places, trace))


def _units(operations: Sequence[Operation]) -> Iterator[list[int]]:
    """Yield the operations that run kernels; those that one of them runs again belong to it."""
    unit: list[int] = []
    for index, operation in enumerate(operations):
        if not _is_left_out(operation):
            unit.append(index)
            if not operation.arguments.get(RUN_AGAIN):
                yield unit
                unit = []


def _is_worth_fusing(group: Sequence[int], trace: Trace) -> bool:
    """Return whether fusion is faster than eager mode: several operations, or one with several or slow kernels."""
    if len(group) != 1:
        return bool(group)
    operation = trace.operations[group[0]]
    shapes = translate(operation, trace.flags)
    is_own = operation.name in _OWN or operation.name in _SCANS
    is_slow = any(operation_spec(shape.operation).latency is not None for shape in shapes)
    return is_own or len(shapes) > 1 or is_slow


def _is_pointwise(operation: Operation, trace: Trace) -> bool:
    if operation.phase not in ("forward", "backward") or not operation.outputs:
        return False
    if any(tensor.id is None or is_complex(tensor) for tensor in (*operation.inputs, *operation.outputs)):
        return False
    if operation.name in _OWN:
        return True
    if (
        operation.name in LOOK_UPS
        or operation.arguments.get(OUTSIDE)
        or any(word in operation.name for word in _GATHERS)
    ):
        return False
    if "pool" in operation.name and not _is_small_window(operation):
        return False
    if _is_joined_apart(operation):
        return False
    if "softmax" in operation.name and operation.outputs[0].shape and _row_length(operation) > LONGEST_ROW_IN_A_KERNEL:
        return False
    shapes = translate(operation, trace.flags)
    return bool(shapes) and all(operation_spec(shape.operation).units == "vector" for shape in shapes)


def _row_length(operation: Operation) -> int:
    shape, dimension = operation.inputs[0].shape, int(operation.arguments.get("dim", -1))
    return shape[dimension] if -len(shape) <= dimension < len(shape) else 1


def _is_small_window(operation: Operation) -> bool:
    """Return whether the window is small enough for Inductor to write a pooling kernel."""
    kernel = operation.arguments.get("kernel_size")
    dilation = operation.arguments.get("dilation", 1)
    if operation.phase != "forward" or not isinstance(kernel, list | tuple):
        return False
    if "max_pool3d" in operation.name:  # until torch 2.8, Inductor leaves max_pool3d to PyTorch
        return False
    whole = all(each == 1 for each in (dilation if isinstance(dilation, list | tuple) else (dilation,)))
    return whole and math.prod(kernel) <= LARGEST_WINDOW


def _kernel(
    operations: Sequence[Operation],
    *,
    places: Sequence[int],
    readers: Mapping[int | None, Sequence[int]],
    made: Mapping[int | None, TensorInfo],
    views: Mapping[tuple[int | None, tuple[int, ...]], int],
) -> Operation:
    """Merge operations into one fused kernel.

    Args:
        operations: Operations of the kernel.
        places: Their places in the step.
        readers: Places of the operations that read a tensor.
        made: Tensors as they were made.
        views: Number of views of a tensor with a shape.
    """
    times = Counter((tensor.id, tensor.shape) for operation in operations for tensor in operation.inputs)

    def whole(tensor: TensorInfo) -> TensorInfo:
        """Return the tensor that an expanded view shows, or the parts of a tensor that several views show."""
        base, key = made.get(tensor.id, tensor), (tensor.id, tensor.shape)
        if base.elements < tensor.elements:
            return base
        parts = min(times[key], views.get(key, 1))
        if parts < 2 or base.elements == tensor.elements:
            return tensor
        return base if base.elements <= parts * tensor.elements else replace(tensor, shape=(parts, *tensor.shape))

    read: dict[int | None, TensorInfo] = {}
    written: dict[int | None, TensorInfo] = {}
    for operation in operations:
        read |= {tensor.id: whole(tensor) for tensor in operation.inputs if tensor.id not in written | read}
        written |= {tensor.id: tensor for tensor in operation.outputs}
    # A tensor that no later operation of this step reads may still be a result, or be kept for the next step.
    later = {number: [place for place in readers.get(number, ()) if place >= places[0]] for number in written}
    used = tuple(one for number, one in written.items() if not later[number] or not {*later[number]} <= {*places})
    names = {operation.name for operation in operations}
    if PICKS_WORDS in names and not names & {STATISTICS, ROW_STATISTICS} and all(one.elements == 1 for one in used):
        words = next(operation.inputs[1] for operation in operations if operation.name == PICKS_WORDS)
        for number, source in read.items():
            read[number] = replace(source, shape=words.shape) if source.elements > words.elements else source
    own = next((operation for operation in operations if not operation.arguments.get(RUN_AGAIN)), operations[0])
    return replace(
        operations[0],
        name=FUSED,
        module=own.module,
        inputs=tuple(read.values()),
        outputs=used,
        arguments={"operations": [operation.name for operation in operations]},
    )
