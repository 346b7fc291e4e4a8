"""The two torch modes that show a recorder what a step does, and the operators' schemas.

`OperationMode` shows each operation below autograd; `WholeCallMode` shows the calls that are recorded whole, before
torch takes them apart. Both run every call unchanged, but for autocast (`autocast.py`) and the memory format of
convolutions (`memory_format.py`) on the meta device. Tensor subclasses that run Python of their own (jagged tensors,
DTensor, quantized weights) take their operations apart first, and the operations inside are shown. Example::

    with OperationMode(recorder), WholeCallMode(recorder):
        model(batch)         # recorder.saw_operation(...) and recorder.run_whole(...) are called
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Final, Protocol, final

import torch
import torch.nn.functional as functional
from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_predict.tracing.memory_format import as_on_cuda
from lightning_predict.tracing.signatures import ATTENTION, RECURRENT, RMS_NORM
from lightning_predict.tracing.tensors import is_dense, runs_python, tensors_in

Call = Callable[..., Any]

_WHOLE_CALLS: Final[Mapping[Call, str]] = {
    functional.scaled_dot_product_attention: ATTENTION,
    functional.rms_norm: RMS_NORM,
    torch.rms_norm: RMS_NORM,
    **{getattr(torch, name.removeprefix("aten::")): name for name in RECURRENT},
}

# A Python function of torch runs its body with the function mode taken off, so whole calls inside would not be seen.
# These have some inside: attention directly, and what checkpointing recomputes while autograd runs.
_HOLDS_ATTENTION: Final = functional.multi_head_attention_forward
_RUN_AUTOGRAD: Final = frozenset({torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad})


class Recorder(Protocol):
    """What the modes report to."""

    def saw_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Note that an operation has run. Must not raise."""

    def cast(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments that an operation is to run with: other ones under autocast on the meta device only."""

    def note_autocast(self) -> None:
        """Look whether autocast is on: below autograd nobody can tell. Must not raise."""

    def cast_call(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AbstractContextManager[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Arguments that a function is to run with: other ones under autocast on the meta device only."""

    def passed_over(self, func: Any) -> None:
        """Note that an operation has run that cannot be shown. Must not raise."""

    def run_whole(self, name: str, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call that is recorded whole and return what it returns."""

    def operation_begins(self) -> None:
        """Note that the host has an operation to run. Must not raise."""

    def operation_ends(self) -> None:
        """Note that the operation has run and was shown. Must not raise."""


def _between_pauses(dispatch: Call) -> Call:
    """Tell the recorder when a mode has something to run, so that it can time what the step does in between."""

    @wraps(dispatch)
    def dispatch_in_time(mode: OperationMode, *args: Any, **kwargs: Any) -> Any:
        mode._recorder.operation_begins()
        try:
            return dispatch(mode, *args, **kwargs)
        finally:
            mode._recorder.operation_ends()

    return dispatch_in_time


@final
@dataclass(frozen=True, slots=True)
class Schema:
    """What is needed of an operator's schema.

    Attributes:
        name: Qualified name without the overload.
        words: Names of its arguments.
        defaults: Their defaults; None if there is none.
        decomposes: It only calls others, and torch would take it apart if a tensor with autograd came in.
    """

    name: str
    words: tuple[str, ...]
    defaults: tuple[Any, ...]
    decomposes: bool


@cache
def schema_of(operator: Any) -> Schema:
    """Schema of an `OpOverload`, or of a higher-order operator, which has no argument names."""
    if not isinstance(operator, torch._ops.OpOverload):
        return Schema(f"higher_order::{operator.__name__}", (), (), decomposes=False)
    schema = operator._schema
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    name = operator.name()
    return Schema(
        name=schema.name,
        words=tuple(argument.name for argument in schema.arguments),
        defaults=tuple(
            argument.default_value if argument.has_default_value() else None for argument in schema.arguments
        ),
        decomposes=has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "CPU"),
    )


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
        """Compiled code that nobody could know of stays compiled."""
        return True

    @_between_pauses
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "namespace", "") == "prim":  # asks for a device or a layout, and computes nothing
            return func(*args, **kwargs)
        if any(map(runs_python, types)):
            if torch._C._len_torch_dispatch_stack() == 0:
                return NotImplemented  # the subclass runs it, and this mode sees the operations inside
            output = func(*args, **kwargs)  # a mode of somebody else's expects it as it is
            self._recorder.passed_over(func)
            return output
        if schema_of(func).decomposes and all(map(is_dense, tensors_in((*args, *kwargs.values())))):
            # Inference mode skips autograd, and with it the place where composites are taken apart.
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        args, kwargs = self._recorder.cast(func, args, kwargs)
        output = as_on_cuda(schema_of(func).name, args, func(*args, **kwargs))
        self._recorder.saw_operation(func, args, kwargs, output)
        return output


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
        self._recorder.note_autocast()
        name = _WHOLE_CALLS.get(func)
        if name is not None and all(map(is_dense, tensors_in((*args, *kwargs.values())))):
            return self._recorder.run_whole(name, func, args, kwargs)
        with self._recorder.cast_call(func, args, kwargs) as (args, kwargs):
            return self._run(func, args, kwargs)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _HOLDS_ATTENTION:
            with self._shown_inside(functional, "scaled_dot_product_attention", self._attend):
                return func(*args, **kwargs)
        if func in _RUN_AUTOGRAD:
            with self._shown_inside(torch.autograd, "_engine_run_backward", self._run_autograd):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _attend(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        if not all(map(is_dense, tensors_in((*args, *kwargs.values())))):
            return original(*args, **kwargs)
        return self._recorder.run_whole(ATTENTION, original, args, kwargs)

    def _run_autograd(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        with self:
            return original(*args, **kwargs)

    @contextmanager
    def _shown_inside(self, holder: Any, name: str, instead: Call) -> Iterator[None]:
        """Call `instead(original, ...)` for a function of torch, on this thread only, and put the original back."""
        original = getattr(holder, name, None)
        thread = threading.get_ident()

        def shown(*args: Any, **kwargs: Any) -> Any:
            return (instead if threading.get_ident() == thread else _call)(original, *args, **kwargs)

        if original is None:  # a release of torch without it
            yield
            return
        try:
            setattr(holder, name, shown)
            yield
        finally:
            setattr(holder, name, original)


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


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
