"""`StepOptions`: what a step of a model by name is, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.model_options import Quantization
from lightning_predict.record.optimizers import STEP_OPTIMIZERS
from lightning_predict.record.precision import PRECISIONS, Precision, precision_of

QUANTIZATIONS: Final = get_args(Quantization)

RECIPES: Final[Mapping[str, str]] = {  # What training scripts do besides, by name
    "reference": "DPO's loss of pairs, with a frozen reference model (with LoRA: the model without its adapters)",
    "encoders": "the autoencoder and the text encoders of a diffusion model run in each step, frozen",
    "autocast": "a 16-bit model runs under autocast, as with bf16=True in Hugging Face's Trainer",
    "no-autocast": "LoRA with float32 adapters in a loop without autocast",
    "16-bit-adapters": "LoRA's adapters in the dtype of the model",
    "float32-rest": "parameters outside layers in 4 bits in float32 (PEFT's prepare_model_for_kbit_training)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Settings of a named step, as `step_of` describes them."""

    batch_size: int = 1
    length: int | None = None
    image_size: int | None = None
    frames: int | None = None
    precision: str | None = None
    lora: int | None = None
    lora_targets: str | Sequence[str] | None = None
    quantization: str | None = None
    checkpointing: bool = False
    optimizer: str = "adamw"
    holds_output: bool = False
    recipe: str | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "length", "image_size", "frames", "lora"):
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
        for word in self.recipes:
            if word not in RECIPES:
                raise InvalidArgumentError(f"recipe={word!r}; expected of {', '.join(RECIPES)}.")
        for word, needed in zip(_NEEDED, (self.lora, self.lora, self.quantization), strict=True):
            if word in self.recipes and needed is None:
                raise InvalidArgumentError(f"recipe={word} has no effect without {_NEEDED[word]}; add it.")
        self.numbers()

    @property
    def recipes(self) -> tuple[str, ...]:
        """Names in `recipe`."""
        return tuple(word.strip() for word in (self.recipe or "").split(",") if word.strip())

    def numbers(self) -> Precision:
        """Return the dtypes of parameters and matmuls."""
        default = "bf16-mixed" if self.lora is None else "bf16-true"
        return precision_of(self.precision or default)

    @property
    def autocast(self) -> str | None:
        """Dtype of autocast; None if off. Under LoRA it is on, as adapters are in float32 even if the model is not."""
        numbers = self.numbers()
        is_off = not {"no-autocast", "16-bit-adapters"}.isdisjoint(self.recipes)
        is_on = "autocast" in self.recipes or (self.lora is not None and not is_off)
        return next((one for one in (numbers.autocast, numbers.dtype if is_on else None) if one in PRECISIONS), None)

    def precision_words(self) -> str:
        """Return the step's precision as the heading of a table names it, and the dtype of 16-bit weights."""
        numbers = self.numbers()
        if self.autocast != numbers.dtype:
            return numbers.word
        frozen = "" if self.quantization else f", {'frozen ' if self.lora else ''}weights in {numbers.dtype}"
        return numbers.word.replace("true", "mixed") + frozen

    def required_length(self, positions: int | None) -> int:
        """Return the number of tokens per sequence of a model with these positions."""
        if self.length is None:
            example = _LENGTH if positions is None else min(_LENGTH, 1 << positions.bit_length() - 1)
            raise InvalidArgumentError(f"length= is missing: give a sequence's tokens, for example length={example}.")
        return self.length


_LENGTH: Final = 2048  # Length that an error message proposes for models with at least as many positions

_NEEDED: Final = {"no-autocast": "lora=", "16-bit-adapters": "lora=", "float32-rest": "quantization="}
"""Options without which a recipe has no effect."""
