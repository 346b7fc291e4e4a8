"""Corrections of predicted kernel times for the torch version, the memory layout of operands, and the kind of memory.

These corrections apply to times from any source.

**torch version.** The neural networks were trained on measurements with torch 2.1 to 2.9. Older versions were slower on
the same GPU, because cuDNN, cuBLAS and norm kernels improve by a few per cent a year. Float32 matmuls without tensor
cores and memory-bound work did not improve. The tables contain the best attention kernels of each GPU, but torch before
2.11 uses FlashAttention 2 (pytorch/pytorch 141133 and 138522, huggingface/transformers 48163). A step is predicted for
the torch version with which it was recorded.

**Memory layout.** Published rates are for matmuls A·B. If the second operand is transposed in memory, A·Bᵀ, a matmul on
CUDA cores is slower (`roofline.transposed_ratio`). Recorders derive the order of the operand from its strides, and
store the order as an argument of the matmul. Older traces lack this argument; the views before the matmul then
determine the order (`aten::t` in a linear layer).

**Memory.** The networks know Ada only by boards with inline ECC. Steps on a board without it are faster than predicted.

`measured_scaling.predict_work_times` applies all corrections. Example::

    >>> from lightning_predict.hardware import gpu
    >>> round(torch_version_factor({"torch": "1.13.1"}), 2)  # a year before 2.1
    1.05
    >>> torch_version_factor({"torch": "2.4.0"}), torch_version_factor({})
    (1.0, 1.0)
    >>> uses_newest_attention("2.6", gpu("H100-SXM-80GB")), uses_newest_attention("2.11", gpu("H100-SXM-80GB"))
    (False, True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from lightning_predict.base.interval import Interval
from lightning_predict.hardware.own_rates import ATTENTION
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.families.attention import FUSED_ATTENTION, attention_seconds
from lightning_predict.kernels.memory_bound import FREE_OPERATIONS
from lightning_predict.kernels.operations import Array, OperationShape, batch_shapes, operation_shape, operation_spec
from lightning_predict.kernels.roofline import OLDER_RATE, WIDEST_FLOPS_PER_CLOCK, issue_rate, transposed_ratio
from lightning_predict.kernels.timing import KernelModels, computes_in_float32, predict_operation_times
from lightning_predict.kernels.translation import WorkItem
from lightning_predict.record.operand_strides import SECOND_FACTOR_POSITION, SECOND_TRANSPOSED
from lightning_predict.record.signatures import ATTENTION_KERNEL
from lightning_predict.record.torch_releases import release_of
from lightning_predict.record.trace import Operation, TensorInfo

# --- torch version: matmuls and norms

YEARLY_GAIN: Final = 0.05  # Reduction of log time per year of torch releases

REWRITTEN: Final = ("norm", "softmax")
"""Parts of the names of operations other than matmuls whose kernels also improved. Device-bound steps of training
benchmarks, timm and torchvision have median errors of 5.6, 7.0 and 8.7 %; 6.6, 7.3 and 10.4 % if all improve."""

FIRST_WIDE_LOADS: Final = (1, 5)
"""First torch version whose element-wise kernels load several elements at a time. Before, 16-bit element-wise kernels
are assumed to be slower by the same factor as matmuls: 16-bit training benchmarks under torch 1.4 have a median error
of 9.0 % with this rule, 11.4 % without."""

_CURRENT: Final = (2, 1)
_YEARS: Final[Mapping[tuple[int, int], float]] = {  # Release dates of torch versions, in years
    (1, 4): 2020.0,
    (1, 5): 2020.3,
    (1, 6): 2020.6,
    (1, 7): 2020.8,
    (1, 8): 2021.2,
    (1, 9): 2021.5,
    (1, 10): 2021.8,
    (1, 11): 2022.2,
    (1, 12): 2022.5,
    (1, 13): 2022.8,
    (2, 0): 2023.2,
    _CURRENT: 2023.8,
}


def torch_version_factors(shapes: Sequence[OperationShape], gpus: Sequence[Gpu], software: Mapping[str, str]) -> Array:
    """Return the slowdown of shapes under a torch version, (gpus, shapes) or 1 x 1; see `torch_version_factor`."""
    factor = torch_version_factor(software)
    if factor == 1:
        return np.ones((1, 1))
    has_wide_loads = (release_of(software) or _CURRENT) >= FIRST_WIDE_LOADS
    gains = [[_improves_with_libraries(shape, gpu, has_wide_loads=has_wide_loads) for shape in shapes] for gpu in gpus]
    return np.where(np.array(gains, dtype=np.bool_), factor, 1.0)


def _improves_with_libraries(shape: OperationShape, gpu: Gpu, *, has_wide_loads: bool) -> bool:
    """Return whether newer libraries are faster: norms, and matmuls except float32 or float64 without tensor cores."""
    if operation_spec(shape.operation).units != "tensor":
        is_narrow = shape.dtype in ("float16", "bfloat16") and not has_wide_loads
        return is_narrow or any(word in shape.operation for word in REWRITTEN)
    return not (shape.dtype in ("float32", "float64") or computes_in_float32(shape.dtype, gpu))


def torch_version_factor(software: Mapping[str, str]) -> float:
    """Return the slowdown of work under the torch version of a recording, relative to a current version.

    Args:
        software: Versions, as in `Trace.software`. An unknown torch version counts as current, and a version before 1.4
            counts as 1.4.
    """
    release = release_of(software)
    if release is None:
        return 1.0
    release = max(release, min(_YEARS))
    years = _YEARS[_CURRENT] - _YEARS.get(release, _YEARS[_CURRENT])
    return math.exp(YEARLY_GAIN * years)


# --- torch version: attention

CUDNN_BY_DEFAULT: Final = (2, 11)  # First torch version whose wheels prefer cuDNN's attention on Hopper and Blackwell

NAMED_KERNELS: Final = {  # Attention kernels by parts of the names of the operations that call them
    "cudnn": "cudnn_attention",
    "overrideable": "cudnn_attention",
    "flash_attn_3::": "flash_attention_3",
    "flash_attn::": "flash_attention_2",
}


def attention_kernel(operation: Operation) -> str | None:
    """Return the name of the kernel that a call of attention asks for; None for torch's default."""
    named = (kernel for part, kernel in NAMED_KERNELS.items() if part in operation.name)
    return operation.arguments.get(ATTENTION_KERNEL) or next(named, None)


def uses_newest_attention(release: str | None, gpu: Gpu) -> bool:
    """Return whether torch uses the best available attention kernels of a GPU, which the tables contain.

    Args:
        release: torch version; None or an unknown version counts as current.
        gpu: GPU that runs the kernels.
    """
    known = release_of({"torch": release or ""})
    return gpu.generation.has_warp_group_matmul and (known is None or known >= CUDNN_BY_DEFAULT)


def attention_factors(
    shapes: Sequence[OperationShape], kernels: Sequence[str | None], gpus: Sequence[Gpu], software: Mapping[str, str]
) -> Array:
    """Return the attention slowdown of a kernel relative to the tables' kernels, (gpus, shapes) or 1 x 1.

    The factor is 1 except for attention. Without `kernels`, attention runs the default of the torch version.
    """
    concerned = [shape.operation in FUSED_ATTENTION and shape.dtype in ("float16", "bfloat16") for shape in shapes]
    if not any(concerned):
        return np.ones((1, 1))
    slowdowns = np.ones((len(gpus), len(shapes)))
    rows = [row for row, gpu in enumerate(gpus) if gpu.generation.has_warp_group_matmul]
    for column in np.flatnonzero(concerned).tolist() if rows else ():
        batch, able = batch_shapes([shapes[column]]), [gpus[row] for row in rows]
        older, newest = (attention_seconds(batch, able, newest=is_newest)[:, 0] for is_newest in (False, True))
        slowdowns[rows, column] = older / newest
    default = [not uses_newest_attention(software.get("torch"), gpu) for gpu in gpus]
    is_older = np.array(
        [[is_old if kernel is None else kernel == "flash_attention_2" for kernel in kernels] for is_old in default]
    )
    return np.where(np.array(concerned) & is_older, slowdowns, 1.0)


# --- Memory layout of operands

_ALWAYS: Final = frozenset({"aten::linear", "aten::mkldnn_linear"})
"""Calls whose weight has the shape (columns, rows), so that it is read transposed."""

_TRANSPOSES: Final = frozenset({"aten::t", "aten::t_", "aten::mT", "aten::mH", "aten::adjoint", "aten::numpy_T"})

_Key = tuple[int | None, tuple[int, ...]]


def layout_factors(
    operations: Sequence[Operation], items: Sequence[WorkItem], gpus: Sequence[Gpu], base_share: Array
) -> Array:
    """Return the slowdown of matmuls A·Bᵀ that base networks predicted, (gpus, items); 1 for other work.

    Predictions without measurements of the GPU are for A·B, so the correction applies only to `base_share` of an item.
    `base_share` is the share of each item's time from networks without measurements of the GPU, shape (gpus, items).
    """
    factor = np.ones(base_share.shape)
    transposed = transposed_matmuls(operations)
    columns: dict[str, list[int]] = {}
    for column, item in enumerate(items):
        if item.shapes and not transposed.isdisjoint(item.operations):
            columns.setdefault(item.shapes[0].dtype, []).append(column)
    for dtype, positions in columns.items():
        ratios = np.array([[transposed_ratio(gpu, dtype)] for gpu in gpus])  # (gpus, 1)
        factor[:, positions] += base_share[:, positions] * (ratios - 1)
    return factor


def across_factors(
    operations: Sequence[Operation], items: Sequence[WorkItem], gpus: Sequence[Gpu], seconds: Array
) -> Array:
    """Return the slowdown of TF32 matmuls A·B and Aᵀ·B on Hopper, shape (gpus, items); 1 for other work.

    Hopper's instructions for groups of warps take TF32 operands whose rows run along the depth (PTX ISA, `wgmma`), so
    that both gradients of a linear layer run with those of Ampere. `seconds` has the shape (gpus, items).
    """
    factor = np.ones(seconds.shape)
    rows = [row for row, gpu in enumerate(gpus) if gpu.generation.chip == "hopper"]
    columns = [
        column
        for column, item in enumerate(items)
        if len(item.shapes) == 1 and item.shapes[0].operation in MATMULS and item.shapes[0].dtype == "tf32"
    ]
    along = transposed_matmuls(operations) if rows and columns else frozenset()
    for column in columns if rows else ():
        if along.isdisjoint(items[column].operations):
            flops = float(batch_shapes(items[column].shapes).flops[0])
            least = [flops / (OLDER_RATE * WIDEST_FLOPS_PER_CLOCK * issue_rate(gpus[row])) for row in rows]
            factor[rows, column] = np.maximum(least / seconds[rows, column], 1.0)
    return factor


def transposed_matmuls(operations: Sequence[Operation]) -> frozenset[int]:
    """Return the indices of matmuls whose second operand is transposed in memory."""
    if [index for index, operation in enumerate(operations) if SECOND_TRANSPOSED in operation.arguments]:
        return frozenset(
            index
            for index, operation in enumerate(operations)
            if operation.name in _ALWAYS or operation.arguments.get(SECOND_TRANSPOSED)
        )
    turned: dict[_Key, bool] = {}
    indices: set[int] = set()
    for index, operation in enumerate(operations):
        place = SECOND_FACTOR_POSITION.get(operation.name)
        if operation.name in _ALWAYS:
            indices.add(index)
        elif place is not None and len(operation.inputs) > place:
            if turned.get(_key(operation.inputs[place])):
                indices.add(index)
        elif operation.name in FREE_OPERATIONS and operation.inputs and len(operation.outputs) == 1:
            turned[_key(operation.outputs[0])] = _is_transposed(operation, turned)
    return frozenset(indices)


def _key(tensor: TensorInfo) -> _Key:
    return tensor.id, tensor.shape


def _is_transposed(view: Operation, turned: dict[_Key, bool]) -> bool:
    """Return whether the matrices in the result of a view are in column-major order."""
    before, after = view.inputs[0], view.outputs[0]
    if after.id is None or after.id != before.id:
        return False
    was_turned = turned.get(_key(before), False)
    if _transposes(view):
        # A square matrix has the same shape if transposed. Assume that forward passes transpose row-major matrices.
        is_square = before.shape == after.shape
        return view.phase == "forward" if is_square else not was_turned
    return was_turned and before.shape[-2:] == after.shape[-2:]


def _transposes(view: Operation) -> bool:
    """Return whether a view swaps the last two dimensions and nothing else."""
    dimensions = len(view.inputs[0].shape)
    if view.name in _TRANSPOSES:
        return dimensions > 1
    last = {dimensions - 1, dimensions - 2}
    if view.name == "aten::transpose":
        sides = [view.arguments.get(word) for word in ("dim0", "dim1")]
        return {side % dimensions for side in sides if isinstance(side, int) and dimensions} == last
    order = view.arguments.get("dims")
    if view.name != "aten::permute" or not isinstance(order, list | tuple) or dimensions < 2:
        return False
    expected = [*range(dimensions - 2), dimensions - 1, dimensions - 2]
    return [side % dimensions for side in order] == expected


# --- Sustained work

MATMULS: Final = ("linear", "bmm")
LARGE_SIDE: Final = 8192  # Side of the square matmul for which the networks' rate is compared with a card's rate

POWER_TWINS: Final[Mapping[str, tuple[str, ...]]] = {
    "bfloat16": ("float16",),
    "float16": ("bfloat16",),
    "tf32": ("bfloat16", "float16"),
    "float8": ("bfloat16", "float16"),
}
"""For each dtype, other dtypes of the same units. Their slowdown also applies, because the power limit is the same."""


def sustained_factors(
    shapes: Sequence[OperationShape], gpus: Sequence[Gpu], seconds: Array, models: KernelModels | None
) -> Interval[Array]:
    """Return the slowdown of matmuls and attention in a training loop, (gpus, shapes) or 1 x 1.

    The neural networks were trained on bursts of milliseconds, in which power does not limit the clock yet. Let r be
    the known sustained rate of a card, and b the rate that the networks predict for a large matmul. Then each FLOP at
    the rate b takes b / r times as long. A matmul that is bound by memory or launches runs at a lower rate, so its time
    changes less. Kernels of fused attention differ in their rate, so one slowdown applies to all. Memory-bound work has
    no slowdown, because power limits do not reduce the memory clock.

    The catalogue's rate is that of one machine, and the machine of the bursts is another: the middle is between both,
    and the ends are the two machines. A rate that the user measured applies as it is. The factor is 1 except for
    matmuls and fused attention in 16 bits. `seconds` are of bursts, shape (gpus, shapes).
    """
    if not any(gpu.sustained_flops_per_second or gpu.sustained_attention_share != 1 for gpu in gpus):
        return Interval.from_factor(np.ones((1, 1)), 1.0)
    is_attention = [shape.operation in FUSED_ATTENTION and shape.dtype in ("float16", "bfloat16") for shape in shapes]
    slowdowns = np.where(is_attention, 1 / np.array([[gpu.sustained_attention_share] for gpu in gpus]), 1.0)
    limited = np.ones(slowdowns.shape)  # the share of a time at the rate that power limits
    is_own = np.array([[ATTENTION in gpu.own_rates] for gpu in gpus]) & np.array(is_attention)
    columns: dict[tuple[str, str], list[int]] = {}
    for column, shape in enumerate(shapes):
        if shape.operation in MATMULS:
            columns.setdefault((shape.operation, shape.dtype), []).append(column)
    for (_, dtype), positions in columns.items():
        flops = batch_shapes([shapes[column] for column in positions]).flops
        for row, gpu in enumerate(gpus):
            known = _sustained_dtype(gpu, dtype)
            if known is None:
                continue
            slowdowns[row, positions], burst = _slowdown(gpu, dtype, known, models)
            limited[row, positions] = np.minimum(flops / (burst * seconds[row, positions]), 1.0)
            is_own[row, positions] = known in gpu.own_rates
    low, middle, high = (
        1 + (slowdowns ** np.where(is_own, 1.0, exponent) - 1) * limited for exponent in MACHINES_BETWEEN
    )
    return Interval(low, middle, high)


MACHINES_BETWEEN: Final = (0.0, 0.5, 1.0)
"""Low end, middle and high end of a card's slowdown, as exponents of the one machine's whose rate is known.

The machine of the bursts and this machine count alike."""


def _sustained_dtype(gpu: Gpu, dtype: str) -> str | None:
    """Return the dtype whose sustained rate slows matmuls in another dtype; None without a rate."""
    if dtype not in gpu.peak_flops_per_second:
        return None
    return next((twin for twin in (dtype, *POWER_TWINS.get(dtype, ())) if twin in gpu.sustained_flops_per_second), None)


def _slowdown(gpu: Gpu, dtype: str, known: str, models: KernelModels | None) -> tuple[float, float]:
    """Return the time of a large matmul in a machine's loop relative to a burst, and its FLOP/s in a burst.

    The rate in the loop is that of the dtype `known`.
    """
    products = [operation_shape("linear", one, m=LARGE_SIDE, n=LARGE_SIDE, k=LARGE_SIDE) for one in (known, dtype)]
    bursts = 2.0 * LARGE_SIDE**3 / predict_operation_times(products, [gpu], models).seconds[0]
    return float(bursts[0]) / gpu.sustained_flops_per_second[known], float(bursts[1])


ADA_WITHOUT_ECC_TIME: Final = 0.9
"""Time of a step on an Ada board without inline ECC, relative to a prediction by networks of boards with it."""


def memory_factor(gpu: Gpu) -> float:
    """Return the correction factor of GPU times for the kind of memory."""
    return ADA_WITHOUT_ECC_TIME if gpu.compute_capability == (8, 9) and not gpu.has_inline_ecc else 1.0
