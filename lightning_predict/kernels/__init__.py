"""Kernel models: predict GPU seconds of the operations of a trace.

* `operations.py`: registry of operations. Each family of operations registers its operations in its own file
  (`families/`).
* `translation.py`: translates a recorded call into operations with shapes. `memory_bound.py`: counts the bytes of all
  other calls.
* `timing.py`: predicts times by the best available source, then clamps them to bounds.
* `models.py`: inference of the trained neural networks. `features.py`: their input features. `roofline.py`: peak rates
  and bandwidths of a GPU.
* `collective.py`, `interconnect.py`: communication between GPUs (NCCL collectives), inside a machine and between
  machines.
* `measured_scaling.py`: decides how measured kernel times are scaled to other GPUs (`wave_scaling.py`: Habitat's
  method).
* `corrections.py`: corrections that apply to every source of times.
* `operator_times.py`: time of a single operation, for users.

Terms in these files:

* Shape (`OperationShape`): an operation with its shape parameters and dtype.
* Product: a matrix product (matmul), unless stated otherwise.
* Base: the neural networks for GPUs without their own weights. About a GPU, base networks only know its data sheet.
* Public tables: the published measurements on which the neural networks are trained.
* Training data: published results from which a constant was derived. Such results cannot test the constant.
* Device-bound: a step whose time is limited by the GPU, not by the CPU.
"""

from lightning_predict.kernels import families

__all__ = ["families"]
