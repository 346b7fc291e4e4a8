"""GPU memory of a step: storages and their lifetimes, a simulation of torch's caching allocator, and CUDA libraries."""
