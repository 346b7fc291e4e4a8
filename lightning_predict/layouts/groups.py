"""Process groups of GPUs in a layout: tensor-, context-, expert- and data-parallel groups, as the links inside them.

GPUs of a layout are numbered in this order: first within tensor-parallel groups, then over replicas, then over pipeline
stages (Narayanan et al., 2021). Each function takes the links of a whole layout.
"""

from __future__ import annotations

import math
from dataclasses import replace

from lightning_predict.layouts.overlap import Links
from lightning_predict.layouts.strategy import Strategy


def data_group(links: Links, strategy: Strategy) -> Links:
    """Return the links of a data-parallel group: the GPUs that hold the same part of the model."""
    layout = links.layout
    strategy.replicas(layout)
    if strategy.model_parallel == 1:
        return links
    return _group(links, layout.count // strategy.model_parallel, strategy.tensor)


def _group(links: Links, count: int, stride: int) -> Links:
    """Place `count` GPUs at distance `stride` in as few machines as possible, the same number in each."""
    layout = links.layout
    if stride > layout.gpus_per_node:  # if several machines share a block, each machine has one GPU of every group
        return replace(
            links, layout=replace(layout, gpus_per_node=1, nodes=count), groups_per_node=layout.gpus_per_node
        )
    places = layout.gpus_per_node // stride
    fewest = 1 if places % count == 0 else 2
    nodes = next(each for each in range(fewest, count + 1) if count % each == 0 and count // each <= places)
    inside = count // nodes
    own = replace(layout, gpus_per_node=inside, nodes=nodes)
    return replace(links, layout=own, groups_per_node=math.ceil(layout.gpus_per_node / inside))


def tensor_group(links: Links, strategy: Strategy) -> Links:
    """Return the links of a tensor-parallel group, inside one machine or over whole machines."""
    layout = links.layout
    inside = min(strategy.tensor, layout.gpus_per_node)
    own = replace(layout, gpus_per_node=inside, nodes=strategy.tensor // inside)
    return replace(links, layout=own, groups_per_node=layout.gpus_per_node // inside)


def context_group(links: Links, strategy: Strategy) -> Links:
    """Return the links of a context-parallel group: adjacent GPUs of different tensor-parallel groups."""
    return _group(links, strategy.context, strategy.tensor)


def expert_group(links: Links, strategy: Strategy) -> Links:
    """Return the links of an expert-parallel group: adjacent GPUs that hold different experts."""
    others = strategy.context if strategy.expert_tensor is None else 1
    return _group(links, strategy.expert, strategy.experts_tensor * others)


def expert_data_group(links: Links, strategy: Strategy) -> Links:
    """Return the links of the GPUs that hold the same experts, and all-reduce the gradients of these experts."""
    stride = strategy.experts_tensor * strategy.expert
    return _group(links, links.layout.count // strategy.pipeline // stride, stride)
