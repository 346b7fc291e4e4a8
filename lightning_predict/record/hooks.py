"""Tracks optimizers and modules during a step, with torch's global hooks.

Both watchers are open only while a step is recorded; closing a watcher removes its hooks. torch calls hooks within the
step, which must not see errors of a hook. The first error is stored in `failure`, and later hooks do nothing. Example::

    watch = OptimizerWatch()
    watch.open()
    optimizer.step(closure)      # watch.inside is True in the update, False in the closure
    watch.close()
    watch.optimizers             # [optimizer]
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from lightning_predict.base.guard import CAUGHT, own_error, unseen_by_modes
from lightning_predict.record.environment import name_roots
from lightning_predict.record.signatures import MODULE_MARK
from lightning_predict.record.tensors import Args, Kwargs

_graph_task: Callable[[], int] = torch._C._current_graph_task_id

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class _Watch(Protocol):
    failure: Exception | None


_AnyWatch = TypeVar("_AnyWatch", bound=_Watch)


def _unseen_by_the_step(
    hook: Callable[Concatenate[_AnyWatch, Parameters], Result],
) -> Callable[Concatenate[_AnyWatch, Parameters], Result | None]:
    """Wrap a hook, so that the hook stores its first error, and does nothing afterwards.

    The compiler, which traces hooks, sees a hook that does nothing. `torch.cond` compiles even in eager mode.
    """

    @wraps(hook)
    def guarded(watch: _AnyWatch, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result | None:
        if torch.compiler.is_dynamo_compiling() or watch.failure is not None:
            return None
        try:
            with unseen_by_modes():
                return hook(watch, *args, **kwargs)
        except CAUGHT as error:
            watch.failure = own_error(error)
            return None

    return guarded


class OptimizerWatch:
    """Tracks which optimizers step, and whether an optimizer is stepping now."""

    def __init__(
        self, on_step_end: Callable[[], None] = lambda: None, before_change: Callable[[], None] = lambda: None
    ) -> None:
        self.failure: Exception | None = None  # First error in a hook; None without an error
        self.optimizers: list[Optimizer] = []  # Optimizers that stepped, in the order of their first step
        self.steps = 0
        self.on_step_end = on_step_end
        self.before_change = before_change  # Called before `inside` changes
        # Graph task id of the backward pass around each open step (-1 outside a backward pass), or _CLOSURE in a
        # closure.
        self._open: list[int | None] = []
        self._stepping: list[Optimizer] = []
        self._thread = threading.get_ident()
        self._handles: list[RemovableHandle] = []

    @property
    def inside(self) -> bool:
        """Whether an optimizer step is running, outside its closure."""
        return bool(self._open) and self._open[-1] == _graph_task()

    def open(self) -> None:
        """Register the hooks. Only this thread is tracked, because other threads may train another model."""
        self._thread = threading.get_ident()
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        """Remove the hooks. Calling it again has no effect."""
        _remove(self._handles)
        self._open = []
        self._stepping = []

    @_unseen_by_the_step
    def _before_step(self, optimizer: Optimizer, args: Args, kwargs: dict[Any, Any]) -> tuple[Args, Kwargs] | None:
        if threading.get_ident() != self._thread:
            return None
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)
        self._stepping.append(optimizer)
        self.before_change()
        self._open.append(_graph_task())
        if "closure" in kwargs and callable(kwargs["closure"]):
            return args, {**kwargs, "closure": self._outside(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._outside(args[1]), *args[2:]), kwargs
        return None

    @_unseen_by_the_step
    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        if threading.get_ident() != self._thread:
            return
        self.before_change()
        if self._open:
            self._open.pop()
        if self._stepping:
            self._stepping.pop()
        # An optimizer's step may call its parent's step, for which torch calls the hooks, too. Both calls count as one
        # update.
        if not any(outer is optimizer for outer in self._stepping):
            self.steps += 1
            self.on_step_end()

    def _outside(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap a closure so that it does not count as part of the update."""

        def watched() -> Any:
            with suppress(*CAUGHT):  # hooks store their own errors, and this catches errors before a hook begins
                self._enter_closure()
            try:
                return closure()
            finally:
                with suppress(*CAUGHT):
                    self._leave_closure()

        return watched

    @_unseen_by_the_step
    def _enter_closure(self) -> None:
        self.before_change()
        self._open.append(_CLOSURE)

    @_unseen_by_the_step
    def _leave_closure(self) -> None:
        self.before_change()
        if self._open:
            self._open.pop()


_CLOSURE: Final = None  # Marks the inside of a step's closure; different from every graph task id


def _remove(handles: list[RemovableHandle]) -> None:
    """Remove all hooks of a list and empty the list, even if removing a hook raises an error."""
    with ExitStack() as parts:
        while handles:
            parts.callback(handles.pop().remove)


class ModuleWatch:
    """Tracks which module is called, by its qualified name.

    Without a model, names are relative to the outermost module that is known at the time of the call. A model may be
    called after one of its parts, and a step may call several models. `final_names` translates the relative names to
    the names of parameters.

    Args:
        model: Model that defines the names; None uses the outermost modules that are called.
        marks: Whether to mark each call for a running profiler, which takes about a microsecond per call.
    """

    def __init__(self, model: torch.nn.Module | None = None, *, marks: bool = False) -> None:
        self.failure: Exception | None = None  # First error in a hook; None without an error
        self.roots: list[torch.nn.Module] = []  # Outermost modules that were called, in the order of their first call
        self._mark = getattr(torch._C._profiler, "_RecordFunctionFast", None) if marks else None
        self._open_marks: list[Any] = []
        self._names: dict[int, str] = {}
        self._count = 0  # number of modules that were taken for outermost modules
        self._parts: set[int] = set()
        self._named_by_model = model is not None
        self._calls: list[torch.nn.Module] = []
        self._handles: list[RemovableHandle] = []
        self._thread = threading.get_ident()
        if model is not None:
            self._names = {id(module): name for name, module in _named_parts_of(model)}

    @property
    def inside(self) -> bool:
        """Whether a module is being called."""
        return bool(self._calls)

    @property
    def name(self) -> str | None:
        """Qualified name of the innermost named module that is being called; None outside of modules."""
        for module in reversed(self._calls):
            name = self._names.get(id(module))
            if name:
                return name
        return None

    def final_names(self) -> dict[str, str | None]:
        """Map names while recording to final names, if they differ; None is a single outermost module."""
        if self._named_by_model:
            return {}
        finals: dict[str, str | None] = {}
        for prefix, root in name_roots(self.roots):
            for name, module in _named_parts_of(root):
                given = self._names.get(id(module))
                if given is not None:
                    finals.setdefault(given, f"{prefix}{name}".removesuffix(".") or None)
        return {given: final for given, final in finals.items() if given != final}

    def open(self) -> None:
        """Register the hooks."""
        self._thread = threading.get_ident()
        self._handles = [
            register_module_forward_pre_hook(self._before_call),
            register_module_forward_hook(self._after_call, always_call=True),
        ]

    def close(self) -> None:
        """Remove the hooks. Calling it again has no effect."""
        with ExitStack() as parts:
            while self._open_marks:
                parts.push(self._open_marks.pop())
            _remove(self._handles)
        self._calls = []

    @_unseen_by_the_step
    def _before_call(self, module: torch.nn.Module, _args: object) -> None:
        if threading.get_ident() != self._thread:
            return
        # A part of a root may be called directly: checkpointing calls layers again during the backward pass.
        if not self._calls and id(module) not in self._parts:
            self._add_root(module)
        self._calls.append(module)
        if self._mark is not None:
            mark = self._mark(f"{MODULE_MARK}{self.name or ''}")
            mark.__enter__()
            self._open_marks.append(mark)

    @_unseen_by_the_step
    def _after_call(self, module: torch.nn.Module, *_: object) -> None:
        if threading.get_ident() == self._thread and self._calls and self._calls[-1] is module:
            self._calls.pop()
            if self._open_marks:
                self._open_marks.pop().__exit__(None, None, None)

    def _add_root(self, module: torch.nn.Module) -> None:
        """Add an outermost module. Parts of the module that were added before are removed."""
        parts = {id(part) for part in _parts_of(module)} | {id(module)}
        self.roots = [*(root for root in self.roots if id(root) not in parts), module]
        self._parts |= parts
        if not self._named_by_model:
            # Names in the first module are final unless more modules follow. Later modules get a number as prefix.
            prefix = f"{self._count}:"
            for name, part in _named_parts_of(module):
                self._names.setdefault(id(part), name if name and not self._count else f"{prefix}{name}")
            self._count += 1


def _named_parts_of(root: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """List the named modules inside a module; empty if the model fails to list them, because names are optional."""
    with suppress(Exception):
        return list(root.named_modules())
    return []


def _parts_of(root: torch.nn.Module) -> list[torch.nn.Module]:
    """List modules inside a module; empty if the model fails to list them."""
    with suppress(Exception):
        return list(root.modules())
    return []
