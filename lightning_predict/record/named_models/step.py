"""`step_of`: the recorded training step of a model by name.

Example::

    trace = lp.step_of("hf:Qwen/Qwen2.5-7B", length=2048, lora=16, checkpointing=True)
    print(lp.predict(trace, ["A100-SXM-80GB", "H100"], iterations=1000))
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import torch
from torch import nn

from lightning_predict.base.errors import (
    CaptureError,
    InvalidArgumentError,
    LightningPredictError,
    MissingDependencyError,
)
from lightning_predict.record.named_models.built import NamedStep
from lightning_predict.record.named_models.diffusion_models import diffusers_step
from lightning_predict.record.named_models.image_models import timm_step, torchvision_step
from lightning_predict.record.named_models.names import Library, ModelName, parse_model_name
from lightning_predict.record.named_models.options import StepOptions
from lightning_predict.record.named_models.transformers_models import transformers_step
from lightning_predict.record.optimizers import OPTIMIZERS, OptimizerKind
from lightning_predict.record.quantization import BlockwiseAdamW, parameter_counts
from lightning_predict.record.recording import capture
from lightning_predict.record.trace import Trace

_BUILDERS: Final[dict[Library, Callable[[ModelName, StepOptions], NamedStep]]] = {
    "hf": transformers_step,
    "timm": timm_step,
    "torchvision": torchvision_step,
    "diffusers": diffusers_step,
}


def step_of(
    model: str,
    *,
    batch_size: int = 1,
    length: int | None = None,
    image_size: int | None = None,
    frames: int | None = None,
    precision: str | None = None,
    lora: int | None = None,
    lora_targets: str | Sequence[str] | None = None,
    quantization: str | None = None,
    checkpointing: bool = False,
    optimizer: str = "adamw",
    holds_output: bool = False,
    recipe: str | None = None,
    kernels: str | Sequence[str] = (),
) -> Trace:
    """Record a training step of a model by name, on the meta device: without weights, data or a GPU.

    The step computes the model's usual loss and updates all trained parameters. The trace's first note describes the
    step.

    Args:
        model: `hf:`, `timm:`, `torchvision:` or `diffusers:` with a name, or the path of a config.json or its folder.
            The library must be installed. Configurations of common models ship with this package.
        batch_size: Number of samples per step.
        length: Number of tokens per sequence, for models that read text.
        image_size: Height and width of images in pixels (default: the model's).
        frames: Number of frames of a video (default: that of the model's pipeline).
        precision: Lightning's name of a precision (default: `bf16-mixed`, or `bf16-true` with LoRA).
        lora: Rank of LoRA's adapters (default: train all parameters). With a 16-bit precision, adapters are in float32
            under autocast, as in PEFT and Hugging Face's Trainer.
        lora_targets: Names of the adapted layers, as a list or separated by commas, or `all-linear` (default: PEFT's;
            for models of diffusers the projections of attention).
        quantization: `nf4`, `nf4-double`, `fp4` or `fp4-double`: linear layers in 4 bits under LoRA, as in
            bitsandbytes. Their compute dtype and that of all other parameters is that of `precision`.
        checkpointing: Whether to recompute activations in the backward pass.
        optimizer: `adamw`, `adam`, `sgd` (with momentum) or `muon`, or bitsandbytes' `adamw_8bit`, `paged_adamw_8bit`
            or `paged_adamw_32bit`.
        holds_output: Whether the step keeps the model's output to its end, as `output = model(**batch)` in a function
            does. Trainers return the loss alone, so the output is freed (the default).
        recipe: What training scripts do besides, separated by commas: `reference` (DPO), `encoders` (of diffusion
            models), `autocast` (over a 16-bit model), `no-autocast` (of LoRA), `16-bit-adapters`, `float32-rest` (with
            `quantization`); see `RECIPES` in `named_models/options.py`.
        kernels: Kernels that predictions of this step assume, as for `lp.predict`.

    Raises:
        InvalidArgumentError: The model or an option is unknown.
        MissingDependencyError: The library is not installed.
        CaptureError: The step cannot run on the meta device.
    """
    options = StepOptions(
        batch_size=batch_size,
        length=length,
        image_size=image_size,
        frames=frames,
        precision=precision,
        lora=lora,
        lora_targets=lora_targets,
        quantization=quantization,
        checkpointing=checkpointing,
        optimizer=optimizer,
        holds_output=holds_output,
        recipe=recipe,
    )
    name = parse_model_name(model)
    with _quiet_transformers():
        with _names_model(name, InvalidArgumentError, "could not be built"):
            built = _BUILDERS[name.library](name, options)
        step = _step(built, _optimizers(OPTIMIZERS[optimizer], built.model), options)
        told = None if lora or options.recipes else options.numbers().word
        with _names_model(name, CaptureError, "has no training step that runs"):
            trace = capture(step, samples_per_step=batch_size, precision=told)
    words = tuple(kernels.split(",") if isinstance(kernels, str) else kernels)
    return replace(trace, assumed_kernels=words, notes=(_described(name, built, options), *trace.notes))


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence warnings of transformers and PEFT, which concern the values of weights and tokens."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # transformers sets its own level when imported
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _names_model(name: ModelName, kind: type[LightningPredictError], fails: str) -> Iterator[None]:
    """Convert errors of a library to ours, which name the model."""
    try:
        yield
    except LightningPredictError:
        raise
    except Exception as error:
        needs_two = "more than 1 value per channel" in str(error)  # batch normalization after global pooling
        advice = "Give batch_size=2 or more" if needs_two else "Record your own step with lp.capture"
        raise kind(f"{name.text} {fails} ({type(error).__name__}: {error}). {advice}.") from error


def _optimizers(kind: OptimizerKind, model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the optimizers of the trained parameters: of Muon, also AdamW for what is no matrix of a layer."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if kind.torch_class == BlockwiseAdamW.__name__:
        return [BlockwiseAdamW(trained, **kind.options)]
    made = getattr(torch.optim, str(kind.torch_class), None)
    if made is None:
        raise MissingDependencyError(f"torch {torch.__version__} has no {kind.torch_class}; install 2.9 or later.")
    if kind.torch_class != "Muon":
        return [made(trained, **kind.options)]
    *_, last = (module for module in model.modules() if isinstance(module, nn.Linear))
    apart = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)} | {id(last.weight)}
    is_matrix = [parameter.ndim == 2 and id(parameter) not in apart for parameter in trained]
    parts = [[one for one, own in zip(trained, is_matrix, strict=True) if own == wanted] for wanted in (True, False)]
    return [optimizer(part) for optimizer, part in zip((made, torch.optim.AdamW), parts, strict=True) if part]


def _step(built: NamedStep, optimizers: list[torch.optim.Optimizer], options: StepOptions) -> Callable[[], None]:
    """Return a function that runs the step: forward, backward, optimizer."""
    dtype = options.autocast if options.lora or options.recipes else None  # otherwise, `capture` turns it on
    held = list[object]()
    if options.holds_output:
        built.model.register_forward_hook(lambda _module, _inputs, output: held.__setitem__(slice(None), [output]))

    def step() -> None:
        with torch.autocast("cuda", dtype=getattr(torch, dtype or "bfloat16"), enabled=dtype is not None):
            loss = built.loss()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        held.clear()

    return step


def _described(name: ModelName, built: NamedStep, options: StepOptions) -> str:
    total, trained = parameter_counts(built.model)
    share = "" if trained == total else f", {_short(trained)} trained"
    facts = [
        f"{_short(total)} parameters{share}",
        built.batch,
        options.precision_words(),
        OPTIMIZERS[options.optimizer].words,
        *built.details,
    ]
    return f"{name.text}: {'; '.join(facts)}."


def _short(count: int) -> str:
    """Format a count in billions or millions."""
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"
