"""`ModelOptions`: options of all commands that take a model by its name, without imports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Quantization = Literal["nf4", "nf4-double", "fp4", "fp4-double"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Options of commands for the step of a model by name. A profile has others.

    Attributes:
        batch_size: Of a model by name, samples of a step (default: 1).
        length: Of a model, tokens of a sequence.
        precision: Of a model, Lightning's name of a precision (default: bf16-mixed; with --lora, weights in bfloat16
            under autocast).
        lora: Of a model, rank of LoRA's adapters (default: train all parameters). Needs PEFT.
        quantization: With --lora, linear layers in 4 bits as in QLoRA, by bitsandbytes and PEFT.
        checkpointing: Of a model, recompute activations in the backward pass.
        optimizer: Of a model: adamw (default), adam, sgd, muon, or bitsandbytes' adamw_8bit, paged_adamw_8bit,
            paged_adamw_32bit.
        recipe: Of a model, separated by commas: reference (DPO), encoders (of diffusion models), autocast (over 16-bit
            weights), no-autocast (of LoRA), 16-bit-adapters, float32-rest (of QLoRA).
    """

    batch_size: int | None = None
    length: int | None = None
    precision: str | None = None
    lora: int | None = None
    quantization: Quantization | None = None
    checkpointing: bool = False
    optimizer: str | None = None
    recipe: str | None = None


NO_OPTIONS: Final = ModelOptions()
