"""Infers from a CUDA kernel's name whether it does matrix work (matmul, convolution, attention), and in which dtype.

Kernels of CUDA graphs, extensions (TransformerEngine, FlashAttention) and Triton run without an operation of the
dispatcher. Their shapes are unknown, but their names are recorded. cuBLAS and cuDNN encode the dtype in the name
(`nvjet_tst` is bfloat16, `nvjet_qqtst` is float8). CUTLASS and FlashAttention have the dtype as a template argument.
Example::

    >>> matrix_dtype("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_NNN")
    'bfloat16'
    >>> matrix_dtype("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, cutlass::half_t>>")
    'float16'
    >>> matrix_dtype("_layer_norm_fwd_fused") is None  # memory-bound
    True
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.roofline import SHORTEST_KERNEL_SECONDS, sustained_flops
from lightning_predict.record.trace import Kernel

_MATRIX: Final = re.compile(  # Names of kernels for matmuls, convolutions and fused attention
    r"nvjet|xmma|gemm(?!_?reduce)|cutlass|flash|fmha|sdpa|_mma_|wgmma|triton_tem|winograd|implicit_convolve|[fdw](prop|grad)\d?_"
)

_MEMORY_BOUND: Final = re.compile(  # Names of memory-bound kernels in the same libraries, checked before `_MATRIX`
    r"at::native|splitkreduce|combine|convert|dot_do_o|preprocess|memcpy|memset|nhwc_?to_?nchw|nchw_?to_?nhwc|cast_transpose|"
    r"scale_?kernel|elementwise|layer_?norm|softmax_(fwd|bwd|warp)|copy_kernel|generatewinogradtiles"
)

_NVJET: Final = re.compile(r"nvjet_(?:sm\d+_)?([a-z]{3,6})_")

_DTYPES: Final = (
    ("float8", re.compile(r"e4m3|e5m2|fp8|float8|_qq")),
    ("bfloat16", re.compile(r"bf16|bfloat16|_tst_")),
    ("float16", re.compile(r"f16|fp16|half_t|__half|_hsh_|_hhh_|h1688|h884|h16816")),
    ("float64", re.compile(r"dgemm|d884|f64f64|_ddd_")),
    ("tf32", re.compile(r"tf32|s1688|tensorop_s")),
    ("float32", re.compile(r"sgemm|simt|f32f32|_sss_|ffma")),
)
"""Patterns in the lower-case name that show the dtype; the first match wins.

`s1688` means TF32, but float32 accumulation in a name with `f16`, so float16 is searched first."""

USUAL_DTYPE: Final = "bfloat16"
"""Assumed dtype if the name shows no dtype.

Most training uses bfloat16, and float16 runs at almost the same speed."""

_FALLBACK_DTYPE: Final = {"float8": "bfloat16", "bfloat16": "float16", "tf32": "float32"}
"""Fallback dtype in which a GPU computes if it has no hardware units for the requested dtype."""


@lru_cache(maxsize=4096)
def matrix_dtype(name: str, *, tf32: bool = False) -> str | None:
    """Return the dtype in which a kernel does matrix work; None if the kernel does other work.

    Args:
        name: Name of the kernel that the driver reports.
        tf32: Whether float32 matmuls may use TF32. The names of `nvjet` kernels are equal for float32 and TF32.
    """
    lower = name.lower()
    if _MATRIX.search(lower) is None or _MEMORY_BOUND.search(lower) is not None:
        return None
    kind = next((dtype for dtype, words in _DTYPES if words.search(lower)), USUAL_DTYPE)
    return "tf32" if kind == "float32" and tf32 and _NVJET.search(lower) else kind


def scale_by_matmul_throughput(kernel: Kernel, dtype: str, origin: Gpu, destination: Gpu) -> float:
    """Scale a kernel's time to another GPU by the ratio of sustained matmul rates. Its start stays constant."""
    start = min(kernel.seconds, SHORTEST_KERNEL_SECONDS)
    return start + (kernel.seconds - start) * _rate(origin, dtype) / _rate(destination, dtype)


def _rate(gpu: Gpu, dtype: str) -> float:
    if dtype == "float64":
        return gpu.peak(dtype) or gpu.lanes_peak(dtype)
    while dtype not in gpu.peak_flops_per_second and dtype in _FALLBACK_DTYPE:
        dtype = _FALLBACK_DTYPE[dtype]
    return sustained_flops(gpu, dtype if dtype in gpu.peak_flops_per_second else "float32")
