"""Profiles of steps whose kernels no operation of torch launched: CUDA graphs, compiled code and extensions.

No GPU ran them. Names of calls and kernels are as CUDA 13, torch 2.14 and the extensions write them. Example::

    device = FakeDevice(graph_document(), host_seconds=0.001, device_seconds=0.03)
"""

from typing import Any

from tests.record.kineto_files import ENGINE_THREAD, STREAM, mark
from tests.record.test_events import event

Document = dict[str, Any]
NVJET = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_NNN"
FLASH_3 = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<cutlass::bfloat16_t>>>"
SHAPE: dict[str, Any] = {
    "device": 0,
    "stream": STREAM,
    "grid": [264, 1, 1],
    "block": [384, 1, 1],
    "registers per thread": 168,
    "shared memory": 200_000,
}


def kernel(name: str, start: float, microseconds: float, correlation: int, **more: Any) -> dict[str, Any]:
    """A kernel of a launch with the same correlation."""
    return event(name, start, microseconds, "kernel", tid=STREAM, correlation=correlation, **SHAPE, **more)


def document(events: list[dict[str, Any]], name: str = "Tesla V100-SXM2-32GB") -> Document:
    """A profile of one marked step."""
    end = max(event["ts"] + event["dur"] for event in events) + 100
    rows = [{"id": 0, "name": name, "totalGlobalMem": 32 * 2**30}]
    return {"traceEvents": [mark(0, 900, end), *events], "deviceProperties": rows, "cuda_runtime_version": 13000}


def graph_document(kernels: int = 100) -> Document:
    """A batch that is copied, then one launch of a CUDA graph."""
    tensors: dict[str, Any] = {"Input Dims": [[64, 1024]] * 2, "Input type": ["c10::Half"] * 2}
    events = [
        event("aten::copy_", 1000, 20, **tensors),
        event("cudaMemcpyAsync", 1005, 6, "cuda_runtime", correlation=1),
        event(
            "Memcpy DtoD (Device -> Device)", 1020, 2, "gpu_memcpy", tid=STREAM, device=0, stream=STREAM, correlation=1
        ),
        event("cudaGraphLaunch", 1030, 30, "cuda_runtime", correlation=2),
    ]
    names = (NVJET, "triton_poi_fused_add_gelu_0")
    for number in range(kernels):
        node: dict[str, Any] = {"graph id": 5, "graph node id": number}
        events.append(kernel(names[number % 2], 1050 + 80.0 * number, 75, 2, **node))
    return document(events)


def compiled_document(kernels: int = 30) -> Document:
    """A compiled region and the compiled backward pass on the engine's thread: Triton's kernels and products."""
    events, half = [], kernels // 2
    for part, thread in (("Torch-Compiled Region: 0/0", 1), ("CompiledFunctionBackward", ENGINE_THREAD)):
        begin = 1000 + (0 if thread == 1 else 20.0 * half + 50)
        events.append(event(part, begin, 20.0 * half + 20, tid=thread))
        for number in range(half):
            place, start = (0 if thread == 1 else half) + number, begin + 5 + 20.0 * number
            name = NVJET if number % 3 == 0 else f"triton_per_fused_native_layer_norm_{number}"
            events.append(event("cuLaunchKernelEx", start, 6, "cuda_driver", tid=thread, correlation=100 + place))
            events.append(kernel(name, 1020 + 80.0 * place, 75, 100 + place))
    return document(events)


def extension_document(blocks: int = 10) -> Document:
    """Blocks of TransformerEngine's linear layer and FlashAttention 3, which are no operations of torch."""
    events, correlation = [], 0
    for block in range(blocks):
        for number, (call, name, shapes) in enumerate(
            (("_Linear", NVJET, [[8192, 4096], [4096, 4096]]), ("flash_attn_3::fwd", FLASH_3, [[8, 4096, 16, 128]] * 3))
        ):
            correlation += 1
            start = 1000 + 50.0 * (2 * block + number)
            tensors: dict[str, Any] = {"Input Dims": shapes, "Input type": ["c10::BFloat16"] * len(shapes)}
            events.append(event(call, start, 40, **tensors))
            events.append(event("cudaLaunchKernelExC", start + 5, 6, "cuda_runtime", correlation=correlation))
            events.append(kernel(name, 1020 + 420.0 * correlation, 400, correlation))
    return document(events)
