"""Weights for a GPU without shipped measurements: `measuring` times its operations, `training` fits the networks."""
