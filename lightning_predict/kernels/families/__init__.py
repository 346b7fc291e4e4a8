"""Definitions of all operations: one file per family (matmul, attention, convolution, ...).

For each operation, the file defines shape parameters, FLOPs and bytes, dispatcher calls and the backward pass. The file
also defines the input features of the neural networks, and an estimate for GPUs without a network. Importing this
package registers the operations of most steps, which `kernels/__init__.py` does. Other families are imported when a
step has a call, or a caller names an operation, that their pattern finds.
"""

from lightning_predict.kernels.families import attention, elementwise, matmul, norm, reductions
from lightning_predict.kernels.operations import ON_SPARSE_TENSORS, load_when_asked

__all__ = ["attention", "elementwise", "matmul", "norm", "reductions"]


def _collective() -> None:
    from lightning_predict.kernels.families import collective  # noqa: F401


def _convolution() -> None:
    from lightning_predict.kernels.families import convolution  # noqa: F401


def _embedding() -> None:
    from lightning_predict.kernels.families import embedding  # noqa: F401


def _fourier() -> None:
    from lightning_predict.kernels.families import fourier  # noqa: F401


def _linalg() -> None:
    from lightning_predict.kernels.families import linalg  # noqa: F401


def _optimizer() -> None:
    from lightning_predict.kernels.families import optimizer  # noqa: F401


def _pooling() -> None:
    from lightning_predict.kernels.families import pooling  # noqa: F401


def _quantized() -> None:
    from lightning_predict.kernels.families import quantized  # noqa: F401


def _recurrent() -> None:
    from lightning_predict.kernels.families import recurrent  # noqa: F401


def _sparse() -> None:
    from lightning_predict.kernels.families import sparse  # noqa: F401


load_when_asked("^all|^broadcast|^reduce_scatter", _collective)
load_when_asked("conv", _convolution)
load_when_asked("embedding|look_?ups|table_|interaction", _embedding)
load_when_asked("fft", _fourier)
load_when_asked("linalg|solve|chol|inverse|det$|^lu$|_lu_|ldl|\\bqr$|geqrf|or[gm]qr|eig|svd|matrix_exp", _linalg)
load_when_asked("^adam|^sgd|^adagrad", _optimizer)
load_when_asked("pool", _pooling)
load_when_asked("4bit|8bit|blockwise|bitsandbytes", _quantized)
load_when_asked("lstm|gru|rnn", _recurrent)
load_when_asked(f"sparse_product|{ON_SPARSE_TENSORS}", _sparse)
