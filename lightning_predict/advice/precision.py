"""Changes: lower precision by autocast (mixed precision), by whole models in 16 bits, or by TF32 for float32 matmuls.

Autocast follows `tracing/precision.py`, whose lists state which operations run in 16 bits, and adds casts. In a model
in true 16 bits (`model.half()`), all floating-point tensors have 16 bits, including norm statistics and optimizer
state, so no casts are needed. With TF32, tensors stay the same, but float32 matmuls and convolutions use the tensor
cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from lightning_predict.advice.change import Change, of_steps
from lightning_predict.hardware.records import Gpu
from lightning_predict.record.precision import emulates_bfloat16, in_float16, in_precision, is_cast_by_autocast
from lightning_predict.record.trace import TensorInfo, Trace

_WORDS: Final[Mapping[str, str]] = {"bfloat16": "bf16", "float16": "16"}


def in_half(trace: Trace, dtype: str) -> Trace:
    """Return a float32 step with every float32 tensor in 16 bits, as after `model.half()`."""

    def halved(tensor: TensorInfo) -> TensorInfo:
        return replace(tensor, dtype=dtype) if tensor.dtype == "float32" else tensor

    memory = trace.memory
    known = {
        name: None if (value := getattr(memory, name)) is None else value // 2
        for name in ("parameter_bytes", "gradient_bytes", "forward_gradient_bytes", "optimizer_state_bytes")
    }
    return replace(
        trace,
        operations=tuple(
            replace(one, inputs=tuple(map(halved, one.inputs)), outputs=tuple(map(halved, one.outputs)))
            for one in trace.operations
        ),
        parameters=tuple(replace(one, dtype=dtype) if one.dtype == "float32" else one for one in trace.parameters),
        memory=replace(memory, **known, peak_bytes=None, reserved_bytes=None),
        notes=(*trace.notes, f"What if in true {dtype}: parameters, data and the optimizer's state."),
    )


def with_tf32(trace: Trace) -> Trace:
    """Return the step with TF32 allowed for float32 matmuls and convolutions."""
    return replace(trace, flags=replace(trace.flags, matmul_tf32=True, cudnn_tf32=True))


def _is_lowered(trace: Trace) -> str | None:
    """Return why a step is already in 16 bits; None for a float32 step."""
    if trace.flags.autocast_dtype is not None:
        return f"the step runs under autocast in {trace.flags.autocast_dtype} already"
    if not any(one.inputs for one in trace.operations):
        return "the recording holds no shapes; record it with record_shapes=True, or with capture()"
    elements: Counter[str] = Counter()
    for operation in trace.operations:
        if is_cast_by_autocast(operation):
            for tensor in operation.inputs:
                elements[tensor.dtype] += tensor.elements
    if not elements:
        return "the step holds no product that autocast would cast"
    dtype = elements.most_common(1)[0][0]
    return None if dtype == "float32" else f"most of the model is in {dtype} already"


def _in_autocast(trace: Trace, dtype: str) -> Trace:
    """Return a step under autocast: in float16 also from a step under autocast in bfloat16."""
    if dtype == "float16" and trace.flags.autocast_dtype == "bfloat16":
        return in_float16(trace)
    return in_precision(trace, dtype)


def _why_not(dtype: str, trace: Trace, gpu: Gpu | None) -> str | None:
    if dtype == "float16" and trace.flags.autocast_dtype == "bfloat16" and gpu is not None and emulates_bfloat16(gpu):
        return None
    lowered = _is_lowered(trace)
    if lowered is None and trace.compiled:
        return "the step was recorded compiled, which hides what autocast would cast; record it without torch.compile"
    if lowered is None and gpu is not None and gpu.peak(dtype) is None:
        return f"{gpu.name} has no {dtype}"
    return lowered


def _why_no_half(dtype: str, trace: Trace, gpu: Gpu | None) -> str | None:
    return _is_lowered(trace) or _why_not(dtype, trace, gpu)


def _why_no_tf32(trace: Trace, gpu: Gpu | None) -> str | None:
    if trace.flags.matmul_tf32 and trace.flags.cudnn_tf32:
        return "TF32 is on already"
    if gpu is not None and "tf32" not in gpu.peak_flops_per_second:
        return f"{gpu.name} has no TF32"
    lowered = _is_lowered(trace)
    return None if lowered is None else f"{lowered}, and TF32 serves products in float32"


def _autocast(dtype: str) -> Change:
    return Change(
        name=f"{_WORDS[dtype]}-mixed",
        words=f'Trainer(precision="{_WORDS[dtype]}-mixed")',
        note="numerics: check the loss" + (", a scaler skips steps" if dtype == "float16" else ""),
        apply=of_steps(partial(_in_autocast, dtype=dtype)),
        why_not=partial(_why_not, dtype),
        side_effects=frozenset({"numerics"}),
        slot="precision",
        kind="amp",
    )


def _half(dtype: str) -> Change:
    return Change(
        name="half" if dtype == "float16" else "bf16-true",
        words=f'Trainer(precision="{_WORDS[dtype]}-true")',
        note="digits: parameters and updates lose them for good",
        apply=of_steps(partial(in_half, dtype=dtype)),
        why_not=partial(_why_no_half, dtype),
        side_effects=frozenset({"numerics", "digits"}),
        slot="precision",
        kind="half",
    )


TF32: Final = Change(
    name="tf32",
    words='torch.set_float32_matmul_precision("high")',
    note="numerics: products keep 10 bits of the mantissa",
    apply=of_steps(with_tf32),
    why_not=_why_no_tf32,
    side_effects=frozenset({"numerics"}),
    slot="tf32",
    useless_after=frozenset({"bf16-mixed", "16-mixed", "bf16-true", "half"}),
    kind="tf32",
)

PRECISIONS: Final = (_autocast("bfloat16"), _autocast("float16"), _half("bfloat16"), _half("float16"), TF32)
