"""`DispatchRecorder`: records a step on the CPU or the meta device while it runs, with torch's dispatch modes.

A `TorchDispatchMode` sees every operation below autograd, in the forward and backward pass. A `TorchFunctionMode` sees
calls that are recorded as one operation ("whole calls", `signatures.py`). While such a call runs, the dispatch mode
skips its parts. Parts of its backward pass are identified by autograd's sequence numbers: the nodes that the call
creates have numbers between autograd's counter before and after the call. Nothing is copied, cloned or computed twice.
Operations that cannot be read (on nested tensors, for example) run unchanged, and `notes` lists them. Example::

    recorder = DispatchRecorder()
    recorder.start()
    loss = model(batch).sum(); loss.backward(); optimizer.step()
    recorder.stop()
    recorder.operations          # [Operation(name='aten::addmm', phase='forward', ...), ...]
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from lightning_predict.base.answers import NAMES_SHOWN
from lightning_predict.base.errors import CaptureError
from lightning_predict.base.guard import own_error
from lightning_predict.base.units import MEBIBYTE
from lightning_predict.record.data_flow import storages_without_maker
from lightning_predict.record.graph_release import HeldNodes, drain
from lightning_predict.record.hooks import ModuleWatch, OptimizerWatch
from lightning_predict.record.meta_device import AutocastOnMeta, autocast_dtype
from lightning_predict.record.micro_batches import RecordedMicroBatch, complete_step
from lightning_predict.record.modes import (
    OperationMode,
    Schema,
    WholeCallMode,
    leave_modes,
    open_constructors,
    open_profiler_watch,
    schema_of,
)
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
from lightning_predict.record.pauses import PauseTimer
from lightning_predict.record.phases import PhaseRules
from lightning_predict.record.signatures import (
    MASK_STRIDE,
    SIGNATURES,
    backward_inputs,
    backward_name,
    computes,
    is_cast_down,
    recorded_name,
    whole_arguments,
)
from lightning_predict.record.tensors import (
    Args,
    Kwargs,
    StorageIds,
    TorchFunction,
    dtype_name,
    json_argument,
    tensors_in,
)
from lightning_predict.record.trace import Flags, Operation, TensorInfo, Trace

if TYPE_CHECKING:
    from lightning_predict.record.assumed_values import AssumedValues

_NoFunctionModes: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunction

MAX_OPERATIONS: Final = 75_000  # Maximum number of operations of a step, 1.1 KiB each; 1,500 layers have 60,000

_TENSORS: Final = frozenset({torch.Tensor, torch.nn.Parameter})
_PLAIN: Final = frozenset({bool, int, str})

_current_node: Callable[[], Any] = torch._C._current_autograd_node
_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_OUTSIDE: Final = -1  # Value of torch's graph task id if no backward pass is running
_ACCUMULATES: Final = 2**64 - 1  # Sequence number of nodes that accumulate into `.grad`, which run between any others

_COPIES: Final = frozenset({"aten::_to_copy", "aten::copy_"})


@dataclass(slots=True)
class _Parts:
    """Parts of a whole call that were seen so far."""

    ran: bool = False
    compute_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class _Region:
    """Autograd nodes of one whole call: sequence numbers from `start` to `end`, without `end`."""

    start: int
    end: int
    operation: Operation


def _lies_in_columns(factor: Any) -> bool:
    """Return whether a matmul factor is an ordinary matrix (or batch of matrices) in column-major order."""
    is_plain = type(factor) in _TENSORS and factor.layout is torch.strided and not factor.is_nested
    return is_plain and is_transposed(factor.shape, factor.stride())


def _contiguous_elements(name: str, tensors: Sequence[torch.Tensor], arguments: Mapping[str, Any]) -> int | None:
    """Return the number of contiguous elements per block; None if all operands have the same memory layout."""
    if any(tensor.layout is not torch.strided or tensor.is_nested for tensor in tensors):
        return None
    if all(tensor.is_contiguous() for tensor in tensors):
        return None
    return contiguous_elements(name, [(tensor.shape, tensor.stride()) for tensor in tensors if tensor.shape], arguments)


def _may_be_parameter(tensor: torch.Tensor, *, in_backward: bool) -> bool:
    """Return whether a leaf tensor that requires gradients can be a parameter.

    Activations can also be leaves: recomputed activations in a backward pass with gradient checkpointing, and views of
    activations in code without gradients. A reference to such a leaf would keep its inputs alive.
    """
    if in_backward or not tensor.is_leaf:
        return False
    whole = tensor._base
    return whole is None or not whole.requires_grad


def _are_alike(one: Operation, other: Operation) -> bool:
    """Return whether two calls have inputs of the same shapes and dtypes."""
    kinds = [[(tensor.shape, tensor.dtype) for tensor in each.inputs] for each in (one, other)]
    return kinds[0] == kinds[1]


class DispatchRecorder:
    """Records the operations between `start` and `stop`, which may be called repeatedly.

    An error in the recorder ends the recording, but never reaches the step.

    Args:
        model: Model that defines module names; None uses the outermost modules that are called.
        ends_long_steps: Whether a step on the meta device ends with an error at `MAX_OPERATIONS`.
    """

    peak_bytes: int | None = None  # only the profiler sees allocations

    def __init__(self, model: torch.nn.Module | None = None, *, ends_long_steps: bool = False) -> None:
        self.operations: list[Operation] = []  # Recorded operations, in order
        self.modules = ModuleWatch(model)
        # Leaf tensors with gradients that were read; they count as parameters if no module is known
        self.leaves: dict[int, torch.Tensor] = {}
        self.autocast_dtype: str | None = None  # dtype of the active autocast; None if autocast is off
        self.failure: Exception | None = None  # Error that ended the recording; None without an error
        # Error that each further operation of the step raises; None lets the step run to its end
        self.raised_in_step: CaptureError | None = None
        self._ends_long_steps = ends_long_steps
        self._rules = PhaseRules()
        self.optimizers = OptimizerWatch(self._rules.step_ended, self._part_ends)
        self._numbers = StorageIds()
        self.pauses = PauseTimer(self._is_in_torch)  # Timer of the code between operations
        self._casts = AutocastOnMeta(self._report_copy, self._numbers)
        self._modes: tuple[OperationMode, WholeCallMode] | None = None
        self._constructors = ExitStack()
        self._parts: _Parts | None = None
        self._regions: list[_Region] = []
        self._burst: _Region | None = None
        self._passed_over: Counter[str] = Counter()
        self._held: dict[int, HeldNodes] = {}  # by graph task id
        # Storages that were freed later than after their last use, by the index of the previous operation. Also the
        # storages that are alive at the end.
        self._freed: dict[int, list[int]] = {}
        self._alive_at_stop: tuple[int, ...] = ()
        self._assumed: AssumedValues | None = None  # created at the first value that a step reads on the meta device
        self._begins: int | None = None  # index of the first operation; None while not recording
        self._first_node = 0
        self._nodes = 0
        self._recorded_parts: list[RecordedMicroBatch] = []
        self._written_in_burst: dict[int, TensorInfo] = {}
        self._burst_at = 0
        self._sum_at: int | None = None
        self.forward_gradient_bytes = 0  # Size of the gradients of `leaves` when each leaf was first read
        self._last_number: int | None = None
        # Autograd's counter after each forward operation, with its module, to find the module of a backward node.
        self._counters: list[int] = []
        self._counted_modules: list[str | None] = []

    def start(self) -> None:
        """Start recording on this thread."""
        self._begins = len(self.operations)
        self._first_node = _sequence_number()
        if self._begins:  # storages freed since the last stop were not freed by this part
            self._guarded(self._note_freed)
        self.optimizers.open()
        self.modules.open()
        self._constructors = open_constructors()
        self._modes = (OperationMode(self), WholeCallMode(self))
        self._modes[0].__enter__()  # type: ignore[no-untyped-call]
        self._modes[1].__enter__()  # type: ignore[no-untyped-call]
        self._constructors.enter_context(open_profiler_watch(*self._modes))
        self.pauses.open()

    def stop(self) -> None:
        """Stop recording, and remove all modes and hooks. Calling it again has no effect."""
        with ExitStack() as parts:  # each callback runs even if others raise
            parts.callback(self.pauses.close, after=len(self.operations))
            parts.callback(self._store_hook_failures)
            parts.callback(self._guarded, self._note_alive)
            parts.callback(self.modules.close)
            parts.callback(self.optimizers.close)
            parts.callback(self._constructors.close)
            if self._modes is not None:
                parts.callback(leave_modes, *self._modes)
        self._modes = None
        self._held.clear()
        drain()

    def _note_alive(self) -> None:
        """Store which storages are alive at the end, and how many nodes autograd created."""
        if self._written_in_burst:
            self._end_burst()
        self._note_freed()
        self._alive_at_stop = tuple(self._numbers.alive)
        if self._begins is not None:
            self._nodes += _sequence_number() - self._first_node
            part = RecordedMicroBatch(self._begins, len(self.operations), frozenset(self._alive_at_stop))
            self._recorded_parts.append(part)
        self._begins = None

    def _store_hook_failures(self) -> None:
        """Store the failures of hooks, which make the recording incomplete."""
        for watch in (self.modules, self.optimizers):
            if watch.failure is not None:
                self.fail(watch.failure)

    @property
    def has_cast_on_meta(self) -> bool:
        """Whether autocast was active for an operation on the meta device."""
        return self._casts.has_cast

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Notes on values of meta tensors that the step read, and that had to be assumed."""
        return () if self._assumed is None else self._assumed.notes

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user about assumed values, and about operations that were not recorded."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        yield from self.assumptions
        leaves = [(tuple(leaf.shape), dtype_name(leaf.dtype)) for leaf in self.leaves.values()]
        unmade = sum(tensor.size_bytes for tensor in storages_without_maker(self.operations, leaves).values())
        if unmade >= MEBIBYTE:
            yield (
                f"The backward pass reads {unmade / MEBIBYTE:,.0f} MiB that no recorded operation wrote; memory counts "
                "them from their first to their last use. Make them in the forward pass, or report this step."
            )
        if self._passed_over:
            shown = [name for name, _ in self._passed_over.most_common(NAMES_SHOWN)]
            more = ", ..." if len(self._passed_over) > len(shown) else ""
            yield (
                f"{sum(self._passed_over.values())} operations that the recorder cannot observe (nested tensors, "
                "subclasses under another dispatch mode, some of linear algebra) are missing: "
                f"{', '.join(shown)}{more}. Predictions leave them out."
            )

    def cast(self, schema: Schema, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Return the arguments for running an operation. Only autocast on the meta device changes them."""
        casts = self._casts
        if self._parts is not None or not (casts.has_cast or casts.dtype):
            return args, kwargs
        in_backward = _graph_task() != _OUTSIDE and not torch.is_grad_enabled()
        if self.failure is not None or (self.optimizers.inside and not in_backward):
            return args, kwargs
        with torch._C.DisableTorchFunction():
            return casts.cast(schema.name, args, kwargs, in_backward=in_backward)

    def note_autocast(self) -> bool:
        """Store whether autocast is active, which operations below autograd cannot see."""
        dtype = self._casts.dtype = autocast_dtype()
        if dtype is None:
            self._casts.clear()
        if dtype is not None and self.autocast_dtype is None:
            self.autocast_dtype = dtype_name(dtype)
        return dtype is not None

    def cast_call(self, func: TorchFunction, args: Args, kwargs: Kwargs) -> AbstractContextManager[tuple[Args, Kwargs]]:
        """Return the arguments for running a function. Only autocast on the meta device changes them."""
        if self._casts.dtype is None or self.failure is not None or self._parts is not None:
            return nullcontext((args, kwargs))
        return self._casts.cast_call(func, args, kwargs)

    def _report_copy(self, source: torch.Tensor, copy: torch.Tensor) -> None:
        self.record_operation(schema_of(torch.ops.aten._to_copy.default), (source,), {"dtype": copy.dtype}, copy)

    def fail(self, error: Exception) -> None:
        """Stop recording after an error."""
        self.failure = self.failure or error

    def _part_ends(self) -> None:
        """Split a pause at the start or end of an optimizer update, so that user code counts on the correct side."""
        self.pauses.ends(before=len(self.operations))
        self.pauses.begins()

    def _is_in_torch(self) -> bool:
        """Return whether user code cannot have run since the last operation: inside an update or a backward pass."""
        if self.optimizers.inside:
            return True
        return _graph_task() != _OUTSIDE and bool(self.operations) and self.operations[-1].phase == "backward"

    @property
    def timed_operations(self) -> tuple[Operation, ...]:
        """Operations with the Python time before each operation, and with the storages that were freed late."""
        timed = list(self.pauses.placed(self.operations, parameters=len(self.leaves), nodes=self._nodes))
        for index, numbers in self._freed.items():
            timed[index] = replace(timed[index], freed=tuple(numbers))
        return tuple(timed)

    @property
    def surviving(self) -> tuple[int, ...]:
        """Storages that the step wrote, and that were alive at `stop`."""
        given, written = set[int | None](), set[int | None]()
        for operation in self.operations:
            given.update([tensor.id for tensor in operation.inputs if tensor.id not in written])
            written.update([tensor.id for tensor in operation.outputs])
        return tuple(number for number in self._alive_at_stop if number in written and number not in given)

    def trace(self, *, represented_by: Sequence[int] = ()) -> Trace:
        """Return the recorded step; `represented_by` as in `CaptureSession.trace`."""
        timed, held = self.timed_operations, self.surviving
        if represented_by:
            lasting = {self._numbers.number(leaf) for leaf in self.leaves.values()}
            timed, held = complete_step(
                timed, self._recorded_parts, represented_by=represented_by, parameters=lasting, surviving=held
            )
        return Trace(
            operations=timed,
            device="cpu",  # the session knows the device
            recorder="dispatch",
            optimizer_steps=self.optimizers.steps,
            held=held,
            flags=Flags(autocast_dtype=self.autocast_dtype),
            notes=self.notes,
        )

    def read_storages(self, tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
        """Return the storages of the given tensors that an operation has read."""
        read = {tensor.id for operation in self.operations for tensor in operation.inputs}
        numbers = dict.fromkeys(self._numbers.number(tensor) for tensor in tensors)
        return tuple(number for number in numbers if number is not None and number in read)

    def record_operation(self, schema: Schema, args: Args, kwargs: Kwargs, output: Any) -> None:
        """Record an operation that has run."""
        if self.failure is not None:
            return
        try:
            # Accessing attributes of tensors calls torch functions, which function modes of the step must not see.
            with _NoFunctionModes():
                self._record(schema, args, kwargs, output)
        except Exception as error:
            self.fail(own_error(error))
        if len(self.operations) >= MAX_OPERATIONS:
            refusal = CaptureError(
                f"The step was cut after {MAX_OPERATIONS:,} operations, so that its recording takes less than 100 MiB. "
                "Record a shorter step, for example fewer iterations of its loop. If it accumulates gradients, record "
                "one batch and its update, and predict with strategy='accumulate=8'."
            )
            self.fail(refusal)
            if self._ends_long_steps and any(tensor.is_meta for tensor in tensors_in((args, output))):
                self.raised_in_step = refusal

    def run_without_values(
        self, schema: Schema, func: TorchFunction, args: Args, kwargs: Kwargs, error: RuntimeError
    ) -> Any:
        """Return an assumed result for an operation that failed because meta tensors lack values, or raise `error`."""
        from lightning_predict.record.assumed_values import AssumedValues

        if self._assumed is None:
            self._assumed = AssumedValues(self.operations, self._numbers.number)
        try:
            return self._assumed.output_of(schema.name, func, args, kwargs)
        except Exception:  # the user should see the error of the step
            raise error from None

    def record_skipped(self, schema: Schema) -> None:
        """Store that an operation ran that cannot be described."""
        if self.failure is None:
            self._guarded(self._record_skipped, schema.name)

    def _record_skipped(self, name: str) -> None:
        self._passed_over[name] += 1

    def record_whole_call(self, name: str, call: TorchFunction, args: Args, kwargs: Kwargs) -> Any:
        """Run a call that is recorded as one operation, without recording its parts."""
        if self.failure is not None or self._parts is not None:
            return call(*args, **kwargs)
        parts = self._parts = _Parts()  # casts in the call belong to the call
        try:
            self.note_autocast()
            first_number = _sequence_number()
            positional, dtype = self._casts.cast_whole(name, args)
            by_name, _ = self._casts.cast_whole(name, kwargs)
            parts.compute_dtype = None if dtype is None else dtype_name(dtype)
        except Exception as error:
            self.fail(own_error(error))
            self._parts = None
            return call(*args, **kwargs)
        output = None
        try:
            output = call(*positional, **by_name)
        finally:
            self._parts = None
            # Checkpointing ends a recomputation early by raising an error, when the parts have run.
            if output is not None or parts.ran:
                self._guarded(self._record_whole, name, args, kwargs, output, parts, first_number)
        return output

    def _guarded(self, record: Callable[..., None], *values: Any, **named: Any) -> None:
        """Run a recording function. An error ends the recording, and is not raised."""
        try:
            with _NoFunctionModes():
                record(*values, **named)
        except Exception as error:
            self.fail(own_error(error))

    def _record(self, schema: Schema, args: Args, kwargs: Kwargs, output: Any) -> None:
        if self._parts is not None:
            self._parts.ran = True
            if self._parts.compute_dtype is None and computes(schema.name):
                self._parts.compute_dtype = next((dtype_name(t.dtype) for t in tensors_in(args)), None)
            return
        in_backward = _graph_task() != _OUTSIDE
        number = self._node_number() if in_backward else None
        if schema.marks:
            return
        if number is not None and self._is_part_of_backward(number):
            if schema.name == "aten::add" and self._sum_at is None:
                self._note_sum(args)
            self._note_part_of_backward(output)
            return
        words, values = schema.words, args
        if kwargs or not words:  # keyword arguments, or an operator without argument names
            values = (*args, *schema.defaults[len(args) :])
            given = zip(words or map(str, range(len(values))), values, strict=True)
            named = {word: kwargs.get(word, value) for word, value in given}
            words, values = tuple(named), tuple(named.values())
        tensors: list[torch.Tensor] = []
        arguments: dict[str, Any] = {}
        for word, value in zip(words, values, strict=False):
            kind = type(value)
            if kind in _TENSORS:
                tensors.append(value)
            elif value is None:
                continue
            elif kind in _PLAIN:
                arguments[word] = value
            else:
                inner = list(tensors_in(value))
                tensors.extend(inner)
                if not inner and kind is not torch.Generator:  # its instance check would run Python code
                    arguments[word] = json_argument(value)
        if len(values) < len(words):
            arguments.update(schema.left_out[len(values)])
        outputs = [output] if type(output) in _TENSORS else list(tensors_in(output))
        images = IMAGES_POSITION.get(schema.name)
        if images is not None and is_channels_last(values[images].shape, values[images].stride()):
            arguments[CHANNELS_LAST] = True
        factor = SECOND_FACTOR_POSITION.get(schema.name)
        if factor is not None and _lies_in_columns(values[factor]):
            arguments[SECOND_TRANSPOSED] = True
        if factor is not None and _lies_in_columns(values[factor - 1]):
            arguments[FIRST_TRANSPOSED] = True
        if (
            schema.name in RECORDED_WITH_STRIDES
            and (beside := _contiguous_elements(schema.name, tensors, arguments)) is not None
        ):
            arguments[CONTIGUOUS_ELEMENTS] = beside
        self._add(schema.name, tensors, outputs, arguments, number, in_backward=in_backward)

    def _record_whole(
        self, name: str, args: Args, kwargs: Kwargs, output: Any, parts: _Parts, first_number: int
    ) -> None:
        words = [word.removeprefix("@") for word in SIGNATURES[name][0]]
        values = [*args, *([None] * (len(words) - len(args)))]
        for word, value in kwargs.items():
            values[words.index(word)] = value
        tensors = list(tensors_in(values))
        is_tensor = [None if value is None else any(True for _ in tensors_in(value)) for value in values]
        plain = [json_argument(value) if kind is False else None for value, kind in zip(values, is_tensor, strict=True)]
        arguments = whole_arguments(name, plain, is_tensor=is_tensor)
        if arguments.get("attn_mask") and values[3].dim():
            arguments[MASK_STRIDE] = values[3].stride(-1)
        if is_cast_down(dtype_name(tensors[0].dtype), parts.compute_dtype):
            arguments["compute_dtype"] = parts.compute_dtype
        outputs = list(tensors_in(output))
        in_backward = _graph_task() != _OUTSIDE
        number = self._node_number() if in_backward else None
        operation = self._add(recorded_name(name), tensors, outputs, arguments, number, in_backward=in_backward)
        last_number = _sequence_number()
        if operation is not None and last_number > first_number:
            self._regions.append(_Region(first_number, last_number, operation))

    def _add(
        self,
        name: str,
        tensors: list[torch.Tensor],
        outputs: list[torch.Tensor],
        arguments: dict[str, Any],
        number: int | None,
        *,
        in_backward: bool,
    ) -> Operation | None:
        if self._written_in_burst and self._burst is None:
            self._end_burst()
        self._note_freed()
        inputs, written = self._described(tensors), self._described(outputs)
        if inputs is None or written is None:
            self._record_skipped(name)
            return None
        grad_enabled = torch.is_grad_enabled()
        in_module = self.modules.inside
        needs_grad = False
        leaves = list[torch.Tensor]()
        for tensor in tensors:
            if tensor.requires_grad:
                needs_grad = True
                if id(tensor) not in self.leaves and _may_be_parameter(tensor, in_backward=in_backward):
                    self.leaves[id(tensor)] = tensor
                    leaves.append(tensor)
        phase = self._rules.phase_of(
            name,
            in_optimizer=self.optimizers.inside,
            in_backward=in_backward,
            builds_graph=grad_enabled and needs_grad,
            grad_enabled=grad_enabled,
            in_module=in_module,
            between_devices=name in _COPIES and len({tensor.device.type for tensor in (*tensors, *outputs)}) > 1,
        )
        if phase == "forward":
            held = (leaf.grad for leaf in leaves)
            self.forward_gradient_bytes += sum(one.numel() * one.element_size() for one in held if one is not None)
        operation = Operation(
            name=name,
            phase=phase,
            inputs=inputs,
            outputs=written,
            arguments=arguments,
            module=self._module(number, in_module=in_module, grad_enabled=grad_enabled),
        )
        self.operations.append(operation)
        return operation

    def _note_freed(self) -> None:
        """Store which storages were freed after the last operation. Call this before the next operation is added."""
        drain()  # otherwise, nodes of graphs that are kept for a second backward pass would keep saved tensors alive
        freed = self._numbers.take_freed()
        if freed and self.operations:
            last = self.operations[-1]
            used = {tensor.id for tensor in last.inputs + last.outputs}
            late = [number for number in freed if number not in used]
            if late:
                self._freed.setdefault(len(self.operations) - 1, []).extend(late)

    def _described(self, tensors: list[torch.Tensor]) -> tuple[TensorInfo, ...] | None:
        """Describe tensors; None if a tensor cannot be described."""
        described = []
        for tensor in tensors:
            info = self._numbers.describe(tensor)
            if info is None:
                return None
            described.append(info)
        return tuple(described)

    def _node_number(self) -> int | None:
        """Return the sequence number of the running autograd node; None if unknown."""
        node = _current_node()
        if node is None:
            return None
        number: int = node._sequence_nr()
        if number != self._last_number:
            self._last_number = number
            self._held.setdefault(_graph_task(), HeldNodes()).saw(node)
        return number

    def _module(self, number: int | None, *, in_module: bool, grad_enabled: bool) -> str | None:
        """Return the name of the module that is called, or of the module whose backward pass is running."""
        if in_module or number is None:
            name = self.modules.name if in_module else None
        else:
            index = bisect_right(self._counters, number)
            is_known = number != _ACCUMULATES and index < len(self._counters)
            name = self._counted_modules[index] if is_known else None
        if grad_enabled:  # also in the backward pass, where checkpointing recomputes and creates new nodes
            self._counters.append(_sequence_number())
            self._counted_modules.append(name)
        return name

    def _computed_again(self, region: _Region) -> Operation:
        """Find the recomputed call that replaces a region's call under checkpointing; the backward pass reads it."""
        first = region.operation
        if self._regions[-1].operation.phase == "backward":
            for later in reversed(self._regions):
                own = later.operation
                if later.start <= region.start:
                    break
                if own.phase == "backward" and (own.name, own.module) == (first.name, first.module):
                    return replace(first, inputs=own.inputs) if _are_alike(own, first) else first
        return first

    def _is_part_of_backward(self, number: int) -> bool:
        """Return whether an operation belongs to a whole call's backward pass, which is recorded at its first part.

        Autograd runs the nodes of a call consecutively, because the highest sequence number runs first. Only nodes that
        accumulate into `.grad` may run between these nodes.
        """
        if number == _ACCUMULATES:
            return False
        if torch.is_grad_enabled():  # recomputation under checkpointing, or a double backward
            return False
        index = bisect_right(self._regions, number, key=lambda region: region.start) - 1
        region = self._regions[index] if index >= 0 and number < self._regions[index].end else None
        if region is not None and region is not self._burst:
            forward = self._computed_again(region)
            self._rules.phase_of(forward.name, in_backward=True)
            backward = replace(
                forward,
                name=backward_name(forward.name),
                phase="backward",
                inputs=backward_inputs(forward.name, forward.inputs),
                outputs=(),
            )
            if self._written_in_burst:
                self._end_burst()
            self._note_freed()
            self._burst_at = len(self.operations)
            self.operations.append(backward)
        self._burst = region
        return region is not None

    def _note_sum(self, args: Args) -> None:
        """Record the sum of a whole call's gradient and that of another use of its input, such as of a residual.

        Autograd adds each part's gradient to the other gradient; a kernel for the whole call has one to add.
        """
        backward = self.operations[self._burst_at]
        read = [tensor.id for tensor in backward.inputs]
        both = self._described([value for value in args[:2] if isinstance(value, torch.Tensor)]) or ()
        is_own = [tensor.id in self._written_in_burst or tensor.id in read for tensor in both]
        if sorted(is_own) == [False, True]:
            self._note_freed()
            self._sum_at = len(self.operations)
            inputs = both if is_own[0] else both[::-1]
            self.operations.append(replace(backward, name="aten::add", inputs=inputs, arguments={"alpha": 1}))

    def _note_part_of_backward(self, output: Any) -> None:
        """Store the outputs of a part of a whole call's backward pass; outputs after the last part are the result."""
        for tensor in tensors_in(output):
            described = self._numbers.describe(tensor)
            if described is not None and described.id is not None:
                self._written_in_burst[described.id] = described

    def _end_burst(self) -> None:
        """Set the outputs of a whole call's recorded backward pass: tensors that its parts wrote and that are alive."""
        written, self._written_in_burst = self._written_in_burst, {}
        read = {tensor.id for tensor in self.operations[self._burst_at].inputs}
        alive = self._numbers.alive
        outputs = tuple(tensor for number, tensor in written.items() if number in alive and number not in read)
        if self._sum_at is not None:
            own = self.operations[self._sum_at].inputs[0]
            result = tuple(tensor for tensor in outputs if tensor.shape == own.shape)
            self.operations[self._sum_at] = replace(self.operations[self._sum_at], outputs=result[:1])
            outputs = (*(tensor for tensor in outputs if tensor not in result[:1]), own)
            self._sum_at = None
        self.operations[self._burst_at] = replace(self.operations[self._burst_at], outputs=outputs)
