"""Micro-benchmarks of operations on this machine's GPU, written as tables for training.

`benchmarks.py` draws shapes of an operation and creates torch calls for them. `clock.py` times a call. `run.py`
combines both, and writes the rows. Example::

    from lightning_predict.own_weights.measuring.run import measure

    measure("tables", operations=["conv2d", "lstm"], dtypes=["bfloat16"], problems=200)
"""
