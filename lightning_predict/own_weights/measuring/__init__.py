"""Micro-benchmarks of operations on this machine's GPU, written as tables for training."""
