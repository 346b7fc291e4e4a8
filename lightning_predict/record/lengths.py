"""`capture_lengths` records a step at a few representative sequence lengths. Predictions use their weighted mean.

If each batch is padded to its longest sequence, batches differ in length. Each recorded length represents a group
of similar lengths. With at least two recorded lengths, the longest length is
recorded, because it determines the required memory. Example::

    trace = capture_lengths(lambda length: step_of(batch, length), lengths={64: 500, 128: 900, 512: 80})
    predict(trace, iterations=1480)  # the mean step, and the memory of the longest length
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import accumulate

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.recording import capture
from lightning_predict.record.trace import OtherStep, Trace


def capture_lengths(
    step: Callable[[int], object],
    lengths: Mapping[int, float] | Iterable[int],
    *,
    kinds: int = 6,
    warmup_steps: int = 1,
    samples_per_step: int | None = None,
    precision: str | None = None,
) -> Trace:
    """Record a step at a few lengths that represent a histogram of lengths.

    Args:
        step: Runs one step with batches of the given length.
        lengths: Number of batches of each length, or a list of batch lengths.
        kinds: Maximum number of lengths to record.
        warmup_steps: As for `capture`, at each length.
        samples_per_step: As for `capture`.
        precision: As for `capture`.

    Raises:
        InvalidArgumentError: There is no length, a length is below 1, a count is not positive, or `capture`
            raises this error.
        CaptureError: `capture` raises this error.
    """
    if kinds < 1:
        raise InvalidArgumentError(f"kinds={kinds} is no number of lengths; expected 1 or more.")
    shares = shares_of_lengths(lengths, kinds)
    recorded = [
        OtherStep(
            share=share,
            trace=capture(
                partial(step, length), warmup_steps=warmup_steps, samples_per_step=samples_per_step, precision=precision
            ),
        )
        for length, share in shares.items()
    ]
    first, *others = sorted(recorded, key=lambda length: -length.share)
    return replace(first.trace, other_steps=tuple(others))


def shares_of_lengths(lengths: Mapping[int, float] | Iterable[int], kinds: int) -> dict[int, float]:
    """Choose representative lengths, each with its share of the batches.

    The longest length represents only itself. The other lengths are grouped, with about the same number of batches in
    each group. The mean length of a group, rounded up, represents the group. With `kinds=1`, the mean of all lengths
    represents all batches.

    Args:
        lengths: Number of batches of each length, or a list of lengths.
        kinds: Maximum number of lengths to choose.
    """
    counts: dict[int, float] = {}
    for length, count in lengths.items() if isinstance(lengths, Mapping) else ((value, 1.0) for value in lengths):
        if isinstance(length, bool) or not isinstance(length, int) or length < 1 or not 0 < count < math.inf:
            raise InvalidArgumentError(
                f"lengths has {length!r}: {count!r}; expected lengths of at least 1, and how often each occurs."
            )
        counts[length] = counts.get(length, 0.0) + count
    if not counts:
        raise InvalidArgumentError("lengths is empty; give the lengths of batches, or how often each occurs.")
    ordered, total = sorted(counts), sum(counts.values())
    if len(ordered) <= kinds:
        return {length: counts[length] / total for length in ordered}
    *others, longest = ordered
    if kinds == 1:
        return {math.ceil(sum(length * counts[length] for length in ordered) / total): 1.0}
    ends = list(accumulate(counts[length] for length in others))
    groups: dict[int, list[int]] = {}
    for length, end in zip(others, ends, strict=True):
        middle = end - counts[length] / 2
        groups.setdefault(int((kinds - 1) * middle / ends[-1]), []).append(length)
    shares = {longest: counts[longest] / total}
    for group in groups.values():
        batches = sum(counts[length] for length in group)
        mean = math.ceil(sum(length * counts[length] for length in group) / batches)
        shares[mean] = shares.get(mean, 0.0) + batches / total
    return shares
