"""No operation has fewer FLOPs than torch's own counter gives it, in whole steps and for each of its formulas."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import flop_registry

import lightning_predict as lp
from lightning_predict.kernels.operations import batch_shapes, translator_of
from lightning_predict.kernels.translation import translate
from lightning_predict.record.trace import Flags, Operation, TensorInfo, Trace
from tests.workloads.catalogue import WORKLOADS
from tests.workloads.test_workloads import on_meta, step_of

aten = torch.ops.aten
ATTENTION = "aten::scaled_dot_product_attention"


def formula(name: str) -> Callable[..., Any] | None:
    """Torch's formula of an operation by its name without the overload; None where it has none."""
    function: Callable[..., Any] | None = flop_registry.get(getattr(aten, name.removeprefix("aten::"), None))
    return function


def flops_of(operation: Operation) -> float:
    return math.fsum(float(batch_shapes([shape]).flops[0]) for shape in translate(operation, Flags()))


def torch_flops(operation: Operation) -> float | None:
    """What torch's formula says of a recorded operation; None for an operation without one."""
    name, shapes = operation.name, [list(tensor.shape) for tensor in operation.inputs]
    if name == ATTENTION:
        return float(flop_registry[aten._scaled_dot_product_flash_attention](*shapes[:3])) * _visible(operation)
    if name == f"{ATTENTION}_backward":
        backward = flop_registry[aten._scaled_dot_product_flash_attention_backward]
        return float(backward(shapes[0], *shapes[:3])) * _visible(operation)
    known = formula(name)
    if known is None:
        return None
    if name == "aten::convolution":
        transposed = bool(operation.arguments.get("transposed"))
        out = torch.empty(operation.outputs[0].shape, device="meta")
        return float(known(*shapes[:2], None, None, None, None, transposed, out_val=out))
    if name == "aten::convolution_backward":
        if operation.arguments["groups"] > 1:  # torch multiplies every channel by every other here
            return None
        arguments = operation.arguments
        outs = [torch.empty(shape, device="meta") for shape in shapes[1:3]]
        given = (None, None, None, None, arguments["transposed"], None, None, arguments["output_mask"])
        return float(known(*shapes[:3], *given, out_val=outs))
    return float(known(*shapes))


def _visible(operation: Operation) -> float:
    """Share of the scores that a causal mask leaves, over which torch's counter goes on: (S + 1) / 2S of a square."""
    seq = operation.inputs[0].shape[-2]
    return (seq + 1) / (2 * seq) if operation.arguments.get("is_causal") else 1.0


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_a_recorded_step_has_at_least_the_flops_of_torchs_formulas(workload: Any) -> None:
    module, batch = on_meta(workload, "tiny")
    assert _checked(lp.capture(step_of(module, batch), warmup_steps=0)) > 0


@pytest.mark.parametrize("name", ["cpu_closure", "cpu_mixed", "cpu_mixed_bfloat16"])
def test_a_kept_trace_has_at_least_the_flops_of_torchs_formulas(name: str) -> None:
    from lightning_predict.record.imports import import_trace

    assert _checked(import_trace(f"tests/traces/{name}.json.gz")) > 0


def _checked(trace: Trace) -> int:
    """Operations with a formula of torch's; each has at least the formula's FLOPs."""
    checked = 0
    for operation in trace.operations:
        if operation.name == "aten::convolution" and not operation.outputs:
            continue  # the profiler does not see outputs, and the formula asks for them
        expected = torch_flops(operation)
        if expected is None:
            continue
        assert flops_of(operation) >= expected * (1 - 1e-6), operation
        checked += 1
    return checked


def tensor(*shape: int, dtype: str = "float16") -> TensorInfo:
    return TensorInfo(shape, dtype)


Q, K, V = (2, 8, 128, 64), (2, 4, 256, 64), (2, 4, 256, 96)
PACKED_Q, PACKED_K, PACKED_V = (256, 8, 64), (512, 8, 64), (512, 8, 96)
OFFSETS = torch.empty(3, dtype=torch.int32, device="meta")
IMAGES, FILTERS, OUT = (2, 8, 16, 16), (4, 8, 3, 3), (2, 4, 14, 14)
CONVOLUTION = (None, None, None, None, False)

Example = tuple[Sequence[tuple[int, ...]], dict[str, Any], Sequence[Any], Any]
"""Shapes of the inputs, arguments, what torch's formula is given, and the shapes of the outputs."""

EXAMPLES: dict[str, Example] = {
    "mm": ([(8, 16), (16, 4)], {}, [(8, 16), (16, 4)], None),
    "addmm": ([(4,), (8, 16), (16, 4)], {}, [(4,), (8, 16), (16, 4)], None),
    "bmm": ([(3, 8, 16), (3, 16, 4)], {}, [(3, 8, 16), (3, 16, 4)], None),
    "baddbmm": ([(4,), (3, 8, 16), (3, 16, 4)], {}, [(4,), (3, 8, 16), (3, 16, 4)], None),
    "_scaled_mm": ([(8, 16), (16, 4), (), ()], {}, [(8, 16), (16, 4), (), ()], None),
    **dict.fromkeys(
        ("convolution", "_convolution", "cudnn_convolution", "convolution_overrideable", "_slow_conv2d_forward"),
        ([IMAGES, FILTERS], {}, [IMAGES, FILTERS, *CONVOLUTION], OUT),
    ),
    "convolution_backward": (
        [OUT, IMAGES, FILTERS],
        {"output_mask": [True, True, False]},
        [OUT, IMAGES, FILTERS, *CONVOLUTION, None, None, (True, True, False)],
        [IMAGES, FILTERS],
    ),
    **{
        f"_scaled_dot_product_{kernel}_attention": ([Q, K, V], {}, [Q, K, V], None)
        for kernel in ("efficient", "flash", "cudnn")
    },
    **{
        f"_scaled_dot_product_{kernel}_attention_backward": (
            [(2, 8, 128, 96), Q, K, V],
            {},
            [(2, 8, 128, 96), Q, K, V],
            None,
        )
        for kernel in ("efficient", "flash", "cudnn")
    },
    "_flash_attention_forward": (
        [PACKED_Q, PACKED_K, PACKED_V, (3,), (3,)],
        {"max_q": 128, "max_k": 256},
        [PACKED_Q, PACKED_K, PACKED_V, OFFSETS, OFFSETS, 128, 256],
        None,
    ),
    "_efficient_attention_forward": (
        [(1, *PACKED_Q), (1, *PACKED_K), (1, *PACKED_V), (3,), (3,)],
        {"max_seqlen_q": 128, "max_seqlen_k": 256},
        [(1, *PACKED_Q), (1, *PACKED_K), (1, *PACKED_V), None, OFFSETS, OFFSETS, 128, 256],
        None,
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_formula_of_torch_is_reached(name: str) -> None:
    shapes, arguments, given, outputs = EXAMPLES[name]
    operation = Operation(
        name=f"aten::{name}", phase="forward", inputs=tuple(tensor(*shape) for shape in shapes), arguments=arguments
    )
    known = formula(f"aten::{name}")
    assert known is not None

    def meta(shape: Any) -> Any:
        is_shape = isinstance(shape, tuple) and all(type(side) is int for side in shape)
        return torch.empty(shape, device="meta") if is_shape else shape

    out = [meta(shape) for shape in outputs] if isinstance(outputs, list) else meta(outputs)
    assert flops_of(operation) >= known(*map(meta, given), out_val=out)


def test_torch_has_no_formula_for_an_operation_that_is_not_translated() -> None:
    """A new release of torch that counts one more operation fails here."""
    names = {
        f"aten::{key.__name__}" if isinstance(key, torch._ops.OpOverloadPacket) else f"higher_order::{key.__name__}"
        for key in flop_registry
        if not hasattr(key, "fn")  # kernels of Triton, which a process registers for itself
    }
    assert {name for name in names if translator_of(name) is None} == set()
