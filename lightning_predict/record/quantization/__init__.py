"""4-bit layers and 8-bit optimizers of bitsandbytes, recorded on the meta device with their storage.

`layers.py` and `optimizers.py` replace bitsandbytes if it is not installed. `installed.py` makes an installed
bitsandbytes work on the meta device. `kernels/families/quantized.py` predicts the times of the operations.
"""
