"""Kernel models: a Problem and a Gpu give seconds.

`operations.py` has the records and the table of operations; one file per family fills it (`matmul.py`,
`convolution.py`, `attention.py`, `recurrent.py`, `vector.py`); `roofline.py` is the bound.
"""

from __future__ import annotations

from lightning_predict.kernels import attention, convolution, matmul, recurrent, vector

__all__ = ["attention", "convolution", "matmul", "recurrent", "vector"]
