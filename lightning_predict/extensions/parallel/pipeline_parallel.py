"""Pipeline parallelism: blocks in stages, a batch in micro-batches, and the time that stages wait for each other.

Every stage runs the forward and the backward pass of each micro-batch (1F1B, Narayanan et al., 2021). The first
micro-batch passes all stages, and the slowest one sets the pace of the others: with p equal stages and m micro-batches
a step takes m + p - 1 times what one of them needs, so that (p - 1) / m of the work is waiting, the bubble. With v
stages on each GPU (interleaved) the bubble is v times smaller, and v times as much is handed over; where gradients of
weights wait until there is nothing else to do (zero-bubble schedule H1, Qi et al., 2024), it is shorter by twice their
time. Without a pipeline, micro-batches follow each other, and their gradients add up. Example::

    >>> stage_of_blocks(5, 2)
    (0, 0, 0, 1, 1)
    >>> turns([2.0, 2.0, 2.0, 2.0], micro_batches=16)
    19.0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from lightning_predict.distributed.overlap import Ends, Links
from lightning_predict.distributed.strategy import Strategy, tensor_group
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.extensions.parallel.tensor_parallel import block_of
from lightning_predict.gpus.layouts import Layout
from lightning_predict.kernels.fabric import Interconnect
from lightning_predict.timeline.simulation import Launching
from lightning_predict.tracing.trace import Operation

MICRO_BATCHES_PER_STAGE: Final = 4
"""Default number of micro-batches per stage: the bubble is at most a quarter of the work."""


def turns(seconds: Sequence[float], micro_batches: int, *, virtual: int = 1, idle: float = 1.0) -> float:
    """Count how many times the slowest stage's micro-batch fits into the passes of a step.

    Args:
        seconds: Seconds of a micro-batch, forward and backward, in each stage.
        micro_batches: Micro-batches of a step.
        virtual: Stages of each GPU.
        idle: Bubble of the schedule over that of 1F1B.
    """
    slowest = max(seconds)
    others = sum(seconds) / slowest - 1 if slowest > 0 else len(seconds) - 1
    return micro_batches + others * idle / virtual


def idle_share(strategy: Strategy, weight_share: float) -> float:
    """Divide the bubble of a schedule by that of 1F1B."""
    return max(1 - 2 * weight_share, 0.0) if strategy.schedule == "zero_bubble" else 1.0


def overlapping_micro_batches(strategy: Strategy, micro_batches: int) -> int:
    """Count micro-batches behind whose passes the replicas exchange what they share.

    The gradients of a stage are complete with its last micro-batch. An interleaved pipeline works in rounds of as many
    micro-batches as it has stages, part by part: those of each part are complete when the round has passed it, and go
    out behind the parts before it.
    """
    return min(strategy.pipeline, micro_batches) if strategy.virtual > 1 else 1


def under_way(strategy: Strategy, stage: int, micro_batches: int) -> float:
    """Count micro-batches whose activations a stage holds at once, at most.

    Under 1F1B as many as there are stages from it on; interleaved, (p - 1) / (p v) of that more on the first stage
    (Narayanan et al., 2021); with GPipe all of them. Zero-bubble's schedule H1 takes no more than 1F1B.
    """
    if strategy.schedule == "gpipe":
        return float(micro_batches)
    more = 1 + (strategy.pipeline - 1) / (strategy.pipeline * strategy.virtual) if strategy.virtual > 1 else 1.0
    return min((strategy.pipeline - stage) * more, float(micro_batches))


def block_stages(strategy: Strategy, blocks: int) -> tuple[int, ...]:
    """Assign a model's blocks to the stages of a strategy; errors as `stage_of_blocks`."""
    return stage_of_blocks(
        blocks,
        strategy.pipeline,
        strategy.virtual,
        first_stage=strategy.first_stage,
        last_stage=strategy.last_stage,
    )


def stage_of_blocks(
    blocks: int, stages: int, virtual: int = 1, *, first_stage: int | None = None, last_stage: int | None = None
) -> tuple[int, ...]:
    """Assign blocks to stages: as evenly as possible, the first ones with one more block; interleaved, in rounds.

    Args:
        blocks: Their number.
        stages: Of the pipeline.
        virtual: Stages of each GPU.
        first_stage: Blocks of the first stage, the others sharing the rest; None for as many as they have.
        last_stage: The same of the last stage.

    Raises:
        InvalidArgumentError: Fewer blocks than stages.
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
        return (
            *([0] * (first_stage or 0)),
            *(stage + shift for stage in middle),
            *([stages - 1] * (last_stage or 0)),
        )
    if virtual > 1:
        if blocks < stages * virtual:
            raise InvalidArgumentError(
                f"strategy: pipeline={stages} x virtual={virtual} stages for {blocks} transformer block(s); a stage "
                f"has at least one block, so choose at most {blocks} in all."
            )
        return tuple(chunk % stages for chunk in stage_of_blocks(blocks, stages * virtual))
    if blocks < stages > 1:
        raise InvalidArgumentError(
            f"strategy: pipeline={stages} stages for {blocks} transformer block(s); a stage has at least one block, so "
            f"choose at most {blocks}."
        )
    each, longer = divmod(blocks, stages)
    return tuple(stage for stage in range(stages) for _ in range(each + (stage < longer)))


def micro_batches_of(strategy: Strategy, samples: int | None) -> int:
    """Count the micro-batches of a batch.

    Args:
        strategy: What was asked for; where it does not say, four per pipeline stage, or as many as there are
            samples, and one without a pipeline.
        samples: Samples of a batch; None if unknown.

    Raises:
        InvalidArgumentError: More micro-batches than samples.
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
    work: Sequence[Launching] | Sequence[Operation], positions: Mapping[str, int], stage_of: Sequence[int]
) -> Iterator[int | None]:
    """Find the stage of each operation of the passes; None for what is done once a step (the update).

    What lies outside of blocks goes with the block before it: the embedding to the first stage, the output layer and
    the loss to the last one.
    """
    current, phase = 0, "forward"
    for operation in work:
        if operation.phase not in ("forward", "backward"):
            yield None
            continue
        if (phase, operation.phase) == ("backward", "forward"):  # another batch, under gradient accumulation
            current = 0
        phase = operation.phase
        block = block_of(operation.module, positions)
        current = current if block is None else stage_of[block]
        yield current


def hand_over_seconds(stream_bytes: float, layout: Layout, strategy: Strategy, interconnect: Interconnect) -> Ends:
    """Return the time to send a stage's output, or its input's gradient, to the neighbour; (low, middle, high).

    Stages lie one behind the other in the layout, so that between machines all GPUs of one send at once. GPUs that
    share a block hold the same output: each sends its part, and the receivers gather them (Narayanan et al., 2021).
    """
    link = Links(replace(layout, gpus_per_node=2, nodes=1), interconnect, slowdown=1.0)
    if layout.nodes > 1:
        senders = min(layout.gpus_per_node, layout.count // strategy.pipeline)
        link = replace(link, layout=replace(layout, gpus_per_node=1, nodes=2), groups_per_node=senders)
    sent_bytes = stream_bytes / strategy.context
    (sent,) = link.collective("broadcast", [sent_bytes / strategy.tensor])
    if strategy.sequence:  # each GPU holds, and needs, its part of the stream alone
        return sent
    sharing = sharing_links(layout, strategy, interconnect)
    (gathered,) = sharing.collective("all_gather", [sent_bytes])
    seconds: Ends = sent + gathered
    return seconds


def sharing_links(layout: Layout, strategy: Strategy, interconnect: Interconnect) -> Links:
    """Return the links among the GPUs that share a block."""
    group = tensor_group(layout, strategy)
    return Links(group.layout, interconnect, slowdown=1.0, groups_per_node=group.groups_per_node)
