"""Process groups of GPUs in a layout: tensor-, context-, expert- and data-parallel groups."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.strategy import Strategy


@final
@dataclass(frozen=True, slots=True)
class DataGroup:
    """A process group of a layout, as a layout of its own.

    GPUs of a layout are numbered in this order: first within tensor-parallel groups, then over replicas, then over
    pipeline stages (Narayanan et al., 2021).

    Attributes:
        layout: Layout of the group's GPUs.
        groups_per_node: Number of groups per machine, which share the machine's network.
    """

    layout: Layout
    groups_per_node: int


def data_group(layout: Layout, strategy: Strategy) -> DataGroup:
    """Return the data-parallel group of a GPU: the GPUs that hold the same part of the model."""
    strategy.replicas(layout)
    if strategy.model_parallel == 1:
        return DataGroup(layout, 1)
    return _group(layout, layout.count // strategy.model_parallel, strategy.tensor)


def _group(layout: Layout, count: int, stride: int) -> DataGroup:
    """Place `count` GPUs at distance `stride` in as few machines as possible, the same number in each."""
    if stride > layout.gpus_per_node:  # if several machines share a block, each machine has one GPU of every group
        return DataGroup(replace(layout, gpus_per_node=1, nodes=count), layout.gpus_per_node)
    places = layout.gpus_per_node // stride
    fewest = 1 if places % count == 0 else 2
    nodes = next(each for each in range(fewest, count + 1) if count % each == 0 and count // each <= places)
    inside = count // nodes
    own = replace(layout, gpus_per_node=inside, nodes=nodes)
    return DataGroup(own, math.ceil(layout.gpus_per_node / inside))


def tensor_group(layout: Layout, strategy: Strategy) -> DataGroup:
    """Return the tensor-parallel group of a GPU, inside one machine or over whole machines."""
    inside = min(strategy.tensor, layout.gpus_per_node)
    own = replace(layout, gpus_per_node=inside, nodes=strategy.tensor // inside)
    return DataGroup(own, layout.gpus_per_node // inside)


def context_group(layout: Layout, strategy: Strategy) -> DataGroup:
    """Return the context-parallel group of a GPU: adjacent GPUs of different tensor-parallel groups."""
    return _group(layout, strategy.context, strategy.tensor)


def expert_group(layout: Layout, strategy: Strategy) -> DataGroup:
    """Return the expert-parallel group of a GPU: adjacent GPUs that hold different experts."""
    others = strategy.context if strategy.expert_tensor is None else 1
    return _group(layout, strategy.expert, strategy.experts_tensor * others)


def expert_data_group(layout: Layout, strategy: Strategy) -> DataGroup:
    """Return the GPUs that hold the same experts, and all-reduce the gradients of these experts."""
    stride = strategy.experts_tensor * strategy.expert
    return _group(layout, layout.count // strategy.pipeline // stride, stride)
