"""Families of operations, one file each, with everything that is known of an operation.

A file holds shape parameters, FLOPs and bytes, dispatcher calls, the backward pass, the estimate without a network, and
the input features of the networks. Importing `lightning_predict.kernels` registers all of them.
"""
