"""Operations that launch nothing on the device: views, allocations, metadata.

Example::

    >>> from lightning_predict.tracing.records import Operation
    >>> is_free(Operation(name="aten::view", phase="forward"))
    True
"""

from __future__ import annotations

from typing import Final

from lightning_predict.tracing.records import Operation

FREE_OPERATIONS: Final = frozenset(
    f"aten::{name}"
    for name in (
        # Views of existing storage.
        "_reshape_alias _unsafe_view alias as_strided chunk detach detach_ diagonal expand expand_as flatten "
        "lift_fresh movedim narrow permute pin_memory real reshape select set_ slice split split_with_sizes squeeze "
        "squeeze_ swapaxes t t_ transpose transpose_ unbind unflatten unfold unsafe_chunk unsafe_split "
        "unsafe_split_with_sizes unsqueeze unsqueeze_ view view_as view_as_complex view_as_real "
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
