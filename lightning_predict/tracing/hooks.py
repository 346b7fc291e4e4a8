"""Watch optimizers and modules around the operations of a step, through torch's global hooks.

Both watchers are open only while a step is recorded; closing them removes every hook. What fails in a hook is kept in
`failure`, and the hook does nothing from then on: torch calls it within the step, which must not see it. Example::

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
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, final

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from lightning_predict.guard import FAILURES, as_error
from lightning_predict.tracing.attribution import MODULE_MARK
from lightning_predict.tracing.environment import name_roots

_graph_task: Callable[[], int] = torch._C._current_graph_task_id

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class _Watch(Protocol):
    failure: Exception | None


_AnyWatch = TypeVar("_AnyWatch", bound=_Watch)


def _unseen_by_the_step(
    hook: Callable[Concatenate[_AnyWatch, Parameters], Result],
) -> Callable[Concatenate[_AnyWatch, Parameters], Result | None]:
    """Return the hook, which keeps what fails in it and does nothing after that."""

    @wraps(hook)
    def guarded(watch: _AnyWatch, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result | None:
        if watch.failure is not None:
            return None
        try:
            return hook(watch, *args, **kwargs)
        except FAILURES as error:
            watch.failure = as_error(error)
            return None

    return guarded


@final
class OptimizerWatch:
    """Watch which optimizers step, and whether one is stepping right now.

    Attributes:
        optimizers: Those that stepped, in the order of their first step.
        steps: Number of finished steps.
        on_step_end: Called after each step.
        before_change: Called before `inside` becomes another.
        failure: What failed in a hook; None while all is well.
    """

    def __init__(
        self, on_step_end: Callable[[], None] = lambda: None, before_change: Callable[[], None] = lambda: None
    ) -> None:
        self.failure: Exception | None = None
        self.optimizers: list[Optimizer] = []
        self.steps = 0
        self.on_step_end = on_step_end
        self.before_change = before_change
        # Number of the backward pass around each open step (-1 outside of any), or _CLOSURE inside its closure.
        self._open: list[int | None] = []
        self._stepping: list[Optimizer] = []
        self._thread = threading.get_ident()
        self._handles: list[RemovableHandle] = []

    @property
    def inside(self) -> bool:
        """True inside a step and outside its closure."""
        return bool(self._open) and self._open[-1] == _graph_task()

    def open(self) -> None:
        """Begin to watch, on this thread: another may train a model of its own."""
        self._thread = threading.get_ident()
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        """Remove the hooks; closing twice is harmless."""
        _remove(self._handles)
        self._open = []
        self._stepping = []

    @_unseen_by_the_step
    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[Any, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
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
    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self.before_change()
        if self._open:
            self._open.pop()
        if self._stepping:
            self._stepping.pop()
        # An optimizer's own step may call its parent class's, which torch hooks as well: one update all the same.
        if not any(outer is optimizer for outer in self._stepping):
            self.steps += 1
            self.on_step_end()

    def _outside(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return the closure, known to be no part of the update."""

        def watched() -> Any:
            with suppress(*FAILURES):  # each keeps its own failure; what fails before it begins is here
                self._enter_closure()
            try:
                return closure()
            finally:
                with suppress(*FAILURES):
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


_CLOSURE: Final = None
"""Stands for the inside of a step's closure; no backward pass has it as its number."""


def _remove(handles: list[RemovableHandle]) -> None:
    """Remove every hook of a list and empty it, whatever one of them raises."""
    with ExitStack() as parts:
        while handles:
            parts.callback(handles.pop().remove)


@final
class ModuleWatch:
    """Watch which module is being called, by its qualified name.

    Without a model the names are of the modules that are outermost until then, and `final_names` has those that
    parameters get: a model may be called after one of its parts, and a step may call several models.

    Args:
        model: Gives the names; None names modules from each outermost module that is called.
        marks: Mark each call for a profiler that is running, which costs about a microsecond each.

    Attributes:
        roots: Outermost modules that were called, in the order of their first call.
        failure: What failed in a hook; None while all is well.
    """

    def __init__(self, model: torch.nn.Module | None = None, *, marks: bool = False) -> None:
        self.failure: Exception | None = None
        self.roots: list[torch.nn.Module] = []
        self._mark = getattr(torch._C._profiler, "_RecordFunctionFast", None) if marks else None
        self._open_marks: list[Any] = []
        self._names: dict[int, str] = {}
        self._count = 0  # of modules that were taken as outermost
        self._parts: set[int] = set()
        self._named_by_model = model is not None
        self._calls: list[torch.nn.Module] = []
        self._handles: list[RemovableHandle] = []
        self._thread = threading.get_ident()
        if model is not None:
            self._names = {id(module): name for name, module in _named_parts_of(model)}

    @property
    def inside(self) -> bool:
        """True inside a module's call."""
        return bool(self._calls)

    @property
    def name(self) -> str | None:
        """Qualified name of the innermost module being called that has one."""
        for module in reversed(self._calls):
            name = self._names.get(id(module))
            if name:
                return name
        return None

    def final_names(self) -> dict[str, str | None]:
        """Return, by names that were given while watching, those that they are not called in the end.

        None is for the only outermost module, which has no name.
        """
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
        """Begin to watch."""
        self._thread = threading.get_ident()
        self._handles = [
            register_module_forward_pre_hook(self._before_call),
            register_module_forward_hook(self._after_call, always_call=True),
        ]

    def close(self) -> None:
        """Remove the hooks; closing twice is harmless."""
        with ExitStack() as parts:
            while self._open_marks:
                parts.push(self._open_marks.pop())
            _remove(self._handles)
        self._calls = []

    @_unseen_by_the_step
    def _before_call(self, module: torch.nn.Module, _args: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        # A part of a root may be called alone: checkpointing calls layers again while autograd runs.
        if not self._calls and id(module) not in self._parts:
            self._add_root(module)
        self._calls.append(module)
        if self._mark is not None:
            mark = self._mark(f"{MODULE_MARK}{self.name or ''}")
            mark.__enter__()
            self._open_marks.append(mark)

    @_unseen_by_the_step
    def _after_call(self, module: torch.nn.Module, *_: Any) -> None:
        if threading.get_ident() == self._thread and self._calls and self._calls[-1] is module:
            self._calls.pop()
            if self._open_marks:
                self._open_marks.pop().__exit__(None, None, None)

    def _add_root(self, module: torch.nn.Module) -> None:
        """Take a module as outermost, in the place of those of its parts that were taken before."""
        parts = {id(part) for part in _parts_of(module)} | {id(module)}
        self.roots = [*(root for root in self.roots if id(root) not in parts), module]
        self._parts |= parts
        if not self._named_by_model:
            # Modules of the first have their final names, if it stays the only one; the others' are told apart.
            prefix = f"{self._count}:"
            for name, part in _named_parts_of(module):
                self._names.setdefault(id(part), name if name and not self._count else f"{prefix}{name}")
            self._count += 1


def _named_parts_of(root: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """List modules inside a module by name; none if the model's own way of listing them fails: names are a courtesy."""
    with suppress(Exception):
        return list(root.named_modules())
    return []


def _parts_of(root: torch.nn.Module) -> list[torch.nn.Module]:
    """List modules inside a module; none if the model's own way of listing them fails."""
    with suppress(Exception):
        return list(root.modules())
    return []
