"""Load weights in several processes that share one cache: `python -m tests.weights.sharing URL CACHE PROCESSES`.

Printed is, for each process, the bias of each GPU's weights, by which a test tells files apart, and the notes; or the
error.
"""

import json
import os
import sys
from typing import Any

from lightning_predict.weights.source import WeightsSource
from lightning_predict.weights.store import load_weights
from tests.weights.example import GPUS


def loaded(url: str, cache: str) -> Any:
    """Load, and print the result."""
    try:
        weights = load_weights(GPUS, WeightsSource(url=url, cache_dir=str(cache)))
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    networks = {name: gpu.families["toy"] for name, gpu in weights.gpus.items() if name in GPUS}
    return {name: float(network.layers[-1].bias[0, 0]) for name, network in networks.items()}, weights.notes


def main(url: str, cache: str, processes: int) -> None:
    """Fork, load in each process, and print what each says."""
    pipes = []
    for _ in range(processes):
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, json.dumps(loaded(url, cache)).encode())
            os._exit(0)
        os.close(writing)
        pipes.append(reading)
    said = []
    for reading in pipes:
        with os.fdopen(reading) as file:
            said.append(json.load(file))
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
