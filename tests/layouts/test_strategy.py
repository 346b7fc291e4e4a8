"""Texts of strategies, their options, rejected texts, and the groups of GPUs that strategies make."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout, layout_of
from lightning_predict.kernels.interconnect import CATALOGUE
from lightning_predict.layouts.groups import data_group, tensor_group
from lightning_predict.layouts.overlap import Links
from lightning_predict.layouts.strategy import ALIASES, DATA_STRATEGIES, DataStrategy, Strategy, parse_strategy

A100 = gpu("A100-SXM-80GB")


@pytest.mark.parametrize(("name", "data"), [*ALIASES.items(), *((name, name) for name in DATA_STRATEGIES)])
def test_name_selects_data_parallelism(name: str, data: DataStrategy) -> None:
    assert parse_strategy(name) == Strategy(data=data)


@pytest.mark.parametrize(
    ("words", "strategy"),
    [
        (
            "fsdp, tensor=8, pipeline = 2, micro_batches=16",
            Strategy(data="fsdp", tensor=8, pipeline=2, micro_batches=16),
        ),
        ("ddp,bucket_cap_mb=100.5", Strategy(bucket_cap_mb=100.5)),
        ("tensor=8", Strategy(tensor=8)),
        ("fsdp,tensor=8,sequence", Strategy(data="fsdp", tensor=8, sequence=True)),
    ],
)
def test_options_follow_the_name(words: str, strategy: Strategy) -> None:
    assert parse_strategy(words) == strategy
    assert parse_strategy(strategy) is strategy


@given(st.sampled_from(DATA_STRATEGIES), st.integers(1, 64), st.integers(1, 64))
def test_degrees_are_parsed(data: DataStrategy, tensor: int, pipeline: int) -> None:
    strategy = Strategy(data=data, tensor=tensor, pipeline=pipeline)
    assert parse_strategy(f"{data},tensor={tensor},pipeline={pipeline}") == strategy


@pytest.mark.parametrize(
    "words",
    [
        "ddp",
        "fsdp,micro_batches=4,param_dtype=bfloat16",
        "ddp,tensor=8,pipeline=4,micro_batches=8,virtual=2,sequence=true,recompute=selective,overlap_grad_reduce=false",
        "zero1,context=2,expert=4,capacity=1.25,offload=optimizer,fp8=blockwise",
        "hybrid,shard=16",
    ],
)
def test_name_of_strategy_can_be_parsed(words: str) -> None:
    assert parse_strategy(words).name == words


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
        ("ddp,recompute=some", "recompute='some'; expected none, selective, operations, layers, full"),
        ("ddp,fp8=delayed", "fp8='delayed'; expected tensorwise, rowwise, blockwise, mx"),
        ("ddp,sequence=perhaps", "sequence='perhaps'; expected true or false"),
        ("ddp,capacity=0.5", "capacity=0.5; expected a factor of at least 1"),
        ("ddp,virtual=2", "virtual=2 needs pipeline parallelism; ask for pipeline=2 or more"),
        ("ddp,schedule=gpipe", "schedule=gpipe needs pipeline parallelism"),
        ("ddp,sequence=true", "sequence=true needs tensor parallelism"),
        ("ddp,overlap_tensor=true", "overlap_tensor=true needs tensor parallelism"),
        ("ddp,capacity=1.5", "capacity=1.5 needs expert parallelism"),
        ("ddp,last_stage=3", "last_stage=3 is of a pipeline of one stage a GPU"),
        ("ddp,first_stage=3", "first_stage=3 is of a pipeline of one stage a GPU"),
        ("ddp,pipeline=2,virtual=2,last_stage=3", "last_stage=3 is of a pipeline of one stage a GPU"),
        ("ddp,pipeline=2,virtual=2,schedule=gpipe", "schedule=gpipe has one stage a GPU"),
        ("ddp,pipeline=4,virtual=2,micro_batches=6", "pipeline=4, which micro_batches=6 is not a multiple of"),
        ("fsdp,shard=4", "shard=4 is the size of hybrid's groups, and fsdp has none"),
        ("ddp,offload=optimizer", "offload=optimizer moves a share of the optimizer's state, and ddp does not split"),
        ("ddp,param_dtype=bfloat16", "param_dtype=bfloat16 is what FSDP gathers in, and ddp gathers nothing"),
        ("fsdp,overlap_grad_reduce=false", "fsdp scatters gradients as they come"),
        ("fsdp,overlap_param_gather=true", "overlap_param_gather=true is of zero1 and zero2"),
        ("hybrid,expert=2", "expert=2 with hybrid: experts in groups are not predicted; choose fsdp or zero1"),
        ("ddp,tensor=2,expert=2,expert_tensor=4", "expert_tensor=4 does not divide tensor=2"),
        ("zero2,pipeline=2,schedule=zero_bubble", "schedule=zero_bubble puts off the gradients that zero2 would scat"),
    ],
)
def test_invalid_or_contradicting_options_are_refused(words: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_strategy(words)


@pytest.mark.parametrize(
    ("strategy", "layout", "replicas"),
    [
        (Strategy(), "2x8xH100", 16),
        (Strategy(tensor=8), "2x8xH100", 2),
        (Strategy(tensor=2, pipeline=4), "8xH100", 1),
        (Strategy(tensor=2, pipeline=4), "H100", 1),  # a single GPU shares nothing
    ],
)
def test_replicas_are_gpus_divided_by_degrees(strategy: Strategy, layout: str, replicas: int) -> None:
    assert strategy.replicas(layout_of(layout)) == replicas


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("8xL4", "8xL4 has 8 GPUs, which tensor=3 x pipeline=1 do not divide"),
        ("3x4xL4", "tensor=3 does not divide the 4 GPUs of a machine of 3x4xL4, and is no multiple of them"),
    ],
)
def test_degrees_must_divide_gpus(layout: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Strategy(tensor=3).replicas(layout_of(layout))


@pytest.mark.parametrize(
    ("per_node", "nodes", "strategy", "group"),
    [
        # (GPUs per machine, machines, groups per machine) of a data-parallel group
        (8, 1, Strategy(), (8, 1, 1)),
        (8, 1, Strategy(tensor=4, pipeline=2), (1, 1, 8)),
        # Four GPUs share a block: two replicas in each of four machines, four groups that use its network.
        (8, 4, Strategy(tensor=4), (2, 4, 4)),
        # Two stages of two machines each: eight replicas a machine, and all of a group in two machines.
        (8, 4, Strategy(pipeline=2), (8, 2, 1)),
        # Eight stages in two machines: two replicas side by side in one of them.
        (8, 2, Strategy(pipeline=8), (2, 1, 4)),
        # Four stages in three machines: six replicas, of which the second stage's lie in two; three groups meet in one.
        (8, 3, Strategy(pipeline=4), (3, 2, 3)),
        # In nine machines: eighteen, in three of them at least.
        (8, 9, Strategy(pipeline=4), (6, 3, 2)),
        # Two replicas of whole machines: one of their GPUs in each of two machines.
        (2, 4, Strategy(tensor=4), (1, 2, 2)),
    ],
)
def test_data_parallel_group_by_hand(
    per_node: int, nodes: int, strategy: Strategy, group: tuple[int, int, int]
) -> None:
    layout = Layout(A100, per_node, nodes)
    links = data_group(Links(layout, CATALOGUE), strategy)
    assert (links.layout.gpus_per_node, links.layout.nodes, links.groups_per_node) == group
    assert links.layout.count == strategy.replicas(layout)


def test_tensor_parallel_group_over_machines() -> None:
    group = tensor_group(Links(Layout(A100, 2, 4), CATALOGUE), Strategy(tensor=4))
    assert (group.layout.gpus_per_node, group.layout.nodes, group.groups_per_node) == (2, 2, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"tensor": 2},
        {"accumulate": 2},
        {"expert": 2},
        {"recompute": "full"},
        {"fp8": "tensorwise"},
        {"offload": "optimizer", "data": "zero1"},
    ],
)
def test_options_that_divide_or_change_the_work(change: dict[str, object]) -> None:
    assert Strategy().runs_whole_model
    assert Strategy(micro_batches=1).runs_whole_model
    assert not replace(Strategy(), **change).runs_whole_model  # type: ignore[arg-type]
