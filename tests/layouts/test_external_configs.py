"""Megatron's arguments as words of a strategy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import MixedPrecision

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.callbacks.lightning_packages import PACKAGES
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.layouts.strategy import Strategy, parse_strategy


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--tensor-model-parallel-size 8", Strategy(tensor=8, overlap_grad_reduce=False)),
        ("--tensor_model_parallel_size=8 --overlap_grad_reduce", Strategy(tensor=8)),
        (
            "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel "
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
            "--recompute-granularity selective",
            Strategy(
                data="zero1",
                tensor=4,
                pipeline=2,
                sequence=True,
                gather_again=True,
                overlap_param_gather=True,
                recompute="selective",
            ),
        ),
        (
            "--context-parallel-size 2 --expert-model-parallel-size 8 --pipeline-model-parallel-size 1",
            Strategy(context=2, expert=8, expert_launches=True, overlap_grad_reduce=False),
        ),
        (
            "--tensor-model-parallel-size 2 --expert-model-parallel-size 16 --expert-tensor-parallel-size 1",
            Strategy(tensor=2, expert=16, expert_tensor=1, expert_launches=True, overlap_grad_reduce=False),
        ),
        # As in NeMo's configuration, with its groups, flags, and keys that are no options.
        (
            "model.tensor_model_parallel_size=4 ++model.pipeline_model_parallel_size=2 "
            "model.virtual_pipeline_model_parallel_size=null model.sequence_parallel=True "
            "model.tp_comm_overlap=False trainer.accumulate_grad_batches=16",
            Strategy(tensor=4, pipeline=2, sequence=True, gather_again=True, accumulate=16, overlap_grad_reduce=False),
        ),
        # Keys that are not about sharing are ignored, with its values.
        (
            "--num-layers 80 --hidden-size 8192 --bf16 --swiglu --lr 1.5e-4 --tensor-model-parallel-size 8 "
            "--data-path /data/parallel_corpus",
            Strategy(tensor=8, overlap_grad_reduce=False),
        ),
        ("--use-distributed-optimizer accumulate=8", Strategy(data="zero1", accumulate=8, overlap_grad_reduce=False)),
    ],
)
def test_arguments_say_what_the_words_do(arguments: str, expected: Strategy) -> None:
    found = parse_strategy(arguments)
    assert found == expected
    assert parse_strategy(found.name) == found  # told back in our words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--num-layers-per-virtual-pipeline-stage 5",
            "the argument --num-layers-per-virtual-pipeline-stage has no word here, .* Understood are tensor",
        ),
        ("--tensor-model-parallel-size 8 --ub-tp-comm-overlap", "the argument --ub-tp-comm-overlap has no word here"),
        ("--global-batch-size 64", "global-batch-size=64 needs micro-batch-size, to tell how many batches"),
        ("--global-batch-size 64 --micro-batch-size 3", "=64 is no multiple of micro-batch-size = 3; correct one"),
        ("--rampup-batch-size 16 16 100", "--rampup-batch-size changes the batch during the run; leave it out"),
        ("--tensor-model-parallel-size", "--tensor-model-parallel-size has no value; expected one behind it"),
        ("--recompute-granularity half", "--recompute-granularity half; expected full or selective"),
        ("--tensor-model-parallel-size eight", "tensor='eight' is not a number"),
    ],
)
def test_what_no_option_says_is_refused(arguments: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_strategy(arguments)


def made(module: str, name: str, options: dict[str, Any]) -> Any:
    """Make a strategy; Fabric's model parallelism gets the groups that share the model."""
    if name == "ModelParallelStrategy" and "fabric" in module:
        options = {"parallelize_fn": lambda model, _mesh: model, **options}
    return getattr(import_module(module), name)(**options)


STRATEGIES = [*(f"{package}.strategies" for package in PACKAGES), "lightning.fabric.strategies"]


@pytest.mark.parametrize("module", STRATEGIES)
@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ModelParallelStrategy", {"data_parallel_size": 4, "tensor_parallel_size": 8}, "fsdp,tensor=8,groups=4"),
        ("ModelParallelStrategy", {"tensor_parallel_size": 2}, "fsdp,tensor=2"),
        ("ModelParallelStrategy", {"data_parallel_size": 8, "tensor_parallel_size": 1}, "fsdp,groups=8"),
        ("FSDPStrategy", {}, "fsdp"),
        ("FSDPStrategy", {"sharding_strategy": "SHARD_GRAD_OP"}, "zero2"),
        ("FSDPStrategy", {"sharding_strategy": "NO_SHARD"}, "ddp"),
        ("FSDPStrategy", {"sharding_strategy": "HYBRID_SHARD", "device_mesh": (2, 4)}, "hybrid,shard=4,groups=8"),
        (
            "FSDPStrategy",
            {"mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
            "fsdp,param_dtype=bfloat16,reduce_dtype=float32",
        ),
        ("DDPStrategy", {}, "ddp"),
        ("DDPStrategy", {"bucket_cap_mb": 100}, "ddp,bucket_cap_mb=100"),
    ],
)
def test_a_strategy_of_lightnings_says_what_the_words_do(
    module: str, name: str, options: dict[str, Any], words: str
) -> None:
    assert parse_strategy(made(module, name, options)) == parse_strategy(words)


@pytest.mark.parametrize("module", STRATEGIES)
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ModelParallelStrategy", {}, "tensor_parallel_size is 'auto', the GPUs of the machine .* write the number"),
        ("ModelParallelStrategy", {"tensor_parallel_size": 0}, "tensor_parallel_size=0; expected a whole number"),
        ("FSDPStrategy", {"cpu_offload": True}, "cpu_offload = True has no word here"),
        ("FSDPStrategy", {"activation_checkpointing_policy": {torch.nn.Linear}}, "say 'fsdp,recompute=full'"),
    ],
)
def test_what_an_object_says_and_no_option_is_refused(
    module: str, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_strategy(made(module, name, options))


@pytest.mark.parametrize("module", STRATEGIES)
def test_sizes_that_do_not_make_the_gpus_asked_for_are_refused(module: str, linear_step: lp.Trace) -> None:
    found = made(module, "ModelParallelStrategy", {"data_parallel_size": 4, "tensor_parallel_size": 2})
    with pytest.raises(
        InvalidArgumentError,
        match=r"4xT4 has 4 GPUs, 2 data-parallel group\(s\) of 2, but the strategy has 4 \(groups=4\)\. Ask "
        r"for 8 GPUs, or leave the number open \(data_parallel_size='auto'",
    ):
        lp.predict(linear_step, ["4xT4"], strategy=found, history=False)
    assert parse_strategy(found).replicas(layout_of("8xT4")) == 4


@pytest.mark.parametrize("module", STRATEGIES)
def test_a_strategy_that_shares_nothing_is_refused(module: str) -> None:
    single = import_module(module).SingleDeviceStrategy(device=torch.device("cpu"))
    with pytest.raises(
        InvalidArgumentError,
        match=r"is not a string such as 'ddp', a Strategy, or a Lightning strategy for several GPUs",
    ):
        parse_strategy(single)


def test_the_answer_is_that_of_the_words(linear_step: lp.Trace) -> None:
    strategy = import_module("lightning.pytorch.strategies").FSDPStrategy(sharding_strategy="SHARD_GRAD_OP")
    said = lp.predict(linear_step, ["2xT4"], strategy=strategy, history=False)
    assert said["2xT4"] == lp.predict(linear_step, ["2xT4"], strategy="zero2", history=False)["2xT4"]


@pytest.fixture
def linear_step() -> lp.Trace:
    """A step of two linear layers."""
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
        data = torch.zeros(16, 64)
    return lp.capture(lambda: model(data).sum().backward(), samples_per_step=16)
