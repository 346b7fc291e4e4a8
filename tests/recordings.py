"""Where real recordings lie, for tests that read them; they are not part of the repository."""

import os
from pathlib import Path

import pytest

RECORDINGS = Path(os.environ.get("LIGHTNING_PREDICT_RECORDINGS", Path(__file__).parents[2] / "shared" / "traces"))
"""Folder of recordings; `LIGHTNING_PREDICT_RECORDINGS` names another one."""


def recording(name: str) -> str:
    """Give the path of one recording; skip the test where the folder is absent."""
    path = RECORDINGS / name
    if not path.exists():
        pytest.skip(f"no recording at {path}")
    return str(path)
