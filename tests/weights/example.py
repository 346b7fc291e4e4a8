"""Small weights files."""

from pathlib import Path

import numpy as np

from lightning_predict.weights.files import (
    MANIFEST_NAME,
    HeldOutError,
    Manifest,
    ManifestEntry,
    file_name,
    sha256,
    write_weights,
)
from lightning_predict.weights.records import GpuWeights, Layer, NetworkWeights


def network(family: str = "toy", *, inputs: int = 3, members: int = 2, bias: float = 0.0) -> NetworkWeights:
    """Two layers of width 4; constant weights, so that a test can tell files apart by `bias`."""
    return NetworkWeights(
        family=family,
        trained=frozenset({("linear", "float32")}),
        features=tuple(f"feature_{index}" for index in range(inputs)),
        mean=np.zeros(inputs, np.float32),
        scale=np.ones(inputs, np.float32),
        low=np.full(inputs, -1, np.float32),
        high=np.full(inputs, 1, np.float32),
        lowest_utilisation=0.01,
        layers=(
            Layer(np.full((members, inputs, 4), 0.5, np.float32), np.zeros((members, 4), np.float32)),
            Layer(np.full((members, 4, 1), 0.25, np.float32), np.full((members, 1), bias, np.float32)),
        ),
        interval={"linear/float32": 0.1, "*": 0.2},
    )


def weights(gpu: str, *, bias: float = 0.0) -> GpuWeights:
    """The weights of one GPU."""
    return GpuWeights(gpu, {"toy": network(bias=bias)}, "toy-1", 0, ("a source (MIT)",))


def publish(folder: Path, *gpus: str, bias: float = 0.0) -> Manifest:
    """A folder of weights files with their manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = {}
    for gpu in gpus:
        path = folder / file_name(gpu)
        write_weights(weights(gpu, bias=bias), path)
        content = path.read_bytes()
        entries[path.name] = ManifestEntry(
            sha256=sha256(content),
            bytes=len(content),
            gpu=gpu,
            operations=("linear",),
            dtypes=("float32",),
            trained_on=("a source (MIT)",),
            rows=10,
            held_out_error={"linear/float32": HeldOutError(rows=5, mean=0.1, median=0.05, coverage=0.9)},
        )
    manifest = Manifest(recipe="toy-1", seed=0, files=entries)
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return manifest
