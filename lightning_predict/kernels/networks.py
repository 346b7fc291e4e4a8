"""The forward pass of many small networks over many rows, while a training wants the same cores.

Rows pass in blocks that stay in the cache, cut into strips of a few rows: products so small that BLAS computes each in
the thread that asks. BLAS's own threads wait for each other in a loop, so on cores that are busy they make a product
slower than one thread does. Where there are many blocks, two threads of our own share them; nobody else's threads or
settings are touched. Example::

    log_utilisation = log_utilisations([base, own_of_t4], owners=np.array([0, 1, 1]), rows=features)
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from lightning_predict.kernels.arrays import IndexArray
from lightning_predict.kernels.operations import Array
from lightning_predict.weights.records import Float32Array, NetworkWeights

STRIP_ROWS: Final = 16
"""16 rows by layers of 128 x 128 are the 2^18 multiplications from which OpenBLAS starts threads."""

BLOCK_ROWS: Final = 256
"""Activations of four members of 128 lanes: half a MiB, which the cache of one core holds."""

THREADS: Final = 2
THREADED_BLOCKS: Final = 16
"""Starting threads takes as long as a block or two: fewer blocks than this pass in the calling thread."""


def log_utilisations(networks: Sequence[NetworkWeights], owners: IndexArray, rows: Float32Array) -> Array:
    """Compute the natural logarithm of the utilisation, in [log(lowest), 0], averaged over each ensemble.

    Args:
        networks: Ensembles; one may be there more than once.
        owners: Index of the ensemble of each row, shape (rows,).
        rows: Features, shape (rows, features).

    Returns:
        Shape (rows,). A row's value does not depend on its neighbours.
    """
    distinct = {id(network): network for network in networks}
    number = {key: index for index, key in enumerate(distinct)}
    numbers = np.array([number[id(network)] for network in networks], dtype=np.intp)[owners]  # (rows,)
    blocks = [
        (network, block)
        for index, network in enumerate(distinct.values())
        for block in _blocks(np.flatnonzero(numbers == index))
    ]
    result = np.empty(len(rows))

    def fill(task: tuple[NetworkWeights, IndexArray]) -> None:
        network, block = task
        result[block] = _log_utilisation(network, rows[block])

    if len(blocks) < THREADED_BLOCKS:
        for task in blocks:
            fill(task)
    else:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(fill, blocks))
    return result


def _blocks(rows: IndexArray) -> list[IndexArray]:
    return [rows[start : start + BLOCK_ROWS] for start in range(0, len(rows), BLOCK_ROWS)]


def _log_utilisation(network: NetworkWeights, rows: Float32Array) -> Array:
    """Compute one block, shape (rows, features); its rows are filled up to whole strips."""
    strips = -(-len(rows) // STRIP_ROWS)
    inputs = np.zeros((strips * STRIP_ROWS, rows.shape[1]), np.float32)
    np.clip(rows, network.low, network.high, out=inputs[: len(rows)])
    inputs -= network.mean
    inputs /= network.scale
    values = inputs.reshape(1, strips, STRIP_ROWS, -1)  # every member sees the same rows
    for index, layer in enumerate(network.layers):
        values = np.matmul(values, layer.weight[:, None])  # (members, strips, STRIP_ROWS, lanes)
        values += layer.bias[:, None, None, :]
        if index < len(network.layers) - 1:
            np.maximum(values, 0.0, out=values)
    outputs = values.reshape(values.shape[0], -1)[:, : len(rows)]  # (members, rows)
    share = 1.0 / (1.0 + np.exp(np.clip(-outputs, -60.0, 60.0)))
    mean: Array = np.log(network.lowest_utilisation) * share.mean(axis=0, dtype=np.float64)
    return mean
