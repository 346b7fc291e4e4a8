"""Training of weights for your own GPU: `lightning-predict train`. Not imported for predictions.

`tables` reads and splits the tables of `measure`, `networks` trains one network, and `own` tunes the shipped networks
to the GPUs of the tables. The training of the shipped weights is in `benchmarks/training`, which is not in the wheel.
"""
