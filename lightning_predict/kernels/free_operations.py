"""Operations that launch nothing on the device: views, allocations, metadata.

Example::

    >>> from lightning_predict.tracing.trace import Operation
    >>> is_free(Operation(name="aten::view", phase="forward"))
    True
"""

from __future__ import annotations

from typing import Final

from lightning_predict.tracing.trace import Operation

FREE_OPERATIONS: Final = frozenset(
    f"aten::{name}"
    for name in (
        # Views of existing storage.
        "_conj _fw_primal _make_dual _neg_view _reshape_alias _unpack_dual _unsafe_view adjoint alias as_strided "
        "as_strided_ broadcast_to chunk conj detach detach_ diagonal dsplit expand expand_as flatten hsplit imag "
        "lift_fresh linalg_diagonal mH mT matrix_H moveaxis movedim narrow numpy_T permute pin_memory positive ravel "
        "real reshape reshape_as select set_ slice slice_inverse split split_with_sizes squeeze squeeze_ swapaxes "
        "swapaxes_ swapdims swapdims_ t t_ tensor_split transpose transpose_ unbind unflatten unfold unsafe_chunk "
        "unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_ view view_as view_as_complex view_as_real vsplit "
        # Views of what a sparse or nested tensor consists of.
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
    ).split()
)
"""Reading a scalar (`item`) waits for the device but computes nothing on it."""

FREE_NAMESPACES: Final = ("prim::", "profiler::", "prims::device_put_meta")


def is_free(operation: Operation) -> bool:
    """True where the operation runs nothing on the device."""
    if operation.kernels:
        return False
    return operation.name in FREE_OPERATIONS or operation.name.startswith(FREE_NAMESPACES)
