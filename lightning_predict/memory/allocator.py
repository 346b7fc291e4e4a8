"""Simulates torch's caching allocator: the memory that it reserves for a sequence of allocations and frees.

- Sizes are rounded up to 512 bytes. Requests up to 1 MiB use the small pool, whose segments have 2 MiB. Larger requests
  use the large pool: below 10 MiB, requests share segments of 20 MiB. From 10 MiB on, each request gets its own
  segment, a multiple of 2 MiB.
- A request gets the smallest free block that is large enough (best fit), at the lowest address. The remainder of the
  block is split off if it has at least 512 bytes in the small pool, or more than 1 MiB in the large pool. Adjacent free
  blocks are merged.
- Segments are kept until memory runs out or the cache is emptied. With `expandable_segments:True`, each pool is one
  segment that grows by pages of 2 or 20 MiB, and every remainder is split off.

The rules follow torch's `c10/cuda/CUDACachingAllocator.cpp` (2.0 to 2.13), for one stream. No number was fitted.
Example::

    >>> allocator = CachingAllocator()
    >>> first, second = allocator.allocate(12 << 20), allocator.allocate(3 << 20)  # segments of 12 and of 20 MiB
    >>> allocator.reserved_bytes >> 20
    32
    >>> allocator.free(first)
    >>> third = allocator.allocate(11 << 20)  # reuses the first block; the remaining 1 MiB is not split off
    >>> allocator.reserved_bytes >> 20, allocator.allocated_bytes >> 20
    (32, 15)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from lightning_predict.base.units import MEBIBYTE

# torch's constants: kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer, kMinLargeAlloc and kRoundLarge. A segment
# serves several requests, because cudaMalloc synchronises with the device. Small requests have their own pool,
# because a small long-lived tensor would otherwise keep a segment of 20 MiB.
BLOCK_BYTES: Final = 512  # Multiple to which the allocator rounds requests
SMALL_BYTES: Final = MEBIBYTE
SMALL_SEGMENT_BYTES: Final = 2 * MEBIBYTE  # a device page
LARGE_SEGMENT_BYTES: Final = 20 * MEBIBYTE
# A larger request gets its own segment, because the remainder of a 20 MiB segment would be too small for reuse.
OWN_SEGMENT_BYTES: Final = 10 * MEBIBYTE
OWN_SEGMENT_STEP_BYTES: Final = 2 * MEBIBYTE

# A free block's key is one integer, its size and then its address: integers compare faster than tuples.
ADDRESS_BITS: Final = 61
ADDRESSES: Final = (1 << ADDRESS_BITS) - 1


def rounded_up(size: int, step: int) -> int:
    """Round up to a multiple of `step`."""
    return -(-size // step) * step


def block_bytes(size: int) -> int:
    """Round a request up to a multiple of the block size. An empty request takes no memory."""
    return rounded_up(size, BLOCK_BYTES)


def segment_bytes(size: int) -> int:
    """Return the size of a new segment for a request that no free block can serve."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return rounded_up(size, OWN_SEGMENT_STEP_BYTES)


class MemoryBlock:
    """A contiguous range of a segment, allocated or free."""

    __slots__ = ("address", "after", "before", "is_free", "is_small", "size")

    def __init__(self, address: int, size: int, *, is_small: bool) -> None:
        self.address, self.size = address, size
        self.is_free, self.is_small = False, is_small
        self.before: MemoryBlock | None = None
        self.after: MemoryBlock | None = None


class AllocationError(Exception):
    """The simulated GPU is full; torch would raise an out-of-memory error."""


class CachingAllocator:
    """Simulated caching allocator.

    Args:
        expandable_segments: Whether to simulate `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
        capacity_bytes: Maximum GPU memory to reserve; None for no limit. If a new segment exceeds this limit, unused
            segments are released, as in torch. If that is not enough, `allocate` raises `AllocationError`.

    Attributes:
        reserved_bytes: Memory reserved on the GPU, as `torch.cuda.memory_reserved` counts it.
        allocated_bytes: Memory in allocated blocks, as `torch.cuda.memory_allocated` counts it.
        peak_reserved_bytes: Maximum of `reserved_bytes`.
        peak_allocated_bytes: Maximum of `allocated_bytes`.
        unused_bytes: Size of the segments without an allocated block, which a full GPU would release.
        growth: Every new maximum of `reserved_bytes`, with `unused_bytes` at that time.
    """

    def __init__(self, *, expandable_segments: bool = False, capacity_bytes: int | None = None) -> None:
        self.reserved_bytes = self.allocated_bytes = 0
        self.peak_reserved_bytes = self.peak_allocated_bytes = self.unused_bytes = 0
        self.growth: list[tuple[int, int]] = []
        self._expandable, self._capacity = expandable_segments, capacity_bytes
        # for each pool (small, large): keys of free blocks, by size and address; and all blocks by address
        self._free: dict[bool, list[int]] = {True: [], False: []}
        self._blocks: dict[int, MemoryBlock] = {}
        self._end = 0
        # last block of each pool's expandable segment
        self._last: dict[bool, MemoryBlock | None] = {True: None, False: None}

    def allocate(self, size: int) -> MemoryBlock:
        """Allocate a block of at least `size` bytes."""
        size = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        is_small = size <= SMALL_BYTES
        free = self._free[is_small]
        position = bisect_left(free, size << ADDRESS_BITS)
        if position < len(free):
            block = self._blocks[free.pop(position) & ADDRESSES]
            if block.before is None and block.after is None:
                self.unused_bytes -= block.size
        elif self._expandable:
            block = self._expanded(size, is_small=is_small)
        else:
            block = self._new_segment(segment_bytes(size), is_small=is_small)
        left = block.size - size
        if left >= BLOCK_BYTES and (is_small or self._expandable or left > SMALL_BYTES):
            self._split(block, size)
        block.is_free = False
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block

    def free(self, block: MemoryBlock) -> None:
        """Free a block, and merge the block with adjacent free blocks."""
        self.allocated_bytes -= block.size
        free = self._free[block.is_small]
        before, after = block.before, block.after
        if before is not None and before.is_free:
            free.pop(bisect_left(free, before.size << ADDRESS_BITS | before.address))
            self._join(before, block)
            block = before
        if after is not None and after.is_free:
            free.pop(bisect_left(free, after.size << ADDRESS_BITS | after.address))
            self._join(block, after)
        if block.before is None and block.after is None:
            self.unused_bytes += block.size
        block.is_free = True
        insort(free, block.size << ADDRESS_BITS | block.address)

    def empty_cache(self) -> None:
        """Release unused segments to the GPU. An expandable segment releases the free pages at its end."""
        for is_small, free in self._free.items():
            page = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
            kept = []
            for key in free:
                block = self._blocks[key & ADDRESSES]
                size, address = block.size, block.address
                if block.before is None and block.after is None:
                    self.reserved_bytes -= size
                    self.unused_bytes -= size
                    del self._blocks[address]
                    self._last[is_small] = None if self._last[is_small] is block else self._last[is_small]
                    continue
                if self._expandable and block is self._last[is_small]:
                    whole = size // page * page
                    self.reserved_bytes -= whole
                    block.size -= whole
                    size = block.size
                    if size == 0:
                        assert block.before is not None
                        block.before.after = None
                        self._last[is_small] = block.before
                        del self._blocks[address]
                        continue
                kept.append(size << ADDRESS_BITS | address)
            self._free[is_small] = sorted(kept)

    def _make_room(self, size: int) -> None:
        """Release unused segments if reserving `size` more bytes would exceed the capacity."""
        if self._capacity is not None and self.reserved_bytes + size > self._capacity:
            self.empty_cache()
            if self.reserved_bytes + size > self._capacity:
                raise AllocationError

    def _new_segment(self, size: int, *, is_small: bool) -> MemoryBlock:
        self._make_room(size)
        block = self._blocks[self._end] = MemoryBlock(self._end, size, is_small=is_small)
        self._end += size + OWN_SEGMENT_STEP_BYTES  # a gap, so that blocks of two segments are never adjacent
        self._reserve(size)
        return block

    def _expanded(self, size: int, *, is_small: bool) -> MemoryBlock:
        """Grow the pool's expandable segment until its last block is large enough."""
        self._make_room(size)
        page = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        last = self._last[is_small]
        if last is not None and last.is_free:
            free = self._free[is_small]
            free.pop(bisect_left(free, last.size << ADDRESS_BITS | last.address))
            self.unused_bytes -= last.size if last.before is None else 0
            more = rounded_up(size - last.size, page)
            last.size += more
            self._reserve(more)
            return last
        more = rounded_up(size, page)
        # Each pool has its own address range, so expandable segments never overlap.
        address = (0 if is_small else 1 << ADDRESS_BITS - 1) if last is None else last.address + last.size
        block = self._blocks[address] = MemoryBlock(address, more, is_small=is_small)
        block.before = last
        if last is not None:
            last.after = block
        self._last[is_small] = block
        self._reserve(more)
        return block

    def _reserve(self, size: int) -> None:
        self.reserved_bytes += size
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes
            self.growth.append((self.reserved_bytes, self.unused_bytes))

    def _split(self, block: MemoryBlock, size: int) -> None:
        rest = MemoryBlock(block.address + size, block.size - size, is_small=block.is_small)
        rest.before, rest.after, rest.is_free = block, block.after, True
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.size = rest, size
        self._blocks[rest.address] = rest
        if self._expandable and self._last[block.is_small] is block:
            self._last[block.is_small] = rest
        insort(self._free[block.is_small], rest.size << ADDRESS_BITS | rest.address)

    def _join(self, block: MemoryBlock, after: MemoryBlock) -> None:
        block.size += after.size
        block.after = after.after
        if block.after is not None:
            block.after.before = block
        if self._last[block.is_small] is after:
            self._last[block.is_small] = block
        del self._blocks[after.address]
