"""Micro-benchmarks of operations on the GPU at hand, written as a table that training reads.

`shapes.py` draws problems, `calls.py` turns a problem into calls of torch, `clock.py` times a call, `tables.py` writes
the rows, `run.py` puts them together. Example::

    from lightning_predict.fitting.measuring.run import measure

    measure("tables", operations=["conv2d", "lstm"], dtypes=["bfloat16"], problems=200)
"""
