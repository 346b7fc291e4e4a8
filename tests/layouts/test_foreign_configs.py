"""Configurations of other projects as strategies: arguments, files and strategy objects."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import MixedPrecision

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.callbacks.lightning_packages import PACKAGES
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.layouts.strategy import Strategy, parse_strategy
from lightning_predict.testing import example_trace

pytestmark = pytest.mark.filterwarnings("ignore:.*these keys do not change")

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
[compile]
enable = false
"""

NEMO = """
trainer: {num_nodes: 16, devices: 8, precision: bf16}
model:
  micro_batch_size: 2
  global_batch_size: 256
  tensor_model_parallel_size: 8
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 6
  sequence_parallel: true
  ub_tp_comm_overlap: true
  fsdp: false
  fsdp_sharding_strategy: full
  fp8: true
  fp8_margin: 0
  activations_checkpoint_granularity: selective
  activations_checkpoint_num_layers: null
  optim: {name: distributed_fused_adam, overlap_grad_sync: true, overlap_param_sync: true, grad_sync_dtype: bf16}
"""

REPLICATED = """
base_model: some/model
dp_shard_size: 4
dp_replicate_size: 2
tensor_parallel_size: 2
micro_batch_size: 1
bf16: true
fp8: true
liger_fused_linear_cross_entropy: true
fsdp_version: 2
fsdp_config: {reshard_after_forward: true}
"""

CONTEXT = """
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
parallelism_config: {parallelism_config_dp_replicate_size: 1, parallelism_config_cp_size: 2}
"""

NO_RECOMPUTATION = '\n[activation_checkpoint]\nmode = "none"\n'

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

MEGATRON = """
#!/bin/bash
TP=8  # GPUs of a machine
export GLOBAL=${GLOBAL:-256}
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096   # not --pipeline-model-parallel-size 9
    --micro-batch-size 2 --global-batch-size 256 --rampup-batch-size 16 16 5859375
)
torchrun --nproc_per_node 8 pretrain.py "${MODEL_ARGS[@]}" \\
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size "2" --sequence-parallel \\
    --use-distributed-optimizer --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
    --distributed-backend nccl --bf16
"""


def strategy_of(folder: Path, name: str, text: str) -> Strategy:
    """Parse arguments if the name is empty, otherwise a file with this name."""
    if not name:
        return parse_strategy(text)
    (folder / name).write_text(text)
    return parse_strategy(str(folder / name))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("", "--tensor-model-parallel-size 8", "ddp,tensor=8,overlap_grad_reduce=false"),
        ("", "--tensor_model_parallel_size=8 --overlap_grad_reduce", "ddp,tensor=8"),
        (
            "",
            "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel "
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
            "--recompute-granularity selective",
            "zero1,tensor=4,pipeline=2,sequence,gather_again,overlap_param_gather,recompute=selective",
        ),
        (
            "",
            "--context-parallel-size 2 --expert-model-parallel-size 8 --pipeline-model-parallel-size 1",
            "ddp,context=2,expert=8,expert_launches,overlap_grad_reduce=false",
        ),
        (
            "",
            "--tensor-model-parallel-size 2 --expert-model-parallel-size 16 --expert-tensor-parallel-size 1",
            "ddp,tensor=2,expert=16,expert_tensor=1,expert_launches,overlap_grad_reduce=false",
        ),
        (  # NeMo's groups, flags and null
            "",
            "model.tensor_model_parallel_size=4 ++model.pipeline_model_parallel_size=2 "
            "model.virtual_pipeline_model_parallel_size=null model.sequence_parallel=True "
            "model.tp_comm_overlap=False trainer.accumulate_grad_batches=16",
            "ddp,tensor=4,pipeline=2,sequence,gather_again,accumulate=16,overlap_grad_reduce=false",
        ),
        (
            "",
            "--num-layers 80 --hidden-size 8192 --bf16 --swiglu --lr 1.5e-4 --tensor-model-parallel-size 8 "
            "--data-path /data/parallel_corpus",
            "ddp,tensor=8,overlap_grad_reduce=false",
        ),
        ("", "--use-distributed-optimizer accumulate=8", "zero1,accumulate=8,overlap_grad_reduce=false"),
        (
            "",
            "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1 "
            "--decoder-last-pipeline-num-layers 2 --overlap-grad-reduce",
            "ddp,pipeline=4,first_stage=1,last_stage=2",
        ),
        (
            "train.sh",
            MEGATRON,
            "zero1,tensor=8,pipeline=2,sequence,gather_again,recompute=full,overlap_grad_reduce=false,"
            "global_batches=128,batch_samples=2,micro_batches=1",
        ),
        ("mixture.sh", MIXTURE, "zero1,expert=8,expert_launches"),
        (
            "llama.toml",
            TORCHTITAN,
            "zero2,tensor=8,pipeline=4,virtual=2,micro_batches=8,batch_samples=8,sequence,overlap_tensor,"
            "recompute=operations,fp8=tensorwise,reduce_dtype=float32",
        ),
        ("a.toml", "[parallelism]\n", "fsdp,recompute=layers,param_dtype=bfloat16,reduce_dtype=float32"),
        (
            "a.toml",
            "[training]\nlocal_batch_size = 8\nglobal_batch_size = 64\nseq_len = 8192" + NO_RECOMPUTATION,
            "fsdp,batch_samples=8,global_batches=8,param_dtype=bfloat16,reduce_dtype=float32",
        ),
        (
            "a.toml",
            "[parallelism]\ndata_parallel_replicate_degree = 2" + NO_RECOMPUTATION,
            "hybrid,param_dtype=bfloat16,reduce_dtype=float32",
        ),
        (
            "a.toml",
            "[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4" + NO_RECOMPUTATION,
            "hybrid,shard=4,groups=8,param_dtype=bfloat16,reduce_dtype=float32",
        ),
        (
            "a.toml",
            '[parallelism]\ndata_parallel_shard_degree = 1\n[activation_checkpoint]\nmode = "full"\n',
            "ddp,groups=1,recompute=full",
        ),
        (
            "a.toml",
            "[training]\nlocal_batch_size = 8\n"
            "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 2\n",
            "zero2,pipeline=2,micro_batches=4,batch_samples=8,recompute=layers,reduce_dtype=float32",
        ),
        ("auto.json", ZERO2, "zero2,offload=optimizer"),
        ("a.json", '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 4}', "fsdp,batch_samples=4"),
        ("a.json", '{"zero_optimization": {"stage": 1, "overlap_comm": false}}', "zero1,overlap_grad_reduce=false"),
        ("a.json", '{"bf16": {"enabled": true}, "communication_data_type": "fp32"}', "ddp,reduce_dtype=float32"),
        (
            "a.json",
            '{"train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 32}',
            "ddp,accumulate=32,batch_samples=16",
        ),
        (
            "a.json",
            '{"train_batch_size": 4096, "train_micro_batch_size_per_gpu": 16}',
            "ddp,global_batches=256,batch_samples=16",
        ),
        (
            "fsdp.yaml",
            ACCELERATE.format("true"),
            "fsdp,groups=8,recompute=full,param_dtype=bfloat16,reduce_dtype=bfloat16",
        ),
        ("grads.yaml", ACCELERATE.format("false"), "zero2,groups=8,recompute=full,reduce_dtype=bfloat16"),
        ("plain.yaml", "distributed_type: MULTI_GPU\nnum_processes: 4", "ddp,groups=4"),
        ("one.yaml", "distributed_type: 'NO'\nnum_processes: 1", "ddp"),
        ("zero.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}", "fsdp"),
        (
            "blocks.toml",
            "[compile]\nenable = true" + NO_RECOMPUTATION,
            "fsdp,kernels=compile-blocks,param_dtype=bfloat16,reduce_dtype=float32",
        ),
        ("whole.json", '{"compile": {"disable": false}}', "ddp,kernels=compile"),
        (
            "inductor.yaml",
            "distributed_type: MULTI_GPU\ndynamo_config: {dynamo_backend: INDUCTOR}",
            "ddp,kernels=compile",
        ),
        (
            "regional.yaml",
            "distributed_type: MULTI_GPU\ndynamo_config:\n  dynamo_backend: INDUCTOR\n"
            "  dynamo_use_regional_compilation: true",
            "ddp,kernels=compile-blocks",
        ),
        ("trainer.yaml", "deepspeed: null\ntorch_compile: true\n", "ddp,kernels=compile"),
        ("axolotl.yml", AXOLOTL, "zero2,accumulate=4,batch_samples=2,reduce_dtype=bfloat16"),
        (
            "factory.yaml",
            FACTORY,
            "zero1,tensor=4,pipeline=2,sequence,gather_again,recompute=full,overlap_grad_reduce=false,"
            "micro_batches=1,accumulate=8,batch_samples=2",
        ),
        (
            "model.toml",
            '[compile]\nenable = true\ncomponents = ["model"]' + NO_RECOMPUTATION,
            "fsdp,kernels=compile-blocks+eager_loss,param_dtype=bfloat16,reduce_dtype=float32",
        ),
        (
            "loss.toml",
            '[compile]\nenable = true\ncomponents = ["loss"]\n[parallelism]\nexpert_tensor_parallel_degree = 8\n'
            'fsdp_reshard_after_forward = "never"' + NO_RECOMPUTATION,
            "zero2,reduce_dtype=float32",
        ),
        (
            "nemo.yaml",
            NEMO,  # 128 GPUs in groups of 8 x 4
            "zero1,tensor=8,pipeline=4,virtual=6,sequence,gather_again,overlap_tensor,recompute=selective,fp8=tensorwise,"
            "batch_samples=2,global_batches=128,micro_batches=1,groups=4,overlap_param_gather,reduce_dtype=bfloat16",
        ),
        (
            "replicated.yaml",
            REPLICATED,
            "hybrid,shard=4,groups=8,tensor=2,batch_samples=1,fp8=tensorwise,kernels=liger,param_dtype=bfloat16,"
            "reduce_dtype=bfloat16",
        ),
        ("context.yaml", CONTEXT, "fsdp,context=2,groups=4,param_dtype=bfloat16,reduce_dtype=bfloat16"),
        (
            "accelerate.yaml",
            "distributed_type: MULTI_GPU\nnum_processes: 4\ngradient_accumulation_steps: 8",
            "ddp,groups=4,accumulate=8",
        ),
        (
            "accelerate.yaml",
            "distributed_type: DEEPSPEED\ngradient_accumulation_steps: 1\n"
            "deepspeed_config: {zero_stage: 2, gradient_accumulation_steps: 8}",
            "zero2,accumulate=8",  # DeepSpeed's own number counts
        ),
        (
            "ds.json",
            '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 1.0}}}',
            "zero2,offload=optimizer",
        ),
        (
            "trainer.json",
            '{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "fsdp": "full_shard", "bf16": true}',
            "fsdp,batch_samples=4,accumulate=8,param_dtype=bfloat16,reduce_dtype=bfloat16",
        ),
    ],
)
def test_foreign_configuration_equals_strategy_in_words(tmp_path: Path, name: str, text: str, words: str) -> None:
    strategy = strategy_of(tmp_path, name, text)
    assert strategy == parse_strategy(words)
    assert parse_strategy(strategy.name) == strategy


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("", "--num-layers-per-virtual-pipeline-stage 5", "num_layers_per_virtual_pipeline_stage = '5' has no word"),
        ("", "--fp8-format hybrid --fp8-param-gather", "fp8_param_gather = True has no word here"),
        ("a.sh", "A=(\n --bf16 --fp8-param-gather\n)\nfi", "fp8_param_gather = True has no word here"),
        ("", "--global-batch-size 64", "global_batch_size=64 needs micro_batch_size, to tell how many batches"),
        ("", "--global-batch-size 64 --micro-batch-size 3", "=64 is no multiple of micro_batch_size = 3; correct one"),
        ("", "--tensor-model-parallel-size", "tensor_model_parallel_size=True; expected a whole number"),
        ("", "--recompute-granularity half", "recompute_granularity=half; expected full or selective"),
        ("", "--tensor-model-parallel-size eight", "tensor_model_parallel_size='eight'; expected a whole number"),
        ("a.sh", "echo nothing", "holds no arguments like --tensor-model-parallel-size 8"),
        ("a.sh", "python x.py --tensor-model-parallel-size $TP", r"tensor_model_parallel_size='\$TP'; expected a who"),
        ("a.toml", "[parallelism]\nsome_parallel_degree = 2\n", "parallelism.some_parallel_degree = 2 has no wo"),
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
        ("a.toml", "[", "is not valid TOML"),
        ("a.json", '{"zero_optimization": {"stage": 4}}', "zero_optimization.stage = 4 has no word here"),
        ("a.json", '{"zero_optimization": {"stage": 3, "mics_shard_size": 8}}', "mics_shard_size = 8 has no word here"),
        ("a.json", '{"zero_optimization": {"offload_optimiser": {"device": "cpu"}}}', "offload_optimiser = .* has no"),
        ("a.json", '{"zero_optimization": {"stage": 2, "cpu_offload": true}}', "cpu_offload = True has no word here"),
        ("a.json", '{"zero_optimization": {"offload_param": {"device": "nvme"}}}', "'nvme' has no word here"),
        (
            "a.json",
            '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.4}}}',
            "zero_optimization.offload_optimizer.ratio = 0.4 has no word here",
        ),
        ("a.toml", "[training]\nenable_cpu_offload = true\n", "training.enable_cpu_offload = True has no word here"),
        ("a.toml", "[optimizer]\nearly_step_in_backward = true\n", "optimizer.early_step_in_backward = True has no"),
        ("a.toml", "[training]\ntensor_parallel_degree = 8\n", "training.tensor_parallel_degree = 8 has no word here"),
        ("a.json", '{"optimizer": {"type": "OneBitAdam"}}', "'OneBitAdam' compresses the gradients that GPUs exchange"),
        (
            "a.yaml",
            "distributed_type: MULTI_GPU\ndynamo_config: {dynamo_backend: TENSORRT}",
            "dynamo_config.dynamo_backend = 'TENSORRT' has no word here",
        ),
        ("a.json", '{"tensor_parallel": {"autotp_size": 2}}', "tensor_parallel.autotp_size = 2 has no word here"),
        ("a.json", '{"activation_checkpointing": {"cpu_checkpointing": true}}', "cpu_checkpointing = True has no word"),
        ("a.json", '{"data_types": {"grad_accum_dtype": "fp32"}}', "grad_accum_dtype = 'fp32' has no word here"),
        ("a.json", '{"curriculum_learning": {"enabled": true}}', "curriculum_learning = .* has no word here"),
        ("a.json", '{"sparse_gradients": true}', "sparse_gradients = True has no word here"),
        ("a.json", '{"train_batch_size": 64}', "train_batch_size=64 needs train_micro_batch_size_per_gpu"),
        (
            "a.json",
            '{"train_batch_size": 60, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2}',
            "=60 is no multiple of train_micro_batch_size_per_gpu x gradient_accumulation_steps = 16; correct one",
        ),
        ("a.json", "[1]", "holds no table of options"),
        ("a.json", "{", "is not valid JSON"),
        ("a.yaml", "layers: 3", "is no YAML of accelerate, axolotl, .* or NeMo: it has none of"),
        (
            "a.yaml",
            "micro_batch_size: 1\ndist_config: {name: fsdp2}",
            "dist_config = {'name': 'fsdp2'} has no word here",
        ),
        (
            "a.yaml",
            "distributed_type: FSDP\nparallelism_config: {parallelism_config_sp_size: 2}",
            "parallelism_config_sp_size = 2 has no word here",
        ),
        ("a.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true}", "offload_params = True has"),
        ("a.yaml", "distributed_type: MEGATRON_LM", "distributed_type = 'MEGATRON_LM' has no word here"),
        ("a.yaml", "distributed_type: FSDP\nmixed_precision: fp8", "mixed_precision = 'fp8' has no word here"),
        ("a.yaml", "micro_batch_size: 1\ndeepspeed: ds/none.json", "names ds/none.json, which is neither beside it"),
        ("a.yaml", "micro_batch_size: 1\nexpert_parallel_size: 4", "expert_parallel_size = 4 has no word here"),
        ("a.yaml", "micro_batch_size: 1\nactivation_offloading: true", "activation_offloading = True has no word here"),
        ("a.yaml", "micro_batch_size: 1\ngradient_checkpointing: offload", "= 'offload' has no word here"),
        ("a.yaml", "deepspeed: zero3.json\ncontext_parallel_size: 8", "context_parallel_size = 8 has no word here"),
    ],
)
def test_keys_that_cannot_be_predicted_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        strategy_of(tmp_path, name, text)


@pytest.mark.parametrize(
    ("name", "text", "listed"),
    [
        ("", "--tensor-model-parallel-size 2 --num-layers 80 --rampup-batch-size 16 16 9", "num_layers, rampup_batch"),
        ("a.sh", "torchrun --nproc_per_node 8 a.py --bf16", "bf16, nproc_per_node"),
        ("ds.json", ZERO2, "bf16, gradient_clipping, zero_optimization.reduce_bucket_size"),
        ("a.toml", "[training]\nseq_len = 8192\n[profiling]\n", "profiling, training.seq_len"),
        ("a.yaml", "distributed_type: MULTI_GPU\ndebug: false", "debug"),
    ],
)
@pytest.mark.filterwarnings("default")
def test_keys_without_effect_are_listed_in_one_warning(tmp_path: Path, name: str, text: str, listed: str) -> None:
    with pytest.warns(UserWarning, match=f"are left to the recorded step and `gpus`: {listed}") as warned:
        strategy_of(tmp_path, name, text)
    assert len(warned) == 1


@pytest.mark.parametrize("name", ["missing.toml", "missing.json", "missing.yaml", "missing.sh"])
def test_missing_file_is_named_in_error(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        parse_strategy(name)


def test_option_value_may_be_file_name() -> None:
    assert parse_strategy("embedding=plan.json").embedding == "plan.json"


def test_deepspeed_file_named_in_yaml_gets_batch_sizes_of_yaml(tmp_path: Path) -> None:
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "zero2.json").write_text(ZERO2)
    (tmp_path / "examples").mkdir()
    text = "deepspeed: ds/zero2.json\nper_device_train_batch_size: 3\ngradient_accumulation_steps: 8\n"
    strategy = strategy_of(tmp_path, "examples/train.yaml", text)
    assert strategy == parse_strategy("zero2,offload=optimizer,accumulate=8,batch_samples=3")


def test_batch_sizes_of_a_file_are_accumulated_or_refused() -> None:
    # 4096 samples in micro-batches of 16 on 8 GPUs: 4096 / 16 / 8 = 32 batches each
    strategy = parse_strategy("ddp,global_batches=256")
    assert strategy.on(layout_of("8xA100-SXM-80GB")).accumulate == 32
    assert strategy.on(layout_of("A100-SXM-80GB"), batches=4).accumulate == 64
    by_hand, derived = (
        lp.predict(example_trace(), ["8xA100-SXM-80GB"], strategy=words, history=False).items_in_order[0]
        for words in ("ddp,accumulate=32", strategy)
    )
    assert by_hand.iteration_seconds == derived.iteration_seconds
    with pytest.raises(InvalidArgumentError, match="cannot be shared by 3xL4, which processes 3"):
        strategy.on(layout_of("3xL4"))
    step = replace(example_trace(), samples=8)
    with pytest.raises(InvalidArgumentError, match="for batches of 16 samples, but the recorded step has 8"):
        lp.predict(step, ["8xL4"], strategy="ddp,batch_samples=16", history=False)


# --- Lightning's objects


def lightning_strategy(module: str, name: str, options: dict[str, Any]) -> Any:
    """Make a strategy object. Fabric's model parallelism needs a function that parallelizes the model."""
    if name == "ModelParallelStrategy" and "fabric" in module:
        options = {"parallelize_fn": lambda model, _mesh: model, **options}
    return getattr(import_module(module), name)(**options)


every_package = pytest.mark.parametrize(
    "module", [*(f"{package}.strategies" for package in PACKAGES), "lightning.fabric.strategies"]
)


@every_package
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
def test_lightning_strategy_equals_strategy_in_words(
    module: str, name: str, options: dict[str, Any], words: str
) -> None:
    assert parse_strategy(lightning_strategy(module, name, options)) == parse_strategy(words)


@every_package
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ModelParallelStrategy", {}, "tensor_parallel_size is 'auto', the GPUs of the machine .* write the number"),
        ("ModelParallelStrategy", {"tensor_parallel_size": 0}, "tensor_parallel_size=0; expected a whole number"),
        ("FSDPStrategy", {"cpu_offload": True}, "cpu_offload = True has no word here"),
        ("FSDPStrategy", {"activation_checkpointing_policy": {torch.nn.Linear}}, "say 'fsdp,recompute=full'"),
        (
            "SingleDeviceStrategy",
            {"device": torch.device("cpu")},
            "is not a string such as 'ddp', a Strategy, or a Lightning strategy for several GPUs",
        ),
    ],
)
def test_lightning_strategy_that_cannot_be_predicted_is_refused(
    module: str, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_strategy(lightning_strategy(module, name, options))


def test_lightning_strategy_predicts_like_its_words_if_its_groups_match() -> None:
    strategy = parse_strategy("fsdp,tensor=2,groups=4")
    with pytest.raises(
        InvalidArgumentError,
        match=r"4xT4 has 4 GPUs, 2 data-parallel group\(s\) of 2, but the strategy has 4 \(groups=4\)\. Ask "
        r"for 8 GPUs, or leave the number open \(data_parallel_size='auto'",
    ):
        strategy.replicas(layout_of("4xT4"))
    assert strategy.replicas(layout_of("8xT4")) == 4
    strategy = import_module("lightning.pytorch.strategies").FSDPStrategy(sharding_strategy="SHARD_GRAD_OP")
    by_object, by_words = (
        lp.predict(example_trace(), ["2xT4"], strategy=given, history=False)["2xT4"] for given in (strategy, "zero2")
    )
    assert by_object == by_words
