"""Kernels asked for by a word, in Python and on the command line."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.advice.what_if import what_if
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.fusion.options import check_kernels
from tests.cli.conftest import Run
from tests.cli.conftest import run as run  # the fixture

predict = partial(lp.predict, gpus=["L4"], history=False)


def step_of(model: nn.Module, *shape: int) -> lp.Trace:
    with torch.device("meta"):
        model, data = model.to("meta"), torch.empty(*shape)
    return lp.capture(lambda: model(data).square().mean().backward(), warmup_steps=0, samples_per_step=shape[0])


@pytest.fixture(scope="module")
def tokens() -> lp.Trace:
    return step_of(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.LayerNorm(2048), nn.Linear(2048, 512)), 4096, 512)


@pytest.fixture(scope="module")
def images() -> lp.Trace:
    layers = (nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3))
    return step_of(nn.Sequential(*layers), 16, 3, 64, 64)


def test_compiled_step_equals_the_what_if_of_compiling(tokens: lp.Trace) -> None:
    compiled = predict(tokens, kernels="compile")
    assert compiled["L4"].iteration_seconds == what_if("compile", tokens, ["L4"])["L4"].iteration_seconds
    assert compiled["L4"].iteration_seconds < predict(tokens)["L4"].iteration_seconds
    assert "with kernels of compile" in str(compiled)


def test_library_of_fused_kernels_takes_no_call_of_compiled_code(tokens: lp.Trace) -> None:
    compiled, library = (predict(tokens, kernels=word)["L4"] for word in ("compile", "transformer_engine"))
    assert library.device_seconds >= compiled.device_seconds  # it keeps what the eager step keeps
    assert library.host_seconds < compiled.host_seconds


def test_channels_last_equals_the_what_if_of_channels_last(images: lp.Trace) -> None:
    laid = predict(images, kernels=["channels_last"])["L4"].iteration_seconds
    assert laid == what_if("channels_last", images, ["L4"])["L4"].iteration_seconds


def test_options_are_applied_in_one_order_however_they_are_listed() -> None:
    assert check_kernels("compile, channels_last") == check_kernels(["channels_last", "compile"])
    assert check_kernels("eager") == check_kernels("") == ()
    assert check_kernels("compile,channels_last") == ("channels_last", "compile")


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ("compiled", "kernels='compiled' is not known; expected eager or some of sdpa, channels_last, compile"),
        (5, "kernels=5 is no list of names; expected some of sdpa, channels_last, compile"),
        ("compile,transformer_engine", "compile and transformer_engine fuse the same operations; give one"),
        ("channels_last", "kernels='channels_last' does not apply: the step convolves no images. Leave it out"),
        ("sdpa", "kernels='sdpa' does not apply: the step holds no attention that is written out. Leave it out"),
    ],
)
def test_unknown_and_inapplicable_kernels_are_rejected(tokens: lp.Trace, kernels: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        predict(tokens, kernels=kernels)


def test_command_line_takes_kernels_by_name(run: Run) -> None:
    compiled = run("predict", "examples/gpt2.json.gz", "--gpus", "L4", "--kernels", "compile")
    assert compiled.code == 0
    assert "with kernels of compile" in compiled.out
    assert run("predict", "examples/gpt2.json.gz", "--kernels", "fast").code == 2
