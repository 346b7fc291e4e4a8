"""PEFT's comparison of its methods on an L40S (`peft_methods.csv`): Llama 3.2 3B on texts, FLUX.2 klein 4B on images.

The methods are PEFT's own, built on the meta device. A row is left out if PEFT's release here trains another number of
parameters, because then its settings differ from the row's. The rows tell the tokens of a step, 837.4 of four texts;
the padding up to the longest text of a batch is not known and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.readers.files import rows

TEXTS: Final = 4
TOKENS: Final = 209
IMAGES: Final = 2
WORDS: Final = 512
PATCHES: Final = 32  # Images of 512 pixels have 32 x 32 patches of 16 pixels, each with 128 channels of latents

SETTINGS: Final[Mapping[str, Callable[[int], Sequence[Mapping[str, Any]]]]] = {
    "ADALORA": lambda rank: [{"init_r": factor * rank, "target_r": rank, "total_step": 5000} for factor in (4, 8)],
    "LOKR": lambda rank: [{"r": rank, "decompose_factor": factor} for factor in (4, -1)],
    "LORA": lambda rank: [{"r": rank, "use_dora": True}],
    "ROAD": lambda _rank: [{"variant": variant} for variant in ("road_1", "road_2")],
    "FOURIERFT": lambda _rank: [{"n_frequency": count} for count in (1000, 2000, 5000)],
    "P_TUNING": lambda _rank: [{"num_virtual_tokens": 20, "encoder_hidden_size": 3072}],
    **dict.fromkeys(("DEFT", "DELORA", "GRALORA", "HIRA", "RANDLORA", "TINYLORA", "VERA"), lambda rank: [{"r": rank}]),
}
"""Possible settings of a method from the row's rank. The row of LoRA on images is DoRA's."""


def peft_cases(data: Path) -> Iterator[Case]:
    """Read the rows whose method PEFT builds without values of weights."""
    for row in rows(data / "validation" / "peft_methods.csv"):
        method, is_text = row["peft_type"], row["set"] == "MetaMathQA"
        if method != "full" and method not in SETTINGS:
            continue
        trained = int(row["trainable_params"])
        case = Case(
            source="Llama 3.2 3B" if is_text else "FLUX.2 klein 4B",
            model=f"{row['experiment'].split('/')[0]}, {row['set']}",
            gpu="L40S",
            step=Step(
                name=f"peft-{row['set']}-{method}-{row['rank']}-{trained}",
                record=partial(_trace, method, row["target_modules"], int(row["rank"] or 0), trained, is_text=is_text),
            ),
            measured=float(row["step_s_median"]),
        )
        yield case
        if not is_text:  # the longest text decides the memory of the others
            known = {"source": case.source, "model": case.model, "gpu": case.gpu, "step": case.step}
            yield Case(measured=float(row["max_memory"]), quantity="reserved", **known)  # type: ignore[arg-type]


def _trace(method: str, targets: str, rank: int, trained: int, *, is_text: bool) -> lp.Trace:
    """Record a step of a method.

    Raises:
        ValueError: The method trains another number of parameters than the row's.
    """
    peft: Any = import_module("peft")
    names = {"target_modules": targets.split()} if targets else {}
    task = {"task_type": "CAUSAL_LM"} if is_text else {}
    counts = list[int]()
    for settings in [{}] if method == "full" else SETTINGS[method](rank):
        with torch.device("meta"):
            model, loss = _text_model() if is_text else _image_model()
            if method != "full":
                kind = import_module("peft.mapping").PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType[method]]
                model = peft.get_peft_model(model, kind(**task, **names, **settings))
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        counts.append(sum(parameter.numel() for parameter in parameters))
        if counts[-1] == trained:
            break
    else:
        raise ValueError(f"{method} trains {counts} parameters here, {trained} in the row")
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)

    def step() -> None:
        loss(model).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return lp.capture(step, samples_per_step=TEXTS if is_text else IMAGES)


Loss = Callable[[nn.Module], Tensor]


def _text_model() -> tuple[nn.Module, Loss]:
    transformers: Any = import_module("transformers")
    config = transformers.LlamaConfig(
        hidden_size=3072,
        num_hidden_layers=28,
        num_attention_heads=24,
        num_key_value_heads=8,
        intermediate_size=8192,
        vocab_size=128256,
        max_position_embeddings=131072,
        tie_word_embeddings=True,
        use_cache=False,
    )
    tokens = torch.zeros((TEXTS, TOKENS), dtype=torch.long)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
    return model, lambda adapted: adapted(**inputs).loss


def _image_model() -> tuple[nn.Module, Loss]:
    """Return the denoiser with a batch of latents, embedded words and their places."""
    diffusers: Any = import_module("diffusers")
    sizes = {"num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "joint_attention_dim": 7680}
    model = diffusers.Flux2Transformer2DModel(**sizes, attention_head_dim=128, in_channels=128, guidance_embeds=False)
    model = model.to(torch.bfloat16).train()
    model.enable_gradient_checkpointing()
    latents = torch.zeros((IMAGES, PATCHES**2, 128), dtype=torch.bfloat16)
    inputs = {
        "hidden_states": latents,
        "encoder_hidden_states": torch.zeros((IMAGES, WORDS, 7680), dtype=torch.bfloat16),
        "timestep": torch.zeros(IMAGES, dtype=torch.bfloat16),
        "img_ids": torch.zeros((IMAGES, PATCHES**2, 4), dtype=torch.long),
        "txt_ids": torch.zeros((IMAGES, WORDS, 4), dtype=torch.long),
    }

    def loss(adapted: nn.Module) -> Tensor:
        (velocity,) = adapted(**inputs, return_dict=False)
        return nn.functional.mse_loss(velocity.float(), latents.float())

    return model, loss
