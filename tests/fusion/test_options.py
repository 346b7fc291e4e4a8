"""Kernels asked for by a word, in Python and on the command line."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import lightning_predict as lp
from lightning_predict.advice.what_if import what_if
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.fusion.channels_last import image_layouts
from lightning_predict.fusion.options import KERNELS, check_kernels, with_kernels
from lightning_predict.kernels.memory_bound import COMPILED_CALL
from lightning_predict.layouts.gradients import unit_bytes, unit_segments
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.record.signatures import FUSED
from lightning_predict.record.trace import OtherStep
from tests.cli.conftest import Run
from tests.cli.conftest import run as run  # the fixture
from tests.fusion.test_joint_graph import MODELS, Perceptron

A100 = "A100-SXM-80GB"
predict = partial(lp.predict, gpus=["L4"], history=False)


def step_of(model: nn.Module, *shape: int, dtype: torch.dtype = torch.float32) -> lp.Trace:
    model, data = model.to("meta"), torch.empty(*shape, device="meta", dtype=dtype)
    return lp.capture(lambda: model(data).square().mean().backward(), warmup_steps=0, samples_per_step=shape[0])


@pytest.fixture(scope="module")
def tokens() -> lp.Trace:
    return step_of(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.LayerNorm(2048), nn.Linear(2048, 512)), 4096, 512)


@pytest.fixture(scope="module")
def images() -> lp.Trace:
    layers = (nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3))
    return step_of(nn.Sequential(*layers), 16, 3, 64, 64)


def test_compiled_step_equals_its_what_if_and_a_library_calls_no_compiled_code(tokens: lp.Trace) -> None:
    compiled = predict(tokens, kernels="compile")
    assert compiled["L4"].iteration_seconds == what_if("compile", tokens, ["L4"])["L4"].iteration_seconds
    assert compiled["L4"].iteration_seconds < predict(tokens)["L4"].iteration_seconds
    assert "with kernels of compile" in str(compiled)
    library = predict(tokens, kernels="transformer_engine")["L4"]
    assert library.device_seconds >= compiled["L4"].device_seconds  # it keeps what the eager step keeps
    assert library.host_seconds < compiled["L4"].host_seconds
    # Of its norms, each pass is one kernel, which no sum of a residual joins.
    names = {operation.name for operation in with_kernels(tokens, ["transformer_engine"]).operations}
    assert names >= {"aten::native_layer_norm", "aten::native_layer_norm_backward"}
    assert "aten::native_layer_norm" not in {one.name for one in with_kernels(tokens, ["compile"]).operations}


def test_channels_last_equals_its_what_if_and_converts_nothing(images: lp.Trace) -> None:
    laid = predict(images, kernels=["channels_last"])["L4"].iteration_seconds
    assert laid == what_if("channels_last", images, ["L4"])["L4"].iteration_seconds
    with torch.device("meta"):
        model, data = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)), torch.empty(4, 3, 32, 32)
    trace = lp.capture(lambda: model(data).sum().backward(), precision="bf16-mixed")
    assert any("channels first" in note for note in predict(trace).notes)
    assert not any("channels first" in note for note in predict(trace, kernels="channels_last").notes)
    with pytest.raises(InvalidArgumentError, match="the step has no layer or RMS norm, as transformers have"):
        predict(images, kernels="transformer_engine")


def test_kernels_are_taken_in_one_order_also_on_the_command_line(run: Run) -> None:
    assert check_kernels("compile, channels_last") == check_kernels(["channels_last", "compile"])
    assert check_kernels("eager") == check_kernels("") == ()
    assert check_kernels("compile,channels_last") == ("channels_last", "compile")
    compiled = run("predict", "examples/gpt2.json.gz", "--gpus", "L4", "--kernels", "compile")
    assert compiled.code == 0
    assert "with kernels of compile" in compiled.out
    assert run("predict", "examples/gpt2.json.gz", "--kernels", "fast").code == 2


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ("compiled", "kernels='compiled' is not known; expected eager or some of sdpa, flash_attention_2"),
        (5, "kernels=5 is no list of names; expected some of sdpa, flash_attention_2"),
        ("compile,transformer_engine", "compile and transformer_engine replace the same operations; give one"),
        (
            "eager_loss,sdpa",
            "kernels='eager_loss' keeps the loss out of fused kernels, and there are none; add one of liger",
        ),
        ("channels_last", "kernels='channels_last' does not apply: the step convolves no images. Leave it out"),
        ("flash_attention_2", "kernels='flash_attention_2' does not apply: the step holds no attention in 16 bits"),
        ("sdpa", "kernels='sdpa' does not apply: the step holds no attention that is written out. Leave it out"),
    ],
)
def test_unknown_and_inapplicable_kernels_are_rejected(tokens: lp.Trace, kernels: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        predict(tokens, kernels=kernels)


def test_kernels_that_came_after_the_release_are_rejected(tokens: lp.Trace) -> None:
    late = {"compile": "2.0", "sdpa": "2.0", "liger": "2.1", "cudnn_attention": "2.5", "cuda_graphs": "1.10"}
    for name, since in late.items():
        words = f"kernels='{name}' needs torch {since}; the step runs under torch 1.9. Leave it out, or give release="
        with pytest.raises(InvalidArgumentError, match=words):
            predict(tokens, kernels=name, release="1.9")
    assert predict(tokens, kernels="compile", release="2.0")["L4"].iteration_seconds > 0
    with pytest.raises(InvalidArgumentError, match=r"needs torch 2\.0; the step runs under torch 1\.13\.1"):
        predict(replace(tokens, software={"torch": "1.13.1"}), kernels="compile")
    told = lp.advise(replace(tokens, software={"torch": "1.9.0"}), ["L4"])
    assert told["cuda_graphs"].why_not == "it needs torch 1.10; the step runs under torch 1.9.0"


class Block(nn.Module):
    """Attention in 16 bits with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.parts, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, data: Tensor) -> Tensor:
        heads = self.parts(self.norm(data)).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True).transpose(1, 2).flatten(2)
        result: Tensor = data + self.out(nn.functional.gelu(mixed))
        return result


@pytest.fixture(scope="module")
def blocks() -> lp.Trace:
    model = nn.Sequential(nn.Linear(512, 512), nn.Sequential(Block(512), Block(512), Block(512)))
    return step_of(model.bfloat16(), 16, 2048, 512, dtype=torch.bfloat16)


def seconds(trace: lp.Trace, kernels: str, gpu: str, **options: Any) -> float:
    return lp.predict(trace, [gpu], history=False, kernels=kernels, **options)[gpu].iteration_seconds


def test_gpu_without_the_kernels_is_predicted_without_them(blocks: lp.Trace) -> None:
    both = lp.predict(blocks, ["H100", "L4"], history=False, kernels="compile,flash_attention_3")
    assert "Predicted without flash_attention_3: L4." in both.notes
    assert both["L4"].iteration_seconds == seconds(blocks, "compile", "L4")
    assert "with kernels of flash_attention_3 (not on L4), compile" in " ".join(str(both).split())
    found = lp.best_layouts(blocks, ["2xH100", "2xL4"], kernels="compile,flash_attention_3", count=100)
    assert {one.prediction.layout.gpu.name: (one.kernels, one.lacked_kernels) for one in found} == {
        "H100-SXM-80GB": (("flash_attention_3", "compile"), ()),
        "L4": (("compile",), ("flash_attention_3",)),
    }
    own = next(one for one in found if one.prediction.layout.gpu.name == "L4")
    assert replace(own, lacked_kernels=()) == lp.best_layouts(blocks, ["2xL4"], kernels="compile")[0]
    assumed = lp.predict(replace(blocks, assumed_kernels=("flash_attention_3",)), ["H100", "L4"], history=False)
    assert "Predicted without flash_attention_3: L4." in assumed.notes
    assert assumed["L4"].iteration_seconds == seconds(blocks, "", "L4")


def test_gpus_without_named_kernels_are_listed_and_attention_overrides_the_release(blocks: lp.Trace) -> None:
    names = ["A100-SXM-80GB", "A10G", "L4", "L40S", "T4", "V100-PCIe-32GB"]
    predictions = lp.predict(blocks, [*names, "H100"], history=False, kernels="flash_attention_3")
    assert f"Predicted without flash_attention_3: {', '.join(names)}." in predictions.notes
    two, three, default = (seconds(blocks, word, "H100") for word in ("flash_attention_2", "flash_attention_3", ""))
    assert three == default < two  # torch 2.13 runs cuDNN's attention on Hopper, which is as fast as FlashAttention 3
    assert "As fast with flash_attention_3 as by default on H100-SXM-80GB." in predictions.notes
    assert "with kernels of flash_attention_3 (only on H100-SXM-80GB)" in str(predictions.heading)
    assert seconds(blocks, "", "H100", release="2.6") == two
    assert seconds(blocks, "cudnn_attention", "H100", release="2.6") == default


def test_advice_is_for_the_step_with_its_kernels(blocks: lp.Trace, run: Run, tmp_path: Path) -> None:
    told = lp.advise(blocks, ["L4"], kernels="compile")
    compiled = predict(blocks, kernels="compile")["L4"]
    assert told.before["L4"].iteration_seconds == compiled.iteration_seconds
    assert told["compile"].why_not == "the step runs compile already"
    stored, alone = tmp_path / "stored.json.gz", tmp_path / "alone.json.gz"
    replace(blocks, assumed_kernels=("compile",)).save(str(stored))
    blocks.save(str(alone))
    asked = run("advise", alone, "--gpus", "L4", "--kernels", "compile").out
    assert run("advise", stored, "--gpus", "L4").out == asked


def test_cuda_graphs_leave_five_per_cent_of_the_host_and_assumed_kernels(blocks: lp.Trace) -> None:
    eager, graphed = (predict(blocks, kernels=word)["L4"] for word in ("", "cuda_graphs"))
    assert graphed.host_seconds == pytest.approx(0.05 * eager.host_seconds, rel=0.05)
    assert graphed.device_seconds == pytest.approx(eager.device_seconds, rel=1e-3)
    named = replace(blocks, assumed_kernels=("compile",))
    compiled, graphed = predict(named)["L4"], what_if("cuda_graphs", named, ["L4"])["L4"]
    assert graphed.device_seconds == compiled.device_seconds
    assert graphed.host_seconds == pytest.approx(0.05 * compiled.host_seconds)
    assumed = Assumptions(strategy=Strategy(kernels="compile"))
    assert assumed.of_step(blocks).kernels_applied == ("compile",)
    assert assumed.of_step(replace(blocks, compiled=True)).kernels_applied == ()


def test_compiled_block_shares_no_kernel_with_its_neighbours(blocks: lp.Trace) -> None:
    whole, regional = (with_kernels(blocks, [word]) for word in ("compile", "compile-blocks"))
    calls = [operation.phase for operation in regional.operations if operation.name == COMPILED_CALL]
    # Outermost members of lists: the first layer, and the three blocks of the second; the loss is outside of both
    assert calls == ["forward"] * 3 + ["backward"] * 3
    assert [one.phase for one in whole.operations if one.name == COMPILED_CALL] == ["forward", "backward"]
    assert kernels_of(regional) >= kernels_of(whole)


def kernels_of(trace: lp.Trace) -> int:
    return sum(operation.name == FUSED for operation in trace.operations)


@pytest.fixture(scope="module")
def words() -> lp.Trace:
    """Output layer over 128,256 words with its loss, of 4,096 tokens."""
    with torch.device("meta"):
        weight, data = (torch.empty(n, 4096, dtype=torch.bfloat16).requires_grad_() for n in (128256, 4096))
        targets = torch.zeros(4096, dtype=torch.int64)

    def step() -> None:
        nn.functional.cross_entropy(nn.functional.linear(data, weight), targets).backward()

    return lp.capture(step, warmup_steps=0)


PRODUCTS = ("aten::mm", "aten::addmm")


def test_chunked_and_eager_losses_hold_other_logits(words: lp.Trace) -> None:
    whole, chunked = (lp.predict(words, [A100], history=False, kernels=word)[A100] for word in ("", "chunked_loss"))
    logits = 4096 * 128256 * 2
    assert (whole.memory_bytes or 0) - (chunked.memory_bytes or 0) > 1.5 * logits
    # Liger-Kernel's own benchmark on an A100: 55.7 ms, and 0.476 of that speed in 32 chunks of 128 tokens.
    assert whole.iteration_seconds == pytest.approx(0.0557, rel=0.1)
    assert chunked.iteration_seconds == pytest.approx(0.0557 / 0.476, rel=0.15)
    assert sum(one.name in PRODUCTS for one in with_kernels(words, ["chunked_loss"]).operations) == 3 * 32
    alone, both = (
        lp.predict(words, [A100], history=False, kernels=kernels)[A100] for kernels in ("compile", "compile,eager_loss")
    )
    # eager: logits and their logarithms, then the gradient beside the logarithms
    assert (both.memory_bytes or 0) - (alone.memory_bytes or 0) == pytest.approx(logits, rel=0.1)
    assert both.iteration_seconds > alone.iteration_seconds


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_kernels_that_make_the_step_slower_than_eager_are_told(words: lp.Trace, strategy: str) -> None:
    few = lp.predict(words, ["2xH200", "L4"], history=False, kernels="chunked_loss", strategy=strategy)
    eager = lp.predict(words, ["2xH200", "L4"], history=False, strategy=strategy)
    more = {one.gpu: one.iteration_seconds / eager[one.gpu].iteration_seconds - 1 for one in few.items_in_order}
    told = ", ".join(f"{more[gpu]:.0%} on {gpu}".replace("%", " %") for gpu in sorted(more, key=lambda gpu: -more[gpu]))
    assert f"Slower with chunked_loss than with PyTorch's eager kernels: by {told}." in few.notes
    assert min(more.values()) > 0.01
    assert not any("Slower with" in note for note in eager.notes)


def test_liger_chunks_the_loss_of_a_trained_or_frozen_output_layer(words: lp.Trace) -> None:
    both = [[one.name for one in with_kernels(words, [word]).operations] for word in ("liger", "chunked_loss")]
    assert both[0] == both[1]
    weight = (128256, 4096)
    frozen = replace(
        words, operations=tuple(one for one in words.operations if weight not in {each.shape for each in one.outputs})
    )
    assert sum(one.name in PRODUCTS for one in with_kernels(frozen, ["liger"]).operations) == 2 * 32


def test_liger_replaces_norms_and_gated_activations_and_no_gelu_written_out() -> None:
    model, (rows,) = MODELS["SwiGLU"]
    fused = with_kernels(lp.capture(lambda: model(rows).backward(), warmup_steps=0), ["liger"])
    inside = {name for one in fused.operations if one.name == FUSED for name in one.arguments["operations"]}
    norm = "aten::_fused_rms_norm"  # the residual and the loss, whose sum and square are outside, run as recorded
    assert inside == {norm, f"{norm}_backward", "aten::silu", "aten::silu_backward", "aten::mul"}
    written = Perceptron(lambda data: 0.5 * data * (1 + torch.tanh(0.79 * (data + 0.044715 * data**3))))
    with pytest.raises(InvalidArgumentError, match="the step has no layer or RMS norm, rotary positions, gated activa"):
        predict(lp.capture(lambda: written(rows).backward(), warmup_steps=0), kernels="liger")


class Captions(nn.Module):
    """Patches of images, attention that is written out, a gated block and an output layer over words."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.parts, self.words = nn.Conv2d(3, 64, 4, 4), nn.Linear(64, 192), nn.Linear(64, 5000)
        self.layers = nn.ModuleList([nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU())])

    def forward(self, images: Tensor) -> Tensor:
        data = self.patches(images).flatten(2).transpose(1, 2)
        query, key, value = (part.unflatten(2, (4, 16)).transpose(1, 2) for part in self.parts(data).chunk(3, 2))
        mixed = torch.softmax(query @ key.transpose(2, 3), dim=3) @ value
        data = data + mixed.transpose(1, 2).flatten(2)
        result: Tensor = self.words(data + self.layers[0](data)).flatten(0, 1)
        return result


INCLUDED = {("sdpa", kernel) for kernel in ("flash_attention_2", "flash_attention_3", "cudnn_attention")}
INCLUDED |= {("chunked_loss", "liger")}
"""Pairs of which docs/howto/kernels.md says that the second includes the first."""


def test_no_pair_of_kernels_leaves_one_without_effect_in_silence() -> None:
    with torch.device("meta"):
        model, images = Captions().bfloat16(), torch.empty(8, 3, 64, 64, dtype=torch.bfloat16)
        targets = torch.zeros(2048, dtype=torch.int64)
    trace = lp.capture(lambda: nn.functional.cross_entropy(model(images), targets).backward(), warmup_steps=0)

    def told(*kernels: str) -> tuple[object, ...] | None:
        with suppress(InvalidArgumentError):
            names = check_kernels(kernels)
            prediction = lp.predict(trace, ["H100"], history=False, kernels=names, release="2.6")["H100"]
            return prediction.device_seconds, prediction.host_seconds, prediction.memory_bytes
        return None  # refused with words, which another test asserts

    alone = {name: told(name) for name in KERNELS}
    assert [name for name, figures in alone.items() if figures in (None, told())] == ["eager_loss"]
    silent = {pair for pair in combinations(KERNELS, 2) if (both := told(*pair)) and both in map(alone.get, pair)}
    assert silent == INCLUDED


def test_loss_whose_logits_are_read_elsewhere_is_not_chunked(words: lp.Trace, tokens: lp.Trace) -> None:
    place = next(index for index, operation in enumerate(words.operations) if operation.name == "aten::mm")
    read = replace(words.operations[place], name="aten::argmax", inputs=words.operations[place].outputs, outputs=())
    read = replace(read, outputs=(replace(read.inputs[0], shape=(4096,), id=99),))
    twice = replace(words, operations=(*words.operations[: place + 1], read, *words.operations[place + 1 :]))
    for step in (tokens, twice):
        with pytest.raises(InvalidArgumentError, match="no output layer whose logits only a cross-entropy reads"):
            predict(step, kernels="chunked_loss")


def test_kernels_apply_to_each_kind_of_step_that_has_them(tokens: lp.Trace, images: lp.Trace) -> None:
    both = replace(images, other_steps=(OtherStep(share=0.5, trace=tokens),))
    laid = with_kernels(both, ["channels_last", "compile"])
    assert all(kernels_of(kind.trace) for kind in laid.kinds)
    assert [bool(image_layouts(kind.trace)) for kind in laid.kinds] == [True, False]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_compiled_step_is_shared_among_gpus(blocks: lp.Trace, strategy: str) -> None:
    compiled = lp.predict(blocks, ["4xH100", "H100"], history=False, strategy=strategy, kernels="compile")
    shared, eager = compiled["4xH100"], lp.predict(blocks, ["4xH100"], history=False, strategy=strategy)["4xH100"]
    assert compiled["H100"].iteration_seconds < shared.iteration_seconds < eager.iteration_seconds
    assert (shared.memory_bytes or 0) < (eager.memory_bytes or 0)


def test_compiled_step_gathers_each_fsdp_unit_as_often_as_the_eager_one() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(512, 512), nn.Linear(512, 512)

        def forward(self, data: Tensor, turned: Tensor) -> Tensor:
            result: Tensor = data + self.outer(self.inner(data) * turned)
            return result

    class Angles(nn.Module):
        def forward(self, data: Tensor) -> Tensor:
            return torch.empty(512, 512, device="meta").cos().to(data.dtype)

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.angles, self.layers = Angles(), nn.ModuleList([Turned() for _ in range(3)])

        def forward(self, data: Tensor) -> Tensor:
            turned = self.angles(data)
            for layer in self.layers:
                data = layer(data, turned)
            return data

    trace = step_of(Positions().bfloat16(), 4, 512, 512, dtype=torch.bfloat16)
    units = unit_bytes(trace.parameters)
    # torch keeps FSDP's hooks out of compiled code, so a graph ends at each unit whatever was asked to compile
    steps: list[Any] = [with_kernels(trace, words).operations for words in ((), ("compile",), ("compile-blocks",))]
    eager, *compiled = ([(one.unit, one.is_backward) for one in unit_segments(step, units)] for step in steps)
    assert compiled == [eager, eager]
    assert len(eager) == len(set(eager)) == 7  # the root's angles, and three blocks in two passes


def test_search_of_layouts_and_named_steps_take_kernels(blocks: lp.Trace) -> None:
    eager, compiled = (lp.best_layouts(blocks, ["2xH100"], kernels=word)[0] for word in ("", "compile"))
    assert compiled.prediction.iteration_seconds < eager.prediction.iteration_seconds
    named = replace(blocks, assumed_kernels=("compile",))
    assert lp.best_layouts(named, ["2xH100"])[0] == compiled
    assert seconds(named, "", "L4") == seconds(blocks, "compile", "L4")
    assert seconds(named, "eager", "L4") == seconds(blocks, "", "L4")


def test_memory_section_leaves_out_kernels_that_the_gpu_lacks(run: Run, tmp_path: Path) -> None:
    cards = {}
    for kernels in ("eager", "compile"):
        card = tmp_path / f"{kernels}.md"
        assert (
            run("predict", "examples/gpt2.json.gz", "--gpus", "P100", "--kernels", kernels, "--output", card).code == 0
        )
        cards[kernels] = card.read_text(encoding="utf-8").split("## Where the memory goes")[1]
    assert cards["compile"] == cards["eager"]
