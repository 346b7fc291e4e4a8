"""What surrounds a step: parameters, memory that lives through it, global switches, software, and compiled code.

Example::

    describe_parameters([torch.nn.Linear(8, 4)])     # (Parameter(name='weight', shape=(4, 8), ...), ...)
    read_flags(autocast_dtype=None).matmul_tf32      # False unless TF32 was allowed
"""

from __future__ import annotations

import gc
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any, Final

import torch
from torch import nn

from lightning_predict.tracing.records import Flags, Memory, Parameter
from lightning_predict.tracing.tensors import dtype_name

_FAST_IN_EVALUATION: Final = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)


def read_flags(autocast_dtype: str | None) -> Flags:
    """The global switches as they stand.

    Args:
        autocast_dtype: What was seen of autocast while the step ran.
    """
    return Flags(
        matmul_tf32=_allows_tf32(torch.backends.cuda.matmul, torch.backends.cuda.matmul),
        cudnn_tf32=_allows_tf32(getattr(torch.backends.cudnn, "conv", None), torch.backends.cudnn),
        autocast_dtype=autocast_dtype,
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        cudnn_deterministic=bool(torch.backends.cudnn.deterministic),
    )


def _allows_tf32(backend: Any, legacy_backend: Any) -> bool:
    """Whether float32 work of a backend may use TF32; the older switch refuses to be read once the newer was set."""
    precision = getattr(backend, "fp32_precision", None)
    return bool(legacy_backend.allow_tf32) if precision is None else precision == "tf32"


def software_versions() -> dict[str, str]:
    """Versions of what decides how a step runs."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
        versions["cudnn"] = str(torch.backends.cudnn.version())
    return versions


def describe_parameters(roots: Sequence[nn.Module]) -> tuple[Parameter, ...]:
    """Parameters in the order of `named_parameters`; those of several roots bear the root's class and position."""
    rows = []
    seen: set[int] = set()
    for index, root in enumerate(roots):
        prefix = "" if len(roots) == 1 else f"{type(root).__name__}{index}."
        for name, parameter in root.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                rows.append(_parameter(f"{prefix}{name}", parameter))
    return tuple(rows)


def describe_leaves(leaves: Iterable[torch.Tensor]) -> tuple[Parameter, ...]:
    """Parameters that were seen without a module around them, numbered."""
    return tuple(_parameter(f"parameter_{index}", leaf) for index, leaf in enumerate(leaves))


def _parameter(name: str, tensor: torch.Tensor) -> Parameter:
    return Parameter(
        name=name,
        shape=tuple(map(int, tensor.shape)),
        dtype=dtype_name(tensor.dtype),
        requires_grad=tensor.requires_grad,
    )


def measure_memory(
    roots: Sequence[nn.Module],
    leaves: Sequence[torch.Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    has_backward: bool,
    peak_bytes: int | None,
) -> Memory:
    """Bytes that live through the step; None for what nobody showed.

    Args:
        roots: Outermost modules.
        leaves: Parameters that were seen without a module; used where there are no roots.
        optimizers: Those that stepped.
        has_backward: The step ran a backward pass.
        peak_bytes: Peak of the CUDA allocator.
    """
    tensors = {id(tensor): tensor for root in roots for tensor in (*root.parameters(), *root.buffers())}
    if not roots:
        tensors = {id(leaf): leaf for leaf in leaves}
    if not tensors:
        return Memory(peak_bytes=peak_bytes)
    gradients = [tensor.grad for tensor in tensors.values() if tensor.is_leaf and tensor.grad is not None]
    if has_backward and not gradients:  # cleared within the step: as large as what they are for
        gradients = [tensor for tensor in tensors.values() if tensor.requires_grad]
    return Memory(
        parameter_bytes=_total_bytes(tensors.values()),
        gradient_bytes=_total_bytes(gradients) if has_backward else 0,
        optimizer_state_bytes=_total_bytes(_state_tensors(optimizers)),
        peak_bytes=peak_bytes,
    )


def _state_tensors(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[torch.Tensor]:
    for optimizer in optimizers:
        for state in optimizer.state.values():
            values = state.values() if isinstance(state, dict) else ()
            yield from (value for value in values if isinstance(value, torch.Tensor))


def _total_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(int(tensor.numel()) * tensor.element_size() for tensor in tensors)


def has_compiled_code(model: nn.Module | None) -> bool:
    """True where something compiled by `torch.compile` may run in a step.

    Args:
        model: Where to look; None looks at every live object, which takes some milliseconds.
    """
    frames = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    if frames is None:  # the compiler was never loaded
        return False
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    if counters.get("frames", {}).get("total", 0):
        return True
    if model is not None:
        return any(_is_compiled(module, frames) for module in model.modules())
    return any(_is_compiled(item, frames) for item in gc.get_objects())


def compile_seconds() -> float | None:
    """Seconds that `torch.compile` has taken in this process; None where it took none, or this torch does not say."""
    spent = getattr(sys.modules.get("torch._dynamo.utils"), "calculate_time_spent", None)
    if spent is None:
        return None
    seconds = spent().get("total_wall_time")
    return float(seconds) if seconds else None


def _is_compiled(item: Any, optimized_module: type) -> bool:
    kind = type(item)
    if kind is FunctionType:
        marks = item.__dict__
        return "_torchdynamo_orig_callable" in marks and not marks.get("_torchdynamo_disable", False)
    if kind is optimized_module:
        return True
    if not issubclass(kind, nn.Module):
        return False
    marks = item.__dict__
    return marks.get("_compiled_call_impl") is not None or marks.get("_compiler_ctx") is not None


def has_fast_evaluation(model: nn.Module | None) -> bool:
    """True where a part in evaluation mode would leave torch's fused path while a function mode is on."""
    return model is not None and any(
        isinstance(module, _FAST_IN_EVALUATION) and not module.training for module in model.modules()
    )
