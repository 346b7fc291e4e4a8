"""Pipeline parallelism: assigns blocks to stages, and computes micro-batches and the pipeline bubble.

Every stage runs forward and backward of each micro-batch (1F1B schedule, Narayanan et al., 2021). The first micro-batch
passes through all stages; then the slowest stage limits the others. With p equal stages and m micro-batches, a step
takes m + p - 1 times as long as a micro-batch in one stage, so the bubble is (p - 1) / m of the work.

With v stages per GPU (interleaved schedule), the bubble is v times smaller, and v times as much data is transferred.
The zero-bubble schedule H1 (Qi et al., 2024) delays weight gradients, which shortens the bubble by twice their time.
Without a pipeline, micro-batches run one after another (gradient accumulation). Example::

    >>> stage_of_blocks(5, 2)
    (0, 0, 0, 1, 1)
    >>> pass_micro_batches([2.0, 2.0, 2.0, 2.0], micro_batches=16)
    19.0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.layouts.groups import tensor_group
from lightning_predict.layouts.overlap import Ends, Links
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.layouts.tensor_parallel import block_of
from lightning_predict.record.trace import Operation
from lightning_predict.timeline.simulation import HostOperation

MICRO_BATCHES_PER_STAGE: Final = 4  # Default number of micro-batches per stage


def pass_micro_batches(seconds: Sequence[float], micro_batches: int, *, virtual: int = 1, idle: float = 1.0) -> float:
    """Return the time of a step's passes, divided by the time of one micro-batch in the slowest stage.

    Args:
        seconds: Time of a micro-batch in each stage, forward and backward.
        micro_batches: Number of micro-batches per step.
        virtual: Number of stages per GPU.
        idle: Bubble of the schedule, relative to 1F1B.
    """
    slowest = max(seconds)
    others = sum(seconds) / slowest - 1 if slowest > 0 else len(seconds) - 1
    return micro_batches + others * idle / virtual


def bubble_ratio(strategy: Strategy, weight_share: float) -> float:
    """Return the bubble of a schedule, relative to 1F1B.

    Args:
        strategy: Parallel strategy.
        weight_share: Share of a micro-batch's time that computes weight gradients.
    """
    return max(1 - 2 * weight_share, 0.0) if strategy.schedule == "zero_bubble" else 1.0


def overlapping_micro_batches(strategy: Strategy, micro_batches: int) -> int:
    """Return how many of the last micro-batches overlap with communication between replicas.

    The gradients of a stage are complete after its last micro-batch. An interleaved pipeline over p GPUs sends p
    micro-batches through one part of the model, then through the next part. After the last round of a part, its
    gradients are communicated while earlier parts compute.
    """
    return min(strategy.pipeline, micro_batches) if strategy.virtual > 1 else 1


def passes_of(strategy: Strategy, stage: int, micro_batches: int) -> Iterator[tuple[bool, int, int]]:
    """Yield the passes of a stage in their order, as (whether backward, part of the stage, micro-batch).

    With GPipe, all forward passes come first. Otherwise, forward and backward passes alternate after
    `_warm_up_passes` forward passes. An interleaved pipeline sends `pipeline` micro-batches through one part, then
    through the next part, in the backward pass in reverse order (Narayanan et al., 2021).
    """
    total = micro_batches * strategy.virtual
    ahead = min(_warm_up_passes(strategy, stage, total), total)
    for number in range(total + ahead):
        if number < total:
            yield False, *_part_and_micro_batch(strategy, number)
        if number >= ahead:
            part, micro_batch = _part_and_micro_batch(strategy, number - ahead)
            yield True, strategy.virtual - 1 - part, micro_batch


def _warm_up_passes(strategy: Strategy, stage: int, total: int) -> int:
    """Return how many forward passes precede the first pair of a forward and a backward pass."""
    if strategy.schedule == "gpipe":
        return total - 1
    behind = strategy.pipeline - stage - 1
    return behind if strategy.virtual == 1 else 2 * behind + (strategy.virtual - 1) * strategy.pipeline


def _part_and_micro_batch(strategy: Strategy, number: int) -> tuple[int, int]:
    if strategy.virtual == 1:
        return 0, number
    round_of, rest = divmod(number, strategy.pipeline * strategy.virtual)
    return rest // strategy.pipeline, round_of * strategy.pipeline + rest % strategy.pipeline


def simulated_micro_batches(strategy: Strategy, stage: int, micro_batches: int) -> int:
    """Return how many of the micro-batches fill a stage; later micro-batches repeat the same pattern."""
    if strategy.schedule == "gpipe":
        return micro_batches
    return min(micro_batches, 2 * strategy.pipeline if strategy.virtual > 1 else strategy.pipeline - stage + 1)


def block_stages(strategy: Strategy, blocks: int) -> tuple[int, ...]:
    """Return the stage of each block under a strategy."""
    return tuple(part % strategy.pipeline for part in block_parts(strategy, blocks))


def block_parts(strategy: Strategy, blocks: int) -> tuple[int, ...]:
    """Return the part of each block. With p stages, stage s of an interleaved pipeline has the parts s, s + p ..."""
    if strategy.virtual > 1 and blocks < strategy.pipeline * strategy.virtual:
        raise InvalidArgumentError(
            f"strategy: pipeline={strategy.pipeline} x virtual={strategy.virtual} stages for {blocks} transformer "
            f"block(s); a stage has at least one block, so choose at most {blocks} in all."
        )
    stages = strategy.pipeline * strategy.virtual
    return stage_of_blocks(blocks, stages, first_stage=strategy.first_stage, last_stage=strategy.last_stage)


def stage_of_blocks(
    blocks: int, stages: int, *, first_stage: int | None = None, last_stage: int | None = None
) -> tuple[int, ...]:
    """Return the stage of each block; blocks are assigned evenly, and the first stages get the remaining blocks.

    Args:
        blocks: Number of blocks.
        stages: Number of pipeline stages.
        first_stage: Number of blocks in the first stage; None for the same number as in other stages.
        last_stage: Number of blocks in the last stage; None for the same number as in other stages.
    """
    if first_stage is not None or last_stage is not None:
        given = {"first_stage": first_stage, "last_stage": last_stage}
        own = {name: count for name, count in given.items() if count is not None}
        others, rest = stages - len(own), blocks - sum(own.values())
        if rest < others or (not others and rest):
            words = ", ".join(f"{name}={count}" for name, count in own.items())
            raise InvalidArgumentError(
                f"strategy: {words} of {blocks} transformer block(s) leaves {rest} to {others} other stage(s); each "
                "needs at least one, and none may be left over."
            )
        middle = stage_of_blocks(rest, others) if others else ()
        shift = first_stage is not None
        return (*([0] * (first_stage or 0)), *(stage + shift for stage in middle), *([stages - 1] * (last_stage or 0)))
    if blocks < stages > 1:
        raise InvalidArgumentError(
            f"strategy: pipeline={stages} stages for {blocks} transformer block(s); a stage has at least one block, so "
            f"choose at most {blocks}."
        )
    each, longer = divmod(blocks, stages)
    return tuple(stage for stage in range(stages) for _ in range(each + (stage < longer)))


def micro_batches_of(strategy: Strategy, samples: int | None) -> int:
    """Return the number of micro-batches per batch.

    Args:
        strategy: Parallel strategy. If `micro_batches` is None, the default is four per pipeline stage, at most one per
            sample; without a pipeline, one.
        samples: Samples per batch; None if unknown.
    """
    if strategy.micro_batches is None:
        if strategy.pipeline == 1:
            return 1
        wanted = MICRO_BATCHES_PER_STAGE * strategy.pipeline
        return wanted if samples is None else min(wanted, samples)
    if samples is not None and strategy.micro_batches > samples:
        raise InvalidArgumentError(
            f"strategy: micro_batches={strategy.micro_batches} of a batch of {samples} sample(s); a micro-batch has at "
            f"least one sample, so choose at most {samples}, or record a larger batch."
        )
    return strategy.micro_batches


def stages_of(
    work: Sequence[HostOperation] | Sequence[Operation], positions: Mapping[str, int], stage_of: Sequence[int]
) -> Iterator[int | None]:
    """Yield the stage of each forward and backward operation; None for operations of the optimizer step.

    An operation outside blocks belongs to the stage of the preceding block. The embedding thus belongs to the first
    stage, and the output layer and the loss to the last stage.
    """
    current, phase = 0, "forward"
    known: dict[str | None, int | None] = {}
    for operation in work:
        if operation.phase not in ("forward", "backward"):
            yield None
            continue
        if (phase, operation.phase) == ("backward", "forward"):  # with gradient accumulation, the next batch begins
            current = 0
        phase = operation.phase
        if operation.module not in known:
            known[operation.module] = block_of(operation.module, positions)
        block = known[operation.module]
        current = current if block is None else stage_of[block]
        yield current


def send_seconds(stream_bytes: float, links: Links, strategy: Strategy) -> Ends:
    """Return the time to send an activation or gradient to a neighbouring stage, as (low, middle, high).

    GPUs of a stage are adjacent in the layout, so all of them send between machines at the same time. All GPUs of a
    tensor-parallel group hold the same tensor. Each GPU sends a part, and the receivers gather the parts (Narayanan et
    al., 2021).
    """
    layout = links.layout
    link = replace(links, layout=replace(layout, gpus_per_node=2, nodes=1))
    if layout.nodes > 1:
        senders = min(layout.gpus_per_node, layout.count // strategy.pipeline)
        link = replace(link, layout=replace(layout, gpus_per_node=1, nodes=2), groups_per_node=senders)
    sent_bytes = stream_bytes / strategy.context
    (sent,) = link.collective("broadcast", [sent_bytes / strategy.tensor])
    if strategy.sequence:  # each GPU holds and needs only its own part of the tensor
        return sent
    (gathered,) = tensor_group(links, strategy).collective("all_gather", [sent_bytes])
    seconds: Ends = sent + gathered
    return seconds
