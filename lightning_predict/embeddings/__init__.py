"""Sharding of embedding tables over several GPUs: time and memory of each sharding plan, and the fastest plan."""
