"""The families of operations, one file each: all that is known of an operation is in the file of its family.

Shape parameters, FLOPs and bytes, the dispatcher's calls, the backward pass, what times it without a network, and
the features that its networks see. Importing `lightning_predict.kernels` registers them all.
"""
