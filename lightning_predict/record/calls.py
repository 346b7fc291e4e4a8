"""Reads tensors and arguments of a profiled call, and converts them to the names that all recorders use.

The profiler lists a call's arguments by position: tensor sizes, C++ names of dtypes, and numbers as text. Example::

    >>> call = Call("aten::mm", False, False, (1, 1), 0.0, 1.0,
    ...             {"input dims": [[2, 3], [3, 4]], "input type": ["c10::BFloat16", "c10::BFloat16"]})
    >>> [(tensor.shape, tensor.dtype) for tensor in tensors_of(call)]
    [((2, 3), 'bfloat16'), ((3, 4), 'bfloat16')]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lightning_predict.record.events import NO_TENSORS, Call, is_shape
from lightning_predict.record.operand_strides import (
    CHANNELS_LAST,
    CONTIGUOUS_ELEMENTS,
    FIRST_TRANSPOSED,
    IMAGES_POSITION,
    RECORDED_WITH_STRIDES,
    SECOND_FACTOR_POSITION,
    SECOND_TRANSPOSED,
    contiguous_elements,
    is_channels_last,
    is_transposed,
)
from lightning_predict.record.signatures import (
    MASK_STRIDE,
    RECORDED_TENSORS,
    WHOLE_OPERATIONS,
    computes,
    is_cast_down,
    name_values,
    whole_arguments,
)
from lightning_predict.record.trace import TensorInfo

_DTYPES: Final[Mapping[str, str]] = {
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "short": "int16",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::half": "float16",
    "c10::bfloat16": "bfloat16",
    "c10::float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}

_DTYPE_NUMBERS: Final = {  # Name of each `c10::ScalarType`, by its number
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    9: "complex64",
    10: "complex128",
    11: "bool",
    15: "bfloat16",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
}

_MEMORY_FORMATS: Final = {0: "contiguous_format", 1: "preserve_format", 2: "channels_last", 3: "channels_last_3d"}

_NUM_INPUT_TENSORS: Final = {"aten::mm": 2, "aten::addmm": 3, "aten::bmm": 2, "aten::baddbmm": 3}
"""Number of input tensors of these operations. Compiled code passes the output as an additional argument."""

_ACCEPTS_PYTHON_NUMBERS: Final = re.compile(r"aten::(add|sub|rsub|mul|div|pow|remainder|where|eq|ne|lt|le|gt|ge)_?")
"""Operations for which torch converts a Python number to a 64-bit tensor without dimensions."""

_OPERATOR: Final = re.compile(r"(?!autograd::|torch::)\w+::\w+(\.\w+)?")


def operator_name(call: Call) -> str | None:
    """Return the qualified name without the overload; None if the call is not an operator of the dispatcher."""
    if call.is_launch or call.is_annotation or _OPERATOR.fullmatch(call.name) is None:
        return None
    return call.name.partition(".")[0]


def tensors_of(call: Call) -> tuple[TensorInfo, ...]:
    """List the tensors that a call reads, in schema order, with lists flattened."""
    groups = _tensor_groups(call)
    name = operator_name(call) or call.name
    flat = [tensor for group in groups for tensor in group or ()]
    if _ACCEPTS_PYTHON_NUMBERS.fullmatch(name):
        flat = [tensor for tensor in flat if not _is_wrapped_number(tensor, flat)]
    return tuple(flat[: _NUM_INPUT_TENSORS.get(name)])


def outputs_of(call: Call) -> tuple[TensorInfo, ...]:
    """Infer the output of an `aten::index` call, whose kernel reads a view of its shape and stride 0; else empty."""
    for view in call.descendants() if operator_name(call) == "aten::index" else ():
        if operator_name(view) != "aten::as_strided":
            continue
        values: list[Any] = [*_parsed(view), None, None, None]
        sizes, strides = values[1:3]
        if isinstance(sizes, list) and is_shape(sizes) and isinstance(strides, list) and 0 in strides:
            return tuple(TensorInfo(tuple(sizes), tensor.dtype) for tensor in tensors_of(call)[:1])
    return ()


def arguments_of(call: Call) -> dict[str, Any]:
    """Read the non-tensor arguments of a call, by their schema names; empty if the names are unknown."""
    name = operator_name(call) or call.name
    groups = _tensor_groups(call)
    values = _parsed(call)
    is_tensor = [
        True if group else (None if value is None else False) for group, value in zip(groups, values, strict=False)
    ]
    if name in WHOLE_OPERATIONS:
        arguments = whole_arguments(name, values, is_tensor=is_tensor)
        inputs = tensors_of(call)
        dtype, strides = _compute_dtype(call), call.details.get("input strides", [])
        if arguments.get("attn_mask") and len(strides) > 3 and strides[3]:
            arguments[MASK_STRIDE] = strides[3][-1]
        if inputs and is_cast_down(inputs[0].dtype, dtype):
            arguments["compute_dtype"] = dtype
        return arguments
    if name in _NUM_INPUT_TENSORS and sum(bool(kind) for kind in is_tensor) > _NUM_INPUT_TENSORS[name]:
        values, is_tensor = values[:-1], is_tensor[:-1]
    named = _with_enum_names(name_values(name, values, is_tensor=is_tensor))
    return named | _layout(name, call, named)


def _layout(name: str, call: Call, arguments: Mapping[str, Any]) -> dict[str, bool | int]:
    """Return the memory layout of the images, of a matmul's factors, or of the operands, from the strides."""
    position = IMAGES_POSITION.get(name, SECOND_FACTOR_POSITION.get(name))
    strides, sizes = call.details.get("input strides", []), call.details.get("input dims", [])
    if name in RECORDED_WITH_STRIDES:
        beside = contiguous_elements(name, list(_operands(sizes, strides)), arguments)
        return {} if beside is None else {CONTIGUOUS_ELEMENTS: beside}
    if position is None or min(len(strides), len(sizes)) <= position:
        return {}
    if name in SECOND_FACTOR_POSITION:
        factors = ((FIRST_TRANSPOSED, position - 1), (SECOND_TRANSPOSED, position))
        return {word: True for word, place in factors if is_transposed(sizes[place], strides[place])}
    return {CHANNELS_LAST: True} if is_channels_last(sizes[position], strides[position]) else {}


def _parsed(call: Call) -> list[Any]:
    """Parse the value at each position of the call; None for tensors."""
    return [_parse(text) if isinstance(text, str) else text for text in call.details.get("concrete inputs", [])]


def _operands(sizes: Sequence[Any], strides: Sequence[Any]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the sizes and strides of each tensor that has dimensions. Lists of tensors are flattened."""
    for shape, steps in zip(sizes, strides, strict=False):
        each = zip(shape, steps, strict=False) if shape and isinstance(shape[0], list) else [(shape, steps)]
        yield from ((shape, between) for shape, between in each if shape and is_shape(shape) and is_shape(between))


def _is_wrapped_number(tensor: TensorInfo, beside: Sequence[TensorInfo]) -> bool:
    """Return whether a tensor is a converted Python number: a 64-bit scalar beside a tensor with dimensions."""
    if tensor.shape or tensor.dtype not in ("float64", "int64"):
        return False
    return any(other.shape or other.dtype not in ("float64", "int64") for other in beside)


def _tensor_groups(call: Call) -> list[tuple[TensorInfo, ...] | None]:
    """List the tensors at each position of the call; None at positions without tensors."""
    recorded = call.details.get(RECORDED_TENSORS)
    if recorded is not None:
        return [
            tuple(TensorInfo(tuple(shape), dtype, number, device) for shape, dtype, number, device in rows) or None
            for rows in recorded
        ]
    sizes = call.details.get("input dims", [])
    types = call.details.get("input type", [])
    groups: list[tuple[TensorInfo, ...] | None] = []
    for shape, kind in zip(sizes, types, strict=False):
        if kind == "TensorList":
            dtype = _list_dtype(call)
            groups.append(tuple(TensorInfo(tuple(item), dtype) for item in shape if is_shape(item)) or None)
        else:
            groups.append(None if kind in NO_TENSORS else (TensorInfo(tuple(shape), _dtype_of(kind)),))
    return groups


def _dtype_of(kind: str) -> str:
    """Return torch's name for a C++ type; unknown types are returned unchanged."""
    return _DTYPES.get(kind.lower(), kind)


_COPIED_ELEMENT_BYTES: Final = re.compile(r"OpaqueType<(\d+)u?>")
"""Element size in the names of kernels that copy elements of any dtype."""

_DTYPE_OF_BYTES: Final = {1: "uint8", 2: "bfloat16", 4: "float32", 8: "int64"}  # Default dtype for an element size


def _list_dtype(call: Call) -> str:
    """Infer the dtype of a list of tensors, which profiles omit.

    The first tensor of the call, or of a call inside it, determines the dtype. Without such a tensor, the element size
    in the kernel's name selects a default dtype. Without an element size, the dtype is float32.
    """
    inside = (call, *call.descendants())
    for event in inside:
        for kind in event.details.get("input type", []):
            if kind not in NO_TENSORS:
                return _dtype_of(kind)
    sizes = (_COPIED_ELEMENT_BYTES.search(work.name) for event in inside for work in event.device_work)
    size = next((int(digits[1]) for digits in sizes if digits is not None), 4)
    return _DTYPE_OF_BYTES.get(size, "float32")


def _compute_dtype(call: Call) -> str | None:
    for part in call.descendants():
        if computes(part.name):
            return next((tensor.dtype for tensor in tensors_of(part)), None)
    return None


def _parse(text: str) -> Any:
    """Parse a value printed by the profiler: `1`, `0.5`, `True`, `[1, 1]`; None if empty."""
    if text in ("", "None"):
        return None
    if text in ("True", "False"):
        return text == "True"
    if text.startswith("[") and text.endswith("]"):
        return [_parse(item) for item in text[1:-1].split(", ") if item]
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text):
        return float(text)
    return text


def _with_enum_names(arguments: dict[str, Any]) -> dict[str, Any]:
    """Convert the numbers of torch's enumerations (dtype, memory format) to names."""
    named = {}
    for word, value in arguments.items():
        if word.endswith("dtype") and isinstance(value, int):
            value = _DTYPE_NUMBERS.get(value, value)
        elif word == "memory_format" and isinstance(value, int):
            value = _MEMORY_FORMATS.get(value, value)
        elif word == "layout":
            continue
        named[word] = value
    return named
