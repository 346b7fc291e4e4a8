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
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

from lightning_predict.base.errors import BudgetExceededError, MissingDependencyError
from lightning_predict.base.guard import log_warning, own_error

PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")


def installed_packages() -> tuple[ModuleType, ...]:
    """List the `PACKAGES` that can be imported.

    Raises:
        MissingDependencyError: Neither package can be imported.
    """
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

    Raises:
        MissingDependencyError: Neither package can be imported.
    """
    return tuple(sys.modules[name] for name in PACKAGES if name in sys.modules) or installed_packages()


def lightning_classes(name: str) -> tuple[type[Any], ...]:
    """Find a Lightning callback class in each package in use.

    Args:
        name: Name of the class, such as `Timer`.
    """
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
    """Return the batch size, which is the first size of all tensors; None if their first sizes differ.

    Args:
        batch: Batch of a loader: a tensor, or tuples, lists, mappings and dataclasses with tensors.
    """
    with torch._C.DisableTorchFunction():  # reading a shape would call the code of a tensor subclass
        sizes = set(_first_sizes(batch))
    return sizes.pop() if len(sizes) == 1 else None


def _first_sizes(batch: object) -> list[int]:
    if is_dataclass(batch):
        batch = _members(batch)
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (tuple, list)):
        return [size for part in batch for size in _first_sizes(part)]
    shape = getattr(batch, "shape", None)
    return [int(shape[0])] if shape is not None and len(shape) > 0 else []


def _members(value: Any) -> dict[str, object]:
    """Return the fields of a dataclass. A dataclass with slots has no `__dict__`."""
    return {one.name: getattr(value, one.name, None) for one in fields(value)}


def shapes_of(batch: object) -> tuple[object, ...] | None:
    """Return shapes and dtypes of the arrays in a batch, and its integers; None if a part cannot be read.

    Args:
        batch: Batch of a loader: tuples, lists, mappings and dataclasses with tensors or arrays.
    """
    with torch._C.DisableTorchFunction():
        found = tuple(_shapes(batch))
    return None if None in found else found


def _shapes(value: object) -> Iterator[object]:
    if value is None or isinstance(value, (str, bytes, float)):
        yield type(value)
    elif isinstance(value, int):
        yield value
    elif isinstance(value, Mapping):
        yield tuple(map(str, value))
        yield from _shapes(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        yield len(value)
        for part in value:
            yield from _shapes(part)
    elif is_dataclass(value):
        yield from _shapes(_members(value))
    else:
        is_plain = not getattr(value, "is_nested", False) and "strided" in str(getattr(value, "layout", "strided"))
        shape = getattr(value, "shape", None) if is_plain else None
        yield None if shape is None else (tuple(shape), str(getattr(value, "dtype", None)))
