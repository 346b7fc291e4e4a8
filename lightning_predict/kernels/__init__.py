"""Kernel models: predict GPU seconds from the operations of a trace.

* `operations.py`: registry of operations, filled by one file per family (`families/`).
* `translation.py`: translates a recorded call into problems; `traffic.py`: counts the bytes of all other calls.
* `fusion.py`: rewrites a step as a compiler would run it.
* `timing.py`: times problems by the best available source, and clamps the result to bounds.
* `models.py`: trained networks; `features.py`: their input features; `roofline.py`: peaks and bandwidths of a GPU.
* `collective.py`, `fabric.py`: communication between GPUs, inside and between machines.
* `choice.py`: decides how to use measured kernels (`wave_scaling.py`: Habitat's method).
* `corrections.py`: corrections that apply to every source of times.
* `operator_times.py`: time of a single operation, for users.

Terms in these files:

* Problem: one operation at one shape and dtype.
* Product: a matrix product (matmul), unless stated otherwise.
* Base: the networks for GPUs without their own weights. They know a GPU by the figures of its data sheet alone.
* Public tables: the published measurements on which the networks are trained.
* Training data: a constant was derived from these published results, so they are no test of it.
* Device-bound: the GPU, not the CPU, limits a step.
"""
