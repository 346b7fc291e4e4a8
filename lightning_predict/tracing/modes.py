"""The two torch modes that show a recorder what a step does, and the operators' schemas.

`OperationMode` shows each operation below autograd; `WholeCallMode` shows the calls that are recorded whole, before
torch takes them apart. Both run every call unchanged, but for autocast and the memory format of
convolutions (`meta_device.py`) on the meta device. Tensor subclasses that run Python of their own (jagged tensors,
DTensor, quantized weights) take their operations apart first, and the operations inside are shown. Example::

    with OperationMode(recorder), WholeCallMode(recorder):
        model(batch)         # recorder.saw_operation(...) and recorder.run_whole(...) are called
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol, final

import torch
import torch.nn.functional as functional
from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_predict.guard import FAILURES, as_error
from lightning_predict.tracing.meta_device import CONVOLUTIONS, as_on_cuda
from lightning_predict.tracing.pauses import Pauses
from lightning_predict.tracing.signatures import ATTENTION, RECURRENT, RMS_NORM
from lightning_predict.tracing.tensors import is_dense, json_argument, runs_python, tensors_in
from lightning_predict.tracing.trace import Operation

TorchFunction = Callable[..., Any]

_WHOLE_CALLS: Final[Mapping[TorchFunction, str]] = {
    functional.scaled_dot_product_attention: ATTENTION,
    functional.rms_norm: RMS_NORM,
    torch.rms_norm: RMS_NORM,
    **{getattr(torch, name.removeprefix("aten::")): name for name in RECURRENT},
}

# A Python function of torch runs its body with the function mode taken off, so whole calls inside would not be seen.
# These have some inside: attention directly, and what checkpointing recomputes while autograd runs.
_HOLDS_ATTENTION: Final = functional.multi_head_attention_forward
_RUN_AUTOGRAD: Final = frozenset({torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad})


_SHOWN_INSIDE: Final = _RUN_AUTOGRAD | {_HOLDS_ATTENTION}


class Recorder(Protocol):
    """The recorder that the modes report to.

    Attributes:
        operations: What was recorded.
        pauses: Is told when an operation begins, and when it has run and is recorded.
    """

    operations: list[Operation]
    pauses: Pauses

    def saw_operation(self, schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Note that an operation has run. Must not raise."""

    def cast(
        self, schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that an operation is to run with: others under autocast on the meta device only."""

    def note_autocast(self) -> bool:
        """Note whether autocast is on, which cannot be seen below autograd."""

    def cast_call(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AbstractContextManager[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return the arguments that a function is to run with: others under autocast on the meta device only."""

    def passed_over(self, schema: Schema) -> None:
        """Note that an operation has run that cannot be shown. Must not raise."""

    def run_whole(self, name: str, call: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call that is recorded whole and return what it returns."""

    def fails(self, error: Exception) -> None:
        """Stop recording after an internal failure. Must not raise."""


@final
@dataclass(frozen=True, slots=True)
class Schema:
    """The part of an operator's schema that is needed.

    Attributes:
        name: Qualified name without the overload.
        words: Names of its arguments.
        defaults: Their defaults; None if there is none.
        decomposes: It only calls others, and torch would take it apart if a tensor with autograd came in.
        asks: It asks for a device or a layout, and computes nothing.
        marks: It only marks a range for profilers.
        is_convolution: Its memory format is another one on the meta device (`meta_device.py`).
        left_out: For each number of positional arguments, the defaults of those after them, as JSON values.
    """

    name: str
    words: tuple[str, ...]
    defaults: tuple[Any, ...]
    decomposes: bool
    asks: bool = False
    marks: bool = False
    is_convolution: bool = False
    left_out: tuple[Mapping[str, Any], ...] = ()


_MARKERS: Final = "profiler::"
"""Operators that only mark a range for profilers."""

_SCHEMAS: dict[int, tuple[Any, Schema]] = {}
"""By the operator's address, as its own hash is computed in Python; the operator is kept, and with it the address."""


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
    except RuntimeError:  # an operator of Python alone, such as those that ask for symbolic sizes
        return False


class _Way(Enum):
    """How an operation is handled."""

    RECORDED = auto()
    RUN = auto()
    DECOMPOSED = auto()
    LEFT = auto()
    """Left to its subclass, which runs it; this mode sees the operations inside."""
    PASSED_OVER = auto()


# A member costs a descriptor's call each time that it is asked for by name, and these are for each operation.
_RECORDED: Final = _Way.RECORDED
_RUN: Final = _Way.RUN


def _way(schema: Schema, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Way:
    if schema.asks:
        return _RUN
    for kind in types:
        if runs_python(kind):
            # Someone else's mode expects the operation unchanged.
            return _Way.LEFT if torch._C._len_torch_dispatch_stack() == 0 else _Way.PASSED_OVER
    if schema.decomposes and all(map(is_dense, tensors_in((*args, *kwargs.values())))):
        # Inference mode skips autograd, and with it the place where composites are taken apart.
        return _Way.DECOMPOSED
    return _RECORDED


@final
class OperationMode(TorchDispatchMode):
    """Runs every operation and shows it to the recorder."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would wrap each call of this mode and import the compiler; compiled steps are never recorded this way.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compiled code alone that cannot be known of."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        try:
            try:
                recorder.pauses.ends(before=len(recorder.operations))  # what the step did in between is timed
                schema = schema_of(func)
                way = _way(schema, types, args, kwargs)
                if way is _RECORDED:
                    args, kwargs = recorder.cast(schema, args, kwargs)
            except FAILURES as error:  # ours, so the step must not see it
                recorder.fails(as_error(error))
                return func(*args, **kwargs)
            if way is _RECORDED:
                output = func(*args, **kwargs)
                try:
                    if schema.is_convolution:
                        output = as_on_cuda(schema.name, args, output)
                    recorder.saw_operation(schema, args, kwargs, output)
                except FAILURES as error:
                    recorder.fails(as_error(error))
                return output
            if way is _Way.LEFT:
                return NotImplemented
            if way is _Way.DECOMPOSED:
                own = OwnCall(func._op_dk)
                try:
                    with self:
                        return own(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
                except FAILURES as error:
                    if own.has_raised:
                        raise
                    recorder.fails(as_error(error))
                    return own.output if own.has_run else func(*args, **kwargs)
            output = func(*args, **kwargs)
            if way is _Way.PASSED_OVER:
                try:
                    recorder.passed_over(schema)
                except FAILURES as error:
                    recorder.fails(as_error(error))
            return output
        finally:
            try:
                recorder.pauses.begins()
            except FAILURES as error:
                recorder.fails(as_error(error))


@final
class OwnCall:
    """A call of the step's own, which runs exactly once whatever fails of ours around it.

    Attributes:
        has_run: It has been called.
        has_raised: It raised, so that an error that comes out is the step's.
        output: What it returned; None before.
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


@final
class WholeCallMode(TorchFunctionMode):
    """Hands the calls that are recorded whole to the recorder and runs every other."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        try:
            has_autocast = recorder.note_autocast()
            name = _WHOLE_CALLS.get(func)
            is_plain = name is None and not has_autocast and func not in _SHOWN_INSIDE
        except FAILURES as error:  # ours, so the step must not see it
            recorder.fails(as_error(error))
            return func(*args, **kwargs)
        if is_plain:
            return func(*args, **kwargs)
        own = OwnCall(func)
        try:
            if name is not None and all(map(is_dense, tensors_in((*args, *kwargs.values())))):
                return recorder.run_whole(name, own, args, kwargs)
            with recorder.cast_call(func, args, kwargs) as (cast_args, cast_kwargs), self._inside(func):
                return own(*cast_args, **cast_kwargs)
        except FAILURES as error:
            if own.has_raised:
                raise
            recorder.fails(as_error(error))
            return own.output if own.has_run else func(*args, **kwargs)

    def _inside(self, func: Any) -> AbstractContextManager[None]:
        """Show what a function of torch calls inside, which runs with this mode taken off."""
        if func is _HOLDS_ATTENTION:
            return _shown(functional, "scaled_dot_product_attention", self._attend, self._recorder)
        if func in _RUN_AUTOGRAD:
            return _shown(torch.autograd, "_engine_run_backward", self._run_autograd, self._recorder)
        return nullcontext()

    def _attend(self, own: TorchFunction, *args: Any, **kwargs: Any) -> Any:
        if not all(map(is_dense, tensors_in((*args, *kwargs.values())))):
            return own(*args, **kwargs)
        return self._recorder.run_whole(ATTENTION, own, args, kwargs)

    def _run_autograd(self, own: TorchFunction, *args: Any, **kwargs: Any) -> Any:
        with self:
            return own(*args, **kwargs)


@final
class _Dispatcher:
    """A function of torch's while at least one thread shows what it calls: each thread its own, others the original.

    Attributes:
        original: The function.
        by_thread: What is called in its place, the innermost last, and the recorder that hears of its failures.
    """

    def __init__(self, original: TorchFunction) -> None:
        self.original = original
        self.by_thread: dict[int, list[tuple[TorchFunction, Recorder]]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what this thread has in the function's place."""
        stack = self.by_thread.get(threading.get_ident())
        if not stack:
            return self.original(*args, **kwargs)
        instead, recorder = stack[-1]
        own = OwnCall(self.original)
        try:
            return instead(own, *args, **kwargs)
        except FAILURES as error:
            if own.has_raised:
                raise
            recorder.fails(as_error(error))
            return own.output if own.has_run else self.original(*args, **kwargs)


_DISPATCHERS: Final[dict[tuple[Any, str], _Dispatcher]] = {}
_DISPATCHERS_LOCK: Final = threading.Lock()


@contextmanager
def _shown(holder: Any, name: str, instead: TorchFunction, recorder: Recorder) -> Iterator[None]:
    """Call `instead(original, ...)` for a function of torch, on this thread only.

    The original is put back by the last thread that leaves, whichever came first; what someone else has put there since
    stays.
    """
    if getattr(holder, name, None) is None:  # a release of torch without it
        yield
        return
    thread, key = threading.get_ident(), (holder, name)
    with _DISPATCHERS_LOCK:
        dispatcher = _DISPATCHERS.get(key)
        if dispatcher is None:
            dispatcher = _DISPATCHERS[key] = _Dispatcher(getattr(holder, name))
            setattr(holder, name, dispatcher)
        dispatcher.by_thread.setdefault(thread, []).append((instead, recorder))
    try:
        yield
    finally:
        with _DISPATCHERS_LOCK:
            stack = dispatcher.by_thread[thread]
            stack.pop()
            if not stack:
                del dispatcher.by_thread[thread]
            if not dispatcher.by_thread:
                del _DISPATCHERS[key]
                if getattr(holder, name) is dispatcher:
                    setattr(holder, name, dispatcher.original)


def leave_modes(operations: OperationMode, whole_calls: WholeCallMode) -> None:
    """Take both modes off their stacks, also where someone's mode was entered after them and is still on top."""
    try:
        _leave(operations, _python_dispatch._get_current_dispatch_mode, _python_dispatch)
    finally:
        _leave(whole_calls, overrides._get_current_function_mode, overrides)


def _leave(mode: Any, current: Callable[[], Any], stack: Any) -> None:
    """Take a mode off its stack and put back what lay above; without effect where it is not on the stack."""
    above = []
    try:
        while current() not in (None, mode):
            above.append(stack._pop_mode())
        if current() is mode:
            mode.__exit__(None, None, None)
    finally:
        for other in reversed(above):
            stack._push_mode(other)
