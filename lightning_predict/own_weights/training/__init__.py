"""Training of weights for your own GPU (`lightning-predict train`). Predictions do not import this package.

`tables` reads and splits the tables that `measure` wrote. `networks` trains one network. `tuning` tunes the shipped
networks to the GPUs of the tables. The training of the shipped weights is in `benchmarks/training`, which is not in the
wheel.
"""
