"""Base classes and utilities from the Lightning package in use (`lightning` or `pytorch_lightning`).

Both packages contain the same Trainer under two names, but their `Callback` classes are unrelated. A class that
inherits from both `Callback` classes is accepted by either Trainer and by either LightningCLI. Our callbacks inherit
from the packages that the program uses. Example::

    class Greeter(Callback):
        def on_fit_start(self, trainer, pl_module):
            rank_zero_info("hello")
"""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import getattr_static
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

from lightning_predict.base.errors import BudgetExceededError, MissingDependencyError
from lightning_predict.base.guard import keeps_random_state, log_warning, own_error

PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")


def installed_packages() -> tuple[ModuleType, ...]:
    """List the `PACKAGES` that can be imported."""
    modules = []
    for name in PACKAGES:
        try:
            modules.append(import_module(name))
        except ImportError:
            continue
    if not modules:
        raise MissingDependencyError(
            "The callbacks need Lightning, but 'lightning' and 'pytorch_lightning' cannot be imported. "
            "Install it with: pip install lightning"
        )
    return tuple(modules)


def packages_in_use() -> tuple[ModuleType, ...]:
    """List the `PACKAGES` that are already imported; without an imported package, list all installed packages.

    Importing a package that the program does not use would nearly double the import time of the callbacks.
    """
    return tuple(sys.modules[name] for name in PACKAGES if name in sys.modules) or installed_packages()


def lightning_classes(name: str) -> tuple[type[Any], ...]:
    """Find a Lightning callback class in each package in use."""
    return tuple(getattr(package.callbacks, name) for package in packages_in_use())


if TYPE_CHECKING:
    from lightning.pytorch import Callback as Callback
    from lightning.pytorch.utilities import rank_zero_info as rank_zero_info
    from lightning.pytorch.utilities import rank_zero_warn as rank_zero_warn
else:
    _packages = packages_in_use()

    class Callback(*(package.Callback for package in _packages)):
        """Base class of our callbacks: the `Callback` of every Lightning package in use."""

        def __new__(cls, *_: object, **__: object) -> Callback:
            """Create a callback that also inherits from a package that was imported after this module."""
            bases = tuple(package.Callback for package in packages_in_use())
            if Callback.__bases__ != bases:
                Callback.__bases__ = bases
            return super().__new__(cls)

    rank_zero_info = _packages[0].utilities.rank_zero_info
    rank_zero_warn = _packages[0].utilities.rank_zero_warn


def end_of_fit(trainer: Any) -> type[Exception] | None:
    """Return an exception that ends a fit without reaching the script, as Lightning's tuner ends its trials.

    None if this version of Lightning has no such exception, or if processes of a launcher would pass the exception on.
    """
    if getattr(trainer.strategy.launcher, "_start_method", None) is not None:
        return None
    modules = [import_module(f"{package.__name__}.utilities.exceptions") for package in packages_in_use()]
    ends: list[Any] = [getattr(module, "_TunerExitException", None) for module in modules]
    return None if None in ends else type("EndOfFit", (BudgetExceededError, *ends), {})


def leave_validation(trainer: Any) -> None:
    """Restore the training modes that the modules had before validation. `fit` does not if it ends in a validation."""
    try:
        trainer.fit_loop.epoch_loop.val_loop._on_evaluation_model_train()
    except AttributeError:  # another version of Lightning
        trainer.lightning_module.train()


LIGHTNINGS_OWN: Final = frozenset({"log", "log_dict"})
"""Attributes that a Trainer sets on each callback.

These attributes are bound methods of the module, so copying an attribute copies the module's weights."""


class LightningPredictWarning(UserWarning):
    """Warning of a callback: an action failed, or a budget is exceeded. Training is not affected."""


def warn(message: str) -> None:
    """Show a `LightningPredictWarning` on rank zero. If a filter turns warnings into exceptions, log the message."""
    try:
        rank_zero_warn(message, category=LightningPredictWarning, stacklevel=5)
    except Exception as error:
        own_error(error)
        log_warning(message)


def samples_of(batch: object) -> int | None:
    """Return the batch size, which is the first size of all tensors; None if their first sizes differ."""
    with torch._C.DisableTorchFunction():  # reading a shape would call the code of a tensor subclass
        sizes = {int(shape[0]) for shape in map(_shape, leaves_of_batch(batch)) if shape}
    return sizes.pop() if len(sizes) == 1 else None


def shapes_of(batch: object) -> tuple[object, ...] | None:
    """Return shapes and dtypes of the arrays in a batch, and its integers; None if a part cannot be read."""
    with torch._C.DisableTorchFunction():
        shapes = tuple(_shapes(batch))
    return None if None in shapes else shapes


def leaves_of_batch(value: object) -> Iterator[object]:
    """Yield the parts of a batch that are no containers. No code of the user runs that may draw random numbers."""
    parts = _members(value)
    if parts is None:
        yield value
    else:
        for part in parts.values():
            yield from leaves_of_batch(part)


def _members(value: object) -> dict[Any, object] | None:
    """Return the parts of a container by name, without its own methods; None for another value."""
    kind: Any = type(value)  # `isinstance` would ask the value for its class
    if issubclass(kind, dict):
        return dict(zip(dict.keys(value), dict.values(value), strict=True))  # type: ignore[arg-type]
    for sequence in (tuple, list):
        if issubclass(kind, sequence):
            return dict(enumerate(sequence.__iter__(value)))  # type: ignore[arg-type]
    if is_dataclass(kind):  # with slots, it has no `__dict__`
        return {row.name: _attribute(value, row.name) for row in fields(kind)}
    return dict(vars(value)["data"]) if issubclass(kind, UserDict) else None


def _attribute(value: object, name: str) -> Any:
    """Return an attribute that a value has without a `__getattr__` of the user; None otherwise."""
    if type(value) is torch.Tensor:  # no code of the user: a timed step does not wait until generators are saved
        return getattr(value, name)
    attribute = getattr_static(value, name, None)
    if attribute is None or type(attribute) is torch.Tensor:  # missing, or a field of a dataclass
        return attribute
    return keeps_random_state(getattr)(value, name, None)


def _shape(value: object) -> tuple[int, ...] | None:
    """Return the shape of an array; None for another value."""
    shape = _attribute(value, "shape")
    return None if shape is None else tuple(shape)


def _shapes(value: object) -> Iterator[object]:
    kind = type(value)
    if value is None or issubclass(kind, (str, bytes, float)):
        yield kind
    elif issubclass(kind, int):
        yield value
    elif (parts := _members(value)) is not None:
        yield tuple(name for name in parts if type(name) in (str, int))
        for part in parts.values():
            yield from _shapes(part)
    else:
        layout = _attribute(value, "layout")
        is_plain = not _attribute(value, "is_nested") and (layout is None or "strided" in str(layout))
        shape = _shape(value) if is_plain else None
        yield None if shape is None else (shape, str(_attribute(value, "dtype")))
