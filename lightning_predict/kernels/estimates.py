"""What a predicted time of a problem is, who may give one, and the dtype that a GPU computes it in.

`timing.problem_times` makes these. Example::

    >>> from lightning_predict.gpus import gpu
    >>> compute_dtype_on("tf32", gpu("T4")), float32_stands_in("bfloat16", gpu("T4"))
    ('float32', True)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, final

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.records import Gpu
from lightning_predict.interval import Interval
from lightning_predict.kernels.operations import Array, ProblemBatch
from lightning_predict.kernels.utilisation import Estimate

TimedBy = Literal["mlp", "proxy", "bytes", "formula", "roofline"]
"""How a time without a measurement comes about: `mlp` by a model trained on measurements of this operation in this
dtype, on this or another GPU; `proxy` by a model of a related operation or dtype; `bytes` as a copy of as many bytes;
`formula` by a formula of its family, of tiles or caches; `roofline` from peak arithmetic and bandwidth alone."""


class KernelModels(Protocol):
    """The interface of trained models; `utilisation.UtilisationModels` is one."""

    def supports(self, operation: str, dtype: str) -> bool:
        """Return whether a model serves the operation in this dtype, trained on it or not."""

    def timed_by(self, operation: str, dtype: str) -> TimedBy:
        """Tell how a model that serves the operation in this dtype knows it."""

    def estimate(self, batch: ProblemBatch, gpus: Sequence[Gpu]) -> Estimate:
        """Estimate seconds and their 90 % interval, each of shape (gpus, problems)."""


@final
@dataclass(frozen=True, slots=True)
class ProblemTimes:
    """Seconds of problems, arrays of shape (gpus, problems).

    Attributes:
        interval: Seconds.
        shares: Share of the time by `TimedBy`; they add up to 1.
        base_share: Share of the time by networks that saw no measurement of the GPU.
    """

    interval: Interval[Array]
    shares: Mapping[TimedBy, Array]
    base_share: Array

    @property
    def seconds(self) -> Array:
        """Middle of the prediction."""
        return self.interval.middle


def compute_dtype_on(dtype: str, gpu: Gpu) -> str:
    """Return the dtype that a GPU computes in: TF32 is float32 where the matrix units do not know it.

    Raises:
        InvalidArgumentError: float8 on a GPU without units for it, which no library emulates.
    """
    if dtype == "float8" and "float8" not in gpu.peak_flops_per_second:
        raise InvalidArgumentError(
            f"{gpu.name} has no units for float8; expected a GPU that does (Ada, Hopper or Blackwell). "
            "Choose bfloat16 or float16, or another GPU."
        )
    return "float32" if dtype == "tf32" and "tf32" not in gpu.peak_flops_per_second else dtype


def float32_stands_in(dtype: str, gpu: Gpu) -> bool:
    """Return whether this GPU computes matrix work of a narrower dtype on float32's units, which are as fast.

    TF32 is left to `compute_dtype_on`: without units for it, it is float32 and not a stand-in for it.
    """
    if dtype not in ("float8", "float16", "bfloat16"):
        return False
    peak = gpu.peak(dtype)
    is_no_faster = peak is None or peak <= gpu.peak_flops_per_second["float32"]
    return is_no_faster or dtype in gpu.emulated_dtypes or not gpu.generation.has_tensor_cores
