"""Micro-benchmarks of operations on the GPU at hand, written as a table that training reads.

`benchmarks.py` draws problems of an operation and turns them into calls of torch, `clock.py` times a call, `run.py`
puts them together and writes the rows. Example::

    from lightning_predict.extensions.own_weights.measuring.run import measure

    measure("tables", operations=["conv2d", "lstm"], dtypes=["bfloat16"], problems=200)
"""
