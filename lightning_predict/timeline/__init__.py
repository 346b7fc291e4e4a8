"""Simulates a step from timed work, with the host and the device together, and finds its bottleneck."""
