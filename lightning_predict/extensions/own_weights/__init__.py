"""Weights for an unmeasured GPU: `measuring` times its operations (micro-benchmarks), `training` fits the networks."""
