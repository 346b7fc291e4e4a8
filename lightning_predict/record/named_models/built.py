"""`NamedStep`: a model with its batch and its loss. LoRA's adapters, and tensors on the meta device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, nn

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError, MissingDependencyError
from lightning_predict.record.named_models.options import StepOptions
from lightning_predict.record.quantization import as_4bit, others_in_float32, parameter_counts

PROJECTIONS: Final = (
    ("q_proj", "v_proj"),
    ("query", "value"),
    ("q_lin", "v_lin"),
    ("query_proj", "value_proj"),
    ("q", "v"),
    ("q_b_proj", "kv_b_proj"),
    ("query_key_value",),
    ("qkv_proj",),
    ("Wqkv",),
    ("qkv",),
)
"""Names of the projections that LoRA adapts (queries and values, as in its paper), likeliest first.

PEFT's own choice has the same names, but only for some types of models.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStep:
    """A model on the meta device, with a batch and a loss."""

    model: nn.Module  # The model, with trained and frozen parameters
    loss: Callable[[], Tensor]  # Function that runs the forward pass of the batch and returns the loss
    batch: str  # Text that describes the batch: `64 images of 224 x 224`.
    details: tuple[str, ...] = ()  # Further phrases that describe the step


def library(name: str, *, needed_for: str) -> Any:
    """Import a library."""
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


def dtype_of_model(options: StepOptions) -> torch.dtype:
    """Return the data type of the model's parameters."""
    dtype: torch.dtype = getattr(torch, options.numbers().dtype)
    return dtype


def quantized(model: nn.Module, options: StepOptions) -> list[str]:
    """Replace linear layers by layers in 4 bits, and return a phrase that describes them; nothing if not asked for."""
    if options.quantization is None:
        return []
    kind, _, double = options.quantization.partition("-")
    dtype = getattr(torch, options.autocast or options.numbers().dtype)
    if not as_4bit(model, compute_dtype=dtype, double=bool(double), clones=True):
        raise InvalidArgumentError(
            f"quantization={options.quantization}: the model has no linear layer before its output, and bitsandbytes "
            "quantizes no others; leave it out."
        )
    words = f"layers in 4 bits ({kind}{', double quantization' if double else ''})"
    # transformers 5 joins the experts' matrices in one parameter each, where there were linear layers before
    experts = sum(one.numel() for name, one in model.named_parameters() if ".experts." in name and one.dim() > 2)
    if experts:
        share = experts / parameter_counts(model)[0]
        words += f" without the experts, {share:.0%} of the weights: bitsandbytes quantizes linear layers only"
    if "float32-rest" in options.recipes:
        others_in_float32(model)
        return [f"{words}, all others in float32"]
    return [f"{words}, all others in {options.numbers().dtype}"]


def _is_projection(layer: nn.Module) -> bool:
    """Return whether a layer multiplies by a matrix, so that PEFT can adapt it."""
    weight = getattr(layer, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() > 1 and not isinstance(layer, nn.Embedding)


def with_adapters(model: nn.Module, options: StepOptions, usual: list[str] | None = None) -> tuple[Any, list[str]]:
    """Freeze a model and add LoRA's adapters, as PEFT does; return it with phrases that describe it.

    Args:
        model: The model.
        options: With the rank and the adapted layers; without a rank, the model stays as it is.
        usual: Names of the layers that are adapted by default; None for PEFT's choice, or else `PROJECTIONS`.
    """
    if options.lora is None:
        return model, []
    peft = library("peft", needed_for="lora=")
    named = options.lora_targets
    targets: Any = usual if named is None else named if isinstance(named, str) else list(named)
    if isinstance(targets, str) and targets != "all-linear":
        targets = [target.strip() for target in targets.split(",") if target.strip()]
    names = {name.rpartition(".")[2] for name, layer in model.named_modules() if _is_projection(layer)}
    config: Any = model.config
    if targets is None:  # named to PEFT, because 0.21 refuses mixtures whose own targets it is left to find
        known = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(config.model_type)
        targets = known or next((list(pair) for pair in PROJECTIONS if names.issuperset(pair)), None)
    dtype = dtype_of_model(options) if "16-bit-adapters" in options.recipes else torch.float32
    try:
        with torch.device("meta"):
            adapted = peft.get_peft_model(model, peft.LoraConfig(r=options.lora, target_modules=targets))
    except ValueError as error:
        raise InvalidArgumentError(
            f"LoRA adapts no layer of this model{'' if named is None else f' by lora_targets={shown(named)}'}. "
            f"Its layers are named {', '.join(sorted(names))}. Give some of them, or all-linear, as lora_targets: of "
            "step_of, or in the table [model] of a profile (--profile on the command line)."
        ) from error
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    chosen = adapted.peft_config["default"].target_modules
    layers = chosen if isinstance(chosen, str) else ", ".join(sorted(chosen))
    words = str(dtype).removeprefix("torch.")
    return adapted, [f"LoRA of rank {options.lora} in {layers}, adapters in {words}"]
