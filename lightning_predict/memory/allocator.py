"""Simulate torch's caching allocator: what it reserves of a GPU for blocks that come and go.

A request is rounded to 512 bytes. One of up to 1 MiB is served from the small pool, whose segments have 2 MiB, a larger
one from the large pool: segments of 20 MiB for less than 10 MiB, else one of its own, a multiple of 2 MiB. The smallest
free block that is large enough serves it, the lower address first; what is left of that block is split off (where it is
512 bytes in the small pool, more than 1 MiB in the large one) and joins its free neighbours again when both are free.
Segments are kept until the memory is exhausted or the cache is emptied. With `expandable_segments:True` each pool is
one segment that grows by pages of 2 or 20 MiB, and every remainder is split off. No number here was fitted. The rules
are those of torch's `c10/cuda/CUDACachingAllocator.cpp` (2.0 to 2.13), for one stream. Example::

    >>> allocator = CachingAllocator()
    >>> first, second = allocator.allocate(3 << 20), allocator.allocate(12 << 20)  # segments of 20 and of 12 MiB
    >>> allocator.reserved_bytes >> 20
    32
    >>> allocator.free(second)
    >>> third = allocator.allocate(11 << 20)  # fits where the second was; the 1 MiB left is not split off
    >>> allocator.reserved_bytes >> 20, allocator.allocated_bytes >> 20
    (32, 15)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final, final

from lightning_predict.units import MEBIBYTE

# The constants are torch's own, by these names in its source, not fitted ones: kMinBlockSize, kSmallSize, kSmallBuffer,
# kLargeBuffer, kMinLargeAlloc and kRoundLarge. Asking the driver for memory waits for the device, so a segment serves
# many requests; small ones have a pool of their own, since a scalar that lives long would else pin a segment of 20 MiB.
BLOCK_BYTES: Final = 512  # every address suits every vector load
SMALL_BYTES: Final = MEBIBYTE
SMALL_SEGMENT_BYTES: Final = 2 * MEBIBYTE  # a page of the device
LARGE_SEGMENT_BYTES: Final = 20 * MEBIBYTE
# From here on a request has a segment to itself: the rest of 20 MiB would be too small for its like, and be lost.
OWN_SEGMENT_BYTES: Final = 10 * MEBIBYTE
OWN_SEGMENT_STEP_BYTES: Final = 2 * MEBIBYTE


def rounded_up(size: int, step: int) -> int:
    """Round up to the next multiple of `step`."""
    return -(-size // step) * step


def block_bytes(size: int) -> int:
    """Round a request to whole blocks; an empty one takes no memory."""
    return rounded_up(size, BLOCK_BYTES)


def segment_bytes(size: int) -> int:
    """Return the size of the segment that is made for a request which no free block can serve."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return rounded_up(size, OWN_SEGMENT_STEP_BYTES)


@final
class MemoryBlock:
    """Bytes that lie together in a segment; free ones are in their pool."""

    __slots__ = ("address", "after", "before", "is_free", "is_small", "size")

    def __init__(self, address: int, size: int, *, is_small: bool) -> None:
        self.address, self.size = address, size
        self.is_free, self.is_small = False, is_small
        self.before: MemoryBlock | None = None
        self.after: MemoryBlock | None = None


@final
class CachingAllocator:
    """What torch's allocator has reserved and handed out.

    Args:
        expandable_segments: As `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
        gives_back: Give segments back in which nothing is handed out before a new one is made, as torch does where the
            GPU has no room for it and before it gives up: what is reserved then must fit.

    Attributes:
        reserved_bytes: What it has taken of the GPU.
        allocated_bytes: What it has handed out, as `torch.cuda.memory_allocated` counts it.
        peak_reserved_bytes: Most that it had taken.
        peak_allocated_bytes: Most that it had handed out.
    """

    def __init__(self, *, expandable_segments: bool = False, gives_back: bool = False) -> None:
        self.reserved_bytes = self.allocated_bytes = 0
        self.peak_reserved_bytes = self.peak_allocated_bytes = 0
        self._expandable, self._gives_back = expandable_segments, gives_back
        # Free blocks by size, then address, and the block itself by its address.
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._blocks: dict[int, MemoryBlock] = {}
        self._end = 0
        # Where an expandable segment of each pool ends, and its last block.
        self._last: dict[bool, MemoryBlock | None] = {True: None, False: None}

    def allocate(self, size: int) -> MemoryBlock:
        """Hand out a block of at least so many bytes.

        Args:
            size: Above 0.
        """
        size = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        is_small = size <= SMALL_BYTES
        free = self._free[is_small]
        position = bisect_left(free, (size, -1))
        if position < len(free):
            block = self._blocks[free.pop(position)[1]]
            return self._handed_out(block, size)
        if self._gives_back:
            self.empty_cache()
        if self._expandable:
            block = self._expanded(size, is_small=is_small)
        else:
            block = self._new_segment(segment_bytes(size), is_small=is_small)
        return self._handed_out(block, size)

    def _handed_out(self, block: MemoryBlock, size: int) -> MemoryBlock:
        """Split off what is left of a block, and count it."""
        is_small = block.is_small
        left = block.size - size
        if left >= BLOCK_BYTES and (is_small or self._expandable or left > SMALL_BYTES):
            self._split(block, size)
        block.is_free = False
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block

    def free(self, block: MemoryBlock) -> None:
        """Take a block back, joined with its free neighbours."""
        self.allocated_bytes -= block.size
        free = self._free[block.is_small]
        before, after = block.before, block.after
        if before is not None and before.is_free:
            free.pop(bisect_left(free, (before.size, before.address)))
            self._join(before, block)
            block = before
        if after is not None and after.is_free:
            free.pop(bisect_left(free, (after.size, after.address)))
            self._join(block, after)
        block.is_free = True
        insort(free, (block.size, block.address))

    def empty_cache(self) -> None:
        """Give back the segments in which nothing is handed out; of expandable ones the free pages."""
        for is_small, free in self._free.items():
            page = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
            kept = []
            for size, address in free:
                block = self._blocks[address]
                if block.before is None and block.after is None:
                    self.reserved_bytes -= size
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
                kept.append((size, address))
            self._free[is_small] = sorted(kept)

    def _new_segment(self, size: int, *, is_small: bool) -> MemoryBlock:
        block = self._blocks[self._end] = MemoryBlock(self._end, size, is_small=is_small)
        self._end += size + OWN_SEGMENT_STEP_BYTES  # no two segments are neighbours
        self._reserve(size)
        return block

    def _expanded(self, size: int, *, is_small: bool) -> MemoryBlock:
        """Let the pool's one segment grow until its last block holds a request."""
        page = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        last = self._last[is_small]
        if last is not None and last.is_free:
            free = self._free[is_small]
            free.pop(bisect_left(free, (last.size, last.address)))
            more = rounded_up(size - last.size, page)
            last.size += more
            self._reserve(more)
            return last
        more = rounded_up(size, page)
        # Each pool has an address space of its own, so that it never meets the other's.
        address = (0 if is_small else 1 << 60) if last is None else last.address + last.size
        block = self._blocks[address] = MemoryBlock(address, more, is_small=is_small)
        block.before = last
        if last is not None:
            last.after = block
        self._last[is_small] = block
        self._reserve(more)
        return block

    def _reserve(self, size: int) -> None:
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _split(self, block: MemoryBlock, size: int) -> None:
        rest = MemoryBlock(block.address + size, block.size - size, is_small=block.is_small)
        rest.before, rest.after, rest.is_free = block, block.after, True
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.size = rest, size
        self._blocks[rest.address] = rest
        if self._expandable and self._last[block.is_small] is block:
            self._last[block.is_small] = rest
        insort(self._free[block.is_small], (rest.size, rest.address))

    def _join(self, block: MemoryBlock, after: MemoryBlock) -> None:
        """Join a block with the one behind it."""
        block.size += after.size
        block.after = after.after
        if block.after is not None:
            block.after.before = block
        if self._last[block.is_small] is after:
            self._last[block.is_small] = block
        del self._blocks[after.address]
