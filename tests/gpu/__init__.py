"""Tests that need a CUDA device: `pytest -m gpu tests/gpu`. The ordinary run leaves them out."""
