"""Bytes of memory traffic of calls without a translator.

A call without a translator has no shape parameters, formulas or surrogate. The call is either free (no kernel), or
counts as a `transfer` (`families/elementwise.py`) of the bytes of its tensors. The name of the call determines which
tensors are read and written. By default, the call reads its inputs and writes its outputs. Profiler traces lack
outputs; an output is then assumed to be as large as the largest input, or as the tensor that is changed in place.

The tables from `FREE_OPERATIONS` to `FUSED_OPTIMIZERS` list the exceptions by name. Three further tables list calls
that follow the default and whose bytes determine their time: `POINTWISE` (in `record/operand_strides.py`, because
recorders check the strides of these calls), `MOVING` and `REDUCING`. For all other calls, such as the user's own
operators, only the tensors are known (`translation.unknown_operation_notes`).

To add a call, put its name into the table for the tensors that it reads and writes. If its bytes do not determine its
time, register an `OperationSpec` instead; its translator takes precedence over these tables. Example::

    >>> from lightning_predict.record.trace import Operation, TensorInfo
    >>> x = TensorInfo((1024,), "float32")
    >>> sigmoid = Operation(name="aten::sigmoid", phase="forward", inputs=(x,), outputs=(x,))
    >>> transfer_of(sigmoid)[0].dims
    (4096.0, 4096.0, 1024.0)
    >>> is_free(Operation(name="aten::view", phase="forward", inputs=(x,)))
    True
    >>> is_known(sigmoid), is_known(Operation(name="mine::scan", phase="forward", inputs=(x,)))
    (True, False)
"""

from __future__ import annotations

from typing import Final

from lightning_predict.kernels.operations import OperationShape, translator_of
from lightning_predict.kernels.roofline import (
    JOINED_LOAD_CYCLES,
    ROLL_CYCLES,
    SINGLE_LOAD_CYCLES,
    VECTORIZED,
    limited_transfer,
)
from lightning_predict.record.operand_strides import CONTIGUOUS_ELEMENTS, POINTWISE, TO_ROWS
from lightning_predict.record.trace import DTYPE_BYTES, Operation, TensorInfo


def _aten(names: str) -> frozenset[str]:
    """Prefix each name in a space-separated list with `aten::`."""
    return frozenset(f"aten::{name}" for name in names.split())


FREE_OPERATIONS: Final = _aten(
    # Views of existing storage.
    "_conj _fw_primal _make_dual _neg_view _reshape_alias _unpack_dual _unsafe_view adjoint alias as_strided "
    "as_strided_ broadcast_to chunk conj detach detach_ diagonal dsplit expand expand_as flatten hsplit imag "
    "lift_fresh linalg_diagonal mH mT matrix_H moveaxis movedim narrow numpy_T permute pin_memory positive ravel "
    "real reshape reshape_as select set_ slice slice_inverse split split_with_sizes squeeze squeeze_ swapaxes "
    "swapaxes_ swapdims swapdims_ t t_ tensor_split transpose transpose_ unbind unflatten unfold unsafe_chunk "
    "unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_ view view_as view_as_complex view_as_real vsplit "
    # Views of the parts of a sparse or nested tensor.
    "_coalesced_ _dimI _dimV _indices _nested_get_jagged_dummy _nested_get_lengths _nested_get_max_seqlen "
    "_nested_get_min_seqlen _nested_get_offsets _nested_get_ragged_idx _nested_get_values _nested_view_from_buffer "
    "_nested_view_from_jagged _nnz _sparse_broadcast_to _sparse_coo_tensor_unsafe _values ccol_indices col_indices "
    "crow_indices dense_dim indices is_coalesced row_indices sparse_dim sparse_resize_and_clear_ values "
    "_sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors _sparse_csr_tensor_unsafe "
    "_sparse_compressed_tensor_unsafe "
    # Allocations.
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ "
    # Metadata and host work.
    "_assert_async _assert_tensor_metadata _has_compatible_shallow_copy_type _nested_tensor_from_mask "
    "_version is_nonzero is_pinned is_same_size item record_stream requires_grad_ result_type "
    "set_data sym_numel sym_size sym_storage_offset sym_stride _local_scalar_dense"
)
"""Calls that launch no kernel. Reading a scalar (`item`) waits for the GPU but computes nothing on it."""

COMPILED_CALL: Final = "inductor::call"  # Call of compiled code: no kernel, but host time (`timeline/host.py`)

FREE_NAMESPACES: Final = ("prim::", "profiler::", "prims::device_put_meta")

WRITE_ONLY: Final = _aten(  # Calls that read no data: fills and random numbers
    "arange bernoulli bernoulli_ exponential_ eye fill_ full full_like linspace new_full new_ones new_zeros "
    "normal_ ones ones_like rand rand_like randint randn randn_like random_ randperm scalar_tensor uniform_ "
    "zero_ zeros zeros_like _foreach_zero_"
)

REDUCTIONS: Final = _aten(  # Reductions, whose output is small compared with the input
    "all amax amin any argmax argmin linalg_vector_norm logsumexp max mean min norm nansum prod std sum var "
    "_foreach_norm var_mean"
)

LOOK_UP_CALLS: Final = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only", "aten::embedding")
"""Calls that look up rows of an embedding table."""

LOOK_UPS: Final = _aten("gather index index_select take take_along_dim embedding upsample_nearest2d")
"""Calls that read only the requested rows of their table."""

CASTS: Final = _aten("_to_copy copy_")  # Copies that may change the dtype

REARRANGED: Final = _aten("cat stack repeat constant_pad_nd slice_backward select_backward")
"""Copies that compute an index for each element."""

JOINS: Final = _aten("cat stack")  # Copies of several tensors into one

TENSOR_LISTS: Final = {
    "aten::_foreach_addcmul_": 3,
    "aten::_foreach_addcdiv_": 3,
    "aten::_foreach_lerp_": 2,
    "aten::_foreach_copy_": 2,
}
"""Number of tensor lists of multi-tensor operations, including the changed list, if fixed and not one."""

FUSED_OPTIMIZERS: Final = {
    "aten::_fused_adam_": (4, 3),
    "aten::_fused_adamw_": (4, 3),
    "aten::_fused_adagrad_": (3, 2),
    "aten::_fused_sgd_": (3, 2),
}
"""Numbers of lists that are read (parameters, gradients, two moments) and written (all except the gradients)."""

MOVING: Final = frozenset(  # Calls that move data with little computation, without `aten::`
    "_copy_from _index_put_impl_ _local_scalar_dense _pin_memory _to_copy _unsafe_index _unsafe_index_put "
    "_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward block_diag broadcast_tensors "
    "bucketize cat channel_shuffle clone col2im constant_pad_nd contiguous copy cumprod cumsum diag diag_embed "
    "diagonal_backward fill flip im2col index_add index_copy index_fill index_put index_put_impl lift lift_fresh_copy "
    "masked_scatter masked_select meshgrid new_copy nonzero one_hot pad pixel_shuffle pixel_unshuffle "
    "reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d "
    "reflection_pad3d_backward repeat repeat_interleave replication_pad1d replication_pad1d_backward "
    "replication_pad2d replication_pad2d_backward replication_pad3d replication_pad3d_backward roll rot90 scatter "
    "scatter_add scatter_reduce select_backward select_scatter slice_backward slice_scatter split_copy stack tile to "
    "trace tril tril_indices triu triu_indices unfold_backward upsample_bicubic2d upsample_bicubic2d_backward "
    "upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_nearest1d "
    "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward "
    "upsample_trilinear3d upsample_trilinear3d_backward view_copy".split()
)

REDUCING: Final = frozenset(  # Calls that read their input and write a smaller result, without `aten::`
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d adaptive_max_pool2d_backward avg_pool1d avg_pool2d "
    "avg_pool2d_backward avg_pool3d avg_pool3d_backward max_pool2d max_pool2d_with_indices "
    "max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward "
    "_native_batch_norm_legit_no_training native_norm cudnn_batch_norm count_nonzero aminmax cummax cummin dist "
    "std_mean nanmean _weight_norm_interface _weight_norm_interface_backward _amp_foreach_non_finite_check_and_unscale "
    "_amp_update_scale _is_all_true _is_any_true".split()
)

_KNOWN: Final = (
    POINTWISE
    | MOVING
    | REDUCING
    | {
        name.removeprefix("aten::")
        for names in (WRITE_ONLY, REDUCTIONS, LOOK_UPS, TENSOR_LISTS, FUSED_OPTIMIZERS)
        for name in names
    }
)
_FUSED_BY_COMPILER: Final = ("triton", "inductor")

ROLL: Final = "aten::roll"

_POINTWISE_CALLS: Final = frozenset(f"aten::{name}{suffix}" for name in POINTWISE for suffix in ("", "_"))
_STREAMED: Final = _POINTWISE_CALLS | CASTS
_COPIES: Final = CASTS | REARRANGED | {ROLL}

UNTRANSLATED: Final = "untranslated"  # Replacement for an operation whose translator failed (`families/elementwise.py`)


def is_free(operation: Operation) -> bool:
    """Return whether the operation runs no kernel."""
    if operation.kernels:
        return False
    return operation.name in FREE_OPERATIONS or operation.name.startswith(FREE_NAMESPACES)


def is_known(operation: Operation) -> bool:
    """Return whether the work of an operation is known, or its bytes determine its time approximately."""
    if translator_of(operation.name) is not None or is_free(operation):
        return True
    namespace, _, name = operation.name.rpartition("::")
    if namespace.startswith(_FUSED_BY_COMPILER):
        return True
    if namespace != "aten":
        return False
    spellings = (name, name.removesuffix("_"), name.removeprefix("_foreach_").removesuffix("_"))
    return any(spelling in _KNOWN for spelling in spellings)


def untranslated(operation: Operation) -> tuple[OperationShape, ...]:
    """Return a lower bound on the work of an operation whose computation is unknown: its bytes."""
    return tuple(OperationShape(UNTRANSLATED, transfer.dtype, transfer.dims) for transfer in transfer_of(operation))


def transfer_of(operation: Operation) -> tuple[OperationShape, ...]:
    """Return a transfer of the bytes read and written, with one FLOP per element; empty if no bytes are moved."""
    read, written = bytes_read(operation), bytes_written(operation)
    if read + written == 0:
        return ()
    tensors = operation.outputs or operation.inputs
    count = sum if operation.name in JOINS and not operation.outputs else max
    elements = count([0, *(tensor.elements for tensor in tensors)])
    if crosses_host_link(operation):
        return (OperationShape("host_copy", "uint8", (float(max(written, 1)),)),)
    if loads_singly(operation):
        return (limited_transfer(read, written, elements, cycles=elements * _cycles_an_element(operation)),)
    kind = VECTORIZED if operation.name in _STREAMED else "transfer"
    return (OperationShape(kind, "float32", (float(read), float(written), float(elements))),)


def loads_singly(operation: Operation) -> bool:
    """Return whether an element-wise operation or copy loads one element at a time.

    PyTorch's kernels load several elements at once (vectorized loads) if all operands have one shape, layout and dtype.
    Broadcast, strided or mixed-dtype operands are loaded as single elements, except in a plain cast from float32 to 16
    bits.
    """
    is_pointwise = operation.name in _POINTWISE_CALLS
    if operation.phase == "optimizer" or not (is_pointwise or operation.name in _COPIES):
        return False
    if operation.name == "aten::native_dropout_backward":  # one vectorized product with the mask
        return False
    # A number, and a tensor of one element on the CPU, are arguments of a vectorized kernel.
    reads_scalar = any(not tensor.shape and tensor.device not in (None, "cpu") for tensor in operation.inputs)
    if CONTIGUOUS_ELEMENTS in operation.arguments or _comes_into_rows(operation) or (is_pointwise and reads_scalar):
        return True
    tensors = [tensor for tensor in (*operation.inputs, *operation.outputs) if tensor.shape]
    dtypes = {tensor.dtype for tensor in tensors} | ({_cast_to(operation)} - {None})
    written = operation.outputs[0] if operation.outputs else operation.inputs[0] if operation.inputs else None
    if written is None or not written.shape:
        return False
    if operation.name == ROLL or any(tensor.shape != written.shape for tensor in tensors):
        return True
    return len(dtypes) > 1 and not _narrows(operation)


def _comes_into_rows(operation: Operation) -> bool:
    """Return whether a call copies a tensor to row-major layout, the only reason why `contiguous` and `reshape` do."""
    return operation.name == "aten::clone" and operation.arguments.get("memory_format") == TO_ROWS["memory_format"]


def _cast_to(operation: Operation) -> str | None:
    """Return the target dtype of a cast; None if the call is no cast, or if another argument determines the dtype."""
    dtype = operation.arguments.get("dtype") if operation.name == "aten::_to_copy" else None
    return dtype if isinstance(dtype, str) and dtype in DTYPE_BYTES else None


def _narrows(operation: Operation) -> bool:
    """Return whether a call casts float32 to 16 bits. PyTorch has vectorized kernels for this cast."""
    if operation.name not in CASTS or not operation.inputs:
        return False
    if operation.name == "aten::copy_":
        target, source = operation.inputs[0].dtype, operation.inputs[-1].dtype
    else:
        source = operation.inputs[0].dtype
        target = operation.outputs[0].dtype if operation.outputs else _cast_to(operation) or source
    return source == "float32" and target in ("float16", "bfloat16")


def _cycles_an_element(operation: Operation) -> float:
    """Return SM cycles per element if elements are loaded singly."""
    if operation.name == ROLL:
        return ROLL_CYCLES
    is_joined = operation.name in REARRANGED and CONTIGUOUS_ELEMENTS in operation.arguments
    return JOINED_LOAD_CYCLES if is_joined else SINGLE_LOAD_CYCLES


def crosses_host_link(operation: Operation) -> bool:
    """Return whether the operation copies between host and GPU memory."""
    if operation.name not in CASTS:
        return False
    if any("Memcpy HtoD" in kernel.name or "Memcpy DtoH" in kernel.name for kernel in operation.kernels):
        return True
    return len({tensor.device for tensor in (*operation.inputs, *operation.outputs)} & {"cpu", "cuda"}) == 2


def bytes_read(operation: Operation) -> int:
    """Return the minimum number of bytes that the operation reads."""
    name = operation.name
    if name in WRITE_ONLY:
        return 0
    if name in LOOK_UPS and operation.outputs:
        sizes = [tensor.size_bytes for tensor in operation.inputs]
        total = _sum_bytes(operation.outputs)
        # Trace files do not list the indices of `index`, so only the table is left.
        return total + (min(sizes) if len(sizes) > 1 else 0)
    if name == "aten::copy_" and len(operation.inputs) == 2:
        return operation.inputs[1].size_bytes  # The destination, listed first, is not read.
    return _sum_bytes(operation.inputs)


def bytes_written(operation: Operation) -> int:
    """Return the minimum number of bytes that the operation writes."""
    name, inputs = operation.name, operation.inputs
    if name in FUSED_OPTIMIZERS:
        lists_read, lists_written = FUSED_OPTIMIZERS[name]
        return _sum_bytes(inputs) * lists_written // lists_read
    if name.startswith("aten::_foreach_"):
        if name in WRITE_ONLY:
            return _sum_bytes(inputs)
        if name in REDUCTIONS:
            return 0
        return _sum_bytes(operation.outputs) or _sum_bytes(inputs) // _tensor_lists(operation)
    if operation.outputs:
        return _sum_bytes(operation.outputs)
    if name in REDUCTIONS:
        return 0
    if name in JOINS:
        return _sum_bytes(inputs)
    cast_to = _cast_to(operation)
    if cast_to is not None and inputs:
        return inputs[0].elements * DTYPE_BYTES[cast_to]
    if name.endswith("_") and inputs:
        return inputs[0].size_bytes
    return max((tensor.size_bytes for tensor in inputs), default=0)


def _tensor_lists(operation: Operation) -> int:
    """Count the tensor lists of a multi-tensor call. `add`, `mul` and `div` have two lists, or a list and a scalar."""
    listed = TENSOR_LISTS.get(operation.name, 1)
    if listed > 1 or "scalar" in operation.arguments or "scalars" in operation.arguments:
        return listed
    shapes = [tensor.shape for tensor in operation.inputs]
    half = len(shapes) // 2
    return 2 if half and shapes[:half] == shapes[half:] else 1


def _sum_bytes(tensors: tuple[TensorInfo, ...]) -> int:
    return sum(tensor.size_bytes for tensor in tensors)
