"""Weights for an unmeasured GPU: `measuring` runs micro-benchmarks on the GPU, and `training` fits the networks."""
