"""Published transformers, recorded on the meta device, on GPUs that divide their blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lightning_predict as lp
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.layouts.strategy import parse_strategy
from lightning_predict.prediction import predict_workload
from lightning_predict.record.trace import Trace
from lightning_predict.run.workload import Workload
from tests.known import known
from tests.workloads.gpt import Gpt, GptConfig
from tests.workloads.sequences import Llama

VOCABULARY, LENGTH, SAMPLES = 32_000, 1024, 8


def recorded(network: Callable[[], nn.Module], *, trains: bool = True) -> Trace:
    """A step in bfloat16."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = network()
            tokens = torch.zeros(SAMPLES, LENGTH, dtype=torch.int64)
        optimizer = torch.optim.AdamW(model.parameters())

        def loss() -> Tensor:
            return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

        def step() -> None:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

        def check() -> None:
            with torch.no_grad():
                loss()

        return lp.capture(step if trains else check, samples_per_step=SAMPLES)
    finally:
        torch.set_default_dtype(torch.float32)


def llama() -> nn.Module:
    return Llama(layers=4, hidden=4096, heads=32, kv_heads=8, inner=11008, vocabulary=VOCABULARY)


def gpt() -> nn.Module:
    return Gpt(GptConfig(layers=4, hidden=2048, heads=16, vocabulary=VOCABULARY, context=LENGTH))


@pytest.fixture(scope="module")
def llama_trace() -> Trace:
    return recorded(llama)


def seconds(trace: Trace, gpus: str, strategy: str = "ddp", *, host: float | None = None) -> float:
    return lp.predict(trace, [gpus], strategy=strategy, history=False, host=host)[gpus].iteration_seconds


@pytest.mark.parametrize("network", [llama, gpt])
def test_eight_gpus_take_between_an_eighth_and_all_of_the_time(network: Callable[[], nn.Module]) -> None:
    trace, host = recorded(network), 0.05  # a host that does not count
    single = seconds(trace, "H100-SXM-80GB", host=host)
    by_degree = [seconds(trace, f"{count}xH100-SXM-80GB", f"ddp,tensor={count}", host=host) for count in (2, 4, 8)]
    for count, shared in zip((2, 4, 8), by_degree, strict=True):
        assert single / count < shared < single
    assert sorted([single, *by_degree], reverse=True) == [single, *by_degree]
    pipeline = seconds(trace, "4xH100-SXM-80GB", "ddp,pipeline=4,micro_batches=8", host=host)
    # Three turns of eleven are waiting: at least 11 / 8 of a quarter of the time.
    assert single / 4 * 11 / 8 * 0.99 < pipeline < single


def test_table_of_one_gpu_and_layouts(llama_trace: Trace) -> None:
    names = ("H100-SXM-80GB", "8xH100-SXM-80GB", "16xH100-SXM-80GB")
    result = lp.predict(llama_trace, names, strategy="ddp,tensor=8", iterations=100, history=False)
    single, shared, twice = result.values()
    assert single.iteration_seconds == seconds(llama_trace, "H100-SXM-80GB")
    # One replica: eight samples a step, for any split. Two replicas need half of the steps.
    assert shared.samples_per_second == pytest.approx(SAMPLES / shared.iteration_seconds)
    assert (single.iterations, shared.iterations, twice.iterations) == (100, 100, 50)
    assert single.memory_bytes is not None
    assert single.memory_bytes / 8 < known(shared.memory_bytes) < single.memory_bytes / 2
    assert any("split over 8 GPUs" in note for note in shared.notes)
    assert not any("split over" in note for note in single.notes)


def test_a_single_gpu_computes_blocks_again_and_multiplies_in_float8_as_several_do(llama_trace: Trace) -> None:
    plain, again, float8 = (
        lp.predict(llama_trace, ["H100-SXM-80GB"], strategy=words, history=False)["H100-SXM-80GB"]
        for words in ("ddp", "ddp,recompute=full", "ddp,fp8=tensorwise")
    )
    # The forward pass, of which blocks are the most, runs twice; two of the four parts of a step are then forward.
    assert 1.15 < again.iteration_seconds / plain.iteration_seconds < 4 / 3
    assert known(again.memory.allocated).middle < 0.9 * known(plain.memory.allocated).middle
    assert float8.iteration_seconds < plain.iteration_seconds
    assert "The backward pass computes every block again." in again.notes


def test_measured_step_of_the_gpu_in_use_is_not_that_of_a_strategy_that_changes_its_operations(
    llama_trace: Trace,
) -> None:
    in_use = replace(llama_trace, device="cuda", gpu_reported_name="NVIDIA H100 80GB HBM3", step_seconds=(0.5,) * 4)
    plain, again = (
        lp.predict(in_use, ["H100-SXM-80GB"], strategy=words, history=False)["H100-SXM-80GB"]
        for words in ("ddp", "ddp,recompute=full")
    )
    assert plain.measured_seconds == plain.step_seconds == 0.5
    assert again.measured_seconds is None
    assert again.unmeasured_seconds is None
    assert again.step_seconds == again.iteration_seconds > 1.1 * plain.iteration_seconds


def test_validation_is_divided_like_training(llama_trace: Trace) -> None:
    validation = recorded(llama, trains=False)
    workload = Workload(training_iterations=100, validation_iterations=10)
    assumptions = Assumptions(strategy=parse_strategy("ddp,tensor=8"))
    alone, shared = (
        predict_workload(llama_trace, [layout_of(gpus)], workload, assumptions, validation=validation)[
            gpus
        ].validation_seconds
        for gpus in ("H100-SXM-80GB", "8xH100-SXM-80GB")
    )
    assert alone is not None
    assert alone / 8 < known(shared) < alone


@pytest.mark.parametrize(
    ("gpus", "strategy", "message"),
    [
        ("16xH100-SXM-80GB", "ddp,tensor=16", "tensor=16 does not divide the 32 heads with 8 of keys and values"),
        ("8xH100-SXM-80GB", "ddp,pipeline=8", "pipeline=8 stages for 4 transformer block"),
        ("2xH100-SXM-80GB", "ddp,pipeline=2,micro_batches=16", r"micro_batches=16 of a batch of 8 sample\(s\)"),
    ],
)
def test_degrees_must_fit_the_model(llama_trace: Trace, gpus: str, strategy: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        seconds(llama_trace, gpus, strategy)
