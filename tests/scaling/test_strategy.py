"""The words of strategies: Lightning's names, options, and what is refused in which words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.layouts import layout_of
from lightning_predict.scaling.strategy import ALIASES, DATA_STRATEGIES, Strategy, strategy_of


@pytest.mark.parametrize("name", DATA_STRATEGIES)
def test_own_names(name: str) -> None:
    assert strategy_of(name) == Strategy(data=name)  # type: ignore[arg-type]


@pytest.mark.parametrize(("alias", "meant"), ALIASES.items())
def test_other_names_for_the_same(alias: str, meant: str) -> None:
    assert strategy_of(alias).data == meant


def test_options_follow_behind_commas() -> None:
    found = strategy_of("fsdp, tensor=8, pipeline = 2, micro_batches=16")
    assert found == Strategy(data="fsdp", tensor=8, pipeline=2, micro_batches=16)
    assert found.model_parallel == 16
    assert strategy_of("ddp,bucket_cap_mb=100.5").bucket_cap_mb == 100.5
    assert strategy_of(found) is found


@given(st.sampled_from(DATA_STRATEGIES), st.integers(1, 64), st.integers(1, 64))
def test_what_is_written_reads_back(data: str, tensor: int, pipeline: int) -> None:
    written = Strategy(data=data, tensor=tensor, pipeline=pipeline)  # type: ignore[arg-type]
    assert strategy_of(f"{data},tensor={tensor},pipeline={pipeline}") == written


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("magic", "strategy='magic' is not known; choose one of ddp, zero1, .*deepspeed_stage_2"),
        ("fsdp_cpu_offload", "is not known.*Offloading to the host is not predicted"),
        ("ddp,tensor", "'tensor' is not an option; expected tensor, pipeline, micro_batches or bucket_cap_mb"),
        ("ddp,layers=3", "'layers=3' is not an option"),
        ("ddp,tensor=two", "tensor='two' is not a number"),
        ("ddp,tensor=0", "tensor=0; expected a whole number of at least 1"),
        ("ddp,bucket_cap_mb=-1", "bucket_cap_mb=-1.0; expected MiB above 0"),
    ],
)
def test_what_is_refused(words: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        strategy_of(words)


def test_replicas_are_the_gpus_over_those_that_hold_the_model_once() -> None:
    assert Strategy().replicas(layout_of("2x8xH100")) == 16
    assert Strategy(tensor=8).replicas(layout_of("2x8xH100")) == 2
    assert Strategy(tensor=2, pipeline=4).replicas(layout_of("8xH100")) == 1


def test_degrees_that_do_not_divide_the_gpus_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"8xL4 has 8 GPUs, which tensor=3 x pipeline=1 do not divide"):
        Strategy(tensor=3).replicas(layout_of("8xL4"))
    with pytest.raises(InvalidArgumentError, match="tensor=8 does not divide the 4 GPUs of a machine of 2x4xL4"):
        Strategy(tensor=8).replicas(layout_of("2x4xL4"))
