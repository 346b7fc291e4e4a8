"""Converts torch values to plain values: tensors to `TensorInfo` with storage ids, and arguments to JSON.

Example::

    numbers = StorageIds()
    numbers.describe(torch.zeros(2, 3))     # TensorInfo(shape=(2, 3), dtype='float32', id=0, device='cpu')
    json_argument(torch.bfloat16)              # 'bfloat16'
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Any, Final
from weakref import ref

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from lightning_predict.record.trace import TensorInfo

Args = tuple[Any, ...]  # Positional arguments of a call of torch
Kwargs = dict[str, Any]  # Keyword arguments of a call of torch
TorchFunction = Callable[..., Any]  # Function or operator of torch


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name of a dtype: `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


_ORDINARY: Final = frozenset({torch.Tensor, torch.nn.Parameter})  # Not a lazy parameter, for example


class _StorageReference(ref[torch.UntypedStorage]):
    """Weak reference to a storage with its id and address. Its callback is C code, so a deletion runs no Python."""

    __slots__ = ("address", "number")
    address: int
    number: int


class StorageIds:
    """Assigns ids to storages in the order of their first use. Views of one storage have its id."""

    def __init__(self) -> None:
        self._count = 0
        self._references: dict[int, _StorageReference] = {}  # by address, of the storages that are alive
        self._freed = deque[_StorageReference]()  # their address is not forgotten yet
        self._unreported: list[int] = []  # ids for `take_freed`
        self._described: dict[tuple[int, tuple[int, ...], torch.dtype], TensorInfo] = {}

    def describe(self, tensor: torch.Tensor) -> TensorInfo | None:
        """Describe a tensor, by its stored elements if sparse; None if its sizes are not plain numbers."""
        is_plain = type(tensor) in _ORDINARY and tensor.layout is torch.strided and not tensor.is_nested
        if is_plain and not tensor._has_symbolic_sizes_strides:
            number, shape, dtype = self.number(tensor), tuple(tensor.shape), tensor.dtype
            if number is None:
                return TensorInfo(shape, dtype_name(dtype), None, tensor.device.type)
            key = (number, shape, dtype)  # a step uses most storages several times with the same shape and dtype
            known = self._described.get(key)
            if known is None:
                known = self._described[key] = TensorInfo(shape, dtype_name(dtype), number, tensor.device.type)
            return known
        if tensor.is_nested or is_lazy(tensor):
            return None
        sizes = tuple(map(whole_number, tensor.shape))
        if None in sizes:
            return None
        number = self.number(tensor)
        return TensorInfo(
            tuple(size for size in sizes if size is not None),
            dtype_name(tensor.dtype),
            number,
            tensor.device.type,
            *_stored(tensor),
        )

    def number(self, tensor: torch.Tensor) -> int | None:
        """Return the id of a tensor's storage; None if the tensor has no storage."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse tensors and wrappers have no storage
            return None
        if self._freed:
            self._forget()  # another storage may have the address of a freed one
        known = self._references.get(storage._cdata)
        if known is None:
            known = self._add(storage, self._count)
            self._count += 1
        return known.number

    def share(self, tensor: torch.Tensor, number: int | None) -> None:
        """Give a new tensor's storage the id of another storage, which it stands for."""
        if number is not None:
            self._forget()
            self._add(tensor.untyped_storage(), number)

    def _add(self, storage: torch.UntypedStorage, number: int) -> _StorageReference:
        reference = self._references[storage._cdata] = _StorageReference(storage, self._freed.append)
        reference.address, reference.number = storage._cdata, number
        return reference

    def _forget(self) -> None:
        """Forget the addresses of freed storages. A garbage collection or a thread may free more of them meanwhile."""
        while self._freed:
            reference = self._freed.popleft()
            del self._references[reference.address]
            self._unreported.append(reference.number)

    @property
    def alive(self) -> Collection[int]:
        """Ids of the storages that are alive."""
        self._forget()
        return {reference.number: None for reference in self._references.values()}.keys()

    def take_freed(self) -> list[int]:
        """Return the ids of the storages that were freed since the last call."""
        self._forget()
        if not self._unreported:
            return []
        freed, self._unreported = self._unreported, []
        return freed


_COMPRESSED: Final = {
    torch.sparse_csr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_bsr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_csc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
    torch.sparse_bsc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
}


def _stored(tensor: torch.Tensor) -> tuple[int | None, int | None]:
    """Return the number of stored elements of a sparse tensor, and their bytes with indices; None if dense."""
    if tensor.layout is torch.strided:
        return None, None
    if isinstance(tensor, FakeTensor) or runs_python(type(tensor)) or is_functorch_wrapped_tensor(tensor):
        return None, None  # has no indices of its own
    try:
        if tensor.layout is torch.sparse_coo:
            parts = [tensor._values(), tensor._indices()]
        elif tensor.layout in _COMPRESSED:
            parts = [tensor.values(), *(indices(tensor) for indices in _COMPRESSED[tensor.layout])]
        else:
            return None, None
    except (NotImplementedError, RuntimeError):  # for some layouts, meta tensors have only a shape
        return None, None
    return parts[0].numel(), sum(part.numel() * part.element_size() for part in parts)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is ordinary: no subclass with overridden operations, not nested, not in `torch.func`."""
    return (
        not runs_python(type(tensor))
        and not tensor.is_nested
        and not is_functorch_wrapped_tensor(tensor)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
    )


@cache
def runs_python(kind: type) -> bool:
    """Return whether a tensor subclass handles operations in Python. FakeTensor counts as a plain tensor."""
    is_plain = getattr(kind, "__torch_dispatch__", None) is torch._C._disabled_torch_dispatch_impl
    return not is_plain and not issubclass(kind, FakeTensor)


def whole_number(size: int | torch.SymInt) -> int | None:
    """Return a size as a number (the hint of a symbolic size); None for a jagged dimension."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    node = size.node
    if node.is_nested_int():
        return None
    hint = node.maybe_as_int()  # int() would permanently specialise a symbolic size
    hint = getattr(node, "hint", None) if hint is None else hint
    return None if hint is None else int(hint)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value. Lists and tuples are flattened in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def json_argument(value: Any) -> Any:
    """Return a JSON value for a non-tensor argument. Infinities, and values without a JSON form, become text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case list() | tuple():
            return [json_argument(item) for item in value]
        case torch.dtype():
            return dtype_name(value)
        case torch.device():
            return value.type
        case torch.layout() | torch.memory_format():
            return str(value).removeprefix("torch.")
        case torch.SymInt():
            return whole_number(value)
        case torch.SymFloat():
            return value.node.maybe_as_float()
        case _:
            return type(value).__name__
