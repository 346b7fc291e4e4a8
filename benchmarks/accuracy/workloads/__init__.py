"""Models that others timed, as plain torch modules: what the accuracy reports record on the meta device and predict.

They are written operation by operation as they were run when they were timed (eager attention, masks, dropout), since
that is what their times hold. `published.py` and `benchmarks.py` name the cases of the two tables.
"""
