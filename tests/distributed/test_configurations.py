"""torchtitan's TOML and DeepSpeed's JSON as strategies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.distributed.strategy import Strategy, parse_strategy
from lightning_predict.errors import InvalidArgumentError

TORCHTITAN = """
[model]
converters = ["float8"]
[training]
local_batch_size = 8
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""


def test_torchtitans_file_is_told_in_our_words(tmp_path: Path) -> None:
    file = tmp_path / "llama.toml"
    file.write_text(TORCHTITAN)
    found = parse_strategy(str(file))
    assert found == Strategy(
        data="fsdp",
        tensor=8,
        pipeline=4,
        virtual=2,
        micro_batches=8,  # of one sample, torchtitan's default
        sequence=True,
        overlap_tensor=True,
        recompute="operations",
        fp8="tensorwise",
        reduce_dtype="float32",
    )
    assert parse_strategy(found.name) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[parallelism]\n", "fsdp,recompute=layers,reduce_dtype=float32"),
        (
            '[parallelism]\ndata_parallel_replicate_degree = 2\n[activation_checkpoint]\nmode = "none"\n',
            "hybrid,reduce_dtype=float32",
        ),
        (
            "[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n"
            '[activation_checkpoint]\nmode = "none"\n',
            "hybrid,shard=4,groups=8,reduce_dtype=float32",
        ),
        (
            '[parallelism]\ndata_parallel_shard_degree = 1\n[activation_checkpoint]\nmode = "full"\n',
            "ddp,groups=1,recompute=full",
        ),
        (
            "[training]\nlocal_batch_size = 8\n"
            "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 2\n",
            "fsdp,pipeline=2,micro_batches=4,recompute=layers,reduce_dtype=float32",
        ),
    ],
)
def test_torchtitans_defaults(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "debug.toml"
    file.write_text(text)
    assert parse_strategy(str(file)) == parse_strategy(words)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 4}, "fsdp"),
        ({"zero_optimization": {"stage": 1, "overlap_comm": False}}, "zero1,overlap_grad_reduce=false"),
        (
            {
                "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
                "gradient_accumulation_steps": 4,
            },
            "zero2,offload=optimizer,accumulate=4",
        ),
        ({"bf16": {"enabled": True}, "communication_data_type": "fp32"}, "ddp,reduce_dtype=float32"),
    ],
)
def test_deepspeeds_file_is_told_in_our_words(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps(config))
    assert parse_strategy(str(file)) == parse_strategy(words)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.toml",
            "[parallelism]\nsomething_parallel_degree = 2\n",
            "parallelism.something_parallel_degree = 2 has no wo",
        ),
        ("a.toml", "[parallelism]\ntensor_parallel_degree = 0\n", "tensor_parallel_degree=0; expected a whole number"),
        (
            "a.toml",
            "[training]\nlocal_batch_size = 8\n"
            "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 3\n",
            "pipeline_parallel_microbatch_size=3 does not divide training.local_batch_size=8",
        ),
        (
            "a.toml",
            '[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_schedule = "Interleaved1F1B"\n'
            "pipeline_parallel_layers_per_stage = 5\n",
            r"layers_per_stage = 5: how many stages that makes .* virtual= layers of the model / \(pipeline x layers",
        ),
        ("a.json", '{"zero_optimization": {"stage": 4}}', "zero_optimization.stage = 4 has no word here"),
        ("a.json", '{"zero_optimization": {"stage": 3, "mics_shard_size": 8}}', "mics_shard_size = 8 has no word here"),
        (
            "a.json",
            '{"zero_optimization": {"stage": 3, "offload_optimiser": {}}}',
            "offload_optimiser = {} has no word",
        ),
        ("a.json", '{"zero_optimization": {"stage": 2, "cpu_offload": true}}', "cpu_offload = True has no word here"),
        (
            "a.json",
            '{"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}',
            "'nvme' has no word here",
        ),
        ("a.json", '{"gradient_accumulation_steps": "auto"}', "is 'auto', which the trainer fills in"),
        ("a.json", "[1]", "holds no table of options"),
        ("a.json", "{", "is not valid JSON"),
        ("a.toml", "[", "is not valid TOML"),
    ],
)
def test_what_has_no_word_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InvalidArgumentError, match=message):
        parse_strategy(str(file))


def test_an_option_may_name_a_file_too() -> None:
    assert parse_strategy("embedding=plan.json").embedding == "plan.json"


def test_a_file_that_is_not_there_is_named() -> None:
    for name in ("missing.toml", "missing.json"):
        with pytest.raises(InvalidArgumentError, match=name):
            parse_strategy(name)
