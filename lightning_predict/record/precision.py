"""Names of precisions, autocast's lists of operations, and the what-if of training in mixed precision.

`precision_of` parses Lightning's names. `in_precision` converts a Trace to the dtypes under autocast. Matmuls,
convolutions, attention and recurrent layers, with their backward passes, read and write 16-bit tensors. Layer norm,
softmax and losses use float32. All other operations use the widest dtype of their inputs, so 16 bits propagate through
batch norm, activations, additions and pooling. Casts between 16 bits and float32 are added. The lists are torch's
(`ATen/autocast_mode.h`, release 2.13), with the names of operations below autograd. `linear`, `matmul` and `einsum` are
covered by the matmuls inside them. Example::

    half = in_precision(trace, "bfloat16")
    lp.predict(half, ["L4"])["L4"].iteration_seconds
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware.records import Gpu
from lightning_predict.record.signatures import ATTENTION, FUSED_RMS_NORM, RECURRENT, RMS_NORM
from lightning_predict.record.trace import Operation, TensorInfo, Trace


def named(text: str) -> frozenset[str]:
    """Return the qualified names of the operations that are listed in a text."""
    return frozenset(f"aten::{name}" for name in text.split())


LOWER: Final = named(  # Operations that run in 16 bits
    "convolution _convolution conv_tbc _prelu_kernel addmm addmv addr mm mv addbmm baddbmm bmm linear "
    "_thnn_fused_lstm_cell _thnn_fused_gru_cell"
) | {ATTENTION, *RECURRENT}

LOWER_BACKWARD: Final = LOWER | named("convolution_backward _prelu_kernel_backward")

FLOAT32: Final = named(  # Operations that run in float32
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus native_layer_norm "
    "native_group_norm nll_loss_forward nll_loss2d_forward smooth_l1_loss huber_loss mse_loss soft_margin_loss "
    "multilabel_margin_loss_forward multi_margin_loss binary_cross_entropy_with_logits dist _pdist_forward "
    "_cdist_forward renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d "
    "_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
    "_upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa _softmax _log_softmax"
) | {RMS_NORM}

FLOAT32_BACKWARD: Final = named(
    "native_layer_norm_backward native_group_norm_backward nll_loss_backward nll_loss2d_backward mse_loss_backward "
    "smooth_l1_loss_backward huber_loss_backward soft_margin_loss_backward multilabel_margin_loss_backward "
    "multi_margin_loss_backward softplus_backward _softmax_backward_data _log_softmax_backward_data _pdist_backward "
    "_cdist_backward"
)

SUMS: Final = named("sum prod cumsum cumprod linalg_vector_norm")  # From 16 bits, they return float32 without a dtype

WIDEST: Final = named(  # Operations that run in the widest dtype of their tensors
    "addcdiv addcmul atan2 linalg_cross dot vdot grid_sampler_2d grid_sampler_3d index_put scatter_add"
)

BANNED: Final = "aten::binary_cross_entropy"


PRECISIONS: Final = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Precision:
    """A precision of Lightning's Trainer, with the dtype of the parameters and the autocast dtype of matmuls."""

    word: str
    dtype: str
    autocast: str | None = None


_WORDS_OF_PRECISION: Final = (
    Precision("bf16-mixed", "float32", "bfloat16"),
    Precision("16-mixed", "float32", "float16"),
    Precision("32-true", "float32"),
    Precision("bf16-true", "bfloat16"),
    Precision("16-true", "float16"),
    Precision("64-true", "float64"),
)

_SHORT_WORDS: Final = {"32": "32-true", "64": "64-true", "16": "16-mixed", "bf16": "bf16-mixed"}
"""Lightning's older names and their current equivalents."""


def precision_of(word: str | int) -> Precision:
    """Parse the name of a precision, as Lightning's Trainer does.

    Args:
        word: Name, for example `bf16-mixed`, `16-mixed`, `32-true` or `bf16-true`.
    """
    name = _SHORT_WORDS.get(str(word), str(word))
    for precision in _WORDS_OF_PRECISION:
        if precision.word == name:
            return precision
    known = ", ".join(precision.word for precision in _WORDS_OF_PRECISION)
    raise InvalidArgumentError(f"precision={word!r} is not known; expected one of {known}, as in Lightning's Trainer.")


_WORDS: Final = ("attention", "lstm", "gru", "rnn")
"""Substrings of other operations that autocast runs in 16 bits: backward passes of whole calls."""

_BATCH_NORM: Final = "batch_norm"  # Part of the names of norms with float32 parameters and statistics in 16 bits

_FLOAT32_OPERATIONS: Final = FLOAT32 | FLOAT32_BACKWARD | {FUSED_RMS_NORM, f"{FUSED_RMS_NORM}_backward"}

_WEIGHT_AT: Final[Mapping[str, int]] = {
    "aten::convolution": 1,
    "aten::_convolution": 1,
    "aten::cudnn_convolution": 1,
    "aten::convolution_backward": 2,
    "aten::cudnn_convolution_backward": 2,
    "aten::addmm": 2,
}
"""Matmuls and convolutions of layers, with the position of the weight among their tensors."""

_PRODUCTS: Final = named("addmm mm bmm baddbmm")  # Products whose backward passes are products with one operand

_LOG_SOFTMAX_BACKWARD: Final = "aten::_log_softmax_backward_data"

_READ_HALF: Final = frozenset({"aten::_softmax", "aten::_log_softmax"})
"""Operations that read float16 and return float32 without a copy."""

_READ_HALF_BACKWARD: Final = frozenset({"aten::_softmax_backward_data", _LOG_SOFTMAX_BACKWARD})


def is_cast_by_autocast(operation: Operation) -> bool:
    """Return whether autocast runs the operation in 16 bits, in the forward or backward pass."""
    if operation.phase == "optimizer":
        return False
    names = LOWER if operation.phase == "forward" else LOWER_BACKWARD
    return operation.name in names or any(word in operation.name for word in _WORDS)


def in_float16(trace: Trace) -> Trace:
    """Return a step under autocast in bfloat16 as under autocast in float16, without the scaler of the loss."""

    def changed(tensor: TensorInfo) -> TensorInfo:
        return replace(tensor, dtype="float16") if tensor.dtype == "bfloat16" else tensor

    operations = tuple(
        replace(
            operation,
            inputs=tuple(map(changed, operation.inputs)),
            outputs=tuple(map(changed, operation.outputs)),
            # A cast, a sum and a recurrent layer have a dtype of their own.
            arguments={word: "float16" if own == "bfloat16" else own for word, own in operation.arguments.items()},
        )
        for operation in trace.operations
    )
    flags = replace(trace.flags, autocast_dtype="float16")
    return replace(trace, operations=tuple(_without_softmax_casts(operations)), flags=flags)


def _without_softmax_casts(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Yield the operations; a softmax reads float16 and its backward pass writes it, instead of a cast to bfloat16."""
    reads = Counter([tensor.id for operation in operations for tensor in operation.inputs])
    casts = {one.outputs[0].id: one for one in operations if one.name == "aten::_to_copy" and one.outputs}
    read = {operation.inputs[0].id for operation in operations if operation.name in _READ_HALF and operation.inputs}
    made = {one.outputs[0].id for one in operations if one.name in _READ_HALF_BACKWARD and one.outputs}
    before = {own: cast for own, cast in casts.items() if own in read and reads[own] == 1}
    before = {own: cast for own, cast in before.items() if cast.inputs[0].dtype == "float16"}
    after = {cast.inputs[0].id: cast for cast in casts.values() if cast.outputs[0].dtype == "float16"}
    after = {own: cast for own, cast in after.items() if own in made and reads[own] == 1}
    dropped = {id(cast) for cast in (*before.values(), *after.values())}
    for original in operations:
        if original.inputs and original.inputs[0].id in before and original.name in _READ_HALF:
            tensors, arguments = before[original.inputs[0].id].inputs, {**original.arguments, "half_to_float": True}
            yield replace(original, inputs=tensors, arguments=arguments)
        elif original.outputs and original.outputs[0].id in after and original.name in _READ_HALF_BACKWARD:
            arguments = {**original.arguments, "input_dtype": "float16"}
            yield replace(original, outputs=after[original.outputs[0].id].outputs, arguments=arguments)
        elif id(original) not in dropped:
            yield original


def emulates_bfloat16(gpu: Gpu) -> bool:
    """Return whether a GPU emulates bfloat16 more slowly than it computes float16: before Ampere, as on a T4."""
    emulates = "bfloat16" in gpu.emulated_dtypes or gpu.peak("bfloat16") is None
    return emulates and (gpu.peak("float16") or 0.0) > (gpu.peak("bfloat16") or 0.0)


def in_precision(trace: Trace, dtype: str) -> Trace:
    """Return a float32 trace as under autocast, without measurements, which are only valid for the old precision."""
    if dtype not in PRECISIONS:
        raise InvalidArgumentError(f"dtype={dtype!r} is not an autocast precision; expected {' or '.join(PRECISIONS)}.")
    if trace.flags.autocast_dtype is not None:
        raise InvalidArgumentError(
            f"The trace was recorded under autocast in {trace.flags.autocast_dtype}; record it in float32 first."
        )
    return replace(
        trace.untimed(),
        operations=tuple(_Autocast(trace, dtype).operations()),
        gpu_reported_name=None,
        gpu_memory_bytes=None,
        memory=replace(trace.memory, peak_bytes=None, reserved_bytes=None),
        flags=replace(trace.flags, autocast_dtype=dtype),
        notes=(*trace.notes, f"What if in {dtype}: as under autocast, with the casts that follow from its lists."),
    )


class _Autocast:
    """Converts the operations of a trace to the dtypes of autocast, in order."""

    def __init__(self, trace: Trace, dtype: str) -> None:
        self._trace = trace
        self._dtype = dtype
        self._half: set[int] = set()
        numbers = [tensor.id for operation in trace.operations for tensor in (*operation.inputs, *operation.outputs)]
        self._next = 1 + max((number for number in numbers if number is not None), default=0)
        self._produced: set[int | None] = set()
        self._made: set[int | None] = set()  # produced, but not as a view
        self._copies: dict[tuple[int, str], TensorInfo] = {}
        shapes = {parameter.shape for parameter in trace.parameters}
        self._weights = shapes | {shape[::-1] for shape in shapes}
        losses = (operation for operation in trace.operations if operation.name.startswith("aten::nll_loss"))
        self._kept_softmax = {tensor.id for loss in losses for tensor in loss.inputs}
        self._products: set[int | None] = set()  # results of forward products; a decomposed layer adds its bias to one
        self._lowered: set[int | None] = set()  # activations in float32 that forward operations cast to 16 bits
        self._multiplied: set[int | None] = set()  # other operands of products with such activations
        self._of_half: set[int | None] = set()  # tensors of forward operations whose result has 16 bits
        self._of_wide: set[int | None] = {None}  # those of other forward operations
        self._unrecorded: set[tuple[int, ...]] = set()  # shapes of gradients of whole calls, which have no outputs
        self._read_half: set[int | None] = set()  # float32 results of softmax that read float16
        self._half_sums, self._summands = _gradient_sums_for_products(trace.operations)
        made = (operation for operation in trace.operations if operation.name == "aten::zeros")
        self._blank = {tensor.id for one in made for tensor in one.outputs}  # masks in the dtype of the query
        # A profiler records no outputs, so the data flow is unknown. Activations between matmuls are then assumed to be
        # 16-bit.
        self._is_blind = not any(operation.outputs for operation in trace.operations)

    def operations(self) -> Iterator[Operation]:
        """Yield the operations, with the casts between them."""
        for operation in self._trace.operations:
            operation = replace(operation, kernels=(), host_start_seconds=None, host_seconds=None)
            if operation.phase == "optimizer":
                yield operation  # gradients are cast back before the optimizer
            elif is_cast_by_autocast(operation) or self._adds_bias(operation) or self._keeps_gradient(operation):
                yield from self._in_half(operation)
            elif operation.name in _FLOAT32_OPERATIONS and not self._keeps_softmax(operation):
                yield from self._in_float32(operation)
            else:
                yield from self._in_widest(operation)
            self._produced |= {tensor.id for tensor in operation.outputs}
            self._made |= {tensor.id for tensor in operation.outputs} - {tensor.id for tensor in operation.inputs}

    def _adds_bias(self, operation: Operation) -> bool:
        """Return whether a linear layer adds its bias, which autocast casts together with the weight."""
        if operation.phase != "forward" or operation.name != "aten::add" or len(operation.inputs) < 2:
            return False
        product, bias = operation.inputs[:2]
        return product.id in self._products and len(bias.shape) == 1

    def _keeps_softmax(self, operation: Operation) -> bool:
        """Return whether the log-softmax of a cross entropy uses the dtype of its input. Only the loss uses float32."""
        return operation.name == "aten::_log_softmax" and any(
            tensor.id in self._kept_softmax for tensor in operation.outputs
        )

    def _keeps_gradient(self, operation: Operation) -> bool:
        """Return whether the backward pass of such a log-softmax uses the dtype of the input, too."""
        return operation.name == _LOG_SOFTMAX_BACKWARD and any(
            tensor.id in self._kept_softmax & self._half for tensor in operation.inputs[1:]
        )

    def _now(self, tensor: TensorInfo) -> TensorInfo:
        """Return the tensor with its dtype at this point of the step."""
        flows = self._is_blind and len(tensor.shape) > 1 and tensor.shape not in self._weights
        is_half = (flows or tensor.id in self._half) and tensor.dtype == "float32"
        return replace(tensor, dtype=self._dtype) if is_half else tensor

    def _saved(self, tensor: TensorInfo) -> TensorInfo:
        """Return the tensor that the forward pass saved: the float32 copy, if a float32 operation made a copy."""
        known = None if tensor.id is None else self._copies.get((tensor.id, "float32"))
        return self._now(tensor) if known is None else replace(tensor, id=known.id)

    def _blindly(self, operation: Operation) -> Iterator[Operation]:
        """Cast all inputs of a matmul. Add the copy of the weight before it, or of the weight gradient after it."""
        inputs = tuple(
            replace(tensor, dtype=self._dtype) if tensor.dtype == "float32" else tensor for tensor in operation.inputs
        )
        changed = replace(operation, inputs=inputs)
        place = _WEIGHT_AT.get(operation.name)
        weight = None if place is None or len(operation.inputs) <= place else operation.inputs[place]
        if weight is None or weight.dtype != "float32":
            yield changed
        elif operation.phase == "forward":
            yield from (_copy(operation, weight, replace(weight, dtype=self._dtype, id=None)), changed)
        else:
            yield from (changed, _copy(operation, replace(weight, dtype=self._dtype, id=None), weight))

    def _in_half(self, operation: Operation) -> Iterator[Operation]:
        if self._is_blind:
            yield from self._blindly(operation)
            return
        inputs = []
        now = tuple(map(self._now, operation.inputs))
        if operation.phase == "forward":
            self._note_casts(operation, now)
        cast_weights = {number for number, _ in self._copies} - self._made
        reads_weight = operation.name in _PRODUCTS and any(tensor.id in cast_weights for tensor in now)
        wide = set() if reads_weight else self._weights  # a gradient of an activation may have the shape of a weight
        wide = wide | {tensor.shape for tensor in now if tensor.id in self._lowered}
        if operation.name in _PRODUCTS and any(tensor.id in self._multiplied for tensor in now):
            wide |= {tensor.shape for tensor in operation.outputs}
        for index, tensor in enumerate(now):
            if index == 3 and operation.arguments.get("attn_mask"):  # a mask of another dtype is not cast
                inputs.append(replace(tensor, dtype=self._dtype) if tensor.id in self._blank else tensor)
                continue
            copy, cast = self._cast(tensor, self._dtype, operation)
            if cast is not None:
                yield cast
            inputs.append(copy)
        if operation.phase == "backward" and not operation.outputs:
            self._unrecorded |= {tensor.shape for tensor in now}
        outputs, after = [], []
        for tensor in operation.outputs:
            result = replace(tensor, dtype=self._dtype) if tensor.dtype == "float32" else tensor
            is_wide = tensor.shape in wide and tensor.id not in self._summands
            if operation.phase == "backward" and tensor.dtype == "float32" and is_wide:
                result = replace(result, id=self._number())
                after.append(_copy(operation, result, tensor))  # the gradient in the dtype of its tensor
            elif tensor.id is not None and tensor.dtype == "float32":
                self._half.add(tensor.id)
            outputs.append(result)
        yield replace(operation, inputs=tuple(inputs), outputs=tuple(outputs))
        yield from after

    def _note_casts(self, operation: Operation, now: tuple[TensorInfo, ...]) -> None:
        """Note which activations this operation casts, because their gradients are cast back."""
        lowered = {one.id for one in now if one.dtype == "float32" and one.id in self._produced and one.shape} - {None}
        if operation.name in _PRODUCTS:
            self._products |= {tensor.id for tensor in operation.outputs}
            one, other = (tensor.id for tensor in now[-2:])
            self._multiplied |= {back for cast, back in ((one, other), (other, one)) if cast in lowered}
        else:
            self._lowered |= lowered

    def _in_float32(self, operation: Operation) -> Iterator[Operation]:
        inputs = []
        for tensor in map(self._now, operation.inputs):
            copy, cast = tensor, None
            if not (operation.name in _READ_HALF and self._dtype == "float16"):
                copy, cast = self._cast(tensor, "float32", operation)
            elif tensor.dtype == self._dtype:
                self._read_half |= {tensor.id for tensor in operation.outputs}
            if cast is not None:
                yield cast
            inputs.append(copy)
        self._half -= {tensor.id for tensor in operation.outputs if tensor.id is not None}
        if any(tensor.id in self._read_half for tensor in operation.inputs[1:2]):  # the gradient is written in float16
            self._half |= {tensor.id for tensor in operation.outputs if tensor.id is not None}
            yield replace(operation, inputs=tuple(inputs), outputs=tuple(map(self._now, operation.outputs)))
            return
        was_half = operation.phase == "backward" and any(tensor.id in self._half for tensor in operation.inputs[1:2])
        if not was_half or not operation.outputs or operation.outputs[0].id is None:
            yield replace(operation, inputs=tuple(inputs))
            return
        first = replace(operation.outputs[0], id=self._number())
        yield replace(operation, inputs=tuple(inputs), outputs=(first, *operation.outputs[1:]))
        self._half.add(operation.outputs[0].id)
        yield _copy(operation, first, self._now(operation.outputs[0]))  # the gradient in the dtype of its tensor

    def _in_widest(self, operation: Operation) -> Iterator[Operation]:
        same = {tensor.id for tensor in operation.inputs} & {tensor.id for tensor in operation.outputs}  # a view
        is_saved = operation.phase == "backward" and not same
        new = (
            tensor
            for tensor in operation.inputs
            if tensor.shape in self._unrecorded and tensor.id not in self._produced
        )
        self._half |= {tensor.id for tensor in new if tensor.id is not None}
        inputs = tuple(map(self._saved if is_saved else self._now, operation.inputs))
        is_bias = operation.phase == "backward" and self._is_bias_gradient(operation)
        if is_bias or {tensor.id for tensor in operation.outputs} & self._half_sums:
            casts = [self._cast(tensor, self._dtype, operation) for tensor in inputs]
            inputs = tuple(tensor for tensor, _ in casts)
            yield from (cast for _, cast in casts if cast is not None)
        elif is_saved and inputs and any(tensor.id in self._of_half - self._of_wide for tensor in inputs[1:]):
            # autograd casts the gradient to the dtype of the result, as after the sum of 16-bit and float32 branches
            gradient, cast = self._cast(inputs[0], self._dtype, operation)
            inputs = (gradient, *inputs[1:])
            yield from () if cast is None else (cast,)
        deciding = inputs[:1] if _BATCH_NORM in operation.name else inputs
        kinds = {tensor.dtype for tensor in deciding if tensor.shape} & {"float32", self._dtype}
        is_half = kinds == {self._dtype} and not (operation.phase == "forward" and operation.name in SUMS)
        read = {tensor.id for tensor in inputs}
        for index, tensor in enumerate(operation.outputs):
            is_large = index == 0 or _BATCH_NORM not in operation.name
            if tensor.id is not None and tensor.id not in read and tensor.dtype == "float32":
                (self._half.add if is_half and is_large else self._half.discard)(tensor.id)
        outputs = tuple(map(self._now, operation.outputs))
        if operation.phase == "forward" and outputs:
            tensors = {tensor.id for tensor in (*inputs, *outputs) if tensor.shape}
            (self._of_half if outputs[0].dtype == self._dtype else self._of_wide).update(tensors)
        if not is_bias or outputs[0].dtype != self._dtype:
            yield replace(operation, inputs=inputs, outputs=outputs)
            return
        result = replace(outputs[0], id=self._number())
        self._half.discard(outputs[0].id)
        yield replace(operation, inputs=inputs, outputs=(result,))
        yield _copy(operation, result, operation.outputs[0])

    def _is_bias_gradient(self, operation: Operation) -> bool:
        """Return whether a backward operation sums the gradient of a product into the gradient of a cast bias."""
        if operation.name != "aten::sum" or not operation.outputs:
            return False
        size = tuple(length for length in operation.outputs[0].shape if length != 1)
        read = operation.inputs[0].id
        return size in self._weights and (read in self._half or (read, self._dtype) in self._copies)

    def _cast(self, tensor: TensorInfo, dtype: str, operation: Operation) -> tuple[TensorInfo, Operation | None]:
        """Return the tensor in a dtype, and the copy operation unless an earlier copy still exists."""
        others = {"float32", self._dtype} - {dtype}
        if tensor.dtype not in others or (not tensor.shape and dtype != "float32"):
            return tensor, None
        if tensor.id is None:
            return replace(tensor, dtype=dtype), None
        known = self._copies.get((tensor.id, dtype))
        if known is not None and (operation.phase == "backward" or tensor.id not in self._produced):
            return replace(tensor, dtype=dtype, id=known.id), None
        copy = replace(tensor, dtype=dtype, id=self._number())
        self._copies[tensor.id, dtype] = copy
        return copy, _copy(operation, tensor, copy)

    def _number(self) -> int:
        self._next += 1
        return self._next - 1


def _copy(operation: Operation, source: TensorInfo, result: TensorInfo) -> Operation:
    """Create the copy operation of a cast before or after an operation."""
    return replace(operation, name="aten::_to_copy", inputs=(source,), outputs=(result,), arguments={})


def _gradient_sums_for_products(operations: tuple[Operation, ...]) -> tuple[set[int | None], set[int | None]]:
    """Return sums of gradients of a product's result, and their summands. Autograd casts each to the result's dtype."""
    readers: dict[int | None, list[Operation]] = {}
    backward = [operation for operation in operations if operation.phase == "backward" and operation.outputs]
    for operation in backward:
        made = {tensor.id for tensor in operation.outputs}
        for number in {tensor.id for tensor in operation.inputs} - made:
            readers.setdefault(number, []).append(operation)
    sums: set[int | None] = set()
    for operation in reversed(backward):
        reads = readers.get(operation.outputs[0].id, [])
        if operation.name == "aten::add" and any(one.name in _PRODUCTS or one.outputs[0].id in sums for one in reads):
            is_private = all(one.name in {*_PRODUCTS, "aten::sum"} or one.outputs[0].id in sums for one in reads)
            sums |= {operation.outputs[0].id} - {None} if is_private else set()
    return sums, {number for number, reads in readers.items() if all(one.outputs[0].id in sums for one in reads)}
