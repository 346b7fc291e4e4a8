"""Files of other projects as strategies: TOML, JSON, YAML and shell scripts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.layouts.strategy import Strategy, parse_strategy
from lightning_predict.testing import example_trace

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


@pytest.mark.filterwarnings("ignore:.*these keys do not change")
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 4}, "fsdp,batch_samples=4"),
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
        ("a.json", '{"optimizer": {"type": "OneBitAdam"}}', "'OneBitAdam' compresses the gradients that GPUs exchange"),
        ("a.json", '{"compile": {"disable": false}}', "compile.disable = False has no word here"),
        ("a.json", '{"tensor_parallel": {"autotp_size": 2}}', "tensor_parallel.autotp_size = 2 has no word here"),
        ("a.json", '{"activation_checkpointing": {"cpu_checkpointing": true}}', "cpu_checkpointing = True has no word"),
        ("a.json", '{"data_types": {"grad_accum_dtype": "fp32"}}', "grad_accum_dtype = 'fp32' has no word here"),
        ("a.json", '{"curriculum_learning": {"enabled": true}}', "curriculum_learning = .* has no word here"),
        ("a.json", '{"train_batch_size": 64}', "train_batch_size=64 needs train_micro_batch_size_per_gpu"),
        (
            "a.json",
            '{"train_batch_size": 60, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2}',
            "=60 is no multiple of train_micro_batch_size_per_gpu x gradient_accumulation_steps = 16; correct one",
        ),
        ("a.yaml", "layers: 3", "is no YAML of accelerate, axolotl, Hugging Face's Trainer or gpt-neox"),
        (
            "a.yaml",
            "distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true}",
            "fsdp_config.offload_params = True has no word here",
        ),
        ("a.yaml", "distributed_type: MEGATRON_LM", "distributed_type = 'MEGATRON_LM' has no word here"),
        ("a.yaml", "micro_batch_size: 1\ndeepspeed: ds/none.json", "names ds/none.json, which is neither beside it"),
        ("a.yaml", "micro_batch_size: 1\nexpert_parallel_size: 4", "expert_parallel_size = 4 has no word here"),
        (
            "a.yaml",
            "micro_batch_size: 1\nactivation_offloading: true",
            "activation_offloading = True has no word here",
        ),
        (
            "a.yaml",
            "micro_batch_size: 1\ngradient_checkpointing: offload",
            "gradient_checkpointing = 'offload' has no word here",
        ),
        (
            "a.yaml",
            "micro_batch_size: 1\ndeepspeed: zero3.json\ncontext_parallel_size: 8",
            "context_parallel_size = 8 has no word here",
        ),
        (
            "a.yml",
            "model-parallel-size: 2\ncheckpoint-activations: true\npartition-activations: true",
            "partition-activations = True has no word here",
        ),
        ("a.yaml", "distributed_type: FSDP\nmixed_precision: fp8", "mixed_precision = 'fp8' has no word here"),
        ("a.sh", "echo nothing", "holds no arguments like --tensor-model-parallel-size 8"),
        ("a.sh", "python x.py --tensor-model-parallel-size $TP", r"tensor='\$TP' is not a number"),
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
    for name in ("missing.toml", "missing.json", "missing.yaml", "missing.sh"):
        with pytest.raises(InvalidArgumentError, match=name):
            parse_strategy(name)


ZERO2 = """{
  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": "auto"},
  "bf16": {"enabled": "auto"}, "gradient_clipping": "auto",
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"
}"""

ACCELERATE = """
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: {}
  fsdp_offload_params: false
  fsdp_activation_checkpointing: true
"""

AXOLOTL = """
base_model: some/model
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: auto
fsdp: [full_shard, auto_wrap]
fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_use_orig_params: true}
"""

FACTORY = """
model_name_or_path: some/model
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
tensor_model_parallel_size: 4
pipeline_model_parallel_size: 2
sequence_parallel: true
expert_model_parallel_size: 1
use_distributed_optimizer: true
recompute_granularity: full
bias_activation_fusion: true
"""

MIXTURE = """
torchrun pretrain.py --num-experts 8 --moe-router-enable-expert-bias --expert-model-parallel-size 8 \\
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce
"""

NEOX = """
"pipe-parallel-size": 2
"model-parallel-size": 4
"train_micro_batch_size_per_gpu": 4
"gradient_accumulation_steps": 8
"zero_optimization": {"stage": 1}
"checkpoint-activations": true
"partition-activations": false
"""

MEGATRON = """
#!/bin/bash
TP=8  # GPUs of a machine
export GLOBAL=${GLOBAL:-256}
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096   # not --pipeline-model-parallel-size 9
    --micro-batch-size 2 --global-batch-size 256
)
torchrun --nproc_per_node 8 pretrain.py "${MODEL_ARGS[@]}" \\
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size "2" --sequence-parallel \\
    --use-distributed-optimizer --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
    --distributed-backend nccl --bf16
"""


@pytest.mark.filterwarnings("ignore:.*these keys do not change")
@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("auto.json", ZERO2, "zero2,offload=optimizer"),
        (
            "own.json",
            '{"train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 32}',
            "ddp,accumulate=32,batch_samples=16",
        ),
        (
            "all.json",
            '{"train_batch_size": 4096, "train_micro_batch_size_per_gpu": 16}',
            "ddp,global_batches=256,batch_samples=16",
        ),
        ("fsdp.yaml", ACCELERATE.format("true"), "fsdp,recompute=full,param_dtype=bfloat16,reduce_dtype=bfloat16"),
        ("grads.yaml", ACCELERATE.format("false"), "zero2,recompute=full,reduce_dtype=bfloat16"),
        ("plain.yaml", "distributed_type: MULTI_GPU", "ddp"),
        ("zero.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}", "fsdp"),
        ("axolotl.yml", AXOLOTL, "zero2,accumulate=4,batch_samples=2,reduce_dtype=bfloat16"),
        (
            "factory.yaml",
            FACTORY,
            "zero1,tensor=4,pipeline=2,sequence=true,gather_again=true,recompute=full,overlap_grad_reduce=false,"
            "micro_batches=1,accumulate=8,batch_samples=2",
        ),
        ("mixture.sh", MIXTURE, "zero1,expert=8,expert_launches=true"),
        ("neox.yml", NEOX, "zero1,pipeline=2,micro_batches=1,tensor=4,accumulate=8,batch_samples=4,recompute=full"),
        (
            "train.sh",
            MEGATRON,
            "zero1,tensor=8,pipeline=2,sequence=true,gather_again=true,recompute=full,overlap_grad_reduce=false,"
            "global_batches=128,batch_samples=2",
        ),
    ],
)
def test_files_as_people_have_them(tmp_path: Path, name: str, text: str, words: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert parse_strategy(str(file)) == parse_strategy(words)


@pytest.mark.filterwarnings("ignore:.*these keys do not change")
def test_a_deepspeed_file_named_in_a_yaml_gets_the_batches_of_the_yaml(tmp_path: Path) -> None:
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "zero2.json").write_text(ZERO2)
    (tmp_path / "examples").mkdir()
    file = tmp_path / "examples" / "train.yaml"
    file.write_text("deepspeed: ds/zero2.json\nper_device_train_batch_size: 3\ngradient_accumulation_steps: 8\n")
    assert parse_strategy(str(file)) == parse_strategy("zero2,offload=optimizer,accumulate=8,batch_samples=3")


def test_keys_that_are_not_used_are_listed_once(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(ZERO2)
    with pytest.warns(UserWarning, match="are left to the recorded step: bf16, gradient_clipping") as warned:
        parse_strategy(str(file))
    assert len(warned) == 1


def test_a_global_batch_is_accumulated_on_few_gpus() -> None:
    # 4096 samples in micro-batches of 16 on 8 GPUs: 4096 / 16 / 8 = 32 batches each
    strategy = parse_strategy("ddp,global_batches=256")
    assert strategy.on(layout_of("8xA100-SXM-80GB")).accumulate == 32
    assert strategy.on(layout_of("A100-SXM-80GB"), batches=4).accumulate == 64
    told, asked = (
        lp.predict(example_trace(), ["8xA100-SXM-80GB"], strategy=words, history=False)
        for words in ("ddp,accumulate=32", strategy)
    )
    (one,), (other,) = told.items_in_order, asked.items_in_order
    assert one.iteration_seconds == other.iteration_seconds
    with pytest.raises(InvalidArgumentError, match="cannot be shared by 3xL4, which processes 3"):
        strategy.on(layout_of("3xL4"))


def test_a_batch_of_another_size_is_refused() -> None:
    step = replace(example_trace(), samples=8)
    with pytest.raises(InvalidArgumentError, match="for batches of 16 samples, but the recorded step has 8"):
        lp.predict(step, ["8xL4"], strategy="ddp,batch_samples=16", history=False)
