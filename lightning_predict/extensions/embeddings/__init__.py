"""Sharding of embedding tables over several GPUs: time and memory of each plan, and the fastest one."""
