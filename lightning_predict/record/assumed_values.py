"""Runs operations that need values of meta tensors, which have no values, under stated assumptions.

A mask is true, or true in a given share of its elements. A check such as `isnan(...).any()` passes. A data-dependent
size is its upper bound. A number that the code reads (`.item()`) is 1, unless the operations that produced its tensor
determine the value: `torch.zeros(8).sum()` is 0. An unknown integer is rejected, because the integer may become a size.
One note per kind of assumption names the places in the code. Example::

    assumed = AssumedValues(recorder.operations, storage_ids.number)
    assumed.output_of("aten::nonzero", torch.ops.aten.nonzero.default, (mask,), {})   # shape (mask.numel(), mask.dim())
    assumed.notes       # ('Meta tensors have no values. Sizes that depend on them are upper bounds (train.py:12).',)
"""

from __future__ import annotations

import math
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import Any, Final

import torch

from lightning_predict.base.errors import CaptureError
from lightning_predict.base.note import ASSUMED_VALUES
from lightning_predict.record.tensors import Args, Kwargs, TorchFunction, tensors_in
from lightning_predict.record.trace import Operation, TensorInfo

_CHECKS: Final = "checks of values pass: `all` is true, `any`, `isnan` and comparisons are false"
_MASKS: Final = "masks are all true"
MASK_SHARE: Final[ContextVar[float]] = ContextVar("MASK_SHARE", default=1.0)
"""Share of the elements of a mask that is true, in the step being recorded."""

_SIZES: Final = "sizes that depend on them are upper bounds"
_NUMBERS: Final = "numbers read from them are 1"

_PLACES_SHOWN: Final = 2  # Maximum number of places in the code that a note names
_COPIED_ELEMENTS: Final = 2**24  # Maximum elements of a copy to the CPU, which is filled with ones; else rejected

_ZEROS: Final = frozenset({"aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::zero_", "aten::isnan"}) | {
    "aten::isinf"
}
_ONES: Final = frozenset({"aten::ones", "aten::ones_like", "aten::new_ones", "aten::isfinite"})
_FILLED: Final[Mapping[str, str]] = {
    "aten::full": "fill_value",
    "aten::full_like": "fill_value",
    "aten::new_full": "fill_value",
    "aten::fill_": "value",
    "aten::fill": "value",
    "aten::scalar_tensor": "s",
    "aten::masked_fill": "value",
}
"""Operations that fill a tensor with a number, with the name of the argument that holds the number."""

_KEEPS: Final = frozenset(
    f"aten::{name}"
    for name in "_to_copy clone repeat expand index gather index_select take flip roll max min mean cat stack abs "
    "masked_select copy_ constant_pad_nd tril triu".split()
)
"""Operations that keep the value of a uniform input. Zeros of `tril` and `triu` are ignored, and so is padding."""

_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    f"aten::{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_ARITHMETIC: Final[Mapping[str, Callable[[float, float], float]]] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::bitwise_and": lambda one, other: float(bool(one) and bool(other)),
    "aten::logical_and": lambda one, other: float(bool(one) and bool(other)),
    "aten::bitwise_or": lambda one, other: float(bool(one) or bool(other)),
    "aten::logical_or": lambda one, other: float(bool(one) or bool(other)),
}
_NEGATIONS: Final = frozenset({"aten::logical_not", "aten::bitwise_not"})
_UNIONS: Final = frozenset({"aten::bitwise_or", "aten::logical_or", "aten::add", "aten::cat"})
_INTERSECTIONS: Final = frozenset({"aten::bitwise_and", "aten::logical_and", "aten::mul"})
_WRITES_PART: Final = frozenset({"aten::index_put_", "aten::scatter_", "aten::index_fill_", "aten::_index_put_impl_"})

_DEEPEST: Final = 24  # Maximum number of operations to follow backwards for a value


@dataclass(frozen=True, slots=True)
class _Known:
    """Facts about the elements of a tensor."""

    value: float | None  # Value of all elements; None if they differ or are unknown
    nonzeros: int  # Upper bound on the number of elements that are not zero
    distinct: int  # Upper bound on the number of distinct values
    is_mask: bool = False  # Whether the value depends on a mask that the step received as input
    is_bound: bool = False  # Whether the value is an upper bound


class _UnknownError(Exception):
    """No assumption covers a value."""


class AssumedValues:
    """Assumed values of meta tensors that a step reads.

    Args:
        operations: Operations recorded so far.
        number: Returns the storage id of a tensor.
    """

    def __init__(self, operations: Sequence[Operation], number: Callable[[torch.Tensor], int | None]) -> None:
        self._operations = operations
        self._number = number
        self._share = MASK_SHARE.get()
        self._places: dict[str, dict[str, None]] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """One note per kind of assumption, with the first places."""
        return tuple(
            f"{ASSUMED_VALUES} {self._with_mask_share(assumption)} ({_list(list(places))})."
            for assumption, places in self._places.items()
        )

    def output_of(self, name: str, func: TorchFunction, args: Args, kwargs: Kwargs) -> Any:
        """Return the result of an operation that the meta device rejects."""
        tensors = list(tensors_in((*args, *kwargs.values())))
        if not any(tensor.device.type == "meta" for tensor in tensors):
            raise LookupError(name)
        try:
            with torch._C.DisableTorchFunction():
                return _RUNS[name](self, func, args, kwargs)
        except _UnknownError as error:
            raise LookupError(name) from error

    def _with_mask_share(self, assumption: str) -> str:
        """Name the share of true elements if it is not 1."""
        is_of_masks = assumption in (_MASKS, _SIZES) and self._share < 1
        return f"masks are true in {self._share:.3g} of their elements" if is_of_masks else assumption

    def _note(self, assumption: str) -> None:
        self._places.setdefault(assumption, {})[_place()] = None

    def _item(self, _func: TorchFunction, args: Args, _kwargs: Kwargs) -> bool | int | float:
        tensor = args[0]
        return self._scalar(tensor)

    def _scalar(self, tensor: torch.Tensor) -> bool | int | float:
        known = self._known(tensor)
        if tensor.dtype is torch.bool:
            value = known.value
            if value is None:
                value = self._expected(tensor)
            self._note(_MASKS if known.is_mask else _CHECKS)
            return bool(value)
        if known.value is not None:
            if known.is_mask or known.is_bound:
                self._note(_SIZES if known.is_bound else _MASKS)
            return int(known.value) if not tensor.dtype.is_floating_point else known.value
        if not tensor.dtype.is_floating_point:
            raise _UnknownError
        self._note(_NUMBERS)
        return 1.0

    def _expected(self, tensor: torch.Tensor) -> bool:
        """Return the result of a check in a step without exceptional values."""
        writer = self._writer(self._number(tensor), len(self._operations))
        if writer is None:
            return True  # a flag that the step received counts as a mask
        name = self._operations[writer].name
        return name == "aten::all" or name.startswith("aten::logical_or")

    def _equal(self, _func: TorchFunction, _args: Args, _kwargs: Kwargs) -> bool:
        self._note(_CHECKS)
        return True

    def _nonzero(self, _func: TorchFunction, args: Args, _kwargs: Kwargs) -> torch.Tensor:
        return torch.empty((self._count(args[0]), args[0].dim()), dtype=torch.int64, device="meta")

    def _count(self, mask: torch.Tensor) -> int:
        self._note(_SIZES)
        known = self._known(mask)
        is_shared = known.is_mask or known.value is None
        return math.ceil(known.nonzeros * self._share) if is_shared else known.nonzeros

    def _masked_select(self, _func: TorchFunction, args: Args, _kwargs: Kwargs) -> torch.Tensor:
        values, mask = args
        shape = torch.broadcast_shapes(values.shape, mask.shape)
        repeats = math.prod(shape) // max(mask.numel(), 1)
        result: torch.Tensor = values.new_empty((self._count(mask) * repeats,), device="meta")
        return result

    def _index(self, func: TorchFunction, args: Args, kwargs: Kwargs) -> torch.Tensor:
        indices: list[torch.Tensor | None] = []
        for index in args[1]:
            if index is not None and index.dtype in (torch.bool, torch.uint8) and index.device.type == "meta":
                chosen = torch.empty((self._count(index),), dtype=torch.int64, device="meta")
                indices.extend([chosen] * index.dim())
            elif index is not None and index.dtype in (torch.bool, torch.uint8):
                indices.extend(index.nonzero(as_tuple=True))
            else:
                indices.append(index)
        result: torch.Tensor = func(args[0], indices, *args[2:], **kwargs)
        return result

    def _unique(self, func: TorchFunction, args: Args, kwargs: Kwargs) -> tuple[torch.Tensor, ...]:
        """Return values, positions and counts. Positions and counts are empty unless requested."""
        values, flags = args[0], args[2:4] if "_unique2" in str(func) else args[1:3]
        self._note(_SIZES)
        count = self._known(values).distinct
        has_positions = kwargs.get("return_inverse", flags[0] if flags else False)
        has_counts = kwargs.get("return_counts", flags[1] if len(flags) > 1 else False)
        return (
            values.new_empty((count,)),
            values.new_empty(values.shape if has_positions else (0,), dtype=torch.int64),
            values.new_empty((count if has_counts else 0,), dtype=torch.int64),
        )

    def _suppressed(self, _func: TorchFunction, args: Args, _kwargs: Kwargs) -> torch.Tensor:
        """Return the indices that non-maximum suppression keeps: all boxes."""
        self._note(_SIZES)
        return torch.empty((args[0].shape[0],), dtype=torch.int64, device="meta")

    def _ctc(self, _func: TorchFunction, args: Args, _kwargs: Kwargs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the CTC loss, and the table of its forward algorithm at the upper bounds of the lengths."""
        log_probabilities, targets, lengths = args[0], args[1], args[3]
        steps, *batch, _ = log_probabilities.shape
        if isinstance(lengths, torch.Tensor):
            lengths = None if lengths.device.type == "meta" else lengths.tolist()
        if lengths is None:
            self._note(_SIZES)
        longest = max(lengths) if lengths else targets.shape[-1]
        states = 2 * longest + 1  # a blank before, between and after the labels
        return log_probabilities.new_empty(batch), log_probabilities.new_empty((*batch, steps, states))

    def _ctc_backward(self, _func: TorchFunction, args: Args, _kwargs: Kwargs) -> torch.Tensor:
        return torch.empty_like(args[1])

    def _divided(self, func: TorchFunction, args: Args, kwargs: Kwargs) -> torch.Tensor:
        """Divide a CTC loss by its lengths, which torch leaves on the CPU because their device is unknown."""
        if all(operation.name != "aten::_ctc_loss" for operation in self._operations):
            raise _UnknownError
        result: torch.Tensor = func(args[0], args[1].to("meta"), **kwargs)
        return result

    def _updated(self, _func: TorchFunction, _args: Args, _kwargs: Kwargs) -> None:
        """Run a fused update in place, which changes no shapes."""

    def _repeated(self, func: TorchFunction, args: Args, _kwargs: Kwargs) -> torch.Tensor:
        known = self._known(args[0])
        if known.value is None:
            raise _UnknownError
        self._note(_MASKS if known.is_mask else _SIZES)
        result: torch.Tensor = func(args[0], output_size=int(known.value * args[0].numel()))
        return result

    def _copied(self, _func: TorchFunction, args: Args, kwargs: Kwargs) -> torch.Tensor:
        """Return a copy on the CPU. The step may read the values of the copy."""
        source = args[0]
        if source.numel() > _COPIED_ELEMENTS:
            raise _UnknownError
        known = self._known(source)
        if known.value is None and not source.dtype.is_floating_point and source.dtype is not torch.bool:
            raise _UnknownError
        self._note(_MASKS if source.dtype is torch.bool else _NUMBERS)
        value = 1.0 if known.value is None else known.value
        return torch.full(source.shape, value, dtype=kwargs.get("dtype") or source.dtype, device="cpu")

    def _copied_into(self, _func: TorchFunction, args: Args, _kwargs: Kwargs) -> torch.Tensor:
        target, source = args[0], args[1]
        if source.device.type != "meta":
            raise _UnknownError
        target.fill_(1)
        self._note(_NUMBERS)
        result: torch.Tensor = target
        return result

    def _known(self, tensor: torch.Tensor) -> _Known:
        """Return the facts about a tensor that follow from the recorded operations."""
        info = TensorInfo(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), self._number(tensor))
        return self._facts_of(info, len(self._operations), _DEEPEST)

    def _writer(self, number: int | None, before: int) -> int | None:
        """Return the index of the last operation that wrote a storage; None for an input of the step."""
        for index in range(before - 1, -1, -1) if number is not None else ():
            operation = self._operations[index]
            if all(tensor.id != number for tensor in operation.outputs):
                continue
            is_view = not operation.name.endswith("_") and any(tensor.id == number for tensor in operation.inputs)
            if not is_view:
                return index
        return None

    def _facts_of(self, tensor: TensorInfo, before: int, depth: int) -> _Known:
        count = math.prod(tensor.shape)
        if not depth:
            return _Known(None, count, count)
        index = self._writer(tensor.id, before)
        if index is None:
            is_mask = tensor.dtype == "bool" or tensor.dtype.startswith(("int", "uint"))
            known = _Known(1.0 if tensor.dtype == "bool" else None, count, count, is_mask)
        else:
            known = self._written(self._operations[index], index, depth - 1)
        if known.value is not None:
            return replace(known, nonzeros=count if known.value else 0, distinct=min(count, 1))
        return replace(known, nonzeros=min(known.nonzeros, count), distinct=min(known.distinct, count))

    def _written(self, operation: Operation, index: int, depth: int) -> _Known:
        """Return the facts about the result of an operation."""
        name, out = operation.name, math.prod(operation.outputs[0].shape)
        inputs = operation.inputs
        base = name.removesuffix("_")

        def read(position: int) -> _Known:
            return self._facts_of(inputs[position], index, depth)

        if name in _WRITES_PART:
            before, added = read(0), math.prod(inputs[1].shape) if len(inputs) > 1 else out
            return _Known(None, before.nonzeros + added, out)
        if name in _ZEROS or name in _ONES:
            return _uniform(float(name in _ONES), out)
        if name in _FILLED and name != "aten::masked_fill":
            value = operation.arguments.get(_FILLED[name])
            return _Known(None, out, out) if value is None else _uniform(float(value), out)
        if name in ("aten::all", "aten::any"):
            whole = read(0)
            if whole.is_mask and self._share < 1:
                return _Known(float(name == "aten::any"), out, out, is_mask=True)
            # `_expected` handles unknown elements.
            return _Known(None if whole.value is None else float(bool(whole.value)), out, out, whole.is_mask)
        if name == "aten::sum":
            return _sum(read(0), inputs[0], out, self._share)
        if name in _NEGATIONS:
            whole = read(0)
            return _Known(None if whole.value is None else float(not whole.value), out, out, whole.is_mask)
        if base in _COMPARISONS or base in _ARITHMETIC:
            return self._arithmetic_result(operation, [read(position) for position in range(len(inputs))], out)
        if name in _KEEPS and inputs:
            return _selected(name, operation, read, out)
        return _Known(None, out, out)

    def _arithmetic_result(self, operation: Operation, parts: list[_Known], out: int) -> _Known:
        base = operation.name.removesuffix("_")
        other = operation.arguments.get("other")
        if base == "aten::eq" and len(parts) == 2 and operation.inputs[0] == operation.inputs[1]:
            return _uniform(1.0, out)  # `isfinite` checks for NaN by `x == x`
        if base in ("aten::eq", "aten::ne") and other in ("inf", "-inf"):
            return _uniform(float(base == "aten::ne"), out)
        is_mask = any(part.is_mask for part in parts)
        values = [part.value for part in parts] + ([] if len(parts) > 1 else [_as_number(other)])
        call = _COMPARISONS.get(base) or _ARITHMETIC[base]
        known = [value for value in values if value is not None]
        if len(known) == 2 and operation.arguments.get("alpha", 1) == 1:
            return replace(_uniform(float(call(*known)), out), is_mask=is_mask)
        bounds = [part.nonzeros for part in parts]
        if base in _UNIONS:
            return _Known(None, sum(bounds), out, is_mask)
        if base in _INTERSECTIONS:
            return _Known(None, min(bounds), out, is_mask)
        if base == "aten::eq" and len(parts) == 2 and parts[0].distinct < math.prod(operation.inputs[0].shape):
            return _Known(None, math.ceil(out / max(parts[0].distinct, 1)), 2)  # each value occurs equally often
        if base == "aten::gt" and other == 0:
            return _Known(None, bounds[0], 2)
        return _Known(None, out, 2)


def _uniform(value: float, count: int) -> _Known:
    return _Known(value, count if value else 0, min(count, 1))


def _as_number(value: object) -> float | None:
    return float(value) if isinstance(value, (bool, int, float)) else None


def _sum(whole: _Known, tensor: TensorInfo, out: int, share: float) -> _Known:
    """Return the sum of a tensor. A sum of a mask, or of integers that are one, counts its true elements."""
    is_counted = whole.is_mask and whole.value is None and tensor.dtype in ("bool", "int64", "int32")
    value = 1.0 if is_counted else whole.value
    if value == 1.0 and whole.is_mask:
        value = share
    if value is None and tensor.dtype == "bool" and out == 1:
        return _Known(float(math.ceil(whole.nonzeros * share)), out, out, is_bound=True)
    terms = math.prod(tensor.shape) // max(out, 1)
    return _Known(None if value is None else value * terms, out, out, whole.is_mask)


def _selected(name: str, operation: Operation, read: Callable[[int], _Known], out: int) -> _Known:
    """Return the facts about a copy, or about a selection of elements."""
    if name == "aten::copy_":
        return read(1) if len(operation.inputs) > 1 else _Known(None, out, out)
    if name not in ("aten::cat", "aten::stack"):
        known = read(0)
        becomes_mask = operation.outputs[0].dtype == "bool" and known.is_mask and known.value is None
        return replace(known, value=1.0) if becomes_mask else replace(known, nonzeros=out)
    parts = [read(position) for position in range(len(operation.inputs))]
    values = {part.value for part in parts}
    value = values.pop() if len(values) == 1 else None
    distinct = sum(part.distinct for part in parts)
    return _Known(value, sum(part.nonzeros for part in parts), distinct, any(part.is_mask for part in parts))


def _list(places: list[str]) -> str:
    more = ", ..." if len(places) > _PLACES_SHOWN else ""
    return ", ".join(places[:_PLACES_SHOWN]) + more


_OURS: Final = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parent.parent}{os.sep}")


def _place() -> str:
    """Return file and line of the innermost frame outside torch and this package."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return "in torch" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


_RUNS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten::_local_scalar_dense": AssumedValues._item,
    "aten::equal": AssumedValues._equal,
    "aten::allclose": AssumedValues._equal,
    "aten::nonzero": AssumedValues._nonzero,
    "aten::masked_select": AssumedValues._masked_select,
    "aten::index": AssumedValues._index,
    "aten::_unique2": AssumedValues._unique,
    "aten::unique_consecutive": AssumedValues._unique,
    "aten::_ctc_loss": AssumedValues._ctc,
    "aten::_ctc_loss_backward": AssumedValues._ctc_backward,
    "aten::_fused_sgd_": AssumedValues._updated,
    "aten::_fused_adagrad_": AssumedValues._updated,
    "aten::div": AssumedValues._divided,
    "aten::repeat_interleave": AssumedValues._repeated,
    "aten::_to_copy": AssumedValues._copied,
    "aten::copy_": AssumedValues._copied_into,
    "torchvision::nms": AssumedValues._suppressed,
}
"""Operations that depend on values, with functions that run them without values."""


# --- Errors of steps on the meta device: which line needs values, or which operation the meta device lacks

_NAMES_META: Final = re.compile(r"\bmeta (tensor|device)|\b(Sparse\w*)?Meta('| tensor)|register_meta")
"""torch's errors for operations that the meta device lacks."""

_RAISED: Final = (RuntimeError, AssertionError, ValueError, TypeError)

_READS: Final = re.compile(  # Patterns of torch's errors for calls that need the values of a meta tensor
    r"called on meta tensors|out of meta tensor|register_meta|type tensor to numpy|repeat_interleave"
)


_MIXES: Final = re.compile(r"meta is not on the expected device|expected device meta|same device.*\bmeta\b")
"""Patterns of torch's errors for calls that combine meta tensors and tensors of another device."""


def explained(error: Exception) -> CaptureError | None:
    """Return the error to raise instead of torch's error; None if the meta device is not the cause."""
    text = str(error)
    if isinstance(error, CaptureError) or not isinstance(error, _RAISED):
        return None
    mixes = _MIXES.search(text) is not None
    if not mixes and not _NAMES_META.search(text):
        return None
    if not isinstance(error, NotImplementedError) and not _raised_by_torch(error):
        return None
    line = _asking_line(error)
    reason = text.strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    if mixes:
        return CaptureError(
            f"{line} combines a meta tensor with a tensor on another device ({reason}). Create the whole batch on the "
            'meta device, targets such as boxes and labels too: `with torch.device("meta"): ...`.'
        )
    if _READS.search(text):
        return CaptureError(
            f"{line} reads values of a tensor, which meta tensors do not have ({reason}). Create that tensor on the "
            "CPU, for example lengths or indices, remove the line, or record on the CPU or a GPU."
        )
    return CaptureError(
        f"{line} uses an operation that torch does not have on the meta device ({reason}). Use another one, or record "
        "on the CPU or a GPU."
    )


def failed_with_assumptions(error: Exception, notes: Sequence[str]) -> CaptureError:
    """Return the error of a step that failed after values of meta tensors were assumed."""
    return CaptureError(
        f"The step raised {type(error).__name__}: {error} at {_asking_line(error)}. {' '.join(notes)} If that does not "
        "hold, create the tensors concerned on the CPU, or record on the CPU or a GPU."
    )


def _raised_by_torch(error: BaseException) -> bool:
    """Return whether the innermost Python frame belongs to torch, or called torch."""
    frames = extract_tb(error.__traceback__)
    return isinstance(error, (RuntimeError, AssertionError)) or not frames or _is_ours(frames[-1]) or _calls(frames[-1])


def _is_ours(frame: FrameSummary) -> bool:
    return frame.filename.startswith(_OURS)


def _calls(frame: FrameSummary) -> bool:
    return "raise" not in (frame.line or "")


def _asking_line(error: BaseException) -> str:
    """Describe the innermost line of the traceback that is outside torch and this package."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not _is_ours(frame)]
    if not frames:
        return "The step"
    last = frames[-1]
    return f"`{last.line}` ({Path(last.filename).name}, line {last.lineno}, in {last.name})"
