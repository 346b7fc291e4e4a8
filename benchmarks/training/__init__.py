"""Train and score the weights that ship: `python -m benchmarks.training`. Not in the wheel.

`tables` reads and splits measurements, `recipes` says how each family is trained, `families` trains (with the networks
of `lightning_predict.own_weights.training`), `scores` says how good the result is on the held-out rows,
`proxies` how good operations without a network are, and `publishing` writes the files. `weights` is the whole way, for
the command line.
"""
