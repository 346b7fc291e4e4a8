"""The two torch modes through which a recorder sees a step (dispatch and function mode), and the operators' schemas.

`OperationMode` reports each operation below autograd. `WholeCallMode` reports calls that are recorded as one operation,
before torch decomposes them. Both run every call unchanged, except for autocast and the memory format of convolutions
on the meta device (`meta_device.py`). Tensor subclasses that run Python code (jagged tensors, DTensor, quantized
weights) first decompose their operations; the modes report the inner operations. Example::

    with OperationMode(recorder), WholeCallMode(recorder):
        model(batch)         # recorder.record_operation(...) and recorder.record_whole_call(...) are called
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import wraps
from typing import Any, Final, Protocol

import torch
import torch.nn.functional as functional
from torch import overrides
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode, has_torch_function
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from lightning_predict.base.errors import CaptureError
from lightning_predict.base.guard import CAUGHT, own_error
from lightning_predict.record.environment import own_tensor_kinds
from lightning_predict.record.meta_device import CONVOLUTIONS, with_cuda_strides
from lightning_predict.record.patches import patched_attribute
from lightning_predict.record.pauses import PauseTimer
from lightning_predict.record.signatures import ATTENTION, RECURRENT, RMS_NORM
from lightning_predict.record.tensors import (
    Args,
    Kwargs,
    TorchFunction,
    is_dense,
    json_argument,
    runs_python,
    tensors_in,
)
from lightning_predict.record.trace import Operation

_WHOLE_CALLS: Final[Mapping[TorchFunction, str]] = {
    functional.scaled_dot_product_attention: ATTENTION,
    functional.rms_norm: RMS_NORM,
    torch.rms_norm: RMS_NORM,
    **{getattr(torch, name.removeprefix("aten::")): name for name in RECURRENT},
}

# Torch runs the body of its Python functions with the function mode disabled, so whole calls in the body would be
# missed. These functions contain whole calls: attention, and recomputations by checkpointing in the backward pass.
_HOLDS_ATTENTION: Final = functional.multi_head_attention_forward
_LINEAR: Final = functional.linear
_RUN_AUTOGRAD: Final = frozenset({torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad})

_KEEP_BIT: Final = torch._C._SetExcludeDispatchKeyGuard
_CONJUGATE: Final = torch._C.DispatchKey.Conjugate
_NEGATIVE: Final = torch._C.DispatchKey.Negative

_VALUES_ONLY: Final[Mapping[TorchFunction, tuple[object, ...]]] = {
    **dict.fromkeys((torch.linalg.svdvals, torch.linalg.eigvalsh, torch.linalg.cond, torch.linalg.matrix_rank), ()),
    **dict.fromkeys((torch.linalg.norm, torch.linalg.matrix_norm), ("nuc", 2, -2)),
    **dict.fromkeys((torch.norm, torch.Tensor.norm), ("nuc",)),
}
"""Calls that compute singular values or eigenvalues without vectors, but with vectors if a dispatch mode is active; and
the orders of norms that do."""

_SHOWN_INSIDE: Final = _RUN_AUTOGRAD | _VALUES_ONLY.keys() | {_HOLDS_ATTENTION}


class Recorder(Protocol):
    """Recorder to which the modes report."""

    operations: list[Operation]
    pauses: PauseTimer  # Timer that is called when an operation begins, and when it has run and is recorded
    raised_in_step: CaptureError | None  # Error that each further operation of the step raises; None: the step goes on

    def record_operation(self, schema: Schema, args: Args, kwargs: Kwargs, output: Any) -> None:
        """Record an operation that has run. This must not raise."""

    def cast(self, schema: Schema, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Return the arguments for running an operation. Only autocast on the meta device changes them."""

    def note_autocast(self) -> bool:
        """Store whether autocast is active, which operations below autograd cannot see."""

    def cast_call(self, func: TorchFunction, args: Args, kwargs: Kwargs) -> AbstractContextManager[tuple[Args, Kwargs]]:
        """Return the arguments for running a function. Only autocast on the meta device changes them."""

    def run_without_values(
        self, schema: Schema, func: TorchFunction, args: Args, kwargs: Kwargs, error: RuntimeError
    ) -> Any:
        """Return an assumed result for an operation that failed because meta tensors lack values, or raise `error`."""

    def record_skipped(self, schema: Schema) -> None:
        """Store that an operation ran that cannot be described. This must not raise."""

    def record_whole_call(self, name: str, call: TorchFunction, args: Args, kwargs: Kwargs) -> Any:
        """Run a call that is recorded as one operation, and return its result."""

    def fail(self, error: Exception) -> None:
        """Stop recording after an internal failure. This must not raise."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The parts of an operator's schema that the recorder needs."""

    name: str  # Qualified name without the overload
    words: tuple[str, ...]
    defaults: tuple[Any, ...]  # Default values; None for arguments without a default
    decomposes: bool  # Whether the operator is a composite, which torch decomposes for tensors with autograd
    asks: bool = False  # Whether the operator only queries a device or layout, and computes nothing
    marks: bool = False  # Whether the operator only marks a range for profilers
    is_convolution: bool = False  # Whether the result's memory format is to be corrected on meta (`meta_device.py`)
    # Defaults of omitted arguments as JSON values, by the number of positional arguments that are passed
    left_out: tuple[Mapping[str, Any], ...] = ()


_MARKERS: Final = "profiler::"  # Namespace of operators that only mark a range for profilers

DISPLACED: Final = (
    "Another profiler started while the step was recorded, which ended the recording. Leave it out of the first steps "
    "(in a Trainer: profiler=None), or import the file that it writes with `lightning_predict.import_trace`."
)

_SCHEMAS: dict[int, tuple[Any, Schema]] = {}
"""Schemas by the address of the operator, because hashing an operator would run Python code.

The operator is kept, so that its address stays valid."""


def schema_of(operator: Any) -> Schema:
    """Return the schema of an `OpOverload`, or of a higher-order operator, which has no argument names."""
    known = _SCHEMAS.get(id(operator))
    if known is None:
        known = _SCHEMAS[id(operator)] = (operator, _read_schema(operator))
    return known[1]


def _read_schema(operator: Any) -> Schema:
    if not isinstance(operator, torch._ops.OpOverload):
        return Schema(f"higher_order::{operator.__name__}", (), (), decomposes=False)
    if operator.namespace == "prim":
        return Schema(operator._schema.name, (), (), decomposes=False, asks=True)
    schema = operator._schema
    name = operator.name()
    words = tuple(argument.name for argument in schema.arguments)
    defaults = tuple(argument.default_value if argument.has_default_value() else None for argument in schema.arguments)
    named = {word: json_argument(value) for word, value in zip(words, defaults, strict=True) if value is not None}
    return Schema(
        name=schema.name,
        words=words,
        defaults=defaults,
        decomposes=_has_kernel(name, "CompositeImplicitAutograd") and not _has_kernel(name, "CPU"),
        marks=schema.name.startswith(_MARKERS),
        is_convolution=schema.name in CONVOLUTIONS,
        left_out=tuple(
            {word: named[word] for word in words[given:] if word in named} for given in range(len(words) + 1)
        ),
    )


def _has_kernel(name: str, key: str) -> bool:
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
    except RuntimeError:  # an operator that is implemented in Python, such as a query of a symbolic size
        return False


class _Way(Enum):
    """Ways to handle an operation."""

    RECORDED = auto()
    RUN = auto()
    DECOMPOSED = auto()
    LEFT = auto()  # The tensor subclass runs it, and this mode sees the operations inside
    PASSED_OVER = auto()


# Module constants, because accessing a member of an enum is slow, and happens for every operation.
_RECORDED: Final = _Way.RECORDED
_RUN: Final = _Way.RUN


def _way(schema: Schema, types: Sequence[type], args: Args, kwargs: Kwargs) -> _Way:
    if schema.asks:
        return _RUN
    for kind in types:
        if runs_python(kind):
            # Another dispatch mode expects the operation unchanged.
            return _Way.LEFT if torch._C._len_torch_dispatch_stack() == 0 else _Way.PASSED_OVER
    if schema.decomposes and _all_dense(args, kwargs):
        # Inference mode skips autograd, which would decompose composites.
        return _Way.DECOMPOSED
    return _RECORDED


class OperationMode(TorchDispatchMode):
    """Dispatch mode that runs every operation, and reports it to the recorder."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would wrap each call of this mode and import the compiler. Compiled steps never use this mode.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tell torch that this mode does not need to see the operations inside compiled code."""
        return True

    def __torch_dispatch__(
        self, func: TorchFunction, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self.recorder
        if recorder.raised_in_step is not None:  # outside of the guards below, which keep errors from the step
            raise recorder.raised_in_step
        try:
            try:
                recorder.pauses.ends(before=len(recorder.operations))  # times the code since the last operation
                schema = schema_of(func)
                way = _way(schema, types, args, kwargs)
                if way is _RECORDED:
                    args, kwargs = recorder.cast(schema, args, kwargs)
            except CAUGHT as error:  # the recorder's error must not reach the step
                recorder.fail(own_error(error))
                return func(*args, **kwargs)
            if way is _RECORDED:
                try:
                    output = _run_as_without_mode(func, args, kwargs)
                except RuntimeError as error:
                    output = recorder.run_without_values(schema, func, args, kwargs, error)
                try:
                    if schema.is_convolution:
                        output = with_cuda_strides(schema.name, args, output)
                    recorder.record_operation(schema, args, kwargs, output)
                except CAUGHT as error:
                    recorder.fail(own_error(error))
                return output
            if way is _Way.LEFT:
                return NotImplemented
            if way is _Way.DECOMPOSED:
                own = OwnCall(func._op_dk)  # type: ignore[attr-defined]
                try:
                    with self:
                        return own(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
                except CAUGHT as error:
                    if own.has_raised:
                        raise
                    recorder.fail(own_error(error))
                    return own.output if own.has_run else func(*args, **kwargs)
            output = func(*args, **kwargs)
            if way is _Way.PASSED_OVER:
                try:
                    recorder.record_skipped(schema)
                except CAUGHT as error:
                    recorder.fail(own_error(error))
            return output
        finally:
            try:
                recorder.pauses.begins()
            except CAUGHT as error:
                recorder.fail(own_error(error))


def _run_as_without_mode(func: TorchFunction, args: Args, kwargs: Kwargs) -> Any:
    """Run an operation as torch does without a dispatch mode.

    Under a mode, torch calls `__torch_function__` of subclasses once more, and ignores the conjugate and negative bits
    that a kernel gives to its intermediate results, so that complex results are rounded differently.
    """
    # Most operations have no argument with `__torch_function__`. Torch looks into lists, too.
    has_code = has_torch_function(args) or any(isinstance(one, list) and has_torch_function(tuple(one)) for one in args)
    with _KEEP_BIT(_CONJUGATE, False), _KEEP_BIT(_NEGATIVE, False):
        if not has_code:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def _all_dense(args: Args, kwargs: Kwargs) -> bool:
    """Return whether every tensor of a call is ordinary, without calling the modes of the script."""
    with torch._C.DisableTorchFunction():
        return all(map(is_dense, tensors_in((*args, *kwargs.values()))))


class OwnCall:
    """Call of the step, which runs exactly once, even if the recorder fails before or after the call.

    Attributes:
        has_raised: Whether the call raised an error, so that the error belongs to the step.
        output: Result of the call; None before the call.
    """

    def __init__(self, call: TorchFunction) -> None:
        self._call = call
        self.has_run = self.has_raised = False
        self.output: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the call."""
        self.has_run = True
        try:
            self.output = self._call(*args, **kwargs)
        except BaseException:
            self.has_raised = True
            raise
        return self.output


class WholeCallMode(TorchFunctionMode):
    """Function mode that passes whole calls to the recorder, and runs all other calls."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: TorchFunction, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():  # the compiler traces this mode, and must see nothing of the recorder
            return func(*args, **kwargs)
        recorder = self._recorder
        try:
            has_autocast = recorder.note_autocast()
            name = _WHOLE_CALLS.get(func)
            is_plain = name is None and not has_autocast and func not in _SHOWN_INSIDE
        except CAUGHT as error:  # the recorder's error must not reach the step
            recorder.fail(own_error(error))
            return func(*args, **kwargs)
        if is_plain:
            return func(*args, **kwargs)
        own = OwnCall(func)
        try:
            if name is not None and _all_dense(args, kwargs):
                return recorder.record_whole_call(name, own, args, kwargs)
            inside = self._inside(func, (*args, *kwargs.values()))
            with recorder.cast_call(func, args, kwargs) as (cast_args, cast_kwargs), inside:
                return own(*cast_args, **cast_kwargs)
        except CAUGHT as error:
            if own.has_raised:
                raise
            recorder.fail(own_error(error))
            return own.output if own.has_run else func(*args, **kwargs)

    def _inside(self, func: TorchFunction, values: Args) -> AbstractContextManager[object]:
        """Report calls inside a torch function, because torch runs its body with this mode disabled.

        Operations inside `_VALUES_ONLY` are not reported, unless autograd needs the vectors anyway.
        """
        if func in _VALUES_ONLY:
            return _suspended(self._recorder, func.__name__) if _drops_vectors(func, values) else nullcontext()
        if func is _HOLDS_ATTENTION:
            return self._attention_shown()
        if func in _RUN_AUTOGRAD:
            return _shown(torch.autograd, "_engine_run_backward", self._run_autograd, self._recorder)
        return nullcontext()

    @contextmanager
    def _attention_shown(self) -> Iterator[None]:
        with (
            _shown(functional, "scaled_dot_product_attention", self._attend, self._recorder),
            _shown(functional, "linear", self._project, self._recorder),
        ):
            yield

    def _attend(self, own: TorchFunction, *args: Any, **kwargs: Any) -> Any:
        if not _all_dense(args, kwargs):
            return own(*args, **kwargs)
        return self._recorder.record_whole_call(ATTENTION, own, args, kwargs)

    def _project(self, own: TorchFunction, *args: Any, **kwargs: Any) -> Any:
        with self._recorder.cast_call(_LINEAR, args, kwargs) as (cast_args, cast_kwargs):
            return own(*cast_args, **cast_kwargs)

    def _run_autograd(self, own: TorchFunction, *args: Any, **kwargs: Any) -> Any:
        handles: list[RemovableHandle] = []
        recorder = self._recorder
        try:
            if any(operation.name in _DERIVATIVES for operation in recorder.operations):
                handles = [node.register_prehook(_Suspension(recorder, node)) for node in _changed_nodes(args[0])]
        except CAUGHT as error:
            recorder.fail(own_error(error))
        try:
            with self:
                return own(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()


_DERIVATIVES: Final[Mapping[str, str]] = {
    "aten::prod": "ProdBackward",
    "aten::cumprod": "CumprodBackward",
    "aten::_linalg_det": "LinalgDetBackward",
    "aten::masked_fill": "MaskedFillBackward1",
    "aten::masked_fill_": "MaskedFillBackward1",
}
"""Operations for which torch uses another formula for the derivative if a dispatch mode is active, and their nodes.

All operators of torch's `op_db` were compared to the bit, with first and second derivatives."""


def _changed_nodes(outputs: Iterable[Any]) -> Iterator[Node]:
    """Find the autograd nodes of `_DERIVATIVES` in the graphs of these tensors."""
    names, seen = tuple(_DERIVATIVES.values()), set[Node]()
    with torch._C.DisableTorchFunction():
        left = [node for node in (getattr(output, "grad_fn", None) for output in outputs) if node is not None]
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.name().startswith(names):
            yield node
        left += [following for following, _ in node.next_functions if following is not None]


def _drops_vectors(func: TorchFunction, values: Args) -> bool:
    """Return whether a call of `_VALUES_ONLY` computes no vectors. For a derivative, it computes them in any case."""
    orders = _VALUES_ONLY[func]
    if orders and not any(isinstance(value, str | int | float) and value in orders for value in values):
        return False
    with torch._C.DisableTorchFunction():
        return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in(values)))


class _Suspension:
    """Hook before an autograd node, which then runs without the recorder's dispatch mode, and is noted as unrecorded.

    The autograd engine restores the modes after each node.
    """

    def __init__(self, recorder: Recorder, node: Node) -> None:
        self._recorder, self._name = recorder, node.name()

    def __call__(self, _: object) -> None:
        """Take the mode from the stack."""
        try:
            _take_out(self._recorder)
            self._recorder.record_skipped(Schema(self._name, (), (), decomposes=False))
        except CAUGHT as error:
            self._recorder.fail(own_error(error))


@contextmanager
def _suspended(recorder: Recorder, name: str) -> Iterator[None]:
    """Run a call without the recorder's dispatch mode, and note it as unrecorded."""
    mode, above = _take_out(recorder)
    try:
        yield
    finally:
        if mode is not None:
            others = [_python_dispatch._pop_mode() for _ in range(above)]
            for other in (mode, *reversed(others)):
                _python_dispatch._push_mode(other)
        recorder.record_skipped(Schema(name, (), (), decomposes=False))


def _take_out(recorder: Recorder) -> tuple[OperationMode | None, int]:
    """Take the recorder's mode from the stack. Return the mode, and the number of modes above it, which stay."""
    current = _python_dispatch._get_current_dispatch_mode
    with _above(
        lambda mode: isinstance(mode, OperationMode) and mode.recorder is recorder, current, _python_dispatch
    ) as above:
        mode = current()
        return (None, 0) if mode is None else (_python_dispatch._pop_mode(), len(above))


class _Dispatcher:
    """Replacement of a torch function, which calls a substitute on some threads, and the original on others."""

    def __init__(self, original: TorchFunction) -> None:
        self.original = original
        self.by_thread: dict[int, list[tuple[TorchFunction, Recorder]]] = {}  # the recorder gets the errors

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call this thread's substitute, or the original."""
        stack = self.by_thread.get(threading.get_ident())
        if not stack:
            return self.original(*args, **kwargs)
        instead, recorder = stack[-1]
        own = OwnCall(self.original)
        try:
            return instead(own, *args, **kwargs)
        except CAUGHT as error:
            if own.has_raised:
                raise
            recorder.fail(own_error(error))
            return own.output if own.has_run else self.original(*args, **kwargs)


@contextmanager
def _shown(holder: Any, name: str, instead: TorchFunction, recorder: Recorder) -> Iterator[None]:
    """Call `instead(original, ...)` instead of a torch function on this thread."""
    if getattr(holder, name, None) is None:  # this torch release does not have it
        yield
        return
    with patched_attribute(holder, name, _Dispatcher) as dispatcher:
        stack = dispatcher.by_thread.setdefault(threading.get_ident(), [])
        stack.append((instead, recorder))
        try:
            yield
        finally:
            stack.pop()


def open_constructors() -> ExitStack:
    """Let torch's constructor create tensor subclasses while a dispatch mode is active, until the result is closed."""
    constructors = ExitStack()
    for kind in own_tensor_kinds():
        with suppress(TypeError, AttributeError):
            constructors.enter_context(patched_attribute(kind, "__new__", _outside_modes))
    return constructors


def _outside_modes(plain: Callable[..., Any]) -> staticmethod[..., Any]:
    @wraps(plain)
    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        with _python_dispatch._disable_current_modes():
            return plain(cls, *args, **kwargs)

    return staticmethod(new)


def open_profiler_watch(operations: OperationMode, whole_calls: WholeCallMode) -> AbstractContextManager[None]:
    """End the recording if the step starts a profiler, which would see the modes' calls; until the result is closed."""

    def leaves_first(own: TorchFunction) -> Any:
        operations.recorder.fail(CaptureError(DISPLACED))
        if torch._C._current_graph_task_id() < 0:  # a backward pass restores the modes of its nodes itself
            leave_modes(operations, whole_calls)
        return own()

    return _shown(torch.autograd.profiler, "_run_on_profiler_start", leaves_first, operations.recorder)


def leave_modes(operations: OperationMode, whole_calls: WholeCallMode) -> None:
    """Exit both modes, even if another mode was entered later and is still active above them."""
    try:
        _leave(operations, _python_dispatch._get_current_dispatch_mode, _python_dispatch)
    finally:
        _leave(whole_calls, overrides._get_current_function_mode, overrides)


def _leave(mode: Any, current: Callable[[], Any], stack: Any) -> None:
    """Remove a mode from its stack, and keep the modes above it. A mode outside the stack is ignored."""
    with _above(lambda other: other is mode, current, stack):
        if current() is mode:
            mode.__exit__(None, None, None)


@contextmanager
def _above(is_wanted: Callable[[Any], bool], current: Callable[[], Any], stack: Any) -> Iterator[list[Any]]:
    """Take the modes above a mode from the stack, and put them back."""
    above: list[Any] = []
    try:
        while (mode := current()) is not None and not is_wanted(mode):
            above.append(stack._pop_mode())
        yield above
    finally:
        for other in reversed(above):
            stack._push_mode(other)
