"""Reads the environment of a step: parameters, persistent memory, global flags, software and compiled code.

Example::

    describe_parameters([torch.nn.Linear(8, 4)])     # (Parameter(name='weight', shape=(4, 8), ...), ...)
    read_flags(autocast_dtype=None).matmul_tf32      # False unless TF32 was allowed
"""

from __future__ import annotations

import gc
import inspect
import itertools
import platform
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import nn

from lightning_predict.base.errors import CaptureError
from lightning_predict.record.tensors import dtype_name
from lightning_predict.record.trace import Flags, Memory, Parameter

_HOLD_NOTHING: Final = frozenset({bool, int, float, str, type(None), torch.Tensor, nn.Parameter})
_DICTIONARIES: Final = frozenset({dict, OrderedDict})
"""Common types of module attributes that cannot contain compiled code, skipped to save most of the search time."""

_LIBRARIES: Final = frozenset({"torch", "lightning", "pytorch_lightning", "lightning_fabric", "builtins", "numpy"})
"""Packages whose functions are not searched for compiled functions."""

MAX_PLACES: Final = 20_000  # Maximum modules, classes and functions to search, in microseconds; a model has hundreds

_FAST_IN_EVALUATION: Final = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)


def read_flags(autocast_dtype: str | None, optimizers: Iterable[torch.optim.Optimizer] = ()) -> Flags:
    """Return the current global flags, and how the optimizers update tensors (together or one by one)."""
    choices = {_updates_together(group) for optimizer in optimizers for group in optimizer.param_groups}
    return Flags(
        matmul_tf32=_allows_tf32(torch.backends.cuda.matmul, torch.backends.cuda.matmul),
        cudnn_tf32=_allows_tf32(getattr(torch.backends.cudnn, "conv", None), torch.backends.cudnn),
        autocast_dtype=autocast_dtype,
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        cudnn_deterministic=bool(torch.backends.cudnn.deterministic),
        foreach=choices.pop() if len(choices) == 1 else None,
    )


def _updates_together(group: Mapping[str, Any]) -> bool | None:
    """Return whether a parameter group updates all tensors together; None for torch's default.

    An optimizer without the options of `torch.optim` runs on CUDA as recorded: one tensor at a time, unless the
    optimizer calls multi-tensor operations.
    """
    if group.get("fused"):
        return True
    return False if group.get("differentiable") else group.get("foreach", False)


def _allows_tf32(backend: Any, legacy_backend: Any) -> bool:
    """Return whether a backend may use TF32 for float32. The old flag cannot be read if the new flag is set."""
    precision = getattr(backend, "fp32_precision", None)
    return bool(legacy_backend.allow_tf32) if precision is None else precision == "tf32"


def software_versions() -> dict[str, str]:
    """Return the versions of the software that affect how a step runs."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
        versions["cudnn"] = _cudnn_version()
    if torch.version.hip is not None:
        versions["rocm"] = torch.version.hip
    return versions


def _cudnn_version() -> str:
    """Return the version of cuDNN's package, or 'unknown'; loading a damaged library would end the process."""
    for generation in (torch.version.cuda or "").split(".")[:1]:
        with suppress(PackageNotFoundError):
            return version(f"nvidia-cudnn-cu{generation}")
    return "unknown"


def check_listed(roots: Sequence[nn.Module]) -> None:
    """Check that modules can list their parameters and buffers."""
    for root in roots:
        try:
            for _ in itertools.chain(root.named_parameters(), root.named_buffers()):
                pass
        except Exception as error:
            name = type(root).__name__
            raise CaptureError(
                f"The step ran, but {name} does not list its parameters: its named_modules, named_parameters or "
                f"named_buffers raised {type(error).__name__}: {error}. They are called after the step: let them "
                f"work by then, or record a step that calls the modules inside {name}."
            ) from error


def describe_parameters(roots: Sequence[nn.Module]) -> tuple[Parameter, ...]:
    """Describe the parameters in the order of `named_parameters`. With several roots, names have a prefix."""
    rows = []
    seen: set[int] = set()
    for prefix, root in name_roots(roots):
        for name, parameter in root.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                rows.append(_parameter(f"{prefix}{name}", parameter))
    return tuple(rows)


def name_roots(roots: Sequence[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Return each outermost module with the prefix of its names. A single module has an empty prefix.

    The prefix is the class name, with a number if several modules have the same class: `Embedding.`, `Block.0.`,
    `Block.1.`. The names then look like a `ModuleList` per class, so that equal blocks can be found by their numbers.
    """
    if len(roots) == 1:
        return [("", roots[0])]
    names = [type(root).__name__ for root in roots]
    alike = Counter(names)
    numbers = {name: itertools.count() for name in alike}
    return [
        (f"{name}." if alike[name] == 1 else f"{name}.{next(numbers[name])}.", root)
        for name, root in zip(names, roots, strict=True)
    ]


def describe_leaves(leaves: Iterable[torch.Tensor]) -> tuple[Parameter, ...]:
    """Describe parameters whose module is unknown, with numbers as names."""
    return tuple(_parameter(f"parameter_{index}", leaf) for index, leaf in enumerate(leaves))


def _parameter(name: str, tensor: torch.Tensor) -> Parameter:
    return Parameter(
        name=name,
        shape=tuple(map(int, tensor.shape)),
        dtype=dtype_name(tensor.dtype),
        requires_grad=tensor.requires_grad,
    )


def measure_memory(
    roots: Sequence[nn.Module],
    leaves: Sequence[torch.Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    has_backward: bool,
    forward_gradient_bytes: int | None = None,
    peak_bytes: int | None = None,
    reserved_bytes: int | None = None,
) -> Memory:
    """Return the memory that persists through the step; None for unknown values.

    `leaves` are parameters of unknown modules, used if there are no roots. `forward_gradient_bytes` existed during the
    forward pass.
    """
    tensors = {id(tensor): tensor for root in roots for tensor in (*root.parameters(), *root.buffers())}
    if not roots:
        tensors = {id(leaf): leaf for leaf in leaves}
    if not tensors:
        return Memory(peak_bytes=peak_bytes, reserved_bytes=reserved_bytes)
    gradients = [tensor.grad for tensor in tensors.values() if tensor.is_leaf and tensor.grad is not None]
    if has_backward and not gradients:  # gradients were freed within the step; they have the size of their parameters
        gradients = [tensor for tensor in tensors.values() if tensor.requires_grad]
    states = [state for optimizer in optimizers for state in optimizer.state.values() if isinstance(state, dict)]
    kept = (value for state in states for value in state.values() if isinstance(value, torch.Tensor))
    return Memory(
        parameter_bytes=bytes_of_tensors(tensors.values()),
        gradient_bytes=bytes_of_tensors(gradients) if has_backward else 0,
        optimizer_state_bytes=bytes_of_tensors(kept),
        forward_gradient_bytes=forward_gradient_bytes if has_backward else 0,
        peak_bytes=peak_bytes,
        reserved_bytes=reserved_bytes,
    )


def held_tensors(holders: Iterable[nn.Module | torch.Tensor]) -> list[torch.Tensor]:
    """Return the parameters and buffers of modules, and single tensors, each once."""
    tensors: dict[int, torch.Tensor] = {}
    for holder in holders:
        own = (holder,) if isinstance(holder, torch.Tensor) else (*holder.parameters(), *holder.buffers())
        tensors |= {id(tensor): tensor for tensor in own}
    return list(tensors.values())


def bytes_of_tensors(tensors: Iterable[torch.Tensor]) -> int:
    """Return the size of tensors."""
    return sum(int(tensor.numel()) * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True, slots=True)
class Compilations:
    """Number of functions that `torch.compile` has compiled in this process, and the compilation time."""

    frames: int = 0
    seconds: float = 0.0

    def frames_since(self, before: Compilations) -> int:
        """Return the number of functions compiled since `before`; if the compiler was reset meanwhile, all."""
        return self.frames - before.frames if self.frames >= before.frames else self.frames

    def seconds_since(self, before: Compilations) -> float | None:
        """Return the compilation time since `before`; None if zero, or if this torch release does not report it."""
        seconds = self.seconds - before.seconds if self.seconds >= before.seconds else self.seconds
        return seconds if seconds > 0 else None


NO_COMPILATIONS: Final = Compilations()  # State before any compilation


def compilations() -> Compilations:
    """Return the compilations by `torch.compile` in this process, as torch reports them."""
    utilities = sys.modules.get("torch._dynamo.utils")
    spent: dict[str, float] = getattr(utilities, "calculate_time_spent", dict)()
    return Compilations(frames_compiled(), float(spent.get("total_wall_time", 0.0)))


def frames_compiled() -> int:
    """Return the number of functions that `torch.compile` has compiled; faster than `compilations`."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return int(counters.get("frames", {}).get("total", 0))


def has_compiled_code(model: nn.Module | Callable[[], object] | None, *, since: Compilations = NO_COMPILATIONS) -> bool:
    """Return whether a step may run code compiled by `torch.compile`.

    A step may run compiled code if anything was compiled since `since`. A step may also run compiled code if a module
    of the model, a method of such a module, or a function that these call by name was compiled before.

    Args:
        model: Model to search, or function that runs the step. None searches every live object, which takes some
            milliseconds.
        since: Compilations before the training of this step began, which are ignored.
    """
    frames = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    if frames is None:  # the compiler was never imported
        return False
    if compilations().frames_since(since):
        return True
    if model is None:
        return any(_is_compiled(item, frames) for item in gc.get_objects())
    return any(_is_compiled(item, frames) for item in _code_of(model))


def _code_of(model: nn.Module | Callable[[], object]) -> Iterator[nn.Module | FunctionType]:
    """Yield the modules and functions that a model or step may call by name, outside torch and Lightning."""
    seen: set[int] = set()
    pending = _parts_of(model)
    while pending and len(seen) < MAX_PLACES:
        value = pending.pop()
        item = value if isinstance(value, nn.Module) else _function(value)
        if item is None:
            pending += _held_by(value)
            continue
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, FunctionType):
            pending += [] if _is_library(item.__module__) else _named_in(item)
            continue
        pending += [
            attribute
            for attribute in vars(item).values()
            if type(attribute) not in _HOLD_NOTHING and (type(attribute) not in _DICTIONARIES or attribute)
        ]
        for kind in type(item).__mro__:
            if id(kind) not in seen and not _is_library(kind.__module__):
                seen.add(id(kind))
                pending += vars(kind).values()


def _parts_of(step: object) -> list[object]:
    """Return a model or step function, with the object to which it is bound, or with its partial arguments."""
    if isinstance(step, partial):
        return [*_parts_of(step.func), *step.args, *step.keywords.values()]
    if isinstance(step, MethodType):
        return [step, step.__self__]
    return [step] if isinstance(step, (nn.Module, FunctionType)) else [step, *vars(type(step)).values()]


def _held_by(value: object) -> list[object]:
    """List the modules and functions inside a container or a user's object."""
    held: Iterable[object] = ()
    if isinstance(value, (list, tuple, set)):
        held = value
    elif isinstance(value, dict):
        held = value.values()
    elif not _is_library(type(value).__module__):
        held = getattr(value, "__dict__", {}).values()
    return [attribute for attribute in held if isinstance(attribute, nn.Module) or _function(attribute) is not None]


def _function(value: object) -> FunctionType | None:
    """Return the plain function of a method, a static method or a property; None for other objects."""
    inner = getattr(value, "__func__", value) if isinstance(value, (staticmethod, classmethod, MethodType)) else value
    inner = inner.fget if isinstance(inner, property) else inner
    return inner if isinstance(inner, FunctionType) else None


def _named_in(function: FunctionType) -> Iterator[object]:
    """Yield the globals, closure variables and module members that the code of a function uses."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # empty cell
            yield cell.cell_contents
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        named = [function.__globals__[name] for name in code.co_names if name in function.__globals__]
        yield from named
        for owner in named:
            if isinstance(owner, ModuleType) and not _is_library(owner.__name__):
                yield from (vars(owner)[name] for name in code.co_names if name in vars(owner))


def _is_library(module: str | None) -> bool:
    return module is None or module.partition(".")[0] in _LIBRARIES


def _is_compiled(item: object, optimized_module: type) -> bool:
    kind = type(item)
    if kind is FunctionType:
        marks = item.__dict__
        return "_torchdynamo_orig_callable" in marks and not marks.get("_torchdynamo_disable", False)
    if kind is optimized_module:
        return True
    if not issubclass(kind, nn.Module):
        return False
    marks = item.__dict__
    return marks.get("_compiled_call_impl") is not None or marks.get("_compiler_ctx") is not None


def autograd_nodes() -> int:
    """Return the number of autograd nodes that this thread has created; 0 if this torch release does not count nodes.

    Equal work creates the same number of nodes, so a different number indicates another kind of step.
    """
    count = getattr(torch.autograd, "_get_sequence_nr", None)
    return 0 if count is None else int(count())


def own_tensor_kinds() -> list[type]:
    """Return the tensor subclasses outside torch that torch's own constructor creates.

    Without `__new__`, or with a `__new__` that calls `super().__new__(cls, data)`, `class Labelled(torch.Tensor)`
    cannot be created while a dispatch mode is active: "Creating a new Tensor subclass Labelled but the raw Tensor
    object is already associated to a python object". Subclasses created by `as_subclass` or `_make_subclass` work.
    """
    kinds: list[type] = []
    pending: list[type] = list(torch.Tensor.__subclasses__())
    while pending:
        kind = pending.pop()
        pending.extend(kind.__subclasses__())
        is_foreign = kind.__module__.split(".")[0] != "torch"
        if is_foreign and _is_made_by_torch(kind) and not _is_abstract(kind):
            kinds.append(kind)
    return kinds


def _is_abstract(kind: type) -> bool:
    """Return whether only subclasses with their own constructors are created, as for torchvision's `TVTensor`."""
    kinds: list[type] = kind.__subclasses__()
    return bool(kinds) and all("__new__" in subclass.__dict__ for subclass in kinds)


_OTHER_CONSTRUCTORS: Final = frozenset({"as_subclass", "_make_subclass", "_make_wrapper_subclass"})


def _is_made_by_torch(kind: type) -> bool:
    constructor: object = inspect.unwrap(kind.__new__)  # another recording may have replaced it
    if constructor is torch.Tensor.__new__:
        return True
    code = getattr(constructor, "__code__", None)
    return code is not None and "__new__" in code.co_names and not _OTHER_CONSTRUCTORS.intersection(code.co_names)


def has_fast_evaluation(model: nn.Module | None) -> bool:
    """Return whether a module in evaluation mode would leave torch's fused path under an active function mode."""
    return model is not None and any(
        isinstance(module, _FAST_IN_EVALUATION) and not module.training for module in model.modules()
    )
