"""Layers in 4 bits and optimizers in 8 bits as bitsandbytes has them, recorded on the meta device with their storage.

`layers.py` and `optimizers.py` replace the library where it is not installed. `installed.py` makes the library itself
work on the meta device. `kernels/families/quantized.py` times the operations of both.
"""
