"""Simulates a step from predicted kernel times, on the host (CPU) and the device (GPU), and finds its bottleneck."""
