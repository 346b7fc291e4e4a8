"""Rows of published tables."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from pathlib import Path


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file, which may be compressed.

    Raises:
        OSError: The file cannot be read.
    """
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    yield from csv.DictReader(io.StringIO(text))
