"""The words of strategies: Lightning's names, options, and the messages of rejected inputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout, layout_of
from lightning_predict.layouts.groups import data_group
from lightning_predict.layouts.strategy import ALIASES, DATA_STRATEGIES, Strategy, parse_strategy

A100 = gpu("A100-SXM-80GB")


@pytest.mark.parametrize("name", DATA_STRATEGIES)
def test_own_names(name: str) -> None:
    assert parse_strategy(name) == Strategy(data=name)  # type: ignore[arg-type]


@pytest.mark.parametrize(("alias", "meant"), ALIASES.items())
def test_other_names_for_the_same(alias: str, meant: str) -> None:
    assert parse_strategy(alias).data == meant


def test_options_follow_behind_commas() -> None:
    found = parse_strategy("fsdp, tensor=8, pipeline = 2, micro_batches=16")
    assert found == Strategy(data="fsdp", tensor=8, pipeline=2, micro_batches=16)
    assert found.model_parallel == 16
    assert parse_strategy("ddp,bucket_cap_mb=100.5").bucket_cap_mb == 100.5
    assert parse_strategy(found) is found


@given(st.sampled_from(DATA_STRATEGIES), st.integers(1, 64), st.integers(1, 64))
def test_what_is_written_reads_back(data: str, tensor: int, pipeline: int) -> None:
    written = Strategy(data=data, tensor=tensor, pipeline=pipeline)  # type: ignore[arg-type]
    assert parse_strategy(f"{data},tensor={tensor},pipeline={pipeline}") == written


def test_an_option_that_is_true_or_false_needs_no_value() -> None:
    assert parse_strategy("fsdp,tensor=8,sequence") == parse_strategy("fsdp,tensor=8,sequence=true")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("magic", "strategy='magic' is not known; choose one of ddp, zero1, .*deepspeed_stage_2"),
        ("fsdp_cpu_offload", "is not known.*offload=optimizer is predicted, behind a comma"),
        ("ddp,tensor", "tensor needs a value, for example 'tensor=2'"),
        ("fsdp,recompute", "recompute needs a value, for example 'recompute=none'"),
        ("ddp,tonsor", "'tonsor' is not an option; expected one of tensor, pipeline, micro_batches, "),
        ("ddp,layers=3", "'layers=3' is not an option"),
        ("ddp,tensor=two", "tensor='two' is not a number"),
        ("ddp,tensor=0", "tensor=0; expected a whole number of at least 1"),
        ("ddp,bucket_cap_mb=-1", "bucket_cap_mb=-1.0; expected MiB above 0"),
    ],
)
def test_what_is_refused(words: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_strategy(words)


def test_replicas_are_the_gpus_over_those_that_hold_the_model_once() -> None:
    assert Strategy().replicas(layout_of("2x8xH100")) == 16
    assert Strategy(tensor=8).replicas(layout_of("2x8xH100")) == 2
    assert Strategy(tensor=2, pipeline=4).replicas(layout_of("8xH100")) == 1
    assert Strategy(tensor=2, pipeline=4).replicas(layout_of("H100")) == 1  # a single GPU shares nothing


def test_degrees_that_do_not_divide_the_gpus_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"8xL4 has 8 GPUs, which tensor=3 x pipeline=1 do not divide"):
        Strategy(tensor=3).replicas(layout_of("8xL4"))
    with pytest.raises(
        InvalidArgumentError,
        match="tensor=3 does not divide the 4 GPUs of a machine of 3x4xL4, and is no multiple of them",
    ):
        Strategy(tensor=3).replicas(layout_of("3x4xL4"))


@pytest.mark.parametrize(
    ("per_node", "nodes", "tensor", "pipeline"), [(8, 1, 4, 2), (8, 2, 4, 1), (8, 1, 1, 8), (4, 4, 2, 2), (6, 2, 2, 3)]
)
def test_groups_of_replicas(per_node: int, nodes: int, tensor: int, pipeline: int) -> None:
    layout, strategy = Layout(A100, per_node, nodes), Strategy(tensor=tensor, pipeline=pipeline)
    group = data_group(layout, strategy)
    assert group.layout.count == strategy.replicas(layout)
    # Every GPU is in one group.
    assert group.groups_per_node * group.layout.gpus_per_node == per_node


def test_groups_of_replicas_by_hand() -> None:
    def shape(layout: Layout, strategy: Strategy) -> tuple[int, int, int]:
        group = data_group(layout, strategy)
        return group.layout.gpus_per_node, group.layout.nodes, group.groups_per_node

    assert shape(Layout(A100, 8), Strategy()) == (8, 1, 1)
    # Four GPUs share a block: two replicas in each of four machines, four groups that use its network.
    assert shape(Layout(A100, 8, 4), Strategy(tensor=4)) == (2, 4, 4)
    # Two stages of two machines each: eight replicas a machine, and all of a group in two machines.
    assert shape(Layout(A100, 8, 4), Strategy(pipeline=2)) == (8, 2, 1)
    # Eight stages in two machines: two replicas side by side in one of them.
    assert shape(Layout(A100, 8, 2), Strategy(pipeline=8)) == (2, 1, 4)
    # Four stages in three machines: six replicas, of which the second stage's lie in two; three groups meet in one.
    assert shape(Layout(A100, 8, 3), Strategy(pipeline=4)) == (3, 2, 3)
    # In nine machines: eighteen, in three of them at least.
    assert shape(Layout(A100, 8, 9), Strategy(pipeline=4)) == (6, 3, 2)


def test_a_strategy_that_changes_anything_of_the_step_is_not_whole() -> None:
    assert Strategy().runs_whole_model
    assert Strategy(micro_batches=1).runs_whole_model
    changes: list[dict[str, Any]] = [
        {"tensor": 2},
        {"accumulate": 2},
        {"expert": 2},
        {"recompute": "full"},
        {"fp8": "tensorwise"},
        {"offload": "optimizer", "data": "zero1"},
    ]
    known = {field.name for field in dataclasses.fields(Strategy)}
    for change in changes:
        assert change.keys() <= known
        assert not dataclasses.replace(Strategy(), **change).runs_whole_model, change
