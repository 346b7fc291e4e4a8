"""Kernels without an operation of the dispatcher: CUDA graphs, TransformerEngine, FlashAttention, Triton."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.kernels.kernel_names import matrix_dtype, scale_by_matmul_throughput
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.roofline import SHORTEST_KERNEL_SECONDS, sustained_flops
from lightning_predict.kernels.translation import work_items
from lightning_predict.record.kineto import trace_of_kineto
from lightning_predict.record.trace import Trace
from tests.record.test_events import event

H100, A100 = gpu("H100-SXM-80GB"), gpu("A100-SXM-80GB")
NVJET = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_NNN"
FLASH_3 = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<cutlass::bfloat16_t>>>"

NAMES = {
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT": "float16",
    "nvjet_tst_192x192_64x4_1x2_h_bz_coopA_TNN": "bfloat16",
    "nvjet_sm100_tst_128x256_64x5_2x1_2cta_h_bz_TNN": "bfloat16",
    "nvjet_qqtst_128x256_128x4_2x1_v_bz_coopA_TNT": "float8",
    "nvjet_sss_tf32_128x256_TNT": "tf32",
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_execute_kernel__5x_cublas": "tf32",
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64": "bfloat16",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_aligna4": "float32",
    "cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4": "tf32",
    "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn": "float16",
    "ampere_sgemm_128x64_tn": "float32",
    FLASH_3: "bfloat16",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4, cutlass::half_t>>": "float16",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x64x64": "float16",
    "triton_tem_fused_mm_1": "bfloat16",
    "cutlass3x_sm100_tensorop_gemm_bf16_bf16_f32_bf16_bf16_256x128x64_0_tnn_align8_2sm": "bfloat16",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<...>": "float8",
    "triton_per_fused__to_copy_add_native_layer_norm_0": None,
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>": None,
    "Memcpy DtoD (Device -> Device)": None,
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>": None,
    "void flash::flash_fwd_splitkv_combine_kernel<...>": None,
    "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>": None,
    "_layer_norm_fwd_fused": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_names_tell_matrix_work_and_its_dtype(name: str) -> None:
    assert matrix_dtype(name) == NAMES[name]


def test_float32_operands_on_tensor_cores_are_tf32_if_that_is_allowed() -> None:
    name = "nvjet_sm100_sss_128x256_64x5_2x1_2cta_h_bz_TNN"
    assert (matrix_dtype(name), matrix_dtype(name, tf32=True)) == ("float32", "tf32")
    assert matrix_dtype("ampere_sgemm_128x64_tn", tf32=True) == "float32"


def kernel(name: str, start: float, microseconds: float, correlation: int, **more: Any) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "device": 0,
        "stream": 7,
        "grid": [264, 1, 1],
        "block": [384, 1, 1],
        "registers per thread": 168,
    }
    shape |= {"shared memory": 200_000, "correlation": correlation, **more}
    return event(name, start, microseconds, "kernel", tid=7, **shape)


def recorded(*events: dict[str, Any]) -> Trace:
    row = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85 * 10**9}
    step = event("ProfilerStep#0", 0, 20_000, "user_annotation")
    return trace_of_kineto({"traceEvents": [step, *events], "deviceProperties": [row]}, "x", step=0, gpu=None)


def called(name: str, microseconds: float, shapes: Sequence[Sequence[int]], by: str, **args: Any) -> Trace:
    """One call with tensors in bfloat16 that launches one kernel."""
    args |= {"Input Dims": [list(shape) for shape in shapes], "Input type": ["c10::BFloat16"] * len(shapes)}
    return recorded(
        event(name, 100, 80, **args),
        event("cuLaunchKernelEx", 120, 5, "cuda_driver", correlation=1),
        kernel(by, 200, microseconds, 1),
    )


def graph(name: str, microseconds: float, count: int) -> Trace:
    """A CUDA graph of equal kernels."""
    launch = event("cudaGraphLaunch", 100, 30, "cuda_runtime", correlation=1)
    nodes = {"graph id": 5}
    return recorded(
        launch, *(kernel(name, 200 + 1.1 * microseconds * i, microseconds, 1, **nodes) for i in range(count))
    )


def on_a100(trace: Trace) -> float:
    models = kernel_models((H100.name, A100.name))
    return float(predict_work_times(trace, [A100], origin=H100, models=models).seconds.sum())


SHAPES = ([8192, 4096], [4096, 4096])
HEADS = ([8, 4096, 16, 128],) * 3


def test_products_of_graphs_and_transformer_engine_scale_as_through_aten() -> None:
    in_graph, through_aten = graph(NVJET, 400, 1), called("aten::mm", 400, SHAPES, NVJET)
    assert {operation.name for operation in in_graph.operations} == {"cuda_graph"}
    assert on_a100(in_graph) == pytest.approx(on_a100(through_aten), rel=0.15)
    assert on_a100(called("_Linear", 400, SHAPES, NVJET)) == pytest.approx(
        on_a100(called("aten::mm", 400, SHAPES, NVJET)), rel=0.15
    )
    trace = called("_Linear", 255, SHAPES, "nvjet_qqtst_128x256_128x4_2x1_v_bz_coopA_TNT")
    expected = SHORTEST_KERNEL_SECONDS + (255e-6 - SHORTEST_KERNEL_SECONDS) * sustained_flops(
        H100, "float8"
    ) / sustained_flops(A100, "bfloat16")
    assert on_a100(trace) == pytest.approx(expected)
    in_16_bits = float(lp.operator_seconds("linear", "A100-SXM-80GB", dtype="bfloat16", m=8192, n=4096, k=4096))
    assert on_a100(trace) == pytest.approx(in_16_bits, rel=0.15)


@pytest.mark.parametrize("name", ["flash_attn_3::_flash_attn_forward", "flash_attn_3::fwd", "FlashAttnFunc"])
def test_flash_attention_scales_as_torchs_own_attention(name: str) -> None:
    through_aten = called("aten::_flash_attention_forward", 1900, HEADS, FLASH_3)
    assert on_a100(called(name, 1900, HEADS, FLASH_3)) == pytest.approx(on_a100(through_aten), rel=0.15)


@pytest.mark.parametrize("microseconds", [900, 1500, 1900])
def test_the_speed_of_flash_attention_3_stays_on_hopper(microseconds: float) -> None:
    """An A100 runs FlashAttention 2, so the time on an H100 tells nothing about it."""
    same_work = on_a100(called("aten::_flash_attention_forward", 1900, HEADS, "flash_fwd_kernel<cutlass::bfloat16_t>"))
    faster = called("flash_attn_3::_flash_attn_forward", microseconds, HEADS, FLASH_3)
    assert on_a100(faster) == pytest.approx(same_work, rel=0.15)


def test_flash_attention_is_timed_with_or_without_kernels_and_its_mask() -> None:
    trace = called("flash_attn_3::_flash_attn_forward", 1900, HEADS, FLASH_3)
    (item,) = work_items(trace)
    assert [shape.operation for shape in item.shapes] == ["attention"]
    seconds = predict_work_times(trace, [H100], origin=None, models=kernel_models((H100.name,))).seconds.sum()
    own = lp.operator_seconds("attention", H100.name, dtype="bfloat16", batch=8, heads=16, seq=4096, head_dim=128)
    assert seconds == pytest.approx(float(own), rel=0.01)
    causal = ["", "", "", "0.", "0.088", "True"]
    trace = called("flash_attn::_flash_attn_forward", 900, HEADS, FLASH_3, **{"Concrete Inputs": causal})
    (item,) = work_items(trace)
    assert [(shape.operation, shape.parameters["causal"]) for shape in item.shapes] == [("attention", 1)]
    h200 = gpu("H200-SXM-141GB")
    models = kernel_models((H100.name, h200.name))
    slow, fast = (
        called("flash_attn_3::_flash_attn_forward", microseconds, HEADS, FLASH_3) for microseconds in (1900, 900)
    )
    seconds = [predict_work_times(trace, [h200], origin=H100, models=models).seconds.sum() for trace in (slow, fast)]
    assert seconds[1] < 0.7 * seconds[0]


def test_every_gpu_has_a_rate_for_every_dtype_and_the_same_start() -> None:
    (operation,) = graph(NVJET, 2, 1).operations
    assert scale_by_matmul_throughput(operation.kernels[0], "bfloat16", H100, A100) == pytest.approx(2e-6)
    (operation,) = graph(NVJET, 100, 1).operations
    for name in ("T4", "V100-SXM2-32GB", "P100-PCIe-16GB", "L4", "B200-SXM-180GB"):
        for dtype in ("float8", "bfloat16", "float16", "tf32", "float32", "float64"):
            seconds = scale_by_matmul_throughput(operation.kernels[0], dtype, H100, gpu(name))
            assert np.isfinite(seconds)
            assert seconds > 0
    trace = graph("triton_poi_fused_add_0", 400, 3)
    ratio = H100.dram_bytes_per_second / A100.dram_bytes_per_second
    assert on_a100(trace) / 1200e-6 == pytest.approx(ratio, rel=0.02)
