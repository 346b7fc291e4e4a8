"""Relations that hold for any layout, over a grid of recorded models, GPUs and strategies; no number is measured."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from benchmarks.accuracy.workloads.llama import LLAMA, llama_trace
from lightning_predict.base.units import gigabytes_to_bytes
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect
from lightning_predict.kernels.models import kernel_models
from lightning_predict.layouts.gradients import parameter_bytes, trainable_parameter_count
from lightning_predict.layouts.layout_steps import MultiGpuStep
from lightning_predict.layouts.single_gpu import PredictionContext, single_steps
from lightning_predict.layouts.strategy import Recompute, parse_strategy
from lightning_predict.memory.rank_memory import RankMemory
from lightning_predict.memory.step_memory import step_memory
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.host import UNKNOWN_HOST
from lightning_predict.timeline.step_prediction import StepPrediction

GPUS: Final = ("H100-SXM-80GB", "A100-SXM-80GB", "RTX-4090")
LENGTH, SAMPLES = 2048, 8
DENSE, MIXTURE = "dense", "mixture"
MODELS: Final = {
    DENSE: replace(LLAMA["llama3-8b"], layers=4, vocabulary=32000),
    MIXTURE: replace(LLAMA["mixtral-8x7b"], layers=4),
}
EXAMPLES: Final = Path(__file__).parent.parent.parent / "examples"

STRATEGIES: Final = (
    "ddp",
    "zero1",
    "fsdp",
    "fsdp,micro_batches=2",
    "ddp,tensor=2",
    "zero1,tensor=4,sequence=true",
    "zero1,pipeline=2,micro_batches=4",
    "fsdp,context=2",
)


@lru_cache
def trace_of(model: str) -> Trace:
    return llama_trace(MODELS[model], length=LENGTH, batch=SAMPLES)


@lru_cache
def shared(model: str, names: tuple[str, ...]) -> tuple[MultiGpuStep, Sequence[StepPrediction]]:
    gpus, models = tuple(map(find_gpu, names)), kernel_models(names, None)
    single = single_steps(trace_of(model), PredictionContext(gpus, None, models, UNKNOWN_HOST, CATALOGUE))
    return MultiGpuStep(single.trace, single.timed, gpus, models=models, host=single.host), single.steps


@lru_cache
def memory_of(model: str) -> RankMemory:
    return RankMemory(trace_of(model))


def step(layout: str, words: str, links: Interconnect = CATALOGUE, *, model: str = DENSE) -> StepPrediction:
    parsed = layout_of(layout)
    names = GPUS if "fp8" not in words else GPUS[:1]  # the others refuse it
    step, steps = shared(model, names)
    row = names.index(parsed.gpu.name)
    return step.on_layout(parsed, steps[row], row, parse_strategy(words), links)


def seconds(layout: str, words: str, links: Interconnect = CATALOGUE, *, model: str = DENSE) -> float:
    return step(layout, words, links, model=model).seconds


def memory(layout: str, words: str, *, model: str = DENSE) -> float:
    return memory_of(model).tensor_bytes(layout_of(layout), parse_strategy(words))


def never_falls(values: Sequence[float]) -> bool:
    return all(before <= after * (1 + 1e-9) for before, after in pairwise(values))


@pytest.mark.parametrize("gpu", GPUS)
def test_more_replicas_never_shorten_a_step(gpu: str) -> None:
    layouts = [f"4x{gpu}", f"8x{gpu}", *(f"{nodes}x8x{gpu}" for nodes in (2, 4, 16, 128))]
    for words in ("ddp", "ddp,tensor=2", "ddp,pipeline=2,micro_batches=4", "ddp,context=2"):  # ZeRO shares the update
        assert never_falls([seconds(layout, words) for layout in layouts]), words


@pytest.mark.parametrize("gpu", GPUS)
def test_groups_across_machines_cost_little(gpu: str) -> None:
    # Six replicas of four stages in three machines, eighteen in nine: some groups lie across two or three of them.
    odd, even = (
        [seconds(f"{nodes}x8x{gpu}", "ddp,pipeline=4,micro_batches=8") for nodes in own] for own in ((3, 9), (4, 16))
    )
    assert all(one < 1.2 * other for one, other in zip(odd, even, strict=True))


@pytest.mark.parametrize("words", STRATEGIES)
def test_more_machines_or_slower_gpus_are_never_faster(words: str) -> None:
    for gpu in GPUS:
        spread = [seconds(f"{nodes}x{8 // nodes}x{gpu}", words) for nodes in (1, 2, 4)]
        assert all(more > 0.99 * fewer for fewer, more in pairwise(spread))  # latencies of rings and trees differ
    for layout in ("8x{}", "4x8x{}"):
        assert seconds(layout.format(GPUS[0]), words) < seconds(layout.format(GPUS[1]), words)


@pytest.mark.parametrize("words", STRATEGIES)
def test_slower_links_never_shorten_a_step(words: str) -> None:
    for gpu in GPUS:
        rates = [gigabytes_to_bytes(rate) for rate in (400, 100, 25, 5)]
        inside = [Interconnect(intra_node_bytes_per_second=rate) for rate in rates]
        between = [Interconnect(inter_node_bytes_per_second=rate) for rate in rates]
        for links in (inside, between):
            assert never_falls([seconds(f"2x8x{gpu}", words, each) for each in links])


@pytest.mark.parametrize("words", STRATEGIES)
def test_twice_the_accumulated_batches_take_at_most_twice_as_long(words: str) -> None:
    for gpu in GPUS:
        few, many = (f"{words},accumulate={count}" for count in (4, 8))
        assert 1 < seconds(f"8x{gpu}", many) / seconds(f"8x{gpu}", few) <= 2
        assert memory(f"8x{gpu}", many) == pytest.approx(memory(f"8x{gpu}", few))


def test_equivalent_strategies_are_equal() -> None:
    ways = (
        ("ddp", "ddp,tensor=1,pipeline=1,context=1,micro_batches=1,accumulate=1,expert=1"),
        ("zero1,tensor=2,pipeline=2", "deepspeed_stage_1,pipeline=2,tensor=2,schedule=1f1b"),
        ("fsdp", "hybrid,shard=16"),
    )
    for one, other in ways:
        for gpu in GPUS:
            for measure in (seconds, memory):
                assert measure(f"2x8x{gpu}", one) == pytest.approx(measure(f"2x8x{gpu}", other))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rest", ["ddp", "fsdp", "zero1,tensor=2,sequence=true", "zero1,pipeline=2,micro_batches=4"])
def test_recomputation_takes_time_and_saves_memory(model: str, rest: str) -> None:
    pairs: tuple[tuple[Recompute, Recompute], ...] = (
        ("none", "selective"),
        ("none", "operations"),
        ("none", "layers"),
        ("selective", "full"),
        ("operations", "full"),
        ("layers", "full"),
    )
    layout = f"8x{GPUS[0]}"
    for less, more in pairs:
        ways = [f"{rest},recompute={what}" for what in (less, more)]
        assert never_falls([seconds(layout, words, model=model) for words in ways])
        assert never_falls([memory(layout, words, model=model) for words in reversed(ways)])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rest", ["ddp", "zero1", "fsdp", "ddp,recompute=full", "fsdp,recompute=operations"])
def test_higher_tensor_degree_never_takes_more_memory(model: str, rest: str) -> None:
    for sequence in ("false", "true"):
        ways = [rest, *(f"{rest},tensor={degree},sequence={sequence}" for degree in (2, 4, 8))]
        assert never_falls([memory(f"2x8x{GPUS[0]}", words, model=model) for words in reversed(ways)])


@pytest.mark.parametrize("rest", ["", ",tensor=2", ",micro_batches=2", ",recompute=full"])
def test_more_sharding_never_takes_more_memory(rest: str) -> None:
    for model in MODELS:
        for layout in (f"8x{GPUS[0]}", f"4x8x{GPUS[0]}"):
            ways = [memory(layout, data + rest, model=model) for data in ("fsdp", "zero2", "zero1", "ddp")]
            # A model of four blocks: FSDP's gathered units and shards take about as much as all parameters.
            assert ways[0] <= 1.01 * ways[1]
            assert never_falls(ways[1:])


@pytest.mark.parametrize("gpu", GPUS)
def test_model_parallelism_of_a_small_model_gains_no_throughput(gpu: str) -> None:
    for data in ("ddp", "zero1", "fsdp"):
        alone = seconds(f"8x{gpu}", data)
        for words, shared_by in (("context=2", 2), ("tensor=8,sequence=true", 8), ("pipeline=2,micro_batches=4", 2)):
            assert shared_by * seconds(f"8x{gpu}", f"{data},{words}") > 0.99 * alone


def test_overlap_and_smaller_messages_never_lengthen_a_step() -> None:
    pairs = (
        ("ddp", "ddp,overlap_grad_reduce=false"),
        ("zero1,overlap_param_gather=true", "zero1"),
        ("zero1,tensor=2,overlap_tensor=true", "zero1,tensor=2"),
        ("ddp,reduce_dtype=bfloat16", "ddp,reduce_dtype=float32"),
        ("zero1,pipeline=2,micro_batches=4,schedule=zero_bubble", "zero1,pipeline=2,micro_batches=4,schedule=gpipe"),
    )
    for gpu in GPUS:
        for layout in (f"8x{gpu}", f"4x8x{gpu}"):
            for pair in pairs:
                assert never_falls([seconds(layout, words) for words in pair]), pair


def test_float8_on_hopper_is_faster_with_a_wider_interval() -> None:
    for rest in ("ddp", "fsdp", "zero1,tensor=2,sequence=true"):
        plain = step(f"8x{GPUS[0]}", f"{rest},recompute=full")
        for scales in ("tensorwise", "rowwise", "blockwise", "mx"):
            narrow = step(f"8x{GPUS[0]}", f"{rest},recompute=full,fp8={scales}")
            assert narrow.seconds < plain.seconds
            assert narrow.high_seconds / narrow.low_seconds > plain.high_seconds / plain.low_seconds


@pytest.mark.parametrize("words", STRATEGIES)
def test_throughput_is_between_1_and_80_percent_of_peak(words: str) -> None:
    operations = 6 * trainable_parameter_count(trace_of(DENSE)) * SAMPLES * LENGTH
    for layout in (f"8x{GPUS[0]}", f"128x8x{GPUS[0]}"):
        strategy, parsed = parse_strategy(words), layout_of(layout)
        each = strategy.replicas(parsed) * operations / parsed.count / seconds(layout, words)
        assert 0.01 < each / find_gpu(GPUS[0]).peak_flops_per_second["bfloat16"] < 0.8


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "mixtral-8x7b"])
def test_large_examples_have_float32_optimizer_copies(name: str) -> None:
    # Two moments and a copy of each parameter, 4 bytes each, in addition to the parameter in 2.
    memory = Trace.load(str(EXAMPLES / f"{name}.json.gz")).memory
    assert memory.optimizer_state_bytes == pytest.approx(6 * (memory.parameter_bytes or 0), rel=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "vit", "resnet", "lora", "llama3-8b"])
def test_replica_needs_memory_of_one_gpu_and_buckets(name: str) -> None:
    """DDP adds its buckets; what a step keeps to its end (a name for the logits, in GPT-2's) is kept there, too."""
    trace = Trace.load(str(EXAMPLES / f"{name}.json.gz"))
    need = step_memory(trace)
    assert need is not None
    for layout in map(layout_of, ("8xL4", "2x8xH100-SXM-80GB")):
        alone = float(need.bytes_on(layout.gpu))
        buckets = sum(parameter_bytes(parameter) for parameter in trace.parameters if parameter.requires_grad)
        shared = RankMemory(trace).most_filled(layout, parse_strategy("ddp")).bytes_on(layout.gpu)
        assert shared == pytest.approx(alone + buckets, rel=0.05)
        assert shared >= alone
