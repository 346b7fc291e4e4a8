"""Sets of changes with which a step fits: the smallest first, then those that take less time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.advice.batch_size import with_samples
from lightning_predict.advice.fitting_changes import with_eight_bit_state
from lightning_predict.advice.memory_savings import memory_report
from lightning_predict.hardware import gpu
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.memory.step_memory import step_memory
from lightning_predict.record.quantization import BlockwiseAdamW, as_4bit
from lightning_predict.record.sources import Variant
from lightning_predict.record.trace import Trace
from tests.known import known


class Block(nn.Module):
    """Four times the width inside, as in a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = self.second(nn.functional.gelu(self.first(data)))
        return data + changed


def step_of_blocks(
    *, width: int, samples: int, blocks: int = 4, optimizer_class: Any = torch.optim.AdamW, batches: int = 1
) -> Trace:
    with torch.device("meta"):
        model = nn.Sequential(*(Block(width) for _ in range(blocks)))
        data = torch.empty(samples, 512, width)
    optimizer = optimizer_class(model.parameters())

    def step() -> None:
        for _ in range(batches):
            model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return lp.capture(step, samples_per_step=samples * batches)


def test_smallest_set_is_first_and_each_next_one_is_faster() -> None:
    # Each block keeps 10 x width values of 4 bytes a token: 4 x 10 x 1,024 x 4 x 512 x 256 = 21.5 GB of activations.
    trace = step_of_blocks(width=1024, samples=256)
    assert lp.predict(trace, ["RTX-3060"], history=False)["RTX-3060"].memory_fit != "fits"
    ways = lp.ways_to_fit(trace, "RTX-3060")
    assert len(ways) > 1
    assert ways[0].number == 1
    assert [way.number for way in ways] == sorted(way.number for way in ways)
    assert [way.seconds for way in ways] == sorted((way.seconds for way in ways), reverse=True)
    assert all(way.fit_probability is not None and way.fit_probability >= 0.9 for way in ways)
    for way in ways:
        assert way.accumulate == ceil(256 / way.largest_batch)
        assert way.batch_size == ceil(256 / way.accumulate)
    first, second = known(memory_report(trace, gpu("RTX-3060"))).ways_in_words[:2]
    assert first.startswith("To fit, with the fewest changes: ")
    assert second == f"Cheaper, with more changes: {ways[1].sentence}."  # float32 matmuls are slow, so 16 bits pay
    assert "bf16-mixed" in second


def test_smaller_batches_share_the_samples_evenly_and_one_update() -> None:
    trace = step_of_blocks(width=1024, samples=256)
    way = next(way for way in lp.ways_to_fit(trace, "RTX-3060") if not way.changes)
    # 256 samples are batches of 86, 85 and 85.
    assert (way.accumulate, way.batch_size) == (3, 86)
    assert way.largest_batch > 86
    assert way.sentence.startswith("3 batches of at most 86, accumulated: ")
    assert way.sentence.endswith(f"; up to {way.largest_batch} samples a batch would fit")
    strategies = [(86, 3), (85, 3), (86, 1)]
    more, less, single = (
        lp.predict(with_samples(trace, size), ["RTX-3060"], strategy=Strategy(accumulate=batches), history=False)[
            "RTX-3060"
        ].iteration_seconds
        for size, batches in strategies
    )
    assert way.seconds == pytest.approx((more + 2 * less) / 3)
    assert 2 * single < way.seconds < 3 * single  # one update instead of three
    small = lp.predict(with_samples(trace, 86), ["RTX-3060"], strategy=Strategy(accumulate=3), history=False)
    assert small["RTX-3060"].memory.fit_probability == way.fit_probability


def test_step_that_fits_needs_no_change_and_accumulation_holds_earlier_gradients() -> None:
    # 4 x 8 x 2,048 squared parameters: 0.54 GB of gradients, absent at the peak of the first batch.
    # A sample keeps 4 x 10 x 2,048 x 512 values of 4 bytes: 16 samples keep 2.7 GB.
    step = partial(step_of_blocks, width=2048, samples=16)
    first, later, recorded = (
        lp.predict(trace, ["RTX-3060"], strategy=Strategy(accumulate=batches), history=False)["RTX-3060"].memory_bytes
        or 0.0
        for trace, batches in ((step(), 1), (step(), 2), (step(batches=2), 1))
    )
    assert later == pytest.approx(recorded, rel=1e-4)
    assert later - first > 0.4e9
    trace = step_of_blocks(width=256, samples=4)
    (way,) = lp.ways_to_fit(trace, "H100-SXM-80GB")
    assert (way.changes, way.accumulate, way.batch_size) == ((), 1, 4)
    assert way.sentence.startswith("no change: ")
    report = known(memory_report(trace, gpu("H100-SXM-80GB")))
    assert report.ways is None


def test_step_whose_weights_do_not_fit_names_adapters_and_4_bits() -> None:
    # 4 x 8 x 16,384 squared parameters, 4 bytes each: 34 GB
    report = known(memory_report(step_of_blocks(width=16_384, samples=1), gpu("RTX-4090")))
    assert report.ways == ()
    assert (
        "No set of 16 bits, checkpointing, 8-bit optimizer state and a smaller batch fits. Train adapters (LoRA or "
        "QLoRA), or share the model among GPUs (`lightning-predict parallel`)." in report.sentences
    )
    trace = step_of_blocks(width=16_384, samples=1)
    first, *rest = trace.parameters
    frozen = (first, *(replace(parameter, requires_grad=False) for parameter in rest))
    sentences = known(memory_report(replace(trace, parameters=frozen), gpu("RTX-4090"))).sentences
    assert sum("Load the frozen weights in 4 bits (by name `--quantization nf4`)" in text for text in sentences) == 1


def test_8_bit_state_needs_the_memory_of_a_recorded_8_bit_optimizer_and_fits_where_it_fits() -> None:
    # 4 x 8 x 6,144 squared parameters: 4.83 GB each of weights and gradients, and 9.66 or 2.42 GB of state.
    step = partial(step_of_blocks, width=6144, samples=1)
    recorded, assumed = (
        step_memory(trace) for trace in (step(optimizer_class=BlockwiseAdamW), with_eight_bit_state(step()))
    )
    need = known(assumed).bytes_on(gpu("RTX-3090"))
    assert need == pytest.approx(known(recorded).bytes_on(gpu("RTX-3090")), rel=0.01)
    assert need < 13e9
    (way, *_) = lp.ways_to_fit(step(), "T4")
    assert way.changes == ("an optimizer with 8-bit state (bitsandbytes)",)


def frozen_layers(*, four_bits: bool, layers: int = 200, width: int = 8192, samples: int = 256) -> Trace:
    with torch.device("meta"):
        frozen = nn.Sequential(*(nn.Linear(width, width, bias=False, dtype=torch.bfloat16) for _ in range(layers)))
        model = nn.Sequential(nn.Sequential(nn.Linear(width, width)), frozen.requires_grad_(False), nn.Linear(width, 8))
        data = torch.empty(samples, width)
    if four_bits:
        as_4bit(frozen, compute_dtype=torch.bfloat16)
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[2].parameters()])

    def step() -> None:
        model[2](model[1](model[0](data).bfloat16()).float()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return lp.capture(step, samples_per_step=samples)


def variant(*changes: str, trains_all: bool, step: Callable[[], Trace]) -> Variant:
    return Variant(changes=changes, trains_all=trains_all, step=step)


def test_frozen_weights_in_4_bits_are_one_of_the_changes() -> None:
    # 200 x 8,192 squared values: 26.8 GB in 16 bits, 7.5 GB in 4 bits with their scales
    trace, packed = frozen_layers(four_bits=False), frozen_layers(four_bits=True)
    assert not lp.ways_to_fit(trace, "RTX-3090")
    given = variant("frozen weights in 4 bits", trains_all=True, step=lambda: packed)
    (way,) = lp.ways_to_fit(trace, "RTX-3090", variants=[given])
    assert (way.changes, way.accumulate) == (("frozen weights in 4 bits",), 1)
    assert way.largest_batch > 256
    own = lp.predict(packed, ["RTX-3090"], history=False)["RTX-3090"]
    assert (way.seconds, way.fit_probability) == (own.iteration_seconds, own.memory.fit_probability)
    report = known(memory_report(trace, gpu("RTX-3090"), variants=[given]))
    assert report.ways == (way,)


def test_step_that_trains_fewer_parameters_is_proposed_if_nothing_else_fits() -> None:
    trace = step_of_blocks(width=1024, samples=256)
    fewer = variant("adapters", trains_all=False, step=partial(step_of_blocks, width=1024, samples=1))
    assert all("adapters" not in way.changes for way in lp.ways_to_fit(trace, "RTX-3060", variants=[fewer]))
    large = step_of_blocks(width=16_384, samples=1)
    (way, *_) = lp.ways_to_fit(large, "RTX-4090", variants=[fewer])
    assert way.changes == ("adapters",)

    def refused() -> Trace:
        raise lp.LightningPredictError("LoRA adapts no layer of this model.")

    report = memory_report(large, gpu("RTX-4090"), variants=[variant("adapters", trains_all=False, step=refused)])
    assert known(report).ways_in_words == (
        "No set of 16 bits, checkpointing, 8-bit optimizer state, adapters and a smaller batch fits. Share the model "
        "among GPUs (`lightning-predict parallel`).",
    )


@pytest.mark.parametrize("name", ["T5", ""])
def test_unknown_gpu_is_rejected(name: str) -> None:
    with pytest.raises(lp.LightningPredictError):
        lp.ways_to_fit(step_of_blocks(width=64, samples=2), name)
