"""Mutate every kind of file that is read, again and again: `python -m tests.soak.hostile [--inputs 100000]`.

The mutations and readers come from `tests/test_hostile_files.py`. Printed is, by reader, how many inputs were read
and refused in words, and the slowest, in seconds of the processor; anything but our own errors ends the run with the
bytes that brought it.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from lightning_predict.base.errors import LightningPredictError
from tests.test_hostile_files import READERS, Reader, mutations


def study(reader: Reader, inputs: int, folder: Path) -> tuple[int, int, float]:
    """Inputs that were read, inputs that were refused, and the seconds of the slowest."""
    reader.write(folder)
    path = folder / reader.name
    content, counts, slowest = path.read_bytes(), [0, 0], [0.0]

    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(mutations())
    def read(mutate: Callable[[bytes], bytes]) -> None:
        path.write_bytes(mutate(content))
        start = time.process_time()
        try:
            reader.read(folder)
            counts[0] += 1
        except LightningPredictError:
            counts[1] += 1
        slowest[0] = max(slowest[0], time.process_time() - start)

    read()
    return counts[0], counts[1], slowest[0]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| file | read | refused in words | slowest (s) |\n|---|---:|---:|---:|")
    for name, reader in READERS.items():
        with tempfile.TemporaryDirectory() as folder:
            read, refused, slowest = study(reader, options.inputs, Path(folder))
        print(f"| {name} | {read:,} | {refused:,} | {slowest:.2f} |", flush=True)


if __name__ == "__main__":
    main()
