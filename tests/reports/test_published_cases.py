"""Published steps that are like a recorded one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lightning_predict as lp
from lightning_predict.reports.published_cases import (
    PublishedCase,
    StepDescription,
    describe,
    nearest_cases,
    precision_on,
)

EXAMPLES = Path(__file__).parents[2] / "examples"


def case(**fields: Any) -> PublishedCase:
    made = PublishedCase(
        model="ViT-B",
        kind="vision transformer",
        gpu="RTX-4090",
        precision="16 bits",
        source="a page",
        split="fitted",
        steps=3,
        error=0.05,
        absolute_error=0.06,
        inside=3,
    )
    return replace(made, **fields)


@pytest.mark.parametrize(
    ("file", "kind", "precision"),
    [
        ("gpt2", "language model", "16 bits"),
        ("lora", "language model", "16 bits"),
        ("vit", "vision transformer", "float32"),
        ("resnet", "convolutional network", "16 bits"),
        ("dlrm", "recommender", "float32"),
        ("tabular", "other", "float32"),
    ],
)
def test_kind_of_model_follows_from_operations(file: str, kind: str, precision: str) -> None:
    step = describe(lp.Trace.load(str(EXAMPLES / f"{file}.json.gz")))
    assert (step.kind, step.precision, step.is_training) == (kind, precision, True)


def test_nearest_cases_are_of_the_same_kind_gpu_and_training() -> None:
    step = StepDescription(kind="vision transformer", precision="16 bits")
    same, generation = case(gpu="L40S"), case()
    elsewhere = case(gpu="A100-SXM-80GB", precision="float32")
    other_kind = case(gpu="L40S", kind="language model")
    cases = [other_kind, elsewhere, generation, same]
    assert nearest_cases(step, "L40S", cases, number=4) == (same, generation, elsewhere)
    assert nearest_cases(step, "L40S", cases, number=1) == (same,)
    assert nearest_cases(step, "L40S", [other_kind], number=4) == (other_kind,)
    held_out = case(split="held out", steps=1)
    assert nearest_cases(step, "RTX-4090", [case(), held_out], number=2) == (held_out, case())
    alone, several = case(), case(gpu="8xRTX-4090")
    assert nearest_cases(step, "RTX-4090", [several, alone], number=2) == (alone,)
    assert nearest_cases(step, "4xRTX-4090", [alone, several], number=2) == (several,)
    assert nearest_cases(step, "4xRTX-4090", [alone], number=2) == (alone,)  # there is nothing else
    inference = case(is_training=False, split="held out")
    assert nearest_cases(step, "RTX-4090", [inference, case()], number=2) == (case(),)
    assert nearest_cases(step, "RTX-4090", [inference], number=2) == (inference,)  # there is nothing else
    asked = replace(step, is_training=False)
    assert nearest_cases(asked, "RTX-4090", [case(), inference], number=2) == (inference,)


def test_adapters_are_compared_with_adapters_and_tf32_with_float32_without_it() -> None:
    step = describe(lp.Trace.load(str(EXAMPLES / "lora.json.gz")))
    assert step.trains == "adapters"  # 17 million of 6.8 billion parameters
    whole, over_4_bits = (case(kind="language model", trains=part) for part in ("all", "adapters over 4 bits"))
    adapters = case(kind="language model", gpu="T4", trains="adapters")
    assert nearest_cases(step, "RTX-4090", [whole, over_4_bits, adapters], number=3) == (adapters,)
    assert nearest_cases(replace(step, trains="all"), "RTX-4090", [over_4_bits, whole], number=3) == (whole,)
    assert precision_on("TF32", "V100-SXM2-16GB") == "float32"
    assert precision_on("TF32", "8xL4") == "TF32"
    step = StepDescription(kind="vision transformer", precision="TF32")
    float32 = case(gpu="V100-SXM2-16GB", precision="float32")
    cases = [replace(float32, precision="16 bits"), float32]
    assert nearest_cases(step, "V100-SXM2-16GB", cases, number=1) == (float32,)


@pytest.mark.parametrize(("layout", "generation"), [("T4", "turing"), ("8xL4", "ada"), ("2x8xH100-SXM-80GB", "hopper")])
def test_a_layout_has_the_generation_of_its_gpus(layout: str, generation: str) -> None:
    assert case(gpu=layout).generation == generation
