"""`StepOptions`: settings of a named step. `NamedStep`: a model with its batch and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from lightning_predict.base.errors import InvalidArgumentError, MissingDependencyError
from lightning_predict.record.optimizers import STEP_OPTIMIZERS
from lightning_predict.record.precision import PRECISIONS, Precision, precision_of

QUANTIZATIONS: Final = ("nf4", "nf4-double", "fp4", "fp4-double")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Settings of a named step.

    Attributes:
        batch_size: Number of samples per step.
        length: Number of tokens per sequence; None if the model reads no text, or has a fixed length.
        image_size: Height and width of images in pixels; None for the model's default.
        precision: Lightning's name of a precision; None for `bf16-mixed`, or `bf16-true` with LoRA.
        lora: Rank of LoRA's adapters; None trains all parameters.
        lora_targets: Names of the adapted layers, separated by commas, or `all-linear`; None for PEFT's default.
        quantization: One of `QUANTIZATIONS`: bitsandbytes' linear layers in 4 bits (`double`: scales in 8 bits). Needs
            `lora`, as layers in 4 bits are not trained.
        checkpointing: Whether to use the library's gradient checkpointing.
        optimizer: One of `STEP_OPTIMIZERS`.
        holds_output: Whether the loop keeps the model's output until the next one.

    Raises:
        InvalidArgumentError: A value is out of range, or unknown.
    """

    batch_size: int = 1
    length: int | None = None
    image_size: int | None = None
    precision: str | None = None
    lora: int | None = None
    lora_targets: str | None = None
    quantization: str | None = None
    checkpointing: bool = False
    optimizer: str = "adamw"
    holds_output: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "length", "image_size", "lora"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidArgumentError(f"{name}={value!r}; expected a whole number of at least 1.")
        if self.optimizer not in STEP_OPTIMIZERS:
            raise InvalidArgumentError(f"optimizer={self.optimizer!r}; expected one of {', '.join(STEP_OPTIMIZERS)}.")
        if self.quantization is not None and self.quantization not in QUANTIZATIONS:
            raise InvalidArgumentError(
                f"quantization={self.quantization!r}; expected one of {', '.join(QUANTIZATIONS)}."
            )
        if self.quantization is not None and self.lora is None:
            raise InvalidArgumentError("quantization= needs LoRA, because layers in 4 bits are frozen: add lora=16.")
        if self.lora_targets is not None and self.lora is None:
            raise InvalidArgumentError("lora_targets= needs LoRA, whose layers it names: add lora=16.")
        self.numbers()

    def numbers(self) -> Precision:
        """Return the dtypes of parameters and matmuls.

        Raises:
            InvalidArgumentError: The precision is unknown.
        """
        default = "bf16-mixed" if self.lora is None else "bf16-true"
        return precision_of(self.precision or default)

    @property
    def lora_autocast(self) -> str | None:
        """Autocast dtype under LoRA, whose adapters are in float32 even if the model has 16 bits; None if off."""
        numbers = self.numbers()
        return next((one for one in (numbers.autocast, numbers.dtype) if self.lora and one in PRECISIONS), None)

    @property
    def product_dtype(self) -> torch.dtype:
        """Data type in which layers in 4 bits multiply."""
        found: torch.dtype = getattr(torch, self.lora_autocast or self.numbers().dtype)
        return found

    def precision_words(self) -> str:
        """Return the step's precision as the heading of a table names it, and the dtype of frozen 16-bit weights."""
        numbers = self.numbers()
        if self.lora_autocast != numbers.dtype:
            return numbers.word
        frozen = "" if self.quantization else f", frozen weights in {numbers.dtype}"
        return numbers.word.replace("true", "mixed") + frozen

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the model's parameters."""
        found: torch.dtype = getattr(torch, self.numbers().dtype)
        return found

    def required_length(self) -> int:
        """Return the number of tokens per sequence.

        Raises:
            InvalidArgumentError: `length` is None.
        """
        if self.length is None:
            raise InvalidArgumentError("length= is missing: give the tokens of a sequence, for example length=2048.")
        return self.length


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStep:
    """A model on the meta device, with a batch and a loss.

    Attributes:
        model: The model, with trained and frozen parameters.
        loss: Function that runs the forward pass of the batch and returns the loss.
        batch: Text that describes the batch: `64 images of 224 x 224`.
        details: Further phrases that describe the step.
    """

    model: nn.Module
    loss: Callable[[], Tensor]
    batch: str
    details: tuple[str, ...] = ()


def library(name: str, *, needed_for: str) -> Any:
    """Import a library.

    Args:
        name: Name of the library on PyPI and of its module.
        needed_for: Name of the model or option that needs the library, for the error message.

    Raises:
        MissingDependencyError: The library is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"{needed_for} needs {name}, which is not installed: pip install {name}"
        ) from error


@contextmanager
def on_meta(dtype: torch.dtype) -> Iterator[None]:
    """Create tensors on the meta device; floating-point tensors have this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(before)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 image`, `64 images`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
