"""Training of weights for your own GPU; the training of the shipped weights is in `benchmarks/training`."""
